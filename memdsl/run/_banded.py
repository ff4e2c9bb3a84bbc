"""Reads of the latest few pairs and of the first few: memory is time times window."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ._atoms import Atoms, atoms, blocks, in_blocks, Known, Left, left, Pairs, spoil, Tokens, tokens
from ._parallel import Answer, mean, total, with_mass
from ._reads import flat, over_blocks


def banded(
    kernel: Pairs,
    keys: Float[Array, "time key"],
    values: Float[Array, "time value"],
    queries: Float[Array, "time key"],
    *,
    window: int,
    sinks: int = 0,
    normalised: bool = False,
    masses: Float[Array, " time"] | None = None,
    log_prior: Float[Array, ""] | float | None = None,
    log_own: Float[Array, ""] | None = None,
    log_decay: Float[Array, " time"] | None = None,
    stored: Atoms | tuple[Array, Array, Array] | None = None,
    starts: Bool[Array, " time"] | None = None,
    mask: Bool[Array, " time"] | None = None,
    read_before: bool = False,
    answered: Answer | None = None,
    chunk: int = 64,
) -> Float[Array, "time value"]:
    r"""Answers every query from the latest `window` pairs and the first `sinks` of its sequence.

    The sums, or the mean, of `kernel_parallel` and `softmax_parallel`, over fewer pairs. What is
    counted is what is written: a masked token takes no place in the window.

    **Arguments:**

    - `kernel`: the kernel `(keys [n, key], queries [m, key]) -> [n, m]`, or its logarithm if
        `normalised`.
    - `keys`, `values`, `queries`: the sequence. Rates are multiplied into the values already.
    - `window`: how many pairs are read, that of the token itself among them.
    - `sinks`: how many first pairs are read besides.
    - `normalised`: the mean instead of the sum; only then are there `masses`, `log_prior` and
        `log_own`, as in `softmax_parallel`.
    - `log_decay`, `starts`, `mask`, `read_before`: as in `kernel_parallel`.
    - `stored`: atoms from before the run, oldest first, `pinned` where an atom is a sink; no more
        than `sinks` are. They are taken to be of the sequence that the run goes on with: if fewer
        than `sinks` are pinned, the next tokens are sinks.
    - `answered`: what is answered in the place of the mean, where `normalised`.
    - `chunk`: the least number of queries that are answered at once.

    **Returns:** answers `[time, value]` in float32, or float64 if an input is.

    **Raises:** `ValueError` if the window is less than 1, or the sinks less than 0.

    ```python
    >>> import jax.numpy as jnp
    >>> from memdsl.run._banded import banded
    >>> dot = lambda k, q: k @ q.T
    >>> keys, values = jnp.ones((5, 1)), jnp.array([[1.0], [2.0], [3.0], [4.0], [5.0]])
    >>> print(banded(dot, keys, values, keys, window=2, sinks=1)[:, 0])
    [ 1.  3.  6.  8. 10.]

    ```

    **Source:** sliding windows as in Longformer (Beltagy et al., 2004.05150), sinks as in
    StreamingLLM (Xiao et al., 2309.17453); here for any kernel, with decays and resets.
    """
    if window < 1 or sinks < 0:
        raise ValueError(f"a window of {window} and {sinks} sinks is no window")
    length = keys.shape[0]
    size = max(1, min(max(window, chunk), length))
    if normalised:
        values = with_mass(values, masses)
    sequence = tokens(keys, values, queries, log_decay, starts, mask)
    old = atoms(stored, keys.shape[1], values.shape[1], sequence.keys.dtype)
    if normalised and stored is not None:
        old = old._replace(coefficients=with_mass(old.coefficients, old.masses))
    run = in_blocks(sequence, size)
    decays = run.log_decay, run.starts, run.mask
    met = jax.vmap(lambda *d: left(*d, previous=read_before, strict=False, own=log_own))(*decays)

    sinks = min(sinks, old.log_weight.shape[0] + length)
    place = _places(old, sequence, window, sinks, read_before)
    pool = _pool(old, sequence, place, window, sinks)
    each = _Places(*(blocks(array, size) for array in place))
    recent = each.own[:, :1] - window + jnp.arange(window)[None, :]
    pinned, pinned_weight = _sinks(pool, each, run.mask, met, sinks)
    pinned_weight = jnp.where(pinned < recent[:, :1], pinned_weight, -jnp.inf)
    seen = jnp.concatenate([pinned, recent], axis=1)
    weight = jnp.concatenate([pinned_weight, _recent_weight(pool, each, recent)], axis=1)

    def answer(block: tuple) -> Array:
        (key, value, sick), sink, index, query, met, end, weight = block
        logs = jnp.concatenate([met.row[:, None] + weight[None, :], met.within], axis=1)
        age = end[:, None] - 1 - index[None, :]
        logs = jnp.where((age < window) | sink[None, :], logs, -jnp.inf)
        if answered is not None:
            out = answered(key, value, query, logs)
        elif normalised:
            out = mean(kernel, key, value, query, logs, log_prior)
        else:
            out = total(kernel, key, value, query, logs)
        return spoil(jnp.any(sick[None, :] & (logs > -jnp.inf), axis=1), out)

    both = (pool.keys, run.keys), (pool.values, run.values), (pool.sick, run.sick)
    pairs = tuple(
        jnp.concatenate([jnp.take(before, seen, axis=0, mode="clip"), own], axis=1)
        for before, own in both
    )
    index = jnp.concatenate([seen, each.own], axis=1)
    sink = jnp.take(pool.sink, index, mode="clip")
    along = pairs, sink, index, run.queries, met, each.end, weight
    return spoil(sequence.unclear, flat(over_blocks(answer, along))[:length])


class _Places(NamedTuple):
    """Where things are in the pool, seen from each token."""

    own: Int[Array, " time"]
    """Where its pair is, or the next one if it writes none."""
    end: Int[Array, " time"]
    """Where the pairs end that it may read."""
    begin: Int[Array, " time"]
    """Where its sequence begins; if that is in the stored, its sinks are counted from here."""
    began: Int[Array, " time"]
    """The same of the sequence that went on until this token."""
    segment: Int[Array, " time"]
    """The number of the sequence that went on until this token."""


def _places(old: Known, sequence: Tokens, window: int, sinks: int, read_before: bool) -> _Places:
    run = window + old.log_weight.shape[0]
    one, start = sequence.mask.astype(int), sequence.starts.astype(int)
    own = run + jnp.cumsum(one) - one
    end = own if read_before else own + one
    first = run - jnp.sum(_pinned(old, sinks))
    begin = jnp.where(sequence.starts, own, first)
    begin = jax.lax.cummax(begin) if len(begin) else begin
    began = jnp.concatenate([first[None], begin])[: len(begin)]
    segment = jnp.cumsum(start) - start
    return _Places(own, end, begin, began, segment)


def _pinned(old: Known, sinks: int) -> Array:
    return old.pinned & (jnp.cumsum(old.pinned) <= sinks)


class _Pool(NamedTuple):
    """All pairs in the order they were written: a window of nothing, the stored, those of the run.

    The stored are moved to the end of their part, before free slots, and those of the run to the
    beginning of theirs, so that the latest pairs before any token lie side by side.
    """

    keys: Float[Array, "pool key"]
    values: Float[Array, "pool value"]
    log_weight: Float[Array, " pool"]
    log_decay: Float[Array, " pool"]
    segment: Int[Array, " pool"]
    sink: Bool[Array, " pool"]
    stored_sink: Bool[Array, " pool"]
    sick: Bool[Array, " pool"]


def _pool(old: Known, sequence: Tokens, place: _Places, window: int, sinks: int) -> _Pool:
    there = old.log_weight > -jnp.inf
    free_first = jnp.argsort(there, stable=True)
    masked_last = jnp.argsort(~sequence.mask, stable=True)

    def pool(stored: Array, run: Array, fill: float | bool = 0) -> Array:
        both = jnp.concatenate([stored[free_first], run[masked_last]])
        pad = [(window, 0)] + [(0, 0)] * (both.ndim - 1)
        return jnp.pad(both, pad, constant_values=fill)

    sink = place.own - place.begin < sinks
    pinned = _pinned(old, sinks)
    segment = place.segment + sequence.starts.astype(int)
    return _Pool(
        pool(old.keys, sequence.keys),
        pool(old.coefficients, sequence.values),
        pool(old.log_weight, jnp.zeros_like(sequence.log_decay), -jnp.inf),
        pool(jnp.zeros_like(old.log_weight), sequence.log_decay),
        pool(jnp.zeros(there.shape, segment.dtype), segment),
        pool(pinned, sink),
        pool(pinned, jnp.zeros_like(sink)),
        pool(old.sick, sequence.sick),
    )


def _recent_weight(pool: _Pool, place: _Places, recent: Array) -> Array:
    """The log weights, when a block begins, of the pairs in the window just before it."""
    decay = jnp.take(pool.log_decay, recent, mode="clip")
    later = jnp.concatenate([decay[:, 1:], jnp.zeros_like(decay[:, :1])], axis=1)
    later = jax.lax.cumsum(later, axis=1, reverse=True)
    gone = jnp.take(pool.segment, recent, mode="clip") != place.segment[:, :1]
    return jnp.where(gone, -jnp.inf, jnp.take(pool.log_weight, recent, mode="clip") + later)


def _sinks(pool: _Pool, place: _Places, mask: Array, met: Left, sinks: int) -> tuple[Array, Array]:
    """Where the sinks of the sequence that goes on when a block begins are, and their weights."""
    slot = jnp.arange(sinks)
    count = jnp.sum(pool.stored_sink)
    pinned = jnp.argsort(~pool.stored_sink, stable=True)[:sinks]
    old = (place.segment[:, :1] == 0) & (slot < count)[None, :]
    where = jnp.where(old, pinned[None, :], place.began[:, :1] + slot[None, :])
    written = jnp.argsort(~mask, axis=1, stable=True)
    tail = jnp.take_along_axis(met.tail, written, axis=1)

    def step(weight: Array, block: tuple) -> tuple[Array, Array]:
        first, next_first, next_where, tail, total = block
        new = jnp.take(tail, next_where - first, mode="clip")
        after = jnp.where(next_where < first, weight + total, new)
        return jnp.where(next_where < next_first, after, -jnp.inf), weight

    start = jnp.where(slot < count, jnp.take(pool.log_weight, pinned), -jnp.inf)
    first = place.own[:, 0]
    following = (jnp.concatenate([array[1:], array[-1:]]) for array in (first, where))
    return where, jax.lax.scan(step, start, (first, *following, tail, met.total))[1]
