"""Learning from a teacher: a random network gives the answers, and the student sees every row once."""

from typing import Literal

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ._learn import Problem


TeacherName = Literal["tanh", "relu", "hard"]

INPUTS, HIDDEN, OUTPUTS = 16, 32, 4
TRAIN, TEST = 6144, 2000

_TEACHERS: dict[TeacherName, tuple[str, float]] = {
    "tanh": ("tanh", 1.0),
    "relu": ("relu", 1.0),
    "hard": ("tanh", 3.0),
}


def half_square(
    predictions: Float[Array, "batch output"], targets: Float[Array, "batch output"]
) -> Float[Array, ""]:
    r"""Half the mean squared error, $\frac{1}{2B} \sum_b \lVert y_b - t_b \rVert^2$.

    ??? example

        ```python
        >>> import jax.numpy as jnp
        >>> from memdsl.experiments import half_square
        >>> print(half_square(jnp.zeros((2, 3)), jnp.ones((2, 3))))
        1.5

        ```
    """
    return 0.5 * jnp.mean(jnp.sum((predictions - targets) ** 2, axis=-1))


def square_error(
    predictions: Float[Array, "row output"], targets: Float[Array, "row output"]
) -> Float[Array, ""]:
    """The mean of the squared errors of all numbers."""
    return jnp.mean((predictions - targets) ** 2)


def teacher(name: TeacherName, seed: int, rows: int = TRAIN, *, unequal: bool = False) -> Problem:
    r"""Rows on the unit sphere, and what a random network with one hidden layer answers to them.

    $$y = C^\top a(4 A^\top x + b), \quad A_{ij} \sim \mathcal N(0, \tfrac{g^2}{16}), \quad
      b_j \sim \mathcal N(0, \tfrac14), \quad C_{jk} \sim \mathcal N(0, \tfrac1{32})$$

    with 16 inputs, 32 hidden units and 4 outputs, each of which is then centred and scaled to unit
    variance on the training rows: whoever answers the mean has the error 1. `"tanh"` and `"relu"` are
    the activation a, with the gain g of 1; `"hard"` is tanh with 3, far into its saturation.

    **Arguments:**

    - `name`: the teacher.
    - `seed`: of its weights and of the rows.
    - `rows`: how many train.
    - `unequal`: the student is given the i-th of d numbers of a row times $10^{-2i/(d-1)}$: the
        covariance of its inputs has a condition of about $10^4$, and the answers are what they were.

    **Returns:** a `Problem` of these training rows and 2000 test rows.

    ??? example

        ```python
        >>> from memdsl.experiments import teacher
        >>> problem = teacher("tanh", seed=0)
        >>> problem.train_inputs.shape, problem.train_targets.shape
        ((6144, 16), (6144, 4))

        ```
    """
    activation, gain = _TEACHERS[name]
    rng = np.random.default_rng(1000 + seed)
    first = rng.normal(size=(INPUTS, HIDDEN)) * gain / 4
    bias = 0.5 * rng.normal(size=HIDDEN)
    second = rng.normal(size=(HIDDEN, OUTPUTS)) / HIDDEN**0.5
    inputs = rng.normal(size=(rows + TEST, INPUTS))
    inputs /= np.linalg.norm(inputs, axis=1, keepdims=True)
    hidden = 4 * inputs @ first + bias
    hidden = np.tanh(hidden) if activation == "tanh" else np.maximum(hidden, 0)
    answers = hidden @ second
    answers = (answers - answers[:rows].mean(axis=0)) / answers[:rows].std(axis=0)
    if unequal:
        inputs *= np.logspace(0, -2, INPUTS)
    inputs, answers = inputs.astype(np.float32), answers.astype(np.float32)
    return Problem(
        inputs[:rows],
        answers[:rows],
        inputs[rows:],
        answers[rows:],
        OUTPUTS,
        half_square,
        "test_error",
        square_error,
        is_square=True,
    )
