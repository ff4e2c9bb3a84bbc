"""A tensor of a model as a stack of matrices: how a linear layer keeps what it is."""

import dataclasses
import math

import jax.numpy as jnp
from jaxtyping import Array, Float


@dataclasses.dataclass(frozen=True)
class Projection:
    """A tensor that maps inputs to outputs, where in the model it is, and which axes are which.

    A weight `[out, in]` has the inputs `(1,)`; one that is used as `x @ weight` has `(0,)`; that of a
    convolution `(1, 2, 3)`. Equal layers that are stacked, or the groups of a convolution, are
    matrices of their own.
    """

    weight: str
    """Where it is, as `jax.tree_util.keystr` says."""
    inputs: tuple[int, ...]
    """The axes that are summed over, in the order of the numbers of an input."""
    stack: tuple[int, ...] = ()
    """The axes of equal layers."""
    groups: int = 1
    """Into how many equal parts the outputs are cut, with inputs of their own."""
    lookup: bool = False
    """Whether its inputs are indices: rows of a table, with a Gram matrix that is diagonal."""
    bias: str | None = None
    """Where the vector is that is added to its outputs, if there is one."""

    def size(self, shape: tuple[int, ...]) -> int:
        """How many numbers an input has, the 1 of a bias left out."""
        return math.prod(shape[axis] for axis in self.inputs)

    def matrices(self, weight: Array) -> Float[Array, "*stack out in"]:
        """The tensor as matrices, that map columns."""
        order = (*self.stack, *self._outputs(weight.ndim), *self.inputs)
        stack = tuple(weight.shape[axis] for axis in self.stack)
        groups = (self.groups,) if self.groups > 1 else ()
        size = self.size(weight.shape)
        out = weight.size // (math.prod(stack) * self.groups * size)
        return jnp.transpose(weight, order).reshape(*stack, *groups, out, size)

    def tensor(self, matrices: Float[Array, "*stack out in"], shape: tuple[int, ...]) -> Array:
        """The inverse of `matrices`: a tensor of the given shape."""
        order = (*self.stack, *self._outputs(len(shape)), *self.inputs)
        permuted = matrices.reshape(tuple(shape[axis] for axis in order))
        return jnp.transpose(permuted, tuple(order.index(axis) for axis in range(len(shape))))

    def joined(self, weight: Array, bias: Array | None) -> Float[Array, "*stack out in"]:
        """`[W b]`: the bias is the weight of an input that is always 1."""
        matrices = self.matrices(weight)
        if bias is None:
            return matrices
        column = bias.astype(matrices.dtype).reshape(*matrices.shape[:-1], 1)
        return jnp.concatenate([matrices, column], axis=-1)

    def parted(
        self, joined: Float[Array, "*stack out in"], weight: Array, bias: Array | None
    ) -> tuple[Array, Array | None]:
        """The inverse of `joined`: tensors like the given ones."""
        if bias is None:
            return self.tensor(joined, weight.shape).astype(weight.dtype), None
        tensor = self.tensor(joined[..., :-1], weight.shape).astype(weight.dtype)
        return tensor, joined[..., -1].reshape(bias.shape).astype(bias.dtype)

    def _outputs(self, ndim: int) -> tuple[int, ...]:
        return tuple(axis for axis in range(ndim) if axis not in (*self.stack, *self.inputs))
