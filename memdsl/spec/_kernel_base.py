"""What a kernel is: a symmetric similarity of two keys, and the facts that are known of it."""

import math
from abc import abstractmethod
from typing import Any, ClassVar, TYPE_CHECKING

import jax
import jax.numpy as jnp

from .._errors import SpecError
from ._base import described, Spec
from ._feature import AbstractFeature, one_feature
from ._number import is_number


if TYPE_CHECKING:
    from ._algebra import Product, Pullback, Sum


class AbstractKernel(Spec):
    """A symmetric similarity `kernel(k, q)` of two keys.

    Kernels add, multiply, are multiplied and divided by positive numbers, and are pulled back along
    a feature. To add one, write `__call__`, on single keys; it is registered nowhere. Declare
    `nonnegative = True` where it never is below 0, `stationary_value = 1.0` where `kernel(k, k)` is
    a constant, and `bounded = True` where it has a bound. Its parameters are annotated `md.Number`:
    they may then be plain, swept or learned like any other.

    ??? example

        ```python
        >>> import jax.numpy as jnp
        >>> import memdsl as md
        >>> class Cauchy(md.AbstractKernel):
        ...     scale: md.Number = 1.0
        ...     nonnegative = True
        ...
        ...     def __call__(self, k, q):
        ...         return 1 / (1 + jnp.sum((k - q) ** 2) / self.scale**2)
        >>> 2.0 * Cauchy(scale=md.Learned(3.0)) + md.Dot()
        2.0 * Cauchy(scale=Learned(3.0)) + Dot()

        ```
    """

    nonnegative: ClassVar[bool] = False
    stationary_value: ClassVar[float | None] = None
    bounded: ClassVar[bool] = False
    shared: ClassVar[bool] = True
    example: ClassVar[str] = "Dot() or RBF(scale=1.0)"

    @classmethod
    def suggestion(cls, value: Any) -> str:
        if isinstance(value, AbstractFeature):
            return f"Dot().pullback({value!r})."
        return f"Constant({value!r})." if is_number(value) else f"{cls.example}."

    @abstractmethod
    def __call__(self, k: Any, q: Any) -> Any:
        """The similarity of two keys, a scalar."""

    def log(self, k: Any, q: Any) -> Any:
        """The logarithm of the similarity; −inf where it is 0."""
        return jnp.log(self(k, q))

    def pairs(self, keys: Any, queries: Any) -> Any:
        """Of every pair, by matrix products where it can: `[n, d], [m, d] -> [n, m]`."""
        return jax.vmap(lambda k: jax.vmap(lambda q: self(k, q))(queries))(keys)

    def log_pairs(self, keys: Any, queries: Any) -> Any:
        """The logarithm of `pairs`, exact where the kernel is an exponential."""
        return jax.vmap(lambda k: jax.vmap(lambda q: self.log(k, q))(queries))(keys)

    def diagonal(self, keys: Any) -> Any:
        """`kernel(k, k)` of each key: `[n, d] -> [n]`."""
        return jax.vmap(lambda k: self(k, k))(keys)

    def rank(self, key_size: int) -> float:
        """How many features the kernel has; `inf` where there are no finitely many."""
        return math.inf

    def features(self, k: Any) -> Any:
        """`phi(k)` with `phi(k) . phi(q) = kernel(k, q)`, where the rank is finite."""
        raise SpecError(
            f"{self!r} has infinitely many features.",
            where=self,
            instead="pairs(keys, queries), or a kernel of finite rank: .random_features(256).",
        )

    def is_finite(self) -> bool:
        """Whether the rank is finite."""
        return False

    def is_nonnegative(self) -> bool:
        """Whether `kernel(k, q) >= 0` for all keys."""
        return self.nonnegative

    def is_nonnegative_after(self, feature: AbstractFeature) -> bool:
        """Whether `kernel(feature(k), feature(q)) >= 0` for all keys."""
        return self.is_nonnegative()

    def is_bounded(self) -> bool:
        """Whether `kernel(k, k)` has a bound over all keys."""
        return self.bounded or self.value_at_itself() is not None

    def is_exponential(self) -> bool:
        """Whether `log` is computed without first computing the kernel."""
        return False

    def value_at_itself(self) -> float | None:
        """The constant value of `kernel(k, k)`, or `None` where it depends on k."""
        return self.stationary_value

    def value_after(self, feature: AbstractFeature) -> float | None:
        """The constant value of `kernel(feature(k), feature(k))`, or `None`."""
        return self.value_at_itself()

    def __add__(self, other: Any) -> "Sum":
        from ._algebra import Sum

        return Sum(self, lift(other, self))

    def __radd__(self, other: Any) -> "AbstractKernel":
        from ._algebra import Sum

        if is_number(other) and other == 0:  # so that the built-in sum works
            return self
        return Sum(lift(other, self), self)

    def __mul__(self, other: Any) -> "Product":
        from ._algebra import Product

        return Product(self, lift(other, self))

    def __rmul__(self, other: Any) -> "Product":
        from ._algebra import Product

        return Product(lift(other, self), self)

    def __truediv__(self, other: Any) -> "Product":
        good = isinstance(other, int | float) and not isinstance(other, bool)
        if not good or not math.isfinite(other) or other <= 0:
            raise SpecError(
                f"A kernel is divided by a positive plain number, not by {described(other)}.",
                where=self,
                instead='a product: InverseRoot("key") * kernel, or Learned(0.1) * kernel.',
            )
        return self * (1.0 / other)

    def pullback(self, feature: AbstractFeature) -> "Pullback":
        """The kernel `kernel(feature(k), feature(q))`."""
        from ._algebra import Pullback

        return Pullback(self, one_feature(feature, self))

    def random_features(self, count: int, seed: int = 0) -> "AbstractKernel":
        """A kernel of finite rank that estimates this one.

        **Arguments:**

        - `count`: how many random directions; the error falls as `1 / sqrt(count)`.
        - `seed`: of the directions.

        **Raises:** `SpecError` where no spectral density is known, or a parameter is traced.
        """
        raise SpecError(
            f"{type(self).__name__} has no random features here.",
            where=self,
            why="Random features are drawn from the spectral density of a kernel, known for few.",
            instead="RBF, Laplace, Matern32, Matern52, or Exp of Dot or of a plain multiple of it.",
        )


def lift(value: Any, beside: AbstractKernel) -> AbstractKernel:
    """A kernel, or a number as the constant kernel."""
    from ._algebra import Constant

    if isinstance(value, AbstractKernel):
        return value
    if is_number(value):
        try:
            return Constant(value)
        except SpecError as error:
            what = error.what.replace("Constant.value", "A number beside a kernel")
            why, instead = error.why, error.instead
            raise SpecError(what, where=beside, why=why, instead=instead) from None
    raise SpecError(
        f"A kernel is added to, or multiplied by, a kernel or a number, not {described(value)}.",
        where=beside,
        instead="a kernel such as Dot(), or a number such as 2.0 or Learned(1.0).",
    )
