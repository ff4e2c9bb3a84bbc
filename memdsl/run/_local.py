"""Local linear reads of many queries: lines fitted around them all."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from ..spec._memory import Memory
from ..spec._slots import unpulled
from ..state import tilted
from ._atoms import keep
from ._parallel import Answer


AT_ONCE = 2**20
"""How many numbers the differences of keys and queries may be that are there at a time."""


def fitted(memory: Memory) -> Answer:
    """The answers of a `LocalLinear` read; masses are the last column of the coefficients.

    Keys around their mean are made for a few readers at a time, `[readers, atoms, key]`, and once more
    when they are differentiated.
    """
    core: Any = memory.read.core()
    feature = jax.vmap(unpulled(memory.kernel)[1])

    def answer(keys: Array, coefficients: Array, query: Array, logs: Array) -> Array:
        keys = keep(jnp.any(logs > -jnp.inf, axis=0), keys)
        weights, top = weighed(memory, keys, query, logs)
        values, masses = coefficients[:, :-1], coefficients[:, -1]
        points, ridge = feature(keys), jnp.asarray(core.ridge, keys.dtype)

        @jax.checkpoint
        def tilt(reader: tuple[Array, Array, Array]) -> Array:
            weights, query, top = reader
            return tilted(weights, masses, points, query, ridge, top)

        readers, few = (weights, feature(query), top), AT_ONCE // max(points.size, 1)
        if few >= len(query):
            leaning = jax.vmap(tilt)(readers)
        else:
            leaning = jax.lax.map(tilt, readers, batch_size=max(few, 1))
        mass = (weights @ masses)[:, None]
        return jnp.where(mass == 0, 0, leaning @ values / jnp.where(mass == 0, 1, mass))

    return answer


def weighed(memory: Memory, keys: Array, query: Array, logs: Array) -> tuple[Array, Array]:
    """`(weights, top)`: `exp(logs) kernel(k, q)`, up to a factor `exp(top)` a reader."""
    there = logs > -jnp.inf
    if not memory.kernel.is_exponential():
        weights = memory.kernel.pairs(keys, query).T * jnp.exp(logs)
        return jnp.where(there, weights, 0), jnp.zeros(len(query), logs.dtype)
    logs = jnp.where(there, logs + memory.kernel.log_pairs(keys, query).T, -jnp.inf)
    top = jnp.max(logs, axis=1, initial=-jnp.inf)
    top = jax.lax.stop_gradient(jnp.where(jnp.isfinite(top), top, 0))
    return jnp.exp(logs - top[:, None]), top
