"""Radial kernels: functions of the distance of two keys."""

import math
from abc import abstractmethod
from typing import Any, Self

import jax.numpy as jnp

from .._errors import SpecError
from ._base import described, fields_of
from ._feature import RandomFourier
from ._kernel import AbstractKernel, Dot
from ._median import median_distance
from ._number import Number, number, OF_A_KERNEL


def _squared_distances(keys: Any, queries: Any) -> Any:
    """`|k - q|^2` of every pair, by one matrix product; never below 0, gradient finite at 0."""
    distances = (
        jnp.sum(keys * keys, -1)[:, None]
        + jnp.sum(queries * queries, -1)[None, :]
        - 2 * keys @ queries.T
    )
    return jnp.maximum(distances, 0)


def _safe_root(x: Any) -> Any:
    """`sqrt(x)` with gradient 0 (not inf) at 0."""
    positive = x > 0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, x, 1)), 0)


class AbstractRadial(AbstractKernel):
    """A function of the distance `|k - q|` alone, 1 at 0 and positive everywhere.

    To add one, write `log_profile`; values, logarithms and matrices of pairs follow.

    ??? example

        ```python
        >>> import jax.numpy as jnp
        >>> import memdsl as md
        >>> class Compact(md.AbstractRadial):
        ...     def log_profile(self, squared_distance):
        ...         return -jnp.log1p(squared_distance**2)
        >>> round(float(Compact()(jnp.array([1.0, 0.0]), jnp.array([0.0, 1.0]))), 4)
        0.2

        ```
    """

    @abstractmethod
    def log_profile(self, squared_distance: Any) -> Any:
        """The logarithm of the kernel at a squared distance."""

    @classmethod
    def median(cls, keys: Any, factor: float = 1.0, *, most: int = 1000, **others: Any) -> Self:
        r"""The kernel with `factor` times the median distance of some keys for its scale.

        $$\mathrm{scale} = \mathrm{factor} \cdot \operatorname{median}_{i < j} |k_i - k_j|$$

        A plain float, computed once and outside of `jit`: the spec holds no keys, and is saved and
        compared as ever.

        **Arguments:**

        - `keys`: `[keys, key size]`, such as the inputs of a first batch; more axes in front will do.
        - `factor`: positive. Fractions make the kernel local.
        - `most`: of more keys than this, that many are drawn, the same ones each time.
        - `others`: the other arguments of the kernel.

        **Raises:** `SpecError` where the median distance is 0 or no number, where the
        factor is not positive, and for a kernel without a `scale`.

        ??? example

            ```python
            >>> import jax.numpy as jnp
            >>> import memdsl as md
            >>> keys = jnp.array([[0.0, 0.0], [3.0, 4.0], [6.0, 8.0]])
            >>> md.RBF.median(keys), md.RationalQuadratic.median(keys, 0.5, mixture=2.0)
            (RBF(scale=5.0), RationalQuadratic(scale=2.5, mixture=2.0))

            ```

        The usual rule of kernel methods; `factor` is what is left to choose.
        """
        line = f"{cls.__name__}.median(keys, {described(factor)})"
        if "scale" not in {field.name for field in fields_of(cls)}:
            raise SpecError(
                f"{cls.__name__} has no scale.",
                where=line,
                instead="a kernel with a field `scale: md.Number`.",
            )
        plain = isinstance(factor, int | float) and not isinstance(factor, bool)
        if not plain or not 0 < factor < math.inf:
            raise SpecError(
                f"The factor of the median must be a positive number, and is {described(factor)}.",
                where=line,
                instead="1.0, or a fraction of it for a kernel that is more local.",
            )
        scale: Any = float(factor) * median_distance(keys, most, line)
        return cls(**{"scale": scale, **others})

    def __call__(self, k: Any, q: Any) -> Any:
        return jnp.exp(self.log(k, q))

    def log(self, k: Any, q: Any) -> Any:
        return self.log_profile(jnp.sum((k - q) ** 2))

    def pairs(self, keys: Any, queries: Any) -> Any:
        return jnp.exp(self.log_pairs(keys, queries))

    def log_pairs(self, keys: Any, queries: Any) -> Any:
        return self.log_profile(_squared_distances(keys, queries))

    def diagonal(self, keys: Any) -> Any:
        return jnp.ones(len(keys), keys.dtype)

    def is_nonnegative(self) -> bool:
        return True

    def is_exponential(self) -> bool:
        return True

    def value_at_itself(self) -> float | None:
        return 1.0


def _scale() -> Any:
    return number(default=1.0, above=0.0, of_input=False, meaning="length scale", fixed=OF_A_KERNEL)


class RBF(AbstractRadial):
    """`exp(-|k - q|^2 / (2 scale^2))`, the Gaussian kernel.

    **Arguments:**

    - `scale`: the length scale, positive.

    **Raises:** `SpecError` where the scale is not positive, or changes from token to token.

    ??? example

        ```python
        >>> import jax.numpy as jnp
        >>> import memdsl as md
        >>> round(float(md.RBF(scale=0.5)(jnp.array([1.0, 0.0]), jnp.array([0.0, 0.0]))), 4)
        0.1353

        ```

    Source: the kernel of kernel least mean squares, Liu et al. 2008.
    """

    scale: Number = _scale()

    def log_profile(self, squared_distance: Any) -> Any:
        return -squared_distance / (2 * self.scale**2)

    def random_features(self, count: int, seed: int = 0) -> AbstractKernel:
        return _random_features(self, count, "rbf", self.scale, seed)


class Laplace(AbstractRadial):
    """`exp(-|k - q| / scale)`, the Matérn kernel of order 1/2.

    **Arguments:**

    - `scale`: the length scale, positive.

    **Raises:** `SpecError` as `RBF`.

    ??? example

        ```python
        >>> import jax.numpy as jnp
        >>> import memdsl as md
        >>> round(float(md.Laplace(scale=0.5)(jnp.array([1.0, 0.0]), jnp.array([0.0, 0.0]))), 4)
        0.1353

        ```
    """

    scale: Number = _scale()

    def log_profile(self, squared_distance: Any) -> Any:
        return -_safe_root(squared_distance) / self.scale

    def log_pairs(self, keys: Any, queries: Any) -> Any:
        # The root makes 1e-4 of what rounding leaves of a squared distance, so no difference of products.
        return self.log_profile(jnp.sum((keys[:, None] - queries[None, :]) ** 2, axis=-1))

    def random_features(self, count: int, seed: int = 0) -> AbstractKernel:
        return _random_features(self, count, "laplace", self.scale, seed)


class Matern32(AbstractRadial):
    """`(1 + r) exp(-r)` with `r = sqrt(3) |k - q| / scale`, the Matérn kernel of order 3/2.

    **Arguments:**

    - `scale`: the length scale, positive.

    **Raises:** `SpecError` as `RBF`.

    ??? example

        ```python
        >>> import jax.numpy as jnp
        >>> import memdsl as md
        >>> round(float(md.Matern32(scale=0.5)(jnp.array([1.0, 0.0]), jnp.array([0.0, 0.0]))), 4)
        0.1397

        ```
    """

    scale: Number = _scale()

    def log_profile(self, squared_distance: Any) -> Any:
        r = math.sqrt(3) * _safe_root(squared_distance) / self.scale
        return jnp.log1p(r) - r

    def random_features(self, count: int, seed: int = 0) -> AbstractKernel:
        return _random_features(self, count, "matern32", self.scale, seed)


class Matern52(AbstractRadial):
    """`(1 + r + r^2 / 3) exp(-r)`, `r = sqrt(5) |k - q| / scale`: the Matérn kernel of order 5/2.

    **Arguments:**

    - `scale`: the length scale, positive.

    **Raises:** `SpecError` as `RBF`.

    ??? example

        ```python
        >>> import jax.numpy as jnp
        >>> import memdsl as md
        >>> round(float(md.Matern52(scale=0.5)(jnp.array([1.0, 0.0]), jnp.array([0.0, 0.0]))), 4)
        0.1387

        ```
    """

    scale: Number = _scale()

    def log_profile(self, squared_distance: Any) -> Any:
        r = math.sqrt(5) * _safe_root(squared_distance) / self.scale
        return jnp.log1p(r + r * r / 3) - r

    def random_features(self, count: int, seed: int = 0) -> AbstractKernel:
        return _random_features(self, count, "matern52", self.scale, seed)


class RationalQuadratic(AbstractRadial):
    """`(1 + |k - q|^2 / (2 mixture scale^2)) ** -mixture`: Gaussians of many scales, mixed.

    **Arguments:**

    - `scale`: the length scale, positive.
    - `mixture`: positive; `RBF` as it goes to infinity.

    **Raises:** `SpecError` as `RBF`.

    ??? example

        ```python
        >>> import jax.numpy as jnp
        >>> import memdsl as md
        >>> kernel = md.RationalQuadratic(scale=0.5)
        >>> round(float(kernel(jnp.array([1.0, 0.0]), jnp.array([0.0, 0.0]))), 4)
        0.3333

        ```
    """

    scale: Number = _scale()
    mixture: Number = number(default=1.0, above=0.0, of_input=False, fixed=OF_A_KERNEL)

    def log_profile(self, squared_distance: Any) -> Any:
        return -self.mixture * jnp.log1p(squared_distance / (2 * self.mixture * self.scale**2))


def _random_features(
    kernel: AbstractKernel, count: int, spectrum: str, scale: Any, seed: int
) -> AbstractKernel:
    if not isinstance(scale, int | float):
        raise SpecError(
            f"{type(kernel).__name__} with a traced scale has no random features.",
            where=kernel,
            at="scale",
            why="The random directions are drawn once, for a scale that does not change.",
            instead="a float.",
        )
    return Dot().pullback(RandomFourier(count, spectrum=spectrum, scale=float(scale), seed=seed))
