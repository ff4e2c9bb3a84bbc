"""A large buffer is read a block of slots at a time, forward and backward.

So no array is as large as all slots times all queries, whatever is done to a read: `vmap` over queries
makes a block times the queries of it, and a gradient makes each block again.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ._base import Pair
from ._shards import as_spread_as


LARGE = 2**15
"""Buffers with more slots than this are streamed. Below, a whole read costs about the same and its
gradient less: on two CPU cores, with 64 queries, they are equal here."""
BLOCK = 2**12
"""About how many slots a block has."""


class Stored(NamedTuple):
    """Slots of a buffer; `log_weight` is −inf where one is empty, and what else it holds is not seen."""

    keys: Float[Array, "*blocks slots key"]
    values: Float[Array, "*blocks slots value"]
    masses: Float[Array, "*blocks slots"] | None
    log_weight: Float[Array, "*blocks slots"]

    @property
    def valid(self) -> Bool[Array, "*blocks slots"]:
        """Which slots hold an atom."""
        return self.log_weight > -jnp.inf

    def safe(self) -> tuple[Array, Array, Array | None]:
        """Keys, values and masses with zeros in the empty slots."""
        valid = self.valid
        keys = jnp.where(valid[:, None], self.keys, 0)
        values = jnp.where(valid[:, None], self.values, 0)
        return keys, values, None if self.masses is None else jnp.where(valid, self.masses, 0)

    def weights(self, kernel: Any, query: Array) -> tuple[Array, Array | None]:
        """`(weights, log_scale)`: each atom's `exp(log_weight) kernel(k, q)`, up to a common scale,
        which is −inf where all are 0. No gradient flows through the scale."""
        valid = self.valid
        keys = jnp.where(valid[:, None], self.keys, 0)
        log_weight = jnp.where(valid, self.log_weight, 0)
        # the query is on the left: of many, a product with all keys then comes out row by row
        if kernel.is_exponential():
            logits = log_weight + kernel.log_pairs(query[None, :], keys)[0]
            logits = jnp.where(valid, logits, -jnp.inf)
            peak = jax.lax.stop_gradient(jnp.max(logits, initial=-jnp.inf))
            return jnp.exp(logits - finite(peak)), peak
        similar = kernel.pairs(query[None, :], keys)[0]
        return jnp.where(valid, jnp.exp(log_weight) * similar, 0), None

    def sums(self, weights: Array, log_scale: Array | None, signed: bool) -> Pair:
        """N and D by some weights, and where masses are `signed` the sum of their sizes."""
        _, values, masses = self.safe()
        mass = None if masses is None else weights @ masses
        size = weights @ jnp.abs(masses) if masses is not None and signed else None
        return Pair(weights @ values, mass, log_scale, size)

    def cut(self) -> "Stored":
        """The same in blocks, with an axis of blocks in front."""
        keys, values, masses, log_weight = self
        masses = None if masses is None else cut(masses)
        return Stored(cut(keys), cut(values), masses, cut(log_weight, -jnp.inf))


def streamed(stored: Stored, read: Callable[[Stored], Pair]) -> Pair:
    """The sum of what blocks of slots answer, `read(block)`; a block without atoms is left out."""

    def step(total: Pair, block: Stored) -> tuple[Pair, None]:
        there = jnp.any(block.valid)
        return jax.lax.cond(there, lambda: added(total, read(block)), lambda: total), None

    blocks = stored.cut()
    like = jax.eval_shape(read, jax.tree.map(lambda x: x[0], blocks))
    nothing = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), like)
    if nothing.log_scale is not None:
        nothing = nothing._replace(log_scale=nothing.log_scale - jnp.inf)
    nothing = as_spread_as(stored.keys, nothing)
    return jax.lax.scan(jax.checkpoint(step, prevent_cse=False), nothing, blocks)[0]


def added(one: Pair, two: Pair) -> Pair:
    """The sum of two functions at one key."""
    if one.log_scale is None or two.log_scale is None:
        return jax.tree.map(jnp.add, one, two)
    peak = jnp.maximum(one.log_scale, two.log_scale)
    left, right = (jnp.exp(x - finite(peak)) for x in (one.log_scale, two.log_scale))
    sums = [pair._replace(log_scale=None) for pair in (one, two)]
    return jax.tree.map(lambda x, y: left * x + right * y, *sums)._replace(log_scale=peak)


def finite(log_scale: Array) -> Array:
    """The logarithm of a scale, 0 where it has none."""
    return jnp.where(jnp.isfinite(log_scale), log_scale, 0)


def cut(x: Array, fill: float = 0) -> Array:
    """`[slots, ...]` as `[blocks, size, ...]`, filled up where no number of blocks divides the slots:
    that is a copy of the array, and else there is none."""
    slots = len(x)
    most = max(-(-slots // BLOCK), 1)
    count = next((n for n in range(most, 2 * most) if slots % n == 0), most)
    rest = -slots % count
    if rest:
        x = jnp.pad(x, [(0, rest)] + [(0, 0)] * (x.ndim - 1), constant_values=fill)
    return x.reshape(count, -1, *x.shape[1:])
