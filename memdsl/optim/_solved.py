"""The mesa optimiser: the ridge problem of all pairs so far, solved at every training step."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from .._linalg import cholesky, solve_lower
from ..run._mesa import conjugate_gradients
from ..spec._memory import Memory
from ..spec._write import AbstractSolver, ConjugateGradient
from ._cholesky import by_factor, factor
from ._gram import Gram
from ._step import (
    AbstractStep,
    diagonal,
    Kept,
    Now,
    over_stack,
    shifted,
    solved,
)


@dataclasses.dataclass(frozen=True)
class Solved(AbstractStep):
    r"""`Ridge`, whose minimiser moves by a gradient step divided by a Gram matrix.

    $$R \leftarrow \gamma R + \bar S, \qquad W \leftarrow W - (\eta G + [\text{pull}] W)\, H^{-1},
      \qquad H = R + \lambda I$$
    """

    ridge: str
    average: bool
    target: bool
    refresh: int
    recursive: bool
    solver: AbstractSolver

    def needs_grams(self) -> bool:
        return True

    def needs_matrices(self) -> bool:
        return True

    def begin(self, memory: Memory, weight: Array, table: bool) -> Kept:
        write: Any = memory.write
        strength = jnp.asarray(write.strength, weight.dtype)
        stack, size = weight.shape[:-2], weight.shape[-1]
        eye = jnp.broadcast_to(jnp.eye(size, dtype=weight.dtype), (*stack, size, size))
        kept: Kept = {}
        if self.recursive and not table:
            kept["inverse"] = eye / strength
        else:
            kept["gram"] = jnp.zeros((*stack, size) if table else eye.shape, weight.dtype)
        if self.refresh > 1 and not table:
            kept["factor"] = eye
        if not self.target:
            kept["moment"] = jnp.zeros_like(weight) if self.average else strength * weight
        return kept

    def step(
        self, now: Now, kept: Kept, weight: Array, gradient: Array, gram: Gram | None
    ) -> tuple[Array, Kept]:
        assert gram is not None
        share, after = jnp.asarray(now.write.rate, weight.dtype), {}
        fade = jnp.asarray(now.fade, weight.dtype)
        moved = jnp.asarray(now.rate * share, weight.dtype) * gradient
        if self.target:
            right = moved + self._pull(now, now.write.strength, fade, share, weight)
        else:
            after["moment"] = fade * kept["moment"] - moved
            right = -after["moment"]
        if "inverse" in kept:
            after["inverse"] = woodbury(kept["inverse"], fade, share, gram)
            change = jnp.matmul(right, after["inverse"], precision=jax.lax.Precision.HIGHEST)
        else:
            after["gram"] = fade * kept["gram"] + share * gram.mean
            change = self._divided(now, kept, after, right)
        return -change if self.target else -change - weight, after

    def _pull(self, now: Now, strength: Any, fade: Array, share: Array, weight: Array) -> Array:
        """What a ridge that does not fade takes from the weights, as the pairs that made them fade."""
        if self.ridge != "constant":
            return jnp.zeros_like(weight)
        part = share if self.average else 1 - fade
        return part * jnp.asarray(strength, weight.dtype) * weight

    def _divided(self, now: Now, kept: Kept, after: Kept, right: Array) -> Array:
        """`right H^-1`; notes the factor of H in `after` if it is kept."""
        matrix = self._matrix(now, after["gram"], right)
        if matrix.ndim < right.ndim:
            return solved(right, matrix)
        if isinstance(self.solver, ConjugateGradient):
            return over_stack(lambda n, h: _iterated(n, h, self.solver), right, matrix)
        if "factor" not in kept:
            return solved(right, matrix)
        turn = now.count % self.refresh == 0
        after["factor"] = jax.lax.cond(
            turn, lambda old, matrix: factor(matrix), lambda old, _: old, kept["factor"], matrix
        )
        return by_factor(right, after["factor"])

    def _matrix(self, now: Now, gram: Array, right: Array) -> Array:
        """H, with a ridge that rounding cannot make vanish."""
        seen, left = now.seen.astype(gram.dtype), now.left.astype(gram.dtype)
        strength = jnp.asarray(now.write.strength, gram.dtype)
        centred = self.ridge in ("centred", "relative")
        gram = gram / seen if self.average and centred else gram
        values = diagonal(gram) if gram.ndim == right.ndim else gram
        ridge = jnp.broadcast_to(strength, values.shape[:-1])
        if self.ridge == "relative":
            ridge = ridge * jnp.mean(values, axis=-1)
        elif self.ridge == "fading":
            ridge = ridge * left
        elif self.average and not centred:
            ridge = ridge * seen
        least = jnp.finfo(gram.dtype).eps * jnp.sum(values, axis=-1)
        return shifted(gram, jnp.maximum(ridge, least), right)


def _iterated(right: Array, matrix: Array, solver: Any) -> Array:
    """By conjugate gradients, every row by itself."""
    values = jnp.diag(matrix)
    inverse = 1 / jnp.where(values > 0, values, 1)
    return conjugate_gradients(
        lambda x: jnp.matmul(x, matrix, precision=jax.lax.Precision.HIGHEST),
        right,
        jnp.broadcast_to(inverse, right.shape),
        solver.steps,
        solver.tolerance,
        0.0,
    )


def woodbury(inverse: Array, fade: Array, share: Array, gram: Gram) -> Array:
    r"""The inverse of $\gamma H + \frac1N X^\top X$, given that of H and the rows of X.

    An input that has been 0 for so long that no single number holds its inverse beside that of the
    others fades no further.
    """
    assert gram.rows is not None
    highest = jax.lax.Precision.HIGHEST
    inverse = inverse / fade
    values = diagonal(inverse)
    limit = 1 / (jnp.finfo(inverse.dtype).eps * inverse.shape[-1])
    most = limit * jnp.min(values, axis=-1, keepdims=True)
    shrink = jnp.sqrt(jnp.minimum(1, most / values))
    inverse = shrink[..., :, None] * inverse * shrink[..., None, :]
    count = jnp.maximum(gram.count, 1)[..., None, None]
    rows = jnp.sqrt(share / count) * gram.rows
    seen = jnp.matmul(rows, inverse, precision=highest)
    inner = jnp.einsum("...ri,...si->...rs", seen, rows, precision=highest)
    eye = jnp.broadcast_to(jnp.eye(inner.shape[-1], dtype=inner.dtype), inner.shape)
    half = solve_lower(cholesky(inner + eye), seen)
    new = inverse - jnp.einsum("...ri,...rj->...ij", half, half, precision=highest)
    return (new + jnp.swapaxes(new, -1, -2)) / 2
