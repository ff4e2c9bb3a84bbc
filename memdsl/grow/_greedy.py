"""What becomes of every pair of a batch, decided in the order of the batch, before anything is moved.

Each pair sees the atoms as they stand after the pairs before it, so that the batch does what its pairs
would do one after the other. All distances are taken at once; only the decisions are a loop.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ..spec._capacity import AbstractEviction, AddToNearest, Oldest
from ..spec._gate import admissions, Always, Arrival, Never, Novelty, Surprise
from ..spec._memory import Memory
from ..state import BufferState
from ..state._shards import as_spread_as
from ..state._slots import LAST
from ._atoms import Atoms
from ._cells import Cells, cells_of
from ._nearest import nearest, squares_between, swept


_NOWHERE = LAST - 1


class Fate(NamedTuple):
    """What becomes of the pairs of a batch.

    Atoms that may change places have numbers: those in the cells before the batch first, then those of
    the batch. A number past the last, and a slot past the last, mean none.
    """

    slot: Int[Array, " batch"]
    """The slot that the pair takes as a new atom."""
    gone: Int[Array, " batch"]
    """The number of the atom that makes room for it."""
    neighbour: Int[Array, " batch"]
    """Where atoms merge: the slot of the nearest atom, of a pair that takes no slot or of `gone`."""
    receiver: Int[Array, " batch"]
    """The number of that atom, if it has one."""
    admitted: Bool[Array, " batch"]
    """Whether the gates let the pair in."""

    def of(self, there: Bool[Array, " batch"]) -> "Fate":
        """The same, and nothing of the other pairs."""
        slot, gone, neighbour, receiver = (jnp.where(there, x, _NOWHERE) for x in self[:4])
        return Fate(slot, gone, neighbour, receiver, self.admitted)


class Near(NamedTuple):
    """Squared distances of some keys to all atoms that there may be before a pair of the batch."""

    first: int
    """The row of the first pair of the batch; rows before it are those of the cells."""

    stays: Float[Array, " rows"]
    """To the nearest of the atoms that stay."""
    slot: Int[Array, " rows"]
    """Where that one is."""
    taken: Float[Array, "rows cells"]
    """To the atoms in the cells."""
    new: Float[Array, "rows batch"]
    """To the batch."""

    @property
    def last(self) -> int:
        """The last row."""
        return len(self.stays) - 1

    def closest(self, row: Array, cells: Cells, now: "_Now") -> tuple[Array, Array]:
        """`(squared distance, slot)` of the nearest atom there is; of equals, the lowest slot."""
        squares = jnp.concatenate(
            [
                self.stays[row][None],
                jnp.where(now.old, self.taken[row], jnp.inf),
                jnp.where(now.new < _NOWHERE, self.new[row], jnp.inf),
            ]
        )
        where = jnp.concatenate([self.slot[row][None], cells.slots, now.new])
        best = jnp.min(squares)
        return best, jnp.min(jnp.where(squares == best, where, LAST))


class Coherences(NamedTuple):
    """Coherences of the batch, as `Near` has distances."""

    stays: Float[Array, " batch"]
    taken: Float[Array, "batch cells"]
    new: Float[Array, "batch batch"]

    def most(self, row: Array, now: "_Now") -> Float[Array, ""]:
        """The largest of a pair with any atom there is."""
        old = jnp.max(jnp.where(now.old, self.taken[row], 0))
        new = jnp.max(jnp.where(now.new < _NOWHERE, self.new[row], 0))
        return jnp.maximum(self.stays[row], jnp.maximum(old, new))


class _Now(NamedTuple):
    """Who is where before a pair."""

    owner: Int[Array, " cells"]
    """The pair whose atom is in a cell; -1 for one from before the batch, -2 for none."""
    new: Int[Array, " batch"]
    """The slots of the atoms of the batch."""
    score: Any
    """The scores of who is in the cells, where the lowest goes."""
    rank: Int[Array, ""]
    """How many pairs of the batch became atoms."""

    @property
    def old(self) -> Bool[Array, " cells"]:
        """The cells with an atom from before the batch."""
        return self.owner == -1

    def number(self, cell: Int[Array, ""]) -> Int[Array, ""]:
        """The number of the atom in a cell."""
        return jnp.where(self.owner[cell] < 0, cell, len(self.owner) + self.owner[cell])

    def without(self, cell: Int[Array, ""], when: Bool[Array, ""]) -> "_Now":
        """Without the atom in a cell."""
        pair = jnp.where(when, self.owner[cell], -1)
        new = self.new.at[jnp.where(pair < 0, len(self.new), pair)].set(_NOWHERE, mode="drop")
        owner = self.owner.at[cell].set(jnp.where(when, -2, self.owner[cell]))
        return self._replace(owner=owner, new=new)


def taking(state: BufferState, slots: Int[Array, " batch"]) -> Fate:
    """Every pair in the cell of its own number, whoever was there."""
    index, nowhere = jnp.arange(len(slots), dtype=jnp.int32), jnp.full_like(slots, _NOWHERE)
    enters = slots < len(state.log_weight)
    held = enters & state.valid.at[slots].get(mode="fill", fill_value=False)
    gone = jnp.where(held, index, _NOWHERE)
    return Fate(slots, gone, nowhere, nowhere, jnp.ones_like(enters))


def decide(
    memory: Memory,
    state: BufferState,
    batch: Atoms,
    evict: AbstractEviction | None,
    columns: int | None = None,
) -> tuple[Fate, Cells]:
    """What becomes of every pair, and of whom the numbers are.

    **Arguments:**

    - `memory`, `state`: the memory, grounded, and what it holds.
    - `batch`: the atoms that the pairs would be.
    - `evict`: who makes room, one that `is_foreseen`; without it, what finds no room is left out.
    - `columns`: how many columns of the values atoms are judged by.
    """
    slots, size = len(state.log_weight), len(batch.keys)
    cells, gates = cells_of(memory, state, batch, evict, columns), admissions(memory.gate)
    merges = isinstance(memory.capacity.merging(), AddToNearest)
    in_turn = evict is None or (isinstance(evict, Oldest) and size <= slots - evict.sinks)
    if in_turn and not gates and not (merges and evict is not None):
        room = cells.slots if evict is not None else jnp.where(cells.held, slots, cells.slots)
        return taking(state, jnp.pad(room, (0, size - len(room)), constant_values=slots)), cells
    of_pairs = bool(gates) or (merges and not in_turn)
    near = _look(state, batch.keys, cells, of_pairs, merges and evict is not None)
    coherent = _coherences(memory, state, batch.keys, cells)
    nowhere = jnp.asarray(_NOWHERE, jnp.int32)

    def one(now: _Now, turn: tuple[Array, Array]) -> tuple[_Now, Fate]:
        i, size_of_error = turn
        admitted, best, closest = jnp.asarray(True), None, nowhere
        if near is not None and of_pairs:
            best, closest = near.closest(near.first + i, cells, now)
            most = jnp.zeros((), best.dtype) if coherent is None else coherent.most(i, now)
            for gate in gates:
                admitted = admitted & gate.admits(Arrival(_root(best), most, size_of_error))
        free = (now.owner == -2) & (cells.slots < slots)
        there, cell = jnp.any(free), jnp.argmax(free).astype(jnp.int32)
        enters, goes = admitted & there, jnp.asarray(False)
        if evict is not None:
            victim = cells.lowest(now.score) if cells.victims is None else cells.victims[i]
            outlives = True if cells.outlives is None else cells.outlives[i]
            enters = admitted & (there | outlives)
            goes, cell = enters & ~there, jnp.where(there, cell, victim)
        gone, rest = jnp.where(goes, now.number(cell), _NOWHERE), now.without(cell, goes)
        neighbour, receiver = nowhere, nowhere
        if near is not None and merges:
            if best is not None:
                neighbour = jnp.where(~enters & jnp.isfinite(best), closest, _NOWHERE)
            if evict is not None:
                best, closest = near.closest(jnp.minimum(gone, near.last), cells, rest)
                neighbour = jnp.where(goes & jnp.isfinite(best), closest, neighbour)
            same = cells.slots == neighbour
            there = jnp.any(same) & (neighbour < slots)
            receiver = jnp.where(there, rest.number(jnp.argmax(same).astype(jnp.int32)), _NOWHERE)
        place = jnp.where(enters, cell, len(cells.slots))
        slot = jnp.where(enters, cells.slots[cell], _NOWHERE)
        score = now.score
        if score is not None:
            own = cells.new[now.rank if isinstance(evict, Oldest) else i]
            score = score.at[place].set(own.astype(score.dtype), mode="drop")
        owner = rest.owner.at[place].set(i, mode="drop")
        after = _Now(owner, rest.new.at[i].set(slot), score, now.rank + enters.astype(jnp.int32))
        return after, Fate(slot, gone, neighbour, receiver, admitted)

    owner = jnp.where(cells.held, -1, jnp.full_like(cells.slots, -2))
    index = jnp.arange(size, dtype=jnp.int32)
    start = _Now(owner, jnp.full_like(index, _NOWHERE), cells.old, jnp.zeros((), jnp.int32))
    return jax.lax.scan(one, start, (index, batch.sizes))[1], cells


def _look(
    state: BufferState, keys: Array, cells: Cells, of_pairs: bool, of_atoms: bool
) -> Near | None:
    """The pairs, and the atoms in the cells, beside all atoms: by one search."""
    if not of_pairs and not of_atoms:
        return None
    taken = _taken(state, cells)
    rows = jnp.concatenate([taken] * of_atoms + [keys] * of_pairs)
    allowed = state.valid.at[cells.slots].set(False, mode="drop")
    square, slot = nearest(state.keys, allowed, rows, state.parts)
    of_cells = jnp.where(cells.held[None, :], squares_between(taken, rows), jnp.inf)
    first = len(taken) * of_atoms
    return Near(first, square, slot, of_cells, squares_between(keys, rows))


def _taken(state: BufferState, cells: Cells) -> Array:
    stored = state.keys.at[cells.slots].get(mode="fill", fill_value=0)
    return jnp.where(cells.held[:, None], stored, 0)


def _coherences(memory: Memory, state: BufferState, keys: Array, cells: Cells) -> Coherences | None:
    """The coherences, where a gate looks at them."""
    simple = Always | Never | Novelty | Surprise
    if all(isinstance(gate, simple) for gate in admissions(memory.gate)):
        return None
    allowed = state.valid.at[cells.slots].set(False, mode="drop")
    return Coherences(
        _most_coherent(memory, state, allowed, keys),
        jnp.where(cells.held[None, :], _coherence(memory, _taken(state, cells), keys), 0),
        _coherence(memory, keys, keys),
    )


def _most_coherent(memory: Memory, state: BufferState, allowed: Array, keys: Array) -> Array:
    def step(most: Array, _: Array, stored: Array, allowed: Array) -> Array:
        stored = jnp.where(allowed[:, None], stored, 0)
        found = jnp.where(allowed[None, :], _coherence(memory, stored, keys), 0)
        return jnp.maximum(most, jnp.max(found, axis=1, initial=0))

    def most(stored: Array, allowed: Array) -> Array:
        start = as_spread_as(stored, jnp.zeros(len(keys), keys.dtype))
        return swept(step, start, stored, allowed)

    shards = state.parts
    if shards is None:
        return most(state.keys, allowed)
    specs = (shards.along(0).spec,) * 2
    return shards.each(
        lambda *own: jax.lax.pmax(most(*own), shards.axis), specs, state.keys, allowed
    )


def _coherence(memory: Memory, stored: Array, keys: Array) -> Array:
    """`|kernel(k, q)| / sqrt(kernel(k, k) kernel(q, q))`, `[batch, stored]`."""
    norms = memory.kernel.diagonal(keys)[:, None] * memory.kernel.diagonal(stored)[None, :]
    positive = norms > 0
    similar = jnp.abs(memory.kernel.pairs(stored, keys).T)
    return jnp.where(positive, similar / jnp.sqrt(jnp.where(positive, norms, 1)), 0)


def _root(square: Array) -> Array:
    finite = jnp.isfinite(square) & (square > 0)
    return jnp.where(finite, jnp.sqrt(jnp.where(finite, square, 1)), square)
