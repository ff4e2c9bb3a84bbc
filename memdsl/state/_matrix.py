"""The function as a matrix: atoms dissolve into `S = sum_i phi(k_i) c_i^T` where phi is finite."""

from typing import Self

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from ..spec._facts import retention
from ..spec._memory import Memory
from ._base import AbstractState, Pair


class MatrixState(AbstractState):
    """`f(q) = S^T phi(q)`, and the mass `z . phi(q)` where the read divides.

    Under a retention that is a mirror, the matrix that is stored is A and `S = mirror(A)`.
    """

    matrix: Float[Array, "features value"]
    mass: Float[Array, " features"] | None
    count: Int[Array, ""]
    """How many tokens were written."""

    def decay(self, log_factor: Array) -> Self:
        factor = jnp.exp(jnp.asarray(log_factor, self.matrix.dtype))
        mass = None if self.mass is None else factor * self.mass
        return self._with(factor * self.matrix, mass)

    def decay_keys(self, log_factors: Array) -> Self:
        factors = jnp.exp(jnp.asarray(log_factors, self.matrix.dtype))
        factors = jnp.broadcast_to(factors, self.matrix.shape[:1])
        mass = None if self.mass is None else factors * self.mass
        return self._with(factors[:, None] * self.matrix, mass)

    def reflect(self, direction: Array, rate: Array) -> Self:
        mass = self.mass
        if mass is not None:
            mass = mass - rate * direction * (direction @ mass)
        found = direction @ self.matrix
        return self._with(self.matrix - rate * direction[:, None] * found[None, :], mass)

    def decay_values(self, log_factors: Array) -> Self:
        factors = jnp.exp(jnp.asarray(log_factors, self.matrix.dtype))
        factors = jnp.broadcast_to(factors, self.matrix.shape[1:])
        return self._with(self.matrix * factors[None, :], self.mass)

    def numbers(self) -> Array:
        """The coordinates of the function; parts of a whole lie side by side along the last axis."""
        return self.matrix

    def with_numbers(self, numbers: Array) -> Self:
        """The state with other coordinates."""
        return self._with(numbers, self.mass)

    def absorb(self, memory: Memory, key: Array, value: Array, mass: Array) -> Self:
        features = memory.kernel.features(key)
        matrix = self.matrix + features[:, None] * value[None, :]
        new = None if self.mass is None else self.mass + features * mass
        return self._with(matrix, new)

    def evaluate(self, memory: Memory, query: Array, top: int | None = None) -> Pair:
        features = memory.kernel.features(query)
        mass = None if self.mass is None else features @ self.mass
        return Pair(features @ mirrored(memory, self.matrix), mass)

    def evaluate_backwards(self, memory: Memory, query: Array) -> Array:
        return mirrored(memory, self.matrix) @ query

    def clear(self, memory: Memory) -> Self:
        matrix = jnp.zeros_like(self.matrix)
        if isinstance(memory.initial, Array):
            matrix = memory.initial.astype(matrix.dtype)
        mass = None if self.mass is None else jnp.zeros_like(self.mass)
        return self._with(matrix, mass)

    def _with(self, matrix: Array, mass: Array | None) -> Self:
        return type(self)(matrix, mass, self.count)


def mirrored(memory: Memory, matrix: Array) -> Array:
    """The matrix that is read, given the one that is stored."""
    gate = retention(memory)
    return matrix if gate is None else gate.mirror(matrix)
