"""Growing layers: what one backward pass hands out, and what a memory makes of it."""

import functools
import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import memdsl as md
from memdsl.grow._cells import places
from memdsl.grow._fold import Atoms, fold, one_by_one
from memdsl.grow._nearest import _SCREENED, nearest, squares_between
from memdsl.grow._resize import resize
from memdsl.nn._grown import GrownLayer


WIDE = jnp.float64


def half_square(predictions, targets):
    """Half the squared error, mean over the batch."""
    return 0.5 * jnp.mean(jnp.sum((predictions - targets) ** 2, axis=-1))


def cross_entropy(logits, labels):
    return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, labels))


def rbf(capacity=None, gate=None, rate=0.5, scale=1.0):
    return md.Memory(
        md.RBF(scale=scale), md.Hebb(rate), gate or md.Keep(), capacity or md.Budget(64)
    )


def grown(size, memory, start="normal", **options):
    return md.Grown(md.Dense(size, start=start, trainable=False), memory, **options)


def built(spec, width, key, dtype=WIDE):
    return compiled_build(spec, width, key, dtype)


@eqx.filter_jit
def compiled_build(spec, width, key, dtype):
    return md.build(spec, md.Dims(model=width), key=key, dtype=dtype)


backward = eqx.filter_jit(md.grow.backward)
write = eqx.filter_jit(md.grow.write)


# ---- the tap


def net(weights, sinks, x):
    """Two layers with a tap after each, written by hand."""
    for weight, sink in zip(weights, sinks, strict=True):
        x = md.grow.tap(weight @ x, x, sink) if sink is not None else weight @ x
        x = jnp.tanh(x)
    return jnp.sum(x**2)


def expected_pairs(weights, x):
    """The same by reverse mode written out: inputs of every layer, and cotangents of its answer."""
    inputs, answers = [], []
    for weight in weights:
        inputs.append(x)
        answers.append(weight @ x)
        x = jnp.tanh(answers[-1])
    cotangent, pairs = 2 * x, []
    for weight, given, answer in zip(weights[::-1], inputs[::-1], answers[::-1], strict=True):
        cotangent = cotangent * (1 - jnp.tanh(answer) ** 2)
        pairs.append((given, cotangent))
        cotangent = weight.T @ cotangent
    return pairs[::-1]


@pytest.mark.parametrize(
    "wrap", [lambda f: f, jax.jit, jax.checkpoint], ids=["plain", "jit", "remat"]
)
def test_tap_hands_out_key_and_cotangent(wrap, getkey):
    weights = [jax.random.normal(getkey(), (3, 4)), jax.random.normal(getkey(), (2, 3))]
    xs = jax.random.normal(getkey(), (5, 4))
    sinks = [md.grow.Pairs(jnp.zeros((5, w.shape[1])), jnp.zeros((5, w.shape[0]))) for w in weights]

    def total(sinks, xs):
        return jnp.sum(jax.vmap(wrap(functools.partial(net, weights)))(sinks, xs))

    pairs = jax.jit(jax.grad(total))(sinks, xs)
    for row, x in enumerate(xs):
        for pair, (key, cotangent) in zip(pairs, expected_pairs(weights, x), strict=True):
            np.testing.assert_allclose(pair.key[row], key, rtol=1e-13)
            np.testing.assert_allclose(pair.cotangent[row], cotangent, rtol=1e-12, atol=1e-15)


def test_tap_changes_no_other_gradient(getkey):
    weights = [jax.random.normal(getkey(), (4, 4))]
    x = jax.random.normal(getkey(), (4,))
    sinks = [md.grow.Pairs(jnp.zeros(4), jnp.zeros(4))]
    tapped = jax.grad(net, argnums=(0, 2))(weights, sinks, x)
    plain = jax.grad(net, argnums=(0, 2))(weights, [None], x)
    np.testing.assert_array_equal(tapped[0][0], plain[0][0])
    np.testing.assert_array_equal(tapped[1], plain[1])


def test_tap_in_a_scan_of_stacked_layers(getkey):
    weights = jax.random.normal(getkey(), (3, 4, 4)) / 2
    x = jax.random.normal(getkey(), (4,))
    sinks = md.grow.Pairs(jnp.zeros((3, 4)), jnp.zeros((3, 4)))

    def total(sinks):
        @jax.checkpoint
        def body(x, turn):
            weight, sink = turn
            return jnp.tanh(md.grow.tap(weight @ x, x, sink)), None

        return jnp.sum(jax.lax.scan(body, x, (weights, sinks))[0] ** 2)

    pairs = jax.grad(total)(sinks)
    for layer, (key, cotangent) in enumerate(expected_pairs(list(weights), x)):
        np.testing.assert_allclose(pairs.key[layer], key, rtol=1e-13)
        np.testing.assert_allclose(pairs.cotangent[layer], cotangent, rtol=1e-12)


# ---- backward


def test_backward_is_value_and_grad_and_the_pairs_give_the_weights_gradient(getkey):
    spec = md.Grown(md.Dense(5), rbf()) >> md.Relu() >> md.Grown(md.Dense(3), rbf())
    model = built(spec, 4, getkey())
    x, labels = jax.random.normal(getkey(), (6, 4)), jnp.arange(6) % 3
    loss, gradients, pairs = backward(cross_entropy, model, x, labels)

    def plain(model):
        return cross_entropy(jax.vmap(model)(x), labels)

    value, expected = eqx.filter_value_and_grad(plain)(model)
    np.testing.assert_allclose(loss, value, rtol=1e-15)
    for index, pair in zip((0, 2), pairs, strict=True):
        mine, theirs = gradients.layers[index].base, expected.layers[index].base
        np.testing.assert_allclose(mine.weight, theirs.weight, rtol=1e-12)
        np.testing.assert_allclose(pair.cotangent.T @ pair.key, theirs.weight, rtol=1e-12)
        np.testing.assert_allclose(jnp.sum(pair.cotangent, 0), theirs.bias, rtol=1e-12)


def test_rows_of_a_sequence_are_pairs_of_their_own(getkey):
    model = built(grown(3, rbf()), 4, getkey())
    x, targets = jax.random.normal(getkey(), (2, 7, 4)), jnp.zeros((2, 7, 3))
    _, _, pairs = backward(half_square, model, x, targets)
    assert pairs[0].key.shape == (2, 7, 4)
    model = write(model, pairs)
    assert model.state.counts.admitted == 14
    np.testing.assert_array_equal(model.state.keys[:14], x.reshape(14, 4))


def test_what_is_not_trained_has_no_gradient(getkey):
    memory = md.Memory(
        md.Learned(1.0, per="layer") * md.RBF(scale=md.Learned(1.0, per="layer", squash="exp")),
        md.Hebb(md.Knob(0.5)),
        capacity=md.Budget(8),
    )
    model = built(md.Grown(md.Dense(2), memory), 3, getkey())
    shapes = [leaf.shape for leaf in jax.tree.leaves(md.grow.parameters(model))]
    assert shapes == [(2, 3), (2,), (), ()]
    x = jax.random.normal(getkey(), (4, 3))
    _, gradients, pairs = backward(half_square, model, x, x[:, :2])
    assert jax.tree.structure(gradients) == jax.tree.structure(md.grow.parameters(model))
    _, gradients, _ = backward(half_square, write(model, pairs), x, x[:, :2])
    learned = [gradients.numbers[path][0] for path in ("kernel.left.value", "kernel.right.scale")]
    assert all(abs(gradient) > 1e-3 for gradient in learned)
    assert gradients.numbers["write.rate"] == (None,)


def test_trainable_atoms_are_parameters(getkey):
    model = built(grown(2, rbf(md.Budget(4)), trainable=True), 3, getkey())
    x = jax.random.normal(getkey(), (2, 3))
    _, _, pairs = backward(half_square, model, x, x[:, :2])
    model = write(model, pairs)
    _, gradients, _ = backward(half_square, model, x, x[:, :2])
    state = gradients.state
    assert state.log_weight is None and state.birth is None
    for gradient in (state.keys, state.values):
        assert np.all(np.any(gradient[:2] != 0, axis=1))
        np.testing.assert_array_equal(gradient[2:], 0)
    assert gradients.base.weight is None


def test_an_ordinary_optimiser_and_a_write_make_one_step(getkey):
    spec = md.Grown(md.Dense(8), rbf()) >> md.Relu() >> md.Grown(md.Dense(3), rbf())
    model = built(spec, 4, getkey(), jnp.float32)
    optimiser = optax.sgd(0.1, momentum=0.5)
    opt_state = optimiser.init(md.grow.parameters(model))
    x = jax.random.normal(getkey(), (6, 4), jnp.float32)
    labels = jnp.arange(6) % 3

    @eqx.filter_jit
    def step(model, opt_state):
        loss, gradients, pairs = backward(cross_entropy, model, x, labels)
        updates, opt_state = optimiser.update(gradients, opt_state, md.grow.parameters(model))
        model = write(eqx.apply_updates(model, updates), pairs)
        return model, opt_state, loss

    losses = []
    for _ in range(8):
        model, opt_state, loss = step(model, opt_state)
        losses.append(float(loss))
    assert losses[-1] < 0.7 * losses[0]
    assert model.layers[0].state.keys.dtype == jnp.float32


# ---- refusals


class Stack(eqx.Module):
    layers: list

    def __call__(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


class Twice(eqx.Module):
    layer: GrownLayer

    def __call__(self, x):
        return self.layer(jnp.tanh(self.layer(x)))


class TwiceCompiled(Twice):
    def __call__(self, x):
        call = eqx.filter_jit(lambda layer, x: layer(x))
        return call(self.layer, call(self.layer, x))


class Recurrent(Twice):
    def __call__(self, x):
        return jax.lax.scan(lambda h, _: (self.layer(h), None), x, None, length=3)[0]


class RowByRow(Twice):
    def __call__(self, x):
        return jax.vmap(self.layer)(x)


class TwoShapes(Twice):
    def __call__(self, x):
        return jnp.sum(self.layer(jnp.stack([x, x])), 0) + self.layer(x)


@pytest.mark.parametrize(
    ("model", "shape", "times"),
    [
        (Twice, (4,), 2),
        (TwiceCompiled, (4,), 2),
        (Recurrent, (4,), 3),
        (RowByRow, (5, 4), 5),
        (TwoShapes, (4,), 2),
    ],
)
def test_a_layer_applied_more_than_once_is_refused(model, shape, times, getkey):
    shared = model(built(grown(4, rbf()), 4, getkey()))
    x = jax.random.normal(getkey(), (2, *shape))
    with pytest.raises(md.SpecError, match=f"applied {times} times to one example"):
        backward(half_square, shared, x, x)


def test_a_layer_applied_twice_is_refused_without_jit(getkey):
    shared = Twice(built(grown(4, rbf()), 4, getkey()))
    x = jax.random.normal(getkey(), (2, 4))
    with pytest.raises(md.SpecError, match="applied 2 times to one example"):
        md.grow.backward(half_square, shared, x, x)


class Unused(Twice):
    def __call__(self, x):
        jnp.sum(self.layer(x))
        return x


def test_a_layer_that_does_not_matter_gets_no_pairs(getkey):
    model = Unused(built(grown(4, rbf()), 4, getkey()))
    x = jax.random.normal(getkey(), (2, 4))
    _, _, pairs = backward(half_square, model, x, x)
    assert pairs == (None,)
    assert write(model, pairs).layer.state.counts.attempted == 0


ZERO = functools.partial(grown, start="zeros")


@pytest.mark.parametrize(
    "spec",
    [
        ZERO(4, rbf()) >> ZERO(4, rbf()),
        ZERO(4, rbf()) >> md.Relu() >> grown(4, rbf()) >> ZERO(4, rbf()),
        md.Repeat(ZERO(4, rbf()), 3),
        md.Residual(ZERO(4, rbf()) >> ZERO(4, rbf())),
        md.Dense(4, start="zeros") >> ZERO(4, rbf()),
    ],
    ids=["two", "three", "repeat", "inside a residual", "dense"],
)
def test_a_stack_that_could_never_learn_is_refused(spec, getkey):
    with pytest.raises(md.SpecError, match="so does what is beneath it"):
        built(spec, 4, getkey())


@pytest.mark.parametrize(
    "spec",
    [
        ZERO(4, rbf()),
        grown(4, rbf()) >> ZERO(4, rbf()),
        ZERO(4, rbf()) >> grown(4, rbf()),
        md.Residual(ZERO(4, rbf())) >> ZERO(4, rbf()),
        md.Repeat(md.Residual(ZERO(4, rbf())), 3),
    ],
    ids=["one", "random below", "random above", "residual", "repeated residual"],
)
def test_a_stack_that_learns_is_built_and_every_layer_gets_a_signal(spec, getkey):
    model = built(spec, 4, getkey())
    x = jax.random.normal(getkey(), (5, 4))
    for _ in range(3):
        _, _, pairs = backward(half_square, model, x, jnp.sin(3 * x))
        model = write(model, pairs)
    for pair in pairs:
        sizes = jnp.abs(pair.cotangent).max(axis=(0, -1))
        assert np.all(sizes > 1e-6)


def test_the_refused_stack_has_exactly_no_signal(getkey):
    """What the refusal is about (H8 of the specification): built around it, the first layer gets 0."""
    stack = Stack([built(ZERO(4, rbf()), 4, getkey()) for _ in range(2)])
    x = jax.random.normal(getkey(), (5, 4))
    for _ in range(4):
        _, _, pairs = backward(half_square, stack, x, jnp.sin(3 * x))
        np.testing.assert_array_equal(pairs[0].cotangent, 0)
        stack = write(stack, pairs)
    assert stack.layers[1].state.counts.admitted == 20


@pytest.mark.parametrize(
    ("memory", "words"),
    [
        (md.Memory(md.RBF(), md.Hebb()), "nothing bounds how many"),
        (md.Memory(md.Dot(), md.Hebb(md.Learned(1.0))), "would never be trained"),
        (md.Memory(md.Dot(), md.Hebb(), md.Reset()), "no documents that start"),
    ],
    ids=["unbounded", "learned rate", "reset"],
)
def test_memories_that_cannot_grow_are_refused(memory, words, getkey):
    with pytest.raises(md.SpecError, match=words):
        built(grown(2, memory), 3, getkey())


def test_pairs_of_another_model_are_refused(getkey):
    one = built(grown(4, rbf()), 4, getkey())
    two = built(grown(4, rbf()) >> grown(4, rbf()), 4, getkey())
    x = jax.random.normal(getkey(), (2, 4))
    _, _, pairs = backward(half_square, one, x, x)
    with pytest.raises(md.SpecError, match="2 growing layers, and there are pairs for 1"):
        write(two, pairs)


# ---- what a write does


GATES = {
    "always": md.Keep(),
    "decay": md.Decay(0.9),
    "distinct": md.Novelty(0.0),
    "novel": md.Novelty(0.8),
    "novel, decay": md.Novelty(0.8) @ md.Decay(0.9),
    "coherence": md.Coherence(0.7),
    "surprise": md.Surprise(1.2),
    "both": md.Novelty(0.5) @ md.Surprise(0.8),
    "never": md.Never(),
}
CAPACITIES = {
    "roomy": md.Budget(64),
    "roomy, nearest": md.Budget(64, merge=md.AddToNearest()),
    "ring": md.Budget(9),
    "ring, sinks": md.Budget(9, evict=md.Oldest(sinks=2)),
    "tight ring": md.Budget(4, evict=md.Oldest(sinks=1)),
    "window": md.Window(7, sinks=2),
    "nearest": md.Budget(9, merge=md.AddToNearest()),
    "project": md.Budget(9, merge=md.Project()),
    "smallest": md.Budget(9, evict=md.Smallest(), merge=md.AddToNearest()),
    "smallest, drop": md.Budget(9, evict=md.Smallest()),
    "random": md.Budget(9, evict=md.Random(seed=3)),
    "reservoir": md.Budget(9, evict=md.Random(seed=3, reservoir=True)),
    "leave one out": md.Budget(9, evict=md.LeaveOneOut(), merge=md.AddToNearest()),
}
QUICK = {
    ("always", "ring, sinks"),
    ("always", "tight ring"),
    ("decay", "window"),
    ("distinct", "nearest"),
    ("novel, decay", "nearest"),
    ("novel", "smallest"),
    ("novel", "leave one out"),
    ("both", "roomy, nearest"),
    ("coherence", "project"),
    ("surprise", "ring"),
    ("never", "reservoir"),
}
PRODUCT = [
    pytest.param(
        gate,
        capacity,
        id=f"{g}, {c}",
        marks=() if (g, c) in QUICK else (pytest.mark.slow,),
    )
    for (g, gate), (c, capacity) in itertools.product(GATES.items(), CAPACITIES.items())
    if not (isinstance(capacity, md.Window) and g not in ("always", "decay"))
]


def batches(key, count=3, size=8):
    """Batches of pairs with near keys and exact duplicates, within a batch and across."""
    one, two = jax.random.split(key)
    pool = jnp.round(jax.random.normal(one, (10, 2)), 1)
    rows = jax.random.randint(two, (count, size), 0, 10)
    return pool[rows], jax.random.normal(one, (count, size, 3))


@functools.partial(jax.jit, static_argnums=0)
def folded(memory, state, keys, errors):
    return fold(memory, state, keys, errors)


@functools.partial(jax.jit, static_argnums=0)
def ran(memory, state, keys, values, log_decay):
    signals = {} if log_decay is None else {"log_decay": log_decay}
    return md.run(memory, state, keys, values, keys, using="buffer / recurrent", **signals)[0]


@pytest.mark.parametrize(("gate", "capacity"), PRODUCT)
def test_a_batch_does_what_its_pairs_do_in_order(gate, capacity, getkey):
    """A write is a bare run of `Hebb` over the same pairs, decayed at the first of each batch."""
    memory = rbf(capacity, gate)
    decays = "decay" in repr(gate).lower()
    free = md.Decay(md.FromInput("sigmoid"))
    sequential = memory.replace(
        gate=md.Novelty(0.8) @ free if gate == GATES["novel, decay"] else free
    )
    if not decays:
        sequential = memory
    keys, errors = batches(getkey())
    mine = theirs = md.empty(memory, 2, 3, dtype=WIDE)
    for batch, error in zip(keys, errors, strict=True):
        mine = folded(memory, mine, batch, error)
        values = -error
        if "Surprise" in repr(gate):  # in a run, the norm of v - f(k); while growing, of g
            sizes = jnp.linalg.norm(error, axis=-1)
            atoms = Atoms(batch, 0.5 * values, jnp.ones(8), jnp.zeros(8), sizes)
            theirs = eqx.filter_jit(one_by_one)(memory, theirs, atoms)
            continue
        logs = jnp.zeros(8).at[0].set(jnp.log(0.9)) if decays else None
        theirs = ran(sequential, theirs, batch, values, logs)
    assert int(mine.count) == 3
    for name in ("attempted", "admitted", "merged", "evicted", "dropped"):
        assert getattr(mine.counts, name) == getattr(theirs.counts, name), name
    np.testing.assert_array_equal(mine.valid, theirs.valid)
    for name in ("keys", "birth", "log_weight", "values"):
        one, two = (np.asarray(getattr(s, name))[np.asarray(mine.valid)] for s in (mine, theirs))
        np.testing.assert_allclose(one, two, rtol=1e-9, atol=1e-12, err_msg=name)


def test_least_used_counts_the_reads_of_the_batch(getkey):
    memory = rbf(md.Budget(6, evict=md.LeastUsed(fade=0.5)))
    keys, errors = batches(getkey(), count=2, size=4)
    state = folded(memory, md.empty(memory, 2, 3, dtype=WIDE), keys[0], errors[0])
    usage = np.asarray(state.usage[:4])
    np.testing.assert_array_equal(usage, 1)
    weights = np.exp(-squares_between(keys[0], keys[1]) / 2)
    for share in weights / weights.sum(1, keepdims=True):
        usage = 0.5 * usage + share
    after = folded(memory, state, keys[1], errors[1])
    # two of the four new atoms took the places of the least used
    gone = np.argsort(usage)[:2]
    kept = np.setdiff1d(np.arange(4), gone)
    np.testing.assert_array_equal(after.keys[:4][kept], keys[0][kept])
    np.testing.assert_allclose(after.usage[:4][kept], usage[kept], rtol=1e-12)
    assert after.counts.evicted == 2


def test_exact_duplicates_merge_exactly(getkey):
    """4000 pairs over 97 distinct keys, in float32: 97 atoms, every coefficient the sum of its own."""
    memory = rbf(md.Budget(100, merge=md.AddToNearest()), md.Novelty(0.0), rate=1.0)
    pool = jax.random.normal(getkey(), (97, 16), jnp.float32)
    rows = jax.random.randint(getkey(), (40, 100), 0, 97)
    errors = jnp.round(8 * jax.random.normal(getkey(), (40, 100, 3), jnp.float32))

    def body(state, batch):
        return fold(memory, state, *batch), None

    state = jax.jit(lambda s: jax.lax.scan(body, s, (pool[rows], errors))[0])(
        md.empty(memory, 16, 3)
    )
    counts = state.counts
    assert (int(counts.admitted), int(counts.merged)) == (97, 3903)
    assert (int(counts.evicted), int(counts.dropped)) == (0, 0)
    where = jnp.argmin(squares_between(state.keys, pool), axis=1)
    np.testing.assert_array_equal(state.keys[where], pool)
    sums = jnp.zeros((97, 3)).at[rows.reshape(-1)].add(-errors.reshape(-1, 3).astype(WIDE))
    np.testing.assert_array_equal(state.values[where], sums)


def test_a_matrix_takes_a_batch_as_a_buffer_does(getkey):
    for kernel in (md.Dot(), md.Polynomial(2), md.Dot().pullback(md.EluPlusOne())):
        memory = md.Memory(kernel, md.Hebb(0.3), md.Decay(0.8))
        for read in (md.Evaluate(), md.Normalised(prior=1.0)):
            if read.needs_mass() and not kernel.is_nonnegative():
                continue
            matrix = built(grown(3, memory.replace(read=read), start="zeros"), 2, getkey())
            buffer = memory.replace(read=read, capacity=md.Budget(64))
            atoms = built(grown(3, buffer, start="zeros"), 2, getkey())
            assert (matrix.representation, atoms.representation) == ("matrix", "buffer")
            keys, errors = batches(getkey())
            for pair in zip(keys, errors, strict=True):
                matrix = write(matrix, (md.grow.Pairs(*pair),))
                atoms = write(atoms, (md.grow.Pairs(*pair),))
            np.testing.assert_allclose(matrix(keys[0]), atoms(keys[0]), rtol=1e-10, atol=1e-12)


def test_a_diagonal_decay_fades_features_once_a_write(getkey):
    factors = jnp.array([0.5, 0.9])
    memory = md.Memory(md.Dot(), md.Hebb(0.3), md.DiagonalDecay(0.5) @ md.ValueDecay(0.9))
    model = built(grown(3, memory, start="zeros"), 2, getkey())
    keys, errors = batches(getkey(), count=2)
    for pair in zip(keys, errors, strict=True):
        model = write(model, (md.grow.Pairs(*pair),))
    first, second = (-0.3 * k.T @ g for k, g in zip(keys, errors, strict=True))
    np.testing.assert_allclose(
        model.state.matrix, jnp.prod(factors) * first + second, rtol=1e-12, atol=1e-13
    )


def test_rates_follow_knobs_and_schedules_without_retracing(getkey):
    traces = []

    @eqx.filter_jit
    def grow(model, pairs):
        traces.append(1)
        return write(model, pairs)

    schedule = md.Schedule("linear_schedule", init_value=1.0, end_value=0.0, transition_steps=4)
    memory = rbf(md.Budget(16), rate=md.Knob(2.0) * schedule)
    model = built(grown(3, memory), 2, getkey())
    keys, errors = batches(getkey(), count=3, size=1)
    for key, error in zip(keys, errors, strict=True):
        model = grow(model, (md.grow.Pairs(key, error),))
    model = eqx.tree_at(
        lambda m: m.numbers["write.rate"][0], model, replace_fn=lambda knob: 5 * knob
    )
    model = grow(model, (md.grow.Pairs(keys[0], errors[0]),))
    rates = jnp.array([2.0, 1.5, 1.0, 2.5])
    expected = -rates[:, None] * jnp.concatenate([*errors, errors[0]])
    np.testing.assert_allclose(model.state.values[:4], expected, rtol=1e-6)
    assert len(traces) == 1


def test_a_write_per_channel_of_the_value(getkey):
    rate = md.Schedule("constant_schedule", value=1.0) * md.Knob(0.5)
    model = built(grown(3, rbf(md.Budget(8), rate=rate)), 2, getkey())
    keys, errors = batches(getkey(), count=1)
    model = write(model, (md.grow.Pairs(keys[0], errors[0]),))
    np.testing.assert_allclose(model.state.values, -0.5 * errors[0], rtol=1e-6)


def test_filling_a_buffer_never_retraces_and_buffers_are_donated(getkey):
    spec = grown(3, rbf(md.Budget(20, merge=md.AddToNearest()), md.Novelty(0.1)))
    model = md.build(spec, md.Dims(model=2), key=getkey())  # without jit: no buffer twice
    traces = []

    @eqx.filter_jit(donate="all-except-first")
    def step(x, model):
        traces.append(1)
        _, _, pairs = backward(half_square, model, x, jnp.zeros((8, 3), x.dtype))
        return write(model, pairs)

    atoms = []
    for _ in range(6):
        old = model.state.keys
        model = step(jax.random.normal(getkey(), (8, 2), jnp.float32), model)
        assert old.is_deleted()
        atoms.append(int(jnp.sum(model.state.valid)))
    assert len(traces) == 1
    assert atoms[0] < 20 == atoms[-1]


def test_whatever_empty_slots_hold_has_no_effect(getkey):
    spec = grown(3, rbf(md.Budget(20, merge=md.AddToNearest()), md.Novelty(0.3) @ md.Decay(0.9)))
    clean = built(spec, 2, getkey())
    keys, errors = batches(getkey())
    clean = write(clean, (md.grow.Pairs(keys[0], errors[0]),))

    def spoil(array, valid):
        return jnp.where(valid.reshape(-1, *(1,) * (array.ndim - 1)), array, jnp.nan)

    state = clean.state
    spoiled = state.put(
        keys=spoil(state.keys, state.valid),
        values=spoil(state.values, state.valid),
        usage=spoil(state.usage, state.valid),
    )
    dirty = eqx.tree_at(lambda m: m.state, clean, spoiled)

    @eqx.filter_jit
    def step(model, x):
        loss, _, pairs = backward(half_square, model, x, jnp.ones((8, 3)))
        slope = jax.grad(lambda x: jnp.sum(jax.vmap(model)(x)))(x)
        model = write(model, pairs)
        return loss, slope, jax.vmap(model)(x), model.state.counts

    both = (jax.tree.leaves(step(model, keys[1])) for model in (clean, dirty))
    for one, two in zip(*both, strict=True):
        assert np.all(np.isfinite(one))
        np.testing.assert_array_equal(one, two)


def test_equal_layers_in_a_scan_grow_one_by_one(getkey):
    """`Repeat` of a growing block is the same as its layers one after the other."""
    block = md.Residual(md.Norm() >> ZERO(4, rbf(md.Budget(8), md.Novelty(0.2))))
    stacked = built(md.Repeat(block, 3), 4, getkey())
    layers = [jax.tree.map(lambda x, i=i: x[i], stacked.stacked) for i in range(3)]
    x = jax.random.normal(getkey(), (5, 4))
    target = jnp.sin(2 * x)

    unrolled = Stack(layers)
    for _ in range(3):
        loss, gradients, pairs = backward(half_square, stacked, x, target)
        stacked = write(stacked, pairs)
        expected, others, their_pairs = backward(half_square, unrolled, x, target)
        unrolled = write(unrolled, their_pairs)
        np.testing.assert_allclose(loss, expected, rtol=1e-12)
        for index, other in enumerate(others.layers):
            gain = gradients.stacked.layer.layers[0].gain[index]
            np.testing.assert_allclose(gain, other.layer.layers[0].gain, rtol=1e-10, atol=1e-14)
    for index, layer in enumerate(md.grow.growing(unrolled)):
        values = md.grow.growing(stacked)[0].state.values[index]
        np.testing.assert_allclose(values, layer.state.values, rtol=1e-9, atol=1e-13)


def test_a_convolution_grows_on_patches(getkey):
    """A `Dot` memory over a convolution is gradient descent of its weights."""
    memory = md.Memory(md.Dot(), md.Hebb(0.1))
    conv = md.Conv(3, window=3, stride=2, bias=False, trainable=False)
    model = built(md.Grown(conv, memory), 2, getkey())
    image = jax.random.normal(getkey(), (4, 2, 6, 5))
    target = jax.random.normal(getkey(), (4, *model(image[0]).shape))

    def plain(weight, x):
        kernel = weight.reshape(3, 2, 3, 3)
        return jax.lax.conv_general_dilated(x, kernel, (2, 2), "SAME")

    weight = model.base.weight
    np.testing.assert_allclose(jax.vmap(model)(image), plain(weight, image), rtol=1e-12, atol=1e-14)

    def loss(predictions, targets):
        return jnp.mean((predictions - targets) ** 2)

    for _ in range(3):
        _, _, pairs = backward(loss, model, image, target)
        model = write(model, pairs)
        weight -= 0.1 * jax.grad(lambda w: loss(plain(w, image), target))(weight)
    np.testing.assert_allclose(jax.vmap(model)(image), plain(weight, image), rtol=1e-12, atol=1e-13)


# ---- resize


@pytest.mark.parametrize("evict", [md.Oldest(), md.LeaveOneOut()], ids=["oldest", "leave one out"])
def test_a_resize_keeps_the_function_and_the_spec(evict, getkey):
    memory = rbf(md.Budget(10, evict=evict), md.Novelty(0.2))
    spec = grown(4, memory) >> md.Relu() >> md.Residual(grown(4, memory))
    model = built(spec, 2, getkey())
    keys, _ = batches(getkey())
    for x in keys:
        _, _, pairs = backward(half_square, model, x, jnp.ones((8, 4)))
        model = write(model, pairs)
    larger = md.grow.resize(model, 40)
    answers = jax.vmap(model)(keys[0])
    np.testing.assert_allclose(jax.vmap(larger)(keys[0]), answers, rtol=1e-12)
    capacity = md.Budget(40, evict=evict)
    assert larger.spec.layers[0].memory.capacity == capacity
    assert larger.spec.layers[2].layer.memory.capacity == capacity
    fresh = built(larger.spec, 2, getkey())
    assert jax.tree.map(jnp.shape, fresh) == jax.tree.map(jnp.shape, larger)
    for one, two in zip(md.grow.growing(model), md.grow.growing(larger), strict=True):
        assert jax.tree.all(jax.tree.map(jnp.array_equal, one.state.counts, two.state.counts))
    back = md.grow.resize(larger, 10)
    np.testing.assert_allclose(jax.vmap(back)(keys[0]), answers, rtol=1e-12)
    with pytest.raises(md.SpecError, match="do not fit into 3 slots"):
        md.grow.resize(larger, 3)


def test_after_a_resize_the_oldest_still_go_first(getkey):
    model = built(grown(3, rbf(md.Budget(4))), 2, getkey())
    keys, errors = batches(getkey(), count=1, size=12)
    for start in (0, 6):
        part = md.grow.Pairs(keys[0, start : start + 6], errors[0, start : start + 6])
        model = write(model, (part,))
        model = md.grow.resize(model, 6) if start == 0 else model
    np.testing.assert_array_equal(np.sort(model.state.birth), np.arange(6, 12))
    assert (int(model.state.counts.evicted), int(model.state.counts.admitted)) == (6, 12)


def test_a_resize_leaves_matrices_and_windows_alone(getkey):
    for memory in (md.Memory(md.Dot(), md.Hebb()), rbf(md.Window(5))):
        model = built(grown(3, memory), 2, getkey())
        assert md.grow.resize(model, 50).spec == model.spec


def test_smaller_inside_jit_is_refused(getkey):
    model = built(grown(3, rbf(md.Budget(8))), 2, getkey())
    with pytest.raises(md.SpecError, match="cannot be made smaller inside jit"):
        eqx.filter_jit(lambda m: resize(m, 4))(model)


# ---- the nearest atom


def test_the_screened_nearest_is_the_nearest(getkey):
    """Over near duplicates far from the origin, where the expanded form is wrong by itself."""
    centre = 30 * jax.random.normal(getkey(), (1, 32), jnp.float32)
    spread = jax.random.normal(getkey(), (3000, 32), jnp.float32)
    keys = centre + jnp.float32(1e-3) * spread
    queries = jnp.concatenate([keys[::97], keys[::89] + jnp.float32(2e-4)])
    assert keys.size * len(queries) > _SCREENED
    allowed = jnp.arange(3000) % 5 != 1
    square, slot = jax.jit(nearest)(keys, allowed, queries)
    direct = jnp.where(allowed[None, :], squares_between(keys, queries), jnp.inf)
    np.testing.assert_array_equal(slot, jnp.argmin(direct, axis=1))
    np.testing.assert_allclose(square, jnp.min(direct, axis=1), rtol=1e-5)
    assert jnp.sum(square == 0) == jnp.sum(allowed[::97])


def test_the_screened_nearest_of_ordinary_keys_needs_no_second_look(getkey):
    keys = jax.random.normal(getkey(), (4000, 64), jnp.float32)
    queries = jnp.concatenate([keys[:20], jax.random.normal(getkey(), (20, 64), jnp.float32)])
    square, slot = jax.jit(nearest)(keys, jnp.ones(4000, bool), queries)
    direct = squares_between(keys, queries)
    np.testing.assert_array_equal(slot, jnp.argmin(direct, axis=1))
    np.testing.assert_array_equal(square[:20], 0)
    none, _ = jax.jit(nearest)(keys, jnp.zeros(4000, bool), queries)
    assert np.all(np.isinf(none))


def test_slots_are_taken_free_ones_first_then_by_age(getkey):
    state = md.empty(rbf(md.Budget(5)), 2, 3, dtype=WIDE)
    state = state.put(
        log_weight=jnp.array([0.0, -jnp.inf, 0.0, -jnp.inf, 0.0]),
        birth=jnp.array([7, 9, 0, 1, 3], jnp.int32),
    )
    np.testing.assert_array_equal(places(state, 4, md.Oldest(sinks=1)), [1, 3, 4, 0])


def test_what_is_decided_does_not_depend_on_how_full_it_is(getkey):
    """The compiled write of an empty buffer is the compiled write of a full one."""
    memory = rbf(md.Budget(32, merge=md.AddToNearest()), md.Novelty(0.1))
    keys, errors = batches(getkey())
    written = jax.jit(functools.partial(fold, memory))
    state = md.empty(memory, 2, 3, dtype=WIDE)
    for batch, error in zip(keys, errors, strict=True):
        state = written(state, batch, error)
    assert written._cache_size() == 1
