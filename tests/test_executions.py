"""Executions that solve: the delta rule, ridge regression and mesa, each against its definition."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.kernel_ridge import KernelRidge

from memdsl.run._allprefix import all_prefix_ridge
from memdsl.run._kernel_delta import kernel_delta
from memdsl.run._mesa import mesa_chunkwise, ridge_answer

from .golden._file import load
from .loops import (
    arrays,
    close,
    complex_step,
    delta,
    KERNELS,
    mesa,
    near,
    PAIRS,
    quick,
    ridge,
    sequence,
    spoiled,
    stacked,
    stored,
    value_and_gradients,
)


CHUNK = 4
LENGTHS = (0, 1, CHUNK - 1, CHUNK, CHUNK + 1)
VALUE = 2


def check(ours: Callable, theirs: Callable, d: dict, names: list[str], tolerance: float = 1e-9):
    """Values and gradients, where masked tokens and free slots hold NaN."""
    results, gradients = value_and_gradients(ours, names)(arrays(spoiled(d)))
    for one, two in zip(results, theirs(d), strict=True):
        close(one, two, tolerance / 10)
    for name in names:
        close(gradients[name], complex_step(theirs, d, name), tolerance)


def run_delta(kernel: str, d: dict, **options) -> Any:
    return kernel_delta(
        PAIRS[kernel](d["scale"]),
        d["keys"],
        d["values"],
        d["queries"],
        rate=d["rate"],
        log_decay=d["log_decay"],
        stored=stored(d),
        starts=d["starts"],
        mask=d["mask"],
        **{"chunk": CHUNK, **options},
    )


def delta_results(kernel: str, d: dict, **options) -> tuple:
    found = run_delta(kernel, d, **options)
    return found.outputs, found.coefficients, jnp.exp(found.log_weight)


def loop_delta(kernel: str, d: dict, **options) -> tuple:
    options["recalled"] = options.pop("recall", "decayed")
    out, written, left = delta(lambda k, q: KERNELS[kernel](d["scale"], k, q), d, **options)
    rest = [left.get(t, 0.0) for t in range(len(out))]
    return stacked(out, VALUE), stacked(written, VALUE), np.array(rest)


MIXED: dict[str, Any] = {"recall": "previous", "implicit": True, "read_before": True}


@pytest.mark.parametrize("options", ({}, MIXED), ids=("decayed", "previous"))
@pytest.mark.parametrize("length", LENGTHS)
def test_kernel_delta_is_its_definition(options: dict, length: int):
    d = sequence(length, seed=1)
    ours = quick(lambda d: delta_results("gauss", d, **options))(arrays(spoiled(d)))
    for one, two in zip(ours, loop_delta("gauss", d, **options), strict=True):
        close(one, two)


@pytest.mark.parametrize(
    ("kernel", "options"),
    [
        ("gauss", {}),
        ("exponential", {"implicit": True}),
        ("linear", {"recall": "previous"}),
        ("tanh", MIXED),
    ],
    ids=lambda x: x if isinstance(x, str) else "-".join(x),
)
def test_gradient_of_kernel_delta(kernel: str, options: dict):
    d = sequence(2 * CHUNK + 1, seed=2)
    d["starts"] = np.arange(2 * CHUNK + 1) == 6  # the stored atoms are felt for longer
    check(
        lambda d: delta_results(kernel, d, **options),
        lambda d: loop_delta(kernel, d, **options),
        d,
        ["keys", "values", "queries", "rate", "log_decay", "scale"],
    )


def test_gradient_to_stored_atoms():
    d = sequence(6, flags=False, seed=3)
    names = ["keys", "coefficients", "log_weight"]

    def into(run: Callable) -> Callable:
        return lambda free: run({**d, "stored": {**d["stored"], **free}})

    free = {name: d["stored"][name] for name in names}
    there = d["stored"]["there"]
    _, found = value_and_gradients(into(lambda d: run_delta("gauss", arrays(d)).outputs), names)(
        arrays(free)
    )
    finite = {**free, "log_weight": np.where(there, free["log_weight"], 0.0)}
    for name in names:
        close(
            found[name], complex_step(into(lambda d: loop_delta("gauss", d)[0]), finite, name), 1e-9
        )
        assert not np.any(found[name][~there])


def test_second_derivative_of_kernel_delta():
    d = sequence(6, seed=4)

    def loss(scale):
        return jnp.sum(jnp.sin(run_delta("gauss", {**arrays(spoiled(d)), "scale": scale}).outputs))

    def slope(scale: float) -> Any:
        at = {**d, "scale": np.asarray(scale)}
        return complex_step(lambda d: loop_delta("gauss", d)[0], at, "scale")

    step = 1e-5
    difference = (slope(0.7 + step) - slope(0.7 - step)) / (2 * step)
    close(quick(jax.grad(jax.grad(loss)))(jnp.asarray(0.7)), difference, 1e-7)


@pytest.mark.parametrize("first", (0, 1, CHUNK, 7))
def test_a_run_of_kernel_delta_can_be_cut(first: int):
    length = 9
    d = arrays(sequence(length, seed=5))
    run = quick(lambda d: run_delta("gauss", d, recall="previous"))
    whole = run(d)
    parts = [
        {n: a[piece] if n != "stored" and jnp.ndim(a) else a for n, a in d.items()}
        for piece in (slice(0, first), slice(first, length))
    ]
    one = run(parts[0])
    old = d["stored"]
    parts[1]["stored"] = {
        "keys": jnp.concatenate([old["keys"], parts[0]["keys"]]),
        "coefficients": jnp.concatenate([old["coefficients"], one.coefficients]),
        "log_weight": jnp.concatenate([one.stored_log_weight, one.log_weight]),
    }
    two = run(parts[1])
    close(jnp.concatenate([one.outputs, two.outputs]), whole.outputs)
    close(jnp.concatenate([one.coefficients, two.coefficients]), whole.coefficients)
    close(jnp.concatenate([two.stored_log_weight[3:], two.log_weight]), whole.log_weight)
    close(two.stored_log_weight[:3], whole.stored_log_weight)


def test_nothing_is_felt_from_before_a_start():
    clean = sequence(9, flags=False)
    clean["starts"] = np.arange(9) == 5
    sick = {n: np.copy(a) for n, a in clean.items() if n != "stored"}
    sick["values"][2], sick["keys"][0] = np.nan, np.inf
    sick["stored"] = clean["stored"]
    names = ["keys", "values", "queries", "rate", "log_decay", "scale"]
    run = value_and_gradients(lambda d: run_delta("gauss", d).outputs[5:], names)
    (ours, gradient), (same, same_gradient) = run(arrays(clean)), run(arrays(sick))
    assert all(not np.any(gradient[name][:5]) for name in names if name != "scale")
    close(same, ours)
    for name in names:
        close(same_gradient[name], gradient[name])
    everything = quick(lambda d: run_delta("gauss", d).outputs)(arrays(sick))
    np.testing.assert_array_equal(np.isnan(everything[:, 0]), np.arange(9) < 5)


def test_a_decay_of_zero_forgets():
    d = sequence(9, flags=False)
    d["log_decay"][[3, 7]] = -np.inf
    for recall in ("decayed", "previous"):
        ours, gradients = value_and_gradients(
            lambda d, r=recall: run_delta("gauss", d, recall=r).outputs, ["log_decay"]
        )(arrays(d))
        close(ours, loop_delta("gauss", d, recall=recall)[0])
        assert np.all(np.isfinite(gradients["log_decay"]))


@quick
def golden_delta(inputs: dict, cotangents: tuple, scale: jax.Array) -> tuple:
    """A golden delta rule, its initial matrix as atoms at the unit vectors."""

    def head(q, k, v, beta, decay, start):
        unit = jnp.eye(k.shape[1])
        found = kernel_delta(
            lambda k, q: k @ q.T,
            k,
            v,
            scale * q,
            rate=beta,
            log_decay=decay,
            stored=(unit, start, jnp.zeros(len(unit))),
            chunk=16,
        )
        state = jnp.exp(found.stored_log_weight)[:, None] * start
        state += (jnp.exp(found.log_weight)[:, None] * k).T @ found.coefficients
        return found.outputs, state

    def run(i: dict) -> tuple:
        heads = jax.vmap(head, in_axes=(1, 1, 1, 1, 1, 0), out_axes=(1, 0))
        return jax.vmap(heads)(*(i[n] for n in ("q", "k", "v", "beta", "g", "initial_state")))

    outputs, back = jax.vjp(run, inputs)
    return outputs, back(cotangents)[0]


def golden_mesa(solver: Any) -> Callable:
    def head(q, k, v, decay, beta, strength, gram, moment):
        out, (gram, moment) = mesa_chunkwise(
            q,
            k,
            v,
            strength=strength,
            rate=beta,
            log_decay=decay,
            initial=(gram, moment),
            chunk=16,
            solver=solver,
            steps=12,
        )
        return out, gram, moment

    def run(i: dict) -> tuple:
        heads = jax.vmap(head, in_axes=(1, 1, 1, 1, 1, 0, 0, 0), out_axes=(1, 0, 0))
        return jax.vmap(heads, in_axes=(0, 0, 0, 0, 0, None, 0, 0))(
            *(i[n] for n in ("q", "k", "v", "g", "beta", "lamb", "initial_kk", "initial_kv"))
        )

    @quick
    def both(inputs: dict, cotangents: tuple, scale: jax.Array) -> tuple:
        outputs, back = jax.vjp(run, inputs)
        return outputs, back(cotangents)[0]

    return both


@pytest.mark.parametrize(
    ("name", "run"),
    [
        ("delta_rule", golden_delta),
        ("gated_delta_rule", golden_delta),
        ("delta_rule_stress", golden_delta),
        ("gated_delta_rule_stress", golden_delta),
        ("mesa_net", golden_mesa("cholesky")),
        ("mesa_net", golden_mesa("cg")),
    ],
    ids=("delta", "gated", "delta_stress", "gated_stress", "mesa_cholesky", "mesa_cg"),
)
def test_golden(name: str, run: Callable):
    g = load(name)
    order = ("o", "state_kk", "state_kv") if name == "mesa_net" else ("o", "state")
    inputs = {name: jnp.asarray(array, jnp.float64) for name, array in g.inputs.items()}
    inputs.setdefault("g", jnp.zeros_like(inputs["beta"]))
    cotangents = tuple(jnp.asarray(g.cotangents[name], jnp.float64) for name in order)
    outputs, gradients = run(inputs, cotangents, jnp.asarray(g.constants.scale))
    for part, ours in zip(order, outputs, strict=True):
        close(ours, g.outputs[part], 1e-10)
    for part, true in g.gradients.items():
        near(gradients[part], true, 1e-9)


def run_ridge(kernel: str, d: dict, **options) -> Any:
    return all_prefix_ridge(
        PAIRS[kernel](d["scale"]),
        d["keys"],
        d["values"],
        d["queries"],
        strength=d["strength"],
        importance=d["importance"],
        log_decay=d["log_decay"],
        starts=d["starts"],
        mask=d["mask"],
        **options,
    )


def loop_ridge(kernel: str, d: dict, **options) -> np.ndarray:
    out = ridge(lambda k, q: KERNELS[kernel](d["scale"], k, q), d, **options)
    return stacked(out, VALUE)


@pytest.mark.parametrize("length", (0, 1, 2))
def test_all_prefix_ridge_is_its_definition(length: int):
    d = sequence(length)
    ours = quick(lambda d: run_ridge("gauss", d))(arrays(spoiled(d)))
    close(ours, loop_ridge("gauss", d), 1e-10)


@pytest.mark.parametrize(
    ("kernel", "options"),
    [("gauss", {}), ("gauss", {"read_before": True}), ("linear", {})],
    ids=("gauss", "before", "linear"),
)
def test_gradient_of_all_prefix_ridge(kernel: str, options: dict):
    d = sequence(9)
    d["importance"][3] = 0.0
    names = ["keys", "values", "queries", "strength", "log_decay", "scale"]
    if kernel == "linear":
        d["importance"][3] = 0.5
        names.append("importance")
    check(
        lambda d: (run_ridge(kernel, d, **options),),
        lambda d: (loop_ridge(kernel, d, **options),),
        d,
        names,
    )


def test_all_prefix_ridge_is_kernel_ridge_of_scikit_learn():
    d = sequence(12, flags=False)
    stream = (jnp.asarray(d[name]) for name in ("keys", "values", "queries"))
    ours = all_prefix_ridge(
        PAIRS["gauss"](0.7), *stream, strength=0.1, importance=jnp.asarray(d["importance"])
    )
    for t in range(12):
        model = KernelRidge(alpha=0.1, kernel="rbf", gamma=0.7)
        among = slice(0, t + 1)
        model.fit(d["keys"][among], d["values"][among], sample_weight=d["importance"][among])
        close(ours[t], model.predict(d["queries"][t : t + 1])[0], 1e-8)


def test_a_ridge_that_is_forgotten_altogether_is_refused():
    d = arrays(sequence(4, flags=False))
    d["log_decay"] = jnp.full(4, -300.0)
    with pytest.raises(Exception, match="smaller than the smallest number"):
        jax.block_until_ready(run_ridge("gauss", d))


def mesa_sequence(length: int) -> dict:
    d = sequence(length, stored=False, seed=6)
    rng = np.random.default_rng(length)
    key = d["keys"].shape[1]
    half = rng.normal(size=(key, key))
    d.update(gram=half @ half.T, moment=rng.normal(size=(key, VALUE)))
    return d | {"strength": rng.uniform(0.3, 1, key)}


def run_mesa(d: dict, **options) -> tuple:
    out, (gram, moment) = mesa_chunkwise(
        d["queries"],
        d["keys"],
        d["values"],
        strength=d["strength"],
        rate=d["rate"],
        log_decay=d["log_decay"],
        initial=(d["gram"], d["moment"]),
        starts=d["starts"],
        mask=d["mask"],
        **{"chunk": CHUNK, **options},
    )
    return out, gram, moment


def loop_mesa(d: dict, **options) -> tuple:
    rows, gram, moment = mesa(d, **options)
    return stacked(rows, VALUE), gram, moment


@pytest.mark.parametrize("length", LENGTHS)
def test_mesa_is_its_definition(length: int):
    d = mesa_sequence(length)
    for one, two in zip(quick(run_mesa)(arrays(spoiled(d))), loop_mesa(d), strict=True):
        close(one, two, 1e-11)


@pytest.mark.parametrize(
    ("how", "what"),
    [
        ({"solver": "cholesky"}, {}),
        ({"solver": "cg", "steps": 6}, {"read_before": True}),
        ({"solver": "cg", "steps": 99, "rtol": 1e-13}, {}),
    ],
    ids=("cholesky", "cg", "cg_to_a_tolerance"),
)
def test_gradient_of_mesa(how: dict, what: dict):
    check(
        lambda d: run_mesa(d, **how, **what),
        lambda d: loop_mesa(d, **what),
        mesa_sequence(2 * CHUNK + 1),
        ["keys", "values", "queries", "rate", "log_decay", "strength", "gram", "moment"],
    )


@pytest.mark.parametrize("solver", ("cholesky", "cg"))
def test_one_answer_of_mesa(solver: Any):
    d = arrays(mesa_sequence(5))
    d["mask"] = d["mask"].at[-1].set(True)
    out, gram, moment = quick(run_mesa)(d)
    answer = ridge_answer(gram, moment, d["strength"], d["queries"][-1], solver=solver)
    close(answer, out[-1], 1e-11)


def test_too_few_steps_are_no_error_and_have_a_gradient():
    d = arrays(mesa_sequence(5))
    options = {"solver": "cg", "steps": 1, "rtol": 1e-12, "atol": 1e-12}
    rough, found = value_and_gradients(lambda d: run_mesa(d, **options), ["keys", "strength"])(d)
    assert all(np.all(np.isfinite(found[name])) for name in found)
    assert np.max(np.abs(rough[0] - quick(run_mesa)(d)[0])) > 1e-3


def test_conjugate_gradients_with_a_small_ridge_in_single_precision():
    """Where what a query is not like has a ridge of 1e-4 to itself, nothing may become NaN."""
    rng = np.random.default_rng(0)
    keys, queries, values = (rng.normal(size=(24, size)) for size in (16, 16, 2))
    keys /= np.linalg.norm(keys, axis=1, keepdims=True)

    def run(dtype, **options) -> Any:
        stream = (jnp.asarray(a, dtype) for a in (queries, keys, values))
        rate = jnp.ones(24, dtype)
        return mesa_chunkwise(*stream, strength=1e-4, rate=rate, chunk=8, **options)[0]

    exact, ours = run(jnp.float64), run(jnp.float32, solver="cg", steps=40)
    assert ours.dtype == jnp.float32
    near(ours, exact, 1e-3)


def test_single_precision():
    d = arrays(sequence(20, flags=False, seed=8))
    d["log_decay"] *= 0.01

    def narrow(dtype: Any) -> dict:
        return jax.tree.map(lambda a: a.astype(dtype) if a.dtype == jnp.float64 else a, d)

    run = quick(lambda d: (run_delta("gauss", d, chunk=16).outputs, run_ridge("gauss", d)))
    for one, two in zip(run(d), run(narrow(jnp.float32)), strict=True):
        assert two.dtype == jnp.float32
        near(two, one, 1e-4)
    half = {**narrow(jnp.bfloat16), "scale": jnp.asarray(0.7, jnp.float32)}
    assert all(array.dtype == jnp.float32 for array in jax.eval_shape(run, half))
