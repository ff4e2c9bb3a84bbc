"""The shares of a softmax over time, one channel at a time, as a decay and a write."""

import jax
import jax.numpy as jnp
from jaxtyping import Array


NOTHING = -1e30
"""The logarithm of the sum of no weights: far below all others, and finite, so that gradients are 0."""


def running_shares(
    logits: Array, before: Array, starts: Array | None, active: Array | None
) -> tuple[Array, Array, Array]:
    """`(z after, log share of every token when it enters, log decay of what was there)`.

    With `z_t = log sum_{i <= t} exp(s_i)`, a channel at a time, these are `s_t - z_t` and
    `z_{t-1} - z_t`. A token that is not active weighs nothing; at a start the sum begins anew.

    Shapes: `logits` `[time, channels]`, `before` (the z so far) `[channels]`.
    """
    time = len(logits)
    begins = jnp.zeros(time, bool) if starts is None else starts
    there = jnp.ones(time, bool) if active is None else active
    begins, there = begins[:, None], there[:, None]
    own = jnp.where(there, logits, NOTHING)

    def join(left: tuple[Array, Array], right: tuple[Array, Array]) -> tuple[Array, Array]:
        (a, a_begins), (b, b_begins) = left, right
        return jnp.where(b_begins, b, jnp.logaddexp(a, b)), a_begins | b_begins

    rows = jnp.concatenate([before[None], own])
    marks = jnp.concatenate([jnp.zeros_like(begins[:1]), begins])
    sums, _ = jax.lax.associative_scan(join, (rows, jnp.broadcast_to(marks, rows.shape)))
    past, present = sums[:-1], sums[1:]
    is_first = begins | (past <= NOTHING / 2)
    log_decay = jnp.where(is_first, 0.0, jnp.where(is_first, 0.0, past) - present)
    return sums[-1], jnp.where(there, own - present, 0.0), jnp.where(there, log_decay, 0.0)
