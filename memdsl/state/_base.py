"""What a state is: a function from keys to values and mass, however it is stored.

Three laws tie every representation to the meaning: `evaluate(empty) = 0`,
`evaluate(decay(s, a)) = a evaluate(s)`, and `evaluate(absorb(s, k, c), q) = evaluate(s, q) +
kernel(k, q) c`. A memory given to these functions is *grounded*: its numbers are values.
"""

from abc import abstractmethod
from typing import Any, NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ..spec._gate import (
    Decay,
    DiagonalDecay,
    forgets,
    Householder,
    KeyDecay,
    Simplex,
    ValueDecay,
)
from ..spec._guard import guarded
from ..spec._memory import Leaf
from ..spec._number import log_of
from ..spec._read import (
    AbstractRead,
    Backwards,
    bonus_of,
    Evaluate,
    LocalLinear,
    Normalised,
)


class Pair(NamedTuple):
    """A function's value N and mass D at a key, both still to be multiplied by `exp(log_scale)`."""

    value: Float[Array, " value"]
    mass: Float[Array, ""] | None
    log_scale: Float[Array, ""] | None = None
    size: Float[Array, ""] | None = None
    """The sum of the sizes of all masses, where they can be below 0."""


class Token(NamedTuple):
    """One pair to write: a key and its value, and the keys of its own that a write may have."""

    key: Float[Array, " key"]
    value: Float[Array, " value"]
    erase_key: Float[Array, " key"] | None = None
    remove_key: Float[Array, " key"] | None = None


class AbstractState(eqx.Module):
    """A function `f: keys -> values (+) mass`."""

    @abstractmethod
    def decay(self, log_factor: Array) -> Self:
        """`exp(log_factor) f`."""

    @abstractmethod
    def decay_keys(self, log_factors: Array) -> Self:
        """Each feature of the key (of a buffer: each coordinate of its keys) has its own factor."""

    @abstractmethod
    def reflect(self, direction: Array, rate: Array) -> Self:
        """Every key k becomes `k - rate w (w . k)`, w the direction."""

    @abstractmethod
    def decay_values(self, log_factors: Array) -> Self:
        """Each channel of the value fades by its own factor."""

    @abstractmethod
    def absorb(self, memory: Any, key: Array, value: Array, mass: Array) -> Self:
        """`f + kernel(key, .) (value, mass)`."""

    @abstractmethod
    def evaluate(self, memory: Any, query: Array, top: int | None = None) -> Pair:
        """`f(query)`, of only the `top` nearest atoms where that is asked."""

    def evaluate_backwards(self, memory: Any, query: Array) -> Array:
        """`S q`, where the function is a matrix."""
        raise TypeError("only a matrix can be read from the side of its values")

    @abstractmethod
    def clear(self, memory: Any) -> Self:
        """The function at the start of a document: 0, or the memory's learned initial state."""


def fade(memory: Leaf, state: AbstractState, erase_key: Array | None = None) -> AbstractState:
    """The state after what the gate forgets and moves."""
    for gate in forgets(memory.gate):
        match gate:
            case Decay() | Simplex():
                state = state.decay(log_of(gate.decay))
            case Householder() if erase_key is not None:
                state = state.reflect(erase_key, jnp.asarray(gate.rate, erase_key.dtype))
            case DiagonalDecay() | KeyDecay():
                state = state.decay_keys(log_of(gate.decay))
            case ValueDecay():
                state = state.decay_values(log_of(gate.decay))
            case _:
                pass  # Reset acts where a start is flagged, a retention on what is read or written
    return state


def answer(read: AbstractRead, pair: Pair, *, scaled: bool = True) -> Array:
    """`scale N`, or `scale N / (scale D + prior)`; 0 where that would be 0 / 0. (N of a local linear
    read is of weights that are tilted already.)

    What a write recalls is answered with `scaled=False`: a published scale touches what is read, not
    the error that is written.
    """
    core = read.core()
    scale = core.scale if scaled else 1.0
    if isinstance(core, Evaluate):
        value = scale * pair.value
        return value if pair.log_scale is None else value * jnp.exp(pair.log_scale)
    value, mass, *_ = divided(core, pair, scale)
    empty = mass == 0
    return jnp.where(empty, 0, value / jnp.where(empty, 1, mass))


class Divided(NamedTuple):
    """The two sides of a division, both still to be multiplied by `exp(log_scale)`."""

    value: Float[Array, " value"]
    mass: Float[Array, ""]
    log_scale: Float[Array, ""] | None
    guarded: Bool[Array, ""] | None = None
    """Where masses can be below 0, whether the sum of them was too near to it."""


def divided(core: Normalised | LocalLinear, pair: Pair, scale: Any = 1.0) -> Divided:
    """`scale N` and `scale D + prior`, the latter kept away from 0 where masses can be below 0."""
    mass, size, prior, top = pair.mass, pair.size, core.prior, pair.log_scale
    if mass is None:
        raise TypeError("a normalised read of a state without mass")
    value, mass = scale * pair.value, scale * mass
    size = None if size is None else scale * size
    if not (isinstance(prior, int | float) and prior == 0):
        if top is not None:
            log_prior = jnp.log(jnp.asarray(prior, mass.dtype))
            peak = jax.lax.stop_gradient(jnp.maximum(top, log_prior))
            shrink, top = jnp.exp(top - peak), peak
            prior = jnp.maximum(jnp.exp(log_prior - peak), jnp.finfo(mass.dtype).tiny)
            value, mass = value * shrink, mass * shrink
            size = None if size is None else size * shrink
        mass = mass + prior
        size = None if size is None else size + prior
    if size is None:
        return Divided(value, mass, top)
    far = guarded(mass, size)
    return Divided(value, far, top, far != mass)


def with_own(
    memory: Any, pair: Pair, query: Array, own: Token, there: Array | bool | None = None
) -> Pair:
    """N and D at a query with what the read lets through of a token's own pair, `bonus kernel(k, q)
    (v, 1)`; nothing where the token is not `there`, or where there is no bonus."""
    bonus = bonus_of(memory.read)
    if bonus is None:
        return pair
    bonus = jnp.asarray(bonus, own.value.dtype)
    share = bonus if there is None else jnp.where(there, bonus, 0)
    value, mass, top, size = pair
    if top is None:
        by_channel = bonus.ndim > 0
        weight = (share * own.key) @ query if by_channel else share * memory.kernel(own.key, query)
    else:
        log = memory.kernel.log(own.key, query)
        nothing = jnp.all(value == 0) if mass is None else jnp.all(value == 0) & (mass == 0)
        floor = jnp.where(nothing, -jnp.inf, top)
        peak = jnp.maximum(floor, jnp.where(share > 0, log, -jnp.inf))
        peak = jax.lax.stop_gradient(jnp.where(peak > -jnp.inf, peak, 0))
        left = jnp.exp(jnp.where(nothing, 0, top - peak))
        value, mass = left * value, None if mass is None else left * mass
        size = None if size is None else left * size
        weight, top = share * jnp.exp(jnp.where(share > 0, log, peak) - peak), peak
    mass, size = (None if total is None else total + weight for total in (mass, size))
    return Pair(value + weight * own.value, mass, top, size)


def read(
    memory: Leaf,
    state: AbstractState,
    query: Array,
    own: Token | None = None,
    there: Array | bool | None = None,
) -> Array:
    """What the memory answers to a query, as it stands; `own` is a pair that a bonus lets through."""
    if isinstance(memory.read, Backwards):
        found = state.evaluate_backwards(memory, query)
        bonus = None if own is None else bonus_of(memory.read)
        if own is not None and bonus is not None:
            share = bonus if there is None else jnp.where(there, bonus, 0)
            found = found + share * own.key * (own.value @ query)
        return memory.read.core().scale * found
    pair = state.evaluate(memory, query, memory.read.top())
    return answer(memory.read, pair if own is None else with_own(memory, pair, query, own, there))
