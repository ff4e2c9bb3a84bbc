"""Identities of layers that grow by a solved problem, or by orthogonal steps."""

import jax
import jax.numpy as jnp
import numpy as np

import memdsl as md
from tests.properties._growth import build, draw, gaussian, layer, train, worst, WRITE
from tests.properties._table import check


STRENGTH, RATE, COUNT, QUERIES = 0.2, 1.7, 12, draw(9, 7, 3)


def grown(memory: md.Memory, keys: jax.Array, errors: jax.Array):
    """A layer over zeros, written with one batch after the other."""
    model = build(layer(memory, errors.shape[-1]), keys.shape[-1])
    for pair in zip(keys, errors, strict=True):
        model = WRITE(model, (md.grow.Pairs(*pair),))
    return model


def _weights(keys: jax.Array, errors: jax.Array, decay: float = 1.0) -> np.ndarray:
    """`W - (rate G + (1 - decay) strength W) H^-1`, `H = strength + sum of decayed x x^T`."""
    weight, seen = np.zeros((errors.shape[-1], 3)), np.zeros((3, 3))
    for x, g in zip(np.asarray(keys), np.asarray(errors), strict=True):
        seen = decay * seen + x.T @ x
        step = RATE * g.T @ x + (1 - decay) * STRENGTH * weight
        weight = weight - step @ np.linalg.inv(STRENGTH * np.eye(3) + seen)
    return weight


def _linear(capacity: md.AbstractCapacity, gate: md.AbstractGate, decay: float) -> float:
    keys, errors = draw(1, 4, 5, 3), draw(2, 4, 5, 2)
    memory = md.Memory(md.Dot(), md.Ridge(STRENGTH, rate=RATE), gate, capacity)
    model = grown(memory, keys, errors)
    return worst(jax.vmap(model)(QUERIES), QUERIES @ _weights(keys, errors, decay).T)


@check(
    "F1 growing",
    "a linear layer that grows by Ridge is W - rate G H^-1, as a matrix and as atoms",
    1e-12,
)
def f1() -> float:
    return max(_linear(room, md.Keep(), 1.0) for room in (md.All(), md.Budget(20)))


@check(
    "F4 growing",
    "with forgetting it has a preconditioned weight decay, (1 - decay) strength W H^-1",
    1e-12,
)
def f4() -> float:
    return max(_linear(room, md.Decay(0.8), 0.8) for room in (md.All(), md.Budget(20)))


@check(
    "F6 growing",
    "half a squared error and the batch as the rate: one pass is the ridge regression",
    1e-12,
)
def f6() -> float:
    x, y = draw(1, 3, 4, 3), draw(2, 3, 4, 2)
    memory = md.Memory(md.RBF(), md.Ridge(STRENGTH, rate=4.0), capacity=md.Budget(COUNT))
    model = build(layer(memory, 2), 3)
    for inputs, targets in zip(x, y, strict=True):
        model = train(model, inputs, targets)
    x, y = x.reshape(COUNT, 3), y.reshape(COUNT, 2)
    solved = np.linalg.solve(gaussian(x, x, 1.0) + STRENGTH * np.eye(COUNT), y)
    return worst(jax.vmap(model)(QUERIES), gaussian(QUERIES, x, 1.0) @ solved)


@check("F7 growing", "as the strength vanishes, every answer to a batch moves by -rate g", 1e-6)
def f7() -> float:
    keys, errors = draw(1, 2, 3, 3), draw(2, 2, 3, 2)
    memory = md.Memory(md.RBF(), md.Ridge(1e-9, rate=RATE), capacity=md.Budget(COUNT))
    before, after = grown(memory, keys[:1], errors[:1]), grown(memory, keys, errors)
    moved = jax.vmap(after)(keys[1]) - jax.vmap(before)(keys[1])
    return worst(moved, -RATE * errors[1])


@check(
    "F11",
    "a kernel layer that grows by Ridge is the recursion f - rate g c(x, .) / (strength + c(x, x))",
    1e-12,
)
def f11() -> float:
    """Pair by pair; and, in batches, the regression on all pairs with values f(x) - rate g."""
    keys, errors = draw(1, COUNT, 1, 3), draw(2, COUNT, 1, 2)
    memory = md.Memory(md.RBF(), md.Ridge(STRENGTH, rate=RATE), capacity=md.Budget(COUNT))
    spots, said = np.asarray(jnp.concatenate([keys[:, 0], QUERIES])), np.zeros((COUNT + 7, 2))
    open_ = gaussian(spots, spots, 1.0)  # what is open between any two of the points
    for row in range(COUNT):
        gain = open_[:, row] / (STRENGTH + open_[row, row])
        said = said - RATE * gain[:, None] * np.asarray(errors[row])
        open_ = open_ - gain[:, None] * open_[row]
    one_by_one = worst(jax.vmap(grown(memory, keys, errors))(QUERIES), said[COUNT:])
    keys, errors = keys.reshape(3, 4, 3), errors.reshape(3, 4, 2)
    stored, values, solved = np.zeros((0, 3)), np.zeros((0, 2)), np.zeros((0, 2))
    for x, g in zip(np.asarray(keys), np.asarray(errors), strict=True):
        values = np.concatenate([values, gaussian(x, stored, 1.0) @ solved - RATE * g])
        stored = np.concatenate([stored, x])
        system = gaussian(stored, stored, 1.0) + STRENGTH * np.eye(len(stored))
        solved = np.linalg.solve(system, values)
    literal = gaussian(QUERIES, stored, 1.0) @ solved
    return max(one_by_one, worst(jax.vmap(grown(memory, keys, errors))(QUERIES), literal))


@check("F12", "an orthogonal step of a linear layer is the polar factor of its gradient", 1e-13)
def f12() -> float:
    """On atoms and as a matrix; with momentum, of what it has summed up."""
    keys, errors, found = draw(1, 2, 5, 3), draw(2, 2, 5, 2), []
    for capacity in (md.All(), md.Budget(COUNT)):
        for momentum in (None, 0.6):
            write = md.Descent(md.Inner(), momentum=momentum, orthogonalise=True, gain=0.5)
            model = grown(md.Memory(md.Dot(), write, capacity=capacity), keys, errors)
            weight, step = np.zeros((2, 3)), np.zeros((2, 3))
            for x, g in zip(np.asarray(keys), np.asarray(errors), strict=True):
                step = (momentum or 0.0) * step - g.T @ x
                u, _, v = np.linalg.svd(step, full_matrices=False)
                weight = weight + 0.5 * u @ v
            found.append(worst(jax.vmap(model)(QUERIES), QUERIES @ weight.T))
    return max(found)
