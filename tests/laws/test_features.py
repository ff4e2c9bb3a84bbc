"""Features are maps of one key, composed by `>>`, that keep what they say of themselves."""

import itertools

import jax
import jax.numpy as jnp
import pytest

from ..helpers import close, FEATURES, KEY, law, random


NAMES = sorted(FEATURES)


@pytest.mark.parametrize("name", NAMES)
@law
def test_facts_hold_on_samples(name: str, seed: int):
    feature, x = FEATURES[name], random(seed, 5, KEY)
    y = jax.vmap(feature)(x)
    assert y.shape == (5, feature.size(KEY))
    if feature.is_nonnegative():
        assert bool(jnp.all(y >= 0))
    if feature.dot_is_nonnegative():
        assert bool(jnp.all(y @ y.T >= 0))
    if feature.is_unit():
        close(jnp.sum(y * y, axis=-1), jnp.ones(5), 1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_value_and_gradient_are_finite_at_zero(name: str):
    feature, zero = FEATURES[name], jnp.zeros(KEY)
    jacobian = jax.jacobian(feature)(zero)
    assert bool(jnp.all(jnp.isfinite(feature(zero)))) and bool(jnp.all(jnp.isfinite(jacobian)))


@pytest.mark.parametrize("names", list(itertools.product(NAMES[::2], NAMES[1::2])), ids="-".join)
@law
def test_composition_is_associative_with_unit(names: tuple[str, str], seed: int):
    f, g = (FEATURES[name] for name in names)
    h, identity, x = FEATURES["elu_sum"], FEATURES["identity"], random(seed, KEY)
    close(((f >> g) >> h)(x), (f >> (g >> h))(x))
    close((f >> g)(x), g(f(x)))
    close((f >> identity)(x), f(x))
    close((identity >> f)(x), f(x))
    assert (f >> g).size(KEY) == len((f >> g)(x))


@pytest.mark.parametrize("names", list(itertools.product(NAMES, NAMES)), ids="-".join)
def test_facts_of_a_composition_hold(names: tuple[str, str]):
    f, g = (FEATURES[name] for name in names)
    both, x = f >> g, 2 * random(3, 6, KEY)
    y = jax.vmap(both)(x)
    if both.is_nonnegative():
        assert bool(jnp.all(y >= 0))
    if both.dot_is_nonnegative():
        assert bool(jnp.all(y @ y.T >= -1e-12))


@law
def test_taylor_is_the_second_order_exponential(seed: int):
    k, q = random(seed, KEY), random(seed + 1, KEY)
    s = k @ q / KEY**0.5
    close(FEATURES["taylor"](k) @ FEATURES["taylor"](q), 1 + s + s * s / 2)
