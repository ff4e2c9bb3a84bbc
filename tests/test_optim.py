"""Dual optimisers as they are used: on a plain network, in chains, in single precision.

That each is the memory it says it is are rows F1 to F17 of `tests/properties/_optimisers.py`.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax

import memdsl as md
from memdsl.optim._cholesky import by_factor, factor
from tests.properties._growth import build, draw, half_square, worst


KEY = jax.random.key(0)
MESA = md.Memory(md.Dot(), md.Ridge(0.3), md.Decay(0.9))
BEST: dict[str, Any] = {"ridge": "relative", "average": True}
PLAIN: Any = md.optim.dual(MESA, 0.2)
CENTRED: Any = md.optim.dual(MESA, 0.2, ridge="centred")
X, Y = draw(1, 8, 4), draw(2, 8, 2)
LAYER = eqx.nn.Linear(4, 2, key=KEY)
FREE = eqx.nn.Linear(4, 2, use_bias=False, key=KEY)

BACKWARD: Any = eqx.filter_jit(md.optim.backward)
INIT: Any = eqx.filter_jit(lambda optimiser, parameters: optimiser.init(parameters))
UPDATE: Any = eqx.filter_jit(
    lambda optimiser, gradients, state, parameters, grams: optimiser.update(
        gradients, state, parameters, grams=grams
    )
)


def begin(optimiser: Any, model: Any, x: Any = X, **how: Any) -> tuple[Any, Any]:
    captured = md.optim.capture(model, x, **how)
    return captured, INIT(optimiser, md.grow.parameters(captured))


def step(optimiser: Any, captured: Any, state: Any, x: Any = X, y: Any = Y) -> tuple[Any, Any]:
    """One step of training: `(captured, state)`."""
    _, gradients, grams = BACKWARD(half_square, captured, x, y)
    updates, state = UPDATE(optimiser, gradients, state, md.grow.parameters(captured), grams)
    return eqx.apply_updates(captured, updates), state


def train(optimiser: Any, model: Any, steps: int = 3, x: Any = X, y: Any = Y) -> Any:
    captured, state = begin(optimiser, model, x)
    for _ in range(steps):
        captured, state = step(optimiser, captured, state, x, y)
    return captured.model, state


def single(tree: Any) -> Any:
    return jax.tree.map(lambda a: a.astype(jnp.float32) if eqx.is_inexact_array(a) else a, tree)


# ---- on a network


def test_one_trace_for_all_steps_and_for_other_numbers():
    """A knob and a rate are arrays: other values compile nothing anew. A scan is the same as a loop."""
    memory = md.Memory(md.Dot(), md.Ridge(md.Knob(0.3)), md.Decay(md.Knob(0.9)))
    start = begin(md.optim.dual(memory, 0.1, **BEST), FREE)
    arrays, static = eqx.partition(start, eqx.is_array)
    traces = []

    @jax.jit
    def body(arrays, rate):
        traces.append(1)
        after = step(md.optim.dual(memory, rate, **BEST), *eqx.combine(arrays, static))
        return eqx.filter(after, eqx.is_array), None

    one, _ = body(arrays, jnp.asarray(0.1))
    two, _ = body(one, jnp.asarray(0.2))
    captured, state = eqx.combine(one, static)
    knobs = {name: (jnp.asarray(0.5, jnp.float32),) for name in state.knobs}
    assert set(knobs) == {"write.strength", "gate.decay"}
    other, _ = body(eqx.filter((captured, state._replace(knobs=knobs)), eqx.is_array), 0.2)
    assert len(traces) == 1
    assert worst(other[0].model.weight, two[0].model.weight) > 1e-4
    looped, _ = lax.scan(body, arrays, jnp.array([0.1, 0.2]))
    assert worst(looped[0].model.weight, two[0].model.weight) < 1e-14


def test_numbers_on_a_schedule_follow_the_steps():
    """Outside of the memory and in it: the rate of a Hebbian write is a step too."""
    rates = {"init_value": 0.4, "end_value": 0.1, "transition_steps": 3}
    inside = md.Memory(md.Dot(), md.Hebb(md.Schedule("linear_schedule", **rates)))
    outside = md.Memory(md.Dot(), md.Hebb(0.5))
    for optimiser in (
        md.optim.dual(inside, 0.5),
        md.optim.dual(outside, optax.linear_schedule(**rates)),
    ):
        weight, state = jnp.ones(2), optimiser.init(jnp.ones(2))
        for rate in (0.4, 0.3, 0.2, 0.1, 0.1):
            updates, state = optimiser.update(jnp.ones(2), state, weight)
            assert worst(updates, -0.5 * rate) < 1e-7


def test_what_is_no_linear_layer_is_trained_by_the_base():
    model = build(md.Norm() >> md.Dense(2), 4)
    optimiser = md.optim.dual(MESA, 0.2, base=optax.adam(0.1))
    with jax.numpy_dtype_promotion("standard"):  # Adam counts in whole numbers
        after, state = train(optimiser, model, steps=1)
    assert worst(jnp.abs(after.layers[0].gain - 1), 0.1) < 1e-6  # Adam's first step
    assert [leaf.shape for leaf in jax.tree.leaves(state.base[0].mu)] == [(4,)]
    assert set(state.kept) == {".model.layers[1].weight"}
    with pytest.raises(md.SpecError, match=r"layers\[0\].gain is no linear layer") as raised:
        PLAIN.init(md.optim.capture(model, X))
    assert raised.value.instead == "base=optax.adamw(1e-3), say."


def test_hebb_trains_every_tensor_of_any_tree():
    weights = {"a": draw(1, 3), "b": (draw(2, 2, 2, 2), None)}
    optimiser = md.optim.dual(md.Memory(md.Dot(), md.Hebb(0.5), md.Decay(0.75)), 0.2)
    updates, state = optimiser.update(weights, optimiser.init(weights), weights)
    for update, weight in zip(jax.tree.leaves(updates), jax.tree.leaves(weights), strict=True):
        assert worst(update, -0.35 * weight) < 1e-15
    assert state.steps == 1 and worst(state.left, 0.75) == 0


def test_an_embedding_is_divided_by_how_often_a_row_is_seen():
    table, tokens = eqx.nn.Embedding(4, 3, key=KEY), jnp.array([0, 0, 0, 2])
    optimiser = md.optim.dual(md.Memory(md.Dot(), md.Ridge(0.25)), 0.4)
    captured, state = begin(optimiser, table, tokens)
    assert state.kept[".model.weight"]["gram"].shape == (4,)
    _, gradients, grams = BACKWARD(lambda y: jnp.sum(y), captured, tokens)
    updates, _ = optimiser.update(gradients, state, captured, grams=grams)
    shares = jnp.array([0.75, 0.0, 0.25, 0.0])
    wanted = -0.4 * 4 * shares / (shares + 0.25)
    assert worst(updates.model.weight, wanted[:, None] * jnp.ones((1, 3))) < 1e-14


@pytest.mark.parametrize("recursive", [False, True])
def test_layers_of_a_stack_are_trained_as_each_alone(recursive):
    weights = draw(7, 3, 2, 4)
    options: dict[str, Any] = (
        {"ridge": "fading", "recursive": True} if recursive else {"refresh": 2}
    )
    optimiser = md.optim.dual(MESA, 0.2, **options)

    def call(model: Any, x: Any) -> Any:
        return lax.scan(lambda _, own: (0.0, jnp.matmul(x, own.T)), 0.0, model["w"])[1]

    def trained(weights: Any) -> Any:
        captured, state = begin(optimiser, {"w": weights}, call=call, rows=recursive)
        slope = md.optim.with_grams(lambda model, x: jnp.sum(call(model, x) ** 2))
        function = eqx.filter_jit(eqx.filter_grad(slope, has_aux=True))
        for _ in range(2):
            gradients, grams = function(captured, X)
            updates, state = UPDATE(optimiser, gradients, state, captured, grams)
            captured = eqx.apply_updates(captured, updates)
        return captured.model["w"]

    together = trained(weights)
    assert worst(together[2:], trained(weights[2:])) < 1e-12
    assert worst(together, weights) > 1e-2


def test_a_convolution_is_trained_as_the_layer_of_its_patches():
    conv = eqx.nn.Conv2d(4, 2, 2, groups=2, key=KEY)
    images = draw(3, 3, 4, 3, 3)
    patches = jnp.stack(
        [images[:, :, i : i + 2, j : j + 2] for i in range(2) for j in range(2)], axis=1
    ).reshape(12, 2, 8)
    captured = md.optim.capture(conv, images)
    state = INIT(PLAIN, md.grow.parameters(captured))
    loss = lambda y: 0.5 * jnp.sum(y**2)  # noqa: E731
    _, gradients, grams = BACKWARD(loss, captured, images)
    updates, _ = UPDATE(PLAIN, gradients, state, captured, grams)
    for group in range(2):
        x = np.c_[patches[:, group], np.ones(12)]
        joined = np.append(conv.weight[group].ravel(), conv.bias[group])
        matrix = x.T @ x / 12 + 0.3 * np.eye(9)
        wanted = -(0.2 * joined @ x.T @ x + 0.1 * 0.3 * joined) @ np.linalg.inv(matrix)
        assert worst(updates.model.weight[group].ravel(), wanted[:-1]) < 1e-12
        assert worst(updates.model.bias[group, 0, 0], wanted[-1]) < 1e-12


def test_a_base_under_a_memory_is_trained_while_the_memory_grows():
    atoms = md.Memory(md.RBF(), md.Hebb(0.1), capacity=md.Budget(40))
    model = build(md.Grown(md.Dense(2), atoms), 4)
    captured, state = begin(PLAIN, model)

    @eqx.filter_jit
    def both(captured, state):
        loss, gradients, pairs = md.grow.backward(half_square, captured, X, Y)
        _, grams = md.optim.with_grams(lambda model, x: jax.vmap(model)(x))(captured, X)
        parameters = md.grow.parameters(captured)
        updates, state = PLAIN.update(gradients, state, parameters, grams=grams)
        return md.grow.write(eqx.apply_updates(captured, updates), pairs), state, loss

    losses = []
    for _ in range(4):
        captured, state, loss = both(captured, state)
        losses.append(float(loss))
    assert captured.model.state.counts.admitted == 32
    assert losses == sorted(losses, reverse=True) and losses[-1] < 0.7 * losses[0]


# ---- in chains


def test_it_composes_with_the_rest_of_optax():
    """Clipped, then divided, with momentum after, on a schedule, and decayed apart."""

    def factor(step):
        return 0.5 ** (step + 1)

    chain = optax.chain(
        optax.clip_by_global_norm(0.05),
        CENTRED,
        optax.trace(0.5),
        optax.scale_by_schedule(factor),
        optax.add_decayed_weights(-0.01, mask=lambda p: jax.tree.map(lambda x: x.ndim > 1, p)),
    )
    with jax.numpy_dtype_promotion("standard"):
        captured, state = begin(chain, LAYER)
        assert isinstance(state[1], md.optim.DualState)
        inner, momentum = INIT(CENTRED, md.grow.parameters(captured)), None
        for turn in range(3):
            parameters = md.grow.parameters(captured)
            _, gradients, grams = BACKWARD(half_square, captured, X, Y)
            norm = optax.tree.norm(gradients)
            assert norm > 0.05
            clipped = jax.tree.map(lambda g, norm=norm: g * 0.05 / norm, gradients)
            moved, inner = UPDATE(CENTRED, clipped, inner, parameters, grams)
            last = jax.tree.map(jnp.zeros_like, moved) if momentum is None else momentum
            momentum = jax.tree.map(lambda m, u: 0.5 * m + u, last, moved)
            updates, state = UPDATE(chain, gradients, state, parameters, grams)
            for update, m, w in zip(
                *map(jax.tree.leaves, (updates, momentum, parameters)), strict=True
            ):
                assert worst(update, factor(turn) * m - 0.01 * w * (w.ndim > 1)) < 1e-12
            captured = eqx.apply_updates(captured, updates)


def test_what_is_masked_is_left_alone():
    """Without its bias a layer is trained as if its inputs did not end with a 1."""
    optimiser = optax.masked(PLAIN, lambda p: jax.tree.map(lambda x: x.ndim > 1, p))
    captured, state = begin(optimiser, LAYER)
    _, gradients, grams = BACKWARD(half_square, captured, X, Y)
    updates, _ = UPDATE(optimiser, gradients, state, captured, grams)
    assert (updates.model.bias == gradients.model.bias).all()  # optax.masked hands it through
    matrix = X.T @ X / 8 + 0.3 * jnp.eye(4)
    slope = 0.2 * gradients.model.weight + 0.1 * 0.3 * LAYER.weight
    assert worst(updates.model.weight, -slope @ jnp.linalg.inv(matrix)) < 1e-12


def test_different_parts_have_different_optimisers():
    labels = {"w": "mesa", "b": "mesa", "other": "plain"}
    model = {"w": draw(1, 4, 2), "b": draw(2, 2), "other": draw(3, 2, 2)}

    def call(model: Any, x: Any) -> Any:
        return (x @ model["w"] + jnp.broadcast_to(model["b"], (8, 2))) @ model["other"]

    captured = md.optim.capture(model, X, call=call)
    both = optax.partition(
        {"mesa": PLAIN, "plain": optax.sgd(0.1)},
        lambda _: eqx.tree_at(lambda c: c.model, captured, labels),  # it is callable, as models are
    )

    def loss(model: Any) -> Any:
        return half_square(call(model, X), Y)

    function = eqx.filter_jit(eqx.filter_grad(md.optim.with_grams(loss), has_aux=True))
    gradients, grams = function(captured)
    updates, _ = UPDATE(both, gradients, INIT(both, captured), captured, grams)
    assert worst(updates.model["other"], -0.1 * gradients.model["other"]) < 1e-15
    alone = eqx.tree_at(lambda c: c.model["other"], (captured, gradients)[0], None)
    slopes = eqx.tree_at(lambda c: c.model["other"], gradients, None)
    wanted, _ = UPDATE(PLAIN, slopes, INIT(PLAIN, alone), alone, grams)
    assert worst(updates.model["w"], wanted.model["w"]) < 1e-15


def test_rates_can_be_injected_and_steps_skipped():
    injected = optax.inject_hyperparams(md.optim.dual, static_args="refresh")(
        memory=MESA, rate=0.2, ridge="centred"
    )
    with jax.numpy_dtype_promotion("standard"):
        captured, state = begin(injected, single(FREE), single(X))
        _, gradients, grams = BACKWARD(half_square, captured, single(X), single(Y))
        once, _ = UPDATE(injected, gradients, state, captured, grams)
        state.hyperparams["rate"] = jnp.asarray(0.4, jnp.float32)
        twice, _ = UPDATE(injected, gradients, state, captured, grams)
        assert worst(2 * once.model.weight, twice.model.weight) < 1e-6
        safe = optax.apply_if_finite(PLAIN, 5)
        captured, state = begin(safe, FREE)
        _, gradients, grams = BACKWARD(half_square, captured, X * jnp.nan, Y)
        updates, after = UPDATE(safe, gradients, state, captured, grams)
    assert (updates.model.weight == 0).all()
    kept = zip(jax.tree.leaves(state.inner_state), jax.tree.leaves(after.inner_state), strict=True)
    assert all((a == b).all() for a, b in kept)


def test_gradients_of_several_batches_are_one_step():
    """Gram matrices add up with the gradients; optax.MultiSteps is given those that were added up."""
    wanted, _ = train(PLAIN, LAYER, steps=1)
    several = optax.MultiSteps(PLAIN, 2)
    with jax.numpy_dtype_promotion("standard"):
        captured, state = begin(several, LAYER)
        total = None
        for rows in (slice(0, 4), slice(4, 8)):
            _, gradients, grams = BACKWARD(half_square, captured, X[rows], Y[rows])
            total = grams if total is None else jax.tree.map(jnp.add, total, grams)
            parameters = md.grow.parameters(captured)
            updates, state = UPDATE(several, gradients, state, parameters, total)
            captured = eqx.apply_updates(captured, updates)
    assert worst(captured.model.weight, wanted.weight) < 1e-6


def test_a_state_is_saved_and_training_goes_on_bit_for_bit(tmp_path):
    memory = md.Memory(md.Dot(), md.Ridge(md.Knob(0.3)), md.Decay(0.9))
    optimiser = md.optim.dual(memory, 0.2, base=optax.adam(0.1), refresh=2)
    model = build(md.Norm() >> md.Dense(2), 4)
    with jax.numpy_dtype_promotion("standard"):
        captured, state = step(optimiser, *begin(optimiser, model))
    eqx.tree_serialise_leaves(tmp_path / "state.eqx", (captured, state))
    loaded = eqx.tree_deserialise_leaves(tmp_path / "state.eqx", begin(optimiser, model))
    with jax.numpy_dtype_promotion("standard"):
        both = [jax.tree.leaves(step(optimiser, *run)) for run in ((captured, state), loaded)]
    for a, b in zip(*both, strict=True):
        assert (np.asarray(a) == np.asarray(b)).all()


# ---- numbers


OPTIMISERS: dict[str, Any] = {
    "implicit": md.optim.dual(
        md.Memory(md.Dot(), md.Delta(0.5, implicit=True)), 0.2, values="target"
    ),
    "relative": md.optim.dual(MESA, 0.2, **BEST),
    "recursive": md.optim.dual(MESA, 0.2, ridge="fading", recursive=True),
    "iterated": md.optim.dual(
        md.Memory(md.Dot(), md.Ridge(0.3, solver=md.ConjugateGradient(12)), md.Decay(0.9)),
        0.2,
        ridge="centred",
    ),
}


@pytest.mark.parametrize("name", OPTIMISERS)
def test_the_scale_of_a_gradient_is_that_of_the_step(name):
    """In single precision, from 1e-12 to 1e6; no gradient is no step, and no input moves nothing."""
    optimiser, layer, x = OPTIMISERS[name], single(FREE), single(X)
    captured, state = begin(optimiser, layer, x, rows=name == "recursive")
    _, gradients, grams = BACKWARD(half_square, captured, x, single(Y))
    plain, _ = UPDATE(optimiser, gradients, state, captured, grams)
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves((plain, state.kept)))
    for scale in (0.0, 1e-12, 1e6):
        scaled = jax.tree.map(lambda g, s=jnp.float32(scale): s * g, gradients)
        update, _ = UPDATE(optimiser, scaled, state, captured, grams)
        wanted = scale * plain.model.weight
        assert worst(update.model.weight, wanted) <= 2e-5 * float(jnp.max(jnp.abs(wanted)))
    nothing = jax.tree.map(jnp.zeros_like, (gradients, grams))
    update, after = UPDATE(optimiser, nothing[0], state, captured, nothing[1])
    assert (update.model.weight == 0).all()
    assert all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(after))


def test_the_units_of_inputs_change_nothing_where_a_ridge_is_relative():
    optimiser, found = OPTIMISERS["relative"], []
    for unit in (1e-6, 1.0, 1e6):
        x = jnp.float32(unit) * single(X)
        captured, state = begin(optimiser, single(FREE), x)
        _, gradients, grams = BACKWARD(_total, captured, x, Y)
        updates, _ = UPDATE(optimiser, gradients, state, captured, grams)
        found.append(x @ updates.model.weight.T)
    assert worst(found[0], found[1]) < 1e-4 and worst(found[2], found[1]) < 1e-4


def _total(y: Any, _: Any) -> Any:
    return jnp.sum(y)


def test_a_factor_is_made_anew_after_so_many_steps():
    optimiser = md.optim.dual(MESA, 0.2, ridge="centred", refresh=3)
    captured, state = begin(optimiser, FREE)
    other = INIT(CENTRED, captured)
    for turn in range(4):
        old = state.kept[".model.weight"]["factor"]
        _, gradients, grams = BACKWARD(half_square, captured, draw(turn, 8, 4), Y)
        updates, state = UPDATE(optimiser, gradients, state, captured, grams)
        wanted, other = UPDATE(CENTRED, gradients, other, captured, grams)
        new, apart = (
            state.kept[".model.weight"]["factor"],
            worst(updates.model.weight, wanted.model.weight),
        )
        if turn % 3 == 0:
            gram = state.kept[".model.weight"]["gram"] + 0.3 * jnp.eye(4)
            assert worst(new @ new.T, gram) < 1e-12 and apart < 1e-14
        else:
            assert (new == old).all() and apart > 1e-4


@pytest.mark.parametrize("recursive", [False, True])
def test_a_fading_ridge_stays_finite_in_single_precision(recursive):
    """A direction that is never seen has nothing but the ridge, of which soon nothing is left."""
    memory = md.Memory(md.Dot(), md.Ridge(0.1), md.Decay(0.9))
    optimiser = md.optim.dual(memory, 0.1, ridge="fading", recursive=recursive)
    layer, x = single(FREE), single(X)
    x = x.at[:, 3].set(0.0)
    captured, state = begin(optimiser, layer, x, rows=recursive)
    arrays, static = eqx.partition((captured, state), eqx.is_array)

    def body(arrays, _):
        after = step(optimiser, *eqx.combine(arrays, static), x, single(Y))
        return eqx.filter(after, eqx.is_array), None

    arrays, _ = jax.jit(lambda arrays: lax.scan(body, arrays, None, 1000))(arrays)
    after, state = eqx.combine(arrays, static)
    assert all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves((after, state)))
    assert worst(after.model.weight[:, 3], layer.weight[:, 3]) == 0
    exact = jnp.linalg.lstsq(X.at[:, 3].set(0.0), Y)[0].T
    assert worst(after.model.weight[:, :3], single(exact[:, :3])) < 1e-3


def test_half_precision_is_trained_in_single():
    model, x, y = jax.tree.map(lambda a: a.astype(jnp.bfloat16), (LAYER, X, Y))
    captured, state = begin(PLAIN, model, x)
    _, gradients, grams = BACKWARD(half_square, captured, x, y)
    updates, state = UPDATE(PLAIN, gradients, state, captured, grams)
    assert {leaf.dtype for leaf in jax.tree.leaves(updates)} == {jnp.dtype(jnp.bfloat16)}
    assert {leaf.dtype for leaf in jax.tree.leaves(state.kept)} == {jnp.dtype(jnp.float32)}


# ---- what is said


def test_explain_counts_what_is_kept():
    captured = md.optim.capture(eqx.nn.MLP(4, 2, 5, 1, key=KEY, dtype=jnp.float32), single(X))
    several: tuple[dict[str, Any], ...] = (BEST, {"refresh": 2})
    for options in several:
        page = md.optim.explain(MESA, captured, **options)
        state = jax.eval_shape(
            md.optim.dual(MESA, 0.1, **options).init, eqx.filter(captured, eqx.is_array)
        )
        held = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state.kept))
        assert f"kept       {held} bytes beside 148 bytes of parameters" in page
        assert "layers[0].weight    5 × 5" in page
    few = md.optim.capture(captured.model, single(X), largest=4)
    assert "base       12 numbers: layers[1].weight, layers[1].bias" in md.optim.explain(MESA, few)


EQUATIONS: dict[str, tuple[Any, dict[str, Any], str]] = {
    "sgd": (md.Hebb(), {}, "W ← γ W − β η G"),
    "dgd": (md.Delta(), {}, "W ← γ W − β (γ W S̄ + η G)"),
    "titans": (md.Delta(recall="previous"), {}, "W ← γ W − β (W S̄ + η G)"),
    "muon": (
        md.Descent(md.Inner(), momentum=0.9, orthogonalise=True, gain=0.1),
        {},
        "M ← μ M − β η G;   W ← γ W + 0.1 orthogonal M",
    ),
    "implicit": (md.Delta(implicit=True), {}, "W ← γ W − (γ W S̄ + η G) (S̄ + I/β)⁻¹"),
    "constant": (
        md.Ridge(),
        {},
        "R ← γ R + S̄;   W ← W − (η G + (1 − γ) λ W) H⁻¹,   H = R + λ I",
    ),
    "dual averaging": (
        md.Ridge(),
        {"values": "step", "ridge": "fading"},
        "R ← γ R + S̄;   B ← γ B − η G;   W ← B H⁻¹,   H = R + λ γᵗ I",
    ),
    "mean": (
        md.Ridge(),
        {"average": True},
        "R ← γ R + S̄;   W ← W − (η G + λ W) H⁻¹,   H = R + N λ I",
    ),
}


@pytest.mark.parametrize("name", EQUATIONS)
def test_explain_says_the_equations(name):
    write, options, equation = EQUATIONS[name]
    captured = md.optim.capture(LAYER, X)
    page = md.optim.explain(md.Memory(md.Dot(), write, md.Decay(0.9)), captured, **options)
    assert page.splitlines()[1] == f"  meaning    {equation}"


def test_what_an_update_is_not_given_is_said():
    with pytest.raises(md.SpecError, match="trains a captured model, and there is none"):
        PLAIN.init(LAYER)
    captured, state = begin(PLAIN, LAYER)
    _, gradients, grams = BACKWARD(half_square, captured, X, Y)
    with pytest.raises(md.SpecError, match="was given no Gram matrices"):
        PLAIN.update(gradients, state, captured)
    with pytest.raises(md.SpecError, match="must be given the parameters"):
        PLAIN.update(gradients, state, grams=grams)
    other = eqx.tree_at(
        lambda g: g.model.bias, grams, grams.model.weight, is_leaf=lambda x: x is None
    )
    other = eqx.tree_at(lambda g: g.model.weight, other, None, is_leaf=_is_gram)
    with pytest.raises(md.SpecError, match=r"no Gram matrix of \.model\.weight") as raised:
        PLAIN.update(gradients, state, captured, grams=other)
    assert raised.value.why == "It was not used as it was when the model was captured."
    with pytest.raises(md.SpecError, match="by the rows of a batch") as raised:
        OPTIMISERS["recursive"].update(gradients, state, captured, grams=grams)
    assert raised.value.instead == "md.optim.capture(model, inputs, rows=True)."


def _is_gram(node: Any) -> bool:
    return isinstance(node, md.optim.Gram)


@pytest.mark.parametrize("size", [5, 128, 129, 300])
def test_what_is_solved_in_halves_is_solved(size):
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(2, 2 * size, size))
    matrix = 1e-9 * np.swapaxes(rows, 1, 2) @ rows  # of any scale
    right = rng.normal(size=(2, 3, size))
    lower = factor(jnp.asarray(matrix))
    np.testing.assert_allclose(lower, np.linalg.cholesky(matrix), atol=1e-14)
    solved = np.swapaxes(np.linalg.solve(matrix, np.swapaxes(right, 1, 2)), 1, 2)
    np.testing.assert_allclose(by_factor(jnp.asarray(right), lower), solved, rtol=1e-9)


def test_the_factor_of_nothing_is_that_of_ones():
    np.testing.assert_array_equal(factor(jnp.zeros((200, 200))), np.eye(200))
