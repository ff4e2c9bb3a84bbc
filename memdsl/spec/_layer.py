"""Layers: how a memory sits in a network. Sizes are left open; `Dims` fixes them at build time."""

from typing import Any, ClassVar

from .._errors import SpecError
from ._base import choice, described, flag, plain_float, sort, Spec, whole, written
from ._feature import AbstractFeature
from ._memory import AbstractMemory


class AbstractLayer(Spec):
    """A map of a sequence `[time, width] -> [time, width]`, or of single points `[width]`."""

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


class Layer(AbstractLayer):
    """A memory as a sequence layer: projections, heads, short convolutions, norm, output gate.

        q, k, v = activation(convolve(W x));   o = memory(k, v, q);   y = W_o (norm(o) * gate(W_g x))

    **Arguments:**

    - `memory`: one head's memory; every head has its own state, and its own learned numbers.
    - `heads`: how many heads.
    - `key_size`, `value_size`: sizes of one head; `model // heads` by default.
    - `convolution`: the width of a causal depthwise convolution of queries, keys and values; 0: none.
    - `activation`: after the convolution, `"silu"`, or `None`.
    - `norm`: of each head's answer, `"rms"`, or `None`.
    - `output_gate`: `"silu"` or `"sigmoid"` of a projection, multiplied to the normed answer; or `None`.
    """

    memory: AbstractMemory = sort(AbstractMemory)
    heads: int = whole(at_least=1, default=1)
    key_size: int | None = whole(at_least=1, default=None, optional=True)
    value_size: int | None = whole(at_least=1, default=None, optional=True)
    convolution: int = whole(at_least=0, default=0)
    activation: str | None = choice("silu", None, default=None)
    norm: str | None = choice("rms", None, default="rms")
    output_gate: str | None = choice("silu", "sigmoid", None, default=None)
    positional: ClassVar[int] = 1


class Dense(AbstractLayer):
    """`y = W x + b`. `start="zeros"` begins at the zero function, `"normal"` at N(0, 1 / in)."""

    size: int | None = whole(at_least=1, default=None, optional=True)
    bias: bool = flag(default=True)
    start: str = choice("normal", "zeros", default="normal")
    trainable: bool = flag(default=True)
    positional: ClassVar[int] = 1


class Conv(AbstractLayer):
    """A convolution over images `[channel, height, width]`, whose patches a memory can grow on."""

    channels: int = whole(at_least=1)
    window: int = whole(at_least=1, default=3)
    stride: int = whole(at_least=1, default=1)
    padding: str = choice("same", "valid", default="same")
    bias: bool = flag(default=True)
    trainable: bool = flag(default=True)
    positional: ClassVar[int] = 1


class Mlp(AbstractLayer):
    """A gated two-layer network, `W_2 (silu(W_1 x) * W_3 x)`, `expand` times as wide inside."""

    expand: float = plain_float(above=0.0, default=4.0)
    positional: ClassVar[int] = 1


class Norm(AbstractLayer):
    """`x / sqrt(mean x^2 + epsilon) * gain`."""

    epsilon: float = plain_float(above=0.0, default=1e-6)


class Map(AbstractLayer):
    """A feature, applied to every vector: what a feature becomes between layers."""

    feature: AbstractFeature = sort(AbstractFeature)
    positional: ClassVar[int] = 1


class Flatten(AbstractLayer):
    """An array of any shape as one vector."""


class Residual(AbstractLayer):
    """`x + layer(x)`."""

    layer: AbstractLayer = sort(AbstractLayer)
    positional: ClassVar[int] = 1


class Repeat(AbstractLayer):
    """`count` copies of a layer, one after the other, each with parameters of its own: one scan, so
    that compiling takes as long as for one."""

    layer: AbstractLayer = sort(AbstractLayer)
    count: int = whole(at_least=1)
    positional: ClassVar[int] = 2


class Embed(AbstractLayer):
    """Tokens `[time]` to vectors `[time, model]`."""

    vocabulary: int = whole(at_least=1)
    positional: ClassVar[int] = 1


class Unembed(AbstractLayer):
    """Vectors to logits over a vocabulary: of the model's `Embed` by default."""

    vocabulary: int | None = whole(at_least=1, default=None, optional=True)
    positional: ClassVar[int] = 1


class Grown(AbstractLayer):
    """`y = base(x) + f(x)`, where f is a memory that training writes: one atom an example.

    The backward pass gives every example's key x and error signal g = dL/dy, and `grow.write` does
    `f <- f - rate kernel(x, .) g`: functional gradient descent ("Retrieval-Centric Deep Learning",
    section 3.1).

    **Arguments:**

    - `base`: the layer beneath, `Dense(...)` or `Conv(...)`; what there is before anything is grown.
    - `memory`: the memory that grows: a `Memory` whose write is `Hebb` or `Reweight`.
    - `trainable`: whether the stored atoms are parameters too (the hybrid, section 3.3).
    """

    base: AbstractLayer = sort(AbstractLayer)
    memory: AbstractMemory = sort(AbstractMemory)
    trainable: bool = flag()
    positional: ClassVar[int] = 2

    def __check__(self) -> None:
        from ._check import check_grown

        check_grown(self)
