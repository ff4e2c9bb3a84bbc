"""Identities of how growing layers are trained: step sizes, and atoms that are parameters too."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

import memdsl as md
from tests.properties._growth import (
    build,
    draw,
    gaussian,
    half_square,
    layer,
    train,
    worst,
    WRITE,
)
from tests.properties._table import check


def hybrid(model, optimiser, steps: int):
    """Training of the stored atoms by an optimiser, slot by slot, and growth: `(model, updates)`."""
    trains = md.grow.slotwise(optimiser)

    @eqx.filter_jit
    def step(model, state, x, y):
        _, gradients, pairs = md.grow.backward(half_square, model, x, y)
        parameters = md.grow.parameters(model)
        updates, state = trains.update(gradients, state, parameters, model=model)
        return md.grow.write(eqx.apply_updates(model, updates), pairs), state, updates

    # optax raises floats to whole powers, which the strict promotion of the tests refuses
    with jax.numpy_dtype_promotion("standard"):
        state, updates = trains.init(md.grow.parameters(model)), []
        for turn in range(steps):
            model, state, update = step(model, state, draw(turn, 4, 3), draw(turn + 50, 4, 2))
            updates.append(update)
    return model, updates


def atoms(gate: md.AbstractGate | None = None, capacity: int = 40) -> md.Memory:
    return md.Memory(md.RBF(scale=0.9), md.Hebb(0.4), gate or md.Keep(), md.Budget(capacity))


def trainable(memory: md.Memory, size: int = 2) -> md.Grown:
    base = md.Dense(size, start="normal", trainable=False)
    return md.Grown(base, memory, trainable=True)


@check("B3a", "the bound of suggest_rate is 2 n / largest eigenvalue of K", 1e-9)
def b3a() -> float:
    x, y = draw(1, 10, 2), draw(2, 10, 2)
    model = build(layer(md.Memory(md.RBF(scale=0.7), md.Hebb(1.0), capacity=md.Budget(10)), 2), 2)
    rates = md.grow.suggest_rate(half_square, model, x, y, tolerance=1e-14, iterations=5000)
    exact = 20 / np.linalg.eigvalsh(gaussian(x, x, 0.7))[-1]
    return abs((rates.bound[0] or 0.0) / exact - 1)


@check("E3", "the first Adam step of a new atom has the length of the rate", 1e-6)
def e3() -> float:
    _, updates = hybrid(build(trainable(atoms()), 3), optax.adam(0.01, eps=1e-12), 5)
    slots = [
        np.asarray(update.state.values)[4 * turn : 4 * turn + 4]
        for turn, update in enumerate(updates[1:])
    ]
    return float(max(np.max(np.abs(np.abs(first) / 0.01 - 1)) for first in slots))


@check("E5a", "all pairs novel and a rate of 0 for stored atoms: a layer that only grows", 0.0)
def e5a() -> float:
    both, _ = hybrid(build(trainable(atoms(md.Novelty(-1.0))), 3), optax.sgd(0.0), 5)
    grows = build(layer(atoms(), 2, "normal"), 3)
    for turn in range(5):
        grows = train(grows, draw(turn, 4, 3), draw(turn + 50, 4, 2))
    x = draw(9, 6, 3)
    return worst(jax.vmap(both)(x), jax.vmap(grows)(x))


@check("E5b", "no pair novel: ordinary training of a kernel layer with so many centres", 1e-12)
def e5b() -> float:
    keys, values = draw(20, 7, 3), draw(21, 7, 2)
    grows = build(layer(atoms(capacity=12), 2, "normal"), 3)
    state = WRITE(grows, (md.grow.Pairs(keys, values),)).state
    model = build(trainable(atoms(md.Novelty(float("inf")), 12)), 3)
    model = eqx.tree_at(lambda m: m.state, model, state)
    optimiser = optax.adamw(0.05, weight_decay=0.1)
    mine, _ = hybrid(model, optimiser, 5)

    def answer(centres, x):
        square = jnp.sum((centres[0][:, None] - x[None]) ** 2, -1)
        return jax.vmap(model.base)(x) + jnp.exp(-square / (2 * 0.9**2)).T @ centres[1]

    @jax.jit
    def step(centres, moments, x, y):
        slopes = jax.grad(lambda c: half_square(answer(c, x), y))(centres)
        updates, moments = optimiser.update(slopes, moments, centres)
        return optax.apply_updates(centres, updates), moments

    centres = (keys, -0.4 * values)
    with jax.numpy_dtype_promotion("standard"):
        moments = optimiser.init(centres)
        for turn in range(5):
            centres, moments = step(centres, moments, draw(turn, 4, 3), draw(turn + 50, 4, 2))
    x = draw(9, 6, 3)
    return worst(jax.vmap(mine)(x), answer(centres, x))
