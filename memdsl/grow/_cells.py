"""The slots that a batch may take: who is in them, and whose turn it is to go."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from ..spec._capacity import (
    AbstractEviction,
    AddToNearest,
    Drop,
    LeastUsed,
    Oldest,
    Random,
    Smallest,
)
from ..spec._facts import is_solved
from ..spec._memory import Memory
from ..state import BufferState
from ..state._shards import top_k
from ..state._slots import drawn, LAST, log_size, scores, seniority, stays
from ._atoms import Atoms


_LARGEST = 0x7F7FFFFF  # the bits of the largest float
_OLDEST = Oldest()


class Cells(NamedTuple):
    """The slots that a batch may take; no other slot is written but by a merge.

    Free ones come first and in order. A slot past the last stands for none.
    """

    slots: Int[Array, " cells"]
    held: Bool[Array, " cells"]
    """Where there is an atom before the batch."""
    old: Any = None
    """The scores of these, the lowest of which goes; nothing where that is drawn, or nobody goes."""
    new: Any = None
    """The scores of the batch; for `Oldest` of its first atom, its second, and so on."""
    victims: Int[Array, " batch"] | None = None
    """Where who goes is drawn: for every pair, the cell whose atom that is."""
    outlives: Bool[Array, " batch"] | None = None
    """Where that is drawn: which pairs may take anybody's place."""

    def lowest(self, score: Array) -> Int[Array, ""]:
        """The cell with the lowest score; of equals, the one with the lowest slot."""
        return jnp.argmin(jnp.where(score == jnp.min(score), self.slots, LAST)).astype(jnp.int32)


def is_foreseen(memory: Memory) -> bool:
    """Whether cells can be told before a batch is written: no pair changes the score of another atom,
    and no key moves."""
    evict, merge = memory.capacity.eviction(), memory.capacity.merging()
    if isinstance(evict, Smallest):
        return isinstance(merge, Drop) and not is_solved(memory)
    return isinstance(evict, Oldest | LeastUsed | Random) and isinstance(merge, Drop | AddToNearest)


def cells_of(
    memory: Memory,
    state: BufferState,
    batch: Atoms,
    evict: AbstractEviction | None,
    columns: int | None = None,
) -> Cells:
    """The cells of a batch, where nobody is evicted or what `is_foreseen` holds.

    At most one atom goes for each pair. So those that go are among as many as there are pairs, the ones
    with the lowest scores, and among the batch.
    """
    slots, size = len(state.log_weight), len(batch.keys)
    count = min(size, slots)
    match evict:
        case None:
            order = places(state, count)
            return Cells(order, state.valid[order])
        case Oldest():
            order = places(state, count, evict)
            births = state.counts.admitted + jnp.arange(size, dtype=jnp.int32)
            old, new = (seniority(evict, state, x) for x in (state.birth[order], births))
            return Cells(order, state.valid[order], old, new)
        case Random():
            return _drawn(state, evict, count, size)
        case _:
            score = scores(memory, state, evict, columns)
    free, victims = _free(state, count), top_k(-score, count, state.parts)[1].astype(jnp.int32)
    there = jnp.sum(free < slots, dtype=jnp.int32)
    order = jnp.where(free < slots, free, jnp.roll(victims, there))
    if isinstance(evict, Smallest):
        new = log_size(batch.values[:, :columns], batch.log_weights)
    else:
        new = jnp.ones(size, score.dtype)
    return Cells(order, free == slots, score[order], new)


def _drawn(state: BufferState, evict: Random, count: int, size: int) -> Cells:
    slots = len(state.log_weight)
    turns = state.counts.attempted - state.began + jnp.arange(size, dtype=jnp.int32)
    victims = jax.vmap(lambda turn: drawn(evict, turn, slots))(turns)
    every = jnp.concatenate([_free(state, count), victims])
    index = jnp.arange(len(every), dtype=jnp.int32)
    first = jnp.argmax(every[:, None] == every[None, :], axis=1).astype(jnp.int32)
    order = jnp.where(first == index, every, slots)  # what is there twice, once
    held = state.valid.at[order].get(mode="fill", fill_value=False)
    outlives = None
    if evict.reservoir:
        outlives = jax.vmap(lambda turn: stays(evict, turn, slots))(turns)
    return Cells(order, held, victims=first[count:], outlives=outlives)


def _free(state: BufferState, count: int) -> Int[Array, " count"]:
    """The first free slots; one past the last where there are no more."""
    there, slot = top_k((~state.valid).astype(jnp.float32), count, state.parts)
    return jnp.where(there > 0, slot, len(state.valid)).astype(jnp.int32)


def places(state: BufferState, count: int, evict: Oldest = _OLDEST) -> Int[Array, " count"]:
    """The slots that the next `count` atoms take: free ones in order, then the oldest atoms'."""
    slots, order = len(state.log_weight), seniority(evict, state, state.birth)
    order = jnp.where(state.valid, order, jnp.arange(slots, dtype=jnp.int32) - slots)
    # floats of the same bits have the same order (above 2^23: no denormals), and XLA takes the least of
    # a million floats 50 times as fast as of integers, which it sorts
    least = 2**23 + slots
    bits = jnp.minimum(order, _LARGEST - least) + least
    floats = jax.lax.bitcast_convert_type(bits, jnp.float32)
    return top_k(-floats, count, state.parts)[1].astype(jnp.int32)
