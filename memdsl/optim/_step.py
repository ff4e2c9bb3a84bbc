"""What a training step does to one weight matrix: the write of a memory, of a batch of pairs."""

import dataclasses
from abc import abstractmethod
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..spec._descent import orthogonalised
from ..spec._memory import Memory
from ..spec._number import value_of
from ._cholesky import by_factor, factor
from ._gram import Gram


Kept = dict[str, Array]
"""What is remembered of a matrix from step to step."""
_HIGHEST = jax.lax.Precision.HIGHEST


@dataclasses.dataclass(frozen=True)
class Now:
    """The numbers of one step."""

    memory: Memory
    """Grounded."""
    rate: Any
    """η, a float or an array."""
    count: Array
    """How many steps there were before."""
    seen: Array
    """What all pairs weigh together, this step's included, if those of a step weigh 1."""
    left: Array
    """What is left after this step of what there was at the start."""

    @property
    def write(self) -> Any:
        """The write of the memory."""
        return self.memory.write

    @property
    def fade(self) -> Any:
        """What is left after this step of what there was before it."""
        return fade_of(self.memory)


def fade_of(memory: Memory) -> Any:
    """The decay of a grounded memory."""
    return value_of(getattr(memory.gate, "decay", 1.0))


class AbstractStep:
    """A write, as it changes a weight matrix.

    All tensors are `[*stack, out, in]`, and Gram matrices `[*stack, in, in]` or, for tables,
    `[*stack, in]`.
    """

    @abstractmethod
    def needs_grams(self) -> bool:
        """Whether it must know what the matrix is given."""

    @abstractmethod
    def needs_matrices(self) -> bool:
        """Whether it must know how a tensor is a matrix."""

    @abstractmethod
    def begin(self, memory: Memory, weight: Array, table: bool) -> Kept:
        """What is remembered before the first step; the memory is grounded at step 0."""

    @abstractmethod
    def step(
        self, now: Now, kept: Kept, weight: Array, gradient: Array, gram: Gram | None
    ) -> tuple[Array, Kept]:
        """`(change of the weight, what is remembered)`."""


@dataclasses.dataclass(frozen=True)
class Explicit(AbstractStep):
    r"""Hebb's rule and the delta rule, with momentum and orthogonal steps if a `Descent` has them.

    $$W \leftarrow \alpha W + \beta\,(V X^\top - [\delta]\, W' \bar S)$$
    """

    delta: bool
    """Whether what is recalled is taken away."""
    previous: bool
    """Whether it is recalled from before the decay."""
    target: bool
    """Whether the value of a pair is the answer after a step, and not the step alone."""
    momentum: bool = False
    orthogonal: bool = False

    def needs_grams(self) -> bool:
        return self.delta

    def needs_matrices(self) -> bool:
        return self.delta or self.orthogonal

    def begin(self, memory: Memory, weight: Array, table: bool) -> Kept:
        return {"momentum": jnp.zeros_like(weight)} if self.momentum else {}

    def step(
        self, now: Now, kept: Kept, weight: Array, gradient: Array, gram: Gram | None
    ) -> tuple[Array, Kept]:
        write, fade, dtype = now.write, now.fade, gradient.dtype
        change = jnp.asarray(-now.rate * write.rate, dtype) * gradient
        if self.delta and gram is not None:
            recalled = weight if self.previous or _is_one(fade) else _times(fade, weight)
            wrong = weight - recalled if self.target else -recalled
            change = change + _times(write.rate, product(wrong, gram.mean))
        after: Kept = {}
        if self.momentum:
            change = _times(write.momentum, kept["momentum"]) + change
            after = {"momentum": change}
        if self.orthogonal:
            change = over_stack(orthogonalised, change)
        gain = getattr(write, "gain", 1.0)
        if not _is_one(gain):
            change = _times(gain, change)
        if not _is_one(fade):
            change = change + (jnp.asarray(fade, dtype) - 1) * weight
        return change, after


@dataclasses.dataclass(frozen=True)
class Implicit(AbstractStep):
    r"""The implicit delta rule: the error is that after the step.

    $$W = \operatorname*{arg\,min}_W \tfrac12 \overline{\lVert W x - v\rVert^2}
      + \tfrac1{2\beta}\lVert W - \alpha W_{t-1}\rVert^2$$
    """

    target: bool

    def needs_grams(self) -> bool:
        return True

    def needs_matrices(self) -> bool:
        return True

    def begin(self, memory: Memory, weight: Array, table: bool) -> Kept:
        return {}

    def step(
        self, now: Now, kept: Kept, weight: Array, gradient: Array, gram: Gram | None
    ) -> tuple[Array, Kept]:
        assert gram is not None
        moment, start = gram.mean, _times(now.fade, weight)
        wrong = weight - start if self.target else -start
        error = product(wrong, moment) - _times(now.rate, gradient)
        rate = jnp.asarray(now.write.rate, gradient.dtype)
        change = solved(rate * error, shifted(rate * moment, jnp.ones((), moment.dtype), weight))
        return start - weight + change, {}


def product(
    left: Float[Array, "*stack out in"], gram: Float[Array, "*stack in in"] | Array
) -> Float[Array, "*stack out in"]:
    """A matrix times a Gram matrix, or its diagonal."""
    if gram.ndim < left.ndim:
        return left * gram[..., None, :]
    return jnp.matmul(left, gram, precision=_HIGHEST)


def shifted(gram: Array, ridge: Array, weight: Array) -> Array:
    """A Gram matrix, or its diagonal, with a ridge (one for each of a stack); as wide as it."""
    if gram.ndim < weight.ndim:
        return gram + jnp.broadcast_to(ridge[..., None], gram.shape)
    eye = jnp.eye(gram.shape[-1], dtype=gram.dtype)
    return gram + ridge[..., None, None] * jnp.broadcast_to(eye, gram.shape)


def solved(right: Float[Array, "*stack out in"], matrix: Array) -> Float[Array, "*stack out in"]:
    """`right matrix^-1`, exactly; `matrix` may be a diagonal, and 0 of nothing is 0."""
    if matrix.ndim < right.ndim:
        safe = jnp.where(matrix > 0, matrix, 1)
        return right / safe[..., None, :]
    return by_factor(right, factor(matrix))


def diagonal(matrix: Float[Array, "*stack in in"]) -> Float[Array, "*stack in"]:
    return jnp.diagonal(matrix, axis1=-2, axis2=-1)


def over_stack(function: Any, *arrays: Array) -> Array:
    """A function of matrices, over all axes before the last two."""
    for _ in range(arrays[0].ndim - 2):
        function = jax.vmap(function)
    return function(*arrays)


def _times(number: Any, array: Array) -> Array:
    return jnp.asarray(number, array.dtype) * array


def _is_one(number: Any) -> bool:
    return isinstance(number, int | float) and number == 1
