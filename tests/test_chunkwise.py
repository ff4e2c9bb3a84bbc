"""The chunk form of the canonical recurrence: against the recurrence, against golden data, at its edges.

Every product of options is compiled on its own, so most of the grid is marked slow.
"""

import functools
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from memdsl.run._chunkwise import canonical_chunkwise
from memdsl.run._triangular import unit_lower_inverse


GOLDEN = Path(__file__).parent / "golden"
KEY, VALUE, CHUNK = 3, 2, 4
TIMES = (0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 3)
FLOATS = ("queries", "keys", "values", "initial", "log_decay", "erase", "remove")


def compiled(function: Callable) -> Callable:
    """Compiling is nearly all of the time here, so not much is asked of the compiler."""
    return jax.jit(function, compiler_options={"xla_backend_optimization_level": 0})


def call(arrays: dict[str, Any], **options: Any) -> tuple[Any, Any]:
    """`canonical_chunkwise` of arrays by name."""
    named = dict(arrays)
    first = [named.pop(name, None) for name in FLOATS[:4]]
    return canonical_chunkwise(*first, **named, **options)


@functools.cache
def with_gradients(**options: Any) -> Callable:
    """Answers, last state and the cotangent of every array of floats, compiled once for all of them."""

    def both(arrays: dict[str, Any], cotangents: tuple) -> Any:
        starts = {name: x for name, x in arrays.items() if name == "starts"}
        floats = {name: x for name, x in arrays.items() if name != "starts"}
        out, pull = jax.vjp(lambda floats: call(floats | starts, **options), floats)
        return *out, pull(cotangents)[0]

    return compiled(both)


class Run(NamedTuple):
    """The definition, token by token."""

    outputs: np.ndarray
    final: np.ndarray
    found: list[np.ndarray]  # the state that each token finds, after the clearing
    left: list[np.ndarray]  # and leaves


def recurrence(x: dict, read_before: bool = False) -> Run:
    state, outputs, found, left = x["initial"], [], [], []
    for t, (key, value) in enumerate(zip(x["keys"], x["values"], strict=True)):
        if "starts" in x and x["starts"][t]:
            state = np.zeros_like(state)
        found.append(state)
        decay = (
            np.exp(np.broadcast_to(x["log_decay"][t], key.shape))
            if "log_decay" in x
            else 1 + 0 * key
        )
        new = decay[:, None] * state + np.outer(key, value)
        if "erase" in x:
            new = new + np.outer(x["remove"][t], x["erase"][t] @ state)
        outputs.append(x["queries"][t] @ (state if read_before else new))
        left.append(new)
        state = new
    return Run(np.array(outputs).reshape(-1, x["values"].shape[1]), state, found, left)


def adjoint(x: dict, cotangents: tuple, read_before: bool = False) -> dict:
    """The gradient of the recurrence, token by token from the last."""
    run, (out, after) = recurrence(x, read_before), cotangents
    grads = {name: np.zeros_like(x[name]) for name in x if name != "starts"}
    for t, before in reversed(list(enumerate(run.found))):
        read = before if read_before else run.left[t]
        grads["queries"][t] = read @ out[t]
        asked = np.outer(x["queries"][t], out[t])
        after = after if read_before else after + asked
        grads["keys"][t], grads["values"][t] = after @ x["values"][t], x["keys"][t] @ after
        earlier = after
        if "log_decay" in x:
            decay = np.exp(np.broadcast_to(x["log_decay"][t], before.shape[:1]))
            faded = decay * np.sum(after * before, axis=1)
            grads["log_decay"][t] = faded if x["log_decay"].ndim == 2 else np.sum(faded)
            earlier = decay[:, None] * after
        if "erase" in x:
            grads["erase"][t] = before @ (x["remove"][t] @ after)
            grads["remove"][t] = after @ (x["erase"][t] @ before)
            earlier = earlier + np.outer(x["erase"][t], x["remove"][t] @ after)
        after = earlier + asked if read_before else earlier
        if "starts" in x and x["starts"][t]:
            after = np.zeros_like(after)
    return grads | {"initial": after}


class Case(NamedTuple):
    decay: str
    rank_one: str
    starts: bool
    read_before: bool
    time: int


GRID = [
    Case(*parts)
    for parts in itertools.product(
        ("none", "scalar", "channel"), ("none", "own", "keys"), (False, True), (False, True), TIMES
    )
]
# Eighteen rows in which every two options still meet.
PAIRED = (14, 28, 45, 48, 55, 59, 81, 85, 113, 114, 122, 142, 154, 161, 162, 175, 176, 207)
FEW = [GRID[index] for index in PAIRED]
MARKED = [case if case in FEW else pytest.param(case, marks=pytest.mark.slow) for case in GRID]


def draw(case: Case, seed: int = 0) -> tuple[dict, tuple]:
    rng = np.random.default_rng(seed)
    time = case.time
    x = {name: rng.normal(size=(time, KEY)) for name in ("queries", "keys")}
    x |= {"values": rng.normal(size=(time, VALUE)), "initial": rng.normal(size=(KEY, VALUE))}
    if case.decay != "none":
        shape = (time,) if case.decay == "scalar" else (time, KEY)
        x["log_decay"] = -np.exp(2 * rng.normal(size=shape))
    if case.rank_one != "none":
        x["erase"] = 0.7 * rng.normal(size=(time, KEY))
        x["remove"] = 0.7 * rng.normal(size=(time, KEY)) if case.rank_one == "own" else x["keys"]
    if case.starts:
        x["starts"] = rng.random(time) < 0.3
    return x, (rng.normal(size=(time, VALUE)), rng.normal(size=(KEY, VALUE)))


def assert_close(ours: Any, theirs: Any, tolerance: float, what: str = "") -> None:
    """Relative to the largest element."""
    assert ours.shape == theirs.shape, what
    if theirs.size:
        error = np.max(np.abs(np.asarray(ours, np.float64) - theirs)) / max(
            np.max(np.abs(theirs)), 1e-3
        )
        assert error <= tolerance, f"{what}: {error}"


@pytest.mark.parametrize("case", MARKED, ids=lambda case: "-".join(map(str, case)))
def test_value_state_and_gradients_are_those_of_the_recurrence(case: Case) -> None:
    x, cotangents = draw(case)
    expected, state = recurrence(x, case.read_before)[:2]
    gradients = adjoint(x, cotangents, case.read_before)
    given = dict(x)
    if case.rank_one == "keys":  # the same array twice is one argument
        del given["remove"]
        gradients["keys"] = gradients["keys"] + gradients.pop("remove")
    options = {"read_before": case.read_before, "chunk": CHUNK, "block": 2 * CHUNK}
    ours, last, ours_gradients = with_gradients(**options)(given, cotangents)
    assert_close(ours, expected, 1e-12, "outputs")
    assert_close(last, state, 1e-12, "state")
    assert ours_gradients.keys() == gradients.keys()
    for name, gradient in gradients.items():
        assert_close(ours_gradients[name], gradient, 1e-11, name)


def test_the_adjoint_written_here_is_the_derivative_of_the_recurrence_written_here() -> None:
    for case in GRID[TIMES.index(CHUNK + 1) :: len(TIMES)]:
        x, (out, state) = draw(case, seed=1)
        gradients = adjoint(x, (out, state), case.read_before)

        def loss(x: dict, case: Case = case, out: Any = out, state: Any = state) -> float:
            ours, last = recurrence(x, case.read_before)[:2]
            return float(np.sum(ours * out) + np.sum(last * state))

        rng = np.random.default_rng(2)
        for name, gradient in gradients.items():
            way = rng.normal(size=gradient.shape)
            slope = (
                loss({**x, name: x[name] + 1e-5 * way}) - loss({**x, name: x[name] - 1e-5 * way})
            ) / 2e-5
            np.testing.assert_allclose(np.sum(gradient * way), slope, rtol=1e-6, atol=1e-6)


def test_the_few_cases_pair_every_two_options() -> None:
    for first, second in itertools.combinations(range(len(Case._fields)), 2):
        pairs = {(case[first], case[second]) for case in GRID}
        assert pairs == {(case[first], case[second]) for case in FEW}


# Golden data: the arrays of the canonical recurrence from the inputs of a file, [batch, head] vmapped.


def simple(k: Any, v: Any, log_decay: Any = None) -> dict:
    return {"keys": k, "values": v, "log_decay": log_decay}


def delta(k: Any, v: Any, beta: Any, log_decay: Any = None) -> dict:
    """β k (v - k . decayed state)^T, with b = κ."""
    fade = (
        1
        if log_decay is None
        else jnp.exp(log_decay.reshape(*log_decay.shape, *[1] * (2 - log_decay.ndim)))
    )
    return simple(k, beta[:, None] * v, log_decay) | {"erase": -beta[:, None] * fade * k}


def delta_apart(k: Any, v: Any, beta: Any, log_decay: Any = None) -> dict:
    """The same with b apart from κ."""
    shared = delta(k, v, beta, log_decay)
    erase = shared["erase"] / beta[:, None]
    return shared | {
        "values": v,
        "keys": beta[:, None] * k,
        "erase": erase,
        "remove": beta[:, None] * k,
    }


OPERATORS: dict[str, Callable] = {
    "linear_attn": lambda x: simple(x["k"], x["v"]),
    "simple_gla": lambda x: simple(x["k"], x["v"], x["g"]),
    "gla": lambda x: simple(x["k"], x["v"], x["gk"]),
    "gla_stress": lambda x: simple(x["k"], x["v"], x["gk"]),
    "delta_rule": lambda x: delta(x["k"], x["v"], x["beta"]),
    "delta_rule_stress": lambda x: delta_apart(x["k"], x["v"], x["beta"]),
    "gated_delta_rule": lambda x: delta_apart(x["k"], x["v"], x["beta"], x["g"]),
    "gated_delta_rule_stress": lambda x: delta(x["k"], x["v"], x["beta"], x["g"]),
    "kda": lambda x: delta_apart(x["k"], x["v"], x["beta"], x["g"]),
    "kda_stress": lambda x: delta(x["k"], x["v"], x["beta"], x["g"]),
    "dplr": lambda x: simple(x["k"], x["v"], x["gk"]) | {"erase": x["a"], "remove": x["b"]},
}
STRESS = [name for name in OPERATORS if name.endswith("stress")]


def golden_run(name: str, dtype: Any, chunk: int) -> tuple[dict, dict, Any]:
    """The file, and what it stores computed here: outputs, state, gradients by input."""
    with np.load(GOLDEN / f"{name}.npz") as file:
        stored = {key: file[key] for key in file.files}
    kinds = ("out_", "cot_", "grad_", "attr_")
    inputs = {n: jnp.asarray(x, dtype) for n, x in stored.items() if not n.startswith(kinds)}
    scale = stored["attr_scale"].item()
    initial = inputs["initial_state"].astype(jnp.float32 if dtype == jnp.bfloat16 else dtype)
    inputs["initial_state"] = initial
    cotangents = tuple(jnp.asarray(stored[n], initial.dtype) for n in ("cot_o", "cot_state"))

    def one(x: dict) -> Any:
        arrays = OPERATORS[name](x) | {"queries": scale * x["q"], "initial": x["initial_state"]}
        return call(
            {n: a for n, a in arrays.items() if a is not None}, chunk=chunk, block=4 * chunk
        )

    axes = {n: 0 if n == "initial_state" else 1 for n in inputs}
    heads = jax.vmap(one, in_axes=(axes,), out_axes=(1, 0))

    def both(inputs: dict, cotangents: tuple) -> Any:
        out, pull = jax.vjp(jax.vmap(heads), inputs)
        return *out, pull(cotangents)[0]

    out, state, gradients = compiled(both)(inputs, cotangents)
    return stored, {"out_o": out, "out_state": state}, gradients


PRECISIONS = [
    pytest.param(
        name,
        dtype,
        tolerance,
        marks=[pytest.mark.slow] * (dtype == jnp.float32 and name not in STRESS),
    )
    for name in OPERATORS
    for dtype, tolerance in ((jnp.float64, 1e-9), (jnp.float32, 1e-4))
]


@pytest.mark.parametrize(("name", "dtype", "tolerance"), PRECISIONS)
def test_golden_data(name: str, dtype: Any, tolerance: float) -> None:
    stored, ours, gradients = golden_run(name, dtype, chunk=16)
    for key, array in ours.items():
        assert array.dtype == dtype
        assert_close(array, stored[key], tolerance, key)
    for key, gradient in gradients.items():
        assert_close(gradient, stored[f"grad_{key}"], tolerance, f"grad_{key}")


@pytest.mark.parametrize("name", STRESS)
def test_half_precision_inputs_stay_finite_and_near(name: str) -> None:
    """What bfloat16 inputs lose is their own rounding: the accumulators are float32."""
    stored, ours, gradients = golden_run(name, jnp.bfloat16, chunk=32)
    for key, array in ours.items():
        assert array.dtype == jnp.float32
        assert_close(array, stored[key], 0.05, key)
    assert gradients["initial_state"].dtype == jnp.float32
    for key, gradient in gradients.items():
        assert key == "initial_state" or gradient.dtype == jnp.bfloat16
        assert np.all(np.isfinite(np.asarray(gradient, np.float32)))


FULL = Case("channel", "own", True, False, 2 * CHUNK + 3)
OPTIONS = {"chunk": CHUNK, "block": 2 * CHUNK}


@pytest.mark.parametrize("at", [1, CHUNK, CHUNK + 1])
def test_a_run_in_two_parts_is_the_run(at: int) -> None:
    x, _ = draw(FULL)
    run = compiled(lambda x: call(x, **OPTIONS))
    whole, final = run(x)
    head = {name: a if name == "initial" else a[:at] for name, a in x.items()}
    tail = {name: a if name == "initial" else a[at:] for name, a in x.items()}
    first, state = run(head)
    second, last = run(tail | {"initial": state})
    assert_close(jnp.concatenate([first, second]), np.asarray(whole), 1e-12)
    assert_close(last, np.asarray(final), 1e-12)


def test_many_at_once_are_each_alone_in_value_and_in_gradient() -> None:
    drawn = [draw(FULL, seed) for seed in range(3)]
    together = jax.tree.map(lambda *a: jnp.stack(a), *[x for x, _ in drawn])

    def loss(x: dict) -> Any:
        out, state = call(x, **OPTIONS)
        return jnp.sum(out**2) + jnp.sum(state**2)

    def gradient(x: dict) -> dict:
        starts = {"starts": x["starts"]}
        return jax.grad(lambda x: loss(x | starts))({n: a for n, a in x.items() if n != "starts"})

    alone = compiled(gradient)
    batched = compiled(jax.vmap(gradient))(together)
    summed = compiled(jax.grad(lambda x: jnp.sum(jax.vmap(loss)(x)), allow_int=True))(together)
    for index, (x, _) in enumerate(drawn):
        for name, expected in alone(x).items():
            assert_close(batched[name][index], np.asarray(expected), 1e-12, name)
            assert_close(summed[name][index], np.asarray(expected), 1e-12, name)


def test_without_queries_the_state_is_written_all_the_same() -> None:
    x, _ = draw(FULL)
    given = {name: a for name, a in x.items() if name != "queries"}
    out, state = compiled(lambda x: call(x, **OPTIONS))(given)
    assert out is None
    assert_close(state, recurrence(x).final, 1e-12)


def test_the_same_array_as_keys_and_remove_is_one_argument() -> None:
    x, _ = draw(FULL._replace(rank_one="keys"))
    assert x["remove"] is x["keys"]
    one = jax.make_jaxpr(lambda x: call({**x, "remove": x["keys"]}, **OPTIONS))(x)
    other = jax.make_jaxpr(
        lambda x: call({n: a for n, a in x.items() if n != "remove"}, **OPTIONS)
    )(x)
    assert str(one) == str(other)


def test_the_gradient_has_a_gradient() -> None:
    x, _ = draw(FULL._replace(starts=False, time=CHUNK + 1))
    way = draw(FULL._replace(starts=False, time=CHUNK + 1), seed=1)[0]

    def slope(x: dict) -> Any:
        def loss(x: dict) -> Any:
            out, state = call(x, **OPTIONS)
            return jnp.sum(out**2) + jnp.sum(state**3)

        gradient = jax.grad(loss)(x)
        return sum(jnp.sum(gradient[name] * way[name]) for name in x)

    ours = compiled(jax.grad(slope))(x)
    step, along = 1e-5, draw(FULL._replace(starts=False, time=CHUNK + 1), seed=2)[0]
    ahead, behind = ({n: x[n] + sign * step * along[n] for n in x} for sign in (1, -1))
    run = compiled(slope)
    expected = (run(ahead) - run(behind)) / (2 * step)
    found = sum(jnp.sum(ours[name] * along[name]) for name in x)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_what_is_kept_for_the_gradient_is_the_inputs_and_a_state_a_block() -> None:
    time, key, value, chunk = 64, 5, 7, 4
    x, _ = draw(FULL._replace(time=time))
    shapes = {"values": (time, value), "initial": (key, value), "log_decay": (time, key)}
    x = {n: jnp.zeros(shapes.get(n, (time, key)), jnp.float32) for n in x if n != "starts"}
    for block in (chunk, 4 * chunk):
        _, pull = jax.vjp(lambda x, block=block: call(x, chunk=chunk, block=block), x)
        kept = sum(leaf.size for leaf in jax.tree.leaves(pull))
        inputs = sum(leaf.size for name, leaf in x.items() if name != "initial")
        assert kept == inputs + time // block * key * value


def test_the_memory_of_a_gradient_is_far_below_a_state_a_token() -> None:
    time, size = 2048, 32
    x, _ = draw(FULL)
    x = {n: jnp.zeros((size, size) if n == "initial" else (time, size), jnp.float32) for n in x}
    del x["starts"]
    gradient = jax.grad(lambda x: jnp.sum(call(x, chunk=16, block=64)[0]))
    memory = compiled(gradient).lower(x).compile().memory_analysis()
    assert memory.temp_size_in_bytes < time * size * size * 4 / 4


STARTED = 5


@pytest.mark.parametrize("read_before", [False, True])
@pytest.mark.parametrize("rank_one", ["own", "keys"])
def test_nothing_crosses_a_start(rank_one: str, read_before: bool) -> None:
    """Whatever stands before a start, what is after it keeps its values and gradients, bit by bit."""
    case = Case("channel", rank_one, True, read_before, 2 * CHUNK + 3)
    x, (out, state) = draw(case)
    if rank_one == "keys":
        del x["remove"]
    x["starts"] = np.arange(case.time) == STARTED
    clean = x | {"initial": np.zeros_like(x["initial"])}
    cotangents = (np.where(np.arange(case.time)[:, None] < STARTED, 0, out), state)
    options = {"read_before": read_before, **OPTIONS}
    expected = with_gradients(**options)(clean, cotangents)
    for name in (*FLOATS, "everything"):
        for bad in (np.nan, np.inf, -np.inf):
            spoilt = {n: np.array(a) for n, a in x.items()}
            for n in [name] if name != "everything" else [n for n in FLOATS if n in x]:
                if n in x:
                    spoilt[n][: None if n == "initial" else STARTED] = bad
            outputs, last, gradients = with_gradients(**options)(spoilt, cotangents)
            np.testing.assert_array_equal(outputs[STARTED:], expected[0][STARTED:])
            np.testing.assert_array_equal(last, expected[1])
            for n, gradient in gradients.items():
                before = gradient if n == "initial" else gradient[:STARTED]
                np.testing.assert_array_equal(before, 0)
                if n != "initial":
                    np.testing.assert_array_equal(gradient[STARTED:], expected[2][n][STARTED:])


@pytest.mark.parametrize("read_before", [False, True])
def test_what_is_not_a_number_shows_where_the_recurrence_shows_it(read_before: bool) -> None:
    case = Case("scalar", "own", True, read_before, 2 * CHUNK + 3)
    x, _ = draw(case)
    x["starts"] = np.isin(np.arange(case.time), [STARTED, STARTED + 4])
    run = compiled(lambda x: call(x, read_before=read_before, **OPTIONS))
    for name in FLOATS:
        for where in [0] if name == "initial" else [STARTED - 1, STARTED + 1, case.time - 1]:
            spoilt = {n: np.array(a) for n, a in x.items()}
            spoilt[name][(where, 0) if spoilt[name].ndim == 2 else where] = np.nan
            outputs, final = run(spoilt)
            expected = recurrence(spoilt, read_before)
            np.testing.assert_array_equal(
                np.isnan(outputs), np.isnan(expected.outputs), err_msg=name
            )
            columns = np.any(np.isnan(expected.final), axis=0)  # no column mixes with another
            np.testing.assert_array_equal(np.all(np.isnan(final), axis=0), columns, err_msg=name)
            np.testing.assert_array_equal(np.any(np.isnan(final), axis=0), columns, err_msg=name)


def test_a_state_that_overflowed_ends_at_a_start() -> None:
    """In value: it is infinite long before the start, and its chunk is shared with the start."""
    time, start = 6 * CHUNK, 4 * CHUNK + 2
    x, _ = draw(FULL._replace(time=time))
    x = {
        n: a.astype(np.float32) if n != "starts" else np.arange(time) == start for n, a in x.items()
    }
    x["erase"][:start], x["remove"][:start] = 1e4, 1e4
    outputs, final = compiled(lambda x: call(x, **OPTIONS))(x)
    expected = recurrence({n: a if n == "initial" else a[start:] for n, a in x.items()})
    assert not np.any(np.isfinite(outputs[start - 1]))
    assert_close(outputs[start:], expected.outputs, 1e-5)
    assert_close(final, expected.final, 1e-5)


@pytest.mark.parametrize("decay", ["scalar", "channel"])
def test_harsh_and_feeble_decays_inside_one_chunk(decay: str) -> None:
    chunk, size = 64, 4
    rng = np.random.default_rng(3)
    x, cotangents = draw(Case(decay, "own", False, False, 100), seed=3)
    kinds = [-np.inf, -100.0, -30.0, -2.0, -1e-9, 0.0]
    x["log_decay"] = rng.choice(
        kinds, p=[0.03, 0.1, 0.1, 0.1, 0.37, 0.3], size=x["log_decay"].shape
    )
    x = {n: np.float32(a) for n, a in x.items()}
    x["erase"] = x["erase"] / size
    wide = {n: np.float64(a) for n, a in x.items()}
    cotangents = tuple(np.float32(c) for c in cotangents)
    outputs, final, gradients = with_gradients(chunk=chunk)(x, cotangents)
    expected = recurrence(wide)
    assert_close(outputs, expected.outputs, 2e-5)
    assert_close(final, expected.final, 2e-5)
    for name, gradient in adjoint(wide, cotangents).items():
        assert_close(gradients[name], gradient, 1e-4, name)


@pytest.mark.parametrize("rate", [1.0, 1.9, 2.0])
def test_nearly_equal_keys_at_every_stable_rate(rate: float) -> None:
    """The powers of this triangular matrix reach 1e17 in a chunk of 64; its inverse is small."""
    time, size = 160, 8
    rng = np.random.default_rng(4)
    keys = 1 + 1e-3 * rng.normal(size=(time, size))
    keys /= np.linalg.norm(keys, axis=1, keepdims=True)
    x = {"queries": rng.normal(size=(time, size)), "keys": keys, "initial": np.zeros((size, VALUE))}
    x |= {"values": rate * rng.normal(size=(time, VALUE)), "erase": -rate * keys}
    x = {n: np.float32(a) for n, a in x.items()}
    expected = recurrence({n: np.float64(a) for n, a in (x | {"remove": x["keys"]}).items()})
    outputs, final = compiled(lambda x: call(x, chunk=64))(x)
    assert_close(outputs, expected.outputs, 1e-4)
    assert_close(final, expected.final, 1e-4)


def test_half_precision_is_only_that_of_the_inputs() -> None:
    x, cotangents = draw(FULL._replace(time=CHUNK * 3), seed=5)
    starts = x.pop("starts")
    cotangents = tuple(np.float32(c) for c in cotangents)
    half = {
        n: jnp.asarray(a, jnp.float32 if n == "initial" else jnp.bfloat16) for n, a in x.items()
    }
    single = {n: a.astype(jnp.float32) for n, a in half.items()}
    ours = with_gradients(**OPTIONS)(half | {"starts": starts}, cotangents)
    theirs = with_gradients(**OPTIONS)(single | {"starts": starts}, cotangents)
    assert ours[0].dtype == ours[1].dtype == ours[2]["initial"].dtype == jnp.float32
    for name in half:
        assert ours[2][name].dtype == half[name].dtype
        assert_close(
            ours[2][name], np.asarray(theirs[2][name]), 1e-6 if name == "initial" else 4e-3
        )
    assert_close(ours[0], np.asarray(theirs[0]), 1e-6)
    assert_close(ours[1], np.asarray(theirs[1]), 1e-6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"chunk": 6}, "`chunk` must be a power of two, and is 6"),
        ({"chunk": 0}, "`chunk` must be a power of two, and is 0"),
        ({"block": 0}, "`block` must be at least 1"),
        ({"erase": None}, "`remove` needs `erase`"),
        ({"erase": jnp.zeros((3, 1))}, r"`erase` has shape \(3, 1\), and must have \(11, 3\)"),
        ({"log_decay": jnp.zeros((11, 1))}, r"must have \(11,\) or \(11, 3\)"),
        ({"initial": jnp.zeros((3, 1))}, "`values` has shape"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict, message: str) -> None:
    x, _ = draw(FULL)
    with pytest.raises(ValueError, match=message):
        call({**x, **change})


@pytest.mark.parametrize("size", [1, 5, 16, 17, 64, 72])
def test_triangular_inverse_and_its_gradient(size: int) -> None:
    rng = np.random.default_rng(size)
    matrix, cotangent = 0.3 * rng.normal(size=(2, 2, 3, size, size))
    plain = np.linalg.inv(np.eye(size) - np.tril(matrix, -1))

    @compiled
    def both(matrix: Any, cotangent: Any) -> Any:
        inverse, pull = jax.vjp(unit_lower_inverse, matrix)
        return inverse, pull(cotangent)[0]

    ours, gradient = both(matrix, cotangent)
    turned = np.swapaxes(plain, -1, -2)
    np.testing.assert_allclose(ours, plain, rtol=1e-9, atol=1e-9 * np.max(np.abs(plain)))
    expected = np.tril(turned @ cotangent @ turned, -1)
    scale = np.max(np.abs(expected)) if size > 1 else 1
    np.testing.assert_allclose(gradient, expected, atol=1e-9 * scale)


def test_triangular_inverse_of_equal_keys_in_single_precision() -> None:
    """Equal unit keys at rate 2: the inverse has entries of size 2, alternating in sign."""
    size = 64
    ours = compiled(unit_lower_inverse)(-2 * jnp.ones((size, size), jnp.float32))
    rows, columns = np.ogrid[:size, :size]
    expected = np.where(
        rows > columns, -2.0 * (-1.0) ** (rows - columns - 1), 1.0 * (rows == columns)
    )
    np.testing.assert_allclose(ours, expected, atol=1e-5)
