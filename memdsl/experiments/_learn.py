"""Learning from rows in a given order: what every row of the growth experiments shares."""

from collections.abc import Callable, Iterator, Sequence
from time import perf_counter
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int

import memdsl as md

from ..grow._fit import advance, starting
from ..state import BufferState
from ._classification import Classification


class Problem(NamedTuple):
    """Rows to learn from, rows to be tested on, and how predictions are judged."""

    train_inputs: Float[np.ndarray, "train input"]
    train_targets: np.ndarray
    test_inputs: Float[np.ndarray, "test input"]
    test_targets: np.ndarray
    outputs: int
    """How many numbers are predicted for a row."""
    loss: Callable[[Array, Array], Array]
    """Of the predictions and targets of a batch; what is learned by."""
    measure: str
    """What a test measures, `"test_accuracy"` or `"test_error"`."""
    score: Callable[[Array, Array], Array]
    """That, of the predictions and targets of all test rows."""
    is_square: bool = False
    """Whether the loss is a mean of squares, whose curvature is the same everywhere."""
    about: str = ""
    """Where the rows come from."""

    @property
    def width(self) -> int:
        """The size of one input."""
        return self.train_inputs.shape[1]


class Course(NamedTuple):
    """How long is learned, and how often it is tested."""

    epochs: int
    batch: int
    parts: int = 1
    """Tests in the first epoch, equally far apart; every other epoch has one, at its end."""
    shuffled: bool = True
    """Whether every epoch has an order of its own; otherwise it is that of the rows."""
    looks_back: bool = False
    """Whether a test also takes the loss of all training rows."""

    def steps(self, rows: int) -> int:
        """Whole batches in an epoch; rows left over wait for another one."""
        return rows // self.batch

    def all_steps(self, rows: int) -> int:
        """Whole batches in all epochs."""
        return self.epochs * self.steps(rows)

    def atoms(self, rows: int) -> int:
        """How many pairs are written in all."""
        return self.all_steps(rows) * self.batch

    def merges(self, rows: int) -> bool:
        """Whether a row is seen more than once."""
        return self.atoms(rows) > rows

    def parts_of(self, rows: int) -> int:
        """In how many equal parts of whole steps the first epoch is cut, at most `parts`."""
        steps = self.steps(rows)
        return max(n for n in range(1, self.parts + 1) if steps % n == 0)

    def orders(self, rows: int, seed: int) -> Iterator[Int[np.ndarray, "step batch"]]:
        """The row numbers of every stretch between two tests."""
        rng = np.random.default_rng(seed)
        for epoch in range(self.epochs):
            order = minibatches(rng, rows, self.batch, shuffled=self.shuffled)
            yield from np.split(order, 1 if epoch else self.parts_of(rows))


class Reached(NamedTuple):
    """Where a learner stands at a test."""

    samples: int
    """Rows seen so far, those seen again counted again."""
    score: float
    train_loss: float
    """The mean of the batches since the last test; of all training rows if the course looks back."""
    seconds: float
    """In training steps so far, without compilation and tests."""
    atoms: int | None = None
    """Of all growing layers that keep atoms; `None` where nothing grows."""
    evicted: int | None = None


def cross_entropy(
    logits: Float[Array, "*batch label"], labels: Int[Array, "*batch"]
) -> Float[Array, ""]:
    r"""The mean cross-entropy of softmax predictions.

    $$-\frac1B \sum_b \log \mathrm{softmax}(z_b)_{\ell_b}$$

    with logits $z_b$ and label $\ell_b$ of row b.

    ??? example

        ```python
        >>> import jax.numpy as jnp
        >>> from memdsl.experiments import cross_entropy
        >>> print(cross_entropy(jnp.zeros((3, 2)), jnp.array([0, 1, 1])).round(4))
        0.6931

        ```
    """
    return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, labels))


def accuracy(logits: Float[Array, "row label"], labels: Int[Array, " row"]) -> Float[Array, ""]:
    """The share of rows whose largest logit is the label's."""
    return jnp.mean(jnp.argmax(logits, axis=1) == labels)


def classification(data: Classification) -> Problem:
    """Learning labels by cross-entropy, tested by accuracy."""
    labels = int(data.train_labels.max()) + 1
    return Problem(*data, labels, cross_entropy, "test_accuracy", accuracy)


def minibatches(
    rng: np.random.Generator, rows: int, batch: int, *, shuffled: bool = True
) -> Int[np.ndarray, "step batch"]:
    """Cuts row numbers into whole minibatches; rows left over wait for another epoch."""
    steps = rows // batch
    order = rng.permutation(rows) if shuffled else np.arange(rows)
    return order[: steps * batch].reshape(steps, batch)


def learn(
    problem: Problem,
    model: Any,
    optimiser: optax.GradientTransformation | None,
    orders: Iterator[Int[np.ndarray, "step batch"]] | Sequence[Int[np.ndarray, "step batch"]],
    *,
    looks_back: bool = False,
) -> Iterator[Reached]:
    """Trains a model, and tests it after every stretch.

    A step is that of `md.grow.fit`: one backward pass, the optimiser's update, and the pairs are
    written into what grows. Of a captured model the optimiser is also given the Gram matrices. A
    stretch is one compiled scan.

    **Arguments:**

    - `problem`: the rows, the loss and the test.
    - `model`: what predicts one row; what grows in it is grown.
    - `optimiser`: of `md.grow.parameters(model)`; `None` trains nothing but what grows.
    - `orders`: row numbers, an array `[step, batch]` for every stretch.
    - `looks_back`: whether a test also takes the loss of all training rows.

    **Returns:**

    An iterator that trains one stretch for each item it is asked for.
    """
    trains, moments = begin(model, optimiser)
    held, fixed = eqx.partition(model, eqx.is_array)
    held, moments = jax.tree.map(jnp.copy, (held, moments))  # what is donated is ours
    rows = jnp.asarray(problem.train_inputs), jnp.asarray(problem.train_targets)
    test = jnp.asarray(problem.test_inputs), jnp.asarray(problem.test_targets)

    @eqx.filter_jit(donate="all-except-first")
    def stretch(given: Any, held: Any, moments: Any) -> tuple[Any, Any, Array]:
        rows, order = given
        model = eqx.combine(held, fixed)
        model, moments, loss = train(problem.loss, model, trains, moments, rows, order)
        return eqx.filter(model, eqx.is_array), moments, loss

    @eqx.filter_jit
    def judged(judge: Callable[..., Array], held: Any, given: Any) -> Array:
        inputs, targets = given
        return judge(jax.lax.map(eqx.combine(held, fixed), inputs, batch_size=250), targets)

    lower: Any = stretch.lower  # pyright: ignore[reportFunctionMemberAccess]
    compiled: dict[tuple[int, ...], Any] = {}
    samples, seconds = 0, 0.0
    for order in orders:
        args = (rows, jnp.asarray(order)), held, moments
        if order.shape not in compiled:
            compiled[order.shape] = lower(*args).compile()
        start = perf_counter()
        held, moments, loss = jax.block_until_ready(compiled[order.shape](*args))
        seconds += perf_counter() - start
        samples += order.size
        score = judged(problem.score, held, test)
        loss = judged(problem.loss, held, rows) if looks_back else loss
        atoms, evicted = _counts(held)
        yield Reached(samples, float(score), float(loss), seconds, atoms, evicted)


def begin(model: Any, optimiser: optax.GradientTransformation | None) -> tuple[Any, Any]:
    """`(optimiser, moments)` for `train`; of what grows, as `md.grow.fit` has them."""
    if optimiser is None or not isinstance(model, md.optim.Captured):
        return starting(model, optimiser)
    return optax.with_extra_args_support(optimiser), optimiser.init(md.grow.parameters(model))


def train(
    loss: Callable[..., Array],
    model: Any,
    optimiser: Any,
    moments: Any,
    rows: tuple[Array, Array],
    order: Int[Array, "step batch"],
) -> tuple[Any, Any, Array]:
    """`(model, moments, mean loss)` after some steps, to be compiled.

    **Arguments:**

    - `loss`: of the predictions and targets of a batch.
    - `model`: what predicts one row.
    - `optimiser`, `moments`: of `begin`, and of the steps before.
    - `rows`: inputs and targets.
    - `order`: which of them make the batch of every step.
    """
    inputs, targets = rows
    held, fixed = eqx.partition(model, eqx.is_array)

    def step(carry: Any, batch: Array) -> tuple[Any, Array]:
        held, moments = carry
        model, moments, value = _advance(
            loss, eqx.combine(held, fixed), optimiser, moments, inputs[batch], targets[batch]
        )
        return (eqx.filter(model, eqx.is_array), moments), value

    (held, moments), losses = jax.lax.scan(step, (held, moments), order)
    return eqx.combine(held, fixed), moments, jnp.mean(losses)


def _advance(loss: Any, model: Any, optimiser: Any, moments: Any, *batch: Any) -> Any:
    """`(model, moments, loss)` after one step."""
    if not isinstance(model, md.optim.Captured):
        return advance(loss, model, optimiser, moments, *batch)
    value, gradients, grams = md.optim.backward(loss, model, *batch)
    weights = md.grow.parameters(model)
    updates, moments = optimiser.update(gradients, moments, weights, grams=grams)
    return eqx.apply_updates(model, updates), moments, value


def _counts(model: Any) -> tuple[int | None, int | None]:
    """How many atoms are kept in all growing layers, and how many were evicted."""
    states = [own.state for own in md.grow.growing(model)]
    kept = [state for state in states if isinstance(state, BufferState)]
    if not kept:
        return None, None
    counts = [(jnp.sum(state.valid), state.counts.evicted) for state in kept]
    atoms, evicted = np.sum(jax.device_get(counts), axis=0)
    return int(atoms), int(evicted)
