"""A memory that is a small network."""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from .._errors import SpecError
from ._base import choice, flag, refuse, sort, Spec, whole
from ._feature import AbstractFeature, Identity
from ._gate import AbstractGate, Keep
from ._memory_base import AbstractMemory, initial_state
from ._number import Learned
from ._read import AbstractRead, Evaluate
from ._write import AbstractWrite


_ACTIVATIONS = {
    "gelu": jax.nn.gelu,
    "silu": jax.nn.silu,
    "relu": jax.nn.relu,
    "tanh": jnp.tanh,
}


def _widths() -> Any:
    def check(spec: Spec, name: str, value: Any) -> None:
        good = isinstance(value, tuple) and all(type(w) is int and w > 0 for w in value)
        if not good:
            raise refuse(spec, name, "a tuple of sizes", value, instead="widths=(64,), say.")

    return dataclasses.field(default=(), metadata={"check": check})


class Network(AbstractMemory):
    """A memory whose function is a small network, trained while it is used.

    The state is its parameters θ, one vector: for every map its matrix `[in, out]`, row by row, and
    then its bias. A token does

        θ <- gate θ;   θ <- θ - rate dloss(f_θ(k), v)/dθ;   y = f_θ(q)

    with everything else that a `Descent` may do, and `f_θ(x) = [x +] after(g(before(x)))`, where g is
    `W_2 act(W_1 x + b_1) + b_2`, say.

    **Arguments:**

    - `write`: a `Descent`.
    - `widths`: the hidden widths; `()` is a linear map with bias.
    - `gate`: `Keep`, `Reset` or `Decay` of the parameters.
    - `read`: `Evaluate`, or `Before` of it.
    - `activation`: between two maps: `"gelu"` (by tanh), `"silu"`, `"relu"` or `"tanh"`.
    - `bias`: whether the maps have one.
    - `before`: what keys and queries go through, such as `L2Norm()`.
    - `after`: what the output goes through, such as `LayerNorm()`. What the two train is trained from
        outside, not by the write.
    - `residual`: whether the input is added to the output, which is then as wide.
    - `initial`: `Learned()` for a trained start, or `None` for one that is drawn from `seed`: normal
        matrices of variance 1 / in, biases of 0. A learned one starts as the drawn one, times its
        start.
    - `seed`: of the draw.

    **Raises:** `SpecError` for parts that speak of atoms or of a matrix.

    ??? example

        ```python
        >>> import jax.numpy as jnp
        >>> import memdsl as md
        >>> titans = md.Network(md.Descent(rate=0.1, momentum=0.9), (64,), md.Decay(0.99))
        >>> line = md.Network(md.Descent(rate=0.5))
        >>> print(line.answer(jnp.array([2.0, 1.0]), jnp.array([3.0]), 1))  # 2 x + 1
        [7.]

        ```

    Source: Sun et al. 2024 (TTT); Behrouz et al. 2025 (Titans).
    """

    write: AbstractWrite = sort(AbstractWrite)
    widths: tuple[int, ...] = _widths()
    gate: AbstractGate = sort(AbstractGate, default=Keep())
    read: AbstractRead = sort(AbstractRead, default=Evaluate())
    activation: str = choice(*_ACTIVATIONS, default="gelu")
    bias: bool = flag(default=True)
    before: AbstractFeature = sort(AbstractFeature, default=Identity())
    after: AbstractFeature = sort(AbstractFeature, default=Identity())
    residual: bool = flag()
    initial: Learned | None = initial_state("parameters")
    seed: int = whole(at_least=0, default=0)
    positional: ClassVar[int] = 1

    def __check__(self) -> None:
        from ._check import check_network

        check_network(self)

    def maps(self, key_size: int, value_size: int) -> Iterator[tuple[int, int]]:
        """`(in, out)` of every map, from the key to the value."""
        sizes = (self.before.size(key_size), *self.widths, value_size)
        return itertools.pairwise(sizes)

    def count(self, key_size: int, value_size: int) -> int:
        """How many parameters there are; an error where the sizes do not fit the function."""
        width = self.after.size(value_size)
        if width != value_size:
            raise SpecError(
                f"{self.after!r} makes {width} numbers of an answer of {value_size}.",
                where=self,
                at="after",
                why="What a network answers is compared with a value.",
                instead="a feature that keeps the size.",
            )
        if self.residual and key_size != value_size:
            raise SpecError(
                f"A residual adds a key of {key_size} numbers to an answer of {value_size}.",
                where=self,
                at="residual",
                instead="residual=False, or keys as wide as values.",
            )
        return sum((a + self.bias) * b for a, b in self.maps(key_size, value_size))

    def start(self, key_size: int, value_size: int) -> np.ndarray:
        """The parameters that are drawn, `[parameters]`."""
        self.count(key_size, value_size)
        generator, parts = np.random.default_rng(self.seed), []
        for rows, columns in self.maps(key_size, value_size):
            parts.append(generator.standard_normal(rows * columns) / math.sqrt(rows))
            parts.append(np.zeros(columns if self.bias else 0))
        return np.concatenate(parts)

    def each_matrix(
        self, change: Callable[[Any], Any], parameters: Any, key_size: int, value_size: int
    ) -> Any:
        """The parameters of a network without biases, with `change` made to the matrix of every map."""
        parts, place = [], 0
        for rows, columns in self.maps(key_size, value_size):
            matrix = parameters[place : place + rows * columns].reshape(rows, columns)
            parts.append(change(matrix).ravel())
            place += rows * columns
        return jnp.concatenate(parts)

    def answer(self, parameters: Any, x: Any, value_size: int) -> Any:
        """`f_θ(x)`, `[value]`, for a grounded network."""
        y, place = self.before(x), 0
        for index, (rows, columns) in enumerate(self.maps(len(x), value_size)):
            y = y if index == 0 else _ACTIVATIONS[self.activation](y)
            y = y @ parameters[place : place + rows * columns].reshape(rows, columns)
            place += rows * columns
            if self.bias:
                y, place = y + parameters[place : place + columns], place + columns
        y = self.after(y)
        return x + y if self.residual else y
