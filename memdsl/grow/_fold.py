"""Folding a batch of pairs into a memory: what its pairs would do one after the other, at once."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ..spec._capacity import AddToNearest, Budget, Drop, LeastUsed, LeaveOneOut, Oldest, Window
from ..spec._facts import degree, one_pair
from ..spec._gate import admissions
from ..spec._memory import Memory
from ..spec._write import Recalled, Reweight
from ..state import AbstractState, BufferState, fade, GramState, MatrixState, Token
from ..state._slots import arrival, attempted, count_more, insert, reject, select
from ..state._write import recall
from ._greedy import decide, Fate, sinks_of


def fold(
    memory: Memory,
    state: BufferState | MatrixState,
    keys: Float[Array, "batch key"],
    errors: Float[Array, "batch value"],
    moved: Float[Array, "batch value"] | None = None,
) -> Any:
    """The state after one training step: faded once, and written with every pair of the batch.

    **Arguments:**

    - `memory`: the memory, grounded, as its representation keeps it.
    - `state`: what it holds; all coefficients are of this function, before anything is written.
    - `keys`: the keys, already mapped by the kernel's feature.
    - `errors`: the derivatives of the loss with respect to the answers.
    - `moved`: what has been done already of the move `-rate errors` that an additive write is for.
    """
    batch, is_guarded = atoms_of(memory, state, keys, errors)
    if moved is not None:
        batch = batch._replace(values=batch.values - moved)
    after = put(memory, fade(memory, observed(memory, state, keys)), batch)
    if isinstance(after, BufferState) and is_guarded is not None:
        after = count_more(after, guarded=jnp.sum(is_guarded, dtype=jnp.int32))
    return after


def put(memory: Memory, state: Any, batch: "Atoms", columns: int | None = None) -> Any:
    """A buffer, a matrix or a Gram matrix that has faded, after it was written with a batch.

    **Arguments:**

    - `memory`: the memory, grounded, as its representation keeps it.
    - `state`, `batch`: what it holds, and the atoms.
    - `columns`: how many columns of the values atoms are judged by, the first ones; all, if not said.
    """
    if isinstance(state, BufferState):
        batch = state.everywhere(batch)  # who owns a slot writes it
        after: Any = take(memory, state, batch, columns).settled()
        after = after.put(count=after.count + 1)
    else:
        after = absorb(memory, state, batch)
    return jax.tree.map(lambda x, old: x.astype(old.dtype), after, state)


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


def plain_atoms(keys: Array, values: Array, errors: Array) -> Atoms:
    """Atoms of these values, of mass and weight 1, for pairs with these error signals."""
    nothing = jnp.zeros(len(keys), errors.dtype)
    sizes = jnp.sqrt(jnp.sum(errors * errors, -1))
    return Atoms(keys, values, nothing + 1, nothing, sizes)


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
    batch = plain_atoms(keys, values, errors)._replace(masses=masses)
    return batch if logs is None else batch._replace(log_weights=logs), recalled.guarded


def absorb(memory: Memory, state: Any, batch: Atoms) -> MatrixState | GramState:
    """A matrix, or a Gram matrix, with every pair of a batch in it, by one matrix product."""
    features = jax.vmap(memory.kernel.features)(batch.keys)
    weighted = jnp.exp(batch.log_weights)[:, None] * features
    matrix, count = state.matrix + weighted.T @ batch.values, state.count + 1
    if isinstance(state, GramState):
        return GramState(state.gram + weighted.T @ features, matrix, count)
    mass = None if state.mass is None else state.mass + weighted.T @ batch.masses
    return MatrixState(matrix, mass, count)


def observed(memory: Memory, state: Any, keys: Array) -> Any:
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
    memory: Memory, state: BufferState, batch: Atoms, columns: int | None = None
) -> BufferState:
    """The buffer after a batch of pairs.

    Where nobody is evicted, or whoever is oldest is and is lost, the fate of all pairs is known
    ahead, and what they change is scattered at once. Otherwise they are taken one by one.
    """
    keys, sizes = batch.keys, batch.sizes
    capacity, slots = memory.capacity, len(state.log_weight)
    free = slots - jnp.sum(state.valid, dtype=jnp.int32)
    if not isinstance(capacity, Budget | Window):
        return scatter(memory, state, batch, decide(memory, state, keys, sizes, free))
    evict = Oldest() if isinstance(capacity, Window) else capacity.evict
    merge = Drop() if isinstance(capacity, Window) else capacity.merge
    count = jnp.asarray(len(keys), jnp.int32)
    if isinstance(evict, Oldest) and isinstance(merge, Drop):
        turn = slots - sinks_of(memory)  # more than this would evict each other
        for start in range(0, len(keys), turn):
            part = batch.rows(start, start + turn)
            fate = decide(memory, state, part.keys, part.sizes, count)
            state = scatter(memory, state, part, fate)
        return state
    if admissions(memory.gate) and not isinstance(merge, Drop | AddToNearest):
        return one_by_one(memory, state, batch, columns)
    room = free - int(isinstance(evict, LeaveOneOut))
    fate = decide(memory, state, keys, sizes, count)
    fits = jnp.sum(fate.inserted(slots), dtype=jnp.int32) <= room
    return jax.lax.cond(
        fits,
        lambda: scatter(memory, state, batch, fate),
        lambda: one_by_one(memory, state, batch, columns),
    )


def one_by_one(
    memory: Memory, state: BufferState, batch: Atoms, columns: int | None = None
) -> BufferState:
    """The buffer after a batch of pairs, taken in order: the definition, for every capacity."""

    def body(state: BufferState, pair: Atoms) -> tuple[BufferState, None]:
        key, value, mass, log_weight, size = pair
        seen = arrival(memory, state, Token(key, value))._replace(surprise=size)
        admitted = jnp.asarray(True)
        for gate in admissions(memory.gate):
            admitted = admitted & gate.admits(seen)
        state = attempted(state)
        inserted = insert(memory, state, key, value, mass, log_weight, columns)
        rejected = reject(memory, state, key, value, mass, log_weight)
        return select(admitted, inserted, rejected), None

    return jax.lax.scan(body, state, batch)[0]


def scatter(memory: Memory, state: BufferState, batch: Atoms, fate: Fate) -> BufferState:
    """The buffer with the atoms of a batch in the slots that were decided, the rest merged."""
    slots = len(state.log_weight)
    inserted = fate.inserted(slots)
    count = jnp.sum(inserted, dtype=jnp.int32)
    free = slots - jnp.sum(state.valid, dtype=jnp.int32)

    def put(old: Array, new: Any) -> Array:
        return old.at[fate.slot].set(jnp.asarray(new, old.dtype), mode="drop")

    births = state.counts.admitted + fate.rank
    state = state.put(
        keys=put(state.keys, batch.keys),
        values=put(state.values, batch.values),
        masses=None if state.masses is None else put(state.masses, batch.masses),
        log_weight=put(state.log_weight, batch.log_weights),
        birth=put(state.birth, births),
        usage=put(state.usage, 1),
    )
    merged = jnp.zeros(len(batch.keys), bool)
    capacity = memory.capacity
    if isinstance(capacity, Budget) and isinstance(capacity.merge, AddToNearest):
        merged = fate.neighbour < slots
        state = _add(state, batch, fate.neighbour)
    total_merged = jnp.sum(merged, dtype=jnp.int32)
    return count_more(
        state,
        attempted=len(batch.keys),
        admitted=count,
        merged=total_merged,
        evicted=jnp.maximum(count - free, 0),
        dropped=len(batch.keys) - count - total_merged,
    )


def _add(state: BufferState, batch: Atoms, slot: Array) -> BufferState:
    """Adds coefficients to stored atoms; each that changes gets the largest of the weights."""
    changes: Bool[Array, " slots"] = jnp.zeros_like(state.valid).at[slot].set(True, mode="drop")
    logs = batch.log_weights.astype(state.log_weight.dtype)
    peak = state.log_weight.at[slot].max(logs, mode="drop")
    old = jnp.exp(jnp.where(changes, state.log_weight - peak, 0))
    new = jnp.exp(logs - peak.at[slot].get(mode="fill", fill_value=jnp.inf))

    def summed(held: Array, more: Array) -> Array:
        more = jnp.zeros_like(held).at[slot].add(more.astype(held.dtype), mode="drop")
        wide = (...,) + (None,) * (held.ndim - 1)
        return jnp.where(changes[wide], old[wide] * held + more, held)

    masses = state.masses
    return state.put(
        values=summed(state.values, new[:, None] * batch.values),
        masses=None if masses is None else summed(masses, new * batch.masses),
        log_weight=peak,
    )
