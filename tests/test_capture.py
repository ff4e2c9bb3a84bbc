"""What linear layers are given: found in any model, by what is computed and not by who computes it.

The law: where all that a function answers is W x, for the inputs of one layer, the derivative of half the
squares of its answers is W times the sum of x x^T.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
from jax import lax

import memdsl as md
from memdsl.optim import Gram
from tests.properties._growth import build, draw, half_square, worst


ROOT = Path(__file__).parent.parent
KEY = jax.random.key(0)
IMAGES, ROWS, TOKENS = draw(1, 2, 4, 7, 6), draw(2, 3, 5, 4), jnp.arange(15).reshape(3, 5) ** 2 % 7


def each(model: Any, *inputs: Any) -> Any:
    return jax.vmap(jax.vmap(model))(*inputs)


def usual(call: Callable[..., Any]) -> Callable[..., Any]:
    """The function under the settings that people have: vectors are added to rows."""

    def run(*args: Any) -> Any:
        with jax.numpy_rank_promotion("allow"):
            return call(*args)

    return run


def stack(model: Any) -> Any:
    """Three equal layers with different numbers."""
    return jax.tree.map(lambda x: draw(x.size, 3, *x.shape) if eqx.is_array(x) else x, model)


def scanned(model: Any, x: Any) -> Any:
    """A row of x by each of the layers of a stack."""
    arrays, static = eqx.partition(model, eqx.is_array)

    def body(carry: Any, turn: Any) -> tuple[Any, Any]:
        own, row = turn
        return carry, jax.vmap(eqx.combine(own, static))(row)

    return lax.scan(body, 0.0, (arrays, x))[1]


def looped(model: Any, x: Any) -> Any:
    """One layer in a loop that also sees it doubled, and outside of it."""
    inside = lax.scan(lambda _, row: (0.0, jax.vmap(model)(row)), 0.0, x)[1]
    return inside, each(model, 2 * x)


def wrapped(model: Any, x: Any) -> Any:
    """Inside of a jit in a checkpoint in a jit."""
    inner = jax.checkpoint(lambda w, x: jax.jit(lambda w, x: x @ w)(w["w"], x) + w["b"])
    return jax.jit(inner)(model, x)


LINEAR = eqx.nn.Linear(4, 3, key=KEY)
SHAPES = {"w": draw(3, 4, 3), "b": draw(4, 3)}
CASES: dict[str, tuple[Any, Callable[..., Any], Any]] = {
    "equinox linear": (LINEAR, each, ROWS),
    "one output": (eqx.nn.Linear(4, 1, key=KEY), each, ROWS),
    "one input": (eqx.nn.Linear(1, 4, key=KEY), each, ROWS[..., :1]),
    "no batch": (LINEAR, lambda model, x: model(x[0, 0]), ROWS),
    "no bias": (eqx.nn.Linear(4, 3, use_bias=False, key=KEY), each, ROWS),
    "convolution": (
        eqx.nn.Conv2d(4, 6, (3, 2), stride=2, padding=1, groups=2, key=KEY),
        lambda model, x: jax.vmap(model)(x),
        IMAGES,
    ),
    "dilated, one channel": (
        eqx.nn.Conv1d(4, 1, 2, dilation=2, padding="SAME", key=KEY),
        lambda model, x: jax.vmap(model)(x),
        IMAGES[:, :, 0],
    ),
    "transposed convolution": (
        eqx.nn.ConvTranspose1d(4, 3, 3, stride=2, key=KEY),
        lambda model, x: jax.vmap(model)(x),
        IMAGES[:, :, 0],
    ),
    "table": (eqx.nn.Embedding(7, 3, key=KEY), each, TOKENS),
    "Dense": (build(md.Dense(3, start="uniform"), 4), lambda model, x: model(x), ROWS),
    "Conv": (
        md.build(md.Conv(3, 2), md.Dims(model=4), key=KEY, dtype=jnp.float64),
        lambda model, x: jax.vmap(model)(x),
        IMAGES,
    ),
    "Embed": (build(md.Embed(7), 3), lambda model, x: jax.vmap(model)(x), TOKENS),
    "array": (SHAPES, usual(lambda model, x: x @ model["w"] + model["b"]), ROWS),
    "wrapped": (SHAPES, usual(wrapped), ROWS),
    "several outputs": (
        {"w": draw(5, 4, 2, 3), "b": draw(6, 2, 3)},
        usual(lambda model, x: jnp.einsum("bti,ihk->bthk", x, model["w"]) + model["b"]),
        ROWS,
    ),
    "several inputs": (
        {"w": draw(5, 5, 4, 3)},
        lambda model, x: jnp.einsum("btd,tdk->bk", x, model["w"]),
        ROWS,
    ),
    "one a position": (
        {"w": draw(5, 5, 4, 3), "b": draw(7, 5, 3)},
        usual(lambda model, x: jnp.einsum("btd,tdk->btk", x, model["w"]) + model["b"]),
        ROWS,
    ),
    "stack under vmap": (
        stack(LINEAR),
        lambda model, x: eqx.filter_vmap(lambda own, row: jax.vmap(own)(row))(model, x),
        ROWS,
    ),
    "stack under scan": (stack(LINEAR), scanned, ROWS),
    "convolutions under scan": (
        stack(eqx.nn.Conv2d(4, 3, 2, key=KEY)),
        lambda model, x: scanned(model, jnp.stack([x, 2 * x, 3 * x])),
        IMAGES,
    ),
    "used twice": (LINEAR, looped, ROWS),
}


def summed(gram: Gram) -> Any:
    """The sum of x x^T."""
    return gram.mean * gram.count.reshape(
        *gram.count.shape, *(1,) * (gram.mean.ndim - gram.count.ndim)
    )


@pytest.mark.parametrize("name", CASES)
def test_half_the_squares_have_the_derivative_of_the_layer_times_its_gram(name: str):
    model, call, inputs = CASES[name]
    captured = md.optim.capture(model, inputs, call=call)
    (projection,) = captured.projections

    def squares(model: Any, inputs: Any) -> Any:
        return sum(jnp.sum(y**2) for y in jax.tree.leaves(call(model, inputs))) / 2

    (value, grams), slope = eqx.filter_jit(
        eqx.filter_value_and_grad(md.optim.with_grams(squares), has_aux=True)
    )(captured, inputs)
    assert worst(value, squares(model, inputs)) < 1e-12 * (1 + value)
    place = {jax.tree_util.keystr(p): x for p, x in jax.tree_util.tree_leaves_with_path(captured)}
    slopes = {jax.tree_util.keystr(p): x for p, x in jax.tree_util.tree_leaves_with_path(slope)}
    assert set(slopes) == {".model" + n for n in (projection.weight, projection.bias) if n}, (
        "a bias was not found"
    )

    def joined(tree: Any) -> Any:
        bias = None if projection.bias is None else tree[".model" + projection.bias]
        return projection.joined(tree[".model" + projection.weight], bias)

    (gram,) = jax.tree.leaves(grams, is_leaf=lambda x: isinstance(x, Gram))
    total, weight = summed(gram), joined(place)
    made = weight * total[..., None, :] if projection.lookup else weight @ total
    assert worst(made, joined(slopes)) < 1e-12 * (1 + float(jnp.max(jnp.abs(made))))
    tensor, bias = projection.parted(
        weight,
        place[".model" + projection.weight],
        None if projection.bias is None else place[".model" + projection.bias],
    )
    assert (tensor == place[".model" + projection.weight]).all()
    assert bias is None or (bias == place[".model" + (projection.bias or "")]).all()


def test_attention_hands_out_its_projections():
    """The projections of queries, keys and values see the tokens, the last one what heads answered."""
    model = eqx.nn.MultiheadAttention(2, 4, use_value_bias=True, key=KEY)

    def call(model: Any, x: Any) -> Any:
        return jax.vmap(lambda x: model(x, 2 * x, x))(x)

    captured = md.optim.capture(model, ROWS, call=call)
    answers, grams = md.optim.with_grams(call)(captured, ROWS)
    found = grams.model
    x = ROWS.reshape(15, 4)
    assert worst(found.query_proj.weight.mean, x.T @ x / 15) < 1e-14
    assert worst(found.key_proj.weight.mean, 4 * x.T @ x / 15) < 1e-14
    assert worst(found.value_proj.weight.mean[-1], jnp.append(x.mean(0), 1.0)) < 1e-14
    assert found.output_proj.weight.count == 15
    root = jnp.linalg.pinv(model.output_proj.weight)
    heads = answers.reshape(15, 4) @ root.T
    assert worst(found.output_proj.weight.mean, heads.T @ heads / 15) < 1e-10


def test_a_language_model_is_differentiated_as_usual():
    """Memories have derivatives of their own, and a Repeat is a scan: it is all as by jax.grad."""
    memory = md.Memory(md.Dot().pullback(md.L2Norm()), md.Delta(md.FromInput("sigmoid")))
    block = md.Residual(md.Norm() >> md.Layer(memory, heads=2, convolution=2) >> md.Mlp(2))
    model = build(md.Embed(5) >> md.Repeat(block, 2) >> md.Norm() >> md.Unembed(), 4)
    tokens, targets = TOKENS % 5, draw(3, 3, 5, 5)
    captured = md.optim.capture(model, tokens)
    assert {p.weight.rpartition("].")[2]: p.stack for p in captured.projections} == {
        "weight": (),
        "projections['query']": (0,),
        "projections['key']": (0,),
        "projections['value']": (0,),
        "numbers['write.rate'][0][0][0]": (0,),
        "output": (0,),
        "inner": (0,),
        "gate": (0,),
        "outer": (0,),
    }
    loss, gradients, grams = eqx.filter_jit(md.optim.backward)(
        half_square, captured, tokens, targets
    )
    learning, fixed = eqx.partition(model, eqx.is_inexact_array)

    def plain(learning: Any) -> Any:
        return half_square(jax.vmap(eqx.combine(learning, fixed))(tokens), targets)

    value, wanted = jax.jit(jax.value_and_grad(plain))(learning)
    assert loss == value
    for found, other in zip(jax.tree.leaves(gradients), jax.tree.leaves(wanted), strict=True):
        assert worst(found, other) < 1e-14
    assert grams.model.layers[1].stacked.layer.layers[2].inner.mean.shape == (2, 4, 4)
    assert (
        worst(grams.model.layers[0].weight.mean, jnp.bincount(tokens.ravel(), length=5) / 15) == 0
    )


def test_growing_layers_hand_out_what_their_bases_are_given():
    atoms = md.Memory(md.RBF(), md.Hebb(0.1), capacity=md.Budget(4))
    frozen = md.Grown(md.Dense(2, trainable=False), atoms)
    model = build(md.Grown(md.Dense(3), atoms) >> md.Relu() >> frozen, 4)
    captured = md.optim.capture(model, ROWS[0])
    (projection,) = captured.projections  # what is not trained needs no optimiser
    assert projection.weight == ".layers[0].base.weight"
    _, gradients, grams = md.optim.backward(half_square, captured, ROWS[0], draw(1, 5, 2))
    assert gradients.model.layers[2].base.weight is None
    x = jnp.concatenate([ROWS[0], jnp.ones((5, 1))], axis=1)
    assert worst(grams.model.layers[0].base.weight.mean, x.T @ x / 5) < 1e-14


def own_derivative(w: Any, x: Any) -> Any:
    @jax.custom_jvp
    def product(w: Any, x: Any) -> Any:
        return x @ w

    product.defjvp(lambda primals, tangents: (primals[1] @ primals[0], primals[1] @ tangents[0]))
    return product(w, x)


NONE: dict[str, Callable[[Any, Any], Any]] = {
    "a table that also makes the logits": lambda w, x: w[TOKENS % 4] @ w.T,
    "a gain": usual(lambda w, x: x @ w["other"] * w["gain"]),
    "a branch": lambda w, x: lax.cond(x[0, 0, 0] > 0, lambda: x @ w, lambda: x @ w),
    "a derivative of its own": own_derivative,
    "a normalised weight": lambda w, x: x @ (w / jnp.linalg.norm(w)),
    "a part of a weight": lambda w, x: x @ w[:, :2],
}


@pytest.mark.parametrize("name", NONE)
def test_what_is_no_linear_layer_has_no_gram(name: str):
    weight = {"other": draw(1, 4, 4), "gain": draw(2, 4)} if name == "a gain" else draw(1, 4, 4)
    both = {"plain": draw(2, 4, 2), "odd": weight}

    def call(model: Any, x: Any) -> Any:
        return x @ model["plain"], NONE[name](model["odd"], x)

    found = md.optim.capture(both, ROWS, call=call).projections
    assert "['plain']" in {p.weight for p in found}
    assert {p.weight for p in found} <= {"['plain']", "['odd']['other']"}
    answers, _ = md.optim.with_grams(call)(md.optim.capture(both, ROWS, call=call), ROWS)
    for a, b in zip(jax.tree.leaves(answers), jax.tree.leaves(call(both, ROWS)), strict=True):
        assert worst(a, b) == 0


def test_a_bias_is_of_one_layer_and_is_added_to_its_answer():
    model = {"a": draw(1, 4, 3), "b": draw(2, 4, 3), "shared": draw(3, 3), "late": draw(4, 3)}

    def call(model: Any, x: Any) -> Any:
        first = x @ model["a"] + model["shared"]
        return first, jnp.tanh(x @ model["b"]) + model["late"] + model["shared"]

    assert [p.bias for p in md.optim.capture(model, ROWS, call=usual(call)).projections] == [
        "['shared']",
        None,
    ]

    def both(model: Any, x: Any) -> Any:
        return x @ model["a"] + model["shared"], x @ model["b"] + model["shared"]

    assert [p.bias for p in md.optim.capture(model, ROWS, call=usual(both)).projections] == [
        None,
        None,
    ]

    def once(model: Any, x: Any) -> Any:
        return x @ model["a"] + model["shared"], x @ model["a"]

    assert [p.bias for p in md.optim.capture(model, ROWS, call=usual(once)).projections] == [None]


def test_grams_of_parts_add_up_and_rows_are_their_roots():
    model = eqx.nn.MLP(4, 2, 3, 1, key=KEY)
    x, y = ROWS.reshape(15, 4)[:12], draw(5, 12, 2)
    captured, rows = (md.optim.capture(model, x, rows=rows) for rows in (False, True))
    _, gradients, whole = md.optim.backward(half_square, captured, x, y)
    _, _, roots = md.optim.backward(half_square, rows, x, y)

    def part(total: Any, batch: Any) -> tuple[Any, None]:
        _, gradients, grams = md.optim.backward(half_square, captured, *batch)
        return jax.tree.map(jnp.add, total, (gradients, grams)), None

    zeros = jax.tree.map(jnp.zeros_like, (gradients, whole))
    (added, grams), _ = lax.scan(part, zeros, (x.reshape(3, 4, 4), y.reshape(3, 4, 2)))
    for index in range(2):
        one = whole.model.layers[index].weight
        assert worst(grams.model.layers[index].weight.mean, one.mean) < 1e-14
        assert worst(roots.model.layers[index].weight.mean, one.mean) < 1e-14
        slope = gradients.model.layers[index].weight
        assert worst(added.model.layers[index].weight / 3, slope) < 1e-14
    assert roots.model.layers[0].weight.rows.shape == (12, 5)


def test_rows_of_a_loop_are_those_of_all_its_turns():
    captured = md.optim.capture(LINEAR, ROWS, call=looped, rows=True)
    _, grams = md.optim.with_grams(looped)(captured, ROWS)
    _, plain = md.optim.with_grams(looped)(md.optim.capture(LINEAR, ROWS, call=looped), ROWS)
    assert grams.model.weight.rows.shape == (30, 5)
    assert worst(grams.model.weight.mean, plain.model.weight.mean) < 1e-14


def test_half_precision_is_summed_in_single():
    model = jax.tree.map(lambda x: x.astype(jnp.bfloat16), LINEAR)
    x = jnp.ones((300, 4), jnp.bfloat16)
    captured = md.optim.capture(model, x)
    _, grams = md.optim.with_grams(lambda model, x: jax.vmap(model)(x))(captured, x)
    assert grams.model.weight.total.dtype == jnp.float32
    assert (grams.model.weight.total == 300).all()  # in bfloat16 the count would end at 256


def test_a_captured_model_is_the_model():
    model = eqx.nn.MLP(4, 2, 3, 1, key=KEY)
    captured = md.optim.capture(model, jax.ShapeDtypeStruct((15, 4), jnp.float64))
    assert (captured(ROWS[0, 0]) == model(ROWS[0, 0])).all()
    ensemble = jax.vmap(md.optim.with_grams(lambda model, x: model(x)), in_axes=(None, 0))
    _, grams = eqx.filter_jit(ensemble)(captured, ROWS[0])
    assert grams.model.layers[0].weight.total.shape == (5, 5, 5)
    assert jax.tree.structure(captured.model) == jax.tree.structure(model)


def test_a_wide_layer_is_left_out():
    model = eqx.nn.MLP(4, 2, 9, 1, key=KEY)
    (projection,) = md.optim.capture(model, ROWS[0], largest=4).projections
    assert projection.weight == ".layers[0].weight"
    table = md.optim.capture(eqx.nn.Embedding(7, 3, key=KEY), TOKENS[0], largest=4)
    assert table.projections[0].lookup  # it has as many numbers as rows


def test_what_cannot_be_captured_is_said():
    with pytest.raises(md.SpecError, match="capture was given no example") as raised:
        md.optim.capture(LINEAR)
    assert "md.optim.capture(model, inputs)" in (raised.value.instead or "")
    with pytest.raises(md.SpecError, match="no linear layer in this model") as raised:
        md.optim.capture({"gain": jnp.ones(4)}, ROWS, call=lambda model, x: x)
    assert "4096 inputs" in (raised.value.why or "")
    for function in (
        md.optim.with_grams(each),
        lambda m, x: md.optim.backward(half_square, m, x, x),
    ):
        with pytest.raises(md.SpecError, match="This is a Linear, and no captured model"):
            function(LINEAR, ROWS)


@pytest.mark.slow
def test_a_batch_on_two_devices_has_the_grams_of_all_of_it():
    """Under jit they are of the whole batch, whoever places arrays; in a shard_map they add up as
    gradients do."""
    script = """
import equinox as eqx, jax, jax.numpy as jnp, memdsl as md, numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
model = eqx.nn.MLP(4, 2, 3, 1, key=jax.random.key(0))
x, y = jax.random.normal(jax.random.key(1), (8, 4)), jax.random.normal(jax.random.key(2), (8, 2))

def loss(p, y):
    return jnp.mean((p - y) ** 2)

def step(captured, x, y):
    return md.optim.backward(loss, captured, x, y)[1:]

def placed(mesh, tree, spec):
    return jax.tree.map(
        lambda a: jax.device_put(a, NamedSharding(mesh, spec)) if eqx.is_array(a) else a, tree
    )

def part(x, y):
    gradients, grams = step(captured, x, y)
    return jax.lax.pmean(gradients, "data"), jax.lax.psum(grams, "data")

captured = md.optim.capture(model, x)
found = [eqx.filter_jit(step)(captured, x, y)]
for kind in (AxisType.Auto, AxisType.Explicit):
    mesh = jax.make_mesh((2,), ("data",), axis_types=(kind,))
    with jax.set_mesh(mesh):
        own = placed(mesh, captured, P())
        found.append(eqx.filter_jit(step)(own, *placed(mesh, (x, y), P("data"))))
mapped = jax.shard_map(part, mesh=mesh, in_specs=P("data"), out_specs=P(), check_vma=False)
found.append(jax.jit(mapped)(*placed(mesh, (x, y), P("data"))))
assert jax.device_count() == 2
for one, *others in zip(*map(jax.tree.leaves, jax.device_get(found)), strict=True):
    assert all(np.allclose(other, one, atol=1e-6) for other in others)
print(len(found), len(jax.tree.leaves(found[0])))
"""
    environment = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["4", "8"]
