"""Solving `(A + ridge) x = b` for symmetric positive definite matrices."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import lineax as lx
from jaxtyping import Array

from .._linalg import solve_lower, solve_positive
from ..spec._write import AbstractSolver, ConjugateGradient, GaussSeidel


def solve(matrix: Array, right: Array, solver: AbstractSolver) -> Array:
    """The solution by the solver that a spec names."""
    match solver:
        case ConjugateGradient():
            return conjugate_gradient(lambda x: matrix @ x, right, solver.steps, solver.tolerance)
        case GaussSeidel():
            return gauss_seidel(matrix, right, solver.sweeps)
        case _:
            return as_columns(solve_positive, matrix, right)


def conjugate_gradient(
    product: Callable[[Array], Array], right: Array, steps: int, tolerance: float
) -> Array:
    """By lineax's conjugate gradients; differentiated by the same solve with the cotangent.

    The rule of differentiation is `custom_linear_solve`'s: lineax's own raises where the solve of a
    cotangent reaches `steps`.
    """
    how = lx.CG(rtol=tolerance, atol=tolerance, max_steps=steps)
    shape = jax.eval_shape(lambda: right)

    def solved(product: Callable[[Array], Array], right: Array) -> Array:
        operator = lx.FunctionLinearOperator(product, shape, lx.positive_semidefinite_tag)
        return lx.linear_solve(operator, right, how, throw=False).value

    return jax.lax.custom_linear_solve(product, right, solved, symmetric=True)


def gauss_seidel(matrix: Array, right: Array, sweeps: int) -> Array:
    """By forward sweeps from zero, `(D + L) x <- b - U x`: in order, so the first sweep is causal."""
    lower, upper = jnp.tril(matrix), jnp.triu(matrix, 1)
    x = jnp.zeros_like(right)
    for _ in range(sweeps):
        x = as_columns(solve_lower, lower, right - upper @ x)
    return x


def as_columns(how: Callable[[Array, Array], Array], matrix: Array, right: Array) -> Array:
    """A solve of the columns of `right`, which may be one vector."""
    return how(matrix, right) if right.ndim > 1 else how(matrix, right[:, None])[:, 0]
