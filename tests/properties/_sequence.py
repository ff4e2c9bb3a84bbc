"""Identities of the sequence memories: objectives, solvers, chunk forms (float64)."""

import math

import jax
import jax.numpy as jnp
import numpy as np

import memdsl as md
from tests.properties._table import check


def draw(seed: int, *shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape))


def unit(x: jax.Array) -> jax.Array:
    return x / jnp.linalg.norm(x, axis=-1, keepdims=True)


def go(memory, keys, values, queries=None, *, using=None, capacity=None, state=None, **signals):
    """`(state, answers)` in float64, from an empty memory."""
    if state is None:
        size = len(keys) if capacity is None else capacity
        sizes = keys.shape[1], values.shape[1]
        state = md.empty(memory, *sizes, capacity=size, using=using, dtype=jnp.float64)
    return md.run(memory, state, keys, values, queries, using=using, **signals)


def worst(a, b) -> float:
    return float(jnp.max(jnp.abs(jnp.asarray(a) - jnp.asarray(b))))


T, K, V = 9, 4, 3
KEYS, VALUES, QUERIES = draw(1, T, K), draw(2, T, V), draw(3, T, K)
RATES = jnp.asarray(np.random.default_rng(4).uniform(0.1, 0.9, T))
DECAYS = jnp.log(jnp.asarray(np.random.default_rng(5).uniform(0.5, 0.99, T)))
LOSSES = {
    "G1 inner": (md.Inner(), lambda p, v: -p @ v),
    "G1 squared": (md.Squared(), lambda p, v: jnp.sum((p - v) ** 2) / 2),
    "G3": (md.Power(3.0), lambda p, v: jnp.sum(jnp.abs(p - v) ** 3)),
    "G4": (
        md.Huber(0.5),
        lambda p, v: jnp.sum(
            jnp.where(jnp.abs(p - v) < 0.5, (p - v) ** 2 / 2, 0.5 * jnp.abs(p - v) - 0.125)
        ),
    ),
    "G4 norm": (
        md.Huber(0.5, by="norm"),
        lambda p, v: jnp.where(
            jnp.linalg.norm(p - v) < 0.5,
            jnp.sum((p - v) ** 2) / 2,
            0.5 * jnp.linalg.norm(p - v) - 0.125,
        ),
    ),
    "G1 cross entropy": (
        md.CrossEntropy(),
        lambda p, v: -jax.nn.softmax(v) @ jax.nn.log_softmax(p),
    ),
}


def _gradient(name: str) -> float:
    loss, function = LOSSES[name]
    found = []
    for prediction, value in zip(draw(6, 20, V), draw(7, 20, V), strict=True):
        target = jax.nn.softmax(value) if name.endswith("entropy") else value
        found.append(
            worst(loss.gradient(prediction, target), jax.grad(function)(prediction, value))
        )
    return max(found)


for _name in LOSSES:
    check(_name, f"gradient of {LOSSES[_name][0]!r} is the derivative of its loss", 1e-12)(
        lambda name=_name: _gradient(name)
    )


@check("G2", "OjaNet(k, v) is the delta rule with keys v and values k, transposed", 1e-12)
def oja() -> float:
    memory = md.Memory(md.Dot(), md.Delta(md.FromInput("sigmoid"))).transpose()
    values = unit(VALUES)
    _, found = go(memory, KEYS, values, QUERIES, rate=RATES)
    matrix, wanted = np.zeros((V, K)), []
    for k, v, q, rate in zip(*map(np.asarray, (KEYS, values, QUERIES, RATES)), strict=True):
        matrix = matrix + rate * np.outer(v, k - matrix.T @ v)
        wanted.append(matrix @ q)
    return worst(found, np.array(wanted))


@check(
    "G5", "the implicit delta step is the minimiser of loss + distance to the decayed memory", 1e-12
)
def implicit() -> float:
    memory = md.Memory(md.Dot(), md.Delta(0.7, implicit=True), md.Decay(0.8))
    state, _ = go(memory, KEYS[:1], VALUES[:1], QUERIES[:1])
    before = state.matrix
    state, _ = go(memory, KEYS[1:2], VALUES[1:2], QUERIES[1:2], state=state)
    k, v = KEYS[1], VALUES[1]
    # stationarity of |S^T k - v|^2 / 2 + |S - 0.8 S'|^2 / (2 * 0.7)
    s = state.matrix
    return worst(k[:, None] * (s.T @ k - v)[None, :] + (s - 0.8 * before) / 0.7, 0.0)


@check("G7", "m steps on one pair are one step of (1 - (1 - b |k|^2)^m) / |k|^2", 1e-12)
def collapse() -> float:
    many = md.Memory(md.Dot(), md.Descent(md.Squared(), rate=0.1, steps=4))
    _, found = go(many, KEYS, VALUES, QUERIES)
    norms = jnp.sum(KEYS**2, -1)
    once = md.Memory(md.Dot(), md.Delta(md.FromInput("sigmoid")))
    rate = (1 - (1 - 0.1 * norms) ** 4) / norms
    _, wanted = go(once, KEYS, VALUES, QUERIES, rate=rate)
    return worst(found, wanted)


@check("G11", "softmax attention is Nadaraya-Watson with the kernel exp(k . q / sqrt d)", 1e-12)
def nadaraya() -> float:
    _, found = go(md.zoo.softmax(), KEYS, VALUES, QUERIES)
    logits = QUERIES @ KEYS.T / math.sqrt(K)
    logits = jnp.where(jnp.tril(jnp.ones((T, T), bool)), logits, -jnp.inf)
    return worst(found, jax.nn.softmax(logits, axis=-1) @ VALUES)


@check("G13", "momentum unrolls to rate sum_s mu^(s-t) (1-a)^(T-s) of every gradient", 1e-12)
def momentum() -> float:
    write = md.Descent(md.Inner(), rate=0.3, momentum=0.6, recall="previous")
    _, found = go(md.Memory(md.Dot(), write, md.Decay(0.9)), KEYS, VALUES, QUERIES)
    wanted = []
    for last in range(T):
        total = np.zeros((K, V))
        for t in range(last + 1):
            weight = sum(0.6 ** (s - t) * 0.9 ** (last - s) for s in range(t, last + 1))
            total += 0.3 * weight * np.outer(KEYS[t], VALUES[t])
        wanted.append(total.T @ np.asarray(QUERIES[last]))
    return worst(found, np.array(wanted))


def _sweeps(sweeps: int):
    solver = md.GaussSeidel(sweeps)
    memory = md.Memory(md.RBF(1.5), md.Ridge(0.4, solver=solver))
    return go(memory, KEYS, VALUES, QUERIES)[1]


@check("G14", "delta with b = 1 / (kernel(k, k) + ridge) is one Gauss-Seidel sweep", 1e-12)
def one_sweep() -> float:
    delta = md.Memory(md.RBF(1.5), md.Delta(1 / 1.4))
    return worst(_sweeps(1), go(delta, KEYS, VALUES, QUERIES)[1])


@check("G14 limit", "200 Gauss-Seidel sweeps are the ridge solution", 1e-12)
def many_sweeps() -> float:
    exact = md.Memory(md.RBF(1.5), md.Ridge(0.4))
    return worst(_sweeps(200), go(exact, KEYS, VALUES, QUERIES)[1])


@check("H2", "MesaNet is linear attention read at (H + ridge)^-1 q", 1e-12)
def preconditioned() -> float:
    memory = md.Memory(md.Dot(), md.Ridge(0.5))
    _, found = go(memory, KEYS, VALUES, QUERIES)
    solved = []
    for t in range(T):
        gram = KEYS[: t + 1].T @ KEYS[: t + 1] + 0.5 * jnp.eye(K)
        solved.append(jnp.linalg.solve(gram, QUERIES[t]))
    _, wanted = go(md.Memory(md.Dot()), KEYS, VALUES, jnp.stack(solved))
    return worst(found, wanted)


@check("H3", "delta with b = 1 and kernel(k, k) = 1 recalls the latest pair exactly", 1e-12)
def recalls() -> float:
    errors = []
    for kernel in (md.RBF(0.8), md.Dot().pullback(md.L2Norm(epsilon=0.0))):
        _, found = go(md.Memory(kernel, md.Delta(1.0)), KEYS, VALUES, KEYS)
        errors.append(worst(found, VALUES))
    return max(errors)


@check("H5", "kernel ridge regression is the posterior mean of a Gaussian process", 1e-10)
def process() -> float:
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF

    regressor = GaussianProcessRegressor(RBF(1.3), alpha=0.2, optimizer=None)
    regressor.fit(np.asarray(KEYS), np.asarray(VALUES))
    memory = md.Memory(md.RBF(1.3), md.Ridge(0.2))
    state, _ = go(memory, KEYS, VALUES, QUERIES)
    return worst(md.evaluate(memory, state, QUERIES), regressor.predict(np.asarray(QUERIES)))


@check("H6", "a memory of features is the memory of their kernel", 1e-12)
def features() -> float:
    errors = []
    for write in (md.Hebb(), md.Delta(0.1), md.Ridge(0.3)):
        kernel = md.Polynomial(2, offset=0.5)
        memory = md.Memory(kernel, write)
        matrix = "gram / recurrent" if isinstance(write, md.Ridge) else "matrix / recurrent"
        _, as_matrix = go(memory, KEYS, VALUES, QUERIES, using=matrix)
        _, as_buffer = go(memory, KEYS, VALUES, QUERIES, using="buffer / recurrent")
        errors.append(worst(as_matrix, as_buffer))
    return max(errors)


def _chunks(memory, reference: str, others: list[str], **signals) -> float:
    wanted = go(memory, KEYS, VALUES, QUERIES, using=reference, **signals)[1]
    return max(
        worst(go(memory, KEYS, VALUES, QUERIES, using=name, **signals)[1], wanted)
        for name in others
    )


CHUNKS = [f"matrix / chunkwise ({c})" for c in (16, 32, 64)]
GATED = md.Decay(md.FromInput("sigmoid"))
DIAGONAL = md.DiagonalDecay(md.FromInput("sigmoid", per="key_channel"))
PER_KEY = jnp.log(jnp.asarray(np.random.default_rng(8).uniform(0.2, 0.99, (T, K))))


@check("I1", "linear attention with scalar decay in chunks is the recurrence", 1e-12)
def scalar_chunks() -> float:
    memory = md.Memory(md.Dot(), md.Hebb(), GATED)
    others = [*CHUNKS, "matrix / associative", "buffer / parallel"]
    return _chunks(memory, "matrix / recurrent", others, log_decay=DECAYS)


@check("I2", "the delta rule with decay per channel in chunks is the recurrence", 1e-12)
def diagonal_chunks() -> float:
    memory = md.Memory(md.Dot(), md.Delta(md.FromInput("sigmoid")), DIAGONAL)
    return _chunks(memory, "matrix / recurrent", CHUNKS, rate=RATES, log_decay=PER_KEY)


@check("I3", "the gated delta rule of any kernel, by triangular solves, is the recurrence", 1e-12)
def kernel_chunks() -> float:
    errors = []
    for kernel in (md.RBF(1.2), md.Exp(0.3 * md.Dot()), md.Dot()):
        memory = md.Memory(kernel, md.Delta(md.FromInput("sigmoid")), GATED)
        others = [f"buffer / chunkwise ({c})" for c in (32, 64)]
        errors.append(_chunks(memory, "buffer / recurrent", others, rate=RATES, log_decay=DECAYS))
    return max(errors)


@check("I4", "DeltaProduct is the delta rule on every pair in turn, read at the last", 1e-12)
def product() -> float:
    keys, values = unit(draw(10, 2 * T, K)), draw(11, 2 * T, V)
    rates = jnp.asarray(np.random.default_rng(12).uniform(0, 2, 2 * T))
    memory = md.Memory(md.Dot(), md.Delta(md.FromInput("sigmoid")))
    _, found = go(memory.replace(write=memory.write.times(2)), keys, values, QUERIES, rate=rates)
    _, wanted = go(memory, keys, values, jnp.repeat(QUERIES, 2, axis=0), rate=rates)
    return worst(found, wanted[1::2])


@check("I5", "every prefix's ridge regression comes from one Cholesky factor", 1e-12)
def prefixes() -> float:
    memory = md.Memory(md.RBF(1.2), md.Ridge(0.3))
    _, found = go(memory, KEYS, VALUES, QUERIES, using="buffer / all-prefix")
    wanted = []
    for t in range(1, T + 1):
        gram = memory.kernel.pairs(KEYS[:t], KEYS[:t]) + 0.3 * jnp.eye(t)
        similar = memory.kernel.pairs(KEYS[:t], QUERIES[t - 1 : t])[:, 0]
        wanted.append(similar @ jnp.linalg.solve(gram, VALUES[:t]))
    return worst(found, jnp.stack(wanted))


@check("I6", "gated mesa in chunks is the recurrence, exactly and by conjugate gradients", 1e-10)
def mesa_chunks() -> float:
    errors = []
    for solver in (md.Cholesky(), md.ConjugateGradient(steps=4 * K)):
        memory = md.Memory(md.Dot(), md.Ridge(0.5, md.FromInput("sigmoid"), solver), GATED)
        exact = memory.replace(write=md.Ridge(0.5, md.FromInput("sigmoid")))
        signals = {"rate": RATES, "log_decay": DECAYS}
        _, wanted = go(exact, KEYS, VALUES, QUERIES, using="gram / recurrent", **signals)
        for name in ("gram / chunkwise (32)", "gram / recurrent"):
            _, found = go(memory, KEYS, VALUES, QUERIES, using=name, **signals)
            errors.append(worst(found, wanted))
    return max(errors)


@check("I7", "64 equal keys with b = 2 stay bounded in float32: no powers of the matrix", 1e-3)
def triangular() -> float:
    keys = jnp.ones((64, 4), jnp.float32) / 2
    values = jnp.asarray(draw(13, 64, 2), jnp.float32)
    memory = md.Memory(md.Dot(), md.Delta(2.0))
    state = md.empty(memory, 4, 2)
    found = md.run(memory, state, keys, values, keys, using="matrix / chunkwise (64)")[1]
    wide = [x.astype(jnp.float64) for x in (keys, values, keys)]
    wanted = go(memory, *wide, using="matrix / recurrent")[1]
    return worst(found.astype(jnp.float64), wanted)


@check(
    "I8", "softmax attention over u = (I + b P)^-1 v is the delta rule of a normalised read", 1e-12
)
def delta_former() -> float:
    memory = md.zoo.softmax().replace(write=md.Delta(md.FromInput("sigmoid")))
    _, found = go(memory, KEYS, VALUES, QUERIES, rate=RATES)
    logits = KEYS @ KEYS.T / math.sqrt(K)
    logits = jnp.where(jnp.tril(jnp.ones((T, T), bool), -1), logits, -jnp.inf)
    before = jnp.concatenate([jnp.zeros((1, T)), jax.nn.softmax(logits[1:], axis=-1)])
    u = jnp.linalg.solve(jnp.eye(T) + RATES[:, None] * before, RATES[:, None] * VALUES)
    _, wanted = go(md.zoo.softmax(), KEYS, u, QUERIES)
    return worst(found, wanted)


@check(
    "I9", "the error of the undecayed memory (RWKV-7, Comba), in chunks, is the recurrence", 1e-12
)
def previous_chunks() -> float:
    write = md.Delta(md.FromInput("sigmoid"), recall="previous")
    memory = md.Memory(md.Dot(), write, DIAGONAL)
    return _chunks(memory, "matrix / recurrent", CHUNKS, rate=RATES, log_decay=PER_KEY)
