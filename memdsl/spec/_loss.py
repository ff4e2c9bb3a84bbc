"""Losses: what a write descends. `gradient` is with respect to the prediction."""

from abc import abstractmethod
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from ._base import Spec, choice, plain_float


class AbstractLoss(Spec):
    """A loss of a prediction and a target."""

    degree: ClassVar[float] = float("inf")
    """0 where the gradient does not depend on the prediction, 1 where it is affine in it."""

    @abstractmethod
    def gradient(self, prediction: Any, target: Any) -> Any:
        """The derivative with respect to the prediction."""


class Inner(AbstractLoss):
    """`-prediction . target`: its descent is Hebb's rule."""

    degree: ClassVar[float] = 0

    def gradient(self, prediction: Any, target: Any) -> Any:
        return -target


class Squared(AbstractLoss):
    """`|prediction - target|^2 / 2`: its descent is the delta rule."""

    degree: ClassVar[float] = 1

    def gradient(self, prediction: Any, target: Any) -> Any:
        return prediction - target


class Power(AbstractLoss):
    """`sum |error|^p` (Moneta: p = 3); note the factor p in its gradient."""

    p: float = plain_float(above=1.0, default=3.0)
    positional: ClassVar[int] = 1

    def gradient(self, prediction: Any, target: Any) -> Any:
        error = prediction - target
        nonzero = error != 0
        size = jnp.where(nonzero, jnp.abs(jnp.where(nonzero, error, 1)), 0)
        return self.p * jnp.sign(error) * size ** (self.p - 1)


class Huber(AbstractLoss):
    """Squared near 0 and linear beyond `delta` (Yaad), by coordinate or by norm."""

    delta: float = plain_float(above=0.0, default=1.0)
    by: str = choice("coordinate", "norm", default="coordinate")
    positional: ClassVar[int] = 1

    def gradient(self, prediction: Any, target: Any) -> Any:
        error = prediction - target
        if self.by == "coordinate":
            return jnp.clip(error, -self.delta, self.delta)
        square = jnp.sum(error * error)
        far = square > self.delta**2
        return error * jnp.where(far, self.delta * jax.lax.rsqrt(jnp.where(far, square, 1)), 1)


class Hinge(AbstractLoss):
    """`sum max(0, 1 - target * prediction)`, for targets of +1 and -1."""

    def gradient(self, prediction: Any, target: Any) -> Any:
        return jnp.where(target * prediction < 1, -target, jnp.zeros_like(target))


class CrossEntropy(AbstractLoss):
    """`-target . log softmax(prediction)`, for targets that are probabilities."""

    def gradient(self, prediction: Any, target: Any) -> Any:
        return jax.nn.softmax(prediction) * jnp.sum(target) - target
