"""Cholesky factors and what is solved by them, in halves, so that most of the work is matrix products.

A triangular solve of LAPACK is several times slower than a product of as many operations, and its
threads wait for each other; blocks of `_BASE` rows are left to it.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._linalg import cholesky, solve_lower


_BASE = 128


def factor(matrix: Float[Array, "*stack in in"]) -> Float[Array, "*stack in in"]:
    """The Cholesky factor of a matrix of any scale; of zeros, that of ones on the diagonal."""
    largest = jnp.max(jnp.diagonal(matrix, axis1=-2, axis2=-1), axis=-1)[..., None, None]
    scale = jnp.where(largest > 0, largest, 1)
    eye = jnp.broadcast_to(jnp.eye(matrix.shape[-1], dtype=matrix.dtype), matrix.shape)
    return jnp.sqrt(scale) * _lower(jnp.where(largest > 0, matrix / scale, eye))


def by_factor(
    right: Float[Array, "*stack out in"], lower: Float[Array, "*stack in in"]
) -> Float[Array, "*stack out in"]:
    """`right (L L^T)^-1`."""
    return _by_lower(_by_upper(right, lower), lower)


def _lower(matrix: Array) -> Array:
    """L of a matrix, of which only the lower triangle is read."""
    half = _half(matrix)
    if half is None:
        return cholesky(jnp.tril(matrix) + jnp.swapaxes(jnp.tril(matrix, -1), -1, -2))
    first = _lower(matrix[..., :half, :half])
    corner = _by_upper(matrix[..., half:, :half], first)
    last = _lower(matrix[..., half:, half:] - _product(corner, jnp.swapaxes(corner, -1, -2)))
    above = jnp.zeros_like(jnp.swapaxes(corner, -1, -2))
    rows = [jnp.concatenate(row, axis=-1) for row in ([first, above], [corner, last])]
    return jnp.concatenate(rows, axis=-2)


def _by_upper(right: Array, lower: Array) -> Array:
    """`right L^-T`."""
    half = _half(lower)
    if half is None:
        return jnp.swapaxes(solve_lower(lower, jnp.swapaxes(right, -1, -2)), -1, -2)
    corner = jnp.swapaxes(lower[..., half:, :half], -1, -2)
    first = _by_upper(right[..., :half], lower[..., :half, :half])
    rest = right[..., half:] - _product(first, corner)
    return jnp.concatenate([first, _by_upper(rest, lower[..., half:, half:])], axis=-1)


def _by_lower(right: Array, lower: Array) -> Array:
    """`right L^-1`."""
    half = _half(lower)
    if half is None:
        flipped = jnp.swapaxes(right, -1, -2)
        return jnp.swapaxes(solve_lower(lower, flipped, transposed=True), -1, -2)
    last = _by_lower(right[..., half:], lower[..., half:, half:])
    rest = right[..., :half] - _product(last, lower[..., half:, :half])
    return jnp.concatenate([_by_lower(rest, lower[..., :half, :half]), last], axis=-1)


def _half(matrix: Array) -> int | None:
    """Where a matrix is cut, at a multiple of the base; `None` of a small one."""
    blocks = -(-matrix.shape[-1] // _BASE)
    return None if blocks == 1 else blocks // 2 * _BASE


def _product(left: Array, right: Array) -> Array:
    return jnp.matmul(left, right, precision=jax.lax.Precision.HIGHEST)
