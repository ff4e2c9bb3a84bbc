"""Layers without a memory, and layers of layers."""

from typing import ClassVar

from ._base import choice, flag, plain_float, sort, whole
from ._layer_base import AbstractLayer


class Dense(AbstractLayer):
    """`y = W x + b`, of every vector.

    **Arguments:**

    - `size`: how long y is; as long as x by default.
    - `bias`: whether there is a b; it starts at 0.
    - `start`: `"normal"`, W at N(0, 1 / in); `"zeros"`, at the zero function; `"uniform"`, W and b
        uniform within `1 / sqrt(in)`; `"xavier"`, W uniform within `sqrt(6 / (in + out))`;
        `"orthogonal"`.
    - `gain`: times the W that it starts at.
    - `trainable`: whether W and b are trained.

    **Raises:** `SpecError` where the size is not a whole number above 0.

    ??? example

        ```python
        >>> import jax, jax.numpy as jnp
        >>> import memdsl as md
        >>> layer = md.build(md.Dense(3), md.Dims(model=8), key=jax.random.key(0))
        >>> layer(jnp.ones((5, 8))).shape
        (5, 3)

        ```
    """

    size: int | None = whole(at_least=1, default=None, optional=True)
    bias: bool = flag(default=True)
    start: str = choice("normal", "zeros", "uniform", "xavier", "orthogonal", default="normal")
    trainable: bool = flag(default=True)
    gain: float = plain_float(default=1.0)
    positional: ClassVar[int] = 1


class Conv(AbstractLayer):
    """A convolution over images `[channel, height, width]`, whose patches a memory can grow on.

    **Arguments:**

    - `channels`: how many channels it gives.
    - `window`: the side of its square window.
    - `stride`: how far the window moves.
    - `padding`: `"same"`, or `"valid"` for none.
    - `bias`, `trainable`: as of `Dense`.

    **Raises:** `SpecError` where an argument is out of range.

    ??? example

        ```python
        >>> import jax, jax.numpy as jnp
        >>> import memdsl as md
        >>> layer = md.build(md.Conv(4, stride=2), md.Dims(model=1), key=jax.random.key(0))
        >>> layer(jnp.ones((1, 8, 8))).shape
        (4, 4, 4)

        ```
    """

    channels: int = whole(at_least=1)
    window: int = whole(at_least=1, default=3)
    stride: int = whole(at_least=1, default=1)
    padding: str = choice("same", "valid", default="same")
    bias: bool = flag(default=True)
    trainable: bool = flag(default=True)
    positional: ClassVar[int] = 1


class Mlp(AbstractLayer):
    """A gated two-layer network, `W_2 (silu(W_1 x) * W_3 x)`, of every vector.

    **Arguments:**

    - `expand`: how many times as wide it is inside.

    **Raises:** `SpecError` where `expand` is not positive.

    ??? example

        ```python
        >>> import jax, jax.numpy as jnp
        >>> import memdsl as md
        >>> layer = md.build(md.Mlp(2.0), md.Dims(model=8), key=jax.random.key(0))
        >>> layer.outer.shape, layer(jnp.ones((5, 8))).shape
        ((8, 16), (5, 8))

        ```
    """

    expand: float = plain_float(above=0.0, default=4.0)
    positional: ClassVar[int] = 1


class Norm(AbstractLayer):
    """`x / sqrt(mean x^2 + epsilon) * gain`, of every vector, with a trained gain.

    **Arguments:**

    - `epsilon`: positive.
    - `groups`: how many equal pieces are normed by themselves, as heads are; it divides the width.
    - `shared_gain`: whether one gain, as long as a piece, serves all pieces.
    - `centred`: whether the mean is taken away first (layer norm, group norm).
    - `bias`: whether a trained b is added.
    - `start`: where the gain starts.

    **Raises:** `SpecError` where `epsilon` is not positive.

    ??? example

        ```python
        >>> import jax, jax.numpy as jnp
        >>> import memdsl as md
        >>> layer = md.build(md.Norm(), md.Dims(model=2), key=jax.random.key(0))
        >>> [round(float(x), 4) for x in layer(jnp.array([[3.0, 4.0]]))[0]]
        [0.8485, 1.1314]

        ```
    """

    epsilon: float = plain_float(above=0.0, default=1e-6)
    groups: int = whole(at_least=1, default=1)
    shared_gain: bool = flag()
    centred: bool = flag()
    bias: bool = flag()
    start: float = plain_float(default=1.0)


class Flatten(AbstractLayer):
    """An image `[channel, height, width]` as one vector.

    ??? example

        ```python
        >>> import jax, jax.numpy as jnp
        >>> import memdsl as md
        >>> spec = md.Conv(4, stride=2) >> md.Flatten() >> md.Dense(10)
        >>> net = md.build(spec, md.Dims(model=1, height=8, width=8), key=jax.random.key(0))
        >>> net(jnp.ones((1, 8, 8))).shape
        (10,)

        ```
    """


class Residual(AbstractLayer):
    """`x + layer(x)`, for a layer that keeps the width.

    ??? example

        ```python
        >>> import memdsl as md
        >>> md.Residual(md.Norm() >> md.Mlp())
        Residual(Norm() >> Mlp())

        ```
    """

    layer: AbstractLayer = sort(AbstractLayer)
    positional: ClassVar[int] = 1


class Repeat(AbstractLayer):
    """`count` copies of a layer, one after the other, each with parameters of its own.

    They run as one scan, so that compiling takes as long as for one.

    **Raises:** `SpecError` where `count` is not a whole number above 0.

    ??? example

        ```python
        >>> import jax, jax.numpy as jnp
        >>> import memdsl as md
        >>> stack = md.Repeat(md.Residual(md.Norm() >> md.Mlp()), 6)
        >>> md.build(stack, md.Dims(model=8), key=jax.random.key(0))(jnp.ones((5, 8))).shape
        (5, 8)

        ```
    """

    layer: AbstractLayer = sort(AbstractLayer)
    count: int = whole(at_least=1)
    positional: ClassVar[int] = 2


class Embed(AbstractLayer):
    """Tokens `[time]`, whole numbers below `vocabulary`, to vectors `[time, model]`.

    **Raises:** `SpecError` where `vocabulary` is not a whole number above 0.

    ??? example

        ```python
        >>> import jax, jax.numpy as jnp
        >>> import memdsl as md
        >>> layer = md.build(md.Embed(256), md.Dims(model=8), key=jax.random.key(0))
        >>> layer(jnp.arange(5)).shape
        (5, 8)

        ```
    """

    vocabulary: int = whole(at_least=1)
    positional: ClassVar[int] = 1


class Unembed(AbstractLayer):
    """Vectors `[time, model]` to logits `[time, vocabulary]`.

    **Arguments:**

    - `vocabulary`: as large as that of the model's `Embed` by default.

    **Raises:** `SpecError` where `vocabulary` is not a whole number above 0.

    ??? example

        ```python
        >>> import jax, jax.numpy as jnp
        >>> import memdsl as md
        >>> model = md.build(md.Embed(256) >> md.Unembed(), md.Dims(model=8), key=jax.random.key(0))
        >>> model(jnp.arange(5)).shape
        (5, 256)

        ```
    """

    vocabulary: int | None = whole(at_least=1, default=None, optional=True)
    positional: ClassVar[int] = 1
