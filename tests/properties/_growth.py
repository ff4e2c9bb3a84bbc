"""Identities of growing layers: math of the dual form, of kernel layers, and of what is let in."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import memdsl as md
from memdsl.grow._fold import plain_atoms
from memdsl.grow._greedy import decide
from memdsl.nn._grown import GrownLayer
from tests.properties._table import check


BACKWARD, WRITE = eqx.filter_jit(md.grow.backward), eqx.filter_jit(md.grow.write)


def draw(seed: int, *shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape))


def worst(a, b) -> float:
    return float(jnp.max(jnp.abs(jnp.asarray(a) - jnp.asarray(b))))


def half_square(predictions, targets):
    return 0.5 * jnp.mean(jnp.sum((predictions - targets) ** 2, axis=-1))


def build(spec: md.AbstractLayer, width: int):
    return md.build(spec, md.Dims(model=width), key=jax.random.key(0), dtype=jnp.float64)


def layer(memory: md.Memory, size: int, start: str = "zeros") -> md.Grown:
    return md.Grown(md.Dense(size, start=start, trainable=False), memory)


def gaussian(keys, queries, scale):
    square = np.sum((np.asarray(keys)[:, None] - np.asarray(queries)[None]) ** 2, -1)
    return np.exp(-square / (2 * scale**2))


def train(model, inputs, targets, steps=1):
    for _ in range(steps):
        _, _, pairs = BACKWARD(half_square, model, inputs, targets)
        model = WRITE(model, pairs)
    return model


def _against_sgd(memory: md.Memory, decay: float = 0.0) -> float:
    """Two layers and a nonlinearity, five minibatches: growth beside gradient descent of weights."""
    rate = 0.3
    spec = layer(memory, 6, "normal") >> md.Relu() >> layer(memory, 3, "normal")
    model, x, y = build(spec, 4), draw(1, 5, 8, 4), draw(2, 5, 8, 3)
    bases = [model.layers[0].base.weight, model.layers[2].base.weight]

    def plain(grown, inputs):
        first, second = (base + new for base, new in zip(bases, grown, strict=True))
        return jax.nn.relu(inputs @ first.T) @ second.T

    grown = [jnp.zeros_like(base) for base in bases]
    for inputs, targets in zip(x, y, strict=True):
        slopes = jax.grad(lambda w, i=inputs, t=targets: half_square(plain(w, i), t))(grown)
        grown = [(1 - decay) * w - rate * g for w, g in zip(grown, slopes, strict=True)]
        model = train(model, inputs, targets)
    return worst(jax.vmap(model)(x[0]), plain(grown, x[0]))


@check("A1", "minibatch SGD is linear attention over the pairs (x, -rate g)", 1e-12)
def a1() -> float:
    return _against_sgd(md.Memory(md.Dot(), md.Hebb(0.3), capacity=md.Budget(40)))


@check("B5", "a layer that grows by a linear kernel is SGD, weight decay included", 1e-12)
def b5() -> float:
    faded = md.Memory(md.Dot(), md.Hebb(0.3), md.Decay(0.9))
    plain = _against_sgd(md.Memory(md.Dot(), md.Hebb(0.3)))
    return max(plain, _against_sgd(faded, decay=0.1))


@check("B1", "one pass of squared loss solves (I + diag(rate) tril(K, -1)) U = diag(rate) Y", 1e-12)
def b1() -> float:
    count, scale = 12, 0.8
    schedule = {"init_value": 0.9, "end_value": 0.2, "transition_steps": count}
    rate = md.Schedule("linear_schedule", **schedule)
    memory = md.Memory(md.RBF(scale=scale), md.Hebb(rate), capacity=md.Budget(count))
    model, x, y = build(layer(memory, 2, "normal"), 3), draw(1, count, 3), draw(2, count, 2)
    base = jax.vmap(model)(x)
    for row in range(count):
        model = train(model, x[row : row + 1], y[row : row + 1])
    rates = np.asarray(rate.function()(jnp.arange(count)))
    system = np.eye(count) + rates[:, None] * np.tril(gaussian(x, x, scale), -1)
    return worst(model.state.values, np.linalg.solve(system, rates[:, None] * (y - base)))


def _full_batch(rate: float, steps: int) -> tuple[GrownLayer, jax.Array, jax.Array]:
    x, y = draw(1, 10, 2), draw(2, 10, 2)
    capacity = md.Budget(10, merge=md.AddToNearest())
    memory = md.Memory(md.RBF(scale=0.7), md.Hebb(md.Knob(rate)), md.Novelty(0.0), capacity)
    model = build(layer(memory, 2), 2)
    return train(model, x, y, steps), x, y


@check("B2", "full-batch squared loss gives (I - (I - rate K / n)^T) Y", 1e-11)
def b2() -> float:
    rate, steps = 1.5, 40
    model, x, y = _full_batch(rate, steps)
    shrink = np.eye(10) - rate / 10 * gaussian(x, x, 0.7)
    closed = (np.eye(10) - np.linalg.matrix_power(shrink, steps)) @ np.asarray(y)
    return worst(jax.vmap(model)(x), closed)


@check("B3", "steps are stable below 2 n / largest eigenvalue of K and not above it", 1e-2)
def b3() -> float:
    x = draw(1, 10, 2)
    values, vectors = np.linalg.eigh(gaussian(x, x, 0.7))
    found = []
    for factor in (1.98, 2.02):
        model, x, y = _full_batch(factor * 10 / values[-1], 100)
        error = vectors[:, -1] @ np.asarray(jax.vmap(model)(x) - y)
        found.append(np.linalg.norm(error) / np.linalg.norm(vectors[:, -1] @ np.asarray(y)))
    return float(np.max(np.abs(np.asarray(found) / [0.98**100, 1.02**100] - 1)))


@check("B4", "decay by weights in the logarithm is decay of the coefficients", 1e-12)
def b4() -> float:
    memory = md.Memory(md.RBF(), md.Hebb(0.5), md.Decay(0.7), md.Budget(24))
    model, keys, errors = build(layer(memory, 2), 3), draw(1, 6, 4, 3), draw(2, 6, 4, 2)
    coefficients = np.zeros((0, 2))
    for pair in zip(keys, errors, strict=True):
        model = WRITE(model, (md.grow.Pairs(*pair),))
        coefficients = np.concatenate([0.7 * coefficients, -0.5 * np.asarray(pair[1])])
    queries = draw(3, 5, 3)
    stored = keys.reshape(24, 3)
    return worst(jax.vmap(model)(queries), gaussian(queries, stored, 1.0) @ coefficients)


@check("B6", "in a deep net the loss falls by the sum of kernel(x_i, x_j) <g_i, g_j>", 1e-7)
def b6() -> float:
    memory = md.Memory(md.RBF(), md.Hebb(md.Knob(1.0)), capacity=md.Budget(40))
    spec = layer(memory, 5, "normal") >> md.Silu() >> layer(memory, 4, "normal")
    model, x, y = (
        build(spec >> md.Silu() >> layer(memory, 2, "normal"), 3),
        draw(1, 6, 3),
        draw(2, 6, 2),
    )
    model = train(model, x[::-1], draw(3, 6, 2), 2)  # so that the signal passes stored atoms too
    _, _, pairs = BACKWARD(half_square, model, x, y)

    @eqx.filter_jit
    def loss_after(rate):
        knobs = lambda m: [a.numbers["write.rate"][0] for a in md.grow.growing(m)]  # noqa: E731
        moved = eqx.tree_at(knobs, model, [rate] * 3)
        return half_square(jax.vmap(md.grow.write(moved, pairs))(x), y)

    step = 1e-4
    slope = (loss_after(jnp.asarray(step)) - loss_after(jnp.asarray(-step))) / (2 * step)
    predicted = 0.0
    for pair in pairs:
        inner = np.asarray(pair.cotangent @ pair.cotangent.T)
        predicted -= np.sum(gaussian(pair.key, pair.key, 1.0) * inner)
    return abs(float(slope) - predicted) / abs(predicted)


@check("B7", "the input Jacobian of an RBF layer is sum u kernel (k - q)^T / scale^2", 1e-12)
def b7() -> float:
    memory = md.Memory(md.RBF(scale=0.9), md.Hebb(1.0), capacity=md.Budget(12))
    model, keys, errors = build(layer(memory, 2), 3), draw(1, 7, 3), draw(2, 7, 2)
    model = WRITE(model, (md.grow.Pairs(keys, errors),))
    q = draw(3, 3)
    weights = gaussian(keys, q[None], 0.9)
    expected = -np.asarray(errors).T @ (weights * np.asarray(keys - q[None])) / 0.9**2
    return worst(jax.jacobian(model)(q), expected)


def _novel(threshold: float, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """`(stored, batch, which of the batch become atoms)` of a layer that holds something already."""
    memory = md.Memory(md.RBF(), md.Hebb(1.0), md.Novelty(threshold), md.Budget(64))
    stored, batch = np.array(draw(seed, 12, 2)), np.array(draw(seed + 1, 30, 2))
    batch[10:15] = batch[:5]
    batch[15] = stored[0]
    model = WRITE(
        build(layer(memory, 2), 2), (md.grow.Pairs(jnp.asarray(stored), jnp.ones((12, 2))),)
    )
    held = np.asarray(model.state.keys)[np.asarray(model.state.valid)]
    atoms = plain_atoms(jnp.asarray(batch), -jnp.ones((30, 2)), jnp.ones((30, 2)))
    fate, _ = jax.jit(lambda state: decide(memory, state, atoms, md.Oldest()))(model.state)
    return held, batch, np.asarray(fate.slot < 64)


@check(
    "B8", "a pair merged within t changes f by at most |u| sqrt(2 - 2 exp(-t^2 / 2 scale^2))", 0.0
)
def b8() -> float:
    scale, reach, above = 0.7, 0.4, 0.0
    every = md.Memory(md.RBF(scale=scale), md.Hebb(), capacity=md.Budget(8))
    capacity = md.Budget(8, merge=md.AddToNearest())
    merging = every.replace(gate=md.Novelty(reach), capacity=capacity)
    at = draw(3, 400, 2) * 2

    @jax.jit
    def change(pair, values):
        found = []
        for memory in (every, merging):
            state, _ = md.run(memory, md.empty(memory, 2, 3, dtype=jnp.float64), pair, values)
            found.append(md.evaluate(memory, state, at))
        return jnp.linalg.norm(found[0] - found[1], axis=1)

    for seed in range(20):
        pair = jnp.stack([draw(seed, 2), draw(seed, 2) + 0.25 * jnp.tanh(draw(seed + 50, 2))])
        values = draw(seed + 100, 2, 3)
        bound = np.sqrt(2 - 2 * np.exp(-(reach**2) / (2 * scale**2)))
        worst_change = float(jnp.max(change(pair, values)))
        assert worst_change > 0
        above = max(above, worst_change - float(bound * jnp.linalg.norm(values[1])))
    return above


@check("E1", "a batch lets in what its keys, taken in order, would let in", 0.0)
def e1() -> float:
    differ = 0
    for seed, threshold in enumerate((-1.0, 0.0, 0.3, 0.8, np.inf)):
        stored, batch, entered = _novel(threshold, 10 * seed + 1)
        kept = list(stored)
        for key, enters in zip(batch, entered, strict=True):
            distance = min([np.inf, *(np.linalg.norm(key - other) for other in kept)])
            wanted = distance > threshold
            differ += bool(enters) != wanted
            kept += [key] if wanted else []
    return float(differ)


@check("E2", "keys that were let in are farther than the threshold from each other", 0.0)
def e2() -> float:
    close = 0
    for seed, threshold in enumerate((0.0, 0.3, 0.8)):
        stored, batch, entered = _novel(threshold, 10 * seed + 1)
        kept = np.concatenate([stored, batch[entered]])
        distances = np.sqrt(np.sum((kept[:, None] - kept[None]) ** 2, -1))
        close += int(np.sum(distances[np.triu_indices(len(kept), 1)] <= threshold))
    return float(close)


@check("E4", "empty slots change no answer and no gradient, whatever they hold", 1e-14)
def e4() -> float:
    memory = md.Memory(md.RBF(), md.Hebb(0.5), capacity=md.Budget(8))
    exact = train(build(layer(memory, 2, "normal"), 3), draw(1, 8, 3), draw(2, 8, 2))
    padded = md.grow.resize(exact, 20)

    def spoil(array):
        free = ~padded.state.valid.reshape(-1, *(1,) * (array.ndim - 1))
        return jnp.where(free, jnp.nan, array)

    state = padded.state
    changes = {name: spoil(getattr(state, name)) for name in ("keys", "values", "usage")}
    padded = eqx.tree_at(lambda m: m.state, padded, state.put(**changes))
    x = draw(3, 5, 3)

    def answer_and_slope(model):
        return jax.vmap(jax.value_and_grad(lambda x: jnp.sum(model(x) ** 2)))(x)

    return max(
        worst(one, two)
        for one, two in zip(answer_and_slope(exact), answer_and_slope(padded), strict=True)
    )
