"""Gradient descent on any loss: several steps, a window of pairs, momentum, minibatches."""

import math
from typing import Any, ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float

from .._errors import SpecError
from ._base import choice, flag, sort, whole
from ._loss import AbstractLoss, Squared
from ._number import Number, number
from ._write_base import AbstractWrite, rate, Recalled, RECALLS


class Descent(AbstractWrite):
    """`c = -rate dloss/dprediction`, any number of steps, over a window, with momentum.

    `Descent(Inner())` is `Hebb()`, `Descent(Squared())` is `Delta()`. In general a token does

        g <- sum_i rate_i dloss(a(k_i), v_i)/da     over the latest `window` pairs
        s <- momentum s - g;                        S <- gate S + s (or its orthogonal factor)
        f <- f' + gain S

    where f' is the function at the end of the last minibatch, faded since, and S what this one has
    moved: 0 at its first token. Every error of a minibatch is of one function a, f at its beginning.
    With `minibatch=1` and `gain=1` that is `f <- gate f + s`.

    **Arguments:**

    - `loss`: what is descended.
    - `rate`: the step θ, one a pair: each pair of a window comes with its own.
    - `steps`: gradient steps on the same pair.
    - `window`: how many of the latest pairs are descended at every token, all errors against the
        same memory, each with its own rate (Omega).
    - `momentum`: μ of `s <- μ s - g`, `f <- α f + s` (Titans), between 0 and 1; or `None`.
    - `orthogonalise`: the step is made orthogonal by Newton–Schulz (Atlas), for any kernel: see
        `orthogonalised`. Its length is then that of `gain` alone.
    - `recall`: as in `Delta`. In a minibatch, whether a has faded since its beginning.
    - `minibatch`: how many tokens are descended from one function (TTT, Titans). Tokens are counted
        from the last start, those that are masked left out.
    - `gain`: η, what a whole step is multiplied with as it is applied; of a minibatch, all that it has
        moved so far, by the gain of the latest token.

    **Raises:** `SpecError` where an argument is out of range, and for several steps together with a
    window, momentum, a minibatch or a gain.

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

    Source: Behrouz et al. 2025: Titans (momentum), MIRAS (losses), Atlas (window, orthogonalise); Sun
    et al. 2024, "Learning to (Learn at Test Time)", section 2.4 (minibatches).
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
    minibatch: int = whole(at_least=1, default=1)
    gain: Number = number(default=1.0, meaning="gain of the step of the write")
    positional: ClassVar[int] = 1

    def __check__(self) -> None:
        if self.steps > 1 and not self.is_plain():
            raise SpecError(
                "Descent takes several steps on a pair, or what makes a step of more than a pair.",
                where=self,
                at="steps",
                why="Several steps on one pair are one longer step along its key; together with a "
                "window, momentum, a minibatch, a gain or orthogonal steps they have never been defined.",
                instead="steps=1.",
            )

    def is_plain(self) -> bool:
        """Whether one token is one atom, by one plain step: nothing is remembered beside f."""
        alone = self.window == 1 and self.minibatch == 1 and self.momentum is None
        return alone and not self.orthogonalise and not self.has_gain()

    def has_gain(self) -> bool:
        """Whether the whole step is multiplied by anything but 1."""
        return not (isinstance(self.gain, int | float) and self.gain == 1)

    def keeps_step(self) -> bool:
        """Whether what the minibatch has moved must be known apart from f: its gain may change."""
        return self.minibatch > 1 and not isinstance(self.gain, int | float)

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


def orthogonalised(
    matrix: Float[Array, "rows columns"], gram: Float[Array, "rows rows"] | None = None
) -> Float[Array, "rows columns"]:
    """The orthogonal factor of a matrix, roughly: five steps of Newton and Schulz.

    $X \\leftarrow aX + (bXX^\\top + c(XX^\\top)^2)X$ from $X = M / \\|M\\|_F$, with (a, b, c) = (3.4445,
    -4.7750, 2.0315): every singular value ends between about 0.7 and 1.2, a tiny one grows by 3.4^5, and
    0 stays 0. The norm has no epsilon: the scale of M does not matter.

    With a Gram matrix K, M holds the coefficients of a function, $\\sum_i \\kappa(k_i, \\cdot) m_i$, and
    so does what is returned. In any features of the kernel it is the factor above: the steps are
    $X \\leftarrow X (a + bA + cA^2)$, with $A = X^\\top K X$, and see the features in A alone.

    **Arguments:**

    - `matrix`: `[rows, columns]`; the smaller side is the one that is squared.
    - `gram`: `[rows, rows]`, of the kernel; none for the matrix itself.

    **Returns:** `[rows, columns]`.

    ??? example

        ```python
        >>> import jax.numpy as jnp
        >>> from memdsl.spec._descent import orthogonalised
        >>> found = orthogonalised(jnp.array([[3.0, 0.0], [0.0, -2.0], [0.0, 0.0]]))
        >>> print(found.round(2))
        [[ 1.12  0.  ]
         [ 0.   -0.68]
         [ 0.    0.  ]]

        ```

    Source: Jordan et al. 2024 (Muon), whose coefficients these are; the inner step of Behrouz et al.
    2025, "Atlas", section 5.
    """
    a, b, c = 3.4445, -4.7750, 2.0315
    # by the largest number first, so that the square of a small matrix does not vanish
    largest = jnp.max(jnp.abs(matrix), initial=0)
    scaled = matrix / jnp.where(largest == 0, 1, largest)
    square = jnp.sum(scaled * (scaled if gram is None else gram @ scaled))
    x = scaled / jnp.sqrt(jnp.where(square > 0, square, 1))
    if gram is not None:
        inner = x.T @ gram @ x
        for _ in range(5):
            step = a * jnp.eye(len(inner), dtype=inner.dtype) + b * inner + c * inner @ inner
            x, inner = x @ step, step @ inner @ step
        return x
    tall = x.shape[0] > x.shape[1]
    x = x.T if tall else x
    for _ in range(5):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if tall else x
