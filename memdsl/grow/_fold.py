"""Folding a batch of pairs into a memory: what its pairs would do one after the other, at once."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ..spec._capacity import AddToNearest, Drop, LeaveOneOut
from ..spec._facts import degree, one_pair
from ..spec._gate import admissions
from ..spec._memory import Memory
from ..spec._write import Recalled, Reweight
from ..state import AbstractState, BufferState, fade, GramState, MatrixState, Token
from ..state._slots import arrival, count_more, offer
from ..state._usage import observe
from ..state._write import recall
from ._atoms import Atoms as Atoms
from ._cells import is_foreseen
from ._greedy import decide
from ._scatter import scatter


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
    after = put(memory, fade(memory, observe(memory, state, keys)), batch)
    if isinstance(after, BufferState) and is_guarded is not None:
        after = count_more(after, guarded=jnp.sum(is_guarded, dtype=jnp.int32))
    return after


def put(memory: Memory, state: Any, batch: Atoms, columns: int | None = None) -> Any:
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
        keys = _once_read(keys, recalled.answer)
    made = rule.atoms(memory.kernel, keys, values, recalled)
    values, masses, logs = jax.tree.map(lambda x: jnp.asarray(x, errors.dtype), made)
    batch = plain_atoms(keys, values, errors)._replace(masses=masses)
    return batch if logs is None else batch._replace(log_weights=logs), recalled.guarded


def _once_read(keys: Array, answers: Array) -> Array:
    """The keys, which the compiler cannot know before the answers: what has been read by then is
    overwritten in place, and not copied first. (It forgets barriers before it looks for copies.)"""
    there = jnp.isnan(answers) | (answers <= jnp.inf)  # which is so, whatever they are
    return jnp.where(jnp.all(there, axis=-1, keepdims=True), keys, 0)


def absorb(memory: Memory, state: Any, batch: Atoms) -> MatrixState | GramState:
    """A matrix, or a Gram matrix, with every pair of a batch in it, by one matrix product."""
    features = jax.vmap(memory.kernel.features)(batch.keys)
    weighted = jnp.exp(batch.log_weights)[:, None] * features
    matrix, count = state.matrix + weighted.T @ batch.values, state.count + 1
    if isinstance(state, GramState):
        return GramState(state.gram + weighted.T @ features, matrix, count)
    mass = None if state.mass is None else state.mass + weighted.T @ batch.masses
    return MatrixState(matrix, mass, count)


def take(
    memory: Memory, state: BufferState, batch: Atoms, columns: int | None = None
) -> BufferState:
    """The buffer after a batch of pairs.

    Where it can be told before a batch is written who would go for whom, all is scattered at once.
    Where not, so is what comes before the first pair that finds no room or moves a key, and the rest is
    taken one by one.
    """
    evict = memory.capacity.eviction()
    if evict is None or is_foreseen(memory):
        return scatter(memory, state, batch, *decide(memory, state, batch, evict, columns))
    slots = len(state.log_weight)
    stays_put = isinstance(memory.capacity.merging(), Drop | AddToNearest)  # no key moves
    room = slots - jnp.sum(state.valid, dtype=jnp.int32) - int(isinstance(evict, LeaveOneOut))
    fate, cells = decide(memory, state, batch, None)
    inserted = fate.slot < slots
    known = (jnp.cumsum(inserted, dtype=jnp.int32) <= room) & (
        inserted | (~fate.admitted & stays_put)
    )
    known = jnp.cumsum(~known) == 0
    scattered = scatter(memory, state, batch, fate, cells, known)
    return one_by_one(memory, scattered, batch, ~known, columns)


def one_by_one(
    memory: Memory,
    state: BufferState,
    batch: Atoms,
    there: Bool[Array, " batch"] | None = None,
    columns: int | None = None,
) -> BufferState:
    """The buffer after some pairs of a batch, taken in order: the definition, for every capacity."""
    every = jnp.ones(len(batch.keys), bool)

    def body(state: BufferState, turn: tuple[Atoms, Array]) -> tuple[BufferState, None]:
        (key, value, mass, log_weight, size), there = turn

        def admitted() -> Array:
            seen = arrival(memory, state, Token(key, value))._replace(surprise=size)
            gates = admissions(memory.gate)
            return jnp.all(jnp.stack([jnp.asarray(True), *(gate.admits(seen) for gate in gates)]))

        enters = jax.lax.cond(there, admitted, lambda: jnp.asarray(False))
        counted = count_more(state, attempted=there)
        pair = (enters, key, value, mass, log_weight)
        return offer(memory, counted, *pair, columns, there), None

    return jax.lax.scan(body, state, (batch, every if there is None else there))[0]
