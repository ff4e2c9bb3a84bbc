"""Slots on many devices: what every shard does alone, and what is put together.

The slots of a buffer are cut into equal parts, one for each place along an axis of a mesh. A read is
a sum over atoms, so a shard reads what it has and the answers are added up; what is nearest, or among
the first, is chosen from the choices of the shards. The rest (decays, a scatter, a mask) is by slot,
and XLA does it where the slots are.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Bool, Float, Int

from .._errors import SpecError
from ._base import Pair


@dataclasses.dataclass(frozen=True)
class Shards:
    """Where the slots of a buffer lie: in equal parts along one axis of a mesh."""

    mesh: Mesh
    axis: str

    @property
    def count(self) -> int:
        """How many parts there are."""
        return self.mesh.shape[self.axis]

    @property
    def whole(self) -> NamedSharding:
        """Of what is whole on every device."""
        return NamedSharding(self.mesh, PartitionSpec())

    def check(self, slots: int) -> None:
        """Raises `SpecError` where the slots cannot be cut into equal parts."""
        if slots % self.count:
            more = slots + -slots % self.count
            raise SpecError(
                f"{slots} slots cannot be cut into {self.count} equal parts.",
                why=f"They lie along the axis {self.axis!r} of a mesh, with as many on each device.",
                instead=f"md.grow.resize(model, {more}), or a mesh with another number of places.",
            )

    def along(self, axis: int) -> NamedSharding:
        """Of an array whose slots are its axis `axis`."""
        if self.count == 1:
            return self.whole
        return NamedSharding(self.mesh, PartitionSpec(*[None] * axis, self.axis))

    def each(self, function: Callable[..., Any], specs: tuple[Any, ...], *arrays: Any) -> Any:
        """`function` of its part on every shard; what it returns must be the same on all of them."""
        return jax.shard_map(
            function,
            mesh=self.mesh,
            in_specs=specs,
            out_specs=PartitionSpec(),
            axis_names={self.axis},
        )(*arrays)

    def first(self, local: Int[Array, "..."], slots: int) -> Int[Array, "..."]:
        """Inside `each`: the slots of the whole that are `local` ones of this shard."""
        return local + jax.lax.axis_index(self.axis).astype(local.dtype) * slots


def row_of(array: Array, slot: Int[Array, ""]) -> Array:
    """One row: by a gather, since of slots on many devices a slice would fetch them all."""
    return array[slot[None]][0]


def as_spread_as(like: Array, arrays: Any) -> Any:
    """The same arrays. Inside `each`, constants become what can differ from shard to shard as `like`
    does, which a loop asks of what it begins with."""
    first = like.reshape(-1)[0]
    never = first < first
    return jax.tree.map(lambda x: jnp.where(never, jnp.ones_like(x), x), arrays)


def together(pair: Pair, there: Bool[Array, ""], axis: str) -> Pair:
    """The sum of what the shards along an axis have read; `there` says where there is any atom."""
    value, mass, top, size = pair
    if top is not None:
        floor = jax.lax.stop_gradient(jnp.where(there, top, -jnp.inf))
        peak = jax.lax.pmax(floor, axis)
        peak = jnp.where(peak > -jnp.inf, peak, 0)
        share = jnp.exp(jnp.where(there, top - peak, 0))
        value, mass, size = jax.tree.map(lambda x: share * x, (value, mass, size))
        top = peak
    value, mass, size = jax.lax.psum((value, mass, size), axis)
    return Pair(value, mass, top, size)


def top_k(
    scores: Float[Array, "*rows slots"], count: int, shards: Shards | None
) -> tuple[Float[Array, "*rows count"], Int[Array, "*rows count"]]:
    """`jax.lax.top_k`; of shards, chosen from the first `count` of each."""
    if shards is None:
        return jax.lax.top_k(scores, count)

    def one(part: Array) -> tuple[Array, Array]:
        slots = part.shape[-1]
        best, slot = jax.lax.top_k(part, min(count, slots))
        every = [
            jax.lax.all_gather(x, shards.axis, axis=x.ndim - 1, tiled=True, to="invarying")
            for x in (best, shards.first(slot, slots))
        ]
        best, place = jax.lax.top_k(every[0], count)
        return best, jnp.take_along_axis(every[1], place, -1)

    return shards.each(one, (shards.along(scores.ndim - 1).spec,), scores)
