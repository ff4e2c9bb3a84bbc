"""Kernel ridge regression on every prefix of a sequence, from one Cholesky factor."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .._linalg import cholesky, solve_lower
from ._atoms import keep, Pairs, spoil, spoilt, tokens


def all_prefix_ridge(
    pairs: Pairs,
    keys: Float[Array, "time key"],
    values: Float[Array, "time value"],
    queries: Float[Array, "time key"],
    *,
    strength: Float[Array, " time"] | Float[Array, ""] | float,
    importance: Float[Array, " time"] | None = None,
    log_decay: Float[Array, " time"] | None = None,
    starts: Bool[Array, " time"] | None = None,
    mask: Bool[Array, " time"] | None = None,
    read_before: bool = False,
) -> Float[Array, "time value"]:
    r"""Answers every query with the ridge regression on the pairs up to its token.

    $$f_t = \arg\min_f \sum_{i ≤ t} ζ_i e^{b_t - b_i} |f(k_i) - v_i|^2 + λ e^{b_t} \|f\|^2,
      \qquad o_t = f_t(q_t)$$

    with b the sum of the log decays. With $D = \mathrm{diag}(λ e^{b} / ζ)$ and $K + D = L L^\top$
    the leading blocks of L are the factors of all prefixes, so that

    $$O = \mathrm{tril}((L^{-1} Φ)^\top)\, L^{-1} V, \qquad Φ_{it} = κ(k_i, q_t).$$

    The ridge is forgotten with the pairs. One that is not has no such form: see `mesa_chunkwise`.

    **Arguments:**

    - `pairs`: a positive semidefinite kernel, `(keys [n, key], queries [m, key]) -> [n, m]`. It may
        close over parameters; gradients reach them.
    - `keys`, `values`, `queries`: the sequence.
    - `strength`: λ > 0, one for all or one a pair.
    - `importance`: ζ ≥ 0, ones if not given. A pair of importance 0 is not there.
    - `log_decay`: log α ≤ 0, finite.
    - `starts`: where a new sequence begins, and the regression with it.
    - `mask`: false where a token changes nothing, whatever it holds. Its query is answered.
    - `read_before`: answers from the pairs before the token.

    **Returns:** answers `[time, value]` in float32, or float64 if an input is.

    **Raises:** at run time, if a decay has made the ridge smaller than the numbers can say.

    ```python
    >>> import jax.numpy as jnp
    >>> from memdsl.run._allprefix import all_prefix_ridge
    >>> dot = lambda k, q: k @ q.T
    >>> keys, values = jnp.ones((3, 1)), jnp.array([[2.0], [2.0], [2.0]])
    >>> print(all_prefix_ridge(dot, keys, values, keys, strength=1.0)[:, 0].round(4))
    [1.     1.3333 1.5   ]

    ```

    **Source:** ours; for the linear kernel without decays it is the mesa layer (von Oswald et al.,
    2309.05858). A prefix is the posterior mean of a Gaussian process with noise D.
    """
    length = keys.shape[0]
    given = jnp.broadcast_to(jnp.asarray(strength), (length,))
    importance = jnp.ones_like(given) if importance is None else importance
    run = tokens(keys, values, queries, log_decay, starts, mask, (given, importance))
    dtype = run.keys.dtype
    if length == 0:
        return jnp.zeros(values.shape, dtype)
    ridge, weight = given.astype(dtype), importance.astype(dtype)
    there = run.mask & ~run.sick & (weight > 0)
    ridge = jnp.where(there, ridge, 1) / jnp.where(there, weight, 1)
    if log_decay is not None:
        since = jnp.where(there, _since_start(run.log_decay, run.starts), 0)
        ridge = ridge * jnp.exp(since)
        smallest = jnp.finfo(dtype).tiny
        ridge = eqx.error_if(
            ridge,
            jnp.any(ridge < smallest),
            "The decay has made the ridge smaller than the smallest number: use starts, a weaker "
            "decay, or a ridge that is not forgotten.",
        )
    segment = jnp.cumsum(run.starts)
    together = segment[:, None] == segment[None, :]
    gram = jnp.where(together & there[:, None] & there[None, :], pairs(run.keys, run.keys), 0)
    cross = jnp.where(together & there[:, None], pairs(run.keys, run.queries), 0)
    factor = cholesky(gram + jnp.diag(ridge))
    right = jnp.concatenate([keep(there, run.values), cross], axis=1)
    solved = solve_lower(factor, right)
    width = values.shape[1]
    outputs = jnp.tril(solved[:, width:].T, -1 if read_before else 0) @ solved[:, :width]
    return spoil(spoilt(run, jnp.asarray(False), read_before) | run.unclear, outputs)


def _since_start(log_decay: Array, starts: Array) -> Array:
    """The sum of the log decays since the sequence of each token began, its own among them."""
    time = jnp.arange(len(starts))
    first = jax.lax.cummax(jnp.where(starts, time, 0))
    among = (time[None, :] >= first[:, None]) & (time[None, :] <= time[:, None])
    return jnp.sum(jnp.where(among, log_decay[None, :], 0), axis=1)
