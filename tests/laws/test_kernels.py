"""Kernels are a commutative semiring of symmetric, positive semidefinite similarities."""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import memdsl as md

from ..helpers import close, FEATURES, KERNELS, KEY, law, random


NAMES = sorted(KERNELS)
SOME = ("dot", "rbf", "softmax", "polynomial", "elu", "constant")
ZERO, ONE = md.Constant(0.0), md.Constant(1.0)


def points(seed: int, count: int = 4) -> tuple[jax.Array, jax.Array]:
    return random(seed, count, KEY), random(seed + 1, count + 1, KEY)


def pointwise(kernel: Any, keys: jax.Array, queries: jax.Array) -> Any:
    return jnp.stack([jnp.stack([kernel(k, q) for q in queries]) for k in keys])


@pytest.mark.parametrize("name", NAMES)
@law
def test_pairs_are_the_kernel_of_every_pair(name: str, seed: int):
    kernel, (keys, queries) = KERNELS[name], points(seed)
    one_by_one = pointwise(kernel, keys, queries)
    close(kernel.pairs(keys, queries), one_by_one)
    close(kernel.diagonal(keys), jnp.stack([kernel(k, k) for k in keys]))
    if kernel.is_nonnegative() and bool(jnp.all(one_by_one > 0)):
        close(jnp.exp(kernel.log_pairs(keys, queries)), one_by_one)
        close(jnp.exp(kernel.log(keys[0], queries[0])), one_by_one[0, 0])


@pytest.mark.parametrize("name", NAMES)
@law
def test_symmetric_and_positive_semidefinite(name: str, seed: int):
    kernel, (keys, queries) = KERNELS[name], points(seed, 6)
    close(pointwise(kernel, keys, queries), pointwise(kernel, queries, keys).T)
    gram = np.asarray(pointwise(kernel, keys, keys))
    assert np.linalg.eigvalsh(gram).min() >= -1e-10 * np.abs(gram).max()


@pytest.mark.parametrize("name", NAMES)
@law
def test_features_have_the_kernel_as_their_inner_product(name: str, seed: int):
    kernel, (keys, queries) = KERNELS[name], points(seed)
    if not kernel.is_finite():
        assert kernel.rank(KEY) == np.inf
        with pytest.raises(md.SpecError, match="infinitely many"):
            kernel.features(keys[0])
        return
    phi = jnp.stack([kernel.features(k) for k in keys])
    psi = jnp.stack([kernel.features(q) for q in queries])
    close(phi @ psi.T, pointwise(kernel, keys, queries))
    assert phi.shape[1] == kernel.rank(KEY) == md.rank(kernel, KEY)


@pytest.mark.parametrize("name", NAMES)
@law
def test_facts_hold_on_samples(name: str, seed: int):
    kernel, (keys, queries) = KERNELS[name], points(seed)
    if md.is_nonnegative(kernel):
        assert bool(jnp.all(pointwise(kernel, keys, queries) >= 0))
    far = [kernel(size * keys[0], size * keys[0]) for size in (1.0, 1e2, 1e4, -1e2, -1e4)]
    if md.is_bounded(kernel):
        assert max(map(float, far)) < 1e2
    else:
        assert max(map(float, far)) > 1e3 * float(far[0])
    constant = kernel.value_at_itself()
    if constant is not None:
        close(kernel.diagonal(keys), jnp.full(len(keys), constant), 1e-4)
    if kernel.is_exponential():
        assert bool(jnp.isfinite(kernel.log(1e2 * keys[0], -1e2 * keys[0])))


@pytest.mark.parametrize("names", list(itertools.combinations(SOME, 2)), ids="-".join)
@law
def test_commutative_semiring(names: tuple[str, str], seed: int):
    a, b = (KERNELS[name] for name in names)
    c, (keys, queries) = md.RBF(scale=0.7), points(seed, 2)

    def same(left: Any, right: Any) -> None:
        close(left.pairs(keys, queries), right.pairs(keys, queries))

    same(a + b, b + a)
    same(a * b, b * a)
    same((a + b) + c, a + (b + c))
    same((a * b) * c, a * (b * c))
    same(a * (b + c), a * b + a * c)
    same(a + ZERO, a)
    same(a * ONE, a)
    same(a * ZERO, ZERO)
    same(2.0 * a, a + a)
    same(a / 2.0, 0.5 * a)
    same(sum([a, b, c]), a + b + c)


@pytest.mark.parametrize("names", list(itertools.combinations(SOME, 2)), ids="-".join)
@law
def test_exponential_turns_sums_into_products(names: tuple[str, str], seed: int):
    a, b = (0.2 * KERNELS[name] for name in names)
    keys, queries = points(seed, 2)
    left, right = md.Exp(a + b), md.Exp(a) * md.Exp(b)
    close(left.pairs(keys, queries), right.pairs(keys, queries))
    close(left.log_pairs(keys, queries), right.log_pairs(keys, queries))
    close(left(keys[0], queries[0]), right(keys[0], queries[0]))


@pytest.mark.parametrize("names", list(itertools.product(SOME, ("elu", "dpfp"))), ids="-".join)
@law
def test_pullback_is_functorial_and_keeps_sums_and_products(names: tuple[str, str], seed: int):
    a, b, f, g = KERNELS[names[0]], md.RBF(), FEATURES[names[1]], md.Softmax()
    keys, queries = points(seed, 2)

    def same(left: Any, right: Any) -> None:
        close(left.pairs(keys, queries), right.pairs(keys, queries))

    same(a.pullback(f).pullback(g), a.pullback(g >> f))
    same(a.pullback(FEATURES["identity"]), a)
    same((a + b).pullback(f), a.pullback(f) + b.pullback(f))
    same((a * b).pullback(f), a.pullback(f) * b.pullback(f))
    close(a.pullback(f)(keys[0], queries[0]), a(f(keys[0]), f(queries[0])))


@pytest.mark.parametrize("names", list(itertools.product(NAMES, SOME)), ids="-".join)
def test_facts_of_sums_and_products(names: tuple[str, str]):
    a, b = (KERNELS[name] for name in names)
    assert md.rank(a + b, KEY) == md.rank(a, KEY) + md.rank(b, KEY)
    assert md.rank(a * b, KEY) == md.rank(a, KEY) * md.rank(b, KEY)
    both = md.is_nonnegative(a) and md.is_nonnegative(b)
    assert md.is_nonnegative(a + b) == md.is_nonnegative(a * b) == both
    assert md.is_finite(a + b) == md.is_finite(a * b) == (md.is_finite(a) and md.is_finite(b))


@pytest.mark.parametrize("name", NAMES)
@law
def test_gradient_is_finite_where_two_keys_meet(name: str, seed: int):
    kernel, (keys, _) = KERNELS[name], points(seed, 1)
    for k in (keys[0], jnp.zeros(KEY)):
        assert bool(jnp.all(jnp.isfinite(jax.grad(lambda x, k=k: kernel(x, k))(k))))
        rows = jax.grad(lambda x, k=k: jnp.sum(kernel.pairs(x[None], k[None])))(k)
        assert bool(jnp.all(jnp.isfinite(rows)))


@pytest.mark.parametrize(
    "kernel", [md.RBF(scale=1.5), md.Matern32(scale=2.0), md.Matern52(scale=2.0), md.Exp(md.Dot())]
)
def test_random_features_estimate_their_kernel(kernel: Any):
    keys, queries = 0.5 * random(0, 5, KEY), 0.5 * random(1, 4, KEY)
    estimate = kernel.random_features(20_000)
    assert md.is_finite(estimate)
    error = np.abs(np.asarray(estimate.pairs(keys, queries) - kernel.pairs(keys, queries)))
    assert 0 < error.max() < 0.05
    fewer = kernel.random_features(50).pairs(keys, queries) - kernel.pairs(keys, queries)
    assert error.mean() < np.abs(np.asarray(fewer)).mean()


@law
def test_a_normalised_radial_read_does_not_underflow(seed: int):
    """Squared distances 1000 and 1002 from far away differ by a factor e in weight, not 0 / 0."""
    memory = md.Memory(md.RBF(), read=md.Normalised())
    keys = jnp.asarray([[1000.0**0.5], [1002.0**0.5]])
    answers = md.denote(memory, keys, jnp.asarray([[1.0], [0.0]]), jnp.zeros((2, 1)))
    close(answers[1, 0], 0.7310585786300049)


RADIAL = (md.RBF, md.Laplace, md.Matern32, md.Matern52, md.RationalQuadratic)


@pytest.mark.parametrize("kind", RADIAL, ids=lambda kind: kind.__name__)
def test_the_median_rule_is_the_median_of_all_distances(kind: Any):
    keys = np.random.default_rng(1).normal(size=(3, 7, 4)).astype(np.float32)
    rows = keys.reshape(21, 4).astype(np.float64)
    pairs = [np.linalg.norm(a - b) for a, b in itertools.combinations(rows, 2)]
    for given in (keys, jnp.asarray(keys)):
        kernel = kind.median(given, 0.5)
        assert kernel == kind(scale=kernel.scale) and isinstance(kernel.scale, float)
        np.testing.assert_allclose(kernel.scale, 0.5 * np.median(pairs), rtol=1e-12)


def test_the_median_rule_draws_the_same_keys_each_time():
    keys = np.random.default_rng(1).normal(size=(5000, 6))
    drawn = md.RBF.median(keys)
    assert drawn == md.RBF.median(keys) != md.RBF.median(keys, most=900)
    np.testing.assert_allclose(drawn.scale, np.sqrt(2 * 5.348), rtol=0.02)  # chi-squared of 6
