"""Layers: the same answers whole, in pieces, token by token, packed, padded and saved."""

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

import memdsl as md
from memdsl import zoo

from .helpers import some_of


WINDOW = zoo.softmax().replace(capacity=md.Window(3, sinks=1))
BUDGET = zoo.rbf_delta().replace(
    gate=md.Novelty(0.3), capacity=md.Budget(4, evict=md.Smallest(), merge=md.AddToNearest())
)
OWN = {
    "window": WINDOW,
    "budget": BUDGET,
    "hybrid": WINDOW + zoo.gated_delta_net(),
    "boost": zoo.delta_net().boost(zoo.softmax()),
    "every": md.every(3, zoo.delta_net()),
    "scaled": md.FromInput("sigmoid") * zoo.delta_net(),
    "budget least used": BUDGET.replace(capacity=md.Budget(3, evict=md.LeastUsed(0.5))),
    "momentum": md.Memory(md.Dot(), md.Descent(rate=0.3, momentum=0.5)),
    "hedgehog": md.Memory(md.Dot().pullback(md.Hedgehog()), read=md.Normalised()),
}
MEMORIES = {name: make() for name, make in zoo.catalogue().items()} | OWN
# Newton and Schulz make 500 times as much of what rounding leaves in a direction that nothing was
# written in: the first steps have few directions, and two ways of compiling them differ by 4e-5.
DOUBLE = {"atlas"}
TIME, MODEL = 7, 8


def make(memory, dtype=jnp.float32, **options):
    spec = md.Layer(memory, heads=2, convolution=3, activation="silu", **options)
    return md.build(spec, md.Dims(model=MODEL, time=2 * TIME), key=jax.random.key(0), dtype=dtype)


def inputs(seed=1, time=TIME, dtype=jnp.float32):
    return jax.random.normal(jax.random.key(seed), (time, MODEL), dtype)


@eqx.filter_jit
def whole(layer, x, **flags):
    return layer(x, **flags)


@eqx.filter_jit
def piece(layer, x, state, **flags):
    return layer.prefill(x, state, **flags)


@eqx.filter_jit
def one(layer, state, token):
    return layer.step(state, token)


@pytest.mark.parametrize("name", some_of(MEMORIES, 4))
def test_whole_pieces_and_tokens_agree(name):
    dtype = jnp.float64 if name in DOUBLE else jnp.float32
    layer, x = make(MEMORIES[name], dtype, output_gate="silu"), inputs(dtype=dtype)
    y = whole(layer, x)
    assert y.shape == x.shape and y.dtype == x.dtype and bool(jnp.all(jnp.isfinite(y)))
    state, pieces = layer.init(), []
    for size in (4, 3):
        start = sum(p.shape[0] for p in pieces)
        state, out = piece(layer, x[start : start + size], state)
        pieces.append(out)
    assert jnp.allclose(jnp.concatenate(pieces), y, atol=2e-5)
    tokens, answers = layer.init(), []
    for token in x:
        tokens, answer = one(layer, tokens, token)
        answers.append(answer)
    assert jnp.allclose(jnp.stack(answers), y, atol=2e-5)
    assert jax.tree.structure(tokens) == jax.tree.structure(state)
    before, after = map(jax.tree.leaves, (layer.init(), state))
    assert [(b.shape, b.dtype) for b in before] == [(a.shape, a.dtype) for a in after]


PACKED = [
    "titans_mlp",
    "memora",
    "gated_delta_net",
    "softmax",
    "rbf_delta",
    "mesa_net",
    "window",
    "budget",
    "every",
]


@pytest.mark.parametrize("name", PACKED)
def test_packed_documents_equal_separate_ones_and_nothing_leaks(name):
    layer, x = make(MEMORIES[name]), inputs()
    starts = jnp.arange(TIME) == 3
    y = whole(layer, x, starts=starts)
    apart = jnp.concatenate([whole(layer, x[:3]), whole(layer, x[3:])])
    assert jnp.allclose(y, apart, atol=2e-5)
    leak = jax.grad(lambda x: jnp.sum(whole(layer, x, starts=starts)[3:]))(x)
    assert bool(jnp.all(leak[:3] == 0)) and bool(jnp.any(leak[3:] != 0))


@pytest.mark.parametrize("name", PACKED)
def test_left_padding_is_exact(name):
    layer, x = make(MEMORIES[name]), inputs()
    padded = jnp.concatenate([jnp.full((2, MODEL), jnp.nan), x])
    mask = jnp.arange(TIME + 2) >= 2
    y = whole(layer, padded, mask=mask)
    assert bool(jnp.all(y[:2] == 0))
    assert jnp.allclose(y[2:], whole(layer, x), atol=2e-5)
    gradient = jax.grad(lambda p: jnp.sum(whole(layer, p, mask=mask) ** 2))(padded)
    assert bool(jnp.all(gradient[:2] == 0)) and bool(jnp.all(jnp.isfinite(gradient)))


def test_right_padding_leaves_the_state_of_what_was_there():
    layer, x = make(MEMORIES["gated_delta_net"]), inputs()
    mask = jnp.arange(TIME) < 4
    state, _ = piece(layer, x, layer.init(), mask=mask)
    short, _ = piece(layer, x[:4], layer.init())
    for a, b in zip(jax.tree.leaves(state), jax.tree.leaves(short), strict=True):
        assert jnp.allclose(a, b, atol=1e-6)


def test_half_precision_inputs_keep_states_in_single():
    layer = make(MEMORIES["gated_delta_net"])
    x = inputs(dtype=jnp.bfloat16)
    state, y = layer.prefill(x)
    assert y.dtype == jnp.bfloat16
    assert state.memory.matrix.dtype == jnp.float32
    assert jnp.allclose(y.astype(jnp.float32), whole(layer, x.astype(jnp.float32)), atol=0.1)


def test_a_sequence_of_no_tokens_is_a_sequence_of_no_tokens():
    for name in ("gated_delta_net", "softmax", "mesa_net", "rbf_delta"):
        layer = make(MEMORIES[name])
        state, y = layer.prefill(inputs(time=0))
        assert y.shape == (0, MODEL)
        for a, b in zip(jax.tree.leaves(state), jax.tree.leaves(layer.init()), strict=True):
            assert jnp.array_equal(a, b)


def block(memory):
    inner = md.Layer(memory, heads=2, convolution=3)
    return md.Residual(md.Norm() >> inner) >> md.Residual(md.Norm() >> md.Mlp(2))


def language_model(depth=2):
    spec = block(zoo.gated_delta_net()) >> block(WINDOW)
    spec = md.Embed(11) >> md.Repeat(spec, depth) >> md.Norm() >> md.Unembed()
    return md.build(spec, md.Dims(model=MODEL, time=16), key=jax.random.key(3))


def test_a_hybrid_language_model_whole_and_token_by_token():
    model, tokens = language_model(), jnp.array([1, 5, 2, 5, 10, 0])
    logits = whole(model, tokens)
    assert logits.shape == (6, 11)
    state, answers = model.init(), []
    for token in tokens:
        state, answer = one(model, state, token)
        answers.append(answer)
    assert jnp.allclose(jnp.stack(answers), logits, atol=2e-5)
    gradient = eqx.filter_grad(lambda m: jnp.sum(m(tokens) ** 2))(model)
    arrays = jax.tree.leaves(eqx.filter(gradient, eqx.is_array))
    assert all(bool(jnp.all(jnp.isfinite(a))) for a in arrays)


def test_repeated_layers_are_one_scan_whatever_their_number():
    def equations(depth):
        model = language_model(depth)
        arrays, static = eqx.partition(model, eqx.is_array)
        program = jax.make_jaxpr(lambda a, x: eqx.combine(a, static)(x))(arrays, jnp.arange(4))
        return len(program.eqns)

    assert equations(2) == equations(5)


@pytest.mark.parametrize("name", ["gated_delta_net", "budget", "ada_transformer"])
def test_save_and_load(name, tmp_path):
    layer, x = make(MEMORIES[name]), inputs()
    md.save(tmp_path / "layer", layer)
    again = md.load(tmp_path / "layer")
    assert again.spec == layer.spec and again.dims == layer.dims
    assert jnp.array_equal(whole(again, x), whole(layer, x))
    assert [p.name for p in tmp_path.iterdir()] == ["layer"]


def test_a_failed_save_leaves_the_old_file(tmp_path, monkeypatch):
    layer = make(MEMORIES["delta_net"])
    md.save(tmp_path / "layer", layer)
    before = (tmp_path / "layer").read_bytes()

    def fails(file, tree):
        file.write(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(eqx, "tree_serialise_leaves", fails)
    with pytest.raises(OSError, match="disk full"):
        md.save(tmp_path / "layer", layer)
    assert (tmp_path / "layer").read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["layer"]


def test_what_is_no_saved_layer_is_said_to_be_none(tmp_path):
    (tmp_path / "text").write_text("hello\n")
    with pytest.raises(md.SpecError, match="does not begin with a line of JSON"):
        md.load(tmp_path / "text")
    (tmp_path / "other").write_text('{"memdsl": 1}\n')
    with pytest.raises(md.SpecError, match="lacks dims, dtype, spec"):
        md.load(tmp_path / "other")


def test_sizes_that_do_not_fit_are_said_at_build_time():
    with pytest.raises(md.SpecError, match="3 heads do not divide a model of 8"):
        md.build(md.Layer(zoo.delta_net(), heads=3), md.Dims(model=8), key=jax.random.key(0))
    with pytest.raises(md.SpecError, match="no Embed"):
        md.build(md.Norm() >> md.Unembed(), md.Dims(model=8), key=jax.random.key(0))
    with pytest.raises(md.SpecError, match="keeps the width"):
        md.build(md.Residual(md.Dense(3)), md.Dims(model=8), key=jax.random.key(0))


def test_no_static_field_holds_an_array_or_a_key():
    def walk(module):
        for field in module.__dataclass_fields__.values():
            value = getattr(module, field.name)
            if field.metadata.get("static"):
                hash(value)
                assert not eqx.is_array(value)
            for leaf in jax.tree.leaves(value, is_leaf=lambda v: isinstance(v, eqx.Module)):
                if isinstance(leaf, eqx.Module):
                    walk(leaf)

    walk(language_model())
    walk(make(MEMORIES["budget"]))
