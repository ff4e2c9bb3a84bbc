"""Weighted softmax that grows: its storage, its guard, its merges, its starts, and its baseline."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import memdsl as md
from memdsl.grow._fold import Atoms, fold, take
from memdsl.spec._reweight import NEGATIVE
from memdsl.state._slots import offer
from memdsl.state._write import recall


KERNEL = md.Exp(0.5 * md.Dot())


def half_square(predictions, targets):
    return 0.5 * jnp.mean(jnp.sum((predictions - targets) ** 2, axis=-1))


def draw(seed, *shape, dtype=jnp.float64):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), dtype)


def softmax(negative="frozen", rate=0.5, capacity=None, gate=None, kernel=KERNEL, **options):
    write = md.Reweight(rate, negative=negative, **options)
    read = md.Normalised(prior=1.0)
    return md.Memory(kernel, write, gate or md.Keep(), capacity or md.Budget(40), read)


def built(memory, size=2, width=3, dtype=jnp.float64, start="zeros"):
    base = md.Dense(size, start=start, trainable=False)
    spec = md.Grown(base, memory)
    return md.build(spec, md.Dims(model=width), key=jax.random.key(0), dtype=dtype)


backward, write = eqx.filter_jit(md.grow.backward), eqx.filter_jit(md.grow.write)


@eqx.filter_jit
def grown(memory, state, keys, signals):
    return fold(memory, state, keys, signals)


@eqx.filter_jit
def answers(memory, state, queries):
    return md.evaluate(memory, state, queries)


# ---- one formula for a pair, a sequence and a batch


@pytest.mark.parametrize(
    ("negative", "scale_free"),
    [("damped", False), ("damped", True), ("exact", False), ("gauge", True), ("centred", False)],
)
def test_a_batch_of_one_is_a_token(negative, scale_free):
    """A run over a sequence, batches of one, and the definition: the same answers."""
    memory = softmax(negative, 0.4, scale_free=scale_free, spread=1.3, margin=0.2)
    keys, signals, queries = draw(1, 6, 3), 2 * draw(2, 6, 2), draw(3, 4, 3)
    state, outputs = eqx.filter_jit(md.run)(
        memory, md.empty(memory, 3, 2, dtype=jnp.float64), keys, signals, keys
    )
    growing = md.empty(memory, 3, 2, dtype=jnp.float64)
    for key, signal in zip(keys, signals, strict=True):
        growing = grown(memory, growing, key[None], signal[None])
    np.testing.assert_allclose(
        answers(memory, growing, queries), answers(memory, state, queries), rtol=1e-10
    )
    np.testing.assert_allclose(outputs, md.denote(memory, keys, signals, keys), rtol=1e-9)


def test_the_scale_free_step_is_of_the_mean_of_a_batch():
    """The weights of all pairs of a batch have the one factor exp(2 mean log D)."""
    plain, free = (softmax("clip", scale_free=flag) for flag in (False, True))
    state = grown(plain, md.empty(plain, 3, 2, dtype=jnp.float64), draw(1, 5, 3), draw(2, 5, 2))
    state = state.put(masses=jnp.where(state.valid, 1.0 + draw(3, 40) ** 2, 0))
    keys, signals = draw(4, 4, 3), draw(5, 4, 2)
    logs = jax.vmap(lambda key: recall(plain, state, key).log_mass)(keys)
    one, two = (grown(memory, state, keys, signals) for memory in (plain, free))
    np.testing.assert_allclose(one.log_weight[5:9], -logs, rtol=1e-12)
    np.testing.assert_allclose(
        two.log_weight[5:9], 2 * jnp.mean(logs) - logs, rtol=1e-12, atol=1e-14
    )
    np.testing.assert_array_equal(one.values[5:9], two.values[5:9])


def test_damping_is_for_a_token_what_its_own_mass_allows():
    """The mass at the key keeps 0.9 of what it was, where `exact` would take more of it."""
    keys = jnp.asarray([[1.0, 0.0], [1.0, 0.0]])
    signals = jnp.asarray([[-2.0], [-3.0]])
    for kept in (0.9, 0.5):
        damped = softmax("damped", 0.5, kept_mass=kept)
        state = md.empty(damped, 2, 1, dtype=jnp.float64)
        state, _ = md.run(damped, state, keys[:1], signals[:1], keys[:1])
        before = recall(damped, state, keys[0]).mass
        after, _ = md.run(damped, state, keys[1:], signals[1:], keys[1:])
        np.testing.assert_allclose(recall(damped, after, keys[0]).mass / before, kept, rtol=1e-12)
        exact = damped.replace(write=damped.write.replace(negative="exact"))
        after, _ = md.run(exact, state, keys[1:], signals[1:], keys[1:])
        assert recall(exact, after, keys[0]).mass / before < kept


# ---- storage in the logarithm


def planted(memory, keys, log_weight, dtype):
    """A state with an atom of mass 1/4 and value 0 at each of four keys."""
    state = md.empty(memory, keys.shape[1], 2, dtype=dtype)
    return state.put(
        keys=state.keys.at[:4].set(keys.astype(dtype)),
        masses=state.masses.at[:4].set(0.25),
        log_weight=state.log_weight.at[:4].set(log_weight),
    )


def twice(memory, keys, log_weight, dtype):
    """Two batches on the planted: the weights, values and masses of what is new, and the answers."""
    state, signals = planted(memory, keys, log_weight, dtype), draw(3, 4, 2, dtype=dtype)
    for sign in (-1.0, 0.4):
        state = grown(memory, state, keys.astype(dtype), sign * signals)
    new = [np.asarray(x, np.float64)[4:12] for x in (state.log_weight, state.values, state.masses)]
    return *new, np.asarray(answers(memory, state, keys.astype(dtype)), np.float64)


@pytest.mark.parametrize("negative", NEGATIVE)
def test_masses_that_no_float_holds_are_written_in_single_precision(negative):
    """D is e^200 at the keys; free of scale, the answers are those that they are at e^0."""
    memory = softmax(negative, 0.3, kernel=md.RBF(), scale_free=True, margin=0.1)
    keys = draw(1, 4, 3)
    single, double = (twice(memory, keys, 200.0, dtype) for dtype in (jnp.float32, jnp.float64))
    assert np.all(double[0] > 190) and np.max(np.abs(double[3])) > 0.1
    for one, two in zip(single, double, strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-3, atol=1e-4 * np.max(np.abs(two)))
    plain = memory.replace(read=md.Normalised(prior=1e-30))
    np.testing.assert_allclose(double[3], twice(plain, keys, 0.0, jnp.float64)[3], rtol=1e-9)


@pytest.mark.parametrize("negative", ["frozen", "damped", "gauge"])
def test_keys_of_large_norm_are_written_in_single_precision(negative):
    """kernel(k, k) and D are e^200, and 1 / D is 0 in a float32: it is the weight of the atoms."""
    memory = softmax(negative, 0.3, margin=0.1)
    keys = jnp.asarray([[20.0, 1.0], [20.0, -1.0], [19.9, 1.5], [20.05, 0.0]])
    single, double = (twice(memory, keys, 0.0, dtype) for dtype in (jnp.float32, jnp.float64))
    assert np.all(double[0] < -190)
    for one, two in zip(single[:2], double[:2], strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-6)
    for one, two in zip(single[2:], double[2:], strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-3, atol=1e-30)


@pytest.mark.parametrize(
    ("negative", "scale_free"), [("damped", True), ("centred", True), ("clip", False)]
)
def test_repeated_keys_merge_exactly(negative, scale_free):
    """What merges onto one atom answers as so many atoms, masses too, whatever their weights."""
    rule: dict = {"negative": negative, "rate": 0.5, "scale_free": scale_free, "margin": 0.2}
    room = md.Budget(5, merge=md.AddToNearest())
    keys, queries = draw(1, 4, 3), draw(2, 5, 3)
    pool = keys[jnp.asarray([0, 1, 2, 3, 0, 1, 1, 2])]
    found = []
    for memory in (softmax(**rule), softmax(**rule, capacity=room, gate=md.Novelty(0.0))):
        state = md.empty(memory, 3, 2, dtype=jnp.float64)
        for turn in range(4):
            state = grown(memory, state, pool, 2 * draw(10 + turn, 8, 2))
        found.append(state)
    counts = found[1].counts
    assert (int(counts.admitted), int(counts.merged)) == (4, 28)
    apart, merged = (answers(softmax(**rule), state, queries) for state in found)
    np.testing.assert_allclose(merged, apart, rtol=1e-10, atol=1e-13)


def test_a_merge_of_weights_that_no_float_holds():
    """In float32: an atom of weight e^-300 and one of e^-310 become one, and neither is lost."""
    room, key = md.Budget(3, merge=md.AddToNearest()), jnp.asarray([[0.5]], jnp.float32)
    memory = softmax("clip", 1.0, room, md.Novelty(0.0))
    state = grown(memory, md.empty(memory, 1, 1), key, -2.0 * jnp.ones_like(key))
    for old, new in ((-300.0, -299.0), (-300.0, -301.0), (0.0, -1.0)):
        atom = (key[0], jnp.asarray([3.0], jnp.float32), jnp.asarray(0.5, jnp.float32))
        held = state.put(
            log_weight=state.log_weight.at[0].set(old), masses=state.masses.at[0].set(1.0)
        )
        one = offer(memory, held, jnp.asarray(False), *atom, jnp.asarray(new, jnp.float32))
        batch = Atoms(*(x[None] for x in (*atom, jnp.asarray(new, jnp.float32), jnp.asarray(1.0))))
        for after in (one, take(memory, held, batch)):
            peak = max(old, new)
            assert float(after.log_weight[0]) == peak
            parts = np.exp(old - peak), np.exp(new - peak)
            np.testing.assert_allclose(after.values[0, 0], 2 * parts[0] + 3 * parts[1], rtol=1e-6)
            np.testing.assert_allclose(after.masses[0], parts[0] + 0.5 * parts[1], rtol=1e-6)
            assert int(after.counts.merged) == 1


# ---- the guard


def test_a_mass_near_zero_is_guarded_and_counted():
    """Two masses that cancel at the query: no answer is beyond a thousandth, and a write counts it."""
    exact = softmax("exact", 0.1)
    state = grown(exact, md.empty(exact, 2, 1, dtype=jnp.float64), jnp.eye(2), jnp.ones((2, 1)))
    query = jnp.asarray([[1.0, 1.0]])
    kernel = float(jnp.exp(0.5))
    for prior_and_masses, mass in ((1e-5, 1e-5), (-1e-5, -1e-5), (0.5, 0.5)):
        first = (prior_and_masses - 1) / kernel - 2.0
        near = state.put(
            masses=state.masses.at[:2].set(jnp.asarray([first, 2.0])),
            values=state.values.at[:2].set(1.0),
            log_weight=state.log_weight.at[:2].set(0.0),
        )
        size = 1 + kernel * (abs(first) + 2)
        guarded = abs(mass) < 1e-3 * size
        least = np.sign(mass) * max(abs(mass), 1e-3 * size)
        np.testing.assert_allclose(answers(exact, near, query)[0, 0], 2 * kernel / least, rtol=1e-9)
        np.testing.assert_allclose(
            jnp.abs(recall(exact, near, query[0]).mass), abs(least), rtol=1e-9
        )
        counts = grown(exact, near, jnp.concatenate([query, -query]), jnp.ones((2, 1))).counts
        assert int(counts.guarded) == guarded
        after, _ = md.run(exact, near, query, jnp.ones((1, 1)), query)
        assert int(after.counts.guarded) == guarded


def test_rules_without_negative_masses_are_not_guarded():
    """The same state under `clip` is divided by what it is, and nothing is counted."""
    clip = softmax("clip", 0.1)
    state = grown(clip, md.empty(clip, 2, 1, dtype=jnp.float64), jnp.eye(2), jnp.ones((2, 1)))
    near = state.put(
        masses=state.masses.at[:2].set(jnp.asarray([(1e-5 - 1) / np.exp(0.5) - 2.0, 2.0])),
        values=state.values.at[:2].set(1.0),
        log_weight=state.log_weight.at[:2].set(0.0),
    )
    query = jnp.asarray([[1.0, 1.0]])
    np.testing.assert_allclose(answers(clip, near, query)[0, 0], 2 * np.exp(0.5) / 1e-5, rtol=1e-6)
    assert int(grown(clip, near, query, jnp.ones((1, 1))).counts.guarded) == 0


def test_fit_shows_how_often_a_mass_was_guarded():
    x, y = np.asarray(draw(1, 12, 3)), np.asarray(draw(2, 12, 2))
    for negative, there in (("exact", True), ("clip", False)):
        model = built(softmax(negative, 0.1))
        run = md.grow.fit(
            model, (x, y), half_square, epochs=2, batch=4, progress=False, check=False
        )
        assert ("guarded" in run.history.columns) == there
    memory = softmax("exact", 0.1)
    wild = built(memory)
    state = wild.state.put(
        log_weight=wild.state.log_weight.at[0].set(0.0),
        masses=wild.state.masses.at[0].set(-1.0),  # beside the prior of 1, at the key 0
    )
    wild = eqx.tree_at(lambda m: m.state, wild, state)
    run = md.grow.fit(wild, (0 * x, y), half_square, epochs=1, batch=4, progress=False, check=False)
    assert run.history["guarded"][0] >= 4


def test_signed_masses_need_atoms():
    with pytest.raises(md.SpecError, match="masses below 0 keeps atoms"):
        md.Memory(
            md.Dot().pullback(md.Relu()),
            md.Reweight(negative="exact"),
            md.DiagonalDecay(0.9),
            read=md.Normalised(prior=1.0),
        )
    with pytest.raises(md.SpecError, match="kept_mass must be below 1"):
        md.Reweight(kept_mass=1.0)


# ---- planted atoms


def test_planted_atoms_are_masses_where_the_data_is():
    x = draw(1, 30, 3)
    model = md.grow.plant(built(softmax()), x, 10, key=jax.random.key(1), mass=2.0)
    state = model.state
    assert (int(state.counts.admitted), int(state.counts.attempted)) == (10, 10)
    np.testing.assert_allclose(state.masses[:10], 0.2)
    np.testing.assert_array_equal(state.values, 0)
    distances = jnp.linalg.norm(state.keys[:10, None] - x[None], axis=-1)
    np.testing.assert_array_equal(jnp.min(distances, axis=1), 0)
    assert len(set(np.argmin(distances, axis=1).tolist())) == 10
    again = md.grow.plant(model, x, 5, key=jax.random.key(2))
    np.testing.assert_array_equal(again.state.masses[:15], [0.2] * 10 + [0.2] * 5)
    np.testing.assert_array_equal(again.state.birth[:15], np.arange(15))


class Pair(eqx.Module):
    """Two layers, built one by one: `md.build` does not know that they will be planted."""

    first: Any
    second: Any

    def __call__(self, x):
        return self.second(jnp.tanh(self.first(x)))


def test_layers_on_zeros_get_a_signal_from_planted_values():
    """The keys of the second are the answers of the first, which has its atoms by then."""
    memory = md.Memory(md.RBF(), md.Hebb(0.1), capacity=md.Budget(20))
    model = Pair(built(memory), built(memory, width=2))
    x, y, key = draw(1, 12, 3), draw(2, 12, 2), jax.random.key(3)
    planted = md.grow.plant(model, x, 6, key=key, values="normal")
    inner = jnp.tanh(jax.vmap(planted.first)(x))
    distances = jnp.linalg.norm(planted.second.state.keys[:6, None] - inner[None], axis=-1)
    np.testing.assert_allclose(jnp.min(distances, axis=1), 0, atol=1e-12)
    assert planted.first.state.masses is None
    _, _, pairs = backward(half_square, planted, x, y)
    assert jnp.min(jnp.linalg.norm(pairs[0].cotangent, axis=-1)) > 1e-4
    one = md.grow.plant(model, x, 6, key=key, where=lambda m: [m.second])
    assert not jnp.any(one.first.state.valid) and int(jnp.sum(one.second.state.valid)) == 6


def test_planted_values_have_the_variance_of_one_in_all():
    memory = md.Memory(md.RBF(), md.Hebb(0.1), capacity=md.Budget(400))
    model = built(memory, size=8)
    planted = md.grow.plant(model, draw(1, 400, 3), 400, key=jax.random.key(1), values="normal")
    np.testing.assert_allclose(jnp.sum(planted.state.values**2) / 8, 1, rtol=0.1)


def test_equal_layers_of_a_stack_are_planted_one_by_one():
    memory = md.Memory(md.RBF(), md.Hebb(0.1), capacity=md.Budget(9))
    spec = md.Repeat(md.Residual(md.Grown(md.Dense(3, start="zeros"), memory)), 2)
    model = md.build(spec, md.Dims(model=3), key=jax.random.key(0), dtype=jnp.float64)
    x = draw(1, 8, 3)
    planted = md.grow.plant(model, x, 4, key=jax.random.key(1), values="normal")
    (layer,) = md.grow.growing(planted)
    np.testing.assert_array_equal(layer.state.counts.admitted, [4, 4])
    first = jax.tree.map(lambda a: a[0] if eqx.is_array(a) else a, layer)
    middle = jax.vmap(lambda x: x + first(x))(x)
    for keys, there in zip(layer.state.keys, (x, middle), strict=True):
        distances = jnp.linalg.norm(keys[:4, None] - there[None], axis=-1)
        np.testing.assert_allclose(jnp.min(distances, axis=1), 0, atol=1e-12)


def test_what_cannot_be_planted_is_refused():
    x, key = draw(1, 6, 3), jax.random.key(0)
    model = built(softmax())
    matrix = built(md.Memory(md.Dot(), md.Hebb(0.1)))
    with pytest.raises(md.SpecError, match="no atoms"):
        md.grow.plant(matrix, x, 2, key=key)
    with pytest.raises(md.SpecError, match="room for 40"):
        md.grow.plant(model, x, 41, key=key)
    with pytest.raises(md.SpecError, match="give the layer 6 keys"):
        md.grow.plant(model, x, 7, key=key)
    with pytest.raises(md.SpecError, match="got a Dense"):
        md.grow.plant(model, x, 2, key=key, where=lambda m: m.base)
    for wrong in ({"mass": -1.0}, {"values": "ones"}):
        with pytest.raises(md.SpecError, match=f"plant got {next(iter(wrong))}"):
            md.grow.plant(model, x, 2, key=key, **wrong)
    with pytest.raises(md.SpecError, match="plant got count=0"):
        md.grow.plant(model, x, 0, key=key)
    with pytest.raises(md.SpecError, match="inside jit"):
        jax.jit(lambda x: md.grow.plant(model, x, 2, key=key).state.keys)(x)


# ---- the baseline


def test_naive_insertion_is_finite_when_empty():
    """It answers 0, with a gradient of 0, and its first pairs are as they should be."""
    memory = md.grow.naive_insertion(KERNEL, 0.5, md.Budget(8))
    model, x, y = built(memory, start="normal"), draw(1, 4, 3), draw(2, 4, 2)
    np.testing.assert_allclose(jax.vmap(model)(x), jax.vmap(model.base)(x), rtol=1e-12)
    _, _, (pairs,) = backward(half_square, model, x, y)
    np.testing.assert_allclose(pairs.cotangent, (jax.vmap(model.base)(x) - y) / 4, rtol=1e-12)
    slope = jax.jacobian(lambda x: model.recall(x))(x[0])
    np.testing.assert_array_equal(slope, 0)
    after = write(model, (pairs,)).state
    np.testing.assert_allclose(after.values[:4], -0.5 * pairs.cotangent, rtol=1e-12)
    np.testing.assert_array_equal(after.masses[:4], 1)
