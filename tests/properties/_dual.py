"""Identities of the dual form: a trained linear layer is a memory of its training examples (float64)."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

import memdsl as md
from memdsl.spec._descent import orthogonalised
from tests.properties._growth import build, draw, half_square, layer, train, worst
from tests.properties._table import Check, check


def as_usual(name: str, statement: str, tolerance: float) -> Callable[[Check], Check]:
    """`check`, with the promotions of dtypes that optimisers of optax count on."""

    def add(measure: Check) -> Check:
        @functools.wraps(measure)
        def usual() -> float:
            with jax.numpy_dtype_promotion("standard"):
                return measure()

        return check(name, statement, tolerance)(usual)

    return add


STEPS, RATE = 6, 0.2
QUERIES = draw(7, 5, 4)


def network() -> Any:
    """Three layers; the one in the middle is unrolled, and all of them are trained."""
    spec = md.Dense(4) >> md.Silu() >> md.Dense(3) >> md.Silu() >> md.Dense(2)
    return build(spec, 4)


def middle(model: Any) -> Any:
    return model.layers[2]


def data(batch: int) -> tuple[jax.Array, jax.Array]:
    return draw(3, STEPS, batch, 4), draw(4, STEPS, batch, 2)


def recorded(
    optimiser: optax.GradientTransformation, batch: int = 4, steps: int = STEPS
) -> md.grow.Record:
    record = md.grow.unroll(network(), optimiser, middle)
    for inputs, targets in list(zip(*data(batch), strict=True))[:steps]:
        record, _ = record.step(half_square, inputs, targets)
    return record


def plain(optimiser: optax.GradientTransformation, batch: int = 4) -> tuple[Any, Any]:
    """`(model, state)` of the same training with nothing of memdsl but the layers."""
    arrays, static = eqx.partition(network(), eqx.is_inexact_array)

    def loss(arrays, inputs, targets):
        return half_square(jax.vmap(eqx.combine(arrays, static))(inputs), targets)

    @jax.jit
    def step(arrays, state, inputs, targets):
        updates, state = optimiser.update(jax.grad(loss)(arrays, inputs, targets), state, arrays)
        return optax.apply_updates(arrays, updates), state

    state = optimiser.init(arrays)
    for inputs, targets in zip(*data(batch), strict=True):
        arrays, state = step(arrays, state, inputs, targets)
    return eqx.combine(arrays, static), state


def apart(record: md.grow.Record, trained: Any) -> float:
    """The worst difference of weights, biases and answers."""
    answers = trained(QUERIES)
    return max(
        worst(record.weight(), trained.weight),
        worst(record.bias(), trained.bias),
        worst(record(QUERIES), answers),
    )


def exact(*optimisers: optax.GradientTransformation, batch: int = 4) -> float:
    return max(apart(recorded(o, batch), middle(plain(o, batch)[0])) for o in optimisers)


@as_usual(
    "A1 dual", "a layer trained by SGD is linear attention over (x, -rate g), B = 1 and 4", 1e-12
)
def a1() -> float:
    sgd = optax.sgd(RATE)
    start = recorded(sgd, steps=0)
    rates = [worst(recorded(sgd).coefficients(of)[1], RATE) for of in ("weight", "bias")]
    return max(exact(sgd), exact(sgd, batch=1), apart(start, middle(network())), *rates)


@as_usual("A1 order", "the order of examples inside a batch changes nothing", 1e-12)
def order() -> float:
    def record(rows):
        record = md.grow.unroll(network(), optax.sgd(RATE, momentum=0.9), middle)
        for inputs, targets in zip(*data(4), strict=True):
            record, _ = record.step(half_square, inputs[rows], targets[rows])
        return record(QUERIES)

    return worst(record(jnp.arange(4)), record(jnp.array([2, 0, 3, 1])))


@as_usual("A2 momentum", "the same of heavy ball and Nesterov's momentum", 1e-12)
def momentum() -> float:
    return exact(optax.sgd(RATE, momentum=0.9), optax.sgd(RATE, momentum=0.9, nesterov=True))


COUPLED = optax.chain(optax.add_decayed_weights(0.1), optax.sgd(RATE, momentum=0.8))
DECOUPLED = optax.chain(
    optax.trace(0.8),
    optax.add_decayed_weights(0.1, mask=lambda p: jax.tree.map(lambda x: x.ndim > 1, p)),
    optax.scale_by_learning_rate(optax.cosine_decay_schedule(RATE, STEPS)),
)


@as_usual("A2 decay", "the same of coupled and decoupled weight decay, and of a schedule", 1e-12)
def decay() -> float:
    return exact(COUPLED, DECOUPLED)


@as_usual(
    "A2 scalars", "the same of clipping by norm, LARS, and gradients added up over steps", 1e-12
)
def norms() -> float:
    sgd, wide = optax.sgd(RATE, momentum=0.9), jnp.float64
    several = optax.MultiSteps(sgd, every_k_schedule=2, accumulator_dtype=wide)
    clipped = optax.chain(optax.clip_by_global_norm(0.1), sgd)
    return exact(clipped, optax.lars(RATE), several.gradient_transformation())


class Average(NamedTuple):
    """A running mean of the weights after every step."""

    average: Any


def averaged(fade: float) -> optax.GradientTransformation:
    def update(updates, state, params=None):
        after = optax.apply_updates(params, updates)
        return updates, Average(optax.incremental_update(after, state.average, 1 - fade))

    return optax.GradientTransformation(Average, update)


@as_usual(
    "A2 average", "the same of a running mean of the weights, which the optimiser keeps", 1e-12
)
def average() -> float:
    optimiser = optax.chain(optax.sgd(RATE, momentum=0.9), averaged(0.7))
    _, state = plain(optimiser)
    record = recorded(optimiser).of(lambda state: state[1].average)
    kept = middle(state[1].average)
    return max(worst(record.weight(), kept.weight), worst(record.bias(), kept.bias))


@as_usual("A2 table", "the scalars are the closed forms of heavy ball and of the two decays", 1e-12)
def closed() -> float:
    t, rate = np.arange(1, STEPS + 1), RATE
    left = STEPS - t
    heavy = recorded(optax.sgd(rate, momentum=0.9)).coefficients()
    found = [worst(heavy[1], rate * (1 - 0.9 ** (left + 1)) / (1 - 0.9)), abs(heavy[0] - 1)]
    both = optax.chain(optax.add_decayed_weights(0.1), optax.sgd(rate))
    base, steps = recorded(both).coefficients()
    found += [worst(steps, rate * (1 - rate * 0.1) ** left), abs(base - (1 - rate * 0.1) ** STEPS)]
    rates = np.asarray(jax.vmap(optax.cosine_decay_schedule(rate, STEPS))(jnp.arange(STEPS)))
    apart = optax.chain(
        optax.add_decayed_weights(0.1),
        optax.scale_by_learning_rate(optax.cosine_decay_schedule(rate, STEPS)),
    )
    base, steps = recorded(apart).coefficients()
    shrunk = np.append(np.cumprod((1 - 0.1 * rates)[::-1])[::-1][1:], 1)
    return max(*found, worst(steps, rates * shrunk), abs(base - np.prod(1 - 0.1 * rates)))


def _pairs(seed: int, count: int, value: int, key: int) -> tuple[np.ndarray, np.ndarray]:
    return np.asarray(draw(seed, count, value)), np.asarray(draw(seed + 1, count, key))


@as_usual("A3", "row and column scales (Adafactor's) are keys R x and values -rate L g", 1e-12)
def factored() -> float:
    optimiser = optax.scale_by_factored_rms(min_dim_size_to_factor=1)
    weight = start = draw(1, 5, 7)
    state, q, answer = optimiser.init(weight), draw(2, 7), 0.0
    for step in range(4):
        g, x = _pairs(10 * step, 3, 5, 7)
        gradient = jnp.asarray(g.T @ x)
        update, state = optimiser.update(gradient, state, weight)
        weight = weight - RATE * update
        scale = update / gradient
        left, right = scale[:, 0], scale[0] / scale[0, 0]
        answer = answer - RATE * (left[None] * g).T @ ((right[None] * x) @ q)
    return worst(weight @ q, start @ q + answer)


@as_usual(
    "A4", "Adam is refused: of one step on 2 pairs nothing smaller than rank 11 is the sum", 0.0
)
def adam() -> float:
    g, x = _pairs(1, 2, 11, 13)
    gradient = jnp.asarray(g.T @ x)
    optimiser = optax.adam(RATE)
    update, _ = optimiser.update(gradient, optimiser.init(gradient))
    rank = np.linalg.matrix_rank(np.asarray(update))
    try:
        md.grow.unroll(network(), optimiser, middle)
    except md.SpecError:
        return float(abs(rank - 11))
    return float("inf")


@as_usual("A5", "Muon with momentum is attention whose values a matrix maps, one a step", 1e-11)
def muon() -> float:
    fade, weight = 0.9, draw(1, 5, 7)
    q, moment, shown = draw(2, 7), jnp.zeros((5, 7)), weight @ draw(2, 7)
    steps = [_pairs(10 * step, 2, 5, 7) for step in range(4)]
    maps = []
    for g, x in steps:
        moment = fade * moment + g.T @ x
        weight = weight - RATE * orthogonalised(moment)
        scaled, own = moment / jnp.linalg.norm(moment), jnp.eye(5) / jnp.linalg.norm(moment)
        for _ in range(5):
            square = scaled @ scaled.T
            turn = 3.4445 * jnp.eye(5) - 4.7750 * square + 2.0315 * square @ square
            scaled, own = turn @ scaled, turn @ own
        maps.append(own)
    for t, (g, x) in enumerate(steps):
        value = sum(RATE * fade ** (s - t) * maps[s] for s in range(t, len(steps)))
        shown = shown - value @ g.T @ (x @ q)
    return worst(weight @ q, shown)


def _sum_of(memory: md.Memory) -> float:
    """By how much base and contributions miss the answer of a layer, and `top` misses it."""
    model = train(build(layer(memory, 2, "normal"), 3), draw(1, 10, 3), draw(2, 10, 2), 2)
    errors = []
    for x in draw(3, 3, 3):
        found = md.grow.attribute(model, x)
        errors += [worst(found.answer, model(x)), worst(found.top(3).answer, model(x))]
    return max(errors)


@as_usual(
    "A6", "contributions add up to the answer: record, kernels, decay, normalised reads", 1e-12
)
def sums() -> float:
    record = recorded(DECOUPLED)
    errors = []
    for x in QUERIES[:2]:
        answer = middle(record.model)(jax.nn.silu(record.model.layers[0](x)))
        found = md.grow.attribute(record, x)
        errors += [worst(found.answer, answer), worst(found.examples().answer, answer)]
    room = md.Budget(16)
    memories = [
        md.Memory(md.RBF(scale=0.8), md.Hebb(0.5), md.Decay(0.9), room),
        md.Memory(
            md.Exp(md.Dot() / 4.0), md.Reweight(0.2), read=md.Normalised(prior=1.0), capacity=room
        ),
        md.Memory(md.RBF(), md.Hebb(0.5), read=md.TopK(4), capacity=room),
    ]
    return max(*errors, *map(_sum_of, memories))
