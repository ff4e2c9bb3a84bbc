"""Training of a sequence model on questions: fresh sequences every step, one fixed test."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, PyTree

from ._classify import cross_entropy
from ._data import RecallBatch, RecallTask


class Checkpoint(NamedTuple):
    """Where training stands at a test."""

    step: int
    train_loss: float
    accuracy: float


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
    task: RecallTask,
    *,
    decayed: PyTree,
    rate: float,
    steps: int,
    batch: int,
    seed: int,
    every: int,
    advance: Callable[[int], None] = lambda step: None,
) -> Iterator[Checkpoint]:
    """Trains a model by cross-entropy at the questions of fresh sequences.

    **Arguments:**

    - `model`: an Equinox module that is called as `Model` says.
    - `task`: the source of sequences.
    - `decayed`: which parameters weight decay applies to, a tree of booleans.
    - `rate`, `steps`, `batch`: the highest learning rate, the steps, the sequences in a step.
    - `seed`: of the training sequences.
    - `every`: steps between tests; the last step is always tested.
    - `advance`: told the number of steps done, now and then.

    **Returns:**

    An iterator over the tests, which trains up to the next test for each item it is asked for.
    """
    weights, rest = eqx.partition(model, eqx.is_inexact_array)
    optimiser = recipe(rate, steps, decayed)
    state = optimiser.init(weights)

    def loss_of(weights, tokens, positions, labels):
        logits = jax.vmap(eqx.combine(weights, rest))(tokens, positions)
        return cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1))

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

    test = _in_chunks(task.test(), 64)
    asked = task.test().labels.size
    rng = task.training(seed)
    losses = []
    for number in range(1, steps + 1):
        weights, state, loss = step(weights, state, _arrays(task.sample(rng, batch)))
        losses.append(loss)
        if number % 10 == 0:
            jax.block_until_ready(loss)
            advance(number)
        if number % every == 0 or number == steps:
            mean = float(np.mean(jax.device_get(losses)))
            right = sum(int(hits(weights, chunk)) for chunk in test)
            yield Checkpoint(number, mean, right / asked)
            losses = []


def _arrays(batch: RecallBatch) -> tuple[Array, ...]:
    return tuple(jnp.asarray(part) for part in batch)


def _in_chunks(batch: RecallBatch, size: int) -> list[tuple[Array, ...]]:
    """Equal parts of a batch, so that a test needs no more memory than a few training steps."""
    count = len(batch.tokens) // size
    parts = [np.split(part, count) for part in batch]
    return [_arrays(RecallBatch(*chunk)) for chunk in zip(*parts, strict=True)]
