"""The inverse of a unit lower triangular matrix, by forward substitution and in blocks."""

import functools
from typing import cast

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


_BASE = 16


def unit_lower_inverse(
    strict: Float[Array, "*batch size size"],
    precision: jax.lax.PrecisionLike = jax.lax.Precision.HIGHEST,
) -> Float[Array, "*batch size size"]:
    r"""Inverts $I - A$ for strictly lower triangular $A$, of which nothing else is read.

    Rows of diagonal blocks of 16 are found one after the other, and two neighbouring inverses
    $X, Z$ make the one twice as large:

    $$x_i = e_i + \sum_{j<i} A_{ij} x_j, \qquad
      \begin{pmatrix} I - A_{11} & \\ -A_{21} & I - A_{22} \end{pmatrix}^{-1} =
      \begin{pmatrix} X & \\ Z A_{21} X & Z \end{pmatrix}.$$

    Powers of A are never formed: those of 64 nearly equal keys reach $10^{17}$ while the inverse
    stays below 2. The gradient is $\bar A = \mathrm{stril}(T^\top \bar T\, T^\top)$, of the inverse T
    alone.

    **Arguments:**

    - `strict`: A, `[..., size, size]`; any size.
    - `precision`: of the matrix products.

    **Returns:** T, `[..., size, size]`: unit lower triangular, in the dtype of A.

    **Raises:** nothing.

    ```python
    >>> import jax.numpy as jnp
    >>> from memdsl.run._triangular import unit_lower_inverse
    >>> print(unit_lower_inverse(jnp.array([[0.0, 0.0, 0.0], [2.0, 0.0, 0.0], [0.0, 3.0, 0.0]])))
    [[1. 0. 0.]
     [2. 1. 0.]
     [6. 3. 1.]]

    ```

    **Source:** textbook block inversion.
    """
    return cast(Array, _inverse(strict, precision))


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def _inverse(strict: Array, precision: jax.lax.PrecisionLike) -> Array:
    size = strict.shape[-1]
    lower = jnp.tril(strict, -1)
    whole = _BASE
    while whole < size:
        whole *= 2
    if whole == _BASE:
        return _by_rows(lower, precision)
    extra = [(0, 0)] * (strict.ndim - 2) + [(0, whole - size)] * 2
    return _by_halves(jnp.pad(lower, extra), precision)[..., :size, :size]


def _forward(strict: Array, precision: jax.lax.PrecisionLike) -> tuple[Array, Array]:
    inverse = unit_lower_inverse(strict, precision)
    return inverse, inverse


def _backward(precision: jax.lax.PrecisionLike, inverse: Array, cotangent: Array) -> tuple[Array]:
    turned = jnp.swapaxes(inverse, -1, -2)
    product = jnp.matmul(turned, cotangent, precision=precision)
    return (jnp.tril(jnp.matmul(product, turned, precision=precision), -1),)


_inverse.defvjp(_forward, _backward)


def _by_halves(strict: Array, precision: jax.lax.PrecisionLike) -> Array:
    """Both halves of the diagonal as one batch, then the corner below."""
    half = strict.shape[-1] // 2
    if half < _BASE:
        return _by_rows(strict, precision)
    diagonal = jnp.stack([strict[..., :half, :half], strict[..., half:, half:]], axis=-3)
    inverses = _by_halves(diagonal, precision)
    first, second = inverses[..., 0, :, :], inverses[..., 1, :, :]
    corner = jnp.matmul(second, strict[..., half:, :half], precision=precision)
    corner = jnp.matmul(corner, first, precision=precision)
    above = jnp.concatenate([first, jnp.zeros_like(corner)], axis=-1)
    return jnp.concatenate([above, jnp.concatenate([corner, second], axis=-1)], axis=-2)


def _by_rows(strict: Array, precision: jax.lax.PrecisionLike) -> Array:
    """Forward substitution, a row of every matrix of the batch at a step."""
    size = strict.shape[-1]

    def row(i: Array, inverse: Array) -> Array:
        weights = jax.lax.dynamic_index_in_dim(strict, i, axis=-2)
        found = jnp.matmul(weights, inverse, precision=precision)
        found = found + jax.lax.dynamic_index_in_dim(inverse, i, axis=-2)  # the unit row e_i
        return jax.lax.dynamic_update_index_in_dim(inverse, found, i, axis=-2)

    identity = jnp.broadcast_to(jnp.eye(size, dtype=strict.dtype), strict.shape)
    return jax.lax.fori_loop(1, size, row, identity)
