"""Identities of the inner objectives: losses, retentions, minibatches, orthogonal steps (float64)."""

import jax
import jax.numpy as jnp
import numpy as np

import memdsl as md
from memdsl.spec._descent import orthogonalised
from tests.properties._sequence import (
    DECAYS,
    draw,
    GATED,
    go,
    K,
    KEYS,
    QUERIES,
    RATES,
    T,
    V,
    VALUES,
    worst,
)
from tests.properties._table import check


@check("G4b", "gradient of ValueShift(0.5) is the derivative of its loss", 1e-12)
def value_shift() -> float:
    loss = md.ValueShift(0.5)

    def function(p, v):
        return (jnp.linalg.norm(p - v) + 0.5) ** 2 / 2

    pairs = list(zip(draw(6, 20, V), draw(7, 20, V), strict=True))
    return max(worst(loss.gradient(p, v), jax.grad(function)(p, v)) for p, v in pairs)


@check("G4b worst", "it is the squared error of the worst value within 0.5 of the target", 1e-12)
def worst_value() -> float:
    loss, found = md.ValueShift(0.5), []
    for p, v in zip(draw(6, 20, V), draw(7, 20, V), strict=True):
        away = (v - p) / jnp.linalg.norm(v - p)
        found.append(worst(loss.gradient(p, v), p - (v + 0.5 * away)))
    return max(found)


def _two(memory: md.Memory) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The stored matrix before and after the second pair, and the gradient of its loss between."""
    state, _ = go(memory, KEYS[:1], VALUES[:1], QUERIES[:1])
    after, _ = go(memory, KEYS[1:2], VALUES[1:2], QUERIES[1:2], state=state)
    recalled = md.evaluate(memory, state, KEYS[1:2])[0]
    gradient = KEYS[1][:, None] * (recalled - VALUES[1])[None, :]
    parts = [s.parts()["function"] if hasattr(s, "parts") else s for s in (state, after)]
    return parts[0].matrix, parts[1].matrix, gradient


@check("G8", "Memora is the minimiser of loss, entropy and divergence on the simplex", 1e-12)
def memora() -> float:
    a, eta = 2.0, 0.7  # of the entropy, and of the divergence from the last matrix
    both = 1 / a + 1 / eta
    gate = md.Simplex(decay=1 / eta / both, total=1.5)
    before, after, g = _two(md.Memory(md.Dot(), md.Descent(rate=1 / both, recall="previous"), gate))
    old, new = gate.mirror(before), gate.mirror(after)
    # stationarity up to the multiplier of each value channel, whose weights add up to 1.5
    slope = g + (jnp.log(new) + 1) / a + (jnp.log(new / old) + 1) / eta
    apart = slope - jnp.mean(slope, axis=0, keepdims=True)
    return max(worst(apart, 0.0), worst(jnp.sum(new, axis=0), 1.5))


@check("G9", "the elastic net is the minimiser of loss, distance, |M|^2 and |M|_1", 1e-12)
def elastic() -> float:
    eta, b, a = 0.7, 3.0, 8.0
    shrink = b / (b + eta)
    step = eta * shrink
    write = md.Descent(rate=step, recall="previous")
    gate = md.Decay(shrink) @ md.SoftThreshold(step / a)
    before, after, g = _two(md.Memory(md.Dot(), write, gate))
    slope = g + (after - before) / eta + after / b
    off = jnp.where(after != 0, slope + jnp.sign(after) / a, jnp.maximum(jnp.abs(slope) - 1 / a, 0))
    return worst(off, 0.0)


@check("G10", "the map of LqNorm(q) undoes the gradient of |M|_q^2 / 2", 1e-12)
def mirror() -> float:
    errors = []
    for q in (1.5, 2.0, 4.0):
        matrix = draw(8, K, V)
        shown = md.LqNorm(q).mirror(matrix)

        def half(m, q=q):
            return jnp.sum(jnp.abs(m) ** q) ** (2 / q) / 2

        errors.append(worst(jax.grad(half)(shown), matrix))
    return max(errors)


def _write(minibatch: int) -> md.Memory:
    return md.Memory(md.Dot(), md.Descent(rate=md.FromInput("sigmoid"), minibatch=minibatch), GATED)


@check("G12", "minibatches of one token are the delta rule, one that is never full Hebb's", 1e-12)
def limits() -> float:
    signals = {"rate": RATES, "log_decay": DECAYS}
    delta = md.Memory(md.Dot(), md.Delta(md.FromInput("sigmoid")), GATED)
    hebb = md.Memory(md.Dot(), md.Hebb(md.FromInput("sigmoid")), GATED)
    errors = []
    for memory, other in ((_write(1), delta), (_write(T + 1), hebb)):
        _, found = go(memory, KEYS, VALUES, QUERIES, **signals)
        errors.append(worst(found, go(other, KEYS, VALUES, QUERIES, **signals)[1]))
    return max(errors)


@check("H7", "a minibatch of a network moves it by the gradient of the sum of its losses", 1e-12)
def summed() -> float:
    network = md.Network(md.Descent(rate=0.3, minibatch=T), (5,))
    state, _ = go(network, KEYS, VALUES, QUERIES)
    start = jnp.asarray(network.start(K, V))

    def loss(p):
        errors = jax.vmap(lambda k, v: network.answer(p, k, V) - v)(KEYS, VALUES)
        return jnp.sum(errors**2) / 2

    return worst(state.parts()["function"].parameters, start - 0.3 * jax.grad(loss)(start))


@check("I10", "Titans and TTT in minibatches are token by token, however they are cut", 1e-12)
def minibatches() -> float:
    write = md.Descent(rate=md.FromInput("sigmoid"), momentum=0.6, minibatch=4, gain=md.Knob(0.7))
    errors, signals = [], {"rate": RATES, "log_decay": DECAYS}
    for memory, kind in (
        (md.Memory(md.Dot(), write, GATED), "matrix"),
        (md.Memory(md.Dot(), write.replace(orthogonalise=True), GATED), "matrix"),
        (md.Network(write, (5,), GATED), "network"),
    ):
        using = {name: f"{kind} / {name}" for name in ("recurrent", "minibatch")}
        _, wanted = go(memory, KEYS, VALUES, QUERIES, using=using["recurrent"], **signals)
        state, answers = None, []
        for rows in (slice(0, 3), slice(3, T)):
            own = {name: array[rows] for name, array in signals.items()}
            arrays = (KEYS[rows], VALUES[rows], QUERIES[rows])
            state, out = go(memory, *arrays, using=using["minibatch"], state=state, **own)
            answers.append(out)
        errors.append(worst(jnp.concatenate(answers), wanted))
    return max(errors)


@check("A5 inner", "an orthogonal step is a polynomial of every singular value", 1e-10)
def orthogonal() -> float:
    matrix = np.asarray(draw(9, K, V))
    u, s, v = np.linalg.svd(matrix, full_matrices=False)
    s = s / np.sqrt(np.sum(s**2))
    for _ in range(5):
        s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
    return worst(orthogonalised(jnp.asarray(matrix)), u @ np.diag(s) @ v)
