"""What becomes of every pair of a batch, decided in the order of the batch, before anything is moved.

Each pair sees the atoms as they stand after the pairs before it, so that the batch does what its pairs
would do one after the other. All distances are taken at once; only the decisions are a loop.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ..spec._capacity import Budget, Oldest, Window
from ..spec._gate import admissions, Always, Arrival, Never, Novelty, Surprise
from ..spec._memory import Memory
from ..state import BufferState
from ..state._shards import top_k
from ._nearest import nearest, squares_between


_BIG = jnp.iinfo(jnp.int32).max


class Fate(NamedTuple):
    """What becomes of the pairs of a batch; a slot of `slots` (one past the last) means none."""

    slot: Int[Array, " batch"]
    """The slot that the pair takes as a new atom."""
    neighbour: Int[Array, " batch"]
    """The nearest atom of a pair that was not admitted."""
    rank: Int[Array, " batch"]
    """How many pairs of the batch became atoms before this one."""

    def inserted(self, slots: int) -> Bool[Array, " batch"]:
        """Which pairs become atoms."""
        return self.slot < slots


class Seen(NamedTuple):
    """The batch beside one set of atoms: squared distances and coherences, and where they are."""

    square: Array
    coherence: Array
    slot: Array


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
    return top_k(-order, count, state.parts)[1].astype(jnp.int32)


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
    if not admissions(memory.gate):
        rank = jnp.arange(batch, dtype=jnp.int32)
        slot = jnp.where(rank < room, order[jnp.minimum(rank, count - 1)], slots)
        return Fate(slot, jnp.full(batch, slots, jnp.int32), rank)
    rest, taken, peers = _look(memory, state, keys, order)

    def one(i: Array, fate: Fate) -> Fate:
        used = fate.rank[i]
        kept = jnp.arange(count, dtype=jnp.int32) >= used
        earlier = fate.slot < slots
        square = jnp.concatenate(
            [
                rest.square[i][None],
                jnp.where(kept, taken.square[i], jnp.inf),
                jnp.where(earlier, peers.square[i], jnp.inf),
            ]
        )
        coherence = jnp.maximum(
            jnp.maximum(rest.coherence[i], jnp.max(jnp.where(kept, taken.coherence[i], 0))),
            jnp.max(jnp.where(earlier, peers.coherence[i], 0)),
        )
        best = jnp.min(square)
        there = jnp.concatenate([rest.slot[i][None], order, fate.slot])
        closest = jnp.min(jnp.where(square == best, there, _BIG))
        arrival = Arrival(_root(best), coherence, errors[i])
        admitted = jnp.asarray(True)
        for gate in admissions(memory.gate):
            admitted = admitted & gate.admits(arrival)
        enters = admitted & (used < room)
        place = jnp.where(enters, order[jnp.minimum(used, count - 1)], slots)
        merges = ~admitted & jnp.isfinite(best)
        return Fate(
            fate.slot.at[i].set(place),
            fate.neighbour.at[i].set(jnp.where(merges, closest, slots)),
            fate.rank.at[i + 1].set(used + enters.astype(jnp.int32), mode="drop"),
        )

    none = jnp.full(batch, slots, jnp.int32)
    start, stop = jnp.asarray(0, jnp.int32), jnp.asarray(batch, jnp.int32)
    return jax.lax.fori_loop(start, stop, one, Fate(none, none, jnp.zeros_like(none)))


def _look(memory: Memory, state: BufferState, keys: Array, order: Array) -> tuple[Seen, Seen, Seen]:
    """The batch beside the atoms that stay, beside those whose slots it may take, beside itself."""
    stored, _, _ = state.safe()
    valid = state.valid
    stays = valid.at[order].set(False)
    taken = stored[order]
    square, slot = nearest(stored, stays, keys, state.parts)
    of_taken = jnp.where(valid[order][None, :], squares_between(taken, keys), jnp.inf)
    of_peers = squares_between(keys, keys)
    blank = jnp.zeros((), keys.dtype)
    simple = Always | Never | Novelty | Surprise
    if all(isinstance(gate, simple) for gate in admissions(memory.gate)):
        return (
            Seen(square, jnp.broadcast_to(blank, square.shape), slot),
            Seen(of_taken, jnp.broadcast_to(blank, of_taken.shape), order),
            Seen(of_peers, jnp.broadcast_to(blank, of_peers.shape), order),
        )
    far = jnp.where(stays[None, :], _coherence(memory, stored, keys), 0)
    beside = jnp.where(valid[order][None, :], _coherence(memory, taken, keys), 0)
    return (
        Seen(square, jnp.max(far, axis=1, initial=0), slot),
        Seen(of_taken, beside, order),
        Seen(of_peers, _coherence(memory, keys, keys), order),
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
