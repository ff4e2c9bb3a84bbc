"""Gradient descent on any loss: several steps, a window of pairs, momentum."""

import math
from typing import Any, ClassVar

import jax.numpy as jnp

from .._errors import SpecError
from ._base import choice, flag, sort, whole
from ._loss import AbstractLoss, Squared
from ._number import Number, number
from ._write_base import AbstractWrite, rate, Recalled, RECALLS


class Descent(AbstractWrite):
    """`c = -rate dloss/dprediction`, any number of steps, over a window, with momentum.

    `Descent(Inner())` is `Hebb()`, `Descent(Squared())` is `Delta()`.

    **Arguments:**

    - `loss`: what is descended.
    - `rate`: the step θ.
    - `steps`: gradient steps on the same pair.
    - `window`: how many of the latest pairs are descended at every token, all errors against the
        same memory, each with its own rate (Omega).
    - `momentum`: μ of `S <- μ S - θ gradient`, `f <- α f + S` (Titans), between 0 and 1; or `None`.
    - `orthogonalise`: the step is made orthogonal by Newton–Schulz (Atlas); matrices only.
    - `recall`: as in `Delta`.

    **Raises:** `SpecError` where an argument is out of range, and for several steps together with a
    window or momentum.

    ??? example

        ```python
        >>> import jax.numpy as jnp
        >>> import memdsl as md
        >>> from memdsl.spec._write import Recalled
        >>> value, answer = jnp.array([9.0, 0.0]), jnp.array([0.5, 0.5])
        >>> robust = md.Descent(md.Huber(1.0), rate=0.5)
        >>> robust.coefficient(value, Recalled(answer, None, answer), norm=1.0)[0]
        Array([ 0.5 , -0.25], dtype=float32)

        ```

    Source: Behrouz et al. 2025: Titans (momentum), MIRAS (losses), Atlas (window, orthogonalise).
    """

    loss: AbstractLoss = sort(AbstractLoss, default=Squared())
    rate: Number = rate()
    steps: int = whole(at_least=1, default=1)
    window: int = whole(at_least=1, default=1)
    momentum: Number = number(
        default=None, at_least=0.0, at_most=1.0, optional=True, meaning="momentum of the write"
    )
    orthogonalise: bool = flag()
    recall: str = choice(*RECALLS, default="decayed")
    positional: ClassVar[int] = 1

    def __check__(self) -> None:
        if self.steps > 1 and not self.is_plain():
            raise SpecError(
                "Descent takes several steps on a pair, or a window, momentum or orthogonal steps.",
                where=self,
                at="steps",
                why="Several steps on one pair are one longer step along its key; together with the "
                "others they have never been defined.",
                instead="steps=1.",
            )

    def is_plain(self) -> bool:
        """Whether one token is one atom: no window, no momentum, no orthogonalisation."""
        return self.window == 1 and self.momentum is None and not self.orthogonalise

    def get_degree(self) -> float:
        plain = self.is_plain() and (self.steps == 1 or self.loss.degree == 0)
        return self.loss.degree if plain else math.inf

    def reads_before_decay(self) -> bool:
        return self.recall == "previous"

    def coefficient(self, value: Any, recalled: Recalled, norm: Any) -> tuple[Any, Any]:
        prediction, total = recalled.answer, jnp.zeros_like(value)
        for _ in range(self.steps):
            move = -self.rate * self.loss.gradient(prediction, value)
            prediction, total = prediction + norm * move, total + move
        return total, 1.0
