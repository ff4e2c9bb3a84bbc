"""What a linear layer was given, as far as an optimiser needs it: second moments of its inputs."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._types import at_least_single


_HIGHEST = jax.lax.Precision.HIGHEST


class Gram(eqx.Module):
    r"""The second moments of the inputs of a linear layer: $\bar S = \frac1N \sum_i x_i x_i^\top$.

    The sum and N are kept apart, so that Gram matrices add up as gradients do: over uses of a layer,
    over the parts of a batch, over devices. Where the layer has a bias, x ends with a 1.
    """

    total: Array | None
    r"""$\sum_i x_i x_i^\top$, `[*stack, in, in]`; of a table of rows, whose inputs are indices, its
    diagonal, `[*stack, in]`; `None` where there are the rows."""
    count: Float[Array, "*stack"]
    """N: how many inputs there were."""
    rows: Float[Array, "*stack row in"] | None = None
    """The inputs themselves, instead of their products, if `capture(..., rows=True)`."""

    @property
    def size(self) -> int:
        """How many numbers an input has, the 1 of a bias among them."""
        return self._held.shape[-1]

    @property
    def is_square(self) -> bool:
        """Whether it is a matrix, and not the diagonal of one."""
        return self._held.ndim == self.count.ndim + 2

    @property
    def mean(self) -> Float[Array, "*stack in in"] | Float[Array, "*stack in"]:
        """S̄; zeros where there were no inputs."""
        total = self._held if self.rows is None else second_moment(self.rows)
        count = self.count.reshape(*self.count.shape, *(1,) * (total.ndim - self.count.ndim))
        return total / jnp.maximum(count, 1)

    @property
    def _held(self) -> Array:
        held = self.total if self.rows is None else self.rows
        assert held is not None
        return held

    def __add__(self, other: "Gram") -> "Gram":
        """That of both inputs."""
        count, held = self.count + other.count, other._held
        if self.rows is None:
            return Gram(self._held + held, count)
        return Gram(None, count, jnp.concatenate([self.rows, held], axis=-2))

    def without_bias(self) -> "Gram":
        """That of the inputs without the 1 at their end."""
        if self.rows is None:
            return Gram(self._held[..., :-1, :-1], self.count)
        return Gram(None, self.count, self.rows[..., :-1])


def gram_of(inputs: Array, bias: bool, rows: bool) -> Gram:
    """That of inputs `[*stack, row, in]`.

    **Arguments:**

    - `bias`: whether a 1 is put at the end of each.
    - `rows`: whether they are kept as they are.
    """
    wide = jax.lax.stop_gradient(inputs).astype(at_least_single(inputs.dtype))
    if bias:
        wide = jnp.concatenate([wide, jnp.ones_like(wide[..., :1])], axis=-1)
    count = jnp.full(wide.shape[:-2], wide.shape[-2], wide.dtype)
    return Gram(None, count, wide) if rows else Gram(second_moment(wide), count)


def counts_of(indices: Array, size: int, dtype: Any) -> Gram:
    """That of indices `[row]` into a table, as unit vectors; those that are out of it count as its
    last row."""
    inside = jnp.clip(indices, 0, size - 1)
    total = jnp.zeros(size, dtype).at[inside].add(jnp.ones((), dtype))
    return Gram(total, jnp.asarray(len(indices), dtype))


def second_moment(rows: Float[Array, "*stack row in"]) -> Float[Array, "*stack in in"]:
    """The sum of `x x^T` over the rows.

    As the derivative of `x P` with respect to P, in the direction x: so it is placed on devices as a
    gradient is, wherever the rows are.
    """
    size = rows.shape[-1]
    shape = jax.ShapeDtypeStruct((*rows.shape[:-2], size, size), rows.dtype)

    def product(matrix: Array) -> Array:
        return jnp.matmul(rows, matrix, precision=_HIGHEST)

    (total,) = jax.linear_transpose(product, shape)(rows)
    return total
