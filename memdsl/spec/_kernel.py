"""Kernels that are functions of the inner product of two keys."""

import itertools
import math
from collections import Counter
from typing import Any, ClassVar

import jax.numpy as jnp

from ._algebra import (
    Constant as Constant,
    Product as Product,
    Pullback as Pullback,
    Sum as Sum,
)
from ._base import sort, whole
from ._feature import AbstractFeature, RandomFourier
from ._kernel_base import AbstractKernel as AbstractKernel, lift as lift
from ._number import Number, number, OF_A_KERNEL


class Dot(AbstractKernel):
    """`kernel(k, q) = k . q`: the kernel of every memory that is a matrix; its features are k.

    ??? example

        ```python
        >>> import jax.numpy as jnp
        >>> import memdsl as md
        >>> float(md.Dot()(jnp.array([1.0, 2.0]), jnp.array([3.0, 4.0])))
        11.0

        ```
    """

    def __call__(self, k: Any, q: Any) -> Any:
        return k @ q

    def pairs(self, keys: Any, queries: Any) -> Any:
        return keys @ queries.T

    def rank(self, key_size: int) -> float:
        return key_size

    def features(self, k: Any) -> Any:
        return k

    def is_finite(self) -> bool:
        return True

    def is_nonnegative_after(self, feature: AbstractFeature) -> bool:
        return feature.dot_is_nonnegative()

    def value_after(self, feature: AbstractFeature) -> float | None:
        return 1.0 if feature.is_unit() else None


class Polynomial(AbstractKernel):
    """`kernel(k, q) = (k . q + offset) ** degree`: all monomials of the key up to a degree.

    **Arguments:**

    - `degree`: a whole number of at least 1.
    - `offset`: at least 0; 0 leaves only the monomials of exactly that degree.

    **Raises:** `SpecError` where an argument is out of range.

    ??? example

        ```python
        >>> import jax.numpy as jnp
        >>> import memdsl as md
        >>> kernel = md.Polynomial(2)
        >>> float(kernel(jnp.array([1.0, 2.0]), jnp.array([3.0, 4.0])))
        144.0
        >>> md.rank(kernel, 2)  # 1, x, y, x^2, xy, y^2
        6

        ```

    Source: the feature space of Omega and Atlas (Behrouz et al. 2025).
    """

    degree: int = whole(at_least=1, default=2)
    offset: Number = number(default=1.0, at_least=0.0, of_input=False, fixed=OF_A_KERNEL)
    positional: ClassVar[int] = 1

    def __call__(self, k: Any, q: Any) -> Any:
        return (k @ q + self.offset) ** self.degree

    def pairs(self, keys: Any, queries: Any) -> Any:
        return (keys @ queries.T + self.offset) ** self.degree

    def rank(self, key_size: int) -> float:
        # the distinct monomials of degree `degree` in key_size + 1 variables
        return math.comb(key_size + self.degree, self.degree)

    def features(self, k: Any) -> Any:
        # phi of (x.y)^n over x = [k, sqrt(offset)]: monomials with multinomial weights
        root = jnp.sqrt(jnp.asarray(self.offset, k.dtype))
        x = jnp.concatenate([k, root[None]])
        combos = list(itertools.combinations_with_replacement(range(len(x)), self.degree))
        ways = [
            math.factorial(self.degree)
            / math.prod(math.factorial(c) for c in Counter(combo).values())
            for combo in combos
        ]
        weights = jnp.asarray([math.sqrt(w) for w in ways], k.dtype)
        index = jnp.asarray(combos)
        return weights * jnp.prod(x[index], axis=-1)

    def is_finite(self) -> bool:
        return True

    def is_nonnegative(self) -> bool:
        return self.degree % 2 == 0

    def is_nonnegative_after(self, feature: AbstractFeature) -> bool:
        return self.is_nonnegative() or feature.dot_is_nonnegative()

    def value_after(self, feature: AbstractFeature) -> float | None:
        plain = isinstance(self.offset, int | float)
        return float((1 + self.offset) ** self.degree) if plain and feature.is_unit() else None


class Exp(AbstractKernel):
    """`kernel(k, q) = exp(inner(k, q))`: of a multiple of `Dot`, the kernel of softmax attention.

    Under a `Normalised` read, `Exp(InverseRoot("key") * Dot())` is softmax attention. The logarithm
    is exact, so weights neither overflow nor underflow.

    **Arguments:**

    - `inner`: any kernel. `Exp(a + b) = Exp(a) * Exp(b)`.

    ??? example

        ```python
        >>> import jax.numpy as jnp
        >>> import memdsl as md
        >>> kernel = md.Exp(md.Dot() / 8.0)
        >>> float(kernel.log(jnp.array([8.0, 0.0]), jnp.array([200.0, 0.0])))
        200.0

        ```

    Source: Vaswani et al. 2017, equation 1; as a kernel, Choromanski et al. 2021.
    """

    inner: AbstractKernel = sort(AbstractKernel)
    positional: ClassVar[int] = 1
    nonnegative: ClassVar[bool] = True

    def __call__(self, k: Any, q: Any) -> Any:
        return jnp.exp(self.inner(k, q))

    def log(self, k: Any, q: Any) -> Any:
        return self.inner(k, q)

    def pairs(self, keys: Any, queries: Any) -> Any:
        return jnp.exp(self.inner.pairs(keys, queries))

    def log_pairs(self, keys: Any, queries: Any) -> Any:
        return self.inner.pairs(keys, queries)

    def is_bounded(self) -> bool:
        return self.inner.is_bounded()

    def is_exponential(self) -> bool:
        return True

    def value_at_itself(self) -> float | None:
        return _exp(self.inner.value_at_itself())

    def value_after(self, feature: AbstractFeature) -> float | None:
        return _exp(self.inner.value_after(feature))

    def random_features(self, count: int, seed: int = 0) -> AbstractKernel:
        factor = _multiple_of_dot(self.inner)
        if factor is None:
            return super().random_features(count, seed)
        scale = 1 / math.sqrt(factor)  # exp(factor k . q) = exp(k . q / scale^2)
        return Dot().pullback(RandomFourier(count, spectrum="exp", scale=scale, seed=seed))


def _exp(value: float | None) -> float | None:
    if value is None:
        return None
    return math.exp(value) if value < 700 else math.inf


def _multiple_of_dot(kernel: AbstractKernel) -> float | None:
    """c where a kernel is `c * Dot()` with a plain positive c, else `None`."""
    if kernel == Dot():
        return 1.0
    if not isinstance(kernel, Product):
        return None
    constant, other = kernel.left, kernel.right
    if isinstance(other, Constant):
        constant, other = other, constant
    value = constant.value_at_itself() if isinstance(constant, Constant) else None
    return value if value and other == Dot() else None
