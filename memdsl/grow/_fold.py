"""Folding a batch of pairs into a memory: what its pairs would do one after the other, at once."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ..spec._capacity import AddToNearest, Budget, Drop, LeastUsed, LeaveOneOut, Oldest, Window
from ..spec._facts import degree, one_pair
from ..spec._gate import admissions
from ..spec._memory import Memory
from ..spec._write import Recalled, Reweight
from ..state import AbstractState, BufferState, fade, MatrixState, Token
from ..state._buffer import Counts
from ..state._slots import arrival, attempted, insert, reject, select
from ..state._write import coefficient, recall
from ._greedy import decide, Fate, sinks_of


def fold(
    memory: Memory,
    state: BufferState | MatrixState,
    keys: Float[Array, "batch key"],
    errors: Float[Array, "batch value"],
) -> Any:
    """The state after one training step: faded once, and written with every pair of the batch.

    **Arguments:**

    - `memory`: the memory, grounded, as its representation keeps it.
    - `state`: what it holds; all coefficients are of this function, before anything is written.
    - `keys`: the keys, already mapped by the kernel's feature.
    - `errors`: the derivatives of the loss with respect to the answers.
    """
    values, masses = coefficients(memory, state, keys, errors)
    if isinstance(state, MatrixState):
        after = absorb(memory, fade(memory, state), keys, values, masses)
    else:
        sizes = jnp.sqrt(jnp.sum(errors * errors, -1))
        faded: Any = fade(memory, observed(memory, state, keys))
        batch = state.everywhere((keys, values, masses, sizes))  # who owns a slot writes it
        after = take(memory, faded, *batch).settled()
    return jax.tree.map(lambda x, old: x.astype(old.dtype), _counted(after), state)


def coefficients(
    memory: Memory, state: AbstractState, keys: Array, errors: Array
) -> tuple[Array, Array]:
    """`(c, m)` of every pair: of `-error` for `Hebb`, of `error` itself for `Reweight`."""
    rule = one_pair(memory.write)
    values = errors if isinstance(rule, Reweight) else -errors

    def one(key: Array, value: Array) -> tuple[Array, Array]:
        if degree(rule) == 0:
            nothing = jnp.zeros((), value.dtype)
            recalled = Recalled(nothing, nothing, nothing)
        else:
            recalled = recall(memory, state, key)
        return coefficient(memory, rule, recalled, Token(key, value))

    return jax.vmap(one)(keys, values)


def absorb(memory: Memory, state: Any, keys: Array, values: Array, masses: Array) -> MatrixState:
    """A matrix with every pair of a batch in it, by one matrix product."""
    features = jax.vmap(memory.kernel.features)(keys)
    mass = None if state.mass is None else state.mass + features.T @ masses
    return MatrixState(state.matrix + features.T @ values, mass, state.count)


def observed(memory: Memory, state: BufferState, keys: Array) -> BufferState:
    """The buffer, having been read by the batch, which is what `LeastUsed` keeps track of."""
    capacity = memory.capacity
    if not isinstance(capacity, Budget) or not isinstance(capacity.evict, LeastUsed):
        return state
    weights = jax.vmap(lambda q: jnp.abs(state.weights(memory, q)[0]))(keys)
    total = jnp.sum(weights, axis=1, keepdims=True)
    shares = weights / jnp.maximum(total, jnp.finfo(weights.dtype).tiny)
    powers = jnp.arange(len(keys) + 1).astype(weights.dtype)
    fades = jnp.asarray(capacity.evict.fade, weights.dtype) ** powers
    return state.put(usage=fades[-1] * state.usage + fades[:-1][::-1] @ shares)


def take(
    memory: Memory,
    state: BufferState,
    keys: Array,
    values: Array,
    masses: Array,
    sizes: Array,
) -> BufferState:
    """The buffer after a batch of pairs; `sizes` are the norms of their error signals.

    Where nobody is evicted, or whoever is oldest is and is lost, the fate of all pairs is known
    ahead, and what they change is scattered at once. Otherwise they are taken one by one.
    """
    batch = (keys, values, masses, sizes)
    capacity, slots = memory.capacity, len(state.log_weight)
    free = slots - jnp.sum(state.valid, dtype=jnp.int32)
    if not isinstance(capacity, Budget | Window):
        return scatter(memory, state, *batch[:3], decide(memory, state, keys, sizes, free))
    evict = Oldest() if isinstance(capacity, Window) else capacity.evict
    merge = Drop() if isinstance(capacity, Window) else capacity.merge
    count = jnp.asarray(len(keys), jnp.int32)
    if isinstance(evict, Oldest) and isinstance(merge, Drop):
        turn = slots - sinks_of(memory)  # more than this would evict each other
        for start in range(0, len(keys), turn):
            part = tuple(rows[start : start + turn] for rows in batch)
            fate = decide(memory, state, part[0], part[3], count)
            state = scatter(memory, state, part[0], part[1], part[2], fate)
        return state
    if admissions(memory.gate) and not isinstance(merge, Drop | AddToNearest):
        return one_by_one(memory, state, *batch)
    room = free - int(isinstance(evict, LeaveOneOut))
    fate = decide(memory, state, keys, sizes, count)
    fits = jnp.sum(fate.inserted(slots), dtype=jnp.int32) <= room
    return jax.lax.cond(
        fits,
        lambda: scatter(memory, state, *batch[:3], fate),
        lambda: one_by_one(memory, state, *batch),
    )


def one_by_one(
    memory: Memory,
    state: BufferState,
    keys: Array,
    values: Array,
    masses: Array,
    sizes: Array,
) -> BufferState:
    """The buffer after a batch of pairs, taken in order: the definition, for every capacity."""

    def body(state: BufferState, pair: tuple[Array, ...]) -> tuple[BufferState, None]:
        key, value, mass, size = pair
        seen = arrival(memory, state, Token(key, value))._replace(surprise=size)
        admitted = jnp.asarray(True)
        for gate in admissions(memory.gate):
            admitted = admitted & gate.admits(seen)
        state = attempted(state)
        weight = jnp.zeros((), state.log_weight.dtype)
        inserted = insert(memory, state, key, value, mass, weight)
        return select(admitted, inserted, reject(memory, state, key, value, mass)), None

    return jax.lax.scan(body, state, (keys, values, masses, sizes))[0]


def scatter(
    memory: Memory,
    state: BufferState,
    keys: Array,
    values: Array,
    masses: Array,
    fate: Fate,
) -> BufferState:
    """The buffer with the atoms of a batch in the slots that were decided, the rest merged."""
    slots = len(state.log_weight)
    inserted = fate.inserted(slots)
    count = jnp.sum(inserted, dtype=jnp.int32)
    free = slots - jnp.sum(state.valid, dtype=jnp.int32)

    def put(old: Array, new: Any) -> Array:
        return old.at[fate.slot].set(jnp.asarray(new, old.dtype), mode="drop")

    births = state.counts.admitted + fate.rank
    state = state.put(
        keys=put(state.keys, keys),
        values=put(state.values, values),
        masses=None if state.masses is None else put(state.masses, masses),
        log_weight=put(state.log_weight, 0),
        birth=put(state.birth, births),
        usage=put(state.usage, 1),
    )
    merged = jnp.zeros(len(keys), bool)
    capacity = memory.capacity
    if isinstance(capacity, Budget) and isinstance(capacity.merge, AddToNearest):
        merged = fate.neighbour < slots
        state = _add(state, values, masses, fate.neighbour)
    counts, one = state.counts, jnp.int32
    total_merged = jnp.sum(merged, dtype=one)
    return state.put(
        counts=Counts(
            attempted=counts.attempted + len(keys),
            admitted=counts.admitted + count,
            merged=counts.merged + total_merged,
            evicted=counts.evicted + jnp.maximum(count - free, 0),
            dropped=counts.dropped + (len(keys) - count - total_merged),
        )
    )


def _add(state: BufferState, values: Array, masses: Array, slot: Array) -> BufferState:
    """Adds coefficients to stored atoms; the weights of those that change are folded in."""

    def summed(old: Array, new: Array) -> Array:
        return jnp.zeros_like(old).at[slot].add(new.astype(old.dtype), mode="drop")

    changes: Bool[Array, " slots"] = jnp.zeros_like(state.valid).at[slot].set(True, mode="drop")
    weight = jnp.exp(jnp.where(changes, state.log_weight, 0))
    total = weight[:, None] * jnp.where(changes[:, None], state.values, 0)
    total = total + summed(state.values, values)
    mass = state.masses
    if mass is not None:
        whole = weight * jnp.where(changes, mass, 0) + summed(mass, masses)
        mass = jnp.where(changes, whole, mass)
    return state.put(
        values=jnp.where(changes[:, None], total, state.values),
        masses=mass,
        log_weight=jnp.where(changes, 0, state.log_weight),
    )


def _counted(state: Any) -> Any:
    if isinstance(state, BufferState):
        return state.put(count=state.count + 1)
    return MatrixState(state.matrix, state.mass, state.count + 1)
