"""What becomes of every pair of a batch, decided in the order of the batch, before anything is moved.

Each pair sees the atoms as they stand after the pairs before it, so that the batch does what its pairs
would do one after the other. All distances are taken at once; only the decisions are a loop.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ..spec._capacity import AddToNearest, Budget, Oldest, Window
from ..spec._gate import admissions, Always, Arrival, Never, Novelty, Surprise
from ..spec._memory import Memory
from ..state import BufferState
from ..state._shards import as_spread_as, top_k
from ._nearest import nearest, squares_between, swept


_BIG = jnp.iinfo(jnp.int32).max
_NOWHERE = _BIG - 1
_LARGEST = 0x7F7FFFFF  # the bits of the largest float


class Fate(NamedTuple):
    """What becomes of the pairs of a batch; a slot of `slots` (one past the last) means none."""

    slot: Int[Array, " batch"]
    """The slot that the pair takes as a new atom."""
    neighbour: Int[Array, " batch"]
    """The nearest atom: of a pair that was not admitted, or of the atom that made room for it."""
    rank: Int[Array, " batch"]
    """How many pairs of the batch became atoms before this one."""

    def inserted(self, slots: int) -> Bool[Array, " batch"]:
        """Which pairs become atoms."""
        return self.slot < slots

    def of(self, there: Bool[Array, " batch"], slots: int) -> "Fate":
        """The same, and nothing of the other pairs."""
        slot, neighbour = (jnp.where(there, x, slots) for x in self[:2])
        return Fate(slot, neighbour, self.rank)


class Near(NamedTuple):
    """Squared distances of some keys to all atoms that there may be before a pair of the batch."""

    stays: Float[Array, " rows"]
    """To the nearest of the atoms that stay."""
    slot: Int[Array, " rows"]
    """Where that one is."""
    taken: Float[Array, "rows count"]
    """To the atoms whose slots the batch may take."""
    new: Float[Array, "rows batch"]
    """To the batch."""

    def closest(
        self, row: Array, order: Array, there: Array, slots: Array
    ) -> tuple[Float[Array, ""], Int[Array, ""]]:
        """`(squared distance, slot)` of the nearest atom; of equals, the lowest slot.

        Of those in the slots `order` some are `there`; those of the batch are in `slots`, or nowhere.
        """
        squares = jnp.concatenate(
            [
                self.stays[row][None],
                jnp.where(there, self.taken[row], jnp.inf),
                jnp.where(slots < _NOWHERE, self.new[row], jnp.inf),
            ]
        )
        where = jnp.concatenate([self.slot[row][None], order, slots])
        best = jnp.min(squares)
        return best, jnp.min(jnp.where(squares == best, where, _BIG))


class Coherences(NamedTuple):
    """Coherences of the batch, as `Near` has distances."""

    stays: Float[Array, " batch"]
    taken: Float[Array, "batch count"]
    new: Float[Array, "batch batch"]

    def most(self, row: Array, there: Array, slots: Array) -> Float[Array, ""]:
        """The largest of a pair with any atom."""
        old = jnp.max(jnp.where(there, self.taken[row], 0))
        new = jnp.max(jnp.where(slots < _NOWHERE, self.new[row], 0))
        return jnp.maximum(self.stays[row], jnp.maximum(old, new))


def sinks_of(memory: Memory) -> int:
    """How many of the first atoms are never evicted."""
    match memory.capacity:
        case Window(sinks=sinks) | Budget(evict=Oldest(sinks=sinks)):
            return sinks
        case _:
            return 0


def places(memory: Memory, state: BufferState, count: int) -> Int[Array, " count"]:
    """The slots that the next `count` atoms take: free ones in order, then the oldest atoms'."""
    slots = len(state.log_weight)
    order = jnp.where(state.birth - state.origin < sinks_of(memory), _BIG, state.birth)
    order = jnp.where(state.valid, order, jnp.arange(slots, dtype=jnp.int32) - slots)
    # floats of the same bits have the same order (above 2^23: no denormals), and XLA takes the least of
    # a million floats 50 times as fast as of integers, which it sorts
    least = 2**23 + slots
    bits = jnp.minimum(order, _LARGEST - least) + least
    floats = jax.lax.bitcast_convert_type(bits, jnp.float32)
    return top_k(-floats, count, state.parts)[1].astype(jnp.int32)


def passes_on(memory: Memory) -> bool:
    """Whether an atom that makes room is known ahead, and adds what it knew to the nearest."""
    match memory.capacity:
        case Budget(evict=Oldest(), merge=AddToNearest()):
            return True
        case _:
            return False


def decide(
    memory: Memory,
    state: BufferState,
    keys: Float[Array, "batch key"],
    errors: Float[Array, " batch"],
    room: Int[Array, ""],
) -> Fate:
    """What becomes of every pair, where at most `room` of them can become atoms.

    **Arguments:**

    - `memory`, `state`: the memory, grounded, and what it holds.
    - `keys`: the pairs' keys.
    - `errors`: the norms of their error signals.
    - `room`: how many atoms may be added; what is admitted beyond that is dropped.
    """
    slots, batch = len(state.log_weight), len(keys)
    count = min(batch, slots)
    order = places(memory, state, count)
    gates, passes = admissions(memory.gate), passes_on(memory)
    if not gates and not passes:
        rank = jnp.arange(batch, dtype=jnp.int32)
        slot = jnp.where(rank < room, order[jnp.minimum(rank, count - 1)], slots)
        return Fate(slot, jnp.full(batch, slots, jnp.int32), rank)
    pairs, atoms = _look(state, keys, order, bool(gates), passes)
    coherent = _coherences(memory, state, keys, order)
    index, held = jnp.arange(count, dtype=jnp.int32), state.valid[order]

    def one(i: Array, fate: Fate) -> Fate:
        used = fate.rank[i]
        turn = jnp.minimum(used, count - 1)
        new = jnp.where(fate.slot < slots, fate.slot, _NOWHERE)
        admitted, neighbour = jnp.asarray(True), jnp.asarray(slots, jnp.int32)
        if pairs is not None:
            best, closest = pairs.closest(i, order, index >= used, new)
            blank = jnp.zeros((), best.dtype)
            most = blank if coherent is None else coherent.most(i, index >= used, new)
            for gate in gates:
                admitted = admitted & gate.admits(Arrival(_root(best), most, errors[i]))
            neighbour = jnp.where(~admitted & jnp.isfinite(best), closest, neighbour)
        enters = admitted & (used < room)
        if atoms is not None:
            best, closest = atoms.closest(turn, order, index > used, new)
            goes = enters & held[turn] & jnp.isfinite(best)
            neighbour = jnp.where(goes, closest, neighbour)
        return Fate(
            fate.slot.at[i].set(jnp.where(enters, order[turn], slots)),
            fate.neighbour.at[i].set(neighbour),
            fate.rank.at[i + 1].set(used + enters.astype(jnp.int32), mode="drop"),
        )

    none = jnp.full(batch, slots, jnp.int32)
    start, stop = jnp.asarray(0, jnp.int32), jnp.asarray(batch, jnp.int32)
    return jax.lax.fori_loop(start, stop, one, Fate(none, none, jnp.zeros_like(none)))


def _look(
    state: BufferState, keys: Array, order: Array, of_pairs: bool, of_atoms: bool
) -> tuple[Near | None, Near | None]:
    """The pairs, and the atoms whose slots they may take, beside all atoms: by one search."""
    there = state.valid[order]
    taken = jnp.where(there[:, None], state.keys[order], 0)
    rows = jnp.concatenate([keys] * of_pairs + [taken] * of_atoms)
    square, slot = nearest(state.keys, state.valid.at[order].set(False), rows, state.parts)

    def near(part: slice, own: Array) -> Near:
        of_taken = jnp.where(there[None, :], squares_between(taken, own), jnp.inf)
        return Near(square[part], slot[part], of_taken, squares_between(keys, own))

    first = len(keys) * of_pairs
    return (
        near(slice(first), keys) if of_pairs else None,
        near(slice(first, None), taken) if of_atoms else None,
    )


def _coherences(memory: Memory, state: BufferState, keys: Array, order: Array) -> Coherences | None:
    """The coherences, where a gate looks at them."""
    simple = Always | Never | Novelty | Surprise
    if all(isinstance(gate, simple) for gate in admissions(memory.gate)):
        return None
    there = state.valid[order]
    taken = jnp.where(there[:, None], state.keys[order], 0)
    return Coherences(
        _most_coherent(memory, state, state.valid.at[order].set(False), keys),
        jnp.where(there[None, :], _coherence(memory, taken, keys), 0),
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
