"""Writing a pair: once, for every representation. Decay, recall, correct, absorb."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from ..spec._facts import is_solved, one_pair
from ..spec._memory import Leaf, Memory, Network
from ..spec._read import Evaluate
from ..spec._write import AbstractWrite, Delta, Recalled
from ._base import AbstractState, answer, divided, fade, Pair, Token
from ._buffer import BufferState
from ._descent import DescentState, write_descent
from ._slots import admits, attempted, count_more, insert, offer, select


def write(memory: Leaf, state: AbstractState, token: Token) -> AbstractState:
    """The state after a token: faded by the gate, and written with the pair."""
    if isinstance(state, DescentState):
        return write_descent(memory, state, token)
    if isinstance(memory, Network):
        raise TypeError("a network is written by a descent")
    return write_pair(memory, state, fade(memory, state, token.erase_key), token)


def write_pair(
    memory: Memory, before: AbstractState, state: AbstractState, token: Token
) -> AbstractState:
    """The faded `state` after a pair, where `before` is the state that was not faded yet."""
    rule: Any = one_pair(memory.write)
    if is_solved(memory):
        rate = jnp.asarray(rule.rate, token.value.dtype)
        if not isinstance(state, BufferState):
            return state.absorb(memory, token.key, token.value, rate)
        return _take(memory, state, token, token.value, rate, jnp.log(rate))
    if isinstance(rule, Delta) and rule.on == "atoms":
        return _spread(memory, rule, state, token)
    asked = before if rule.reads_before_decay() else state
    if isinstance(rule, Delta) and rule.remove == "own":
        return _remove_and_add(memory, rule, asked, state, token)
    if isinstance(rule, Delta):
        recalled = recall(memory, asked, rule.erase_key(_erase_key(rule, token)))
    else:
        recalled = recall(memory, asked, token.key)
    value, mass, log_weight = coefficient(memory, rule, recalled, token)
    if recalled.guarded is not None and isinstance(state, BufferState):
        state = count_more(state, guarded=recalled.guarded.astype(jnp.int32))
    return _take(memory, state, token, value, mass, log_weight)


def _erase_key(rule: Delta, token: Token) -> Array:
    """The key at which a delta rule asks; a gate may take an erase key that is none of its."""
    own = token.erase_key if rule.erase == "own" else None
    return token.key if own is None else own


def recall(memory: Memory, state: AbstractState, key: Array) -> Recalled:
    """What a write sees of the memory at a key."""
    pair: Pair = state.evaluate(memory, key)
    core, found = memory.read.core(), answer(memory.read, pair, scaled=False)
    if isinstance(core, Evaluate):
        return Recalled(pair.value, pair.mass, found)
    _, mass, top, guarded = divided(core, pair)
    top = jnp.zeros_like(mass) if top is None else top
    log_mass = jnp.log(jnp.abs(jnp.where(mass == 0, 1, mass))) + top
    return Recalled(pair.value, mass * jnp.exp(top), found, log_mass, guarded)


def coefficient(
    memory: Memory, rule: AbstractWrite, recalled: Recalled, token: Token
) -> tuple[Array, Array, Array | None]:
    """`(c, m, log_weight)` of a token, as arrays of the dtype of its value."""
    made = rule.atom(memory.kernel, token.key, token.value, recalled)
    return jax.tree.map(lambda x: jnp.asarray(x, token.value.dtype), made)


def _take(
    memory: Memory,
    state: AbstractState,
    token: Token,
    value: Array,
    mass: Array,
    log_weight: Array | None = None,
) -> AbstractState:
    """Absorbs a coefficient, if the gate admits it and where the capacity puts it."""
    if not isinstance(state, BufferState):
        weight = 1.0 if log_weight is None else jnp.exp(log_weight)
        return state.absorb(memory, token.key, weight * value, weight * mass)
    log_weight = jnp.zeros_like(state.log_weight, shape=()) if log_weight is None else log_weight
    admitted = admits(memory, state, token)
    state = attempted(state)
    return offer(memory, state, admitted, token.key, value, mass, log_weight)


def _remove_and_add(
    memory: Memory, rule: Delta, asked: AbstractState, state: AbstractState, token: Token
) -> AbstractState:
    """Two atoms a token: what was recalled is taken away at one key, the value added at another."""
    recalled = recall(memory, asked, rule.erase_key(_erase_key(rule, token)))
    remove = token.remove_key
    if remove is None:
        raise TypeError("a write with keys of its own needs remove_keys")
    step = jnp.asarray(rule.step(memory.kernel(token.key, token.key)), token.value.dtype)
    one = jnp.ones((), token.value.dtype)
    removal = token._replace(key=remove)
    state = _take(memory, state, removal, -step * recalled.answer, 0 * one)
    return _take(memory, state, token, step * rule.target(token.value), one)


def _spread(memory: Memory, rule: Delta, state: AbstractState, token: Token) -> AbstractState:
    """Moves the coefficient of every stored atom in proportion to its kernel with the key."""
    if not isinstance(state, BufferState):
        raise TypeError("only atoms can be moved one by one")
    zero = jnp.zeros((), token.value.dtype)
    error = rule.target(token.value) - recall(memory, state, token.key).answer
    admitted = admits(memory, state, token)
    state = attempted(state)
    inserted = insert(memory, state, token.key, 0 * error, zero, zero)
    state = select(admitted, inserted, state)
    keys, values, _ = state.safe()
    weight = jnp.where(state.valid, jnp.exp(jnp.where(state.valid, state.log_weight, 0)), 0)
    h = weight * memory.kernel.pairs(keys, token.key[None, :])[:, 0]
    moved = values + h[:, None] * (rule.step(h @ h) * error)[None, :]
    return state.put(values=jnp.where(state.valid[:, None], moved, state.values))
