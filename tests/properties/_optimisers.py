"""Identities of dual optimisers: each is the memory of its pairs, solved anew at every step (float64).

The literal memories are written in NumPy, from all pairs that there ever were; the optimiser is given
gradients and Gram matrices alone.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

import memdsl as md
from memdsl.spec._descent import orthogonalised
from tests.properties._dual import as_usual
from tests.properties._growth import half_square, worst
from tests.properties._table import check


IN, OUT, BATCH, STEPS = 5, 3, 4, 6
RATE, STRENGTH, FADE = 0.3, 0.4, 0.7
_generator = np.random.default_rng(0)
START = _generator.normal(size=(OUT, IN))
INPUTS = _generator.normal(size=(STEPS, BATCH, IN))
ERRORS = _generator.normal(size=(STEPS, BATCH, OUT)) / BATCH
"""dL/dy of each example, with the 1/B of a mean in it."""

Literal = list[np.ndarray]


def ridge(
    gate: md.AbstractGate | None = None, strength: float = STRENGTH, **more: Any
) -> md.Memory:
    return md.Memory(md.Dot(), md.Ridge(strength, **more), gate or md.Keep())


def linear(start: np.ndarray) -> eqx.nn.Linear:
    layer = eqx.nn.Linear(start.shape[1], start.shape[0], use_bias=False, key=jax.random.key(0))
    return eqx.tree_at(lambda layer: layer.weight, layer, jnp.asarray(start))


def given_errors(y, g):
    """A loss whose derivative with respect to the answers is g."""
    return jnp.sum(y * g)


def trained(model: Any, optimiser: Any, batches: Any, loss: Any, rows: bool = False) -> list[Any]:
    """The model after every step."""
    batches = [(jnp.asarray(x), jnp.asarray(y)) for x, y in zip(*batches, strict=True)]
    captured = md.optim.capture(model, batches[0][0], rows=rows)
    state, found = optimiser.init(eqx.filter(captured, eqx.is_inexact_array)), []

    @eqx.filter_jit
    def step(captured, state, x, y):
        _, gradients, grams = md.optim.backward(loss, captured, x, y)
        updates, state = optimiser.update(gradients, state, captured, grams=grams)
        return eqx.apply_updates(captured, updates), state

    for x, y in batches:
        captured, state = step(captured, state, x, y)
        found.append(captured.model)
    return found


def path(
    memory: md.Memory,
    start: np.ndarray = START,
    inputs: np.ndarray = INPUTS,
    errors: np.ndarray = ERRORS,
    rows: bool = False,
    **options: Any,
) -> Literal:
    """The weights after every step, with given errors."""
    optimiser = md.optim.dual(memory, RATE, **options)
    models = trained(linear(start), optimiser, (inputs, errors), given_errors, rows)
    return [np.asarray(model.weight) for model in models]


def resolved(
    fade: float = 1.0,
    strength: Callable[[int, float], float] = lambda step, weight: STRENGTH,
    prior: Callable[[int], float] = lambda step: STRENGTH * FADE**step,
    targets: bool = True,
) -> Literal:
    """The literal memory: all pairs so far, their weights, and one least-squares problem a step.

    **Arguments:**

    - `strength`: the ridge after so many steps, given what all pairs weigh.
    - `prior`: what the start weighs as a value of the ridge.
    - `targets`: whether values are answers after a step, or steps alone.
    """
    weight, keys, values, found = START, [], [], []
    for step, (x, g) in enumerate(zip(INPUTS, ERRORS, strict=True), start=1):
        keys.append(x)
        values.append((x @ weight.T if targets else 0) - RATE * BATCH * g)
        share = [fade ** (step - 1 - i) / BATCH for i in range(step)]
        gram = sum(w * k.T @ k for w, k in zip(share, keys, strict=True))
        moment = sum(w * v.T @ k for w, v, k in zip(share, values, keys, strict=True))
        gram = gram + strength(step, BATCH * sum(share)) * np.eye(IN)
        weight = (moment + prior(step) * START) @ np.linalg.inv(gram)
        found.append(weight)
    return found


def apart(found: Literal, wanted: Literal) -> float:
    return max(worst(a, b) for a, b in zip(found, wanted, strict=True))


@check("F1", "the mesa optimiser is the ridge regression on all pairs (x, W x - rate g)", 1e-12)
def f1() -> float:
    literal = resolved(prior=lambda step: STRENGTH)
    weight, gram, steps = START, STRENGTH * np.eye(IN), []
    for x, g in zip(INPUTS, ERRORS, strict=True):
        gram = gram + x.T @ x / BATCH
        weight = weight - RATE * g.T @ x @ np.linalg.inv(gram)
        steps.append(weight)
    return max(apart(path(ridge()), literal), apart(steps, literal))


@check("F1 deep", "so is every layer of a network, biases included, beside the others", 1e-12)
def f1_deep() -> float:
    model = eqx.nn.MLP(IN, OUT, 6, 2, activation=jnp.tanh, key=jax.random.key(1))
    found = trained(model, md.optim.dual(ridge(), RATE), (INPUTS, ERRORS), half_square)
    weights = [np.c_[np.asarray(x.weight), np.asarray(x.bias)] for x in model.layers]
    starts, pairs, errors = weights, [[] for _ in weights], []

    def ones(x):
        return np.c_[x, np.ones(len(x))]

    for x, target, model in zip(INPUTS, ERRORS, found, strict=True):
        given = [x]
        for weight in weights[:-1]:
            given.append(np.tanh(ones(given[-1]) @ weight.T))
        g = (ones(given[-1]) @ weights[-1].T - target) / BATCH
        new = []
        for layer in reversed(range(len(weights))):
            weight, keys = weights[layer], ones(given[layer])
            pairs[layer].append((keys, keys @ weight.T - RATE * BATCH * g))
            g = (g @ weight[:, :-1]) * (1 - given[layer] ** 2)
            gram = STRENGTH * np.eye(len(weight.T)) + sum(k.T @ k for k, _ in pairs[layer]) / BATCH
            moment = STRENGTH * starts[layer] + sum(v.T @ k for k, v in pairs[layer]) / BATCH
            new.append(moment @ np.linalg.inv(gram))
        weights = new[::-1]
        for layer, weight in zip(model.layers, weights, strict=True):
            errors += [worst(layer.weight, weight[:, :-1]), worst(layer.bias, weight[:, -1])]
    return max(errors)


@check(
    "F2", "a ridge about 0 moves the weights once more, by W_0 H_1^-1 strength, at step 1", 1e-12
)
def f2() -> float:
    first = INPUTS[0].T @ INPUTS[0] / BATCH + STRENGTH * np.eye(IN)
    once = STRENGTH * START @ np.linalg.inv(first)
    about_zero = resolved(prior=lambda step: 0.0)
    return apart(about_zero, [weight - once for weight in path(ridge())])


@check("F3", "where pairs and ridge fade there is no shrinkage at all", 1e-12)
def f3() -> float:
    faded = {"fade": FADE, "strength": lambda step, _: STRENGTH * FADE**step}
    return apart(path(ridge(md.Decay(FADE)), ridge="fading"), resolved(**faded))


@check("F4", "a ridge that does not fade while pairs do is preconditioned weight decay", 1e-12)
def f4() -> float:
    gram, weight, steps = np.zeros((IN, IN)), START, []
    for x, g in zip(INPUTS, ERRORS, strict=True):
        gram = FADE * gram + x.T @ x / BATCH
        pull = RATE * g.T @ x + (1 - FADE) * STRENGTH * weight
        weight = weight - pull @ np.linalg.inv(gram + STRENGTH * np.eye(IN))
        steps.append(weight)
    literal = resolved(fade=FADE)
    return max(apart(path(ridge(md.Decay(FADE))), literal), apart(steps, literal))


@check("F5", "an inverse carried on by Woodbury is the one of the Cholesky factor", 1e-12)
def f5() -> float:
    errors = [apart(path(ridge(), rows=True, recursive=True), path(ridge()))]
    fading = ridge(md.Decay(FADE), rate=0.6)
    recursive = path(fading, ridge="fading", rows=True, recursive=True)
    return max(*errors, apart(recursive, path(fading, ridge="fading")))


@check("F5 solvers", "conjugate gradients, and a factor made anew every step, are the same", 1e-12)
def f5_solvers() -> float:
    iterated = ridge(md.Decay(FADE), solver=md.ConjugateGradient(steps=2 * IN, tolerance=0.0))
    return apart(path(iterated), path(ridge(md.Decay(FADE))))


@check("F6", "one pass of squared loss with rate 1 is ridge regression", 1e-12)
def f6() -> float:
    targets = np.random.default_rng(1).normal(size=(STEPS, BATCH, OUT))

    optimiser = md.optim.dual(ridge(), 1.0)
    *_, model = trained(linear(0 * START), optimiser, (INPUTS, targets), half_square)
    x, y = INPUTS.reshape(-1, IN), targets.reshape(-1, OUT)
    exact = np.linalg.solve(x.T @ x / BATCH + STRENGTH * np.eye(IN), x.T @ y / BATCH).T
    return worst(model.weight, exact)


@check("F7", "without a ridge, a proximal step moves the answer to x by -rate g", 1e-6)
def f7() -> float:
    found = path(ridge(md.Decay(0.0), 1e-9), ridge="centred")
    before = [START, *found[:-1]]
    moved = [x @ (b - a).T for x, a, b in zip(INPUTS, before, found, strict=True)]
    return apart(moved, [-RATE * BATCH * g for g in ERRORS])


@check(
    "F7 ridge", "a proximal step is the implicit delta rule with targets, of rate 1 / ridge", 1e-12
)
def f7_ridge() -> float:
    found = path(ridge(md.Decay(0.0)), ridge="centred")
    weight, steps = START, []
    for x, g in zip(INPUTS, ERRORS, strict=True):
        matrix = x.T @ x / BATCH + STRENGTH * np.eye(IN)
        weight = weight - RATE * g.T @ x @ np.linalg.inv(matrix)
        steps.append(weight)
    implicit = md.Memory(md.Dot(), md.Delta(1 / STRENGTH, implicit=True))
    return max(apart(found, steps), apart(path(implicit, values="target"), steps))


def delta(rate: float = 0.2, **more: Any) -> md.Memory:
    return md.Memory(md.Dot(), md.Delta(rate, **more))


@check("F8", "the delta rule on targets W x - rate g is SGD", 1e-12)
def f8() -> float:
    weight, steps = START, []
    for x, g in zip(INPUTS, ERRORS, strict=True):
        weight = weight - 0.2 * RATE * g.T @ x
        steps.append(weight)
    return apart(path(delta(), values="target"), steps)


@check("F8 DGD", "on the values -rate g it is delta gradient descent, activations decay", 1e-12)
def f8_dgd() -> float:
    weight, steps, decayed, others = START, [], START, []
    for x, g in zip(INPUTS, ERRORS, strict=True):
        values = -RATE * BATCH * g  # pair by pair, all errors from before the step
        moves = [np.outer(v - weight @ k, k) for k, v in zip(x, values, strict=True)]
        weight = weight + 0.2 * sum(moves) / BATCH
        steps.append(weight)

        def loss(w, x=jnp.asarray(x), g=jnp.asarray(g)):
            y = x @ w.T
            return jnp.sum(y * g) + jnp.mean(jnp.sum(y**2, axis=1)) / (2 * RATE)

        decayed = decayed - 0.2 * RATE * np.asarray(jax.grad(loss)(jnp.asarray(decayed)))
        others.append(decayed)
    found = path(delta())
    return max(apart(found, steps), apart(found, others))


@check("F9", "implicit delta gradient descent is the step after which the error is", 1e-12)
def f9() -> float:
    beta = 3.0
    found = path(delta(beta, implicit=True))
    one = path(delta(beta, implicit=True), inputs=INPUTS[:, :1], errors=ERRORS[:, :1])
    before, errors = [START, *found[:-1]], []
    for x, g, old, new in zip(INPUTS, ERRORS, before, found, strict=True):
        wrong = x @ new.T + RATE * BATCH * g
        errors.append(worst(wrong.T @ x / BATCH + (new - old) / beta, 0.0))
    for x, g, old, new in zip(INPUTS, ERRORS, [START, *one[:-1]], one, strict=True):
        key, step = x[0], beta / (1 + beta * x[0] @ x[0])
        errors.append(worst(new, old + step * np.outer(-RATE * g[0] - old @ key, key)))
    return max(errors)


@check("F10", "delta gradient descent of (w - 1)^2 / 2 with rate 1 comes to 1/2, SGD to 1", 1e-9)
def f10() -> float:
    def loss(y, _):
        return jnp.mean((y - 1) ** 2) / 2

    def last(memory: md.Memory) -> float:
        batches = np.ones((60, 1, 1)), np.ones((60, 1, 1))
        *_, model = trained(linear(np.zeros((1, 1))), md.optim.dual(memory, 1.0), batches, loss)
        return float(model.weight[0, 0])

    return max(abs(last(delta(0.3)) - 0.5), abs(last(md.Memory(md.Dot(), md.Hebb(0.4))) - 1))


@check("F13", "a ridge beside the mean over pairs is the ridge regression on this mean", 1e-12)
def f13() -> float:
    mean = {"strength": lambda step, weight: STRENGTH * weight, "prior": lambda step: 0.0}
    errors = [apart(path(ridge(md.Decay(FADE)), average=True), resolved(fade=FADE, **mean))]
    # far from the start it is FOOF with a step of (1 - fade) and preconditioned weight decay
    gram, weight, steps, total = np.zeros((IN, IN)), START, [], 0.0
    for x, g in zip(INPUTS, ERRORS, strict=True):
        gram, total = FADE * gram + (1 - FADE) * x.T @ x / BATCH, FADE * total + 1 - FADE
        matrix = np.linalg.inv(gram / total + STRENGTH * np.eye(IN))
        weight = weight - (1 - FADE) / total * (RATE * g.T @ x + STRENGTH * weight) @ matrix
        steps.append(weight)
    return max(*errors, apart(steps, resolved(fade=FADE, **mean)))


@check(
    "F13 FOOF", "a centred ridge beside a running mean is FOOF; relative, one in units of it", 1e-12
)
def f13_foof() -> float:
    errors = []
    for name in ("centred", "relative"):
        gram, weight, steps = np.zeros((IN, IN)), START, []
        for step, (x, g) in enumerate(zip(INPUTS, ERRORS, strict=True), start=1):
            gram = FADE * gram + (1 - FADE) * x.T @ x / BATCH
            mean = gram / (1 - FADE**step)
            unit = np.trace(mean) / IN if name == "relative" else 1.0
            matrix = mean + STRENGTH * unit * np.eye(IN)
            weight = weight - RATE * g.T @ x @ np.linalg.inv(matrix)
            steps.append(weight)
        errors.append(apart(path(ridge(md.Decay(FADE)), ridge=name, average=True), steps))
    return max(errors)


@check("F14", "on the values -rate g the mesa optimiser is preconditioned dual averaging", 1e-12)
def f14() -> float:
    gram, moment, steps = STRENGTH * np.eye(IN), STRENGTH * START, []
    for x, g in zip(INPUTS, ERRORS, strict=True):
        gram, moment = gram + x.T @ x / BATCH, moment - RATE * g.T @ x
        steps.append(moment @ np.linalg.inv(gram))
    found = path(ridge(), values="step")
    literal = resolved(targets=False, prior=lambda step: STRENGTH)
    faded = path(ridge(md.Decay(FADE)), values="step")
    literal_faded = resolved(fade=FADE, targets=False)
    return max(apart(found, steps), apart(found, literal), apart(faded, literal_faded))


@check("F15", "without a ridge, answers do not depend on the units of inputs", 1e-7)
def f15() -> float:
    units = np.random.default_rng(2).normal(size=(IN, IN))
    start, inputs = START @ np.linalg.inv(units), INPUTS @ units.T
    memory = ridge(strength=1e-12)
    both = np.concatenate([inputs, inputs[::-1]], axis=1)
    plain_both = np.concatenate([INPUTS, INPUTS[::-1]], axis=1)
    errors = np.concatenate([ERRORS, ERRORS[::-1]], axis=1)
    plain = path(memory, inputs=plain_both, errors=errors)
    other = path(memory, start=start, inputs=both, errors=errors)
    return apart([INPUTS[0] @ w.T for w in plain], [inputs[0] @ w.T for w in other])


@as_usual("F16", "the dual of Hebb's rule is optax.sgd, to the bit, decay and momentum too", 0.0)
def f16() -> float:
    rate = optax.cosine_decay_schedule(RATE, STEPS)
    errors = []
    for schedule in (RATE, rate):
        plain, weight = optax.sgd(schedule), jnp.asarray(START)
        state, steps = plain.init(weight), []
        for x, g in zip(INPUTS, ERRORS, strict=True):
            updates, state = plain.update(jnp.asarray(g.T @ x), state, weight)
            weight = optax.apply_updates(weight, updates)
            steps.append(weight)
        gradients = [jnp.asarray(g.T @ x) for x, g in zip(INPUTS, ERRORS, strict=True)]
        dual, weight = md.optim.dual(md.Memory(md.Dot(), md.Hebb()), schedule), jnp.asarray(START)
        state, found = dual.init(weight), []
        for gradient in gradients:
            updates, state = dual.update(gradient, state, weight)
            weight = optax.apply_updates(weight, updates)
            found.append(weight)
        errors.append(apart(found, steps))
    return max(errors)


@check(
    "F17",
    "a descent with momentum is heavy ball, with orthogonal steps Muon, of delta errors",
    1e-12,
)
def f17() -> float:
    errors = []
    for loss, orthogonal in ((md.Inner(), False), (md.Squared(), False), (md.Inner(), True)):
        write = md.Descent(loss, 0.5, momentum=0.9, orthogonalise=orthogonal, gain=0.2)
        weight, momentum, steps = START, np.zeros_like(START), []
        for x, g in zip(INPUTS, ERRORS, strict=True):
            start = 0.95 * weight
            recalled = start @ x.T @ x / BATCH if isinstance(loss, md.Squared) else 0.0
            momentum = 0.9 * momentum - 0.5 * (recalled + RATE * g.T @ x)
            move = np.asarray(orthogonalised(jnp.asarray(momentum))) if orthogonal else momentum
            weight = start + 0.2 * move
            steps.append(weight)
        memory = md.Memory(md.Dot(), write, md.Decay(0.95))
        errors.append(apart(path(memory), steps))
    return max(errors)
