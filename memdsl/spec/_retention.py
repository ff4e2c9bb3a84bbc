"""Retentions: gates that act on the numbers of a matrix one by one, not on the function.

Two kinds, and a class may be both. A *mirror* stores another matrix than the one that is read: steps
and decays act on A, and `S = mirror(A)` is what answers and what errors are of. A *proximal* one moves
the stored matrix once the token is written, `A <- settle(A)`.
"""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from ._base import choice, plain_float
from ._gate_base import AbstractForget, decay_number
from ._number import Number, number


class AbstractRetention(AbstractForget):
    """A gate that says what the numbers of the matrix may be. To add one, write `mirror` or `settle`.

    Matrices are `[features, value]`: `f(q) = S^T phi(q)` with `S = mirror(A)`; every decay and every
    step acts on A.

    ??? example

        ```python
        >>> import jax.numpy as jnp
        >>> import memdsl as md
        >>> class Sigmoid(md.AbstractRetention):
        ...     '''Every number of the matrix stays between 0 and 1.'''
        ...
        ...     def mirror(self, matrix):
        ...         return 1 / (1 + jnp.exp(-matrix))
        >>> memory = md.Memory(md.Dot(), md.Descent(rate=0.5), Sigmoid())
        >>> state = md.empty(memory, key_size=2, value_size=1)
        >>> md.evaluate(memory, state, jnp.array([[1.0, 1.0]]))
        Array([[1.]], dtype=float32)

        ```

    Source: the retention gates of Behrouz et al. 2025 ("It's All Connected", MIRAS), section 3.
    """

    settles: ClassVar[bool] = False
    """Whether `settle` moves anything, at every token."""

    def mirror(self, matrix: Any) -> Any:
        """The matrix that is read, given the one that is stored."""
        return matrix

    def settle(self, matrix: Any) -> Any:
        """The matrix that is stored after a token was written."""
        return matrix


class SoftThreshold(AbstractRetention):
    """Every number of the matrix moves towards 0 by `threshold`, and stops there.

    `S <- sign(S) max(|S| - threshold, 0)` after the token is written: with a `Decay`, the elastic net,
    `S <- soft(decay S - rate gradient)`.

    **Arguments:**

    - `threshold`: at least 0.

    **Raises:** `SpecError` where the threshold can be below 0; and where there is no matrix of
    values.

    ??? example

        ```python
        >>> import memdsl as md
        >>> md.SoftThreshold(0.01) @ md.SoftThreshold(0.01)
        SoftThreshold(0.02)

        ```

    Source: the elastic-net retention of Behrouz et al. 2025 (MIRAS).
    """

    threshold: Number = number(at_least=0.0, meaning="soft threshold")
    positional: ClassVar[int] = 1
    settles: ClassVar[bool] = True

    def settle(self, matrix: Any) -> Any:
        threshold = jnp.asarray(self.threshold, matrix.dtype)
        left = jnp.abs(matrix) > threshold
        return jnp.where(left, matrix - threshold * jnp.sign(matrix), 0)


class LqNorm(AbstractRetention):
    """The matrix is read through the mirror map of `|A|_q^2 / 2`.

    `"exact"`: `S = sign(A) |A|^(p - 1) / |A|_p^(p - 2)` with `1 / p + 1 / q = 1`. `"miras"`: the
    form `A / |A|_q^(q - 2)` that the paper is quoted with, which is not that minimiser unless q is
    2. Both are 0 where A is.

    **Arguments:**

    - `q`: above 1.
    - `form`: `"exact"` or `"miras"`.

    **Raises:** `SpecError` where an argument is out of range; and where there is no matrix of
    values.

    ??? example

        ```python
        >>> import jax.numpy as jnp
        >>> import memdsl as md
        >>> md.LqNorm(4.0) @ md.Decay(0.9)
        LqNorm() @ Decay(0.9)
        >>> print(md.LqNorm(4.0).mirror(jnp.array([[8.0, -1.0]])).round(3))
        [[ 8.246 -4.123]]

        ```

    Source: Moneta (Behrouz et al. 2025, MIRAS).
    """

    q: float = plain_float(above=1.0, default=4.0)
    form: str = choice("exact", "miras", default="exact")
    positional: ClassVar[int] = 1

    def mirror(self, matrix: Any) -> Any:
        # relative to the largest number, so that no power under- or overflows
        largest = jax.lax.stop_gradient(jnp.max(jnp.abs(matrix), initial=0))
        unit = jnp.where(largest == 0, 1, largest)
        nonzero = matrix != 0
        size = jnp.where(nonzero, jnp.abs(jnp.where(nonzero, matrix, 1)) / unit, 0)
        p = self.q / (self.q - 1)
        power = p if self.form == "exact" else self.q
        total = jnp.sum(jnp.where(nonzero, jnp.where(nonzero, size, 1) ** power, 0))
        norm = jnp.where(total == 0, 1, total) ** (1 / power)
        if self.form == "miras":
            return matrix * (unit * norm) ** (2 - self.q)
        grown = jnp.where(nonzero, jnp.where(nonzero, size, 1) ** (p - 1), 0)
        return unit * jnp.sign(matrix) * grown * norm ** (2 - p)


class Simplex(AbstractRetention):
    """The weights of every value channel stay a distribution: `S <- total softmax(decay log S + step)`.

    What is stored is log S, up to a constant a channel; it starts uniform.

    **Arguments:**

    - `decay`: between 0 and 1; of the logarithm.
    - `total`: what a channel adds up to, above 0.
    - `over`: `"features"`: for every channel of the value, the weights of all features add up to
        `total` (the rows of M in `M k`); `"values"`: for every feature, those of all channels.

    **Raises:** `SpecError` where an argument is out of range; and where there is no matrix of
    values.

    ??? example

        ```python
        >>> import jax.numpy as jnp
        >>> import memdsl as md
        >>> md.Memory(md.Dot(), md.Descent(rate=0.1), md.Simplex(0.95)).gate
        Simplex(0.95)
        >>> md.Simplex(0.95, total=2.0).mirror(jnp.zeros((4, 1)))[:, 0]
        Array([0.5, 0.5, 0.5, 0.5], dtype=float32)

        ```

    Source: Memora (Behrouz et al. 2025, MIRAS).
    """

    decay: Number = decay_number()
    total: float = plain_float(above=0.0, default=1.0)
    over: str = choice("features", "values", default="features")
    positional: ClassVar[int] = 1

    def mirror(self, matrix: Any) -> Any:
        return self.total * jax.nn.softmax(matrix, axis=0 if self.over == "features" else 1)
