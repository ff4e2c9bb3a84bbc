"""What a layer is, and how layers are put one after the other with `>>`."""

from typing import Any, ClassVar, TYPE_CHECKING

from .._errors import SpecError
from ._base import described, sort, Spec, written
from ._feature import AbstractFeature


if TYPE_CHECKING:
    from ._layer_algebra import LayerProduct, LayerSum


class AbstractLayer(Spec):
    """A map of a sequence `[time, width] -> [time, width]`, or of single points `[width]`.

    `first >> second` is one after the other; a feature may stand between layers. `first + second`
    and `first * second` are two layers of one x, number by number.

    ??? example

        ```python
        >>> import memdsl as md
        >>> mixer = md.Residual(md.Norm() >> md.Layer(md.zoo.gated_delta_net(), heads=4))
        >>> block = mixer >> md.Residual(md.Norm() >> md.Mlp())
        >>> model = md.Embed(256) >> md.Repeat(block, 4) >> md.Norm() >> md.Unembed()

        ```
    """

    example: ClassVar[str] = "Layer(memory) or Dense(64)"

    @classmethod
    def suggestion(cls, value: Any) -> str:
        from ._memory_base import AbstractMemory

        if isinstance(value, AbstractFeature):
            return f"Map({value!r})."
        return f"Layer({value!r})." if isinstance(value, AbstractMemory) else f"{cls.example}."

    def __rshift__(self, other: "AbstractLayer | AbstractFeature") -> "Sequence":
        return Sequence((*_flat(self), *_flat(other)))

    def __rrshift__(self, other: AbstractFeature) -> "Sequence":
        return Sequence((*_flat(other), *_flat(self)))

    def __add__(self, other: "AbstractLayer | float") -> "LayerSum":
        return _pointwise("+", self, other)

    def __radd__(self, other: float) -> "LayerSum":
        return _pointwise("+", other, self)

    def __sub__(self, other: "AbstractLayer | float") -> "LayerSum":
        return _pointwise("+", self, _pointwise("*", -1.0, other))

    def __rsub__(self, other: float) -> "LayerSum":
        return _pointwise("+", other, _pointwise("*", -1.0, self))

    def __mul__(self, other: "AbstractLayer | float") -> "LayerProduct":
        return _pointwise("*", self, other)

    def __rmul__(self, other: float) -> "LayerProduct":
        return _pointwise("*", other, self)


def _is_plain(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _pointwise(operator: str, left: Any, right: Any) -> Any:
    from ._layer_algebra import LayerProduct, LayerSum

    for value in (left, right):
        if not _is_plain(value) and not isinstance(value, AbstractLayer):
            raise SpecError(
                f"{operator} joins layers and plain numbers, and got {described(value)}.",
                instead="Map(feature) for a feature, Vector(size) for a trained vector.",
            )
    if _is_plain(left) and _is_plain(right):
        return left * right
    return (LayerSum if operator == "+" else LayerProduct)(left, right)


def _flat(layer: Any) -> tuple[AbstractLayer, ...]:
    if isinstance(layer, AbstractFeature):
        return (Map(layer),)
    if not isinstance(layer, AbstractLayer):
        raise SpecError(
            f">> joins layers and features, and got {described(layer)}.",
            instead="Layer(memory) for a memory, and a feature such as Relu() between layers.",
        )
    return layer.layers if isinstance(layer, Sequence) else (layer,)


class Sequence(AbstractLayer):
    """`first >> second >> …`: each layer of what the one before it gave."""

    layers: tuple[AbstractLayer, ...]
    binding: ClassVar[int] = 3

    def __check__(self) -> None:
        layers = self.layers
        good = isinstance(layers, tuple) and all(isinstance(x, AbstractLayer) for x in layers)
        if not good or len(layers) < 2 or any(isinstance(x, Sequence) for x in layers):
            raise SpecError(
                "A sequence is of at least two layers that are no sequences.",
                instead="first >> second, which makes it.",
            )

    def __repr__(self) -> str:
        return " >> ".join(written(layer, 4) for layer in self.layers)


class Map(AbstractLayer):
    """A feature, applied to every vector: what a feature becomes between layers.

    ??? example

        ```python
        >>> import memdsl as md
        >>> md.Dense(8) >> md.Relu() >> md.Dense(8)
        Dense(8) >> Map(Relu()) >> Dense(8)

        ```
    """

    feature: AbstractFeature = sort(AbstractFeature)
    positional: ClassVar[int] = 1
