"""Executions of a matrix that take many tokens at once."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array

from ..spec._memory import Memory
from ..state import AbstractState, answer, MatrixState, Pair, with_own
from ._chunkwise import canonical_chunkwise
from ._inputs import Inputs
from ._lower import Canonical, canonical
from ._recurrent import recurrent


def matrix_chunkwise(
    chunk: int,
) -> Callable[[Memory, AbstractState, Inputs], tuple[AbstractState, Array]]:
    """The execution in chunks of a size: matrix products inside, one step a chunk."""

    def run(memory: Memory, state: AbstractState, inputs: Inputs) -> tuple[AbstractState, Array]:
        if not isinstance(state, MatrixState):
            raise TypeError("the chunk form is of a matrix")
        if isinstance(memory.initial, Array) and inputs.starts is not None:
            return recurrent(memory, state, inputs)  # a start goes back to the learned matrix
        tokens, c = _lowered(memory, inputs)
        out, final = canonical_chunkwise(
            tokens.queries,
            c.key,
            _with_mass(memory, c.value, c.mass),
            _whole(state),
            log_decay=c.log_decay,
            erase=c.erase,
            remove=c.remove,
            starts=tokens.starts,
            read_before=memory.read.is_before(),
            chunk=chunk,
        )
        return _after(state, final, inputs), _answers(memory, inputs, out)

    return run


def matrix_associative(
    memory: Memory, state: AbstractState, inputs: Inputs
) -> tuple[AbstractState, Array]:
    """By an associative scan over `(decay, S)`: every prefix's matrix at once, for additive writes."""
    if not isinstance(state, MatrixState):
        raise TypeError("the associative form is of a matrix")
    if isinstance(memory.initial, Array) and inputs.starts is not None:
        return recurrent(memory, state, inputs)  # a start goes back to the learned matrix
    tokens, c = _lowered(memory, inputs)
    time = tokens.time
    values = _with_mass(memory, c.value, c.mass)
    written = c.key[:, :, None] * values[:, None, :]
    rows = c.key.shape[1]
    decay = jnp.zeros((time, rows), written.dtype)
    if c.log_decay is not None:
        wide = c.log_decay if c.log_decay.ndim == 2 else c.log_decay[:, None]
        decay = jnp.broadcast_to(wide, decay.shape)
    starts = jnp.zeros(time, bool) if tokens.starts is None else tokens.starts
    start = jnp.concatenate([jnp.zeros(1, bool), starts])
    first = _whole(state)
    decay = jnp.concatenate([jnp.zeros((1, rows), decay.dtype), decay])
    written = jnp.concatenate([first[None], written])

    def merge(left: tuple, right: tuple) -> tuple:
        (d0, s0, r0), (d1, s1, r1) = left, right
        faded = jnp.exp(d1)[..., None] * s0
        kept = jnp.where(r1[..., None, None], s1, faded + s1)
        return jnp.where(r1[..., None], d1, d0 + d1), kept, r0 | r1

    _, states, _ = jax.lax.associative_scan(merge, (decay, written, start))
    final = states[-1]
    before = jnp.where(starts[:, None, None], 0, states[:-1])
    read = before if memory.read.is_before() else states[1:]
    out = jnp.einsum("tk,tkv->tv", tokens.queries, read)
    return _after(state, final, inputs), _answers(memory, inputs, out)


def _lowered(memory: Memory, inputs: Inputs) -> tuple[Inputs, Canonical]:
    """One pair a token: the tokens, and the arrays of the canonical recurrence."""
    tokens = inputs.cleaned().spread()
    return tokens, canonical(memory, tokens, inputs.pairs)


def _with_mass(memory: Memory, values: Array, masses: Array) -> Array:
    """The mass as one more column of the values, where the read divides."""
    if not memory.read.needs_mass():
        return values
    return jnp.concatenate([values, masses[:, None]], axis=-1)


def _whole(state: MatrixState) -> Array:
    if state.mass is None:
        return state.matrix
    return jnp.concatenate([state.matrix, state.mass[:, None]], axis=-1)


def _after(state: MatrixState, final: Array, inputs: Inputs) -> MatrixState:
    seen = inputs.time if inputs.active is None else jnp.sum(inputs.active, dtype=jnp.int32)
    count = state.count + seen
    if state.mass is None:
        return MatrixState(final, None, count)
    return MatrixState(final[:, :-1], final[:, -1], count)


def _answers(memory: Memory, inputs: Inputs, out: Array | None) -> Array:
    """The answers a token from what was read at every pair."""
    if out is None:
        raise TypeError("a run without queries has no answers")
    before, pairs = memory.read.is_before(), inputs.pairs
    out = out[(0 if before else pairs - 1) :: pairs] if pairs > 1 else out
    mass = memory.read.needs_mass()

    def one(row: Array, token: Inputs) -> Array:
        here = token.grounded(memory, 0)
        pair = Pair(row[:-1], row[-1]) if mass else Pair(row, None)
        pair = with_own(here, pair, token.queries, token.pair(0), token.enters) if before else pair
        return answer(here.read, pair)

    return jax.vmap(one)(out, inputs.cleaned().per_token())
