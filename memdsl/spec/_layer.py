"""Layers: how a memory sits in a network. Sizes are left open; `Dims` fixes them at build time."""

from typing import ClassVar

from ._base import choice, flag, sort, whole
from ._layer_algebra import (
    LayerProduct as LayerProduct,
    LayerSum as LayerSum,
    Named as Named,
    Tied as Tied,
    Uniform as Uniform,
    Vector as Vector,
)
from ._layer_base import AbstractLayer as AbstractLayer, Map as Map, Sequence as Sequence
from ._layer_parts import (
    Conv as Conv,
    Dense as Dense,
    Embed as Embed,
    Flatten as Flatten,
    Mlp as Mlp,
    Norm as Norm,
    Repeat as Repeat,
    Residual as Residual,
    Unembed as Unembed,
)
from ._layer_time import (
    Recall as Recall,
    Rotary as Rotary,
    Shift as Shift,
    ShortConvolution as ShortConvolution,
)
from ._memory import AbstractMemory


class Layer(AbstractLayer):
    """A memory as a sequence layer: projections, heads, short convolutions, norm, output gate.

        q, k, v = activation(convolve(W x));   o = memory(k, v, q)
        y = W_o (norm(o) * gate(W_g x))

    **Arguments:**

    - `memory`: one head's memory; every head has its own state, and its own learned numbers.
    - `heads`: how many heads.
    - `key_size`, `value_size`: sizes of one head; `model // heads` by default.
    - `convolution`: the width of a causal depthwise convolution of queries, keys and values; 0: none.
    - `activation`: after the convolution, `"silu"`, or `None`.
    - `norm`: of each head's answer, `"rms"`, or `None`.
    - `output_gate`: `"silu"` or `"sigmoid"` of a projection, times the normed answer; or `None`.

    **Raises:** `SpecError` where an argument is out of range.

    ??? example

        ```python
        >>> import jax, jax.numpy as jnp
        >>> import memdsl as md
        >>> spec = md.Layer(md.zoo.gated_delta_net(), heads=2, convolution=4)
        >>> layer = md.build(spec, md.Dims(model=8), key=jax.random.key(0))
        >>> layer(jnp.ones((5, 8))).shape
        (5, 8)

        ```
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


class Grown(AbstractLayer):
    """`y = base(x) + f(x)`, where f is a memory that training writes: one atom an example.

    The backward pass gives every example's key x and error signal g = dL/dy, and `grow.write` does
    `f <- f - rate kernel(x, .) g`: functional gradient descent.

    **Arguments:**

    - `base`: the layer beneath, `Dense(...)` or `Conv(...)`; what there is before anything is grown.
    - `memory`: the memory that grows. Its write may be `Hebb`, `Reweight` under a normalised read,
        `Ridge`, or `Descent(Inner(), ...)` with momentum or orthogonal steps; and memories may be
        added (`a + b`), and boosted (`a.boost(b)`).
    - `trainable`: whether the stored atoms are parameters too.

    **Raises:** `SpecError` for a memory that cannot be written with a gradient.

    ??? example

        ```python
        >>> import jax, jax.numpy as jnp
        >>> import memdsl as md
        >>> atoms = md.Memory(md.RBF(scale=2.0), md.Hebb(rate=0.5), md.Novelty(0.1), md.Budget(64))
        >>> spec = md.Grown(md.Dense(3), atoms)
        >>> md.build(spec, md.Dims(model=8), key=jax.random.key(0))(jnp.ones((5, 8))).shape
        (5, 3)

        ```

    Source: "Retrieval-Centric Deep Learning" (2026), section 3.1; `trainable`, section 3.3.
    """

    base: AbstractLayer = sort(AbstractLayer)
    memory: AbstractMemory = sort(AbstractMemory)
    trainable: bool = flag()
    positional: ClassVar[int] = 2

    def __check__(self) -> None:
        from ._check import check_grown

        check_grown(self)
