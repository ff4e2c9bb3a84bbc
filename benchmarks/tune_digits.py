"""How the perceptrons' settings of `memdsl run digits` were chosen: a grid, on the training half.

Two cuts of the 898 training rows keep a quarter for validation: the last quarter (other writers
than the rest, as in the real test) and a random one. A setting's score is its validation accuracy
averaged over ten epochs, five seeds and both cuts, so that one setting serves every number of
epochs.

    python benchmarks/tune_digits.py
"""

from collections.abc import Callable, Iterable
from itertools import product

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

from memdsl.experiments import cross_entropy, digits, Perceptron


EPOCHS, BATCH, HIDDEN, SEEDS = 10, 25, 64, 5


def cuts(rows: int) -> Iterable[tuple[np.ndarray, np.ndarray]]:
    """Row numbers to train on and to validate on."""
    share = rows * 3 // 4
    for order in (np.arange(rows), np.random.default_rng(0).permutation(rows)):
        yield order[:share], order[share:]


def curve(make: Callable, settings: jax.Array, seed: jax.Array, cut: tuple[jax.Array, ...]):
    """Validation accuracy after each epoch."""
    train_x, train_y, valid_x, valid_y = cut
    initial, orders = jax.random.split(jax.random.key(seed))
    weights = Perceptron(train_x.shape[1], HIDDEN, 10, key=initial)
    optimiser = make(*settings)

    def loss(weights, rows):
        return cross_entropy(jax.vmap(weights)(train_x[rows]), train_y[rows])

    def step(carry, rows):
        weights, state = carry
        updates, state = optimiser.update(jax.grad(loss)(weights, rows), state, weights)
        return (eqx.apply_updates(weights, updates), state), None

    def epoch(carry, key):
        steps = len(train_x) // BATCH
        rows = jax.random.permutation(key, len(train_x))[: steps * BATCH].reshape(steps, BATCH)
        carry, _ = jax.lax.scan(step, carry, rows)
        return carry, jnp.mean(jnp.argmax(jax.vmap(carry[0])(valid_x), axis=1) == valid_y)

    state = optimiser.init(weights)
    return jax.lax.scan(epoch, (weights, state), jax.random.split(orders, EPOCHS))[1]


def search(name: str, make: Callable, rates: np.ndarray, others: Iterable[float]) -> None:
    """Prints the five best settings of a grid."""
    data = digits()
    inputs = jnp.asarray(data.train_inputs * data.train_inputs.shape[1] ** 0.5)
    labels = jnp.asarray(data.train_labels)
    grid = jnp.asarray(list(product(rates, others)), jnp.float32)
    found = []
    for train, valid in cuts(len(inputs)):
        cut = (inputs[train], labels[train], inputs[valid], labels[valid])
        over_seeds = jax.vmap(lambda s, h, cut=cut: curve(make, h, s, cut), (0, None))
        over_grid = jax.vmap(over_seeds, (None, 0))
        found.append(np.asarray(jax.jit(over_grid)(jnp.arange(SEEDS), grid)).mean(axis=1))
    mean = np.mean(found, axis=0)
    print(f"{name:8} {'rate':>7} {'other':>6} {'score':>7} {'epoch 1':>8} {'epoch 10':>9}")
    for best in np.argsort(-mean.mean(axis=1))[:5]:
        rate, other = grid[best]
        line = f"{rate:7.4f} {other:6.2f} {mean[best].mean():7.4f} {mean[best, 0]:8.4f}"
        print(f"{'':8} {line} {mean[best, -1]:9.4f}")


if __name__ == "__main__":
    search("sgd", lambda lr, m: optax.sgd(lr, momentum=m), np.logspace(-2, 0.25, 10), (0, 0.9))
    search(
        "adamw",
        lambda lr, wd: optax.adamw(lr, weight_decay=wd),
        np.logspace(-3, -1.25, 8),
        (0, 0.01, 0.1),
    )
