"""What the executions on kept atoms share: blocks of tokens, and what is left of what was written.

A weight is held as its logarithm, and every log weight is a *sum* of log decays, never a
difference of two long sums, so nothing cancels. −inf is an atom that is not there: a free slot, a
masked token, an atom from before a reset, or one that is not written yet.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


Pairs: TypeAlias = Callable[[Array, Array], Array]
"""`(keys [n, d], queries [m, d]) -> [n, m]`: a kernel, or its logarithm."""


class Atoms(NamedTuple):
    """Atoms from before a run, oldest first. Where `log_weight` is −inf the slot is free.

    Only normalised reads look at `masses`, which are ones if not given, and only windows at
    `pinned`: what is never out of the window.
    """

    keys: Float[Array, "atoms key"]
    coefficients: Float[Array, "atoms value"]
    log_weight: Float[Array, " atoms"]
    masses: Float[Array, " atoms"] | None = None
    pinned: Bool[Array, " atoms"] | None = None


class Tokens(NamedTuple):
    """One sequence as executions want it: nothing missing, and every number finite.

    A masked token writes zeros, and so does a `sick` one, which holds a number that is not finite;
    what that would have spoiled is made NaN at the end, by `spoilt`, and nothing else is.
    """

    keys: Float[Array, "time key"]
    values: Float[Array, "time value"]
    queries: Float[Array, "time key"]
    log_decay: Float[Array, " time"]
    starts: Bool[Array, " time"]
    mask: Bool[Array, " time"]
    sick: Bool[Array, " time"]
    unclear: Bool[Array, " time"]
    """Where the query is not finite."""


class Known(NamedTuple):
    """The stored atoms as executions want them, as `Tokens` are."""

    keys: Float[Array, "atoms key"]
    coefficients: Float[Array, "atoms value"]
    log_weight: Float[Array, " atoms"]
    masses: Float[Array, " atoms"]
    pinned: Bool[Array, " atoms"]
    sick: Bool[Array, " atoms"]


def accumulator(*arrays: Array) -> jnp.dtype:
    """The dtype to add up in: float64 where any of the arrays is, float32 otherwise."""
    wide = any(array.dtype == jnp.float64 for array in arrays)
    return jnp.dtype(jnp.float64 if wide else jnp.float32)


def keep(where: Array, array: Array) -> Array:
    """The rows of `array` where `where` says so, zeros elsewhere; the others get no gradient."""
    return jnp.where(where.reshape(where.shape + (1,) * (array.ndim - where.ndim)), array, 0)


def finite(*arrays: Array) -> Array:
    """Where all numbers in the rows of all arrays are finite."""
    rows = (jnp.all(jnp.isfinite(array), axis=tuple(range(1, array.ndim))) for array in arrays)
    return functools.reduce(jnp.logical_and, rows)


def tokens(
    keys: Array,
    values: Array,
    queries: Array,
    log_decay: Array | None = None,
    starts: Array | None = None,
    mask: Array | None = None,
    others: tuple[Array, ...] = (),
) -> Tokens:
    """Fills in what is not given, and takes out what may not be felt.

    A masked token decays by nothing; its query stays. A start on a masked token is a start all the
    same: what was before it ends there. `others` are more numbers of the tokens, `[time]` each,
    only looked at for whether they are finite.
    """
    length = keys.shape[0]
    dtype = accumulator(keys, values, queries)
    mask = jnp.ones(length, bool) if mask is None else mask
    starts = jnp.zeros(length, bool) if starts is None else starts
    decay = jnp.zeros(length, dtype) if log_decay is None else log_decay.astype(dtype)
    sound = finite(keys, values, *others) & (decay < jnp.inf)
    k, v, d = (keep(mask & sound, array.astype(dtype)) for array in (keys, values, decay))
    clear = finite(queries)
    q = keep(clear, queries.astype(dtype))
    return Tokens(k, v, q, d, starts, mask, mask & ~sound, ~clear)


def atoms(stored: tuple | None, key_size: int, value_size: int, dtype: jnp.dtype) -> Known:
    """The stored atoms, with zeros in the free slots and nothing left out; no atoms for `None`."""
    if stored is None:
        shapes = (0, key_size), (0, value_size), (0,), (0,)
        none = jnp.zeros(0, bool)
        return Known(*(jnp.zeros(shape, dtype) for shape in shapes), pinned=none, sick=none)
    keys, coefficients, log_weight, masses, pinned = Atoms(*stored)
    there = log_weight > -jnp.inf
    masses = jnp.ones(there.shape, dtype) if masses is None else masses
    pinned = jnp.zeros(there.shape, bool) if pinned is None else pinned & there
    sound = finite(keys, coefficients, masses)
    k, c, m = (keep(there & sound, array.astype(dtype)) for array in (keys, coefficients, masses))
    return Known(k, c, log_weight.astype(dtype), m, pinned, there & ~sound)


def spoilt(sequence: Tokens, known: Array, read_before: bool = False) -> Array:
    """Where something is read or written that a sick token of the same sequence has a part in.

    `known` says whether what was there before the run is sick.
    """
    if len(sequence.sick) == 0:
        return sequence.sick
    time = jnp.arange(1, 1 + len(sequence.sick))
    start = jax.lax.cummax(jnp.where(sequence.starts, time, 0))
    sick = jax.lax.cummax(jnp.where(sequence.sick, time, jnp.where(known, 0, -1)))
    if read_before:
        sick = jnp.concatenate([jnp.where(known, 0, -1)[None], sick[:-1]])
    return sick >= start


def spoil(where: Array, array: Array) -> Array:
    """The array with NaN in the rows where `where` says so."""
    return jnp.where(where.reshape(where.shape + (1,) * (array.ndim - where.ndim)), jnp.nan, array)


def blocks(array: Array, size: int) -> Array:
    """`[time, ...] -> [blocks, size, ...]`, filled up with zeros at the end; at least one block."""
    length = array.shape[0]
    count = max(1, -(-length // size))
    pad = [(0, count * size - length)] + [(0, 0)] * (array.ndim - 1)
    return jnp.pad(array, pad).reshape(count, size, *array.shape[1:])


def in_blocks(sequence: Tokens, size: int) -> Tokens:
    """The sequence in blocks, filled up with masked tokens."""
    return Tokens(*(blocks(array, size) for array in sequence))


class Left(NamedTuple):
    """Log weights inside one block. Rows are readers, columns writers, both in time."""

    within: Float[Array, "size size"]
    """Of writer i in the function that reader t reads."""
    row: Float[Array, " size"]
    """Of what was there when the block began, in the function that reader t reads."""
    tail: Float[Array, " size"]
    """Of writer i when the block has ended."""
    total: Float[Array, ""]
    """Of what was there when the block began, when it has ended."""


def left(
    log_decay: Array,
    starts: Array,
    mask: Array,
    *,
    previous: bool,
    strict: bool,
    own: Array | None = None,
) -> Left:
    r"""What is left of each writer of one block for each of its readers.

    $$\mathrm{within}_{ti} = \sum_{i < l ≤ t} \log α_l$$

    With `previous` reader t comes before the decay of its own token, and the sum ends at l < t.
    With `strict` a reader does not see the writer of its own token. A start is log α = −inf, and
    comes before its token does anything, so also before a `previous` reader. `own` is the log weight of
    the writer of its own token for a `previous` reader that sees it all the same.
    """
    size = log_decay.shape[0]
    decay = jnp.where(starts, -jnp.inf, log_decay)
    reader, writer = jnp.arange(size)[:, None], jnp.arange(size)[None, :]
    sums = jnp.cumsum(jnp.where(reader > writer, decay[:, None], 0), axis=0)
    row = jnp.cumsum(decay)
    tail, total = jnp.where(mask, sums[-1], -jnp.inf), row[-1]
    if previous:
        first = jnp.zeros_like(sums[:1])
        sums = jnp.where(starts[:, None], -jnp.inf, jnp.concatenate([first, sums[:-1]]))
        row = jnp.where(starts, -jnp.inf, jnp.concatenate([first[:, 0], row[:-1]]))
    seen = reader > writer if strict or previous else reader >= writer
    if own is not None:
        sums, seen = jnp.where(reader == writer, own, sums), reader >= writer
    return Left(jnp.where(seen & mask[None, :], sums, -jnp.inf), row, tail, total)


def at_block_starts(initial: Array, tail: Array, total: Array) -> tuple[Array, Array]:
    """The log weight of every atom when each block begins.

    `initial` is of the stored atoms, `[n]`; `tail` and `total` are of `left`, `[blocks, size]` and
    `[blocks]`. Atoms of the run are there from the end of their block on.

    **Returns:** `[blocks, n + blocks * size]`, and the same at the end, `[n + blocks * size]`.
    """
    count, size = tail.shape
    n = initial.shape[0]

    def step(weight: Array, block: tuple[Array, Array, Array]) -> tuple[Array, Array]:
        index, tail, total = block
        after = jax.lax.dynamic_update_slice(weight + total, tail, (n + index * size,))
        return after, weight

    start = jnp.concatenate([initial, jnp.full(count * size, -jnp.inf, initial.dtype)])
    end, weights = jax.lax.scan(step, start, (jnp.arange(count), tail, total))
    return weights, end
