"""Features with trained weights."""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from ._base import choice, flag, plain_float, refuse, Spec, whole
from ._feature_base import AbstractFeature
from ._number import Number, number, Source


class Weight(Source):
    """A trained matrix of a feature, `rows x in_size`, or a vector of `rows` where `vector`.

    **Arguments:**

    - `rows`: how many; `None` for the size of the input (of a `Linear`: for its width).
    - `vector`: whether it is a vector.
    - `start`: `"orthogonal"`, `"identity"`, `"zeros"` or `"ones"`.

    ??? example

        ```python
        >>> import memdsl as md
        >>> md.Linear(16, md.Weight(start="identity"))
        Linear(16, weight=Weight(rows=16, start="identity"))

        ```
    """

    rows: int | None = whole(at_least=1, default=None, optional=True)
    vector: bool = flag()
    start: str = choice("orthogonal", "identity", "zeros", "ones", default="orthogonal")
    is_array: ClassVar[bool] = True


def _weight(default: Weight | None) -> Any:
    def check(spec: Spec, name: str, value: Any) -> None:
        if not isinstance(value, Weight) and not (default is None and value is None):
            why = "The trained array itself is made when the layer is built."
            raise refuse(spec, name, "a weight", value, why=why, instead='Weight(start="zeros").')

    return dataclasses.field(default=default, metadata={"check": check})


class Linear(AbstractFeature):
    """`W x`, with a trained W of `width` rows, one W a head.

    **Arguments:**

    - `width`: how many features.
    - `weight`: how W starts; orthogonal by default.

    ??? example

        ```python
        >>> import memdsl as md
        >>> (md.Linear(16) >> md.Relu()).size(64)
        16

        ```
    """

    width: int = whole(at_least=1)
    weight: Number = _weight(None)
    positional: ClassVar[int] = 1

    def __check__(self) -> None:
        weight = Weight() if self.weight is None else self.weight
        object.__setattr__(self, "weight", weight.replace(rows=self.width))

    def __call__(self, x: Any) -> Any:
        return self.weight @ x

    def size(self, in_size: int) -> int:
        return self.width

    def shown(self, at: str | None = None) -> list[tuple[str, str]]:
        usual = self.weight == Weight(rows=self.width) and at != "weight"
        return super().shown(at)[:1] if usual else super().shown(at)


class Hedgehog(AbstractFeature):
    """`softmax([2 y, -2 y])` of a trained `y = W x + b`: positive, and as spiky as softmax.

    **Arguments:**

    - `weight`: how W starts; at the identity.
    - `bias`: how b starts; at 0.

    ??? example

        ```python
        >>> import memdsl as md
        >>> md.Hedgehog().size(64), md.is_nonnegative(md.Dot().pullback(md.Hedgehog()))
        (128, True)

        ```

    Source: Zhang et al. 2024 ("The Hedgehog & the Porcupine"), with the softmax and the 2 of public
    code.
    """

    weight: Number = _weight(Weight(start="identity"))
    bias: Number = _weight(Weight(vector=True, start="zeros"))
    nonnegative: ClassVar[bool] = True

    def __call__(self, x: Any) -> Any:
        y = self.weight @ x + self.bias
        return jax.nn.softmax(jnp.concatenate([2 * y, -2 * y]))

    def size(self, in_size: int) -> int:
        return 2 * in_size


class LayerNorm(AbstractFeature):
    """`weight (x - mean x) / sqrt(var x + epsilon) + bias`, the variance divided by the size.

    **Arguments:**

    - `weight`: `Weight(vector=True, start="ones")` to train one a channel, or `None` for 1.
    - `bias`: `Weight(vector=True, start="zeros")`, or `None` for 0.
    - `epsilon`: at least 0; inside the root.
    - `residual`: adds x itself.

    **Raises:** `SpecError` where an argument is of the wrong kind or out of range.

    ??? example

        ```python
        >>> import jax.numpy as jnp
        >>> import memdsl as md
        >>> print(md.LayerNorm()(jnp.array([1.0, 3.0])).round(4))
        [-1.  1.]
        >>> print(md.LayerNorm(residual=True)(jnp.array([1.0, 3.0])).round(4))
        [0. 4.]

        ```

    Source: Ba et al. 2016; on what a memory answers, Sun et al. 2024 (TTT).
    """

    weight: Number = _weight(None)
    bias: Number = _weight(None)
    epsilon: float = plain_float(at_least=0.0, default=1e-6)
    residual: bool = flag()

    def __call__(self, x: Any) -> Any:
        centred = x - jnp.mean(x)
        y = centred * jax.lax.rsqrt(jnp.mean(centred * centred) + self.epsilon)
        y = y if self.weight is None else self.weight * y
        y = y if self.bias is None else y + self.bias
        return x + y if self.residual else y


class Preconditioner(AbstractFeature):
    """`base^(-r / (1 + |r|))` for `r = log(x + epsilon) - log_scale`: near 1, and smaller for larger x.

    It lies between `1 / base` and `base`, whatever x is.

    **Arguments:**

    - `log_scale`: the logarithm of the x that gives 1.
    - `base`: above 1.
    - `epsilon`: above 0, for an x of 0.

    ??? example

        ```python
        >>> import jax.numpy as jnp
        >>> import memdsl as md
        >>> [round(float(x), 4) for x in md.Preconditioner()(jnp.array([0.0, 1.0, 100.0]))]
        [1.4595, 1.0, 0.7167]

        ```

    Source: Tumma et al. 2026 ("Preconditioned DeltaNet").
    """

    log_scale: Number = number(default=0.0, meaning="logarithm of the square that is not changed")
    base: float = plain_float(above=1.0, default=1.5)
    epsilon: float = plain_float(above=0.0, default=1e-6)
    nonnegative: ClassVar[bool] = True
    positional: ClassVar[int] = 1

    def __call__(self, x: Any) -> Any:
        r = jnp.log(x + self.epsilon) - self.log_scale
        return self.base ** (-r / (1 + jnp.abs(r)))
