"""The algebra of kernels: a commutative semiring, with pullbacks along features."""

import math
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from ._base import sort, Spec, written
from ._feature import AbstractFeature
from ._kernel_base import AbstractKernel
from ._number import Number, number, OF_A_KERNEL


class Constant(AbstractKernel):
    """The same value for every pair: `kernel(k, q) = value`.

    `Constant(0)` and `Constant(1)` are the units of `+` and `*`. A number that meets a kernel in a
    sum or a product becomes one.

    **Arguments:**

    - `value`: at least 0.

    **Raises:** `SpecError` where the value is below 0, or changes from token to token.

    ??? example

        ```python
        >>> import memdsl as md
        >>> 2.0 * md.RBF() == md.Constant(2.0) * md.RBF()
        True

        ```
    """

    value: Number = number(
        default=1.0,
        at_least=0.0,
        of_input=False,
        fixed=OF_A_KERNEL,
        range_reason="A kernel times a negative number is no kernel: its Gram matrices are not "
        "positive semidefinite.",
    )
    positional: ClassVar[int] = 1
    nonnegative: ClassVar[bool] = True

    def __call__(self, k: Any, q: Any) -> Any:
        return jnp.asarray(self.value, k.dtype)

    def log(self, k: Any, q: Any) -> Any:
        return jnp.log(jnp.asarray(self.value, k.dtype))

    def pairs(self, keys: Any, queries: Any) -> Any:
        return jnp.full((len(keys), len(queries)), jnp.asarray(self.value, keys.dtype))

    def log_pairs(self, keys: Any, queries: Any) -> Any:
        return jnp.full((len(keys), len(queries)), jnp.log(jnp.asarray(self.value, keys.dtype)))

    def rank(self, key_size: int) -> float:
        return 1

    def features(self, k: Any) -> Any:
        return jnp.sqrt(jnp.asarray(self.value, k.dtype))[None]

    def is_finite(self) -> bool:
        return True

    def is_exponential(self) -> bool:
        return True

    def value_at_itself(self) -> float | None:
        return float(self.value) if isinstance(self.value, int | float) else None

    def is_bounded(self) -> bool:
        return True


class _Pair(AbstractKernel):
    """Two kernels, `left` and `right`, put together."""

    left: AbstractKernel = sort(AbstractKernel)
    right: AbstractKernel = sort(AbstractKernel)

    def is_finite(self) -> bool:
        return self.left.is_finite() and self.right.is_finite()

    def is_nonnegative(self) -> bool:
        return self.left.is_nonnegative() and self.right.is_nonnegative()

    def is_nonnegative_after(self, feature: AbstractFeature) -> bool:
        return self.left.is_nonnegative_after(feature) and self.right.is_nonnegative_after(feature)

    def is_bounded(self) -> bool:
        return self.left.is_bounded() and self.right.is_bounded()

    def is_exponential(self) -> bool:
        return self.left.is_exponential() and self.right.is_exponential()


class Sum(_Pair):
    """`left(k, q) + right(k, q)`, written `left + right`: the features of both.

    ??? example

        ```python
        >>> import memdsl as md
        >>> kernel = md.Constant(1.0) + md.Dot()
        >>> kernel, md.rank(kernel, 4)
        (Constant() + Dot(), 5)

        ```
    """

    binding: ClassVar[int] = 4

    def __call__(self, k: Any, q: Any) -> Any:
        return self.left(k, q) + self.right(k, q)

    def log(self, k: Any, q: Any) -> Any:
        return jnp.logaddexp(self.left.log(k, q), self.right.log(k, q))

    def pairs(self, keys: Any, queries: Any) -> Any:
        return self.left.pairs(keys, queries) + self.right.pairs(keys, queries)

    def log_pairs(self, keys: Any, queries: Any) -> Any:
        return jnp.logaddexp(
            self.left.log_pairs(keys, queries), self.right.log_pairs(keys, queries)
        )

    def rank(self, key_size: int) -> float:
        return self.left.rank(key_size) + self.right.rank(key_size)

    def features(self, k: Any) -> Any:
        return jnp.concatenate([self.left.features(k), self.right.features(k)])

    def value_at_itself(self) -> float | None:
        return _sum(self.left.value_at_itself(), self.right.value_at_itself())

    def value_after(self, feature: AbstractFeature) -> float | None:
        return _sum(self.left.value_after(feature), self.right.value_after(feature))

    def __repr__(self) -> str:
        return f"{written(self.left, 4)} + {written(self.right, 5)}"


class Product(_Pair):
    """`left(k, q) * right(k, q)`, written `left * right`: the products of the features of both.

    ??? example

        ```python
        >>> import memdsl as md
        >>> kernel = md.Dot() * md.Polynomial(2)
        >>> md.rank(kernel, 3)  # 3 features times comb(5, 2)
        30

        ```
    """

    binding: ClassVar[int] = 5

    def __call__(self, k: Any, q: Any) -> Any:
        return self.left(k, q) * self.right(k, q)

    def log(self, k: Any, q: Any) -> Any:
        return self.left.log(k, q) + self.right.log(k, q)

    def pairs(self, keys: Any, queries: Any) -> Any:
        return self.left.pairs(keys, queries) * self.right.pairs(keys, queries)

    def log_pairs(self, keys: Any, queries: Any) -> Any:
        return self.left.log_pairs(keys, queries) + self.right.log_pairs(keys, queries)

    def rank(self, key_size: int) -> float:
        return self.left.rank(key_size) * self.right.rank(key_size)

    def features(self, k: Any) -> Any:
        left, right = self.left.features(k), self.right.features(k)
        return (left[:, None] * right[None, :]).reshape(-1)

    def value_at_itself(self) -> float | None:
        return _product(self.left.value_at_itself(), self.right.value_at_itself())

    def value_after(self, feature: AbstractFeature) -> float | None:
        return _product(self.left.value_after(feature), self.right.value_after(feature))

    def random_features(self, count: int, seed: int = 0) -> AbstractKernel:
        if isinstance(self.left, Constant):
            return self.left * self.right.random_features(count, seed)
        if isinstance(self.right, Constant):
            return self.left.random_features(count, seed) * self.right
        return super().random_features(count, seed)

    def __repr__(self) -> str:
        left, right = self.left, self.right
        number_left = isinstance(left, Constant) and not isinstance(right, Constant)
        first = left.value if number_left and isinstance(left, Constant) else left
        second = right.value if isinstance(right, Constant) else right
        return f"{written(first, 5)} * {written(second, 6)}"


class Pullback(AbstractKernel):
    """`kernel(feature(k), feature(q))`, written `kernel.pullback(feature)`.

    **Raises:** `SpecError` where the feature is none.

    ??? example

        ```python
        >>> import memdsl as md
        >>> kernel = md.Dot().pullback(md.Silu() >> md.L2Norm())
        >>> md.is_bounded(kernel), kernel.value_at_itself()
        (True, 1.0)

        ```
    """

    kernel: AbstractKernel = sort(AbstractKernel)
    feature: AbstractFeature = sort(AbstractFeature)

    def __call__(self, k: Any, q: Any) -> Any:
        return self.kernel(self.feature(k), self.feature(q))

    def log(self, k: Any, q: Any) -> Any:
        return self.kernel.log(self.feature(k), self.feature(q))

    def pairs(self, keys: Any, queries: Any) -> Any:
        return self.kernel.pairs(jax.vmap(self.feature)(keys), jax.vmap(self.feature)(queries))

    def log_pairs(self, keys: Any, queries: Any) -> Any:
        return self.kernel.log_pairs(jax.vmap(self.feature)(keys), jax.vmap(self.feature)(queries))

    def rank(self, key_size: int) -> float:
        return self.kernel.rank(self.feature.size(key_size))

    def features(self, k: Any) -> Any:
        return self.kernel.features(self.feature(k))

    def is_finite(self) -> bool:
        return self.kernel.is_finite()

    def is_nonnegative(self) -> bool:
        return self.kernel.is_nonnegative_after(self.feature)

    def is_nonnegative_after(self, feature: AbstractFeature) -> bool:
        return self.kernel.is_nonnegative_after(feature >> self.feature)

    def is_bounded(self) -> bool:
        return self.kernel.is_bounded() or self.feature.is_unit()

    def is_exponential(self) -> bool:
        return self.kernel.is_exponential()

    def value_at_itself(self) -> float | None:
        return self.kernel.value_after(self.feature)

    def value_after(self, feature: AbstractFeature) -> float | None:
        return self.kernel.value_after(feature >> self.feature)

    def random_features(self, count: int, seed: int = 0) -> AbstractKernel:
        return self.kernel.random_features(count, seed).pullback(self.feature)

    def __repr__(self) -> str:
        return f"{written(self.kernel, Spec.binding)}.pullback({self.feature!r})"


def _sum(left: float | None, right: float | None) -> float | None:
    return None if left is None or right is None else left + right


def _product(left: float | None, right: float | None) -> float | None:
    return None if left is None or right is None else math.prod((left, right))
