"""Short causal convolutions that know about documents, padding and pieces."""

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
    y = jnp.zeros_like(x)
    for back in range(width):
        moved = whole[past - back : past - back + time]
        if starts is not None and back > 0:
            same = document[past - back : past - back + time] == document[past:]
            moved = jnp.where(same[:, None], moved, 0)
        y = y + moved * kernel[None, :, width - 1 - back].astype(x.dtype)
    rows = count + jnp.arange(past, dtype=jnp.int32)
    new_tail = whole[rows]
    if starts is not None:
        last = document[count + past - 1] if past + time else 0
        new_tail = jnp.where((document[rows] == last)[:, None], new_tail, 0)
    if order is not None and mask is not None:
        y = jnp.where(mask[:, None], y[jnp.argsort(order)], 0)
    return y, new_tail
