"""Published layers: in pieces, token by token, packed, padded, as JSON, and out of published files."""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
from safetensors.flax import save_file

import memdsl as md
from memdsl.nn._names import parameter_names

from .helpers import some_of


L = md.zoo.layers
MODEL, TIME = 8, 4
SMALL = {
    "linear_attention": dict(heads=2),
    "retnet": dict(heads=2),
    "gla": dict(heads=2, gate_rank=3),
    "simple_gla": dict(heads=2),
    "hgrn": dict(lower_bound=0.3),
    "hgrn2": dict(head_size=4, lower_bound=0.3),
    "forgetting_attention": dict(heads=2),
    "path_attention": dict(heads=2, rank=3, qk_norm=True, forget=True),
    "gated_slot_attention": dict(heads=2, slots=3),
    "delta_net": dict(heads=2),
    "gated_delta_net": dict(heads=2, head_size=4),
    "gated_delta_net2": dict(heads=2, head_size=4),
    "gated_delta_product": dict(heads=2, head_size=4, negative=True),
    "kimi_delta_attention": dict(heads=2, head_size=4),
    "comba": dict(heads=2, head_size=4),
    "mesa_net": dict(heads=2, head_size=4),
    "mamba": dict(inner=6, state=3, rank=2),
    "mamba2": dict(head_size=8, state=3),
    "rwkv6": dict(heads=2, rank=2, gate_rank=3),
    "rwkv7": dict(head_size=4, ranks=(2, 2, 2, 3), layer=1, layers=3),
}


def width(name):
    return 2 * MODEL if name == "rwkv7" else MODEL  # x, and beside it the first layer's values


def make(name, seed=0, **options):
    spec = L.catalogue()[name](MODEL, **SMALL[name])
    dims = md.Dims(model=width(name), time=4 * TIME)
    layer = md.build(spec, dims, key=jax.random.key(seed), **options)
    # parameters that start at zero would leave most of a layer untried
    leaves, tree = jax.tree.flatten(layer)
    keys = jax.random.split(jax.random.key(1), len(leaves))
    moved = [
        a + 0.3 * jax.random.normal(k, a.shape, a.dtype) for a, k in zip(leaves, keys, strict=True)
    ]
    named = parameter_names(layer)
    kept = [b if n else a for a, b, n in zip(leaves, moved, named, strict=True)]
    return jax.tree.unflatten(tree, kept)


def fast(function):
    """Compiled without asking the compiler for its best: compiling is what these tests cost."""
    return partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})(function)


def test_every_published_layer_is_tried_here():
    assert sorted(SMALL) == sorted(L.catalogue())


@pytest.mark.parametrize("name", some_of(SMALL, 3))
def test_pieces_tokens_documents_and_padding(name):
    layer = make(name, dtype=jnp.float64)
    arrays, static = eqx.partition(layer, eqx.is_array)
    documents = jax.random.normal(jax.random.key(2), (2, TIME, width(name)), jnp.float64)
    # two documents in one sequence, with padding before, inside and behind
    place = jnp.array([1, 2, 4, 5, 6, 8, 9, 10])
    mask = jnp.zeros(12, bool).at[place].set(True)
    starts = jnp.zeros(12, bool).at[place[TIME]].set(True)

    @fast
    def all_ways(arrays, documents, holes):
        layer = eqx.combine(arrays, static)

        def token_by_token(document):
            return jax.lax.scan(lambda *turn: layer.step(*turn), layer.init(), document)[1]

        def packed(documents):
            x = jnp.full((12, width(name)), holes)
            return x.at[place].set(documents.reshape(2 * TIME, -1))

        def of_second(documents):
            y = layer(packed(documents), starts=starts, mask=mask)
            return jnp.sum(y[place[TIME:]] ** 2), y

        (_, y), leak = jax.value_and_grad(of_second, has_aux=True)(documents)
        x, state, pieces = packed(documents), layer.init(), []
        for a, b in ((0, 5), (5, 12)):
            state, piece = layer.prefill(x[a:b], state, starts=starts[a:b], mask=mask[a:b])
            pieces.append(piece)
        return jax.vmap(token_by_token)(documents), y, jnp.concatenate(pieces), leak

    tokens, whole, pieces, leak = all_ways(arrays, documents, jnp.nan)
    wanted = tokens.reshape(2 * TIME, -1)
    assert wanted.shape == (2 * TIME, MODEL) and float(jnp.max(jnp.abs(wanted))) > 1e-3
    assert jnp.allclose(whole[place], wanted, rtol=1e-9, atol=1e-12)
    assert jnp.allclose(pieces, whole, rtol=1e-9, atol=1e-12)
    assert bool(jnp.all(whole[~mask] == 0))
    assert bool(jnp.all(leak[0] == 0)) and bool(jnp.all(jnp.isfinite(leak)))
    assert bool(jnp.all(jnp.any(leak[1] != 0, axis=-1)))


@pytest.mark.parametrize("name", SMALL)
def test_a_spec_is_data(name):
    spec = L.catalogue()[name](MODEL, **SMALL[name])
    assert md.from_json(md.to_json(spec)) == spec
    assert hash(spec) == hash(md.from_json(md.to_json(spec)))


@pytest.mark.parametrize("name", some_of(SMALL, 3))
def test_explain_counts_what_is_trained(name):
    spec = L.catalogue()[name](MODEL, **SMALL[name])
    page = md.explain(spec, md.Dims(model=width(name)), name=name)
    count = sum(array.size for array in jax.tree.leaves(make(name)))
    count -= 2 if name == "retnet" else 0  # its decays, one a head
    assert page.startswith(f"Memory  {name}\n")
    assert f"trained    {count:_} parameters".replace("_", " ") in page


def test_explain_of_what_has_no_memory():
    with pytest.raises(md.SpecError, match="There is no memory to explain"):
        md.explain(md.Norm() >> md.Mlp(2), md.Dims(model=8))
    with pytest.raises(md.SpecError, match="model"):
        md.explain(L.retnet(MODEL, 2))


@pytest.mark.parametrize("name", ["gated_delta_net", "rwkv6", "mamba2"])
def test_half_precision_inputs_keep_states_in_single(name):
    layer = make(name)
    x = jax.random.normal(jax.random.key(3), (TIME, MODEL)).astype(jnp.bfloat16)

    @fast
    def run(x):
        return layer.prefill(x)

    state, y = run(x)
    assert y.dtype == jnp.bfloat16
    before = jax.tree.leaves(layer.init())
    for a, b in zip(before, jax.tree.leaves(state), strict=True):
        assert a.dtype == b.dtype != jnp.bfloat16 and a.shape == b.shape
    exact = run(x.astype(jnp.float32))[1]
    assert jnp.allclose(y.astype(jnp.float32), exact, atol=0.1 * float(jnp.max(jnp.abs(exact))))


def test_no_tokens_change_no_state():
    layer = make("rwkv6")
    state, y = layer.prefill(jnp.zeros((0, MODEL), jnp.float32))
    assert y.shape == (0, MODEL)
    for a, b in zip(jax.tree.leaves(layer.init()), jax.tree.leaves(state), strict=True):
        assert jnp.array_equal(a, b)


def test_a_stack_of_published_layers():
    spec = md.Repeat(md.Residual(md.Norm() >> L.rwkv6(MODEL, **SMALL["rwkv6"])), 2)
    dims = md.Dims(model=MODEL)
    stack = md.build(spec, dims, key=jax.random.key(0), dtype=jnp.float64)
    x = jax.random.normal(jax.random.key(2), (TIME, MODEL), jnp.float64)

    @fast
    def both(x):
        tokens = jax.lax.scan(lambda *turn: stack.step(*turn), stack.init(), x)[1]
        return tokens, stack(x)

    tokens, whole = both(x)
    assert jnp.allclose(tokens, whole, rtol=1e-9, atol=1e-12)
    assert jnp.any(stack.stacked.layer.layers[1].parts["r_proj.linear"].weight[0] != 0)


def test_saved_and_loaded(tmp_path):
    layer = make("gated_delta_net")
    md.save(tmp_path / "layer", layer)
    again = md.load(tmp_path / "layer")
    assert again.spec == layer.spec
    same = zip(jax.tree.leaves(layer), jax.tree.leaves(again), strict=True)
    assert all(jnp.array_equal(a, b) for a, b in same)


def test_starts_of_parameters():
    layer = md.build(L.gated_delta_net(64, 8, 4), md.Dims(model=64), key=jax.random.key(0))
    rates = jnp.exp(layer.parts["A_log"].values)
    steps = jax.nn.softplus(layer.parts["dt_bias"].values)
    assert float(jnp.min(rates)) > 0 and float(jnp.max(rates)) < 16
    assert float(jnp.min(steps)) > 9e-4 and float(jnp.max(steps)) < 0.11
    assert float(jnp.max(jnp.abs(layer.parts["q_proj"].weight))) <= 1 / 8
    states = md.build(L.mamba(8, 6, 3, 2), md.Dims(model=8), key=jax.random.key(0))
    rates = jnp.exp(states.parts["A_log"].values).reshape(6, 3)
    assert jnp.allclose(rates, jnp.arange(1, 4, dtype=jnp.float32)[None])
    late = md.build(L.rwkv7(8, 4, layer=2, layers=3), md.Dims(model=16), key=jax.random.key(0))
    assert not jnp.any(late.parts["o_proj"].weight)
    assert jnp.allclose(late.parts["k_a"].values, 1.02)
    square = late.parts["r_proj"].weight
    assert jnp.allclose(square @ square.T, jnp.eye(8, dtype=jnp.float32), atol=1e-5)


def tensors(name):
    layer = make(name)
    named = zip(parameter_names(layer), jax.tree.leaves(layer), strict=True)
    return layer, {n: array for n, array in named if n is not None}


@pytest.mark.parametrize("name", ["kimi_delta_attention", "mesa_net", "retnet"])
def test_published_weights_are_found_by_name(name, tmp_path):
    layer, arrays = tensors(name)
    wide = {
        f"layers.0.attn.{n}": a[:, None] if "conv1d.weight" in n else a for n, a in arrays.items()
    }
    wide["layers.0.mlp.up.weight"] = jnp.ones((2, 2))
    save_file(wide, tmp_path / "model.safetensors")
    again = md.load_published(
        name, tmp_path / "model.safetensors", prefix="layers.0.attn.", model=MODEL, **SMALL[name]
    )
    assert again.spec == layer.spec
    for a, b in zip(jax.tree.leaves(layer), jax.tree.leaves(again), strict=True):
        assert jnp.array_equal(a, b)


def test_what_a_published_file_must_hold(tmp_path):
    path = tmp_path / "layer.safetensors"
    _, arrays = tensors("linear_attention")

    def load(arrays, name="linear_attention", **options):
        save_file(arrays, path)
        return md.load_published(name, path, **(dict(model=MODEL, heads=2) | options))

    load(arrays)
    less = {n: a for n, a in arrays.items() if n != "k_proj.weight"}
    with pytest.raises(md.SpecError, match=r"the file lacks k_proj\.weight \(8, 8\)") as error:
        load(less)
    assert "The layer has k_proj.weight (8, 8)" in error.value.why
    assert "The file has norm.weight (4,)" in error.value.why
    more = arrays | {"k_proj.bias": jnp.ones(8)}
    with pytest.raises(md.SpecError, match=r"the layer has no k_proj\.bias \(8,\)"):
        load(more)
    with pytest.raises(md.SpecError, match=r"v_proj\.weight \(8, 8\) of the layer is \(4, 16\)"):
        load(arrays | {"v_proj.weight": jnp.ones((4, 16))})
    with pytest.raises(md.SpecError, match=r"norm\.weight \(2,\) of the layer is \(4,\)"):
        load(arrays, heads=4)
    with pytest.raises(md.SpecError, match="no published layer 'linear_attn'"):
        load(arrays, "linear_attn")
    with pytest.raises(md.SpecError, match="cannot be made: missing a required argument"):
        md.load_published("linear_attention", path, heads=2)
    with pytest.raises(md.SpecError, match="There are 8 numbers, and not 16"):
        md.load_published("rwkv7", path, model=MODEL, **SMALL["rwkv7"])
    path.write_bytes(b"hello")
    with pytest.raises(md.SpecError, match="is no safetensors file"):
        md.load_published("linear_attention", path, model=MODEL, heads=2)
