"""Packed documents: where each of them begins."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from .._types import checked


@checked
def starts_of(
    segment_ids: Int[Array, " time"],
    *,
    mask: Bool[Array, " time"] | None = None,
    previous: int | Int[Array, ""] | None = None,
) -> Bool[Array, " time"]:
    """The `starts` of documents that are given by a number a token, as packed batches often are.

    A document begins wherever the number is another one than that of the token before. Batch it with
    `jax.vmap`.

    **Arguments:**

    - `segment_ids`: the number of each token's document; neighbours have different ones.
    - `mask`: False for padding, whose numbers say nothing: a document goes on behind it.
    - `previous`: the number of the last token before these, where they are a piece of a sequence; by
        default the first token begins a document.

    **Returns:** True at the first token of every document, for `starts=` of `md.run` and of layers.

    ??? example

        ```python
        >>> import jax.numpy as jnp
        >>> import memdsl as md
        >>> ids = jnp.array([1, 1, 2, 0, 2, 3])
        >>> md.starts_of(ids, mask=ids > 0).astype(int)
        Array([1, 0, 1, 0, 0, 1], dtype=int32)
        >>> md.starts_of(jnp.array([3, 3, 4]), previous=3).astype(int)
        Array([0, 0, 1], dtype=int32)

        ```
    """
    time = len(segment_ids)
    there = jnp.ones(time, bool) if mask is None else mask
    places = jnp.where(there, jnp.arange(time, dtype=jnp.int32), -1)
    none = jnp.full(1, -1, jnp.int32)
    last = jnp.concatenate([none, jax.lax.cummax(places)])[:-1]  # of those before, that are there
    same = segment_ids == segment_ids[last] if time else there
    at_first = False if previous is None else segment_ids == previous
    return there & ~jnp.where(last < 0, at_first, same)
