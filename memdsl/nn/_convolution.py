"""Short causal convolutions that know about documents, padding and pieces."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


def convolve(
    x: Float[Array, "time channel"],
    kernel: Float[Array, "channel width"],
    tail: Float[Array, "past channel"],
    starts: Bool[Array, " time"] | None = None,
    mask: Bool[Array, " time"] | None = None,
) -> tuple[Float[Array, "time channel"], Float[Array, "past channel"]]:
    """A depthwise causal convolution, and the tail that the next piece needs.

    `y_t = sum_j kernel[:, width - 1 - j] * x_{t - j}`, over tokens of the same document; padding is
    left out as if it were not there.

    **Arguments:**

    - `x`: the inputs.
    - `kernel`: the taps; the last one belongs to the token itself.
    - `tail`: the last `width - 1` inputs before `x`, zeros where there are none.
    - `starts`: True at the first token of a document.
    - `mask`: False for padding.

    **Returns:** `(y, tail)`; y at padding is 0.
    """
    time, width = len(x), kernel.shape[1]
    past = width - 1
    if mask is not None:  # padding goes to the end, and comes back to its place afterwards
        order = jnp.argsort(~mask, stable=True)
        x = jnp.where(mask[:, None], x, 0)[order]
        starts = None if starts is None else starts[order]
        count = jnp.sum(mask, dtype=jnp.int32)
    else:
        order, count = None, time
    whole = jnp.concatenate([tail.astype(x.dtype), x])
    document = jnp.zeros(past + time, jnp.int32)
    if starts is not None:
        document = jnp.concatenate(
            [jnp.zeros(past, jnp.int32), jnp.cumsum(starts, dtype=jnp.int32)]
        )
    reaches = None
    if starts is not None:
        ends = jnp.arange(past, past + time)[:, None] - jnp.arange(width)[None, :]
        reaches = document[ends] == document[past:][:, None]
    y = _taps(whole, kernel.astype(x.dtype), reaches)
    rows = count + jnp.arange(past, dtype=jnp.int32)
    new_tail = whole[rows]
    if starts is not None:
        last = document[count + past - 1] if past + time else 0
        new_tail = jnp.where((document[rows] == last)[:, None], new_tail, 0)
    if order is not None and mask is not None:
        y = jnp.where(mask[:, None], y[jnp.argsort(order)], 0)
    return y, new_tail


Reaches = Bool[Array, "time width"] | None
"""How far back each token may look, where a document begins; column j is about `x_{t - j}`."""


@jax.custom_vjp
def _taps(
    whole: Float[Array, "past_and_time channel"],
    kernel: Float[Array, "channel width"],
    reaches: Reaches,
) -> Float[Array, "time channel"]:
    """`y_t = sum_j kernel[:, width - 1 - j] * whole_{t + past - j}`.

    Its derivative is written down because the compiler's own goes through four padded arrays, element
    by element: a layer's gradient takes half as long again.
    """
    width = kernel.shape[1]
    time = len(whole) - width + 1
    y = jnp.zeros((time, whole.shape[1]), whole.dtype)
    for back in range(width):
        y = y + _seen(whole[width - 1 - back :][:time], reaches, back) * kernel[:, -1 - back][None]
    return y


def _seen(rows: Array, reaches: Reaches, back: int) -> Array:
    return rows if reaches is None or back == 0 else jnp.where(reaches[:, back][:, None], rows, 0)


def _taps_forwards(whole: Array, kernel: Array, reaches: Reaches) -> tuple[Array, Any]:
    return _taps(whole, kernel, reaches), (whole, kernel, reaches)


def _taps_backwards(kept: Any, slope: Array) -> tuple[Array, Array, None]:
    whole, kernel, reaches = kept
    (time, channels), past = slope.shape, kernel.shape[1] - 1
    slope = jax.lax.optimization_barrier(slope)  # which the compiler would make anew for every tap
    around, of_kernel = jnp.zeros((past, channels), slope.dtype), []
    of_whole = jnp.zeros_like(whole)
    for back in range(past + 1):
        own = _seen(slope, reaches, back)
        padded = jax.lax.optimization_barrier(jnp.concatenate([around, own, around]))
        of_whole = of_whole + padded[back:][: past + time] * kernel[:, -1 - back][None]
        of_kernel.append(jnp.sum(whole[past - back :][:time] * own, axis=0))
    return of_whole, jnp.stack(of_kernel[::-1], axis=1), None


_taps.defvjp(_taps_forwards, _taps_backwards)
