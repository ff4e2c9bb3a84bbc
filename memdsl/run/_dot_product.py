"""Softmax attention proper, through the fused operation that JAX has for it."""

from typing import Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ._atoms import accumulator, at_block_starts, in_blocks, keep, left, spoil, Tokens, tokens
from ._banded import banded
from ._parallel import softmax_parallel
from ._reads import flat


def dot_product(
    keys: Float[Array, "time key"],
    values: Float[Array, "time value"],
    queries: Float[Array, "time key"],
    *,
    scale: Float[Array, ""] | float = 1.0,
    window: int | None = None,
    log_prior: Float[Array, ""] | float | None = None,
    log_decay: Float[Array, " time"] | None = None,
    starts: Bool[Array, " time"] | None = None,
    mask: Bool[Array, " time"] | None = None,
    implementation: Literal["xla", "cudnn"] | None = None,
) -> Float[Array, "time value"]:
    r"""Causal softmax attention, `softmax_parallel` or `banded` with κ(k, q) = exp(scale k·q).

    $$o_t = \frac{\sum_{i ≤ t} w_{ti} v_i}{e^{p} + \sum_{i ≤ t} w_{ti}},
      \qquad \log w_{ti} = \mathrm{scale}\; k_i · q_t + \log α_{i+1} + ⋯ + \log α_t$$

    This is `jax.nn.dot_product_attention`, and worth it with `implementation="cudnn"`. Otherwise it
    holds `time` squared weights, and on a CPU the blocks of `softmax_parallel` and `banded` are 2 to
    7 times as fast. Its softmax is in float32, so float64 goes to them.

    **Arguments:**

    - `keys`, `values`, `queries`: the sequence, of one dtype, half precision as well.
    - `scale`: multiplies the queries.
    - `window`: how many pairs are read, that of the token itself among them; all without it.
    - `log_prior`: p, a mass of value 0 that is always there.
    - `log_decay`: log α ≤ 0, and −inf forgets everything. Nothing is forgotten without it.
    - `starts`: where a new sequence begins; everything from before it is gone.
    - `mask`: false where a token changes nothing and takes no place in the window. Its query is
        answered.
    - `implementation`: that of `jax.nn.dot_product_attention`: `"xla"`, or `"cudnn"` on a GPU that
        has it, in half precision.

    **Returns:** answers `[time, value]` in float32, or float64 if an input is.

    **Raises:** what `jax.nn.dot_product_attention` raises about an implementation.

    ```python
    >>> import jax.numpy as jnp
    >>> from memdsl.run._dot_product import dot_product
    >>> keys, values = jnp.zeros((3, 2)), jnp.array([[1.0], [3.0], [5.0]])
    >>> print(dot_product(keys, values, keys)[:, 0])
    [1. 2. 3.]

    ```

    **Source:** Vaswani et al., 1706.03762; decays as in forgetting attention, Lin et al., 2503.02130.
    """
    dtype = accumulator(keys, values, queries)
    length = keys.shape[0]
    if dtype == jnp.float64 or length == 0:
        return _exact(keys, values, queries * scale, window, log_prior, log_decay, starts, mask)
    band = None if window is None else (window - 1, 0)
    bias = seen = unknown = None
    plain = all(given is None for given in (log_prior, log_decay, starts, mask))
    if not plain:
        sequence = tokens(keys, values, queries, log_decay, starts, mask)
        within = _log_weights(sequence)
        if window is not None:
            count = jnp.cumsum(sequence.mask)
            age = count[:, None] - count[None, :]
            within = jnp.where(age < window, within, -jnp.inf)
        unknown = sequence.unclear | jnp.any((within > -jnp.inf) & sequence.sick[None, :], axis=1)
        if log_prior is not None:
            prior = jnp.full((length, 1), log_prior, within.dtype)
            within = jnp.concatenate([within, prior], axis=1)
        seen = within > -jnp.inf
        bias = jnp.where(seen, within, 0)
        sound = sequence.mask & ~sequence.sick
        keys, values = keep(sound, keys), keep(sound, values)
        queries = keep(~sequence.unclear, queries)
    width = max(keys.shape[1], values.shape[1])
    if implementation == "cudnn" and not isinstance(scale, int | float):  # it takes only constants
        queries, scale = queries * jnp.asarray(scale, queries.dtype), 1.0
    more = 0 if log_prior is None else 1
    q, k, v = (
        jnp.pad(array, [(0, rows), (0, width - array.shape[1])])[:, None]
        for array, rows in ((queries, 0), (keys, more), (values, more))
    )
    options: dict[str, Any] = dict(
        bias=None if bias is None else bias[None],
        mask=None if seen is None else seen[None],
        scale=scale,
        is_causal=plain,
        local_window_size=band if plain else None,
        implementation=implementation,
    )
    with jax.numpy_dtype_promotion("standard"):  # it multiplies half by single precision
        out = jax.nn.dot_product_attention(q, k, v, **options)[:, 0, : values.shape[1]]
    if seen is not None and unknown is not None:
        out = spoil(unknown, keep(jnp.any(seen, axis=1), out))
    return out.astype(dtype)


def _log_weights(sequence: Tokens, size: int = 64) -> Array:
    """The log weight of every pair for every query, `[time, time]`."""
    run, length = in_blocks(sequence, size), len(sequence.mask)
    decays = run.log_decay, run.starts, run.mask
    met = jax.vmap(lambda *d: left(*d, previous=False, strict=False))(*decays)
    weights, _ = at_block_starts(jnp.zeros(0, met.row.dtype), met.tail, met.total)
    logs = met.row[:, :, None] + weights[:, None, :]
    place = jnp.arange(len(met.row)) * size
    put = jax.vmap(lambda logs, own, i: jax.lax.dynamic_update_slice(logs, own, (0, i)))
    return flat(put(logs, met.within, place))[:length, :length]


def _exact(
    keys: Array,
    values: Array,
    queries: Array,
    window: int | None,
    log_prior: Array | float | None,
    log_decay: Array | None,
    starts: Array | None,
    mask: Array | None,
) -> Array:
    """The same without the fused operation."""
    given = {"log_prior": log_prior, "log_decay": log_decay, "starts": starts, "mask": mask}

    def dot(k: Array, q: Array) -> Array:
        return k @ q.T

    if window is None:
        return softmax_parallel(dot, keys, values, queries, **given)
    return banded(dot, keys, values, queries, window=window, normalised=True, **given)
