"""Two atoms that become one, at the least change of the function: the partner, and the place."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ..spec._memory import Memory
from ._buffer import BufferState
from ._shards import row_of


PIECES = 8  # a partner is looked for at the ends of so many pieces of each segment


class Gone(NamedTuple):
    """An atom that is not stored, `exp(log_weight) kernel(key, .) (value, mass)`."""

    key: Float[Array, " key"]
    value: Float[Array, " value"]
    mass: Float[Array, ""]
    log_weight: Float[Array, ""]


class Joined(NamedTuple):
    """The atom that takes the place of two, and the slot of the one that was stored."""

    slot: Int[Array, ""]
    key: Float[Array, " key"]
    value: Float[Array, " value"]
    mass: Float[Array, ""]
    log_weight: Float[Array, ""]


def common(one: Array, two: Array, when: Array) -> tuple[Array, Array, Array]:
    """`(peak, exp(one - peak), exp(two - peak))`: two weights by the larger, so that no sum is out of
    range; 1 where not `when`."""
    peak = jax.lax.stop_gradient(jnp.maximum(one, two))
    first, second = (jnp.exp(jnp.where(when, x - peak, 0)) for x in (one, two))
    return peak, first, second


def between(
    memory: Memory,
    state: BufferState,
    gone: Gone,
    when: Bool[Array, ""],
    columns: int | None = None,
) -> Joined:
    """What `Pairwise` makes of an atom and of one that is stored.

    **Arguments:**

    - `when`: whether there is anything to merge, and into something; no search is made where not.
    - `columns`: how many of the values, from the first, coefficients are judged by.
    """
    kernel = memory.kernel
    slot, part = jax.lax.cond(
        when,
        lambda: jax.lax.stop_gradient(_chosen(kernel, state, gone, columns)),
        lambda: (jnp.zeros((), jnp.int32), jnp.zeros_like(gone.mass)),
    )

    def held(array: Array) -> Array:
        return jnp.where(when, row_of(array, slot), 0)

    key = held(state.keys)
    place = _along(part, gone.key, key)
    peak, theirs, ours = common(held(state.log_weight), gone.log_weight, when)
    ours = ours * _share(kernel, gone.key, place)
    theirs = theirs * _share(kernel, key, place)
    mass = gone.mass if state.masses is None else ours * gone.mass + theirs * held(state.masses)
    value = ours * gone.value + theirs * held(state.values)
    return Joined(slot, place, value, mass, peak)


class _Side(NamedTuple):
    """One of two atoms, seen from the space of the kernel: every `kernel(k, .)` of length 1."""

    key: Array
    log_size: Array
    """The logarithm of the length that `kernel(key, .)` had."""
    coefficient: Array
    """Of value and mass, times that length, up to a factor common to all."""


def _chosen(
    kernel: Any, state: BufferState, gone: Gone, columns: int | None
) -> tuple[Array, Array]:
    """`(slot, h)`: the partner, and how far the new key is on the way to it."""
    own, stored = _sides(kernel, state, gone, columns)
    apart = jax.vmap(lambda other: _cosine(kernel, own, other.key, other.log_size))(stored)

    def losses_at(part: Array) -> Array:
        losses = jax.vmap(lambda other, cosine: _loss(kernel, part, own, other, cosine))
        return jnp.where(state.valid, losses(stored, apart), jnp.inf)

    parts = jnp.arange(PIECES + 1, dtype=stored.key.dtype) / PIECES
    found = jax.lax.map(losses_at, parts)  # [parts, slots]
    slot = jnp.argmin(jnp.min(found, axis=0)).astype(jnp.int32)
    part = parts[jnp.argmin(row_of(found.T, slot))]
    partner = jax.tree.map(lambda x: row_of(x, slot), stored)

    def loss(part: Array) -> Array:
        return _loss(kernel, part, own, partner, row_of(apart, slot))

    def halve(_: int, bounds: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = bounds
        middle = (low + high) / 2
        falls = jax.grad(loss)(middle) < 0
        return jnp.where(falls, middle, low), jnp.where(falls, high, middle)

    around = jnp.maximum(part - 1 / PIECES, 0), jnp.minimum(part + 1 / PIECES, 1)
    low, high = jax.lax.fori_loop(0, jnp.finfo(part.dtype).nmant, halve, around)
    best = (low + high) / 2
    return slot, jnp.where(loss(best) < loss(part), best, part)


def _sides(kernel: Any, state: BufferState, gone: Gone, columns: int | None) -> tuple[_Side, _Side]:
    """The atom that goes, and all that are stored."""
    keys, values, masses = state.safe()
    values, own = values[:, :columns], gone.value[:columns]
    if masses is not None:
        values = jnp.concatenate([values, masses[:, None]], axis=1)
        own = jnp.concatenate([own, gone.mass[None]])
    sizes, size = jax.vmap(lambda k: _log_size(kernel, k))(keys), _log_size(kernel, gone.key)
    logs, log = jnp.where(state.valid, state.log_weight + sizes, -jnp.inf), gone.log_weight + size
    longest = jnp.maximum(log, jnp.max(logs, initial=-jnp.inf))
    longest = jnp.where(longest > -jnp.inf, longest, 0)
    return (
        _Side(gone.key, size, jnp.exp(log - longest) * own),
        _Side(keys, sizes, jnp.exp(logs - longest)[:, None] * values),
    )


def _loss(kernel: Any, part: Array, own: _Side, other: _Side, apart: Array) -> Array:
    """The square of the change of f; `apart` is the cosine of the two. No change is exactly 0."""
    place = _along(part, own.key, other.key)
    size = _log_size(kernel, place)
    to_own, to_other = (_cosine(kernel, side, place, size) for side in (own, other))
    a, b = own.coefficient, other.coefficient
    alone = jnp.maximum(1 - to_own**2, 0) * (a @ a) + jnp.maximum(1 - to_other**2, 0) * (b @ b)
    return alone + 2 * (apart - to_own * to_other) * (a @ b)


def _along(part: Array, key: Array, other: Array) -> Array:
    return (1 - part) * key + part * other


def _log_size(kernel: Any, k: Array) -> Array:
    """The logarithm of the length of `kernel(k, .)`."""
    if kernel.is_exponential():
        return kernel.log(k, k) / 2
    square = kernel(k, k)
    return jnp.where(square > 0, jnp.log(jnp.where(square > 0, square, 1)) / 2, -jnp.inf)


def _cosine(kernel: Any, side: _Side, place: Array, log_size: Array) -> Array:
    """Of the angle between `kernel(k, .)` and the kernel of another place."""
    return _over(kernel, side.key, place, side.log_size + log_size)


def _share(kernel: Any, k: Array, place: Array) -> Array:
    """How much of `kernel(k, .)` an atom at another place carries, `kernel(k, z) / kernel(z, z)`."""
    return _over(kernel, k, place, 2 * _log_size(kernel, place))


def _over(kernel: Any, k: Array, q: Array, log_divisor: Array) -> Array:
    """`kernel(k, q) / exp(log_divisor)`, in logarithms where the kernel has them; 0 over 0 is 0."""
    there = log_divisor > -jnp.inf
    divisor = jnp.where(there, log_divisor, 0)
    if kernel.is_exponential():
        return jnp.where(there, jnp.exp(kernel.log(k, q) - divisor), 0)
    return jnp.where(there, kernel(k, q) * jnp.exp(-divisor), 0)
