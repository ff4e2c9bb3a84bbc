"""What becomes of a coefficient that is not kept: it is lost, or put on what is stored."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from ..spec._capacity import AbstractMerge, AddToNearest, Drop, Pairwise, Project
from ..spec._memory import Memory
from ..spec._write import Cholesky
from ._buffer import BufferState
from ._pairwise import between, common, Gone as Gone, Joined
from ._shards import row_of
from ._solve import solve


def merged(
    memory: Memory,
    state: BufferState,
    merge: AbstractMerge,
    gone: Gone,
    when: Bool[Array, ""],
    columns: int | None = None,
) -> BufferState:
    """The buffer with an atom that is not kept put on those that are, where that is so.

    One row is written, but by `Project`, which changes them all.

    **Arguments:**

    - `merge`: how.
    - `when`: whether there is anything to merge; nothing is written or counted where not.
    - `columns`: how many of the values, from the first, coefficients are judged by.
    """
    if isinstance(merge, Drop):
        return count_more(state, dropped=when)
    there = when & jnp.any(state.valid)
    state = count_more(state, merged=there, dropped=when & ~there)
    match merge:
        case AddToNearest():
            return _added(state, _nearest(state, gone.key, there), gone, there)
        case Project():
            return _spread(memory, state, merge, gone, there)
        case Pairwise():
            return _joined(state, between(memory, state, gone, there, columns), there)
        case _:
            raise TypeError(f"no rule for {merge!r}")


def count_more(state: BufferState, **more: Bool[Array, ""] | Int[Array, ""] | int) -> BufferState:
    """The buffer with more of some of its counts."""
    counts = state.counts
    new = {
        name: getattr(counts, name) + jnp.asarray(more.get(name, 0), jnp.int32)
        for name in counts.__dataclass_fields__
    }
    return state.put(counts=type(counts)(**new))


def row(array: Array, slot: Int[Array, ""], new: Array, when: Bool[Array, ""]) -> Array:
    """The array with one row changed, or none: what a write costs does not grow with the buffer."""
    place = jnp.where(when, slot, len(array))  # past the last row: nowhere
    return array.at[place].set(jnp.asarray(new, array.dtype), mode="drop")


def _nearest(state: BufferState, key: Array, there: Array) -> Array:
    """The slot of the nearest atom."""

    def search() -> Array:
        keys = jax.lax.stop_gradient(jnp.where(state.valid[:, None], state.keys, 0))
        squares = jnp.where(
            state.valid, jnp.sum((keys - jax.lax.stop_gradient(key)[None, :]) ** 2, -1), jnp.inf
        )
        return jnp.argmin(squares).astype(jnp.int32)

    return jax.lax.cond(there, search, lambda: jnp.zeros((), jnp.int32))


def _added(state: BufferState, slot: Array, gone: Gone, there: Array) -> BufferState:
    peak, old, new = common(row_of(state.log_weight, slot), gone.log_weight, there)
    value, masses = old * row_of(state.values, slot) + new * gone.value, state.masses
    if masses is not None:
        masses = row(masses, slot, old * row_of(masses, slot) + new * gone.mass, there)
    return state.put(
        values=row(state.values, slot, value, there),
        masses=masses,
        log_weight=row(state.log_weight, slot, peak, there),
    )


def _spread(
    memory: Memory, state: BufferState, merge: Project, gone: Gone, there: Array
) -> BufferState:
    keys, values, masses = state.safe()
    valid = state.valid

    def shares() -> Array:
        gram = jnp.where(valid[:, None] & valid[None, :], memory.kernel.pairs(keys, keys), 0)
        gram = gram + jnp.diag(jnp.where(valid, merge.ridge, 1).astype(gram.dtype))
        similar = jnp.where(valid, memory.kernel.pairs(keys, gone.key[None, :])[:, 0], 0)
        return solve(gram, similar, Cholesky())

    share = jax.lax.cond(there, shares, lambda: jnp.zeros_like(state.log_weight))
    changes = valid & (share != 0)
    peak, old, new = common(state.log_weight, gone.log_weight, changes)
    new = share * new
    values = old[:, None] * values + new[:, None] * gone.value[None, :]
    if masses is not None and state.masses is not None:
        masses = jnp.where(changes, old * masses + new * gone.mass, state.masses)
    return state.put(
        values=jnp.where(changes[:, None], values, state.values),
        masses=masses,
        log_weight=jnp.where(changes, peak, state.log_weight),
    )


def _joined(state: BufferState, new: Joined, there: Array) -> BufferState:
    slot, masses = new.slot, state.masses
    return state.put(
        keys=row(state.keys, slot, new.key, there),
        values=row(state.values, slot, new.value, there),
        masses=None if masses is None else row(masses, slot, new.mass, there),
        log_weight=row(state.log_weight, slot, new.log_weight, there),
    )
