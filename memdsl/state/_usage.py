"""How much reads have used each atom, which is what `LeastUsed` goes by."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..spec._capacity import Budget, LeastUsed
from ..spec._memory import Memory
from ._base import Pair
from ._streamed import finite, LARGE, Stored, streamed


def observe(memory: Memory, state: Any, queries: Float[Array, "batch key"]) -> Any:
    """The buffer, having been read by some queries one after the other; other states as they are."""
    capacity = memory.capacity
    if not isinstance(capacity, Budget) or not isinstance(capacity.evict, LeastUsed):
        return state
    stored, queries = jax.lax.stop_gradient((state.stored, queries))
    powers = jnp.arange(len(queries) + 1).astype(state.usage.dtype)
    fades = jnp.asarray(capacity.evict.fade, powers.dtype) ** powers
    large = len(state.usage) > LARGE and state.parts is None

    def whole(query: Array) -> Pair:
        def read(some: Stored) -> Pair:
            weights, log_scale = some.weights(memory.kernel, query)
            return Pair(jnp.sum(jnp.abs(weights))[None], None, log_scale)

        return streamed(stored, read) if large else read(stored)

    totals = jax.vmap(whole)(queries)

    def used(some: Stored) -> Array:
        shares = jax.vmap(lambda q, total: _shares(memory.kernel, some, q, total))(queries, totals)
        return fades[:-1][::-1] @ shares

    more = jax.lax.map(used, stored.cut()).reshape(-1) if large else used(stored)
    return state.put(usage=fades[-1] * state.usage + more[: len(state.usage)])


def _shares(kernel: Any, some: Stored, query: Array, total: Pair) -> Array:
    """`|weight|` of some atoms over the sum of all."""
    weights, log_scale = some.weights(kernel, query)
    weights = jnp.abs(weights)
    if log_scale is not None and total.log_scale is not None:
        weights = weights * jnp.exp(finite(log_scale) - finite(total.log_scale))
    return weights / jnp.maximum(total.value[0], jnp.finfo(weights.dtype).tiny)
