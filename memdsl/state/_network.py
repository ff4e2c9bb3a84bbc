"""The function as a small network: its parameters, one vector."""

from typing import Any, Self

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from ..spec._memory import Network
from ._base import AbstractState, Pair


class NetworkState(AbstractState):
    """`f(q) = f_θ(q)`. Of the laws it obeys none but the first: its function is not linear in θ."""

    parameters: Float[Array, " parameters"]
    count: Int[Array, ""]
    """How many tokens were written."""
    key_size: int = eqx.field(static=True)
    value_size: int = eqx.field(static=True)

    def decay(self, log_factor: Array) -> Self:
        factor = jnp.exp(jnp.asarray(log_factor, self.parameters.dtype))
        return self.with_numbers(factor * self.parameters)

    def decay_keys(self, log_factors: Array) -> Self:
        raise TypeError("the parameters of a network fade together")

    def reflect(self, direction: Array, rate: Array) -> Self:
        raise TypeError("a network has no stored keys that could move")

    def decay_values(self, log_factors: Array) -> Self:
        raise TypeError("the parameters of a network fade together")

    def absorb(self, memory: Network, key: Array, value: Array, mass: Array) -> Self:
        """One step of the parameters along what moves the answer at the key by `value`."""
        return self.with_numbers(self.parameters + self.pull(memory, key, value))

    def pull(self, memory: Network, key: Array, value: Array) -> Array:
        """The derivative of `f_θ(key) . value` with respect to θ."""
        _, back = jax.vjp(lambda p: memory.answer(p, key, self.value_size), self.parameters)
        return back(value)[0]

    def evaluate(self, memory: Network, query: Array, top: int | None = None) -> Pair:
        return Pair(memory.answer(self.parameters, query, self.value_size), None)

    def clear(self, memory: Network) -> Self:
        start: Any = memory.initial
        start = memory.start(self.key_size, self.value_size) if start is None else start
        return self.with_numbers(jnp.asarray(start, self.parameters.dtype))

    def numbers(self) -> Array:
        """The parameters; parts of a whole lie side by side."""
        return self.parameters

    def with_numbers(self, numbers: Array) -> Self:
        """The state with other parameters."""
        return type(self)(numbers, self.count, self.key_size, self.value_size)
