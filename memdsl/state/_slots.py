"""What a buffer does with a pair: which slot it takes, who leaves, and what becomes of the rest."""

from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array

from ..spec._capacity import (
    AbstractMerge,
    AddToNearest,
    Budget,
    Drop,
    LeastUsed,
    LeaveOneOut,
    Oldest,
    Project,
    Random,
    Smallest,
    Window,
)
from ..spec._facts import is_solved
from ..spec._gate import admissions, Arrival
from ..spec._memory import Memory
from ..spec._write import Cholesky
from ._base import answer, Token
from ._buffer import BufferState
from ._solve import solve


_Tree = TypeVar("_Tree")


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


def insert(
    memory: Memory,
    state: BufferState,
    key: Array,
    value: Array,
    mass: Array,
    log_weight: Array,
    columns: int | None = None,
) -> BufferState:
    """The buffer with a new atom in it; a full one makes room by the capacity's rule.

    The first `columns` of the values are the function's, which is what coefficients are judged by.
    """
    capacity = memory.capacity
    full = jnp.all(state.valid)
    if not isinstance(capacity, Budget | Window):
        slot = jnp.argmin(state.valid)  # the first free one
        written = _put(state, slot, key, value, mass, log_weight)
        return select(full, count_more(state, dropped=1), written)
    evict = capacity.evict if isinstance(capacity, Budget) else Oldest(sinks=capacity.sinks)
    merge = capacity.merge if isinstance(capacity, Budget) else Drop()
    if isinstance(evict, LeaveOneOut):
        slot = jnp.argmin(state.valid)
        state = _put(state, slot, key, value, mass, log_weight)
        return select(
            jnp.all(state.valid), _evict_lowest(memory, state, evict, merge, columns), state
        )
    if isinstance(evict, Random) and evict.reservoir:
        draw = jax.random.uniform(jax.random.fold_in(_draw(state, evict), 1), (), jnp.float32)
        seen = (_turn(state) + 1).astype(jnp.float32)
        enters = ~full | (draw * seen < len(state.valid))
        made = _make_room(memory, state, evict, merge, columns)
        return select(
            enters, _put(*made, key, value, mass, log_weight), count_more(state, dropped=1)
        )
    made = _make_room(memory, state, evict, merge, columns)
    return _put(*made, key, value, mass, log_weight)


def reject(
    memory: Memory,
    state: BufferState,
    key: Array,
    value: Array,
    mass: Array,
    log_weight: Array,
) -> BufferState:
    """The buffer after a pair that was not admitted: dropped, or merged into what is stored."""
    merge = memory.capacity.merge if isinstance(memory.capacity, Budget) else Drop()
    return merged(memory, state, merge, key, value, mass, log_weight)


def merged(
    memory: Memory,
    state: BufferState,
    merge: AbstractMerge,
    key: Array,
    value: Array,
    mass: Array,
    log_weight: Array,
) -> BufferState:
    """The buffer with `exp(log_weight) kernel(key, .) (value, mass)` put on the atoms that are stored.

    An atom that changes has the larger of the two weights after it, so that no sum is out of range.
    """
    if isinstance(merge, Drop):
        return count_more(state, dropped=1)
    keys, values, masses = state.safe()
    valid = state.valid
    if isinstance(merge, AddToNearest):
        squares = jnp.where(valid, jnp.sum((keys - key[None, :]) ** 2, -1), jnp.inf)
        share = (jnp.arange(len(valid)) == jnp.argmin(squares)).astype(values.dtype)
    elif isinstance(merge, Project):
        gram = jnp.where(valid[:, None] & valid[None, :], memory.kernel.pairs(keys, keys), 0)
        gram = gram + jnp.diag(jnp.where(valid, merge.ridge, 1).astype(gram.dtype))
        similar = jnp.where(valid, memory.kernel.pairs(keys, key[None, :])[:, 0], 0)
        share = solve(gram, similar, Cholesky())
    else:
        raise TypeError(f"no rule for {merge!r}")
    changes = valid & (share != 0)
    peak = jax.lax.stop_gradient(jnp.maximum(state.log_weight, log_weight))
    old = jnp.exp(jnp.where(changes, state.log_weight - peak, 0))
    new = share * jnp.exp(jnp.where(changes, log_weight - peak, 0))
    new_values = old[:, None] * values + new[:, None] * value[None, :]
    out = state.put(
        values=jnp.where(changes[:, None], new_values, state.values),
        log_weight=jnp.where(changes, peak, state.log_weight),
    )
    if masses is not None and state.masses is not None:
        out = out.put(masses=jnp.where(changes, old * masses + new * mass, state.masses))
    return select(jnp.any(valid), count_more(out, merged=1), count_more(state, dropped=1))


def _make_room(
    memory: Memory, state: BufferState, evict: Any, merge: AbstractMerge, columns: int | None
) -> tuple[BufferState, Array]:
    """`(state, slot)`: a free slot, or the victim's, what it knew merged into the others."""
    full = jnp.all(state.valid)
    score = _scores(state, evict, columns)
    slot = jnp.argmin(jnp.where(state.valid, score, -jnp.inf))
    emptied = _evict(memory, state, slot, merge)
    return select(full, emptied, state), slot


def _evict(memory: Memory, state: BufferState, slot: Array, merge: AbstractMerge) -> BufferState:
    log_weight = _row(state.log_weight, slot)
    mass = jnp.zeros_like(log_weight) if state.masses is None else _row(state.masses, slot)
    key, value = _row(state.keys, slot), _row(state.values, slot)
    without = count_more(state, evicted=1).put(log_weight=state.log_weight.at[slot].set(-jnp.inf))
    if isinstance(merge, Drop):
        return without
    return merged(memory, without, merge, key, value, mass, log_weight)


def _row(rows: Array, slot: Array) -> Array:
    return rows[slot[None]][0]  # a gather: of slots on many devices, a slice would fetch them all


def _evict_lowest(
    memory: Memory,
    state: BufferState,
    evict: LeaveOneOut,
    merge: AbstractMerge,
    columns: int | None,
) -> BufferState:
    keys, values, _ = state.safe()
    gram = memory.kernel.pairs(keys, keys)
    if is_solved(memory):
        matrix, _ = state.problem(memory)
        coefficients = state.coefficients(memory)
    else:
        matrix = gram + evict.ridge * jnp.eye(len(gram), dtype=gram.dtype)
        coefficients = jnp.exp(state.log_weight)[:, None] * values[:, :columns]
    inverse = solve(matrix, jnp.eye(len(gram), dtype=gram.dtype), Cholesky())
    score = jnp.sqrt(jnp.sum(coefficients**2, -1)) / jnp.diag(inverse)
    return _evict(memory, state, jnp.argmin(jax.lax.stop_gradient(score)), merge)


def _scores(state: BufferState, evict: Any, columns: int | None) -> Array:
    match evict:
        case Oldest():
            pinned = state.birth - state.origin < evict.sinks
            return jnp.where(pinned, jnp.inf, state.birth.astype(state.usage.dtype))
        case Smallest():
            size = jnp.sum(state.values[:, :columns] ** 2, -1)
            return jax.lax.stop_gradient(2 * state.log_weight + jnp.log(size))
        case LeastUsed():
            return jax.lax.stop_gradient(state.usage)
        case Random():
            return jax.random.uniform(_draw(state, evict), state.usage.shape, jnp.float32)
        case _:
            raise TypeError(f"no rule for {evict!r}")


def _turn(state: BufferState) -> Array:
    """The number of this pair since the last start, from 0 (it is counted as attempted already)."""
    return state.counts.attempted - 1 - state.began


def _draw(state: BufferState, evict: Random) -> Array:
    return jax.random.fold_in(jax.random.key(evict.seed), _turn(state))


def _put(
    state: BufferState, slot: Array, key: Array, value: Array, mass: Array, log_weight: Array
) -> BufferState:
    masses = state.masses
    return count_more(state, admitted=1).put(
        keys=state.keys.at[slot].set(key.astype(state.keys.dtype)),
        values=state.values.at[slot].set(value.astype(state.values.dtype)),
        masses=None if masses is None else masses.at[slot].set(jnp.asarray(mass, masses.dtype)),
        log_weight=state.log_weight.at[slot].set(log_weight),
        birth=state.birth.at[slot].set(state.counts.admitted),
        usage=state.usage.at[slot].set(1),
    )


def count_more(state: BufferState, **more: Any) -> BufferState:
    """The buffer with more of some of its counts."""
    counts = state.counts
    names = counts.__dataclass_fields__
    return state.put(counts=type(counts)(**{n: getattr(counts, n) + more.get(n, 0) for n in names}))


def attempted(state: BufferState) -> BufferState:
    """The buffer, having been offered one more pair."""
    return count_more(state, attempted=1)


def observe(memory: Memory, state: BufferState, query: Array) -> BufferState:
    """The buffer, having been read once: what `LeastUsed` keeps track of."""
    capacity = memory.capacity
    if not isinstance(capacity, Budget) or not isinstance(capacity.evict, LeastUsed):
        return state
    weights, _ = state.weights(memory, query)
    weights = jax.lax.stop_gradient(jnp.abs(weights))
    share = weights / jnp.maximum(jnp.sum(weights), jnp.finfo(weights.dtype).tiny)
    return state.put(usage=capacity.evict.fade * state.usage + share)


def select(condition: Array, yes: _Tree, no: _Tree) -> _Tree:
    """`yes` where the condition holds, `no` elsewhere, for whole states."""
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), yes, no)
