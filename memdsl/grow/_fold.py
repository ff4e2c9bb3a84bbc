"""Folding a batch of pairs into a memory: what its pairs would do one after the other, at once."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ..spec._capacity import AddToNearest, Budget, Drop, LeaveOneOut, Oldest, Window
from ..spec._facts import degree, one_pair
from ..spec._gate import admissions
from ..spec._memory import Memory
from ..spec._write import Recalled, Reweight
from ..state import AbstractState, BufferState, fade, MatrixState, Token
from ..state._slots import arrival, attempted, count_more, offer
from ..state._usage import observe
from ..state._write import recall
from ._greedy import decide, sinks_of
from ._scatter import Atoms as Atoms, scatter


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
    batch, is_guarded = atoms_of(memory, state, keys, errors)
    if isinstance(state, MatrixState):
        after = absorb(memory, fade(memory, state), batch)
    else:
        faded: Any = fade(memory, observe(memory, state, keys))
        batch = state.everywhere(batch)  # who owns a slot writes it
        after = take(memory, faded, batch)
        if is_guarded is not None:
            after = count_more(after, guarded=jnp.sum(is_guarded, dtype=jnp.int32))
        after = after.settled()
    return jax.tree.map(lambda x, old: x.astype(old.dtype), _counted(after), state)


def atoms_of(
    memory: Memory, state: AbstractState, keys: Array, errors: Array
) -> tuple[Atoms, Bool[Array, " batch"] | None]:
    """What is written of `-error` by `Hebb`, of `error` itself by `Reweight`; and, where masses can be
    below 0, which pairs met a mass too near to it."""
    rule, nothing = one_pair(memory.write), jnp.zeros(len(keys), keys.dtype)
    values = errors if isinstance(rule, Reweight) else -errors
    recalled = Recalled(nothing, nothing, nothing)
    if degree(rule) > 0:
        recalled = jax.vmap(lambda key: recall(memory, state, key))(keys)
    made = rule.atoms(memory.kernel, keys, values, recalled)
    values, masses, logs = jax.tree.map(lambda x: jnp.asarray(x, errors.dtype), made)
    sizes = jnp.sqrt(jnp.sum(errors * errors, -1))
    logs = nothing if logs is None else logs
    return Atoms(keys, values, masses, logs, sizes), recalled.guarded


def absorb(memory: Memory, state: Any, batch: Atoms) -> MatrixState:
    """A matrix with every pair of a batch in it, by one matrix product."""
    features = jax.vmap(memory.kernel.features)(batch.keys)
    features = jnp.exp(batch.log_weights)[:, None] * features
    mass = None if state.mass is None else state.mass + features.T @ batch.masses
    return MatrixState(state.matrix + features.T @ batch.values, mass, state.count)


def take(memory: Memory, state: BufferState, batch: Atoms) -> BufferState:
    """The buffer after a batch of pairs.

    Where nobody is evicted, or whoever is oldest is, and is lost or added to the nearest, the fate of
    all pairs is known ahead, and what they change is scattered at once. Otherwise they are taken one
    by one.
    """
    keys, sizes = batch.keys, batch.sizes
    capacity, slots = memory.capacity, len(state.log_weight)
    free = slots - jnp.sum(state.valid, dtype=jnp.int32)
    if not isinstance(capacity, Budget | Window):
        return scatter(memory, state, batch, decide(memory, state, keys, sizes, free))
    evict = Oldest() if isinstance(capacity, Window) else capacity.evict
    merge = Drop() if isinstance(capacity, Window) else capacity.merge
    count = jnp.asarray(len(keys), jnp.int32)
    if isinstance(evict, Oldest) and isinstance(merge, Drop | AddToNearest):
        turn = slots - sinks_of(memory)  # more than this would evict each other
        for start in range(0, len(keys), turn):
            part = batch.rows(start, start + turn)
            fate = decide(memory, state, part.keys, part.sizes, count)
            state = scatter(memory, state, part, fate)
        return state
    if admissions(memory.gate) and not isinstance(merge, Drop | AddToNearest):
        return one_by_one(memory, state, batch)
    room = free - int(isinstance(evict, LeaveOneOut))
    fate = decide(memory, state, keys, sizes, count)
    fits = jnp.sum(fate.inserted(slots), dtype=jnp.int32) <= room
    return jax.lax.cond(
        fits,
        lambda: scatter(memory, state, batch, fate),
        lambda: one_by_one(memory, state, batch),
    )


def one_by_one(memory: Memory, state: BufferState, batch: Atoms) -> BufferState:
    """The buffer after a batch of pairs, taken in order: the definition, for every capacity."""

    def body(state: BufferState, pair: Atoms) -> tuple[BufferState, None]:
        key, value, mass, log_weight, size = pair
        seen = arrival(memory, state, Token(key, value))._replace(surprise=size)
        admitted = jnp.asarray(True)
        for gate in admissions(memory.gate):
            admitted = admitted & gate.admits(seen)
        state = attempted(state)
        return offer(memory, state, admitted, key, value, mass, log_weight), None

    return jax.lax.scan(body, state, batch)[0]


def _counted(state: Any) -> Any:
    if isinstance(state, BufferState):
        return state.put(count=state.count + 1)
    return MatrixState(state.matrix, state.mass, state.count + 1)
