"""Training of a sequence model on questions, with fixed tests now and then."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, PyTree

from ._data import RecallBatch


class Task(Protocol):
    """Where sequences come from. Where nothing is asked, a label is negative."""

    def training(self, seed: int) -> np.random.Generator:
        """A generator for the training sequences of a seed."""
        ...

    def sample(self, rng: np.random.Generator, count: int) -> RecallBatch:
        """Training sequences."""
        ...

    def test(self, count: int = 512) -> RecallBatch:
        """The fixed test sequences."""
        ...


class Checkpoint(NamedTuple):
    """Where training stands at a test."""

    step: int
    train_loss: float
    accuracy: float
    accuracies: Mapping[str, float] = {}
    """That of each further test, by its name."""


Model = Callable[[Int[Array, " time"], Int[Array, " query"]], Float[Array, "query vocabulary"]]
"""Takes the tokens of a sequence and the positions of its questions; logits at these alone."""


def recipe(rate: float, steps: int, decayed: PyTree) -> optax.GradientTransformation:
    r"""The optimiser of the recall runs.

    Gradients are clipped to global norm 1, then AdamW with $b_2 = 0.98$ and weight decay 0.1 where
    `decayed` says so; the rate rises linearly over the first tenth of the steps and falls by a
    cosine to a twentieth of `rate`.

    **Arguments:**

    - `rate`: the highest learning rate.
    - `steps`: the number of steps in all.
    - `decayed`: a tree of booleans like the parameters: which of them weight decay applies to.
    """
    schedule = optax.warmup_cosine_decay_schedule(
        0.0, rate, max(1, steps // 10), max(2, steps), end_value=rate / 20
    )
    return optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.adamw(schedule, b2=0.98, weight_decay=0.1, mask=decayed),
    )


def train_recall(
    model: Any,
    task: Task,
    *,
    decayed: PyTree,
    rate: float,
    steps: int,
    batch: int,
    seed: int,
    every: int,
    advance: Callable[[int], None] = lambda step: None,
    tests: Mapping[str, RecallBatch] | None = None,
    enough: float | None = None,
) -> Iterator[Checkpoint]:
    """Trains a model by cross-entropy at the questions of fresh sequences.

    **Arguments:**

    - `model`: an Equinox module that is called as `Model` says.
    - `task`: the source of sequences, and of the test.
    - `decayed`: which parameters weight decay applies to, a tree of booleans.
    - `rate`, `steps`, `batch`: the highest learning rate, the steps, the sequences in a step.
    - `seed`: of the training sequences.
    - `every`: steps between tests; the last step is always tested.
    - `advance`: told the number of steps done, now and then.
    - `tests`: further test sequences, by name.
    - `enough`: an accuracy in every test at which training ends. Until the last step, all of a test is
        looked at only once its first part has this accuracy.

    **Returns:**

    An iterator over the tests, which trains up to the next test for each item it is asked for.
    """
    weights, rest = eqx.partition(model, eqx.is_inexact_array)
    optimiser = recipe(rate, steps, decayed)
    state = optimiser.init(weights)

    def loss_of(weights, tokens, positions, labels):
        logits = jax.vmap(eqx.combine(weights, rest))(tokens, positions)
        asked = labels >= 0
        loss = optax.softmax_cross_entropy_with_integer_labels(logits, jnp.where(asked, labels, 0))
        return jnp.sum(jnp.where(asked, loss, 0)) / jnp.sum(asked)

    @jax.jit
    def step(weights, state, sequences):
        loss, gradient = jax.value_and_grad(loss_of)(weights, *sequences)
        updates, state = optimiser.update(gradient, state, weights)
        return optax.apply_updates(weights, updates), state, loss

    @jax.jit
    def hits(weights, sequences):
        tokens, positions, labels = sequences
        logits = jax.vmap(eqx.combine(weights, rest))(tokens, positions)
        return jnp.sum(jnp.argmax(logits, axis=-1) == labels)

    everything = {"": task.test(), **(tests or {})}
    chunks = {name: _in_chunks(batch, 64) for name, batch in everything.items()}

    def share(weights: Any, parts: list[tuple[Array, ...]]) -> float:
        questions = sum(int(np.sum(np.asarray(labels) >= 0)) for *_, labels in parts)
        return sum(int(hits(weights, part)) for part in parts) / questions

    def not_yet(weights: Any) -> bool:
        """Whether a part of a test is enough to know that this is not the last."""
        return enough is not None and any(share(weights, p[:1]) < enough for p in chunks.values())

    rng = task.training(seed)
    losses = []
    for number in range(1, steps + 1):
        weights, state, loss = step(weights, state, _arrays(task.sample(rng, batch)))
        losses.append(loss)
        if number % 10 == 0:
            jax.block_until_ready(loss)
            advance(number)
        is_last = number == steps
        if not is_last and (number % every or not_yet(weights)):
            continue
        mean = float(np.mean(jax.device_get(losses)))
        shares = {name: share(weights, parts) for name, parts in chunks.items()}
        lowest, losses = min(shares.values()), []
        yield Checkpoint(number, mean, shares.pop(""), shares)
        if enough is not None and lowest >= enough:
            return


def _arrays(batch: RecallBatch) -> tuple[Array, ...]:
    return tuple(jnp.asarray(part) for part in batch)


def _in_chunks(batch: RecallBatch, size: int) -> list[tuple[Array, ...]]:
    """Equal parts of a batch, so that a test needs no more memory than a few training steps."""
    count = len(batch.tokens) // size
    parts = [np.split(part, count) for part in batch]
    return [_arrays(RecallBatch(*chunk)) for chunk in zip(*parts, strict=True)]
