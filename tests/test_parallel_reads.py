"""Reads of everything, of a window and of softmax attention, each against its definition."""

import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import memdsl as md
from memdsl.run._atoms import Atoms
from memdsl.run._banded import banded
from memdsl.run._dot_product import dot_product
from memdsl.run._local import fitted
from memdsl.run._parallel import kernel_parallel, softmax_parallel

from .golden._file import load
from .loops import (
    additive,
    arrays,
    close,
    complex_step,
    KERNELS,
    LOG_PAIRS,
    near,
    PAIRS,
    quick,
    sequence,
    spoiled,
    stacked,
    VALUE,
    value_and_gradients,
)


CHUNK = 4
LENGTHS = (0, 1, CHUNK - 1, CHUNK, CHUNK + 1)


def atoms(d: dict) -> Atoms | None:
    old = d.get("stored")
    if old is None:
        return None
    names = ("keys", "coefficients", "log_weight", "masses", "pinned")
    return Atoms(*(old.get(name) for name in names))


def run(kernel: str, d: dict, *, window: int | None = None, sinks: int = 0, **options) -> Any:
    """What is tested, in one signature."""
    common = {name: d[name] for name in ("log_decay", "starts", "mask")}
    common.update(stored=atoms(d), chunk=CHUNK, read_before=options.get("read_before", False))
    stream = d["keys"], d["values"], d["queries"]
    pairs = PAIRS[kernel](d["scale"])
    if options.get("normalised", False):
        pairs = LOG_PAIRS[kernel](d["scale"])
        common.update(masses=d["masses"], log_prior=d["prior"] if options.get("prior") else None)
    if window is not None:
        normalised = options.get("normalised", False)
        return banded(pairs, *stream, window=window, sinks=sinks, normalised=normalised, **common)
    if options.get("normalised", False):
        return softmax_parallel(pairs, *stream, **common)
    return kernel_parallel(pairs, *stream, **common)


def loop(kernel: str, d: dict, **options) -> np.ndarray:
    prior = d["prior"] if options.pop("prior", False) else None
    out = additive(lambda k, q: KERNELS[kernel](d["scale"], k, q), d, prior=prior, **options)
    return stacked(out, VALUE)


def more(length: int, **options) -> dict:
    """A sequence with masses and sinks among what is stored."""
    d = sequence(length, **options)
    d["prior"] = np.asarray(-0.4)
    if "stored" in d:
        d["stored"].update(masses=np.array([0.7, 1.0, 1.3]), pinned=np.array([True, False, False]))
    return d


CASES: dict[str, tuple[str, dict]] = {
    "all": ("gauss", {}),
    "all, before": ("tanh", {"read_before": True}),
    "all, mean": ("exponential", {"normalised": True}),
    "all, mean, before, prior": (
        "gauss",
        {"normalised": True, "prior": True, "read_before": True},
    ),
    "window": ("linear", {"window": 2}),
    "window, sinks": ("gauss", {"window": 2, "sinks": 2}),
    "window, sinks, before": ("gauss", {"window": 3, "sinks": 1, "read_before": True}),
    "window, mean": ("exponential", {"window": 2, "normalised": True}),
    "window, sinks, mean, prior": (
        "exponential",
        {"window": 3, "sinks": 3, "normalised": True, "prior": True},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_reads_are_their_definition_with_gradients(case: str):
    kernel, options = CASES[case]
    d = more(3 * CHUNK + 1, seed=1)
    d["starts"] = np.arange(3 * CHUNK + 1) == 11
    d["mask"][:] = ~np.isin(np.arange(3 * CHUNK + 1), (1, 5, 6, 12))
    d["stored"]["pinned"] &= options.get("sinks", 0) > 0
    names = ["keys", "values", "queries", "log_decay", "scale"]
    names += ["masses"] if options.get("normalised") else []
    names += ["prior"] if options.get("prior") else []
    ours, gradients = value_and_gradients(lambda d: run(kernel, d, **options), names)(
        arrays(spoiled(d))
    )
    close(ours, loop(kernel, d, **options))
    for name in names:
        close(gradients[name], complex_step(lambda d: loop(kernel, d, **options), d, name), 1e-10)


@pytest.mark.parametrize("case", ("all", "all, mean", "window, sinks, mean, prior"))
@pytest.mark.parametrize("length", LENGTHS)
def test_reads_of_every_length(case: str, length: int):
    kernel, options = CASES[case]
    d = more(length, seed=2)
    close(
        quick(lambda d: run(kernel, d, **options))(arrays(spoiled(d))), loop(kernel, d, **options)
    )


@pytest.mark.parametrize("seed", range(6))
def test_windows_of_random_sequences(seed: int):
    """Starts, masks, sinks and stored atoms in every order, at one shape."""
    rng = np.random.default_rng(seed)
    d = more(19, seed=seed)
    d["starts"], d["mask"] = rng.random(19) < 0.2, rng.random(19) < 0.6
    d["stored"]["there"] = rng.random(3) < 0.7
    d["stored"]["log_weight"][:] = np.where(d["stored"]["there"], -rng.random(3), -np.inf)
    d["stored"]["pinned"] = np.arange(3) < rng.integers(0, 3)
    options: dict[str, Any] = {"window": 5, "sinks": 2, "normalised": True}
    close(random_window(arrays(spoiled(d))), loop("gauss", d, **options))


@quick
def random_window(d: dict) -> Any:
    return run("gauss", d, window=5, sinks=2, normalised=True)


def test_a_window_over_everything_is_everything():
    d = arrays(more(9))
    one, two = (
        quick(lambda d, w=window: run("gauss", d, window=w, normalised=True))(d)
        for window in (None, 99)
    )
    close(one, two)


def test_a_window_that_is_none_is_refused():
    d = arrays(more(3))
    for options in ({"window": 0}, {"window": 1, "sinks": -1}):
        with pytest.raises(ValueError, match="no window"):
            run("gauss", d, **options)


def test_a_mean_of_nothing_is_zero_with_a_gradient():
    d = more(5, flags=False, stored=False)
    d["mask"][:2] = False
    names = ["keys", "queries", "values", "masses", "scale"]
    for options in ({}, {"window": 2}):
        ours, gradients = value_and_gradients(
            lambda d, o=options: run("gauss", d, normalised=True, **o), names
        )(arrays(spoiled(d)))
        assert not np.any(ours[:2])
        assert all(np.all(np.isfinite(gradients[name])) for name in names)


def test_what_underflows_is_still_a_mean():
    far = jnp.asarray([[1000.0**0.5], [1002.0**0.5]])
    values = jnp.asarray([[1.0], [0.0]])
    mean = quick(lambda *stream: softmax_parallel(LOG_PAIRS["gauss"](1.0), *stream))
    out = mean(far, values, jnp.zeros((2, 1)))
    close(out[1, 0], 1 / (1 + np.exp(-2.0)), 1e-10)


def test_nothing_is_felt_from_before_a_start():
    d = more(9, flags=False)
    d["starts"] = np.arange(9) == 5
    sick = {**d, "values": np.copy(d["values"]), "keys": np.copy(d["keys"])}
    sick["values"][2], sick["keys"][4] = np.nan, np.inf
    names = ["keys", "values", "queries", "log_decay", "scale"]
    for kernel, options in (CASES["all"], CASES["all, mean"], CASES["window, sinks, mean, prior"]):
        both = value_and_gradients(lambda d, k=kernel, o=options: run(k, d, **o)[5:], names)
        (ours, gradients), (same, same_gradients) = both(arrays(d)), both(arrays(sick))
        close(same, ours)
        for name in names:
            close(same_gradients[name], gradients[name])
            assert name == "scale" or not np.any(gradients[name][:5])


def test_what_is_not_finite_leaves_with_the_window():
    d = more(8, flags=False, stored=False)
    d["values"][2] = np.inf
    out = quick(lambda d: run("gauss", d, window=2))(arrays(d))
    np.testing.assert_array_equal(np.isnan(out[:, 0]), np.isin(np.arange(8), (2, 3)))


def attention(name: str, how: Callable) -> tuple:
    """A golden softmax attention with grouped queries: `(outputs, gradients, golden)`."""
    g = load(name)
    inputs = {name: jnp.asarray(array, jnp.float64) for name, array in g.inputs.items()}
    group = inputs["q"].shape[2] // inputs["k"].shape[2]
    zero = jnp.zeros(inputs["q"].shape[:3])
    window = vars(g.constants).get("window_size")

    def loss(i: dict) -> tuple:
        k, v = (jnp.repeat(i[n], group, axis=2) for n in ("k", "v"))
        decay = i.get("g", zero)
        prior = i.get("sink_bias", jnp.full(zero.shape[2], -jnp.inf))
        heads = jax.vmap(
            lambda q, k, v, decay, prior: how(
                k, v, g.constants.scale * q, decay if "g" in i else None, prior, window
            ),
            in_axes=(1, 1, 1, 1, 0),
            out_axes=1,
        )
        out = jax.vmap(heads, in_axes=(0, 0, 0, 0, None))(i["q"], k, v, decay, prior)
        return jnp.sum(out * jnp.asarray(g.cotangents["o"], out.dtype)), out

    gradients, outputs = quick(jax.grad(loss, has_aux=True))(inputs)
    return outputs, gradients, g


def by_blocks(keys, values, queries, decay, prior, window) -> Any:
    common = {"log_decay": decay, "log_prior": prior, "chunk": 16}
    dot = LOG_PAIRS["exponential"](1.0)
    if window is None:
        return softmax_parallel(dot, keys, values, queries, **common)
    return banded(dot, keys, values, queries, window=window, normalised=True, **common)


def fused(keys, values, queries, decay, prior, window) -> Any:
    single = (a.astype(jnp.float32) for a in (keys, values, queries))
    decay = None if decay is None else decay.astype(jnp.float32)
    return dot_product(*single, window=window, log_decay=decay, log_prior=prior.astype(jnp.float32))


ATTENTION = ("softmax_attn", "softmax_attn_window", "softmax_attn_sink", "forgetting_attn")


@pytest.mark.parametrize("name", ATTENTION)
def test_golden(name: str):
    outputs, gradients, g = attention(name, by_blocks)
    close(outputs, g.outputs["o"], 1e-12)
    for part, true in g.gradients.items():
        near(gradients[part], true, 1e-10)


@pytest.mark.parametrize("name", ATTENTION)
def test_golden_in_single_precision_through_the_fused_operation(name: str):
    outputs, gradients, g = attention(name, fused)
    near(outputs, g.outputs["o"], 1e-6)
    for part, true in g.gradients.items():
        near(gradients[part], true, 1e-5)


@pytest.mark.parametrize("window", (None, 3))
@pytest.mark.parametrize("flags", (False, True))
def test_the_fused_operation_is_the_mean(window: int | None, flags: bool):
    """Windows, starts, masks, decays and no prior, in both precisions."""
    d = more(11, flags=flags, stored=False)
    clean = spoiled(d) if flags else d

    def ours(d: dict) -> Any:
        given = {name: d[name] if flags else None for name in ("log_decay", "starts", "mask")}
        stream = d["keys"], d["values"], d["queries"]
        return dot_product(*stream, scale=d["scale"], window=window, **given)

    plain = {**d, "masses": np.ones(11)}
    plain["log_decay"] = d["log_decay"] if flags else np.zeros(11)
    true = loop("exponential", plain, normalised=True, window=window)
    single = jax.tree.map(
        lambda a: jnp.asarray(a, jnp.float32) if a.dtype == np.float64 else jnp.asarray(a), clean
    )
    names = ["keys", "values", "queries", "scale"]
    wide = quick(ours)(arrays(clean))
    narrow, gradients = value_and_gradients(ours, names)(single)
    assert (wide.dtype, narrow.dtype) == (jnp.float64, jnp.float32)
    close(wide, true)
    near(narrow, true, 1e-5)
    for name in names:
        true = complex_step(
            lambda d: loop("exponential", d, normalised=True, window=window), plain, name
        )
        near(gradients[name], true, 1e-4)


def test_half_precision_adds_up_in_single():
    d = arrays(more(9, flags=False, stored=False))
    half = jax.tree.map(lambda a: a.astype(jnp.bfloat16) if a.dtype == jnp.float64 else a, d)
    half["scale"] = jnp.asarray(0.7, jnp.float32)
    for kernel, options in (CASES["all, mean"], CASES["window"]):
        both = quick(lambda d, k=kernel, o=options: run(k, d, **o))
        assert both(half).dtype == jnp.float32
        near(both(half), both(d), 0.05)
    assert dot_product(half["keys"], half["values"], half["queries"]).dtype == jnp.float32


def test_lines_that_are_fitted_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch):
    """Seven readers, three at a time, in value and in gradient."""
    memory = md.Memory(md.Exp(md.Dot()), read=md.LocalLinear(0.5))
    rows = np.random.default_rng(0).standard_normal((3, 7, 3))
    keys, values, queries = (jnp.asarray(array) for array in rows)
    fit = fitted(memory)
    logs = jnp.where(jnp.tril(jnp.ones((7, 7), bool)), 0.0, -jnp.inf)

    def loss(keys: Any, values: Any, queries: Any) -> Any:
        masses = jnp.ones((7, 1), values.dtype)
        answers = fit(keys, jnp.concatenate([values, masses], 1), queries, logs)
        return jnp.sum(answers**2), answers

    both = jax.value_and_grad(loss, (0, 1, 2), has_aux=True)
    whole = both(keys, values, queries)
    monkeypatch.setattr(sys.modules["memdsl.run._local"], "AT_ONCE", 3 * keys.size)
    few = both(keys, values, queries)
    for a, b in zip(jax.tree.leaves(whole), jax.tree.leaves(few), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)
