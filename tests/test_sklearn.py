"""RBF × Ridge is kernel ridge regression, and the mean of a Gaussian process: scikit-learn agrees."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Matern, RationalQuadratic, RBF
from sklearn.kernel_ridge import KernelRidge

import memdsl as md


STRENGTH = 1e-2
TOLERANCE = 1e-8


def problem(key_size: int = 3) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Forty keys with values of two channels, and twenty queries."""
    random = np.random.default_rng(7)
    keys, queries = random.standard_normal((40, key_size)), random.standard_normal((20, key_size))
    values = np.stack([np.sin(keys.sum(1)), keys[:, 0] ** 2], 1) + 0.1 * random.standard_normal(
        (40, 2)
    )
    return keys, values, queries


def plans(memory: md.Memory, keys: np.ndarray) -> list[str]:
    """The names of the legal rules."""
    dims = md.Dims(key=keys.shape[1], value=2, time=len(keys))
    return [rule.name for rule, _ in md.plan(memory, dims).choices[0].legal]


def learned(
    memory: md.Memory, keys: np.ndarray, values: np.ndarray, queries: np.ndarray, rule: str
) -> np.ndarray:
    """What a memory answers that has read all pairs, in two runs."""
    empty = md.empty(memory, keys.shape[1], 2, capacity=len(keys), using=rule, dtype=jnp.float64)
    run = jax.jit(partial(md.run, memory, using=rule))
    half = len(keys) // 2
    k, v = jnp.asarray(keys), jnp.asarray(values)
    state, _ = run(empty, k[:half], v[:half])
    state, _ = run(state, k[half:], v[half:])
    return np.asarray(md.evaluate(memory, state, jnp.asarray(queries)))


def agree(memory: md.Memory, model: Any, key_size: int = 3) -> None:
    """Every plan of the memory answers what the model predicts, and nothing else would."""
    keys, values, queries = problem(key_size)
    right = model.fit(keys, values).predict(queries)
    assert np.std(right) > 0.1
    rules = plans(memory, keys)
    assert "buffer / recurrent" in rules
    for rule in rules:
        answers = learned(memory, keys, values, queries, rule)
        bound = TOLERANCE * np.max(np.abs(right))
        np.testing.assert_allclose(answers, right, rtol=0, atol=bound, err_msg=rule)


def ridge(kernel: md.AbstractKernel) -> md.Memory:
    return md.Memory(kernel, md.Ridge(STRENGTH))


@pytest.mark.parametrize("scale", [0.5, 2.0])
def test_kernel_ridge_rbf(scale: float):
    gamma = 1 / (2 * scale**2)
    agree(ridge(md.RBF(scale)), KernelRidge(alpha=STRENGTH, kernel="rbf", gamma=gamma))


def test_kernel_ridge_laplacian():
    # theirs is of the sum of absolute differences, ours of the distance: one on a line
    memory = ridge(md.Laplace(0.7))
    agree(memory, KernelRidge(alpha=STRENGTH, kernel="laplacian", gamma=1 / 0.7), key_size=1)


@pytest.mark.parametrize("degree", [2, 3])
def test_kernel_ridge_polynomial(degree: int):
    memory = ridge(md.Polynomial(degree, offset=0.5).pullback(md.Scale(np.sqrt(0.3).item())))
    assert any(rule.startswith("gram") for rule in plans(memory, problem()[0]))
    model = KernelRidge(alpha=STRENGTH, kernel="poly", degree=degree, gamma=0.3, coef0=0.5)
    agree(memory, model)


def test_kernel_ridge_linear():
    agree(ridge(md.Dot()), KernelRidge(alpha=STRENGTH, kernel="linear"))


KERNELS = {
    "rbf": (md.RBF(0.8), RBF(0.8)),
    "laplace": (md.Laplace(0.8), Matern(0.8, nu=0.5)),
    "matern32": (md.Matern32(0.8), Matern(0.8, nu=1.5)),
    "matern52": (md.Matern52(0.8), Matern(0.8, nu=2.5)),
    "rational quadratic": (
        md.RationalQuadratic(0.8, mixture=1.5),
        RationalQuadratic(length_scale=0.8, alpha=1.5),
    ),
    "product": (1.7 * md.RBF(0.8) * md.Matern32(1.2), ConstantKernel(1.7) * RBF(0.8) * Matern(1.2)),
    "sum": (md.RBF(0.8) + md.Matern52(2.0), RBF(0.8) + Matern(2.0, nu=2.5)),
}


@pytest.mark.parametrize("name", KERNELS)
def test_gaussian_process_mean(name: str):
    ours, theirs = KERNELS[name]
    model = GaussianProcessRegressor(theirs, alpha=STRENGTH, optimizer=None)
    agree(ridge(ours), model)


def test_weights_of_pairs_are_those_of_kernel_ridge():
    keys, values, queries = problem()
    weights = np.random.default_rng(1).uniform(0.2, 2.0, len(keys))
    model = KernelRidge(alpha=STRENGTH, kernel="rbf", gamma=0.5)
    right = model.fit(keys, values, sample_weight=weights).predict(queries)
    memory = md.Memory(md.RBF(1.0), md.Ridge(STRENGTH, rate=md.FromInput("softplus")))
    state = md.empty(memory, 3, 2, capacity=len(keys), dtype=jnp.float64)
    k, v, w = jnp.asarray(keys), jnp.asarray(values), jnp.asarray(weights)
    state, _ = jax.jit(partial(md.run, memory))(state, k, v, rate=w)
    answers = np.asarray(md.evaluate(memory, state, jnp.asarray(queries)))
    np.testing.assert_allclose(answers, right, rtol=0, atol=TOLERANCE * np.max(np.abs(right)))


def test_window_is_a_fit_of_its_pairs():
    keys, values, queries = problem()
    model = KernelRidge(alpha=STRENGTH, kernel="rbf", gamma=0.5)
    right = model.fit(keys[-12:], values[-12:]).predict(queries)
    memory = ridge(md.RBF(1.0)).replace(capacity=md.Window(12))
    answers = learned(memory, keys, values, queries, "buffer / recurrent")
    np.testing.assert_allclose(answers, right, rtol=0, atol=TOLERANCE * np.max(np.abs(right)))
