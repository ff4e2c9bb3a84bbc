"""Radial kernels: functions of the distance of two keys."""

import math
from abc import abstractmethod
from typing import Any

import jax.numpy as jnp

from .._errors import SpecError
from ._feature import RandomFourier
from ._kernel import AbstractKernel, Dot, Pullback
from ._number import Number, number


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
    """A function of the distance `|k - q|` alone, 1 at 0 and positive everywhere."""

    @abstractmethod
    def log_profile(self, squared_distance: Any) -> Any:
        """The logarithm of the kernel at a squared distance."""

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
    return number(default=1.0, above=0.0, of_input=False, meaning="length scale")


class RBF(AbstractRadial):
    """`exp(-|k - q|^2 / (2 scale^2))`, the Gaussian kernel."""

    scale: Number = _scale()

    def log_profile(self, squared_distance: Any) -> Any:
        return -squared_distance / (2 * self.scale**2)

    def random_features(self, count: int, seed: int = 0) -> "Pullback":
        return _random_features(self, count, "rbf", self.scale, seed)


class Laplace(AbstractRadial):
    """`exp(-|k - q| / scale)`."""

    scale: Number = _scale()

    def log_profile(self, squared_distance: Any) -> Any:
        return -_safe_root(squared_distance) / self.scale


class Matern32(AbstractRadial):
    """`(1 + r) exp(-r)` with `r = sqrt(3) |k - q| / scale`."""

    scale: Number = _scale()

    def log_profile(self, squared_distance: Any) -> Any:
        r = math.sqrt(3) * _safe_root(squared_distance) / self.scale
        return jnp.log1p(r) - r

    def random_features(self, count: int, seed: int = 0) -> "Pullback":
        return _random_features(self, count, "matern32", self.scale, seed)


class Matern52(AbstractRadial):
    """`(1 + r + r^2 / 3) exp(-r)` with `r = sqrt(5) |k - q| / scale`."""

    scale: Number = _scale()

    def log_profile(self, squared_distance: Any) -> Any:
        r = math.sqrt(5) * _safe_root(squared_distance) / self.scale
        return jnp.log1p(r + r * r / 3) - r

    def random_features(self, count: int, seed: int = 0) -> "Pullback":
        return _random_features(self, count, "matern52", self.scale, seed)


class RationalQuadratic(AbstractRadial):
    """`(1 + |k - q|^2 / (2 mixture scale^2)) ** -mixture`."""

    scale: Number = _scale()
    mixture: Number = number(default=1.0, above=0.0, of_input=False)

    def log_profile(self, squared_distance: Any) -> Any:
        return -self.mixture * jnp.log1p(squared_distance / (2 * self.mixture * self.scale**2))


def _random_features(
    kernel: AbstractKernel, count: int, spectrum: str, scale: Any, seed: int
) -> Pullback:
    if not isinstance(scale, int | float):
        raise SpecError(
            f"{type(kernel).__name__} with a traced scale has no random features.",
            where=kernel,
            at="scale",
            why="The random directions are drawn when the spec is made, from a known scale.",
            instead="a plain float for scale.",
        )
    return Dot().pullback(RandomFourier(count, spectrum=spectrum, scale=float(scale), seed=seed))
