"""Kernels: a commutative semiring of similarities of two keys.

A kernel is defined on single points. `pairs` is the same thing for every pair of two sets of points,
as matrix products where it can; `log_pairs` is its logarithm, exact where the kernel is an exponential.
"""

import itertools
import math
from abc import abstractmethod
from collections import Counter
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from .._errors import SpecError
from ._base import Spec, sort, whole
from ._feature import AbstractFeature, RandomFourier, one_feature
from ._number import Number, is_number, number


class AbstractKernel(Spec):
    """A symmetric similarity `kernel(k, q)` of two keys.

    To add one, write `__call__`; declare `nonnegative = True` where it never is below 0 and
    `stationary_value = 1.0` where `kernel(k, k)` is a constant. It is registered nowhere.
    """

    nonnegative: ClassVar[bool] = False
    stationary_value: ClassVar[float | None] = None
    bounded: ClassVar[bool] = False

    @abstractmethod
    def __call__(self, k: Any, q: Any) -> Any:
        """The similarity of two keys, a scalar."""

    def log(self, k: Any, q: Any) -> Any:
        """The logarithm of the similarity; −inf where it is 0."""
        return jnp.log(self(k, q))

    def pairs(self, keys: Any, queries: Any) -> Any:
        """`[n, d], [m, d] -> [n, m]`."""
        return jax.vmap(lambda k: jax.vmap(lambda q: self(k, q))(queries))(keys)

    def log_pairs(self, keys: Any, queries: Any) -> Any:
        """`log` of `pairs`."""
        return jax.vmap(lambda k: jax.vmap(lambda q: self.log(k, q))(queries))(keys)

    def diagonal(self, keys: Any) -> Any:
        """`kernel(k, k)` of each key: `[n, d] -> [n]`."""
        return jax.vmap(lambda k: self(k, k))(keys)

    def rank(self, key_size: int) -> float:
        """How many features the kernel has; `inf` where there are no finitely many."""
        return math.inf

    def features(self, k: Any) -> Any:
        """`phi(k)` with `phi(k) . phi(q) = kernel(k, q)`, where the rank is finite."""
        raise SpecError(f"{self!r} has infinitely many features.", where=self)

    def is_finite(self) -> bool:
        """Whether the rank is finite."""
        return False

    def is_nonnegative(self) -> bool:
        """Whether `kernel(k, q) >= 0` for all keys."""
        return self.nonnegative

    def is_bounded(self) -> bool:
        """Whether `kernel(k, k)` has a bound over all keys."""
        return (
            self.bounded or self.stationary_value is not None or self.value_at_itself() is not None
        )

    def is_exponential(self) -> bool:
        """Whether `log` is computed without first computing the kernel."""
        return False

    def value_at_itself(self) -> float | None:
        """The constant value of `kernel(k, k)`, or `None` where it depends on k."""
        return self.stationary_value

    def __add__(self, other: Any) -> "Sum":
        return Sum(self, lift(other, self))

    def __radd__(self, other: Any) -> "AbstractKernel":
        return self if other == 0 else Sum(lift(other, self), self)

    def __mul__(self, other: Any) -> "Product":
        return Product(self, lift(other, self))

    def __rmul__(self, other: Any) -> "Product":
        return Product(lift(other, self), self)

    def __truediv__(self, other: Any) -> "Product":
        if not isinstance(other, int | float) or isinstance(other, bool) or other <= 0:
            raise SpecError(
                f"A kernel is divided by a positive plain number, not by {other!r}.",
                where=self,
                instead="InverseRoot('key') * kernel, or Learned(...) * kernel.",
            )
        return Product(self, Constant(1.0 / other))

    def pullback(self, feature: AbstractFeature) -> "Pullback":
        """`kernel(feature(k), feature(q))`."""
        return Pullback(self, one_feature(feature))

    def random_features(self, count: int, seed: int = 0) -> "Pullback":
        """A kernel of finite rank that estimates this one."""
        raise SpecError(
            f"{type(self).__name__} has no random features here.",
            where=self,
            instead="RBF, Matern32, Matern52 or Exp(Dot()), which have.",
        )


def lift(value: Any, beside: AbstractKernel) -> AbstractKernel:
    """A kernel, or a number as the constant kernel."""
    if isinstance(value, AbstractKernel):
        return value
    if is_number(value):
        return Constant(value)
    raise SpecError(
        f"A kernel is added to or multiplied with a kernel or a number, not {value!r}.",
        where=beside,
    )


class Dot(AbstractKernel):
    """`k . q`: the kernel of every memory that is a matrix."""

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


class Constant(AbstractKernel):
    """The same value for every pair; `Constant(0)` and `Constant(1)` are the units of `+` and `*`."""

    value: Number = number(default=1.0, at_least=0.0, of_input=False)
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


class Polynomial(AbstractKernel):
    """`(k . q + offset) ** degree`."""

    degree: int = whole(at_least=1, default=2)
    offset: Number = number(default=1.0, at_least=0.0, of_input=False)
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


class Exp(AbstractKernel):
    """`exp(inner(k, q))`: `Exp(InverseRoot("key") * Dot())` is the kernel of softmax attention."""

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
        inner = self.inner.value_at_itself()
        return None if inner is None else math.exp(inner)

    def random_features(self, count: int, seed: int = 0) -> "Pullback":
        if self.inner == Dot():
            return Dot().pullback(RandomFourier(count, spectrum="exp", seed=seed))
        return super().random_features(count, seed)


class _Pair(AbstractKernel):
    """Two kernels, `left` and `right`, put together."""

    left: AbstractKernel = sort(AbstractKernel)
    right: AbstractKernel = sort(AbstractKernel)

    def is_finite(self) -> bool:
        return self.left.is_finite() and self.right.is_finite()

    def is_nonnegative(self) -> bool:
        return self.left.is_nonnegative() and self.right.is_nonnegative()

    def is_bounded(self) -> bool:
        return self.left.is_bounded() and self.right.is_bounded()

    def is_exponential(self) -> bool:
        return self.left.is_exponential() and self.right.is_exponential()

    def _both_at_itself(self) -> tuple[float, float] | None:
        left, right = self.left.value_at_itself(), self.right.value_at_itself()
        return None if left is None or right is None else (left, right)


class Sum(_Pair):
    """`left + right`."""

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
        both = self._both_at_itself()
        return None if both is None else sum(both)

    def __repr__(self) -> str:
        return f"{self.left!r} + {self.right!r}"


class Product(_Pair):
    """`left * right`."""

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
        both = self._both_at_itself()
        return None if both is None else math.prod(both)

    def __repr__(self) -> str:
        def side(kernel: AbstractKernel) -> str:
            if isinstance(kernel, Constant):
                return repr(kernel.value)
            return f"({kernel!r})" if isinstance(kernel, Sum) else repr(kernel)

        if isinstance(self.left, Constant) and isinstance(self.right, Constant):
            return f"{self.left!r} * {side(self.right)}"
        return f"{side(self.left)} * {side(self.right)}"


class Pullback(AbstractKernel):
    """`kernel(feature(k), feature(q))`, made by `kernel.pullback(feature)`."""

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
        dot_of_positive = isinstance(self.kernel, Dot) and self.feature.dot_is_nonnegative()
        return dot_of_positive or self.kernel.is_nonnegative()

    def is_bounded(self) -> bool:
        return self.kernel.is_bounded() or self.feature.is_unit()

    def is_exponential(self) -> bool:
        return self.kernel.is_exponential()

    def value_at_itself(self) -> float | None:
        if isinstance(self.kernel, Dot) and self.feature.is_unit():
            return 1.0
        return self.kernel.value_at_itself()

    def __repr__(self) -> str:
        return f"{self.kernel!r}.pullback({self.feature!r})"
