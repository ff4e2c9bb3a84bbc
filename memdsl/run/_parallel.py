"""Reads of everything before: for additive memories, whose atoms are the pairs themselves."""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ._atoms import (
    at_block_starts,
    Atoms,
    atoms,
    in_blocks,
    keep,
    Known,
    Left,
    left,
    Pairs,
    spoil,
    spoilt,
    Tokens,
    tokens,
)
from ._reads import answers, flat, over_blocks, stored_answers


def kernel_parallel(
    pairs: Pairs,
    keys: Float[Array, "time key"],
    values: Float[Array, "time value"],
    queries: Float[Array, "time key"],
    *,
    log_decay: Float[Array, " time"] | None = None,
    stored: Atoms | tuple[Array, Array, Array] | None = None,
    starts: Bool[Array, " time"] | None = None,
    mask: Bool[Array, " time"] | None = None,
    read_before: bool = False,
    chunk: int = 128,
) -> Float[Array, "time value"]:
    r"""Answers every query from all pairs up to its token, by sums.

    $$o_t = \sum_{i ≤ t} α_{i+1} ⋯ α_t\, κ(k_i, q_t)\, v_i$$

    **Arguments:**

    - `pairs`: the kernel, `(keys [n, key], queries [m, key]) -> [n, m]`. It may close over
        parameters; gradients reach them.
    - `keys`, `values`, `queries`: the sequence. Rates are multiplied into the values already.
    - `log_decay`: log α ≤ 0, and −inf forgets everything. Nothing is forgotten without it.
    - `stored`: keys, coefficients and log weights of the atoms from before the run.
    - `starts`: where a new sequence begins; everything from before it is gone.
    - `mask`: false where a token changes nothing, whatever it holds. Its query is answered.
    - `read_before`: answers before the token decays or writes anything.
    - `chunk`: queries that are answered at once; memory is `chunk` times `time`.

    **Returns:** answers `[time, value]` in float32, or float64 if an input is.

    **Raises:** nothing.

    ```python
    >>> import jax.numpy as jnp
    >>> from memdsl.run._parallel import kernel_parallel
    >>> dot = lambda k, q: k @ q.T
    >>> keys, values = jnp.array([[1.0], [2.0]]), jnp.array([[3.0], [4.0]])
    >>> print(kernel_parallel(dot, keys, values, keys))
    [[ 3.]
     [22.]]

    ```

    **Source:** linear attention in its quadratic form (Katharopoulos et al., 2006.16236), for any
    kernel and with the decays of RetNet (Sun et al., 2307.08621).
    """
    sequence = tokens(keys, values, queries, log_decay, starts, mask)
    old = atoms(stored, keys.shape[1], values.shape[1], sequence.keys.dtype)
    old, run, met, weights = _prepare(sequence, old, read_before, chunk)
    n = old.log_weight.shape[0]
    outputs = stored_answers(pairs, old, run.queries, met.row, weights[:, :n])
    outputs += answers(pairs, run.keys, run.values, run.queries, met, weights[:, n:])
    unknown = spoilt(sequence, jnp.any(old.sick), read_before) | sequence.unclear
    return spoil(unknown, flat(outputs)[: keys.shape[0]])


def softmax_parallel(
    log_pairs: Pairs,
    keys: Float[Array, "time key"],
    values: Float[Array, "time value"],
    queries: Float[Array, "time key"],
    *,
    masses: Float[Array, " time"] | None = None,
    log_prior: Float[Array, ""] | float | None = None,
    log_own: Float[Array, ""] | None = None,
    log_decay: Float[Array, " time"] | None = None,
    stored: Atoms | tuple[Array, Array, Array] | None = None,
    starts: Bool[Array, " time"] | None = None,
    mask: Bool[Array, " time"] | None = None,
    read_before: bool = False,
    chunk: int = 128,
) -> Float[Array, "time value"]:
    r"""Answers every query with the weighted mean of all pairs up to its token.

    $$o_t = \frac{\sum_{i ≤ t} w_{ti} v_i}{e^{p} + \sum_{i ≤ t} w_{ti} m_i},
      \qquad \log w_{ti} = \log κ(k_i, q_t) + \log α_{i+1} + ⋯ + \log α_t$$

    Only differences from the largest log weight are exponentiated, so a kernel may be as large or
    as small as its logarithm can say. Where there is nothing to take the mean of, the answer is 0.

    **Arguments:**

    - `log_pairs`: the logarithm of the kernel, `(keys [n, key], queries [m, key]) -> [n, m]`.
    - `keys`, `values`, `queries`: the sequence.
    - `masses`: m, of either sign; ones if not given.
    - `log_prior`: p, a mass of value 0 that is always there.
    - `log_own`: of a read before the write, the log weight of the token's own pair, which enters all
        the same.
    - `log_decay`, `starts`, `mask`, `read_before`, `chunk`: as in `kernel_parallel`.
    - `stored`: keys, values, log weights and, if they are not ones, masses of the atoms from before
        the run.

    **Returns:** answers `[time, value]` in float32, or float64 if an input is.

    **Raises:** nothing.

    ```python
    >>> import jax.numpy as jnp
    >>> from memdsl.run._parallel import softmax_parallel
    >>> dot = lambda k, q: k @ q.T
    >>> keys, values = jnp.array([[1000.0], [1000.0]]), jnp.array([[3.0], [5.0]])
    >>> print(softmax_parallel(dot, keys, values, keys))
    [[3.]
     [4.]]

    ```

    **Source:** softmax attention (Vaswani et al., 1706.03762) is κ = exp(scale k·q); with decays it
    is forgetting attention (Lin et al., 2503.02130), with a prior an attention sink.
    """

    def answer(keys: Array, coefficients: Array, query: Array, logs: Array) -> Array:
        return mean(log_pairs, keys, coefficients, query, logs, log_prior)

    return whole_parallel(
        answer,
        keys,
        with_mass(values, masses),
        queries,
        massed=True,
        log_own=log_own,
        log_decay=log_decay,
        stored=stored,
        starts=starts,
        mask=mask,
        read_before=read_before,
        chunk=chunk,
    )


Answer: TypeAlias = Callable[[Array, Array, Array, Array], Array]
"""`(keys [n, key], coefficients [n, value], queries [m, key], log weights [m, n]) -> [m, answer]`: what
readers are answered from all atoms; where a log weight is −inf, there is none."""


def whole_parallel(
    answer: Answer,
    keys: Float[Array, "time key"],
    coefficients: Float[Array, "time value"],
    queries: Float[Array, "time key"],
    *,
    massed: bool = False,
    log_own: Float[Array, ""] | None = None,
    log_decay: Float[Array, " time"] | None = None,
    stored: Atoms | tuple[Array, Array, Array] | None = None,
    starts: Bool[Array, " time"] | None = None,
    mask: Bool[Array, " time"] | None = None,
    read_before: bool = False,
    chunk: int = 128,
) -> Float[Array, "time answer"]:
    """Any answer to every query from all pairs up to its token and their log weights, in blocks.

    The arguments are those of `softmax_parallel`; with `massed` the masses are the last column of the
    `coefficients`.
    """
    sequence = tokens(keys, coefficients, queries, log_decay, starts, mask)
    size = coefficients.shape[1] - massed
    old = atoms(stored, keys.shape[1], size, sequence.keys.dtype)
    old, run, met, weights = _prepare(sequence, old, read_before, chunk, log_own)
    key = jnp.concatenate([old.keys, flat(run.keys)])
    before = with_mass(old.coefficients, old.masses) if massed else old.coefficients
    coefficient = jnp.concatenate([before, flat(run.values)])
    place = old.log_weight.shape[0] + jnp.arange(run.keys.shape[0]) * run.keys.shape[1]

    def one(block: tuple[Array, Array, Left, Array]) -> Array:
        place, query, met, weight = block
        logs = met.row[:, None] + weight[None, :]
        logs = jax.lax.dynamic_update_slice(logs, met.within, (0, place))
        return answer(key, coefficient, query, logs)

    outputs = over_blocks(one, (place, run.queries, met, weights))
    unknown = spoilt(sequence, jnp.any(old.sick), read_before) | sequence.unclear
    unknown = unknown if log_own is None else unknown | sequence.sick
    return spoil(unknown, flat(outputs)[: keys.shape[0]])


class _Prepared(NamedTuple):
    """The atoms from before, the sequence in blocks, and what is left of both for its readers."""

    old: Known
    run: Tokens
    met: Left
    weights: Float[Array, "blocks atoms"]


def _prepare(
    sequence: Tokens, old: Known, read_before: bool, chunk: int, own: Array | None = None
) -> _Prepared:
    run = in_blocks(sequence, max(1, min(chunk, sequence.keys.shape[0])))
    decays = run.log_decay, run.starts, run.mask
    met = jax.vmap(lambda *d: left(*d, previous=read_before, strict=False, own=own))(*decays)
    weights, _ = at_block_starts(old.log_weight, met.tail, met.total)
    return _Prepared(old, run, met, weights)


def with_mass(values: Array, masses: Array | None) -> Array:
    """Values with their masses as one more channel."""
    if masses is None:
        masses = jnp.ones(values.shape[0], values.dtype)
    return jnp.concatenate([values, masses.astype(values.dtype)[:, None]], axis=1)


def total(pairs: Pairs, keys: Array, coefficients: Array, query: Array, logs: Array) -> Array:
    """`Σ_i e^{logs} κ(k_i, q) c_i`, where −inf is not there at all: `[readers, value]`."""
    there = logs > -jnp.inf
    kernel = pairs(keep(jnp.any(there, axis=0), keys), query).T * jnp.exp(logs)
    return jnp.where(there, kernel, 0) @ coefficients


def mean(
    log_pairs: Pairs,
    keys: Array,
    coefficients: Array,
    query: Array,
    logs: Array,
    log_prior: Array | float | None,
) -> Array:
    """The same divided by its last channel, the mass, and by the prior's: `[readers, value]`."""
    there = logs > -jnp.inf
    log_kernel = log_pairs(keep(jnp.any(there, axis=0), keys), query).T
    logs = jnp.where(there, logs + log_kernel, -jnp.inf)
    prior = jnp.asarray(-jnp.inf if log_prior is None else log_prior, logs.dtype)
    top = jnp.maximum(jnp.max(logs, axis=1, initial=-jnp.inf), prior)
    top = jax.lax.stop_gradient(jnp.where(jnp.isfinite(top), top, 0))
    sums = jnp.exp(logs - top[:, None]) @ coefficients
    mass = sums[:, -1:] + jnp.exp(prior - top)[:, None]
    return jnp.where(mass != 0, sums[:, :-1] / jnp.where(mass != 0, mass, 1), 0)
