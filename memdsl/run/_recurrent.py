"""One token at a time: the execution that every memory has."""

from typing import Any

import equinox as eqx
import jax
from jaxtyping import Array

from ..spec._memory import Leaf, Memory
from ..state import AbstractState, BufferState, DescentState, fade, read
from ..state._descent import settled
from ..state._slots import select
from ..state._usage import observe
from ..state._write import write, write_pair
from ._inputs import Inputs


def recurrent(memory: Leaf, state: AbstractState, inputs: Inputs) -> tuple[AbstractState, Array]:
    """The state after a sequence, and the answer to every query, by a scan over tokens.

    **Arguments:**

    - `memory`: a peeled memory whose constant numbers are grounded.
    - `state`: where it starts.
    - `inputs`: the sequence.

    **Returns:** `(state, answers [time, answer])`.
    """
    tokens = inputs.cleaned().per_token()

    def body(carry: AbstractState, token: Inputs) -> tuple[AbstractState, Array]:
        return one_token(memory, carry, token)

    return jax.lax.scan(body, state, tokens)


def one_token(memory: Leaf, state: AbstractState, token: Inputs) -> tuple[AbstractState, Array]:
    """The state after one token, and the answer to its query."""
    if token.starts is not None:
        state = select(token.starts, state.clear(memory), state)
    first = token.grounded(memory, 0)
    query = token.queries
    early = None
    if memory.read.is_before():
        early = read(first, state, query, token.pair(0), token.enters)
    after = write(first, state, token.pair(0))
    for index in range(1, token.pairs):
        later: Any = token.grounded(memory, index)
        after = write_pair(later, after, after, token.pair(index))
    if token.closed is not None:
        after = select(token.closed, fade(first, state, token.pair(0).erase_key), after)
    after = counted(settled(first, after))
    if token.active is not None:
        after = select(token.active, after, state)
    out = read(first, after, query) if early is None else early
    held: Any = after.function if isinstance(after, DescentState) else after
    if isinstance(held, BufferState) and isinstance(first, Memory):
        seen = observe(first, held, query[None])
        seen = seen if token.there is None else select(token.there, seen, held)
        after = seen if held is after else eqx.tree_at(lambda s: s.function, after, seen)
    return after, out


def counted(state: AbstractState) -> AbstractState:
    """The state, having seen one more token."""

    def count(s: Any) -> Any:
        return s.function.count if "function" in s.__dataclass_fields__ else s.count

    return eqx.tree_at(count, state, count(state) + 1)
