"""Cholesky factors and triangular solves that many threads can ask for at once.

On a CPU, jaxlib shares out a batch of matrices among the threads of the program and lets the one that
asked wait for them. Two such calls at a time on a machine with two cores wait for each other for ever
(jaxlib 0.10.2: the gradient of a mesa layer under `vmap`). What is here asks for so few matrices at a
time that nothing is shared out.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap
from jaxtyping import Array, Float


SHARED_OUT = 200_000
"""The work, in multiplications, from which a batch is shared out."""


def _stacked(native: Callable[..., Any], work: Callable[..., int]) -> Callable[..., Any]:
    """A function of stacks of matrices that on a CPU takes a few at a time; without derivatives."""

    def few(*stacks: Array) -> Any:
        axes, flat = stacks[0].shape[:-2], [x.reshape(-1, *x.shape[-2:]) for x in stacks]
        count, size = len(flat[0]), (SHARED_OUT - 1) // max(1, work(*stacks)) or 1
        if count <= size:
            return native(*stacks)
        whole = count - count % size
        parts = [x[:whole].reshape(-1, size, *x.shape[1:]) for x in flat]
        found = jax.lax.map(lambda part: native(*part), parts)
        found = jax.tree.map(lambda x: x.reshape(whole, *x.shape[2:]), found)
        if whole < count:
            rest = native(*(x[whole:] for x in flat))
            found = jax.tree.map(lambda x, y: jnp.concatenate([x, y]), found, rest)
        return jax.tree.map(lambda x: x.reshape(*axes, *x.shape[1:]), found)

    @custom_vmap
    def every(*stacks: Array) -> Any:
        return jax.lax.platform_dependent(*stacks, cpu=few, default=native)

    @every.def_vmap
    def _(size: int, batched: list[bool], *stacks: Array) -> tuple[Any, Any]:  # pyright: ignore[reportUnusedFunction]
        pairs = zip(stacks, batched, strict=True)
        found = every(*(x if has else jnp.broadcast_to(x, (size, *x.shape)) for x, has in pairs))
        return found, jax.tree.map(lambda _: True, found)

    return every


def _solve(transposed: bool) -> Callable[[Array, Array], Array]:
    def native(lower: Array, right: Array) -> Array:
        return jax.lax.linalg.triangular_solve(
            lower, right, left_side=True, lower=True, transpose_a=transposed
        )

    return _stacked(native, lambda lower, right: lower.shape[-1] ** 2 * right.shape[-1])


_factor = _stacked(
    lambda matrix: jax.lax.linalg.cholesky(matrix, symmetrize_input=False),
    lambda matrix: matrix.shape[-1] ** 3,
)
_forwards, _backwards = _solve(False), _solve(True)
eigh = _stacked(
    lambda matrix: tuple(jnp.linalg.eigh(matrix)), lambda matrix: 30 * matrix.shape[-1] ** 3
)
"""`(values, vectors)` of symmetric matrices; without derivatives."""


@jax.custom_jvp
def _cholesky(matrix: Array) -> Array:
    return _factor(matrix)


@_cholesky.defjvp
def _(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:  # pyright: ignore[reportUnusedFunction]
    (matrix,), (change,) = primals, tangents
    lower = _cholesky(matrix)
    inner = solve_lower(lower, jnp.swapaxes(solve_lower(lower, change), -1, -2))
    shares = jnp.tril(jnp.ones_like(inner)) - 0.5 * jnp.broadcast_to(
        jnp.eye(inner.shape[-1], dtype=inner.dtype), inner.shape
    )
    return lower, lower @ (shares * inner)


def cholesky(matrix: Float[Array, "*batch n n"]) -> Float[Array, "*batch n n"]:
    """The lower Cholesky factor of symmetric matrices; NaN of one that is not positive definite."""
    return _cholesky((matrix + jnp.swapaxes(matrix, -1, -2)) / 2)


def solve_lower(
    lower: Float[Array, "*batch n n"],
    right: Float[Array, "*batch n m"],
    *,
    transposed: bool = False,
) -> Float[Array, "*batch n m"]:
    """`L^-1 B`, or `L^-T B`, of lower triangles."""
    lower = jnp.tril(lower)
    one, other = (_backwards, _forwards) if transposed else (_forwards, _backwards)
    left = jnp.swapaxes(lower, -1, -2) if transposed else lower
    return jax.lax.custom_linear_solve(
        lambda x: left @ x, right, lambda _, b: one(lower, b), lambda _, b: other(lower, b)
    )


def solve_by(
    lower: Float[Array, "*batch n n"], right: Float[Array, "*batch n m"]
) -> Float[Array, "*batch n m"]:
    """`(L L^T)^-1 B`."""
    return solve_lower(lower, solve_lower(lower, right), transposed=True)


def solve_positive(
    matrix: Float[Array, "*batch n n"], right: Float[Array, "*batch n m"]
) -> Float[Array, "*batch n m"]:
    """`A^-1 B` of symmetric positive definite matrices; a gradient uses the factors again."""
    lower = cholesky(jax.lax.stop_gradient(matrix))
    return jax.lax.custom_linear_solve(
        lambda x: matrix @ x, right, lambda _, b: solve_by(lower, b), symmetric=True
    )
