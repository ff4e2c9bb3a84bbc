"""What a buffer holds after many tokens at once: what one token after another would have left."""

import jax
import jax.numpy as jnp
from jaxtyping import Array

from ..state import BufferState
from ..state._buffer import Counts
from ._inputs import Inputs


def left_over(log_decay: Array | None, starts: Array | None, time: int, dtype: object) -> Array:
    """`[time + 1]`: the log weight, at the end, of what was there before each token, and of the last.

    Entry i is the sum of the log decays from token i on, −inf where a start comes at i or later.
    """
    decay = jnp.zeros(time, dtype) if log_decay is None else log_decay  # pyright: ignore[reportArgumentType]
    if starts is not None:
        decay = jnp.where(starts, -jnp.inf, decay)
    sums = jnp.flip(jnp.cumsum(jnp.flip(decay)))
    return jnp.concatenate([sums, jnp.zeros(1, sums.dtype)])


def append(
    state: BufferState,
    inputs: Inputs,
    values: Array,
    masses: Array,
    log_weight: Array,
    stored_log_weight: Array,
    *,
    sinks: int | None = None,
) -> BufferState:
    """The buffer with a sequence's atoms behind the stored ones.

    **Arguments:**

    - `values`, `masses`: the coefficients of the atoms, one a token.
    - `log_weight`, `stored_log_weight`: their log weights at the end; −inf where one is gone.
    - `sinks`: for a window, how many first atoms are pinned; the latest ones fill the other slots.
        `None` where every atom is kept.
    """
    time, slots = inputs.time, len(state.log_weight)
    active = jnp.ones(time, bool) if inputs.active is None else inputs.active
    starts = jnp.zeros(time, bool) if inputs.starts is None else inputs.starts
    dtype = state.keys.dtype
    written = active if inputs.closed is None else active & ~inputs.closed
    one = written.astype(jnp.int32)
    birth = state.counts.admitted + jnp.cumsum(one) - one
    begun = jnp.where(starts, birth, state.origin)
    origin = jnp.maximum(state.origin, jnp.max(begun, initial=0))

    def both(old: Array, new: Array) -> Array:
        return jnp.concatenate([old, new.astype(old.dtype)])

    weight = both(stored_log_weight, jnp.where(written, log_weight, -jnp.inf))
    births = both(state.birth, birth)
    there = weight > -jnp.inf
    order = jnp.where(there, births, jnp.iinfo(jnp.int32).max)
    if sinks is not None:
        pinned = there & (births - origin < sinks)
        latest = jnp.where(there & ~pinned, births, -1)
        room = slots - jnp.sum(pinned)
        rank = jnp.argsort(jnp.argsort(-latest, stable=True), stable=True)
        there = pinned | (there & (rank < room))
        weight = jnp.where(there, weight, -jnp.inf)
        order = jnp.where(there, births, jnp.iinfo(jnp.int32).max)
    chosen = jnp.argsort(order, stable=True)[:slots]
    counts = _counts(state, written, starts, slots, bounded=sinks is not None)
    return BufferState(
        keys=both(state.keys, inputs.keys)[chosen],
        values=both(state.values, values)[chosen],
        masses=None if state.masses is None else both(state.masses, masses)[chosen],
        log_weight=weight[chosen].astype(dtype),
        birth=births[chosen],
        usage=both(state.usage, jnp.ones(time, dtype))[chosen],
        count=state.count + jnp.sum(active, dtype=jnp.int32),
        origin=origin,
        began=state.began,  # asked for by budgets only, and those take token by token
        counts=counts,
    )


def _counts(
    state: BufferState, active: Array, starts: Array, slots: int, *, bounded: bool
) -> Counts:
    """The counts that the tokens would have made one by one."""
    one = active.astype(jnp.int32)
    before = jnp.cumsum(one) - one
    held = jnp.sum(state.valid, dtype=jnp.int32)
    since = jax.lax.cummax(jnp.where(starts, before, -1)) if len(before) else before
    level = jnp.where(since < 0, held + before, before - since)
    overflow = jnp.sum(active & (level >= slots), dtype=jnp.int32)
    count = jnp.sum(active, dtype=jnp.int32)
    counts = state.counts
    none = jnp.zeros_like(overflow)
    return Counts(
        attempted=counts.attempted + count,
        admitted=counts.admitted + (count if bounded else count - overflow),
        merged=counts.merged,
        evicted=counts.evicted + (overflow if bounded else none),
        dropped=counts.dropped + (none if bounded else overflow),
        guarded=counts.guarded,
    )
