"""The nearest stored key, exactly, at the price of one matrix product; a block of slots at a time."""

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ..state._shards import as_spread_as, Shards
from ..state._streamed import BLOCK, LARGE


_SCREENED = 2**22  # products of sizes above this are screened by a matrix product first
_CANDIDATES = 8
_Carry = TypeVar("_Carry")


def nearest(
    keys: Float[Array, "slots key"],
    allowed: Bool[Array, " slots"],
    queries: Float[Array, "batch key"],
    shards: Shards | None = None,
) -> tuple[Float[Array, " batch"], Int[Array, " batch"]]:
    """`(squared distance, slot)` of the nearest allowed key; ties: the lowest slot; none: `inf`.

    `sum (k - q)^2` of every pair, which is 0 for equal keys and for no others, as `|k|^2 + |q|^2 -
    2 k q` is not. Where that is many numbers, the second form with a bound on its rounding error
    finds a few candidates, and the first is computed for all pairs only where they are not enough.
    Each shard looks among its own keys; the nearest of what they find is taken.
    """
    if shards is not None:
        return shards.each(
            functools.partial(_nearest_of_shards, shards),
            (shards.along(0).spec, shards.along(0).spec, shards.whole.spec),
            *(keys, allowed, queries),
        )
    none = jnp.full(len(queries), jnp.inf, keys.dtype), jnp.zeros(len(queries), jnp.int32)
    none = as_spread_as(keys, none)

    def step(best: tuple[Array, Array], first: Array, keys: Array, allowed: Array) -> Any:
        square, slot = _within(keys, allowed, queries, best[0])
        closer = square < best[0]
        return jnp.where(closer, square, best[0]), jnp.where(closer, first + slot, best[1])

    return swept(step, none, keys, allowed)


def swept(
    step: Callable[[_Carry, Array, Array, Array], _Carry],
    start: _Carry,
    keys: Float[Array, "slots key"],
    allowed: Bool[Array, " slots"],
) -> _Carry:
    """`step(carry, first slot, keys, allowed)` over the blocks of a large buffer in which any slot is
    allowed, or over a smaller one at once. The last two blocks overlap where they must."""
    slots = len(keys)
    zero = jnp.zeros((), jnp.int32)
    if slots <= LARGE:
        return step(start, zero, keys, allowed)

    def one(index: Array, carry: _Carry) -> _Carry:
        first = jnp.minimum(index * BLOCK, slots - BLOCK)
        there = jax.lax.dynamic_slice_in_dim(allowed, first, BLOCK)

        def looked() -> _Carry:
            return step(carry, first, jax.lax.dynamic_slice_in_dim(keys, first, BLOCK), there)

        return jax.lax.cond(jnp.any(there), looked, lambda: carry)

    return jax.lax.fori_loop(zero, jnp.asarray(-(-slots // BLOCK), jnp.int32), one, start)


def _within(keys: Array, allowed: Array, queries: Array, known: Array) -> tuple[Array, Array]:
    """The nearest of some keys, if it is nearer than what is known already."""
    if len(keys) * queries.size <= _SCREENED or len(keys) <= _CANDIDATES:
        return _direct(keys, allowed, queries)
    keys = jnp.where(allowed[:, None], keys, 0)
    below = jnp.where(allowed[None, :], _lower_bounds(keys, queries), jnp.inf)
    negative, slots = _once(jax.lax.top_k(-below, _CANDIDATES))
    squares = _once(jnp.sum((keys[slots] - queries[:, None, :]) ** 2, -1))
    squares = jnp.where(allowed[slots], squares, jnp.inf)
    best, slot = _lowest(squares, slots)
    # no other key is as near if the last candidate's bound is above the best (a rounding apart)
    apart = jnp.minimum(best, known) * (1 + 4 * keys.shape[1] * jnp.finfo(keys.dtype).eps)
    enough = jnp.all((-negative[:, -1] > apart) | jnp.isinf(best))
    return jax.lax.cond(enough, lambda: (best, slot), lambda: _direct(keys, allowed, queries))


def squares_between(
    keys: Float[Array, "rows key"], queries: Float[Array, "batch key"]
) -> Float[Array, "batch rows"]:
    """`sum (k - q)^2` of every pair, computed once, whatever is done with it."""
    return _once(jnp.sum((keys[None, :, :] - queries[:, None, :]) ** 2, -1))


def _once(computed: Any) -> Any:
    # without it XLA repeats the sums in every use, and sorts whole rows for the last of the top k
    return jax.lax.optimization_barrier(computed)


def _direct(keys: Array, allowed: Array, queries: Array) -> tuple[Array, Array]:
    squares = jnp.where(allowed[None, :], squares_between(keys, queries), jnp.inf)
    slot = jnp.argmin(squares, axis=1).astype(jnp.int32)
    return jnp.min(squares, axis=1), slot


def _lower_bounds(keys: Array, queries: Array) -> Array:
    """Numbers that no squared distance is below, whatever was rounded."""
    of_keys, of_queries = jnp.sum(keys * keys, -1), jnp.sum(queries * queries, -1)
    inner = jnp.matmul(queries, keys.T, precision=jax.lax.Precision.HIGHEST)
    both = of_queries[:, None] + of_keys[None, :]
    slack = 4 * (keys.shape[1] + 4) * jnp.finfo(keys.dtype).eps
    return (both - 2 * inner) - slack * both


def _nearest_of_shards(
    shards: Shards, keys: Array, allowed: Array, queries: Array
) -> tuple[Array, Array]:
    square, slot = nearest(keys, allowed, queries)
    best = jax.lax.pmin(square, shards.axis)
    slot = jnp.where(square == best, shards.first(slot, len(keys)), jnp.iinfo(jnp.int32).max)
    return best, jax.lax.pmin(slot, shards.axis)


def _lowest(squares: Array, slots: Array) -> tuple[Array, Array]:
    """The least square of each row, and the lowest of the slots that have it."""
    best = jnp.min(squares, axis=-1)
    big = jnp.iinfo(jnp.int32).max
    slot = jnp.min(jnp.where(squares == best[:, None], slots.astype(jnp.int32), big), axis=-1)
    return best, slot
