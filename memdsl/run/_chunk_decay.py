"""Products of decays between the tokens of a chunk: none, one a token, or one a token and channel.

With γ the cumulated log-decay, all that the chunk form asks for are the matrices
`sum_n rows[i, n] columns[j, n] exp(γ_in - γ_jn)` for j <= i, and the decays to a token from the
chunk's start and from a token to the chunk's end. Every exponent here is a sum over the tokens in
between, a product with a matrix of zeros and ones, never a difference of cumulated sums: it is at
most 0, and a -1e-9 next to a -100 keeps its digits. A log-decay of `FLOOR` is a decay of exactly 0,
in value and in gradient: so is a state cleared, without the logarithm of 0.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float


# Finite, so that it may be multiplied by 0; a chunk's sum of it is finite in float32.
FLOOR = -1e30

Rows = Float[Array, "chunks chunk key"]
Weights = Float[Array, "chunks chunk #key"]
Squares = Float[Array, "chunks chunk chunk"]


class Decays(NamedTuple):
    """The decays of a batch of chunks."""

    pairs: Callable[[Rows, Rows], Squares]  # the matrices above, lower triangular
    to_token: Weights  # exp(γ_i): from before the chunk's first token, token i included
    to_end: Weights  # exp(γ_C - γ_j): after token j


def chunk_decays(
    log_decay: Float[Array, "chunks chunk #key"] | None,
    like: Rows,
    precision: jax.lax.PrecisionLike,
) -> Decays:
    """The decays of chunks whose keys are `like`; with one column they are factored out."""
    if log_decay is None:
        return _no_decay(like, precision)
    if log_decay.shape[-1] == 1:
        return _scalar(log_decay, precision)
    return _by_channel(log_decay, precision)


def _no_decay(like: Rows, precision: jax.lax.PrecisionLike) -> Decays:
    chunks, chunk, _ = like.shape

    def pairs(rows: Rows, columns: Rows) -> Squares:
        return jnp.tril(_inner(rows, columns, precision))

    one = jnp.ones((chunks, chunk, 1), like.dtype)
    return Decays(pairs, one, one)


def _scalar(log_decay: Float[Array, "chunks chunk 1"], precision: jax.lax.PrecisionLike) -> Decays:
    """One factor exp(γ_i - γ_j) for all channels of a pair."""
    chunk = log_decay.shape[1]
    later = np.tril(np.ones((chunk, chunk), bool), -1)  # [l, j]: token l is after token j
    after = jnp.where(later[None], log_decay, 0)
    until = np.tril(np.ones((chunk, chunk), log_decay.dtype))  # [i, l]: l is not after i
    sums = jnp.einsum("il,nlj->nij", until, after, precision=precision)
    factor = jnp.tril(jnp.exp(sums))

    def pairs(rows: Rows, columns: Rows) -> Squares:
        return factor * _inner(rows, columns, precision)

    to_token = jnp.exp(log_decay[:, :1]) * factor[:, :, :1]
    return Decays(pairs, to_token, factor[:, -1, :, None])


def _by_channel(log_decay: Rows, precision: jax.lax.PrecisionLike) -> Decays:
    """A ladder of block sizes 1, 2, 4, …: a pair is decayed on either side of where its blocks meet.

    At size m, rows in the second half of a block of 2m tokens decay from the middle on, columns in
    the first half decay up to the middle. Both factors are at most 1, so each step is a product of
    matrices, of which the pairs that the step is for are kept.
    """
    chunk = log_decay.shape[1]

    def decay(tokens: np.ndarray) -> Array:
        tokens = tokens.astype(log_decay.dtype)
        return jnp.exp(jnp.einsum("il,nlk->nik", tokens, log_decay, precision=precision))

    steps = [(decay(tokens), keep) for tokens, keep in _ladder(chunk)]

    def pairs(rows: Rows, columns: Rows) -> Squares:
        own = jnp.sum(rows * columns, axis=-1)
        total = jnp.eye(chunk, dtype=rows.dtype)[None] * own[..., None]
        for factor, keep in steps:
            step = _inner(rows * factor, columns * factor, precision)
            total = total + jnp.where(keep[None], step, 0)
        return total

    until = np.tril(np.ones((chunk, chunk), bool))
    return Decays(pairs, decay(until), decay(~until))


def _ladder(chunk: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """For each block size: which tokens l lie between token i and the middle, and which pairs meet.

    Both are `[chunk, chunk]`. Between i in the second half and the middle lie l with middle <= l <= i;
    between i in the first half and the middle lie l with i < l < middle.
    """
    token = np.arange(chunk)
    i, other = token[:, None], token[None]
    for size in (2**power for power in range(chunk.bit_length() - 1)):
        block, second = i // (2 * size), i // size % 2 == 1
        middle = (2 * block + 1) * size
        between = np.where(second, (middle <= other) & (other <= i), (i < other) & (other < middle))
        yield between, (block == block.T) & second & ~second.T


def _inner(rows: Rows, columns: Rows, precision: jax.lax.PrecisionLike) -> Squares:
    return jnp.einsum("nik,njk->nij", rows, columns, precision=precision)
