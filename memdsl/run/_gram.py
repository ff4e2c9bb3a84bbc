"""Executions of a ridge problem with finite features that take many tokens at once."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from ..spec._memory import Memory
from ..spec._write import Cholesky, ConjugateGradient
from ..state import AbstractState, answer, GramState, Pair
from ._buffer import Execution
from ._inputs import Inputs
from ._lower import log_decay
from ._mesa import mesa_chunkwise


def gram_chunkwise(chunk: int) -> Execution:
    """The solves of a chunk of tokens together, with one Gram matrix kept a chunk."""

    def run(memory: Memory, state: AbstractState, inputs: Inputs) -> tuple[AbstractState, Array]:
        if not isinstance(state, GramState):
            raise TypeError("this execution is of a Gram matrix")
        tokens = inputs.cleaned()
        rule: Any = memory.write

        def numbers(token: Inputs) -> tuple[Array, Array]:
            m = token.grounded(memory, 0)
            write: Any = m.write
            decay = log_decay(m, token.keys)
            zero = jnp.zeros((), token.values.dtype)
            return jnp.asarray(write.rate, zero.dtype), zero if decay is None else decay

        rate, decay = jax.vmap(numbers)(tokens)
        gradient = isinstance(rule.solver, ConjugateGradient)
        out, (gram, matrix) = mesa_chunkwise(
            tokens.queries,
            tokens.keys,
            tokens.values,
            strength=jnp.asarray(rule.strength, rate.dtype),
            rate=rate,
            log_decay=decay,
            initial=(state.gram, state.matrix),
            starts=tokens.starts,
            mask=tokens.active,
            read_before=memory.read.is_before(),
            chunk=chunk,
            solver="cg" if gradient else "cholesky",
            steps=rule.solver.steps if gradient else 30,
            rtol=rule.solver.tolerance if gradient else 0.0,
        )
        seen = tokens.time if tokens.active is None else jnp.sum(tokens.active, dtype=jnp.int32)
        answers = jax.vmap(lambda row: answer(memory.read, Pair(row, None)))(out)
        return GramState(gram, matrix, state.count + seen), answers

    return run


def is_batched(solver: Any) -> bool:
    """Whether a solver has a form for a whole chunk."""
    return isinstance(solver, Cholesky | ConjugateGradient)
