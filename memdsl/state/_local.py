"""The local linear read: how weights change where a line is fitted around the query."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._linalg import solve_positive
from ._solve import as_columns


FURTHEST = 60.0
"""How far the logarithms of the ridge and of the largest weight may be apart: beyond, the slope is 0,
or whatever the keys say."""


def tilted(
    weights: Float[Array, " atoms"],
    masses: Float[Array, " atoms"],
    keys: Float[Array, "atoms key"],
    query: Float[Array, " key"],
    ridge: Float[Array, ""],
    log_scale: Float[Array, ""] | None = None,
) -> Float[Array, " atoms"]:
    r"""Weights of a mean that is the fit of `LocalLinear` at the query.

    $$w_i \left(1 - (z_i - \bar z) \cdot (C + λ)^{-1} \sum_j w_j m_j z_j\right), \qquad
      C = \sum_i w_i m_i (z_i - \bar z)(z_i - \bar z)^T$$

    With z around its mean, C is a covariance, and nothing cancels where all keys are far from the
    query; the correction has the mean 0, so that masses stay what they are. λ is no less than what
    rounding hides of C.

    **Arguments:**

    - `weights`: up to a factor `exp(log_scale)`; 0 where there is no atom.
    - `masses`, `keys`: finite everywhere.
    - `query`: what keys are compared with.
    - `ridge`: λ.

    **Returns:** the weights, up to the same factor.
    """
    shares, z = weights * masses, keys - query[None, :]
    total = jnp.sum(shares)
    moment = shares @ z
    mean = moment / jnp.where(total == 0, 1, total)
    z = z - mean[None, :]
    covariance = (shares[:, None] * z).T @ z
    log_ridge = jnp.log(ridge) if log_scale is None else jnp.log(ridge) - log_scale
    hidden = len(query) * jnp.finfo(z.dtype).eps * jax.lax.stop_gradient(jnp.trace(covariance))
    ridge = jnp.exp(jnp.clip(log_ridge, -FURTHEST, FURTHEST)) + hidden
    matrix = covariance + ridge * jnp.eye(len(query), dtype=z.dtype)
    slope = as_columns(solve_positive, matrix, moment)
    return weights * (1 - z @ slope)
