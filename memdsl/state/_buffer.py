"""The function as its atoms, in a buffer of fixed capacity.

`log_weight` serves decay (an addition), masking, eviction and the softmax bias at once: −inf is an
empty slot. What an empty slot holds, NaN included, has no effect on values or gradients.
"""

from collections.abc import Callable
from typing import Any, Self

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.sharding import Sharding
from jaxtyping import Array, Float, Int

from ..spec._facts import is_solved, one_pair
from ..spec._memory import Memory
from ..spec._read import LocalLinear, ranked_by
from ..spec._read_blocks import blocks_of
from ..spec._slots import unpulled
from ._base import AbstractState, Pair
from ._blocks import chosen
from ._local import tilted
from ._shards import Shards, together, top_k
from ._solve import solve
from ._streamed import finite, LARGE, Stored, streamed


class Counts(eqx.Module):
    """What became of the pairs that were offered."""

    attempted: Int[Array, ""]
    admitted: Int[Array, ""]
    merged: Int[Array, ""]
    evicted: Int[Array, ""]
    dropped: Int[Array, ""]
    guarded: Int[Array, ""]
    """How many pairs met a mass that was too near to 0 to divide by; see `Normalised`."""


class BufferState(AbstractState):
    """`f(q) = sum_i exp(log_weight_i) kernel(k_i, q) (c_i, m_i)`.

    For a solved memory `values` holds targets, and the coefficients are solved for when it is read.
    """

    keys: Float[Array, "slots key"]
    values: Float[Array, "slots value"]
    masses: Float[Array, " slots"] | None
    log_weight: Float[Array, " slots"]
    birth: Int[Array, " slots"]
    """The number of atoms that were written before this one."""
    usage: Float[Array, " slots"]
    """How much reads have used the atom."""
    count: Int[Array, ""]
    """How many tokens were written."""
    origin: Int[Array, ""]
    """The birth of the first atom after the last start."""
    began: Int[Array, ""]
    """How many pairs were attempted before the last start."""
    counts: Counts
    shards: Shards | None = eqx.field(static=True, default=None)
    """On which devices the slots lie, where that is more than one."""

    @property
    def valid(self) -> Array:
        """Which slots hold an atom."""
        return self.stored.valid

    @property
    def parts(self) -> Shards | None:
        """The shards, where there is more than one."""
        return None if self.shards is None or self.shards.count == 1 else self.shards

    def decay(self, log_factor: Array) -> Self:
        log_factor = jnp.asarray(log_factor, self.log_weight.dtype)
        # exp(-inf) of an atom and of an empty slot are the same thing: 0
        return self.put(log_weight=jnp.where(self.valid, self.log_weight + log_factor, -jnp.inf))

    def decay_keys(self, log_factors: Array) -> Self:
        factors = jnp.exp(jnp.asarray(log_factors, self.keys.dtype))
        factors = jnp.broadcast_to(factors, self.keys.shape[1:])[None, :]
        return self.put(keys=jnp.where(self.valid[:, None], self.keys, 0) * factors)

    def reflect(self, direction: Array, rate: Array) -> Self:
        keys = jnp.where(self.valid[:, None], self.keys, 0)
        return self.put(keys=keys - (rate * (keys @ direction))[:, None] * direction[None, :])

    def decay_values(self, log_factors: Array) -> Self:
        factors = jnp.exp(jnp.asarray(log_factors, self.values.dtype))
        return self.put(values=self.values * jnp.broadcast_to(factors, self.values.shape[1:])[None])

    def numbers(self) -> Array:
        """The coefficients of the function; parts of a whole lie side by side along the last axis."""
        return self.values

    def with_numbers(self, numbers: Array) -> Self:
        """The state with other coefficients."""
        return self.put(values=numbers)

    def absorb(self, memory: Memory, key: Array, value: Array, mass: Array) -> Self:
        from ._slots import insert  # what a full buffer does is a policy of its own

        zero = jnp.zeros((), self.log_weight.dtype)
        return insert(memory, self, key, value, mass, zero)  # pyright: ignore[reportReturnType]

    @property
    def stored(self) -> Stored:
        """What the slots hold, without its history."""
        return Stored(self.keys, self.values, self.masses, self.log_weight)

    def safe(self) -> tuple[Array, Array, Array | None]:
        """Keys, values and masses with zeros in the empty slots, whatever they hold."""
        return self.stored.safe()

    def evaluate(self, memory: Memory, query: Array, top: int | None = None) -> Pair:
        if is_solved(memory):
            return Pair(self.solved(memory, query), None)
        kernel, signed = memory.kernel, one_pair(memory.write).has_signed_masses()
        if top is not None or _fits_lines(memory):  # those look at all atoms at once
            return self._of_some(memory, query, top, signed)
        if self.parts is not None:
            return self.by_shard(memory, query)

        def read(some: Stored) -> Pair:
            return some.sums(*some.weights(kernel, query), signed)

        stored = self.stored
        pair = streamed(stored, read) if len(self.log_weight) > LARGE else read(stored)
        return pair if pair.log_scale is None else pair._replace(log_scale=finite(pair.log_scale))

    def _of_some(self, memory: Memory, query: Array, top: int | None, signed: bool) -> Pair:
        weights, log_scale = self.stored.weights(memory.kernel, query)
        log_scale = None if log_scale is None else finite(log_scale)
        if top is not None and blocks_of(memory.read) is not None:
            weights = jnp.where(self.in_blocks(memory, query), weights, 0)
        elif top is not None and top < len(weights):
            ranked = jax.lax.stop_gradient(self.ranked(memory, query, weights))
            _, chosen = top_k(ranked, top, self.parts)
            weights = jnp.where(jnp.zeros(len(weights), bool).at[chosen].set(True), weights, 0)
        pair = self.stored.sums(weights, log_scale, signed)
        keys, values, masses = self.safe()
        if masses is None or not _fits_lines(memory):
            return pair
        core: Any = memory.read.core()
        feature = jax.vmap(unpulled(memory.kernel)[1])
        ridge = jnp.asarray(core.ridge, keys.dtype)
        around = feature(keys), feature(query[None, :])[0]
        weights = tilted(weights, masses, *around, ridge, log_scale)
        return pair._replace(value=weights @ values)

    def by_shard(self, memory: Memory, query: Array) -> Pair:
        """What all atoms answer: each shard reads its own, and what they read is put together."""
        shards: Any = self.shards

        def one(state: Self, query: Array) -> Pair:
            pair = state.put(shards=None).evaluate(memory, query)
            return together(pair, jnp.any(state.valid), shards.axis)

        specs = jax.tree.map(lambda place: place.spec, self.placement())
        return shards.each(one, (specs, shards.whole.spec), self, query)

    def ranked(self, memory: Memory, query: Array, weights: Array) -> Array:
        """By how much each atom is one of the nearest; empty slots are the last."""
        by = ranked_by(memory.read)
        if by is not None:
            keys, log_weight = self.safe()[0], jnp.where(self.valid, self.log_weight, 0)
            weights = jnp.exp(log_weight) * by.pairs(keys, query[None, :])[:, 0]
        return jnp.where(self.valid, weights, -jnp.inf)

    def in_blocks(self, memory: Memory, query: Array) -> Array:
        """Which slots are in the blocks that are read."""
        read: Any = blocks_of(memory.read)
        valid, slots = self.valid, len(self.log_weight)
        places = jnp.where(valid, self.birth - self.origin, jnp.iinfo(jnp.int32).max)
        earliest = jnp.min(places, initial=jnp.iinfo(jnp.int32).max) // read.size
        block = jnp.where(valid, places // read.size - earliest, 0)
        logs = self.log_weight[None, :]
        count = -(-slots // read.size) + 1
        return chosen(memory, self.safe()[0], places, block, logs, query[None, :], count)[0]

    def problem(self, memory: Memory) -> tuple[Array, Array]:
        """The ridge problem `(W^½ K W^½ + strength) a = W^½ V`, as `(matrix, W^½)`; f = (W^½ a) . k."""
        write: Any = memory.write
        keys, _, _ = self.safe()
        root = jnp.where(self.valid, jnp.exp(jnp.where(self.valid, self.log_weight, 0) / 2), 0)
        gram = root[:, None] * memory.kernel.pairs(keys, keys) * root[None, :]
        return gram + jnp.asarray(write.strength, gram.dtype) * jnp.eye(
            len(root), dtype=gram.dtype
        ), root

    def coefficients(self, memory: Memory) -> Array:
        """The coefficients of a solved memory, `[slots, value]`."""
        write: Any = memory.write
        matrix, root = self.problem(memory)
        _, targets, _ = self.safe()
        return root[:, None] * solve(matrix, root[:, None] * targets, write.solver)

    def solved(self, memory: Memory, query: Array) -> Array:
        """What the minimiser answers."""
        keys, _, _ = self.safe()
        return memory.kernel.pairs(keys, query[None, :])[:, 0] @ self.coefficients(memory)

    def clear(self, memory: Memory) -> Self:
        return self.put(
            log_weight=jnp.full_like(self.log_weight, -jnp.inf),
            origin=self.counts.admitted,
            began=self.counts.attempted,
        )

    def put(self, **changes: Any) -> Self:
        """A copy with some fields changed."""
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return type(self)(**{**fields, **changes})

    def over_slots(self, change: Callable[[Array, int, float], Any]) -> Self:
        """A change of every array that has slots: `change(array, axis, value of an empty slot)`."""
        arrays = {name: getattr(self, name) for name in _SLOTS}
        return self.put(
            **{name: change(x, *_SLOTS[name]) for name, x in arrays.items() if x is not None}
        )

    def placement(self) -> Any:
        """Where every array of a state with shards lies: a sharding in the place of each."""
        shards: Any = self.shards
        slotted = self.over_slots(lambda x, axis, _: shards.along(x.ndim + axis))
        return jax.tree.map(lambda x: x if isinstance(x, Sharding) else shards.whole, slotted)

    def settled(self) -> Self:
        """The state, its slots on their devices; the same where there are no shards."""
        if self.shards is None:
            return self
        return jax.tree.map(jax.lax.with_sharding_constraint, self, self.placement())

    def everywhere(self, arrays: Any) -> Any:
        """Arrays, whole on every device; the same where there are no shards."""
        if self.shards is None:
            return arrays
        return jax.lax.with_sharding_constraint(arrays, self.shards.whole)

    def by_slot(self, arrays: Any, axis: int) -> Any:
        """Arrays with the slots along `axis`, where the slots are; the same without shards."""
        if self.shards is None:
            return arrays
        place = self.shards.along(axis)
        return jax.tree.map(lambda x: jax.lax.with_sharding_constraint(x, place), arrays)


_SLOTS = {
    "keys": (-2, 0),
    "values": (-2, 0),
    "masses": (-1, 0),
    "log_weight": (-1, -jnp.inf),
    "birth": (-1, 0),
    "usage": (-1, 0),
}


def _fits_lines(memory: Memory) -> bool:
    return isinstance(memory.read.core(), LocalLinear)
