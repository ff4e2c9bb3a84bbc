"""Losses: what a write descends. `gradient` is with respect to the prediction."""

from abc import abstractmethod
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from ._base import choice, plain_float, sort, Spec, written
from ._feature_base import AbstractFeature


class AbstractLoss(Spec):
    """A loss of a prediction and a target. To add one, write `gradient`, and declare `degree`.

    ??? example

        ```python
        >>> import jax.numpy as jnp
        >>> import memdsl as md
        >>> class LogCosh(md.AbstractLoss):
        ...     def gradient(self, prediction, target):
        ...         return jnp.tanh(prediction - target)
        >>> md.degree(md.Descent(LogCosh(), rate=0.1))
        inf

        ```
    """

    degree: ClassVar[float] = float("inf")
    """0 where the gradient does not depend on the prediction, 1 where it is affine in it."""
    example: ClassVar[str] = "Squared() or Huber(1.0)"

    @abstractmethod
    def gradient(self, prediction: Any, target: Any) -> Any:
        """The derivative with respect to the prediction."""

    def after(self, feature: AbstractFeature) -> "After":
        """The loss of `feature(prediction)`: `Squared().after(LayerNorm())`, say."""
        return After(self, feature)


class After(AbstractLoss):
    """`loss(feature(prediction), target)`, written `loss.after(feature)`.

    **Raises:** `SpecError` where the second is no feature.

    ??? example

        ```python
        >>> import jax.numpy as jnp
        >>> import memdsl as md
        >>> loss = md.Squared().after(md.Scale(2.0))
        >>> loss.gradient(jnp.array([3.0]), jnp.array([1.0]))  # 2 (2 * 3 - 1)
        Array([10.], dtype=float32)

        ```

    Source: the loss after a layer norm of Sun et al. 2024 (TTT).
    """

    loss: AbstractLoss = sort(AbstractLoss)
    feature: AbstractFeature = sort(AbstractFeature)

    def gradient(self, prediction: Any, target: Any) -> Any:
        mapped, pull = jax.vjp(self.feature, prediction)
        return pull(self.loss.gradient(mapped, target))[0]

    def __repr__(self) -> str:
        return f"{written(self.loss, Spec.binding)}.after({self.feature!r})"


class Inner(AbstractLoss):
    """`-prediction . target`: its descent is Hebb's rule.

    ??? example

        ```python
        >>> import jax.numpy as jnp
        >>> import memdsl as md
        >>> md.Inner().gradient(jnp.array([5.0, 5.0]), jnp.array([1.0, -2.0]))
        Array([-1.,  2.], dtype=float32)

        ```
    """

    degree: ClassVar[float] = 0

    def gradient(self, prediction: Any, target: Any) -> Any:
        return -target


class Squared(AbstractLoss):
    """`|prediction - target|^2 / 2`: its descent is the delta rule.

    ??? example

        ```python
        >>> import jax.numpy as jnp
        >>> import memdsl as md
        >>> md.Squared().gradient(jnp.array([5.0, 5.0]), jnp.array([1.0, -2.0]))
        Array([4., 7.], dtype=float32)

        ```
    """

    degree: ClassVar[float] = 1

    def gradient(self, prediction: Any, target: Any) -> Any:
        return prediction - target


class Power(AbstractLoss):
    """`sum |error|^p`; note the factor p in its gradient, `p sign(error) |error|^(p - 1)`.

    **Arguments:**

    - `p`: above 1.

    **Raises:** `SpecError` where p is not above 1.

    ??? example

        ```python
        >>> import jax.numpy as jnp
        >>> import memdsl as md
        >>> md.Power(3.0).gradient(jnp.array([1.0, 0.0]), jnp.array([-1.0, 1.0]))
        Array([12., -3.], dtype=float32)

        ```

    Source: Moneta (Behrouz et al. 2025, MIRAS), with p = 3.
    """

    p: float = plain_float(above=1.0, default=3.0)
    positional: ClassVar[int] = 1

    def gradient(self, prediction: Any, target: Any) -> Any:
        error = prediction - target
        nonzero = error != 0
        size = jnp.where(nonzero, jnp.abs(jnp.where(nonzero, error, 1)), 0)
        return self.p * jnp.sign(error) * size ** (self.p - 1)


class Huber(AbstractLoss):
    """Squared near 0 and linear beyond `delta`: an outlier pulls no harder than `delta`.

    The gradient is the error, clipped to `delta` coordinate by coordinate, or shortened to the norm
    `delta` as a whole. `"switch"` is the form that Yaad is quoted with, which jumps where the norm
    passes `delta`: the error within it, and `delta sign(error)` beyond.

    **Arguments:**

    - `delta`: above 0.
    - `by`: `"coordinate"`, `"norm"` or `"switch"`.

    **Raises:** `SpecError` where an argument is out of range.

    ??? example

        ```python
        >>> import jax.numpy as jnp
        >>> import memdsl as md
        >>> prediction, target = jnp.array([3.0, 4.0]), jnp.zeros(2)
        >>> md.Huber(1.0).gradient(prediction, target)
        Array([1., 1.], dtype=float32)
        >>> [round(float(x), 4) for x in md.Huber(1.0, by="norm").gradient(prediction, target)]
        [0.6, 0.8]

        ```

    Source: Yaad (Behrouz et al. 2025, MIRAS).
    """

    delta: float = plain_float(above=0.0, default=1.0)
    by: str = choice("coordinate", "norm", "switch", default="coordinate")
    positional: ClassVar[int] = 1

    def gradient(self, prediction: Any, target: Any) -> Any:
        error = prediction - target
        if self.by == "coordinate":
            return jnp.clip(error, -self.delta, self.delta)
        square = jnp.sum(error * error)
        far = square > self.delta**2
        if self.by == "switch":
            return jnp.where(far, self.delta * jnp.sign(error), error)
        return error * jnp.where(far, self.delta * jax.lax.rsqrt(jnp.where(far, square, 1)), 1)


class ValueShift(AbstractLoss):
    """`(|error| + delta)^2 / 2`: the squared error of the worst value within `delta` of the target.

    The gradient is `(1 + delta / |error|) error`, and 0 where the error is.

    **Arguments:**

    - `delta`: how far the value may be off, above 0.

    **Raises:** `SpecError` where delta is not above 0.

    ??? example

        ```python
        >>> import jax.numpy as jnp
        >>> import memdsl as md
        >>> print(md.ValueShift(5.0).gradient(jnp.array([3.0, 4.0]), jnp.zeros(2)))
        [6. 8.]

        ```

    Source: the robust objective of Behrouz et al. 2025 (MIRAS).
    """

    delta: float = plain_float(above=0.0, default=1.0)
    positional: ClassVar[int] = 1

    def gradient(self, prediction: Any, target: Any) -> Any:
        error = prediction - target
        square = jnp.sum(error * error)
        wrong = square > 0
        return error * jnp.where(
            wrong, 1 + self.delta * jax.lax.rsqrt(jnp.where(wrong, square, 1)), 0
        )


class Hinge(AbstractLoss):
    """`sum max(0, 1 - target * prediction)`, for targets of +1 and -1.

    ??? example

        ```python
        >>> import jax.numpy as jnp
        >>> import memdsl as md
        >>> md.Hinge().gradient(jnp.array([0.5, 2.0]), jnp.array([1.0, 1.0]))
        Array([-1.,  0.], dtype=float32)

        ```
    """

    def gradient(self, prediction: Any, target: Any) -> Any:
        return jnp.where(target * prediction < 1, -target, jnp.zeros_like(target))


class CrossEntropy(AbstractLoss):
    """`-target . log softmax(prediction)`, for targets that are probabilities.

    ??? example

        ```python
        >>> import jax.numpy as jnp
        >>> import memdsl as md
        >>> md.CrossEntropy().gradient(jnp.zeros(2), jnp.array([1.0, 0.0]))
        Array([-0.5,  0.5], dtype=float32)

        ```
    """

    def gradient(self, prediction: Any, target: Any) -> Any:
        return jax.nn.softmax(prediction) * jnp.sum(target) - target
