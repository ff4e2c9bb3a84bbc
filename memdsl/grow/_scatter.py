"""A batch in a buffer at once: new atoms in their slots, and what is merged where it was decided.

Only rows that change are looked at, so that what this costs does not grow with the buffer.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from ..spec._capacity import AddToNearest
from ..spec._memory import Memory
from ..state import BufferState
from ..state._merge import count_more
from ._atoms import Atoms, Moved
from ._cells import Cells
from ._greedy import Fate


def scatter(
    memory: Memory,
    state: BufferState,
    batch: Atoms,
    fate: Fate,
    cells: Cells,
    there: Bool[Array, " batch"] | None = None,
) -> BufferState:
    """The buffer with the atoms of a batch in the slots that were decided, the rest merged; nothing
    becomes of pairs that are not `there`, which come after those that are."""
    slots, first = len(state.log_weight), len(cells.slots)
    numbers = first + len(batch.keys)
    there = jnp.ones(len(batch.keys), bool) if there is None else there
    fate = fate.of(there)
    inserted, goes = fate.slot < slots, fate.gone < numbers
    left = _named(fate.gone, numbers)
    births = state.counts.admitted - 1 + jnp.cumsum(inserted, dtype=jnp.int32)
    leaves, new, old, moved = there & ~inserted, Moved.of(batch), None, None
    if isinstance(memory.capacity.merging(), AddToNearest):
        leaves = leaves | goes
        new, old, moved = _passed_on(state, new, fate, cells, left[:first])
    state = count_more(
        state,
        attempted=jnp.sum(there),
        admitted=jnp.sum(inserted),
        merged=jnp.sum(leaves & (fate.neighbour < slots)),
        evicted=jnp.sum(goes),
        dropped=jnp.sum(leaves & (fate.neighbour >= slots)),
    )
    if old is not None:
        state = _put(state, *old)
    slot = jnp.where(left[first:], slots, fate.slot)  # some made room for later ones
    state = _put(state, new, slot)
    state = state.put(
        keys=_set(state.keys, slot, batch.keys),
        birth=_set(state.birth, slot, births),
        usage=_set(state.usage, slot, 1),
    )
    return state if moved is None else _add(state, *moved)


def _named(numbers: Int[Array, " batch"], count: int) -> Bool[Array, " count"]:
    """Which of the first numbers are among some."""
    return jnp.zeros(count, bool).at[numbers].set(True, mode="drop")


def _set(old: Array, slot: Array, new: Any) -> Array:
    return old.at[slot].set(jnp.asarray(new, old.dtype), mode="drop")


def _put(state: BufferState, new: Moved, slot: Int[Array, " rows"]) -> BufferState:
    """Other coefficients in some slots; rows of one slot are equal."""
    return state.put(
        values=_set(state.values, slot, new.values),
        masses=None if state.masses is None else _set(state.masses, slot, new.masses),
        log_weight=_set(state.log_weight, slot, new.logs),
    )


_Placed = tuple[Moved, Int[Array, " rows"]]


def _passed_on(
    state: BufferState, new: Moved, fate: Fate, cells: Cells, left: Bool[Array, " cells"]
) -> tuple[Moved, _Placed, _Placed]:
    """`(new, old, moved)`: the coefficients of the new atoms, of those in the cells to which something
    was added and that have not `left`, and what is added to which other ones.

    With every pair one coefficient goes to a neighbour: its own, or that of the atom whose slot it
    takes, with all that pairs before it gave to that atom.
    """
    slots, first = len(state.log_weight), len(cells.slots)
    own = first + jnp.arange(len(new.logs), dtype=jnp.int32)
    numbers = first + len(own)
    giver = jnp.where(fate.gone < numbers, fate.gone, own)
    every = _stored(state, cells.slots, cells.held, new).followed_by(new)

    def one(every: Moved, turn: tuple[Array, Array]) -> tuple[Moved, Moved]:
        giver, receiver = turn
        given = every.row(giver)
        return every.with_row(receiver, every.row(receiver).plus(given)), given

    every, given = jax.lax.scan(one, every, (giver, fate.receiver))
    changed = _named(fate.receiver, first) & cells.held & ~left
    old, new = every.row(jnp.arange(first)), every.row(own)
    elsewhere = jnp.where(fate.receiver < numbers, slots, jnp.minimum(fate.neighbour, slots))
    return new, (old, jnp.where(changed, cells.slots, slots)), (given, elsewhere)


def _stored(state: BufferState, slot: Array, held: Array, like: Moved) -> Moved:
    """What is in some slots; nothing in those that are not held."""
    blank = jnp.zeros(len(slot), like.masses.dtype)
    masses = blank if state.masses is None else _rows(state.masses, slot, 0)
    logs, values = _rows(state.log_weight, slot, 0), _rows(state.values, slot, 0)
    masses, logs = (jnp.where(held, x, 0) for x in (masses, logs))
    return Moved(jnp.where(held[:, None], values, 0), masses, logs)


def _add(state: BufferState, more: Moved, slot: Int[Array, " batch"]) -> BufferState:
    """Adds coefficients to stored atoms; each that changes gets the largest of the weights."""
    # of rows with one slot each has the same sum, and writes the same
    first = jnp.argmax(slot[:, None] == slot[None, :], axis=1)
    total = _stored(state, slot, slot < len(state.log_weight), more).with_added(more, first)
    return _put(state, total.row(first), slot)


def _rows(array: Array, slot: Array, fill: Any) -> Array:
    return array.at[slot].get(mode="fill", fill_value=fill)
