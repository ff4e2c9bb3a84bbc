"""Descent that remembers more than the function: momentum, a window, a minibatch, a step of its own.

All that is remembered of functions are functions on the same coordinates, side by side: f itself; the
momentum `s <- mu s - gradient`; what the minibatch has moved, where its gain can change; and the
function at its beginning, of which its errors are. A window is a ring of the latest pairs.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Self

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ..spec._descent import orthogonalised
from ..spec._facts import retention
from ..spec._memory import Leaf, Memory, Network
from ..spec._write import Descent
from ._base import AbstractState, answer, fade, Pair, Token
from ._buffer import BufferState
from ._matrix import MatrixState
from ._network import NetworkState
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
    """A function and what its write remembers, as further columns of its coordinates."""

    function: AbstractState
    names: tuple[str, ...] = eqx.field(static=True)
    """What the columns are of, in order: `"function"`, `"momentum"`, `"moved"`, `"start"`."""
    latest: Latest
    place: Int[Array, ""]
    """How many tokens of this minibatch were written."""
    gain: Float[Array, ""]
    """What multiplies all that this minibatch has moved."""

    @property
    def count(self) -> Array:
        """How many tokens were written."""
        return self.function.count  # pyright: ignore[reportAttributeAccessIssue]

    def decay(self, log_factor: Array) -> Self:
        return self.put(self.function.decay(log_factor))

    def decay_keys(self, log_factors: Array) -> Self:
        return self.put(self.function.decay_keys(log_factors))

    def reflect(self, direction: Array, rate: Array) -> Self:
        return self.put(self.function.reflect(direction, rate))

    def decay_values(self, log_factors: Array) -> Self:
        return self.put(self.function.decay_values(log_factors))

    def absorb(self, memory: Leaf, key: Array, value: Array, mass: Array) -> Self:
        parts = self.parts()
        moved = parts["function"].absorb(memory, key, value, mass)
        return self.put(joined({**parts, "function": moved}))

    def evaluate(self, memory: Leaf, query: Array, top: int | None = None) -> Pair:
        return self.parts()["function"].evaluate(memory, query, top)

    def evaluate_backwards(self, memory: Leaf, query: Array) -> Array:
        return self.parts()["function"].evaluate_backwards(memory, query)

    def clear(self, memory: Any) -> Self:
        latest = eqx.tree_at(lambda x: x.valid, self.latest, jnp.zeros_like(self.latest.valid))
        if isinstance(self.function, BufferState):
            function: Any = self.function.clear(memory)
        else:
            parts = {n: _with(s, jnp.zeros_like(_numbers(s))) for n, s in self.parts().items()}
            function = joined({**parts, "function": parts["function"].clear(memory)})
        zero = jnp.zeros_like(self.place), jnp.zeros_like(self.gain)
        return type(self)(function, self.names, latest, *zero)

    def parts(self) -> dict[str, Any]:
        """Every function that is remembered, each as a state of its own."""
        return apart(self.function, self.names)

    def put(self, function: AbstractState) -> Self:
        """A copy with other functions."""
        return type(self)(function, self.names, self.latest, self.place, self.gain)


def remembered(write: Descent) -> tuple[str, ...]:
    """What functions a descent remembers."""
    names = ["function"]
    names += ["momentum"] if write.momentum is not None else []
    names += ["moved"] if write.keeps_step() else []
    return (*names, "start") if write.minibatch > 1 else tuple(names)


def joined(parts: Mapping[str, AbstractState]) -> Any:
    """States of one kind side by side, as one whole that is otherwise like the first."""
    numbers = [_numbers(part) for part in parts.values()]
    return _with(next(iter(parts.values())), jnp.concatenate(numbers, axis=-1))


def apart(whole: Any, names: Sequence[str]) -> dict[str, Any]:
    """What `joined` made one, by name."""
    split = jnp.split(_numbers(whole), len(names), axis=-1)
    return {name: _with(whole, numbers) for name, numbers in zip(names, split, strict=True)}


def _numbers(state: Any) -> Array:
    return state.numbers()


def _with(state: Any, numbers: Array) -> Any:
    return state.with_numbers(numbers)


def write_descent(memory: Leaf, state: DescentState, token: Token) -> DescentState:
    """The state after a token of a `Descent` that is not one atom by one plain step."""
    rule: Any = memory.write
    dtype = token.value.dtype
    rate = jnp.broadcast_to(jnp.asarray(rule.rate, dtype), token.value.shape)
    latest = state.latest.push(token.key, token.value, rate)
    parts = {name: unweighted(part) for name, part in state.parts().items()}
    before = parts["function"]
    parts["function"] = unweighted(fade(memory, before))
    first = state.place == 0
    if "start" in parts:
        parts["start"] = select(first, before, parts["start"])
        if not rule.reads_before_decay():
            parts["start"] = unweighted(fade(memory, parts["start"]))
    if "moved" in parts:
        faded = _numbers(unweighted(fade(memory, parts["moved"])))
        parts["moved"] = _with(parts["moved"], jnp.where(first, 0, faded))
    asked = before if rule.reads_before_decay() else parts["function"]
    asked = parts.get("start", asked)
    moves = signals(memory, asked, latest)
    whole = joined(parts)
    if isinstance(whole, BufferState):
        held = whole.counts.admitted
        whole = _with_room(memory, whole, token)
        moves = jnp.where(
            whole.counts.admitted > held, moves, 0
        )  # a reservoir may have kept it out
    split = jnp.split(_numbers(whole), len(parts), axis=-1)
    numbers = dict(zip(parts, split, strict=True))
    step = _step(memory, asked, whole, latest, moves)
    for _ in range(rule.steps - 1):  # of a network; elsewhere one longer step says it
        moved = _with(asked, _numbers(asked) + step)
        again = signals(memory, moved, latest)
        step = step + _step(memory, moved, whole, latest, again)
    if "momentum" in numbers:
        step = numbers["momentum"] * jnp.asarray(rule.momentum, dtype) + step
        numbers["momentum"] = step
    step = direction(memory, whole, step)
    gain = jnp.asarray(rule.gain, dtype)
    if "moved" in numbers:
        kept = numbers["function"] - state.gain * numbers["moved"]
        numbers["moved"] = numbers["moved"] + step
        numbers["function"] = kept + gain * numbers["moved"]
    else:
        numbers["function"] = numbers["function"] + gain * step
    function = _with(whole, jnp.concatenate(list(numbers.values()), axis=-1))
    place = (state.place + 1) % rule.minibatch
    return DescentState(function, state.names, latest, place, gain)


def signals(memory: Leaf, asked: AbstractState, latest: Latest) -> Array:
    """`-rate dloss/da(k)` of every pair of a window, `[window, value]`; 0 where there is none."""
    rule: Any = memory.write

    def one(key: Array, value: Array, rate: Array, valid: Array) -> Array:
        prediction = answer(memory.read, asked.evaluate(memory, key), scaled=False)
        return jnp.where(valid, -rate * rule.loss.gradient(prediction, value), 0)

    return jax.vmap(one)(latest.keys, latest.values, latest.rates, latest.valid)


def direction(memory: Leaf, like: AbstractState, step: Array) -> Array:
    """The step itself, or its orthogonal factor; `like` has the atoms that it is made of."""
    rule: Any = memory.write
    if not rule.orthogonalise:
        return step
    if isinstance(like, NetworkState) and isinstance(memory, Network):
        return memory.each_matrix(orthogonalised, step, like.key_size, like.value_size)
    if isinstance(like, BufferState) and isinstance(memory, Memory):
        keys, _, _ = like.safe()
        return orthogonalised(
            jnp.where(like.valid[:, None], step, 0), memory.kernel.pairs(keys, keys)
        )
    return orthogonalised(step)


def _step(
    memory: Any, asked: AbstractState, whole: AbstractState, latest: Latest, moves: Array
) -> Array:
    """What moves the function by `moves` at the pairs of a window, in its coordinates."""
    if isinstance(asked, NetworkState):
        return jnp.sum(jax.vmap(lambda k, c: asked.pull(memory, k, c))(latest.keys, moves), axis=0)
    if not isinstance(whole, BufferState):
        return jax.vmap(memory.kernel.features)(latest.keys).T @ moves
    ages = jnp.arange(len(moves), dtype=whole.birth.dtype)
    newest = whole.counts.admitted - 1
    mine = whole.valid[:, None] & (whole.birth[:, None] == newest - ages[None, :])
    return jnp.where(mine, 1, 0).astype(moves.dtype) @ moves


def _with_room(memory: Any, state: BufferState, token: Token) -> BufferState:
    """The buffer with a new atom of coefficient 0 in it, where it is admitted."""
    zero = jnp.zeros((), token.value.dtype)
    admitted = admits(memory, state.with_numbers(state.values[:, : len(token.value)]), token)
    state = attempted(state)
    nothing = jnp.zeros_like(state.values[0])
    return select(
        admitted, insert(memory, state, token.key, nothing, zero, zero, len(token.value)), state
    )


def unweighted(state: Any) -> Any:
    """The same function with every weight at 1, so that functions can be added."""
    if not isinstance(state, BufferState):
        return state
    weight = jnp.exp(jnp.where(state.valid, state.log_weight, 0))
    _, values, _ = state.safe()
    return state.put(
        values=weight[:, None] * values,
        log_weight=jnp.where(state.valid, 0, -jnp.inf).astype(state.log_weight.dtype),
    )


def settled(memory: Leaf, state: Any) -> Any:
    """The state once a token is written: what a proximal retention makes of it."""
    gate = retention(memory)
    if gate is None or not gate.settles:
        return state
    if isinstance(state, MatrixState):
        return _with(state, gate.settle(state.matrix))
    parts = state.parts()
    return state.put(joined({**parts, "function": settled(memory, parts["function"])}))
