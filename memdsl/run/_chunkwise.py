"""The canonical recurrence of a matrix memory, a chunk of tokens at a time.

    S_t = diag(exp log_decay_t) S_{t-1} + b_t (a_t . S_{t-1}) + κ_t ν_t^T

With S the state before a chunk and γ the log-decay cumulated in it, what the rank-one terms recall,
w_t = a_t . S_{t-1}, solves a unit lower triangular system, and everything else is a matrix product:

    (I - A) w = M ν + (a exp γ⁻) S        A_ij = a_i . (exp(γ⁻_i - γ_j) b_j),   j < i
                                          M_ij = a_i . (exp(γ⁻_i - γ_j) κ_j),   j < i
    o  = (q exp γ) S + Q ν + R w          Q, R as M, A with q_i, exp(γ_i - γ_j),   j <= i
    S' = exp(γ_C) S + (κ exp(γ_C - γ))^T ν + (b exp(γ_C - γ))^T w

where γ⁻ leaves token i itself out. With b = κ the two unknown columns are one, u = ν + w, and the
system is (I - A) u = ν + (a exp γ⁻) S. Since T = (I - A)^{-1} does not know S, all of this but one
small product a chunk is done for many chunks at once.
"""

import functools
from typing import Any, cast

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ._chunk_block import run_block, Sizes, Tokens


def canonical_chunkwise(
    queries: Float[Array, "time key"] | None,
    keys: Float[Array, "time key"],
    values: Float[Array, "time value"],
    initial: Float[Array, "key value"],
    *,
    log_decay: Float[Array, " time"] | Float[Array, "time key"] | None = None,
    erase: Float[Array, "time key"] | None = None,
    remove: Float[Array, "time key"] | None = None,
    starts: Bool[Array, " time"] | None = None,
    read_before: bool = False,
    chunk: int = 32,
    block: int = 128,
    precision: jax.lax.PrecisionLike = jax.lax.Precision.HIGHEST,
) -> tuple[Float[Array, "time value"] | None, Float[Array, "key value"]]:
    r"""Runs the recurrence of nearly every published matrix memory, in chunks.

    $$S_t = \mathrm{diag}(e^{g_t}) S_{t-1} + b_t (a_t^\top S_{t-1}) + κ_t ν_t^\top, \qquad
      o_t = S_t^\top q_t$$

    The rank-one term reads the state before its decay. There is no scale: scale the queries. The
    gradient has its own rule: it keeps the inputs and one state a block, and does the rest again,
    block by block. Only reverse-mode differentiation is defined, to any order.

    **Arguments:**

    - `queries`: q; without them nothing is read.
    - `keys`, `values`: κ and ν, what is written. κ = a = b = 0 with g = 0 leaves the state alone,
      provided that ν is finite.
    - `initial`: $S_0$.
    - `log_decay`: g <= 0, one a token or one a token and key channel; −inf forgets everything.
    - `erase`: a. Without it there is no rank-one term.
    - `remove`: b. Without it (or the very array `keys`) it is κ, which costs half as much: a
      b = s κ is better given as `erase` = s a.
    - `starts`: the state is cleared before these tokens. Nothing crosses: no NaN or infinity of an
      input, and a gradient of exactly 0.
    - `read_before`: answers $S_{t-1}^\top q_t$, after the clearing but before the decay of token t.
    - `chunk`: tokens a chunk, a power of two.
    - `block`: tokens handled at once, which bounds the memory in use. More may be faster on a GPU.
    - `precision`: of matrix products, where the hardware has a choice.

    **Returns:** answers `[time, value]` (or `None`) and the last state; in float32, or float64 if
    an input is.

    **Raises:** `ValueError` if the chunk is no power of two, if `remove` comes without `erase`, or
    if a shape is not as above.

    ```python
    >>> import jax.numpy as jnp
    >>> from memdsl.run._chunkwise import canonical_chunkwise
    >>> keys = jnp.array([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
    >>> values = jnp.array([[1.0], [2.0], [3.0]])
    >>> outputs, state = canonical_chunkwise(keys, keys, values, jnp.zeros((2, 1)))
    >>> print(outputs[:, 0], state[:, 0])
    [1. 2. 4.] [4. 2.]
    >>> outputs, state = canonical_chunkwise(keys, keys, values, jnp.zeros((2, 1)), erase=-keys)
    >>> print(outputs[:, 0], state[:, 0])
    [1. 2. 3.] [3. 2.]

    ```

    **Source:** Yang et al., 2406.06484 and 2412.06464, and Kimi Linear, 2510.26692, for the forms;
    ours are the ladder of decays, the clearing by decays of exactly 0 and the gradient.
    """
    tokens = Tokens(queries, keys, values, log_decay, erase, remove, starts)
    tokens = _checked(tokens, initial, chunk, block)
    dtype = _accumulator(*[x for x in (*tokens[:-1], initial) if x is not None])
    initial = initial.astype(dtype)
    time = keys.shape[0]
    if time == 0:
        return (None if queries is None else jnp.zeros((0, values.shape[1]), dtype)), initial
    sizes = _sizes(time, chunk, block, read_before, precision)
    if starts is None:
        return cast(tuple, _run(sizes, initial, tokens))
    lost, lost_at_end = _lost(tokens, initial, read_before)
    out, final = cast(tuple, _run(sizes, _finite(initial), tokens))
    out = None if out is None else jnp.where(lost, jnp.nan, out)
    return out, jnp.where(lost_at_end[None], jnp.nan, final)


def _checked(tokens: Tokens, initial: Array, chunk: int, block: int) -> Tokens:
    time, key = tokens.keys.shape
    if chunk < 1 or chunk & (chunk - 1):
        raise ValueError(f"`chunk` must be a power of two, and is {chunk}.")
    if block < 1:
        raise ValueError(f"`block` must be at least 1, and is {block}.")
    if tokens.erase is None and tokens.remove is not None:
        raise ValueError("`remove` needs `erase`: a rank-one term is remove (erase . S).")
    shapes = {
        "queries": (tokens.queries, [(time, key)]),
        "values": (tokens.values, [(time, initial.shape[1])]),
        "initial": (initial, [(key, tokens.values.shape[1])]),
        "log_decay": (tokens.log_decay, [(time,), (time, key)]),
        "erase": (tokens.erase, [(time, key)]),
        "remove": (tokens.remove, [(time, key)]),
        "starts": (tokens.starts, [(time,)]),
    }
    for name, (array, allowed) in shapes.items():
        if array is not None and array.shape not in allowed:
            expected = " or ".join(map(str, allowed))
            raise ValueError(f"`{name}` has shape {array.shape}, and must have {expected}.")
    return tokens._replace(remove=None) if tokens.remove is tokens.keys else tokens


def _accumulator(*arrays: Array) -> Any:
    wide = any(array.dtype == jnp.float64 for array in arrays)
    return jnp.dtype(jnp.float64 if wide else jnp.float32)


def _sizes(
    time: int, chunk: int, block: int, read_before: bool, precision: jax.lax.PrecisionLike
) -> Sizes:
    """No larger than the sequence, and blocks of one length with little padding."""
    while chunk // 2 >= time:
        chunk //= 2
    chunks = -(-time // chunk)
    blocks = -(-chunks // max(1, block // chunk))
    return Sizes(chunk, chunk * -(-chunks // blocks), read_before, precision)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _run(sizes: Sizes, initial: Array, tokens: Tokens) -> tuple[Array | None, Array]:
    """The run over one sequence of at least one token."""
    return _forward(sizes, initial, tokens)[0]


def _forward(sizes: Sizes, initial: Array, tokens: Tokens) -> tuple[Any, Any]:
    def step(state: Array, block: Tokens) -> tuple[Array, Any]:
        out, after = run_block(sizes, state, block)
        return after, (out, state)

    final, (out, states) = jax.lax.scan(step, initial, _in_blocks(tokens, sizes))
    return (_joined(out, tokens), final), (tokens, states)


def _backward(sizes: Sizes, residuals: Any, cotangents: Any) -> tuple[Array, Tokens]:
    """Every block again, from the state it began with, and its derivative."""
    tokens, states = residuals
    out, final = cotangents

    def step(after: Array, saved: Any) -> tuple[Array, Tokens]:
        state, block, out = saved
        block, starts = block._replace(starts=None), block.starts

        def again(state: Array, block: Tokens) -> tuple[Array | None, Array]:
            return run_block(sizes, state, block._replace(starts=starts))

        before, block = jax.vjp(again, state, block)[1]((out, after))
        return before, block

    saved = (states, *_in_blocks((tokens, out), sizes))
    initial, blocks = jax.lax.scan(step, final, saved, reverse=True)
    return initial, _joined(blocks, tokens)


_run.defvjp(_forward, _backward)


def _in_blocks(tree: Any, sizes: Sizes) -> Any:
    """Padded with tokens that change nothing, `[blocks, tokens a block, ...]`."""

    def one(x: Array) -> Array:
        extra = -x.shape[0] % sizes.block
        x = jnp.pad(x, [(0, extra)] + [(0, 0)] * (x.ndim - 1)) if extra else x
        return x.reshape(-1, sizes.block, *x.shape[1:])

    return jax.tree.map(one, tree)


def _joined(tree: Any, tokens: Tokens) -> Any:
    time = tokens.keys.shape[0]
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:])[:time], tree)


def _finite(x: Array) -> Array:
    return jnp.where(jnp.isfinite(x), x, 0)


def _lost(tokens: Tokens, initial: Array, read_before: bool) -> tuple[Array, Array]:
    """Which answers `[time, value]` and columns of the last state `[value]` are not finite numbers,
    because something before them in their sequence is not: columns never mix."""
    time = tokens.keys.shape[0]
    index = jnp.arange(time, dtype=jnp.int32)
    start = jax.lax.cummax(jnp.where(tokens.starts, index, -1))
    row = jnp.zeros(time, bool)
    for x in (tokens.keys, tokens.erase, tokens.remove):
        row = row if x is None else row | jnp.any(~jnp.isfinite(x), axis=1)
    if tokens.log_decay is not None:
        row = row | jnp.any(~(tokens.log_decay < jnp.inf).reshape(time, -1), axis=1)
    bad = row[:, None] | ~jnp.isfinite(tokens.values)
    first = jnp.where(jnp.any(~jnp.isfinite(initial), axis=0), -1, -2).astype(jnp.int32)
    last = jax.lax.cummax(jnp.concatenate([first[None], jnp.where(bad, index[:, None], -2)]))
    lost = (last[:-1] if read_before else last[1:]) >= start[:, None]
    if tokens.queries is not None:
        lost = lost | jnp.any(~jnp.isfinite(tokens.queries), axis=1)[:, None]
    return lost, last[-1] >= start[-1]
