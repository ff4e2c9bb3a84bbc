"""Identities of weighted softmax: the gradient of a normalised read, its rules, and its storage."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import memdsl as md
from memdsl.grow._fold import fold
from memdsl.spec._reweight import NEGATIVE
from memdsl.state._write import recall
from tests.properties._growth import build, draw, half_square, layer, train, worst
from tests.properties._table import check


TEMPERATURE = 0.5
KERNEL = md.Exp(TEMPERATURE * md.Dot())
NO_PRIOR = 1e-30  # a prior has the value 0, and so would not shift with the stored ones


def softmax(negative: str, rate: Any = 0.3, prior: float = 1.0, **options: Any) -> md.Memory:
    write = md.Reweight(rate, negative=negative, **options)
    return md.Memory(KERNEL, write, capacity=md.Budget(40), read=md.Normalised(prior=prior))


@eqx.filter_jit
def written(memory: md.Memory, state: Any, keys: Any, signals: Any) -> Any:
    return fold(memory, state, keys, signals)


@eqx.filter_jit
def read(memory: md.Memory, state: Any, queries: Any) -> jax.Array:
    return md.evaluate(memory, state, queries)


def empty(memory: md.Memory, key: int = 3, value: int = 2) -> Any:
    return md.empty(memory, key, value, dtype=jnp.float64)


def filled(memory: md.Memory, seed: int = 1) -> Any:
    """A state of five atoms with masses above 0, values, and weights of several sizes."""
    state = empty(memory)
    return state.put(
        keys=state.keys.at[:5].set(draw(seed, 5, 3)),
        values=state.values.at[:5].set(draw(seed + 1, 5, 2)),
        masses=state.masses.at[:5].set(jnp.exp(draw(seed + 2, 5))),
        log_weight=state.log_weight.at[:5].set(draw(seed + 3, 5)),
        counts=eqx.tree_at(lambda c: c.admitted, state.counts, jnp.asarray(5, jnp.int32)),
    )


def linear(memory: md.Memory, state: Any, queries: Any) -> tuple[np.ndarray, np.ndarray]:
    """N and D at the queries, the atoms added up as they are."""
    there = np.asarray(state.valid)
    keys, values, masses = (np.asarray(x)[there] for x in (state.keys, state.values, state.masses))
    weights = np.exp(np.asarray(state.log_weight)[there])
    similar = weights * np.exp(TEMPERATURE * np.asarray(queries) @ keys.T)
    return similar @ values, memory.read.core().prior + similar @ masses


def quadrature(spread: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Keys, values and weights of the base measure `N(0, TEMPERATURE) x N(0, spread)`."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(48)
    weights = weights / weights.sum()
    k, v = np.meshgrid(nodes * TEMPERATURE**0.5, nodes * spread**0.5, indexing="ij")
    return k, v, weights[:, None] * weights[None, :]


@check(
    "C1", "the loss changes with the mass of a tuple (k, v) by kernel(k, q) / D <g, v - s>", 1e-8
)
def c1() -> float:
    memory, q, target = softmax("exact"), draw(1, 3), draw(2, 2)
    state, k, v, step = filled(memory), draw(3, 3), draw(4, 2), 1e-5

    def loss(mass: float) -> float:
        more = state.put(
            keys=state.keys.at[5].set(k),
            values=state.values.at[5].set(mass * v),
            masses=state.masses.at[5].set(mass),
            log_weight=state.log_weight.at[5].set(0.0),
        )
        return float(0.5 * jnp.sum((read(memory, more, q[None])[0] - target) ** 2))

    n, d = linear(memory, state, q[None])
    s = n[0] / d[0]
    kernel = np.exp(TEMPERATURE * float(k @ q))
    expected = kernel / d[0] * float((s - np.asarray(target)) @ (np.asarray(v) - s))
    return abs((loss(step) - loss(-step)) / (2 * step) / expected - 1)


@check("C2", "one tuple a pair is the step of the whole density over keys and values", 1e-12)
def c2() -> float:
    spread, rate = 1.7, 0.3
    memory = softmax("exact", rate, spread=spread)
    k, v, measure = quadrature(spread)
    density, state, worst_yet = np.ones_like(k), empty(memory, 1, 1), 0.0
    queries = np.linspace(-1.5, 1.5, 7)
    for q, g in ((0.8, 0.6), (-0.5, 1.1), (0.3, -0.9)):

        def answer(at: float, density: np.ndarray = density) -> tuple[float, float]:
            mass = measure * density * np.exp(k * at)
            return float(np.sum(mass * v) / np.sum(mass)), float(np.sum(mass))

        s, d = answer(q)
        density = density - rate * np.exp(k * q) / d * g * (v - s)
        # the kernel of the state has the temperature in it, so that keys are queries
        state = written(memory, state, jnp.asarray([[q]]), jnp.asarray([[g]]))
        mine = read(memory, state, jnp.asarray(queries)[:, None])[:, 0]
        theirs = [answer(at, density)[0] for at in queries]
        worst_yet = max(worst_yet, worst(mine, np.asarray(theirs)))
    return worst_yet


@check(
    "C2b",
    "as a density, a tuple is off by w² exp(|q|²) (exp(r²) - 1 - r²), r = |v| / deviation",
    1e-11,
)
def c2b() -> float:
    spread, q, g = 1.7, 0.8, 0.9
    memory = softmax("exact", spread=spread)
    state = written(memory, empty(memory, 1, 1), jnp.asarray([[0.4]]), jnp.asarray([[-1.3]]))
    n, d = linear(memory, state, np.asarray([[q]]))
    s = float(n[0, 0] / d[0])
    after = written(memory, state, jnp.asarray([[q]]), jnp.asarray([[g]]))
    weight = float(jnp.exp(after.log_weight[1]))
    mass, value = weight * float(after.masses[1]), weight * float(after.values[1, 0])
    k, v, measure = quadrature(spread)
    growth = np.exp(TEMPERATURE * q * q / 2)  # D of the density is that of the tuples, times this
    exact = -0.3 * np.exp(k * q) / (d[0] * growth) * g * (v - s)
    center = value / mass
    gauss = np.exp(k * q - TEMPERATURE * q * q / 2 + v * center / spread - center**2 / (2 * spread))
    found = np.sum(measure * (exact - mass * gauss) ** 2)
    r = abs(center) / spread**0.5
    expected = mass**2 * np.exp(TEMPERATURE * q * q) * (np.exp(r * r) - 1 - r * r)
    return abs(float(found / expected) - 1)


def _bracket(negative: str, g: np.ndarray, s: np.ndarray, spread: float, margin: float) -> Any:
    """`(up, om)` of every pair by the table of rules, undamped."""
    inner, size = np.sum(g * s, 1), np.linalg.norm(g, axis=1)
    plain = -spread * g
    match negative:
        case "exact" | "damped":
            return plain, inner
        case "frozen":
            return plain, 0 * inner
        case "clip":
            return plain, np.maximum(inner, 0)
        case "gauge":
            b = np.maximum(0, margin - inner / size)[:, None] * g / size[:, None]
            mass = np.sum(g * (s + b), 1)
            return plain - mass[:, None] * b, mass
        case _:
            mass = margin * size
            return mass[:, None] * s - (spread + margin**2) * g, mass


def _slope(negative: str, rate: float = 0.3, reach: float = 0.0) -> tuple[float, float, Any]:
    """The slope of the loss along what a batch writes; as it should be; and, for "damped", what share
    of every mass is left, and the damping. Targets lie `reach` times as far out as the answers."""
    spread, margin = 1.7, 0.2
    memory = softmax(negative, rate, spread=spread, margin=margin)
    state, x = filled(memory, 7), draw(1, 6, 3)
    n, d = linear(memory, state, x)
    s = n / d[:, None]
    y = reach * s + np.asarray(draw(2, 6, 2))
    g = (s - y) / len(y)
    after = written(memory, state, x, jnp.asarray(g))

    def loss_at(share: float) -> float:
        """The loss with so much of the new atoms."""
        new = jnp.arange(len(after.log_weight)) >= 5
        masses = jnp.where(new, share * after.masses, after.masses)
        values = jnp.where(new[:, None], share * after.values, after.values)
        n, d = linear(memory, after.put(masses=masses, values=values), x)
        return float(half_square(n / d[:, None], y))

    step = 1e-4
    slope = (loss_at(step) - loss_at(-step)) / (2 * step)
    up, om = _bracket(negative, g, s, spread, margin)
    kernel = np.exp(TEMPERATURE * np.asarray(x @ x.T)) / d[:, None] / d[None, :]
    share = 1.0
    if negative == "damped":
        share = min(1.0, 0.1 / max(np.max(-rate * kernel @ om), 1e-300))
    moved = rate * (kernel @ up - (kernel @ (share * om))[:, None] * s)
    return slope, float(np.sum(g * moved)), (linear(memory, after, x)[1] / d, share)


@check("C3", "a batch lowers the loss by the slope of its rule, for every rule", 1e-7)
def c3() -> float:
    slopes = [_slope(negative)[:2] for negative in NEGATIVE]
    return max(abs(found / expected - 1) for found, expected in slopes)


@check(
    "C15", "damped: the largest factor with which no mass of the batch falls below 0.9 of it", 1e-7
)
def c15() -> float:
    found, expected, (kept, share) = _slope("damped", 4.0, reach=5.0)
    assert 0 < share < 1
    return max(abs(found / expected - 1), abs(float(np.min(kept)) - 0.9))


def _shifted(state: Any, by: Any) -> Any:
    """The state with `by` added to every value, in units of its mass."""
    return state.put(values=state.values + state.masses[:, None] * jnp.asarray(by)[None, :])


@check("C4", "a shift of every value shifts every answer, and nothing else", 1e-12)
def c4() -> float:
    memory = softmax("exact", prior=NO_PRIOR)
    state, x, by = filled(memory), draw(5, 6, 3), draw(6, 2)
    return worst(read(memory, _shifted(state, by), x), read(memory, state, x) + by[None, :])


@check("C4b", "the rule gauge is the exact rule in a shifted frame", 1e-12)
def c4b() -> float:
    margin, x = 0.4, draw(5, 6, 3)
    exact = softmax("exact", prior=NO_PRIOR, spread=1.7)
    gauge = softmax("gauge", prior=NO_PRIOR, spread=1.7, margin=margin)
    state, key = filled(exact), draw(9, 1, 3)
    s = read(exact, state, key)[0]
    g = -s + 0.3 * draw(10, 2)
    unit = g / jnp.linalg.norm(g)
    by = (margin - unit @ s) * unit
    assert g @ s < 0
    there = written(exact, _shifted(state, by), key, g[None])
    mine = written(gauge, state, key, g[None])
    back = _shifted(there, -by)
    return max(
        worst(read(gauge, mine, x), read(gauge, back, x)),
        worst(linear(gauge, mine, x)[1] / linear(gauge, back, x)[1], 1.0),
    )


@check(
    "C5", "weights in the logarithm are weights, and a common factor of exp(±10⁴) is nothing", 1e-10
)
def c5() -> float:
    memory = softmax("exact", prior=NO_PRIOR)
    state, x = filled(memory), draw(5, 6, 3)
    plain = memory.replace(write=md.Hebb(), read=md.Normalised())
    n, d = linear(memory, state, x)
    found = [worst(read(memory, state, x), n / d[:, None])]
    for by in (1e4, -1e4):
        far = state.put(log_weight=state.log_weight + by)
        found.append(worst(read(plain, far, x), n / d[:, None]))
    return max(found)


@check("C6", "frozen is a layer with the kernel exp(spread of keys x . q)", 1e-12)
def c6() -> float:
    frozen = layer(softmax("frozen", spread=1.7), 2, "normal")
    hebb = layer(md.Memory(KERNEL, md.Hebb(0.3 * 1.7), capacity=md.Budget(40)), 2, "normal")
    models, x = [build(spec, 3) for spec in (frozen, hebb)], draw(9, 6, 3)
    for turn in range(4):
        batch = draw(turn, 4, 3), draw(turn + 50, 4, 2)
        models = [train(model, *batch) for model in models]
    return worst(*(jax.vmap(model)(x) for model in models))


@check(
    "C7",
    "a centred step moves the answer by alpha (spread + c²) / c along g, whatever the rate",
    1e-12,
)
def c7() -> float:
    margin, spread = 0.3, 1.7
    memory = softmax("centred", 5.0, margin=margin, spread=spread)
    state, key, g = filled(memory), draw(5, 1, 3), draw(6, 1, 2)
    (n,), (d,) = linear(memory, state, key)
    s, unit = n / d, np.asarray(g[0] / jnp.linalg.norm(g[0]))
    norm = np.exp(TEMPERATURE * float(key[0] @ key[0]))
    mass = 5.0 / d * margin * float(jnp.linalg.norm(g[0])) * norm
    alpha = mass / (d + mass)
    expected = s - alpha * (spread + margin**2) / margin * unit
    return worst(read(memory, written(memory, state, key, g), key)[0], expected)


@check("C9", "a weight below 0 outside the hull makes a pole, at ln(D / |w|) / gap", 1e-9)
def c9() -> float:
    memory, key, g = softmax("exact", 0.02), jnp.asarray([[1.0, 0.0]]), jnp.asarray([[0.5]])
    state = empty(memory, 2, 1)
    for _ in range(2):  # the first finds an answer of 0, and so no mass
        state = written(memory, state, key, g)
    weight = float(jnp.sum(state.masses[:2] * jnp.exp(state.log_weight[:2])))
    assert weight < 0
    low, high = 0.0, 100.0

    @jax.jit
    def mass(radius: Any) -> jax.Array:
        return recall(memory, state, radius * key[0]).mass

    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if mass(jnp.asarray(middle)) > 0 else (low, middle)
    bare = softmax("frozen", 0.02)  # which is not guarded
    beside = [read(bare, state, (low + by) * key)[0, 0] for by in (-1e-6, 1e-6)]
    assert beside[0] * beside[1] < 0 and abs(float(beside[0])) > 1e3
    return abs(low - np.log(1 / -weight) / TEMPERATURE)


@check("C12", "the scale-free step does not know the common factor of all masses and values", 1e-12)
def c12() -> float:
    x, key, g = draw(5, 6, 3), draw(6, 4, 3), draw(7, 4, 2)

    def apart(negative: str, *, scale_free: bool) -> float:
        """How far a common factor of 50 moves the answers after a step."""
        found = []
        for prior in (1.0, 50.0):
            memory = softmax(negative, prior=prior, scale_free=scale_free)
            state = filled(memory)
            state = state.put(log_weight=state.log_weight + np.log(prior))
            n, d = linear(memory, written(memory, state, key, g), x)
            found.append(n / d[:, None])
        return worst(*found)

    assert apart("gauge", scale_free=False) > 1e-3
    return max(apart(negative, scale_free=True) for negative in NEGATIVE)


@check("C13", "frozen: the loss never rises, and falls below 1e-9 of what it was", 1e-9)
def c13() -> float:
    memory = softmax("frozen", 0.4).replace(
        gate=md.Novelty(0.0), capacity=md.Budget(5, merge=md.AddToNearest())
    )
    x, y = draw(1, 5, 3), draw(2, 5, 2)
    model = build(layer(memory, 2), 3)
    held, fixed = eqx.partition(model, eqx.is_array)

    @jax.jit
    def losses(held: Any) -> jax.Array:
        def step(held: Any, _: None) -> tuple[Any, jax.Array]:
            model = eqx.combine(held, fixed)
            loss, _, pairs = md.grow.backward(half_square, model, x, y)
            return eqx.filter(md.grow.write(model, pairs), eqx.is_array), loss

        return jax.lax.scan(step, held, None, length=4000)[1]

    found = np.asarray(losses(held)) / float(half_square(jnp.zeros_like(y), y))
    rises = np.max(np.diff(found), initial=0.0)
    return float(max(found[-1], rises))


@check("D1", "a naive insertion divides the old answer by 1 + kernel / Z, whatever the rate", 1e-12)
def d1() -> float:
    keys, x = jnp.eye(2), jnp.ones((1, 2))
    found = []
    for rate in (1e-1, 1e-4, 1e-8):
        memory = md.grow.naive_insertion(md.Exp(md.Dot()), rate, md.Budget(4))
        state = written(memory, empty(memory, 2, 1), keys, -2 / rate * jnp.ones((2, 1)))
        assert abs(float(read(memory, state, x)[0, 0]) - 2) < 1e-9
        state = written(memory, state, x, jnp.ones((1, 1)))
        jump = 2 * 2 * np.e / (2 * np.e + np.e**2)  # 0.848, and then the step itself
        step = -rate * np.e**2 / (2 * np.e + np.e**2)
        found.append(abs(float(read(memory, state, x)[0, 0]) - (jump + step)))
    return max(found)


@check("D2", "at one input naive insertion comes to rest at rate / (1 + rate) of the target", 1e-3)
def d2() -> float:
    found = []
    for rate in (0.1, 1.0):
        memory = md.grow.naive_insertion(md.Exp(md.Dot()), rate, md.Budget(400))
        x, y = jnp.ones((1, 1)), jnp.full((1, 1), 3.0)

        @jax.jit
        def rest(state: Any, memory: md.Memory = memory, x: Any = x, y: Any = y) -> jax.Array:
            def step(state: Any, _: None) -> tuple[Any, None]:
                return fold(memory, state, x, md.evaluate(memory, state, x) - y), None

            return md.evaluate(memory, jax.lax.scan(step, state, None, length=400)[0], x)

        answer = float(rest(empty(memory, 1, 1))[0, 0])
        found.append(abs(answer / (3.0 * rate / (1 + rate)) - 1))
    return max(found)
