"""The function as a ridge problem with finite features: two Hebbian memories and a solve."""

from typing import Any, Self

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from ..spec._memory import Memory
from ._base import AbstractState, Pair
from ._solve import solve


class GramState(AbstractState):
    """`f(q) = B^T (H + diag(strength))^-1 phi(q)`, with `H = sum w phi phi^T`, `B = sum w phi v^T`."""

    gram: Float[Array, "features features"]
    matrix: Float[Array, "features value"]
    count: Int[Array, ""]

    def decay(self, log_factor: Array) -> Self:
        factor = jnp.exp(jnp.asarray(log_factor, self.gram.dtype))
        return type(self)(factor * self.gram, factor * self.matrix, self.count)

    def decay_keys(self, log_factors: Array) -> Self:
        raise TypeError("a ridge problem forgets whole pairs")

    def reflect(self, direction: Array, rate: Array) -> Self:
        raise TypeError("a ridge problem goes back to its pairs where they were")

    def decay_values(self, log_factors: Array) -> Self:
        raise TypeError("a ridge problem forgets whole pairs")

    def absorb(self, memory: Memory, key: Array, value: Array, mass: Array) -> Self:
        """Adds a pair of weight `mass` to the problem."""
        features = memory.kernel.features(key)
        weighted = mass * features
        return type(self)(
            self.gram + weighted[:, None] * features[None, :],
            self.matrix + weighted[:, None] * value[None, :],
            self.count,
        )

    def evaluate(self, memory: Memory, query: Array, top: int | None = None) -> Pair:
        write: Any = memory.write
        solved = solve(self.system(memory), memory.kernel.features(query), write.solver)
        return Pair(solved @ self.matrix, None)

    def system(self, memory: Memory) -> Array:
        """`H + diag(strength)`."""
        write: Any = memory.write
        ridge = jnp.asarray(write.strength, self.gram.dtype)
        return self.gram + jnp.diag(jnp.broadcast_to(ridge, self.gram.shape[:1]))

    def coefficients(self, memory: Memory) -> Array:
        """The minimiser itself, `[features, value]`."""
        write: Any = memory.write
        return solve(self.system(memory), self.matrix, write.solver)

    def clear(self, memory: Memory) -> Self:
        return type(self)(jnp.zeros_like(self.gram), jnp.zeros_like(self.matrix), self.count)
