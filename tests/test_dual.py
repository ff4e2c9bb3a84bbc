"""The dual form of a linear layer, and what made an answer.

The identities A1 to A6 are rows of `tests/properties/_dual.py`; here is how it is used and refused.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import memdsl as md
from memdsl.grow._coordinates import places_of
from memdsl.grow._steps import extended, Steps, whole
from tests.properties._dual import (
    apart,
    averaged,
    data,
    middle,
    network,
    recorded,
)
from tests.properties._growth import build, draw, half_square, layer, train, worst


SGD = optax.sgd(0.2, momentum=0.9)


class Perceptron(eqx.Module):
    """A network of Equinox's own layers."""

    first: eqx.nn.Linear
    last: eqx.nn.Linear

    def __init__(self, key):
        one, two = jax.random.split(key)
        self.first = eqx.nn.Linear(4, 3, use_bias=False, key=one)
        self.last = eqx.nn.Linear(3, 2, key=two)

    def __call__(self, x):
        return self.last(jnp.tanh(self.first(x)))


@pytest.fixture(scope="module")
def trained():
    return recorded(SGD)


# ---- unroll


@pytest.mark.parametrize("name", ["first", "last"])
def test_layers_of_equinox_are_unrolled(name, getkey):
    model = Perceptron(getkey())
    record = md.grow.unroll(model, SGD, lambda m: getattr(m, name))
    for inputs, targets in zip(*data(4), strict=True):
        record, loss = record.step(half_square, inputs, targets)
    found = getattr(record.model, name)
    assert worst(record.weight(), found.weight) < 1e-12
    assert (record.bias() is None) == (found.bias is None)
    q = draw(9, found.in_features)
    assert worst(record(q), found(q)) < 1e-12
    assert worst(model.first.weight, record.model.first.weight) > 1e-3  # all of it was trained
    assert loss.shape == ()


def test_a_layer_by_itself_and_over_rows(getkey):
    """Every row of a sequence is a pair of its example."""
    record = md.grow.unroll(build(md.Dense(2), 4), SGD)
    for step in range(3):
        x, y = draw(step, 5, 7, 4), draw(step + 1, 5, 7, 2)
        record, _ = record.step(lambda p, y: jnp.mean((p - y) ** 2), x, y)
    assert worst(record.weight(), record.model.weight) < 1e-12
    assert record.pairs().key.shape == (105, 4)
    np.testing.assert_array_equal(record.ids(), np.repeat(np.arange(15), 7))


def test_single_precision(getkey):
    model = md.build(md.Dense(2), md.Dims(model=4), key=getkey())
    record = md.grow.unroll(model, SGD)
    for inputs, targets in zip(*data(4), strict=True):
        batch = inputs.astype(jnp.float32), targets.astype(jnp.float32)
        record, _ = record.step(half_square, *batch)
    assert record.weight().dtype == jnp.float32
    assert worst(record.weight(), record.model.weight) < 1e-6


def test_a_step_changes_no_record(trained):
    """Records are values: a step gives another one."""
    inputs, targets = draw(1, 4, 4), draw(2, 4, 2)
    before = len(trained.ids())
    after, _ = trained.step(half_square, inputs, targets, ids=[7, 7, 8, 9])
    assert len(trained.ids()) == before and len(after.ids()) == before + 4
    np.testing.assert_array_equal(after.ids()[-4:], [7, 7, 8, 9])
    assert apart(after, middle(after.model)) < 1e-12


def test_a_history_has_few_pieces():
    one = Steps(jnp.ones((2, 3)), jnp.ones((2, 1)), np.zeros(2, int), np.array([2]), ())
    history = ()
    for step in range(100):
        history = extended(history, one._replace(ids=np.full(2, step)))
    assert [len(steps.rows) for steps in history] == [64, 32, 4]
    np.testing.assert_array_equal(whole(history[1:], history[0]).ids, np.repeat(range(100), 2))


def test_coefficients_of_the_past_grow_with_momentum(trained):
    start, steps = trained.coefficients()
    expected = 0.2 * (1 - 0.9 ** np.arange(len(steps), 0, -1)) / 0.1
    np.testing.assert_allclose(steps, expected, rtol=1e-14)
    assert start == 1.0


def test_a_learning_rate_by_the_loss_is_a_scalar():
    with jax.numpy_dtype_promotion("standard"):
        record = recorded(optax.polyak_sgd(max_learning_rate=1e6, scaling=0.01))
    assert apart(record, middle(record.model)) < 1e-12
    assert len(set(record.coefficients()[1].round(12))) > 1


def test_gradients_added_up_in_single_precision():
    """What optax.MultiSteps keeps is float32 even where the weights are wider."""
    several = optax.MultiSteps(SGD, every_k_schedule=2).gradient_transformation()
    with jax.numpy_dtype_promotion("standard"):
        record = recorded(several)
    assert apart(record, middle(record.model)) < 1e-6
    steps = record.coefficients()[1].reshape(-1, 2)
    np.testing.assert_allclose(steps[:, 0], steps[:, 1], rtol=1e-14)


def test_half_precision_is_refused():
    with pytest.raises(md.SpecError, match="keeps bfloat16"):
        recorded(optax.sgd(0.1, momentum=0.9, accumulator_dtype=jnp.bfloat16), steps=0)


REFUSED = {
    "adam": optax.adam(1e-2),
    "lion": optax.lion(1e-3),
    "rmsprop": optax.rmsprop(1e-2),
    "adagrad": optax.adagrad(1e-2),
    "adafactor": optax.adafactor(1e-2, min_dim_size_to_factor=1),
    "muon": optax.contrib.muon(1e-2),
    "clip by value": optax.chain(optax.clip(1.0), optax.sgd(0.1)),
    "sign": optax.sign_sgd(0.1),
    "noise": optax.chain(optax.add_noise(0.1, 0.5, jax.random.key(0)), optax.sgd(0.1)),
    "centred": optax.chain(optax.centralize(), optax.sgd(0.1)),
    "block rms": optax.chain(optax.clip_by_block_rms(0.01), optax.sgd(0.1)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_sum_of_gradients_is_refused(name):
    with (
        jax.numpy_dtype_promotion("standard"),
        jax.numpy_rank_promotion("allow"),
        pytest.raises(md.SpecError, match="not gradients times one number") as found,
    ):
        md.grow.unroll(build(md.Dense(3), 4), REFUSED[name])
    assert "optax.sgd" in found.value.instead


def test_clipping_that_the_probe_did_not_see_is_found_at_its_step():
    model = build(md.Dense(2), 4)
    record = md.grow.unroll(model, optax.chain(optax.clip(1e5), optax.sgd(1e-9)))
    inputs, targets = 1e4 * draw(1, 4, 4), 1e4 * draw(2, 4, 2)
    with pytest.raises(md.SpecError, match="not gradients times one number"):
        record.step(half_square, inputs, targets)


def test_places_are_found_by_shape():
    params = md.grow.parameters(network())
    found = places_of(optax.chain(SGD, averaged(0.9)), params, lambda p: [middle(p).weight])
    assert len(found[0]) == 2  # a trace and an average


class Shared(eqx.Module):
    """A layer whose weight has a second use, beside its call."""

    layer: eqx.nn.Linear

    def __call__(self, x):
        return self.layer(x) + self.layer.weight[0, 0] * x.sum()


class Twice(eqx.Module):
    layer: eqx.nn.Linear

    def __call__(self, x):
        return self.layer(jnp.tanh(self.layer(x)))


class Rows(eqx.Module):
    layer: eqx.nn.Linear

    def __call__(self, x):
        return jax.vmap(self.layer)(x)


def _linear():
    return eqx.nn.Linear(4, 4, key=jax.random.key(0))


def _step(model, where, x):
    record = md.grow.unroll(model, SGD, where)
    return record.step(lambda y, t: jnp.mean((y - t) ** 2), x, x)


def test_a_weight_with_another_use_is_found():
    with pytest.raises(md.SpecError, match="not the one of its pairs"):
        _step(Shared(_linear()), lambda m: m.layer, draw(1, 5, 4))


@pytest.mark.parametrize("kind", [Twice, Rows])
def test_a_layer_of_many_uses_is_refused(kind):
    x = draw(1, 5, 4) if kind is Twice else draw(1, 5, 3, 4)
    with pytest.raises(md.SpecError, match="A recorded layer is applied"):
        _step(kind(_linear()), lambda m: m.layer, x)


ATOMS = md.Memory(md.RBF(), md.Hebb(0.5), capacity=md.Budget(16))


@pytest.mark.parametrize(
    ("spec", "where", "match"),
    [
        (md.Grown(md.Dense(2), ATOMS), None, "growing layers is not unrolled"),
        (md.Mlp(2), None, "got a Mlp"),
        (md.Dense(2, trainable=False), None, "not trained"),
        (md.Repeat(md.Dense(4), 3), lambda m: m.stacked, r"shape \(3, 4, 4\)"),
    ],
    ids=["grown", "mlp", "frozen", "stacked"],
)
def test_what_cannot_be_unrolled(spec, where, match):
    with pytest.raises(md.SpecError, match=match):
        md.grow.unroll(build(spec, 4), SGD, where)


def test_a_step_inside_jit_is_refused(trained):
    with pytest.raises(md.SpecError, match="inside jit"):
        jax.jit(lambda x, y: trained.step(half_square, x, y)[1])(draw(1, 4, 4), draw(2, 4, 2))


@pytest.mark.parametrize("ids", [[1, 2], [0.5, 1.0, 2.0, 3.0]])
def test_ids_that_are_none(trained, ids):
    with pytest.raises(md.SpecError, match="There are 4 examples"):
        trained.step(half_square, draw(1, 4, 4), draw(2, 4, 2), ids=ids)


def test_only_what_the_optimiser_keeps_has_a_record(trained):
    with pytest.raises(md.SpecError, match="not among what the optimiser keeps"):
        trained.of(lambda state: jax.tree.map(lambda _: -1, state[0].trace))


# ---- attribute


def test_of_a_record_every_example_has_its_own_derivative():
    """With one step of plain descent, a contribution is -rate g (x . q + 1)."""
    record = md.grow.unroll(build(md.Dense(2), 4), optax.sgd(0.3))
    x, y, q = draw(1, 5, 4), draw(2, 5, 2), draw(3, 4)
    error = (record.model(x) - y) / 5
    record, _ = record.step(half_square, x, y, ids=[9, 4, 4, 2, 0])
    found = md.grow.attribute(record, q)
    np.testing.assert_allclose(found.weights, 0.3 * (x @ q + 1), rtol=1e-12)
    expected = -0.3 * (x @ q + 1)[:, None] * error
    np.testing.assert_allclose(found.contributions, expected, rtol=1e-11)
    assert worst(found.answer, record.model(q)) < 1e-14
    merged = found.examples()
    np.testing.assert_array_equal(merged.ids, [0, 2, 4, 9])
    np.testing.assert_allclose(merged.contributions[2], expected[1] + expected[2], rtol=1e-11)


def test_top_is_sorted_and_loses_nothing(trained):
    found = md.grow.attribute(trained, draw(3, 4))
    best = found.top(3, output=1)
    sizes = np.abs(np.asarray(found.contributions)[:, 1])
    np.testing.assert_array_equal(np.abs(best.contributions[:, 1]), np.sort(sizes)[::-1][:3])
    assert worst(best.answer, found.answer) < 1e-14
    assert len(found.top(1000).ids) == len(found.ids)


def test_of_an_empty_record_all_is_rest():
    record = recorded(SGD, steps=0)
    found = md.grow.attribute(record, draw(3, 4))
    assert found.ids.shape == (0,)
    assert worst(found.answer, found.rest) == 0.0


MEMORIES = {
    "rbf": ATOMS,
    "full": ATOMS.replace(capacity=md.Budget(4)),
    "decay": ATOMS.replace(gate=md.Decay(0.7)),
    "merged": ATOMS.replace(gate=md.Novelty(1.0), capacity=md.Budget(16, merge=md.AddToNearest())),
    "dot": md.Memory(md.Dot(), md.Hebb(0.5), capacity=md.Budget(16)),
    "feature": md.Memory(md.Dot().pullback(md.EluPlusOne()), md.Hebb(0.5), capacity=md.Budget(16)),
    "softmax": md.Memory(
        md.Exp(md.Dot()), md.Reweight(0.5), read=md.Normalised(prior=0.1), capacity=md.Budget(16)
    ),
    "nearest": ATOMS.replace(read=md.TopK(2)),
}


@pytest.mark.parametrize("name", MEMORIES)
def test_atoms_add_up(name):
    model = train(build(layer(MEMORIES[name], 2, "normal"), 3), draw(1, 4, 3), draw(2, 4, 2), 2)
    q = draw(3, 3)
    found = md.grow.attribute(model, q)
    scale = 1 + float(jnp.max(jnp.abs(model(q))))
    assert worst(found.answer, model(q)) < 1e-14 * scale
    assert worst(found.rest, model.base(q)) == 0.0
    assert len(found.ids) == int(jnp.sum(model.state.valid))
    assert name != "nearest" or int(jnp.sum(found.weights != 0)) == 2
    assert float(jnp.max(jnp.abs(found.contributions))) > 0


def test_weights_of_a_normalised_read_are_shares():
    memory = MEMORIES["softmax"]
    model = train(build(layer(memory, 2), 3), draw(1, 4, 3), draw(2, 4, 2))
    state, q = model.state, draw(3, 3)
    similar = jnp.exp(state.log_weight + state.keys @ q)
    shares = similar / (similar @ jnp.where(state.valid, state.masses, 0) + 0.1)
    found = md.grow.attribute(model, q)
    np.testing.assert_allclose(found.weights, shares[state.valid], rtol=1e-12)


def test_atoms_are_known_by_birth_or_by_the_ids_that_are_given():
    model = train(build(layer(MEMORIES["full"], 2), 3), draw(1, 3, 3), draw(2, 3, 2), 2)
    found = md.grow.attribute(model, draw(3, 3))
    np.testing.assert_array_equal(np.sort(found.ids), [2, 3, 4, 5])  # two were evicted
    named = md.grow.attribute(model, draw(3, 3), ids=np.array([10, 11, 12, 10, 11, 12]))
    np.testing.assert_array_equal(named.ids, 10 + found.ids % 3)
    with pytest.raises(md.SpecError, match=r"ids of shape \(5,\), and atoms up to number 5"):
        md.grow.attribute(model, draw(3, 3), ids=np.arange(5))


def test_a_layer_deep_in_a_model_is_asked_what_reaches_it():
    model = build(md.Dense(4) >> md.Silu() >> layer(ATOMS, 2) >> md.Relu(), 3)
    model = train(model, draw(1, 4, 3), draw(2, 4, 2), 2)
    q = draw(3, 3)
    found = md.grow.attribute(model, q)
    assert worst(jax.nn.relu(found.answer), model(q)) < 1e-13


def test_one_of_several_layers_is_selected():
    model = build(layer(ATOMS, 4, "normal") >> md.Silu() >> layer(ATOMS, 2, "normal"), 3)
    model = train(model, draw(1, 4, 3), draw(2, 4, 2), 2)
    with pytest.raises(md.SpecError, match="2 growing layers"):
        md.grow.attribute(model, draw(3, 3))
    found = md.grow.attribute(model, draw(3, 3), lambda m: m.layers[2])
    assert worst(found.answer, model(draw(3, 3))) < 1e-13


@pytest.mark.parametrize(
    ("spec", "x", "match"),
    [
        (layer(md.Memory(md.Dot(), md.Hebb(0.5)), 2), (3,), "keeps a matrix"),
        (layer(ATOMS, 2), (5, 3), "5 rows for one example"),
        (md.Repeat(layer(ATOMS, 3, "normal"), 2), (3,), "one of a stack"),
    ],
)
def test_what_cannot_be_attributed(spec, x, match):
    with pytest.raises(md.SpecError, match=match):
        md.grow.attribute(build(spec, 3), draw(1, *x))


def test_a_record_knows_its_layer(trained):
    with pytest.raises(md.SpecError, match="knows its layer"):
        md.grow.attribute(trained, draw(3, 4), middle)


def test_an_attribution_inside_jit_is_refused():
    model = build(layer(ATOMS, 2), 3)
    with pytest.raises(md.SpecError, match="inside jit"):
        jax.jit(lambda x: md.grow.attribute(model, x).rest)(draw(1, 3))


# ---- the picture


@pytest.mark.parametrize("with_images", [False, True])
def test_the_picture_needs_no_display(trained, with_images, tmp_path):
    found = md.grow.attribute(trained, draw(3, 4))
    images = np.zeros((24, 5, 5)) if with_images else None
    figure = found.plot(images, count=4)
    assert len(figure.axes) == (5 if with_images else 1)
    bars = figure.axes[-1]
    heights = [bar.get_height() for bar in bars.patches]
    output = int(jnp.argmax(found.answer))
    best = found.top(4, output=output).contributions[:, output]
    np.testing.assert_allclose(heights, best)
    figure.savefig(tmp_path / "examples.png")
