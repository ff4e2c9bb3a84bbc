"""What a layer is, and how layers are put one after the other with `>>`."""

from typing import Any, ClassVar

from .._errors import SpecError
from ._base import described, sort, Spec, written
from ._feature import AbstractFeature


class AbstractLayer(Spec):
    """A map of a sequence `[time, width] -> [time, width]`, or of single points `[width]`.

    `first >> second` is one after the other; a feature may stand between layers.

    ??? example

        ```python
        >>> import memdsl as md
        >>> mixer = md.Residual(md.Norm() >> md.Layer(md.zoo.gated_delta_net(), heads=4))
        >>> block = mixer >> md.Residual(md.Norm() >> md.Mlp())
        >>> model = md.Embed(256) >> md.Repeat(block, 4) >> md.Norm() >> md.Unembed()

        ```
    """

    example: ClassVar[str] = "Layer(memory) or Dense(64)"

    def __rshift__(self, other: "AbstractLayer | AbstractFeature") -> "Sequence":
        return Sequence((*_flat(self), *_flat(other)))

    def __rrshift__(self, other: AbstractFeature) -> "Sequence":
        return Sequence((*_flat(other), *_flat(self)))


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
