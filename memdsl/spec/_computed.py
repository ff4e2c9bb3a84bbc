"""Numbers that a layer computes from the input: the general form of `FromInput`."""

import math
from typing import Any, ClassVar

from ._base import choice, flag, sort
from ._feature import (
    AbstractFeature,
    Exponential,
    Identity,
    LogSigmoid,
    Scale,
    Sigmoid,
    Slice,
    Softmax,
    Softplus,
    Spread,
    Tanh,
    Wide,
)
from ._layer import Dense, LayerProduct, LayerSum, Named, Uniform, Vector
from ._layer_base import AbstractLayer, Map, Sequence
from ._number import product_of, sum_of
from ._source import AXES, Source


class Computed(Source):
    """A number of every token that a layer gives: `layer(x)`, or `exp(layer(x))` where `log`.

    `FromInput("sigmoid", bias=b)` is `Computed(Dense(heads) >> Sigmoid())` with its bias at b. The
    layer is as wide as there are numbers: pair after pair, head after head, channel after channel.

    **Arguments:**

    - `layer`: what computes it; it may look back (`Shift`, `ShortConvolution`).
    - `per`: one for the whole `"layer"`, one a `"head"`, a `"key_channel"`, or a `"value_channel"`.
    - `log`: whether the layer gives the *logarithm* of the number, as of a decay.

    **Raises:** `SpecError` in a slot whose range it can leave.

    ??? example

        ```python
        >>> import memdsl as md
        >>> rate = md.Named("a_proj", md.Dense(2, bias=False)) + md.Named("dt_bias", md.Vector(2))
        >>> a = md.Named("A_log", md.Vector(2)) >> md.Exponential()
        >>> gate = md.Decay(md.Computed(-1.0 * a * (rate >> md.Softplus()), log=True))  # Mamba-2
        >>> try:
        ...     md.Decay(md.Computed(rate, log=True))
        ... except md.SpecError as error:
        ...     print(str(error).splitlines()[0][:67])
        Decay.decay must be between 0 and 1, and Computed(Named("a_proj", D

        ```
    """

    layer: AbstractLayer = sort(AbstractLayer)
    per: str = choice(*AXES, default="head")
    log: bool = flag()
    positional: ClassVar[int] = 1
    time: ClassVar[bool] = True

    def reach(self) -> tuple[float, float] | None:
        found = _reach(self.layer)
        return found if found is None or not self.log else (_exp(found[0]), _exp(found[1]))

    def within(self, at_most: float, log: bool) -> str:
        squash = "Sigmoid()" if at_most == 1 else "Softplus()"
        also = ", or with log=True one that ends in LogSigmoid()" if log else ""
        return f"a layer that ends in {squash}{also}."


def _exp(x: float) -> float:
    return math.exp(x) if x < 700 else math.inf


_SQUASHES: dict[type[AbstractFeature], tuple[float, float]] = {
    Sigmoid: (0.0, 1.0),
    Softmax: (0.0, 1.0),
    Tanh: (-1.0, 1.0),
    LogSigmoid: (-math.inf, 0.0),
    Softplus: (0.0, math.inf),
    Exponential: (0.0, math.inf),
}
_ANYTHING = (-math.inf, math.inf)


def _reach(layer: Any) -> tuple[float, float] | None:
    """Where what a layer gives can be when nothing has been trained yet."""
    match layer:
        case int() | float():
            return float(layer), float(layer)
        case Vector():
            return _ends(layer.start)
        case Dense():
            return _ANYTHING
        case Named():
            return _reach(layer.layer)
        case LayerSum():
            return sum_of(_reach(layer.left), _reach(layer.right))
        case LayerProduct():
            return product_of(_reach(layer.left), _reach(layer.right))
        case Map():
            return _squashed(layer.feature, _ANYTHING)
        case Sequence():
            found: Any = _ANYTHING
            for part in layer.layers:
                found = _squashed(part.feature, found) if isinstance(part, Map) else _reach(part)
            return found
        case _:
            return _ANYTHING


def _ends(start: Any) -> tuple[float, float]:
    """Where the numbers of a vector start."""
    if isinstance(start, Uniform):
        return start.parameter(start.low), start.parameter(start.high)
    several = start if isinstance(start, tuple) else (start,)
    return float(min(several)), float(max(several))


def _squashed(feature: AbstractFeature, given: Any) -> tuple[float, float] | None:
    if isinstance(feature, Identity | Slice | Spread | Wide):
        return given
    if isinstance(feature, Scale):
        return product_of((feature.factor, feature.factor), given)
    if feature.is_nonnegative() and type(feature) not in _SQUASHES:
        return 0.0, math.inf
    return _SQUASHES.get(type(feature), _ANYTHING)
