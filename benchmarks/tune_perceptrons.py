"""How the perceptrons' settings of the growth experiments were chosen: a grid, on training rows.

Of data for classification, two cuts of the training rows keep a quarter for validation, at random; of
digits one of them is the last quarter (other writers than the rest, as in the real test). Of a
teacher, the grid is of teacher 99, which no run uses. A setting's score is its accuracy (or minus its
error) on validation rows, averaged over the epochs, five seeds and all cuts; of a teacher, at the last
test. The settings of the growing layers were found in the same way, elsewhere.

    python benchmarks/tune_perceptrons.py digits
    python benchmarks/tune_perceptrons.py tanh
"""

import sys
from collections.abc import Callable, Iterable
from itertools import product

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

from memdsl.experiments import course, LEARNERS, Perceptron, Problem, problem, TEACHERS


HIDDEN, SEEDS, TEACHER = 64, 5, 99


def cuts(data: str) -> Iterable[tuple[jax.Array, ...]]:
    """Rows to train and to validate on."""
    task = problem(data, TEACHER)
    inputs, targets = task.train_inputs, task.train_targets
    if data in TEACHERS:
        yield tuple(map(jnp.asarray, (inputs, targets, task.test_inputs, task.test_targets)))
        return
    rows, share = len(inputs), len(inputs) * 3 // 4
    rng = np.random.default_rng(0)
    last = np.arange(rows) if data == "digits" else rng.permutation(rows)
    for order in (rng.permutation(rows), last):
        train, valid = order[:share], order[share:]
        cut = inputs[train], targets[train], inputs[valid], targets[valid]
        yield tuple(map(jnp.asarray, cut))


def curve(
    make: Callable, task: Problem, data: str, settings: jax.Array, seed: jax.Array, cut: tuple
):
    """What was reached after each epoch, or after each eighth of the only one: the more the better."""
    train_x, train_y, valid_x, valid_y = cut
    initial, orders = jax.random.split(jax.random.key(seed))
    weights = Perceptron(
        task.width,
        (HIDDEN,),
        task.outputs,
        key=initial,
        scale=task.width**0.5,
        activation=LEARNERS[data]["sgd"].activation,
    )
    optimiser, path = make(*settings), course(data)

    def loss(weights, rows):
        return task.loss(jax.vmap(weights)(train_x[rows]), train_y[rows])

    def step(carry, rows):
        weights, state = carry
        held = eqx.filter(weights, eqx.is_array)
        updates, state = optimiser.update(jax.grad(loss)(weights, rows), state, held)
        return (eqx.apply_updates(weights, updates), state), None

    def part(carry, rows):
        carry, _ = jax.lax.scan(step, carry, rows)
        found = task.score(jax.vmap(carry[0])(valid_x), valid_y)
        return carry, -found if task.is_square else found

    steps = path.steps(len(train_x))
    if data in TEACHERS:
        order = jnp.arange(steps * path.batch).reshape(path.parts, -1, path.batch)
    else:
        keys = jax.random.split(orders, path.epochs)
        rows = jax.vmap(lambda key: jax.random.permutation(key, len(train_x)))(keys)
        order = rows[:, : steps * path.batch].reshape(path.epochs, steps, path.batch)
    state = optimiser.init(eqx.filter(weights, eqx.is_array))
    return jax.lax.scan(part, (weights, state), order)[1]


def search(
    data: str, name: str, make: Callable, rates: np.ndarray, others: Iterable[float]
) -> None:
    """Prints the five best settings of a grid."""
    task = problem(data, TEACHER)
    grid = jnp.asarray(list(product(rates, others)), jnp.float32)
    found = []
    for cut in cuts(data):
        one = lambda s, h, cut=cut: curve(make, task, data, h, s, cut)  # noqa: E731
        over_grid = jax.vmap(jax.vmap(one, (0, None)), (None, 0))
        found.append(np.asarray(jax.jit(over_grid)(jnp.arange(SEEDS), grid)).mean(axis=1))
    mean = np.mean(found, axis=0)
    score = np.nan_to_num(mean[:, -1] if data in TEACHERS else mean.mean(axis=1), nan=-np.inf)
    print(f"{name:8} {'rate':>7} {'other':>6} {'score':>7} {'first':>7} {'last':>7}")
    for best in np.argsort(-score)[:5]:
        rate, other = grid[best]
        line = f"{rate:7.4f} {other:6.2f} {score[best]:7.4f} {mean[best, 0]:7.4f}"
        print(f"{'':8} {line} {mean[best, -1]:7.4f}", flush=True)


if __name__ == "__main__":
    for data in sys.argv[1:]:
        print(data)
        search(
            data,
            "sgd",
            lambda lr, m: optax.sgd(lr, momentum=m),
            np.logspace(-2, 0.25, 10),
            (0, 0.9),
        )
        search(
            data,
            "adamw",
            lambda lr, wd: optax.adamw(lr, weight_decay=wd),
            np.logspace(-3, -1.25, 8),
            (0, 0.01, 0.1),
        )
        search(
            data,
            "muon",
            lambda lr, wd: optax.contrib.muon(lr, weight_decay=wd, adam_learning_rate=0.1 * lr),
            np.logspace(-2.5, -0.75, 8),
            (0, 0.1),
        )
