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


def scatter(memory: Memory, state: BufferState, batch: Atoms, fate: Fate) -> BufferState:
    """The buffer with the atoms of a batch in the slots that were decided, the rest merged."""
    slots, capacity = len(state.log_weight), memory.capacity
    inserted, neighbour = fate.inserted(slots), jnp.full_like(fate.neighbour, slots)
    held = inserted & _rows(state.valid, fate.slot, False)
    new, moved, leaves = Moved.of(batch), None, ~inserted
    if isinstance(capacity, Budget) and isinstance(capacity.merge, AddToNearest):
        neighbour = fate.neighbour
        leaves = leaves | (held & passes_on(memory))
        new, moved = _passed_on(state, new, held, fate)

    def put(old: Array, new: Any) -> Array:
        return old.at[fate.slot].set(jnp.asarray(new, old.dtype), mode="drop")

    births = state.counts.admitted + fate.rank
    state = count_more(
        state,
        attempted=len(batch.keys),
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

    values: Float[Array, "batch value"]
    masses: Float[Array, " batch"]
    logs: Float[Array, " batch"]

    @staticmethod
    def of(batch: Atoms) -> "Moved":
        """Those of a batch."""
        return Moved(batch.values, batch.masses, batch.log_weights)

    def where(self, chosen: Bool[Array, " batch"], other: "Moved") -> "Moved":
        """These in the chosen rows, others elsewhere."""
        values = jnp.where(chosen[:, None], self.values, other.values)
        rest = (jnp.where(chosen, x, y) for x, y in zip(self[1:], other[1:], strict=True))
        return Moved(values, *rest)

    def scaled(self, peak: Float[Array, " batch"]) -> "Moved":
        """The same with other logarithms, none of them below."""
        factor = jnp.exp(jnp.where(peak > -jnp.inf, self.logs - peak, 0))
        return Moved(factor[:, None] * self.values, factor * self.masses, peak)


def _passed_on(
    state: BufferState, new: Moved, held: Bool[Array, " batch"], fate: Fate
) -> tuple[Moved, tuple[Moved, Int[Array, " batch"]]]:
    r"""`(new, moved)`: the coefficients of the new atoms, and what is added to which old ones.

    With every pair one coefficient goes to a neighbour: its own, or that of the atom whose slot it
    takes with all that pairs before it gave to that atom,

    $$g_i = c_i + \sum_{j < i} L_{ij}\, g_j, \qquad
      L_{ij} = 1 \text{ where j gives to the atom that i replaces,}$$

    a triangular system with at most one 1 in a column, solved in units of the largest weight of every
    sum.
    """
    slots, count = len(state.log_weight), len(new.logs)
    inserted = fate.inserted(slots)
    same = inserted[:, None] & (fate.slot[:, None] == fate.neighbour[None, :])
    before, after = jnp.tril(same, -1), jnp.triu(same, 1)
    start = _stored(state, fate.slot, held, new).where(inserted, new)

    def largest(i: Array, peaks: Array) -> Array:
        given = jnp.max(jnp.where(before[i], peaks, -jnp.inf), initial=-jnp.inf)
        return peaks.at[i].max(given)

    peaks = jax.lax.fori_loop(0, count, largest, start.logs)
    start = start.scaled(peaks)
    above = jnp.where(peaks > -jnp.inf, peaks, 0)[:, None]
    share = jnp.where(before, jnp.exp(peaks[None, :] - above), 0)
    system = jnp.eye(count, dtype=share.dtype) - share
    columns = jnp.concatenate([start.values, start.masses[:, None]], axis=1)
    columns = jax.scipy.linalg.solve_triangular(system, columns, lower=True, unit_diagonal=True)
    goes = Moved(columns[:, :-1], columns[:, -1], peaks)

    taker = jnp.where(jnp.any(after, axis=0), jnp.argmax(after, axis=0), count)
    target = jnp.where(jnp.any(same, axis=0), slots, fate.neighbour)
    return _summed(new, goes, taker), (goes, target)


def _stored(state: BufferState, slot: Array, held: Array, like: Moved) -> Moved:
    """What is in some slots; nothing in those that are not held."""
    nothing = jax.tree.map(jnp.zeros_like, like)
    masses = nothing.masses if state.masses is None else _rows(state.masses, slot, 0)
    logs = _rows(state.log_weight, slot, 0)
    return Moved(_rows(state.values, slot, 0), masses, logs).where(held, nothing)


def _add(state: BufferState, more: Moved, slot: Int[Array, " batch"]) -> BufferState:
    """Adds coefficients to stored atoms; each that changes gets the largest of the weights."""
    there = slot < len(state.log_weight)
    old = _stored(state, slot, there, more)
    # of rows with one slot each has the same sum, and writes the same
    first = jnp.argmax(slot[:, None] == slot[None, :], axis=1)
    total = _summed(old, more, first)
    total = jax.tree.map(lambda x: x[first], total)

    def put(held: Array, new: Array) -> Array:
        return held.at[slot].set(new.astype(held.dtype), mode="drop")

    return state.put(
        values=put(state.values, total.values),
        masses=None if state.masses is None else put(state.masses, total.masses),
        log_weight=put(state.log_weight, total.logs),
    )


def _summed(held: Moved, more: Moved, row: Int[Array, " batch"]) -> Moved:
    """Some coefficients, and others that are added to their rows, in units of the largest weight."""
    peak = held.logs.at[row].max(more.logs, mode="drop")
    held, more = held.scaled(peak), more.scaled(_rows(peak, row, jnp.inf))
    return Moved(
        held.values.at[row].add(more.values, mode="drop"),
        held.masses.at[row].add(more.masses, mode="drop"),
        peak,
    )


def _rows(array: Array, slot: Array, fill: Any) -> Array:
    return array.at[slot].get(mode="fill", fill_value=fill)
