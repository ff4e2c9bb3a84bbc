"""Layers that look at more than one token: the token before, a few, their places, a memory."""

from typing import ClassVar

from .._errors import SpecError
from ._base import flag, plain_float, sort, whole
from ._layer_base import AbstractLayer
from ._memory import AbstractMemory


class Shift(AbstractLayer):
    """`y_t = x_{t-1}`, the token before, of the same document; 0 where there is none.

    ??? example

        ```python
        >>> import jax, jax.numpy as jnp
        >>> import memdsl as md
        >>> layer = md.build(md.Shift(), md.Dims(model=1), key=jax.random.key(0))
        >>> layer(jnp.array([[1.0], [2.0], [3.0]]))[:, 0]
        Array([0., 1., 2.], dtype=float32)

        ```

    Source: the token shift of Peng et al. 2023 ("RWKV").
    """


class ShortConvolution(AbstractLayer):
    """A causal convolution of every channel by itself, `y_t = sum_j w[width - 1 - j] x_{t-j} + b`.

    **Arguments:**

    - `width`: how many tokens it sees, its own among them.
    - `bias`: whether there is a b.

    **Raises:** `SpecError` where the width is not a whole number above 0.

    ??? example

        ```python
        >>> import jax, jax.numpy as jnp
        >>> import memdsl as md
        >>> layer = md.build(md.ShortConvolution(4), md.Dims(model=8), key=jax.random.key(0))
        >>> layer.weight.shape, layer(jnp.ones((5, 8))).shape
        ((8, 4), (5, 8))

        ```
    """

    width: int = whole(at_least=1)
    bias: bool = flag()
    positional: ClassVar[int] = 1


class Rotary(AbstractLayer):
    """Each head's numbers i and i + size / 2 turned by the angle `place * base^(-2 i / size)`.

    Places are counted from the start of the document, from 0.

    **Arguments:**

    - `size`: of one head; even.
    - `base`: above 1.

    **Raises:** `SpecError` where an argument is out of range.

    ??? example

        ```python
        >>> import jax, jax.numpy as jnp
        >>> import memdsl as md
        >>> layer = md.build(md.Rotary(2), md.Dims(model=2), key=jax.random.key(0))
        >>> [round(float(x), 4) for x in layer(jnp.array([[1.0, 0.0], [1.0, 0.0]]))[1]]
        [0.5403, 0.8415]

        ```

    Source: Su et al. 2021 ("RoFormer"), in the layout of halves instead of neighbours.
    """

    size: int = whole(at_least=2)
    base: float = plain_float(above=1.0, default=10000.0)
    positional: ClassVar[int] = 1

    def __check__(self) -> None:
        if self.size % 2:
            raise SpecError(
                f"Rotary turns pairs of numbers, and {self.size} is odd.",
                where=self,
                at="size",
                instead=f"Rotary({self.size + 1}), say.",
            )


class Recall(AbstractLayer):
    """What a memory answers, head after head, where its keys, values and queries are layers of x.

        o = memory(key(x), value(x), query(x))

    It is the heart of `Layer`, without projections, norms and gates of its own: those are written
    around it with `>>`, `+` and `*`. A stream with fewer heads than the memory is repeated: head h
    takes the stream's head `h // (heads / its heads)`, for grouped queries and grouped values alike.
    A write of n pairs a token takes n times as wide keys and values, pair after pair.

    **Arguments:**

    - `memory`: one head's memory; every head has its own state, and its own learned numbers.
    - `query`, `key`, `value`: layers that give the streams, each as wide as its heads together.
    - `erase`, `remove`: the further keys of a memory that takes them, such as `Delta(erase="own")`.
    - `heads`: how many heads.
    - `key_size`: of one head; by default the width of the queries over `heads`.
    - `value_size`: of one head; by default the width of the values over `heads` (and pairs).

    **Raises:** `SpecError` when it is built, where widths do not fit.

    ??? example

        ```python
        >>> import jax, jax.numpy as jnp
        >>> import memdsl as md
        >>> x = md.Map(md.Identity())
        >>> q, k, v = (md.Dense(16), md.Dense(8), md.Dense(8))  # two key heads for four queries
        >>> attention = md.Recall(
        ...     md.zoo.softmax(), query=q >> md.Rotary(4), key=k >> md.Rotary(4), value=v, heads=4,
        ...     value_size=4,
        ... )
        >>> layer = md.build(attention >> md.Dense(8), md.Dims(model=8), key=jax.random.key(0))
        >>> layer(jnp.ones((5, 8))).shape
        (5, 8)

        ```
    """

    memory: AbstractMemory = sort(AbstractMemory)
    query: AbstractLayer = sort(AbstractLayer)
    key: AbstractLayer = sort(AbstractLayer)
    value: AbstractLayer = sort(AbstractLayer)
    erase: AbstractLayer | None = sort(AbstractLayer, default=None, optional=True)
    remove: AbstractLayer | None = sort(AbstractLayer, default=None, optional=True)
    heads: int = whole(at_least=1, default=1)
    key_size: int | None = whole(at_least=1, default=None, optional=True)
    value_size: int | None = whole(at_least=1, default=None, optional=True)
    positional: ClassVar[int] = 1
