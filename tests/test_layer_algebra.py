"""The algebra of layers: what its parts mean, and what they refuse."""

import jax
import jax.numpy as jnp
import pytest

import memdsl as md
from memdsl import zoo


MODEL, TIME = 4, 6
X = md.Map(md.Identity())


def make(spec, model=MODEL, seed=0):
    return md.build(
        spec, md.Dims(model=model, time=16), key=jax.random.key(seed), dtype=jnp.float64
    )


def inputs(time=TIME, model=MODEL, seed=1):
    return jax.random.normal(jax.random.key(seed), (time, model), jnp.float64)


def test_sums_products_and_plain_numbers_are_pointwise():
    x = inputs()
    squashed = X >> md.Sigmoid()
    y = make(2.0 * squashed * X - 3.0 + (1.0 - squashed))(x)
    s = jax.nn.sigmoid(x)
    assert jnp.allclose(y, 2 * s * x - 3 + (1 - s))
    y = make(X - X * md.Vector(1, start=0.25))(x)  # one number beside many
    assert jnp.allclose(y, 0.75 * x)


def test_one_name_is_one_part_computed_once():
    inner = md.Named("inner", md.Dense(3) >> md.Shift())
    layer, x = make(md.Tied((inner >> md.Silu()) * inner)), inputs()
    assert list(layer.parts) == ["inner"] and len(jax.tree.leaves(layer)) == 3
    alone = layer.parts["inner"](x)
    assert jnp.allclose(layer(x), jax.nn.silu(alone) * alone)
    products = str(jax.make_jaxpr(layer)(x)).count("dot_general")
    assert products == 1


def test_a_part_inside_a_part_is_there_once_too():
    first = md.Named("first", md.Dense(3))
    second = md.Named("second", first >> md.Silu())
    layer, x = make(md.Tied(second + first)), inputs()
    assert sorted(layer.parts) == ["first", "second"]
    alone = layer.parts["first"](x)
    assert jnp.allclose(layer(x), jax.nn.silu(alone) + alone)


def test_two_parts_of_one_name_are_refused():
    with pytest.raises(md.SpecError, match="Two different parts are called a"):
        make(md.Tied(md.Named("a", md.Dense(3)) + md.Named("a", md.Dense(3, bias=False))))
    wide = md.Dense(8) >> md.Named("a", md.Dense(3))
    with pytest.raises(md.SpecError, match="Two different parts are called a") as error:
        make(md.Tied(md.Named("a", md.Dense(3)) + wide))
    assert "different widths" in error.value.why


def test_a_part_that_looks_back_follows_one_sequence():
    shift = md.Named("shift", md.Shift())
    layer = make(md.Tied(shift + (md.Dense() >> shift)))
    with pytest.raises(md.SpecError, match="shift is given two different inputs"):
        layer(inputs())
    plain = md.Named("plain", md.Dense())  # the same weights twice are no trouble
    layer, x = make(md.Tied(plain >> plain)), inputs()
    assert jnp.allclose(layer(x), layer.parts["plain"](layer.parts["plain"](x)))


def test_grouped_queries_and_grouped_values_repeat_heads():
    x = inputs(model=8)
    q, k, v = md.Dense(8), md.Dense(4), md.Dense(4)
    grouped = md.Recall(zoo.softmax(), query=q, key=k, value=v, heads=4, key_size=2, value_size=2)
    wide = md.Recall(zoo.softmax(), query=q, key=md.Dense(8), value=md.Dense(8), heads=4)
    a, b = make(grouped, 8), make(wide, 8)

    def repeated(dense, groups=2, heads=4):
        def rows(array):
            pieces = array.reshape(groups, -1, *array.shape[1:])
            return jnp.repeat(pieces, heads // groups, axis=0).reshape(-1, *array.shape[1:])

        return type(dense)(dense.spec, dense.dims, rows(dense.weight), rows(dense.bias))

    streams = {n: m if n == "query" else repeated(m) for n, m in a.streams.items()}
    b = type(b)(b.spec, b.dims, b.memory, b.pairs, streams, b.numbers, b.precision)
    assert jnp.allclose(a(x), b(x))


def test_recall_is_the_heart_of_layer():
    memory, x = zoo.gated_delta_net(), inputs(model=8)
    whole = make(md.Layer(memory, heads=2, norm=None), 8)
    part = make(
        md.Recall(memory, query=md.Dense(8), key=md.Dense(8), value=md.Dense(8), heads=2), 8
    )
    streams = {
        name: type(dense)(dense.spec, dense.dims, whole.projections[name], jnp.zeros(8))
        for name, dense in part.streams.items()
    }
    part = type(part)(
        part.spec, part.dims, part.memory, part.pairs, streams, whole.numbers, part.precision
    )
    assert jnp.allclose(part(x) @ whole.output.T, whole(x))


def test_a_computed_number_is_one_that_is_read_off_the_token():
    memory, x = zoo.delta_net(), inputs(model=8)
    spec = md.Layer(memory, heads=2)
    other = memory.replace(write=md.Delta(md.Computed(md.Dense(2) >> md.Sigmoid())))
    a, b = make(spec, 8), make(spec.replace(memory=other), 8)
    ((weight,), bias, _) = a.numbers["write.rate"][0]
    (computed,) = b.numbers["write.rate"]
    dense = computed.layers[0]
    dense = type(dense)(dense.spec, dense.dims, weight, bias)
    computed = type(computed)(computed.spec, computed.dims, (dense, computed.layers[1]))
    fields = {name: getattr(a, name) for name in a.__dataclass_fields__}
    numbers = {"write.rate": (computed,)}
    b = type(b)(**fields | {"spec": b.spec, "memory": b.memory, "numbers": numbers})
    assert jnp.allclose(a(x), b(x))


def test_a_layer_whose_number_looks_back_goes_token_by_token():
    rate = md.Computed(md.Shift() >> md.Dense(2) >> md.Sigmoid())
    memory = zoo.delta_net().replace(write=md.Delta(rate))
    layer, x = make(md.Layer(memory, heads=2)), inputs()
    state, answers = layer.init(), []
    for token in x:
        state, answer = layer.step(state, token)
        answers.append(answer)
    assert jnp.allclose(jnp.stack(answers), layer(x))


def test_rotary_looks_at_distances_alone():
    x = inputs(model=8)
    layer = make(md.Rotary(4), 8)
    state, _ = layer.prefill(jnp.ones((3, 8), jnp.float64))
    late = layer.prefill(x, state)[1].reshape(TIME, 2, 4)
    early = layer(x).reshape(TIME, 2, 4)
    inner = [jnp.einsum("thi,shi->hts", a, a) for a in (early, late)]
    assert jnp.allclose(*inner) and not jnp.allclose(early, late)


def test_norms_of_groups():
    x = inputs(model=6)
    parts = x.reshape(TIME, 2, 3)
    root = parts / jnp.sqrt(jnp.mean(parts**2, -1, keepdims=True) + 1e-6)
    assert jnp.allclose(make(md.Norm(groups=2), 6)(x), root.reshape(x.shape))
    shared = make(md.Norm(groups=2, shared_gain=True, start=2.0), 6)
    assert shared.gain.shape == (3,) and jnp.allclose(shared(x), 2 * root.reshape(x.shape))
    centred = parts - jnp.mean(parts, -1, keepdims=True)
    centred = centred / jnp.sqrt(jnp.mean(centred**2, -1, keepdims=True) + 1e-6)
    layer = make(md.Norm(groups=2, centred=True, bias=True), 6)
    assert jnp.allclose(layer(x), centred.reshape(x.shape))


def test_vectors_that_are_not_trained_get_no_gradient():
    layer = make(md.Vector(2, start=(0.5, 1.5), trainable=False) * md.Dense(2))
    gradient = jax.grad(lambda m: jnp.sum(m(inputs()) ** 2))(layer)
    assert not jnp.any(gradient.left.values) and bool(jnp.any(gradient.right.weight))


def test_one_knob_a_head():
    decay = md.Decay(md.Knob((0.9, 0.5)))
    layer = make(md.Layer(md.Memory(md.Dot(), md.Hebb(), decay), heads=2))
    x = inputs()
    gradient = jax.grad(lambda m: jnp.sum(m(x) ** 2))(layer)
    assert not jnp.any(gradient.numbers["gate.decay"][0])
    with pytest.raises(md.SpecError, match="2 numbers, and the layer 4 heads"):
        make(md.Layer(md.Memory(md.Dot(), md.Hebb(), decay), heads=4))
    with pytest.raises(md.SpecError, match="between 0 and 1"):
        md.Decay(md.Knob((0.9, 1.5)))
    with pytest.raises(md.SpecError, match="signal 'log_decay' is missing"):
        memory = md.Memory(md.Dot(), md.Hebb(), decay)
        md.run(memory, md.empty(memory, 4, 4, dtype=jnp.float64), x, x, x)


RECALL = dict(query=md.Dense(4), key=md.Dense(4), value=md.Dense(4), heads=2)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda: md.Recall(zoo.softmax(), **RECALL | {"key": md.Dense(3)}), "A key stream of 3"),
        (lambda: md.Recall(zoo.softmax(), **RECALL | {"heads": 3}), "stream of 4"),
        (lambda: md.Recall(zoo.comba(), **RECALL), "asks for erase keys"),
        (lambda: md.Recall(zoo.softmax(), **RECALL, erase=md.Dense(4)), "has no erase keys"),
        (lambda: md.Dense(2) + md.Dense(3), "2 numbers cannot be put beside 3"),
        (lambda: md.Rotary(6), "Heads of 6 do not divide a width of 4"),
        (lambda: md.Norm(groups=3), "3 groups do not divide a width of 4"),
        (
            lambda: md.Layer(
                md.Memory(md.Dot(), md.Delta(md.Computed(md.Dense(3) >> md.Sigmoid()))), heads=2
            ),
            "are 3, and 2 are asked for",
        ),
    ],
)
def test_widths_that_do_not_fit_are_said_at_build_time(wrong, said):
    with pytest.raises(md.SpecError, match=said):
        make(wrong())


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda: md.Rotary(3), "3 is odd"),
        (lambda: md.Dense(3) + md.Relu(), r"\+ joins layers and plain numbers"),
        (lambda: md.Named("", md.Dense(3)), "named by a text"),
        (lambda: md.Vector(4, start=(1.0, 2.0, 3.0)), "divide the size, 4"),
        (lambda: md.Uniform(2.0, 1.0), "Nothing is uniform between 2.0 and 1.0"),
        (lambda: md.Uniform(0.0, 1.0, log=True), "Nothing is uniform between 0.0 and 1.0"),
        (lambda: md.Slice(3, 3), "must be above start"),
        (lambda: md.Decay(md.Computed(md.Dense(2))), "ranges from -inf to inf"),
        (lambda: md.Delta(md.Computed(md.Dense(2) >> md.Tanh())).times(0), "count"),
    ],
)
def test_what_makes_no_sense_is_said_at_once(wrong, said):
    with pytest.raises(md.SpecError, match=said):
        wrong()


def test_a_growing_layer_computes_no_numbers():
    atoms = md.Memory(
        md.RBF(), md.Hebb(md.Computed(md.Dense(1) >> md.Sigmoid())), capacity=md.Budget(4)
    )
    with pytest.raises(md.SpecError, match="no token to read"):
        md.Grown(md.Dense(3), atoms)
