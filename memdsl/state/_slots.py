"""What a buffer does with a pair: which slot it takes, who leaves, and what becomes of the rest."""

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array

from ..spec._capacity import (
    AbstractEviction,
    Drop,
    LeastUsed,
    LeaveOneOut,
    Oldest,
    Random,
    Smallest,
)
from ..spec._facts import is_solved
from ..spec._gate import admissions, Arrival
from ..spec._memory import Memory
from ..spec._write import Cholesky
from ._base import answer, Token
from ._buffer import BufferState
from ._merge import count_more as count_more, Gone, merged, row
from ._shards import row_of
from ._solve import solve


_Tree = TypeVar("_Tree")
LAST = jnp.iinfo(jnp.int32).max


def arrival(memory: Memory, state: BufferState, token: Token) -> Arrival:
    """What an admission gate sees of a token: its key beside the stored ones, and its error."""
    keys, _, _ = state.safe()
    valid = state.valid
    squares = jnp.where(valid, jnp.sum((keys - token.key[None, :]) ** 2, -1), jnp.inf)
    nearest = jnp.min(squares, initial=jnp.inf)
    finite = jnp.isfinite(nearest) & (nearest > 0)
    distance = jnp.where(finite, jnp.sqrt(jnp.where(finite, nearest, 1)), nearest)
    similar = memory.kernel.pairs(keys, token.key[None, :])[:, 0]
    norms = memory.kernel.diagonal(keys) * memory.kernel(token.key, token.key)
    positive = valid & (norms > 0)
    coherence = jnp.abs(similar) / jnp.sqrt(jnp.where(positive, norms, 1))
    error = token.value - answer(memory.read, state.evaluate(memory, token.key), scaled=False)
    return Arrival(
        distance,
        jnp.max(jnp.where(positive, coherence, 0), initial=0),
        jnp.sqrt(jnp.sum(error**2)),
    )


def admits(memory: Memory, state: BufferState, token: Token) -> Array:
    """Whether every admission gate lets the token in."""
    gates = admissions(memory.gate)
    if not gates:
        return jnp.asarray(True)
    seen = jax.lax.stop_gradient(arrival(memory, state, token))
    admitted = jnp.asarray(True)
    for gate in gates:
        admitted = admitted & gate.admits(seen)
    return admitted


def offer(
    memory: Memory,
    state: BufferState,
    admitted: Array,
    key: Array,
    value: Array,
    mass: Array,
    log_weight: Array,
    columns: int | None = None,
    there: Array | bool = True,
) -> BufferState:
    """The buffer after a pair: with a new atom if it is admitted, for which a full one makes room by
    the capacity's rule; merged or dropped if not; as it was if there is no pair.

    At most one atom goes and one row is written, and what is not needed is not looked for. The first
    `columns` of the values are the function's, which is what coefficients are judged by.
    """
    capacity, full = memory.capacity, jnp.all(state.valid)
    admitted = admitted & there
    evict, merge = capacity.eviction(), capacity.merging()
    if evict is None:
        enters = admitted & ~full
        state = count_more(state, dropped=there & ~enters)
        return _put(state, _free(state, enters), enters, key, value, mass, log_weight)
    enters = admitted & (~full | _outlives(state, evict))
    own = Gone(*(jnp.asarray(x, state.keys.dtype) for x in (key, value, mass, log_weight)))
    pair = (enters, key, value, mass, log_weight)
    if isinstance(evict, LeaveOneOut):  # the new atom competes too, and there is a slot for it
        state = _put(state, _free(state, enters), *pair)
        goes = enters & jnp.all(state.valid)
    else:
        goes = enters & full
    state, gone, slot = evicted(memory, state, evict, goes, columns)
    rejected = there & ~enters
    if isinstance(merge, Drop):  # what is evicted is counted as that
        state = count_more(state, dropped=rejected)
    else:
        leaver = select(goes, gone, own)
        state = merged(memory, state, merge, leaver, goes | rejected, columns)
    if isinstance(evict, LeaveOneOut):
        return state
    return _put(state, jnp.where(goes, slot, _free(state, enters & ~goes)), *pair)


def _free(state: BufferState, when: Array) -> Array:
    """The first free slot."""
    return _looked_for(when, lambda: jnp.argmin(state.valid))


def _looked_for(when: Array, search: Callable[[], Array]) -> Array:
    """A slot, where it is needed."""
    return jax.lax.cond(when, lambda: search().astype(jnp.int32), lambda: jnp.zeros((), jnp.int32))


def evicted(
    memory: Memory,
    state: BufferState,
    evict: AbstractEviction,
    when: Array,
    columns: int | None = None,
) -> tuple[BufferState, Gone, Array]:
    """`(state, atom, slot)`: the buffer without one atom, that atom, and the slot that is free now.

    Where not `when`, all atoms stay.
    """

    def victim() -> Array:
        if isinstance(evict, Random):
            count = jnp.sum(state.valid, dtype=jnp.int32)
            return jnp.argmax(
                jnp.cumsum(state.valid, dtype=jnp.int32) > drawn(evict, _turn(state), count)
            )
        return jnp.argmin(scores(memory, jax.lax.stop_gradient(state), evict, columns))

    slot = _looked_for(when, victim)
    log_weight = row_of(state.log_weight, slot)
    mass = jnp.zeros_like(log_weight) if state.masses is None else row_of(state.masses, slot)
    gone = Gone(row_of(state.keys, slot), row_of(state.values, slot), mass, log_weight)
    without = row(state.log_weight, slot, jnp.asarray(-jnp.inf), when)
    return count_more(state, evicted=when).put(log_weight=without), gone, slot


def _outlives(state: BufferState, evict: AbstractEviction) -> Array:
    """Whether a new atom takes the place of one in a full buffer, where it may be the one that goes."""
    if not isinstance(evict, Random) or not evict.reservoir:
        return jnp.asarray(True)
    return stays(evict, _turn(state), len(state.valid))


def drawn(evict: Random, turn: Array, count: Array | int) -> Array:
    """Which of so many atoms goes for the `turn`-th pair, from 0 in the order of their slots."""
    return jax.random.randint(_draw(evict, turn), (), 0, count, jnp.int32)


def stays(evict: Random, turn: Array, count: int) -> Array:
    """Whether the `turn`-th pair is among the `count` that a reservoir keeps of all so far."""
    draw = jax.random.uniform(jax.random.fold_in(_draw(evict, turn), 1), (), jnp.float32)
    return draw * (turn + 1).astype(jnp.float32) < count


def _draw(evict: Random, turn: Array) -> Array:
    return jax.random.fold_in(jax.random.key(evict.seed), turn)


def insert(
    memory: Memory,
    state: BufferState,
    key: Array,
    value: Array,
    mass: Array,
    log_weight: Array,
    columns: int | None = None,
) -> BufferState:
    """The buffer with a new atom in it: `offer` of a pair that is admitted."""
    return offer(memory, state, jnp.asarray(True), key, value, mass, log_weight, columns)


def scores(
    memory: Memory, state: BufferState, evict: AbstractEviction, columns: int | None = None
) -> Array:
    """A number for every atom; the lowest goes. Empty slots have the highest."""
    match evict:
        case LeaveOneOut():
            score = _missed(memory, state, evict, columns)
        case Oldest():
            score = seniority(evict, state, state.birth)
        case Smallest() if is_solved(memory):
            score = log_size(state.coefficients(memory), jnp.zeros_like(state.log_weight))
        case Smallest():
            score = log_size(state.values[:, :columns], state.log_weight)
        case LeastUsed():
            score = state.usage
        case _:
            raise TypeError(f"no rule for {evict!r}")
    highest = LAST if jnp.issubdtype(score.dtype, jnp.integer) else jnp.inf
    return jnp.where(state.valid, score, jnp.asarray(highest, score.dtype))


def seniority(evict: Oldest, state: BufferState, birth: Array) -> Array:
    """What `Oldest` goes by: the birth of an atom, if it is not one of the first."""
    return jnp.where(birth - state.origin < evict.sinks, LAST, birth)


def log_size(coefficients: Array, log_weight: Array) -> Array:
    """What `Smallest` goes by: the logarithm of the square of a weighted coefficient's norm."""
    return 2 * log_weight + jnp.log(jnp.sum(coefficients**2, -1))


def _missed(memory: Memory, state: BufferState, evict: LeaveOneOut, columns: int | None) -> Array:
    """By how much each atom is missed at its own key, if it is left out."""
    keys, values, _ = state.safe()
    eye = jnp.eye(len(keys), dtype=keys.dtype)
    if is_solved(memory):
        matrix, _ = state.problem(memory)
        coefficients = state.coefficients(memory)
    else:
        both = state.valid[:, None] & state.valid[None, :]
        matrix = jnp.where(both, memory.kernel.pairs(keys, keys), 0) + evict.ridge * eye
        coefficients = jnp.exp(state.log_weight)[:, None] * values[:, :columns]
    inverse = solve(matrix, eye, Cholesky())
    return jnp.sqrt(jnp.sum(coefficients**2, -1)) / jnp.diag(inverse)


def _turn(state: BufferState) -> Array:
    """The number of this pair since the last start, from 0 (it is count_more as attempted already)."""
    return state.counts.attempted - 1 - state.began


def _put(
    state: BufferState,
    slot: Array,
    when: Array,
    key: Array,
    value: Array,
    mass: Array,
    log_weight: Array,
) -> BufferState:
    masses, birth = state.masses, state.counts.admitted
    return count_more(state, admitted=when).put(
        keys=row(state.keys, slot, key, when),
        values=row(state.values, slot, value, when),
        masses=None if masses is None else row(masses, slot, mass, when),
        log_weight=row(state.log_weight, slot, log_weight, when),
        birth=row(state.birth, slot, birth, when),
        usage=row(state.usage, slot, jnp.ones(()), when),
    )


def attempted(state: BufferState) -> BufferState:
    """The buffer, having been offered one more pair."""
    return count_more(state, attempted=1)


def select(condition: Array, yes: _Tree, no: _Tree) -> _Tree:
    """`yes` where the condition holds, `no` elsewhere, for whole states."""
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), yes, no)
