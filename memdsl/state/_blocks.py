"""Which blocks of atoms are read: `TopBlocks` of many readers at once."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from .._errors import SpecError
from ..spec._memory import Memory
from ..spec._read_blocks import blocks_of, TopBlocks
from ..spec._slots import unpulled


def chosen(
    memory: Memory,
    keys: Float[Array, "atoms key"],
    places: Int[Array, " atoms"],
    block: Int[Array, " atoms"],
    log_weight: Float[Array, "readers atoms"],
    queries: Float[Array, "readers key"],
    count: int,
) -> Bool[Array, "readers atoms"]:
    """Which atoms are in the blocks that each reader reads.

    **Arguments:**

    - `places`: how many atoms of its document came before each.
    - `block`: the blocks that atoms are in, numbered from 0 to below `count` over all documents.
    - `log_weight`: of each atom for each reader; −inf where it is not there.

    The atoms that a reader has there are of one document, and no atom came after them.
    """
    read: Any = blocks_of(memory.read)
    kernel, feature = unpulled(memory.kernel)
    stop = jax.lax.stop_gradient
    keys, queries, logs = stop(keys), stop(queries), stop(log_weight).T
    there = logs > -jnp.inf  # [atoms, readers]

    def total(array: Array) -> Array:
        return jax.ops.segment_sum(array, block, count)

    def largest(array: Array) -> Array:
        return jax.ops.segment_max(array, block, count)

    written = jnp.any(there, axis=1)
    mapped = jnp.where(written[:, None], jax.vmap(feature)(keys), 0)
    mean = total(mapped) / jnp.maximum(total(written.astype(keys.dtype)), 1)[:, None]
    peak = largest(logs)
    peak = jnp.where(jnp.isfinite(peak), peak, 0)
    held = total(there.astype(logs.dtype))
    sums = total(jnp.exp(jnp.where(there, logs - peak[block], -jnp.inf)))
    faded = peak + jnp.log(jnp.where(held > 0, sums, 1)) - jnp.log(jnp.maximum(held, 1))

    place = jnp.where(there, places[:, None], -1)
    number, last = largest(place) // read.size, jnp.max(place, axis=0, initial=-1)[None, :]
    complete = (held > 0) & ((number + 1) * read.size <= last + 1)
    always = (number < read.first) | (number > last // read.size - read.latest)
    height = stop(_heights(kernel, feature, read, mean, queries, faded, complete))
    height = jnp.where(complete, jnp.maximum(height, jnp.finfo(height.dtype).min), -jnp.inf)
    height = jnp.where((held > 0) & always, jnp.inf, height).T
    _, best = jax.lax.top_k(height, min(read.count, count))
    picked = jnp.zeros(height.shape, bool).at[jnp.arange(len(best))[:, None], best].set(True)
    return (picked & (height > -jnp.inf))[:, block] & there.T


def _heights(
    kernel: Any,
    feature: Any,
    read: TopBlocks,
    mean: Array,
    queries: Array,
    faded: Array,
    complete: Array,
) -> Array:
    """By what blocks are ranked, `[blocks, readers]`: the kernel, or a share of a group of queries."""
    asked = _in_front(read, queries)
    flat = jax.vmap(feature)(asked.reshape(-1, queries.shape[1]))
    shape = (*faded.shape, read.group)
    if kernel.is_exponential():
        log = kernel.log_pairs(mean, flat).reshape(shape) + faded[:, :, None]
        if read.group == 1:
            return log[:, :, 0]
        share = jax.nn.softmax(log, axis=0, where=complete[:, :, None])
        return jnp.mean(share, axis=2)
    value = kernel.pairs(mean, flat).reshape(shape) * jnp.exp(faded)[:, :, None]
    if read.group == 1:
        return value[:, :, 0]
    value = jnp.where(complete[:, :, None], value, 0)
    whole = jnp.sum(value, axis=0, keepdims=True)
    return jnp.mean(value / jnp.where(whole == 0, 1, whole), axis=2)


def _in_front(read: TopBlocks, queries: Array) -> Array:
    """Queries with each of their group in front in its turn, `[readers, group, key]`."""
    if queries.shape[1] % read.group:
        raise SpecError(
            f"A query of {queries.shape[1]} channels is no group of {read.group} queries.",
            where=read,
            at="group",
            instead="queries of a group side by side, that of the reader in front.",
        )
    size = queries.shape[1] // read.group
    return jnp.stack([jnp.roll(queries, -g * size, axis=1) for g in range(read.group)], axis=1)
