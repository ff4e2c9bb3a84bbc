"""A batch in a buffer at once: new atoms in their slots, and what is merged where it was decided.

Only rows that change are looked at, so that what this costs does not grow with the buffer.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ..spec._capacity import AddToNearest, Budget
from ..spec._memory import Memory
from ..state import BufferState
from ..state._merge import count_more
from ._greedy import Fate, passes_on


class Atoms(NamedTuple):
    """The atoms that the pairs of a batch would be, `exp(log_weight) kernel(key, .) (value, mass)`."""

    keys: Float[Array, "batch key"]
    values: Float[Array, "batch value"]
    masses: Float[Array, " batch"]
    log_weights: Float[Array, " batch"]
    sizes: Float[Array, " batch"]
    """The norms of their error signals."""

    def rows(self, start: int, stop: int) -> "Atoms":
        """Some of them."""
        return Atoms(*(rows[start:stop] for rows in self))


def scatter(
    memory: Memory,
    state: BufferState,
    batch: Atoms,
    fate: Fate,
    there: Bool[Array, " batch"] | None = None,
) -> BufferState:
    """The buffer with the atoms of a batch in the slots that were decided, the rest merged; nothing
    becomes of pairs that are not `there`."""
    slots, capacity = len(state.log_weight), memory.capacity
    there = jnp.ones(len(batch.keys), bool) if there is None else there
    fate = fate.of(there, slots)
    inserted, neighbour = fate.inserted(slots), jnp.full_like(fate.neighbour, slots)
    held = inserted & _rows(state.valid, fate.slot, False)
    new, moved, leaves = Moved.of(batch), None, there & ~inserted
    if isinstance(capacity, Budget) and isinstance(capacity.merge, AddToNearest):
        neighbour = fate.neighbour
        leaves = leaves | (held & passes_on(memory))
        new, moved = _passed_on(state, new, held, fate)

    def put(old: Array, new: Any) -> Array:
        return old.at[fate.slot].set(jnp.asarray(new, old.dtype), mode="drop")

    births = state.counts.admitted + fate.rank
    state = count_more(
        state,
        attempted=jnp.sum(there),
        admitted=jnp.sum(inserted),
        merged=jnp.sum(leaves & (neighbour < slots)),
        evicted=jnp.sum(held),
        dropped=jnp.sum(leaves & (neighbour == slots)),
    ).put(
        keys=put(state.keys, batch.keys),
        values=put(state.values, new.values),
        masses=None if state.masses is None else put(state.masses, new.masses),
        log_weight=put(state.log_weight, new.logs),
        birth=put(state.birth, births),
        usage=put(state.usage, 1),
    )
    return state if moved is None else _add(state, *moved)


class Moved(NamedTuple):
    """Coefficients without their keys, `exp(log) (value, mass)` in every row."""

    values: Float[Array, "*rows value"]
    masses: Float[Array, "*rows"]
    logs: Float[Array, "*rows"]

    @staticmethod
    def of(batch: Atoms) -> "Moved":
        """Those of a batch."""
        return Moved(batch.values, batch.masses, batch.log_weights)

    def row(self, i: Array) -> "Moved":
        """One of them."""
        return Moved(*(x[i] for x in self))

    def plus(self, more: "Moved", rows: Int[Array, " more"]) -> "Moved":
        """These with others added to some rows, in units of the largest weight of each; a row past the
        last is none."""
        peak = self.logs.at[rows].max(more.logs, mode="drop")
        own, other = self._in(peak), more._in(_rows(peak, rows, jnp.inf))
        return Moved(
            own.values.at[rows].add(other.values, mode="drop"),
            own.masses.at[rows].add(other.masses, mode="drop"),
            peak,
        )

    def _in(self, peak: Array) -> "Moved":
        factor = jnp.exp(jnp.where(peak > -jnp.inf, self.logs - peak, 0))
        return Moved(factor[..., None] * self.values, factor * self.masses, peak)


def _passed_on(
    state: BufferState, new: Moved, held: Bool[Array, " batch"], fate: Fate
) -> tuple[Moved, tuple[Moved, Int[Array, " batch"]]]:
    """`(new, moved)`: the coefficients of the new atoms, and what is added to which old ones.

    With every pair one coefficient goes to a neighbour: its own, or that of the atom whose slot it
    takes, with all that pairs before it gave to that atom.
    """
    slots, count = len(state.log_weight), len(new.logs)
    inserted, index = fate.inserted(slots), jnp.arange(count, dtype=jnp.int32)
    owner = jnp.full(slots, count, jnp.int32).at[fate.slot].set(index, mode="drop")
    taker = _rows(owner, fate.neighbour, count)  # whose slot the neighbour is in, or will be

    def one(i: Array, turn: tuple[Moved, Moved, Moved]) -> tuple[Moved, Moved, Moved]:
        old, own, goes = turn
        now = jax.tree.map(lambda x, y: jnp.where(inserted[i], x, y), old.row(i), new.row(i))
        given = jax.tree.map(lambda x: x[None], now)
        old = old.plus(given, jnp.where(taker[i] > i, taker[i], count)[None])
        own = own.plus(given, jnp.where(taker[i] < i, taker[i], count)[None])
        return old, own, jax.tree.map(lambda x, y: x.at[i].set(y), goes, now)

    start, stop = jnp.zeros((), jnp.int32), jnp.asarray(count, jnp.int32)
    turn = _stored(state, fate.slot, held, new), new, new
    _, own, goes = jax.lax.fori_loop(start, stop, one, turn)
    return own, (goes, jnp.where(taker < count, slots, fate.neighbour))


def _stored(state: BufferState, slot: Array, held: Array, like: Moved) -> Moved:
    """What is in some slots; nothing in those that are not held."""
    masses = like.masses if state.masses is None else _rows(state.masses, slot, 0)
    logs, values = _rows(state.log_weight, slot, 0), _rows(state.values, slot, 0)
    masses, logs = (jnp.where(held, x, 0) for x in (masses, logs))
    return Moved(jnp.where(held[:, None], values, 0), masses, logs)


def _add(state: BufferState, more: Moved, slot: Int[Array, " batch"]) -> BufferState:
    """Adds coefficients to stored atoms; each that changes gets the largest of the weights."""
    # of rows with one slot each has the same sum, and writes the same
    first = jnp.argmax(slot[:, None] == slot[None, :], axis=1)
    total = _stored(state, slot, slot < len(state.log_weight), more).plus(more, first).row(first)

    def put(held: Array, new: Array) -> Array:
        return held.at[slot].set(new.astype(held.dtype), mode="drop")

    return state.put(
        values=put(state.values, total.values),
        masses=None if state.masses is None else put(state.masses, total.masses),
        log_weight=put(state.log_weight, total.logs),
    )


def _rows(array: Array, slot: Array, fill: Any) -> Array:
    return array.at[slot].get(mode="fill", fill_value=fill)
