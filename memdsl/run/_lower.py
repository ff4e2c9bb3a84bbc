"""From a memory and its tokens to the canonical recurrence, or to coefficients.

    S <- diag(exp log_decay) S + remove (erase . S) + key value^T

with `remove` the key itself unless a write has another.

A first-order write is `c0 + slope * recalled`, with `c0` what it writes into an empty memory and
`slope` what it makes of a recalled 1. So no write is named here but `Delta`, for keys of its own.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..spec._facts import degree, one_pair
from ..spec._gate import Decay, DiagonalDecay, forgets
from ..spec._memory import Memory
from ..spec._number import log_of
from ..spec._write import Delta, Recalled
from ._inputs import Inputs


class Canonical(NamedTuple):
    """The arrays of the canonical recurrence."""

    key: Float[Array, "time key"]
    value: Float[Array, "time value"]
    mass: Float[Array, " time"]
    log_decay: Float[Array, "..."] | None
    erase: Float[Array, "time key"] | None
    remove: Float[Array, "time key"] | None
    slope: Float[Array, " time"] | None


def canonical(memory: Memory, inputs: Inputs, pairs: int = 1) -> Canonical:
    """The canonical recurrence of a memory whose kernel is `Dot` (of any kernel, where `erase` and
    `remove` are keys and not features).

    `inputs` has one pair a token; where it was spread from `pairs` pairs a token, the decay acts on
    the first of them.
    """
    fades = jnp.arange(inputs.time) % pairs == 0
    if inputs.active is not None:
        fades = fades & inputs.active

    def one(token: Inputs, fade: Array) -> Canonical:
        return _one(memory, token, fade)

    return jax.vmap(one)(inputs, fades)


def _one(memory: Memory, token: Inputs, fade: Array) -> Canonical:
    m = token.grounded(memory, 0)
    rule: Any = one_pair(m.write)
    key, dtype = token.keys, token.values.dtype
    decay = log_decay(m, key)
    decay = None if decay is None else jnp.where(fade, decay, 0)
    zero, one = jnp.zeros_like(token.values), jnp.ones_like(token.values)
    own = isinstance(rule, Delta) and rule.remove == "own"
    anchor = token.remove_keys if own and token.remove_keys is not None else key
    norm = m.kernel(key, key)
    nothing = Recalled(zero, jnp.zeros((), dtype), zero)
    value, mass = rule.coefficient(token.values, nothing, norm)
    value, mass = jnp.asarray(value, dtype), jnp.asarray(mass, dtype)
    if token.closed is not None:  # only what is added can be left out
        value, mass = jnp.where(token.closed, 0, value), jnp.where(token.closed, 0, mass)
    if degree(m.write) == 0:
        return Canonical(key, value, mass, decay, None, None, None)
    everything = Recalled(one, jnp.zeros((), dtype), one)
    slope = rule.coefficient(zero, everything, norm)[0] - rule.coefficient(zero, nothing, norm)[0]
    slope = jnp.asarray(slope, dtype)[0]
    erase = key if token.erase_keys is None else token.erase_keys
    erase = rule.erase_key(erase) if isinstance(rule, Delta) else erase
    if not rule.reads_before_decay() and decay is not None:
        erase = erase * jnp.exp(decay)
    remove = anchor if own else None
    return Canonical(key, value, mass, decay, slope * erase, remove, slope)


def log_decay(m: Memory, key: Array) -> Array | None:
    """The logarithm of a grounded memory's decay: a scalar, one a feature, or `None` for no decay."""
    total: Any = None
    for gate in forgets(m.gate):
        if isinstance(gate, Decay | DiagonalDecay):
            own = jnp.asarray(log_of(gate.decay), key.dtype)
            if isinstance(gate, DiagonalDecay):
                own = jnp.broadcast_to(own, key.shape)
            wide = total is not None and total.ndim != own.ndim
            total = own if total is None else _sum(total, own) if wide else total + own
    return total


def _sum(a: Array, b: Array) -> Array:
    shape = jnp.broadcast_shapes(a.shape, b.shape)
    return jnp.broadcast_to(a, shape) + jnp.broadcast_to(b, shape)
