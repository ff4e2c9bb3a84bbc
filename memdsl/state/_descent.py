"""Descent with momentum or over a window: a function beside what its write has to remember.

Momentum is a second function on the same keys, `S <- mu S - rate gradient`, `f <- alpha f + S`: the
value axis holds f and S side by side. A window is a ring of the latest pairs.
"""

from typing import Any, Self

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ..spec._memory import Memory
from ._base import AbstractState, answer, fade, Pair, Token
from ._buffer import BufferState
from ._slots import admits, attempted, insert, select


class Latest(eqx.Module):
    """The latest pairs, newest first, each with the rate it came with."""

    keys: Float[Array, "window key"]
    values: Float[Array, "window value"]
    rates: Float[Array, "window value"]
    valid: Bool[Array, " window"]

    def push(self, key: Array, value: Array, rate: Array) -> "Latest":
        """The window after one more pair."""

        def on(new: Any, old: Array) -> Array:
            return jnp.concatenate([jnp.asarray(new, old.dtype)[None], old[:-1]])

        return Latest(
            on(key, self.keys), on(value, self.values), on(rate, self.rates), on(True, self.valid)
        )


class DescentState(AbstractState):
    """A function, its momentum (as further columns of its values), and the latest pairs."""

    function: AbstractState
    momentum: bool = eqx.field(static=True)
    latest: Latest

    @property
    def count(self) -> Array:
        """How many tokens were written."""
        return self.function.count  # pyright: ignore[reportAttributeAccessIssue]

    def decay(self, log_factor: Array) -> Self:
        return self.put(self.function.decay(log_factor), self.latest)

    def decay_keys(self, log_factors: Array) -> Self:
        return self.put(self.function.decay_keys(log_factors), self.latest)

    def reflect(self, direction: Array, rate: Array) -> Self:
        return self.put(self.function.reflect(direction, rate), self.latest)

    def decay_values(self, log_factors: Array) -> Self:
        return self.put(self.function.decay_values(log_factors), self.latest)

    def absorb(self, memory: Memory, key: Array, value: Array, mass: Array) -> Self:
        both = jnp.concatenate([value, value]) if self.momentum else value
        return self.put(self.function.absorb(memory, key, both, mass), self.latest)

    def evaluate(self, memory: Memory, query: Array, top: int | None = None) -> Pair:
        pair = self.function.evaluate(memory, query, top)
        size = self.latest.values.shape[1]
        return pair._replace(value=pair.value[:size])

    def clear(self, memory: Memory) -> Self:
        empty = eqx.tree_at(lambda x: x.valid, self.latest, jnp.zeros_like(self.latest.valid))
        return self.put(self.function.clear(memory), empty)

    def put(self, function: AbstractState, latest: Latest) -> Self:
        """A copy with another function and window."""
        return type(self)(function, self.momentum, latest)


def write_descent(memory: Memory, state: DescentState, token: Token) -> DescentState:
    """The state after a token of a `Descent` with momentum or a window."""
    rule: Any = memory.write
    rate = jnp.broadcast_to(jnp.asarray(rule.rate, token.value.dtype), token.value.shape)
    latest = state.latest.push(token.key, token.value, rate)
    size = len(token.value)
    before, momentum = _columns(state.function, 0, size), None
    if state.momentum:
        momentum = _columns(state.function, size, 2 * size)
    faded = _fold(fade(memory, before))
    asked = before if rule.reads_before_decay() else faded

    def descend(key: Array, value: Array, step: Array, valid: Array) -> Array:
        prediction = answer(memory.read, asked.evaluate(memory, key), scaled=False)
        return jnp.where(valid, -step * rule.loss.gradient(prediction, value), 0)

    moves = jax.vmap(descend)(latest.keys, latest.values, latest.rates, latest.valid)
    if momentum is not None:
        old = _values(_fold(momentum)) * jnp.asarray(rule.momentum, moves.dtype)
        both = jnp.concatenate([_values(faded) + old, old], axis=-1)
        faded = _with_values(faded, both)
        moves = jnp.concatenate([moves, moves], axis=-1)
    return state.put(_absorb_all(memory, faded, latest, moves, token), latest)


def _absorb_all(
    memory: Memory, state: AbstractState, latest: Latest, moves: Array, token: Token
) -> AbstractState:
    if not isinstance(state, BufferState):
        for i in range(len(moves)):
            state = state.absorb(memory, latest.keys[i], moves[i], jnp.zeros((), moves.dtype))
        return state
    zero = jnp.zeros((), moves.dtype)
    admitted = admits(memory, state, token)
    state = attempted(state)
    state = select(admitted, insert(memory, state, token.key, moves[0], zero, zero), state)
    newest = state.counts.admitted - 1
    for age in range(1, len(moves)):
        mine = state.valid & (state.birth == newest - age)
        state = state.put(
            values=jnp.where(mine[:, None], state.values + moves[age][None, :], state.values)
        )
    return state


def _columns(state: Any, low: int, high: int) -> Any:
    return state.map_values(lambda values: values[:, low:high])


def _values(state: Any) -> Array:
    return state.values if isinstance(state, BufferState) else state.matrix


def _with_values(state: Any, values: Array) -> Any:
    return state.map_values(lambda _: values)


def _fold(state: Any) -> Any:
    """The same function with every weight at 1, so that columns of values can be added."""
    if not isinstance(state, BufferState):
        return state
    weight = jnp.exp(jnp.where(state.valid, state.log_weight, 0))
    _, values, _ = state.safe()
    return state.put(
        values=weight[:, None] * values,
        log_weight=jnp.where(state.valid, 0, -jnp.inf).astype(state.log_weight.dtype),
    )
