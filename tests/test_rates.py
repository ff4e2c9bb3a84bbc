"""How far growing layers may step: beside dense matrices, and beside what a write really does."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import memdsl as md
from memdsl.grow._tangent import tangent
from memdsl.nn._tap import Nudge

from .test_grow import backward, built, cross_entropy, grown, half_square, rbf, write


EXACT = {"tolerance": 1e-13, "iterations": 3000}


def draw(seed, *shape):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape))


def dense(loss, model, x, labels):
    """`(T, H)` of every growing layer, as matrices over pairs and channels."""
    _, _, pairs = backward(loss, model, x, labels)

    def answers(shifts):
        def one(own, x):
            return md.grow._layers.with_sinks(model, [Nudge(shift) for shift in own])(x)

        return jax.vmap(one)(shifts, x)

    zeros = tuple(jnp.zeros_like(pair.cotangent) for pair in pairs)
    jacobians = jax.jacobian(answers)(zeros)
    curved = jax.hessian(lambda y: loss(y, labels))(answers(zeros))
    size = answers(zeros).size
    curved = curved.reshape(size, size)
    found = []
    for layer, pair, jacobian in zip(md.grow.growing(model), pairs, jacobians, strict=True):
        j = np.asarray(jacobian).reshape(size, -1)
        width = pair.cotangent.shape[-1]
        rows = np.asarray(pair.key).reshape(-1, pair.key.shape[-1])
        gram = np.asarray(layer.memory.kernel.pairs(jnp.asarray(rows), jnp.asarray(rows)))
        found.append((np.kron(gram, np.eye(width)), j.T @ np.asarray(curved) @ j))
    return found


def top(matrix):
    return float(np.max(np.linalg.eigvals(matrix).real))


def joined(found, rates):
    """The step of all layers at once needs the curvature between them; this is one of its bounds."""
    return sum(rate * top(t @ h) for rate, (t, h) in zip(rates, found, strict=True))


@pytest.mark.parametrize("loss", [half_square, cross_entropy], ids=["square", "entropy"])
def test_bounds_are_those_of_the_dense_matrices(loss, getkey):
    memory = rbf(scale=1.5, rate=0.7)
    spec = grown(5, memory) >> md.Silu() >> grown(3, memory)
    model, x = built(spec, 4, getkey()), draw(1, 6, 4)
    labels = draw(2, 6, 3) if loss is half_square else jnp.arange(6) % 3
    _, _, pairs = backward(loss, model, x, labels)
    model = write(model, pairs)  # so that the signal passes stored atoms as well
    rates = md.grow.suggest_rate(loss, model, x, labels, **EXACT)
    found = dense(loss, model, x, labels)
    np.testing.assert_allclose(rates.bound, [2 / top(t @ h) for t, h in found], rtol=1e-8)
    assert rates.chosen == (0.7, 0.7)
    shares = [2 * r / b for r, b in zip(rates.rate, rates.bound, strict=True)]
    np.testing.assert_allclose(shares, shares[0])
    assert 1 / 2 <= shares[0] <= 1  # two layers share the room of one
    assert rates.together <= joined(found, rates.chosen) / 2 * (1 + 1e-9)
    assert rates.check() is rates


def test_at_the_suggested_rates_a_step_of_all_layers_is_just_no_overshoot(getkey):
    def at(first, second):
        spec = grown(5, rbf(rate=first)) >> md.Silu() >> grown(3, rbf(rate=second))
        return built(spec, 4, key)

    key, x, y = getkey(), draw(1, 6, 4), draw(2, 6, 3)
    rates = md.grow.suggest_rate(half_square, at(1.0, 1.0), x, y, **EXACT)
    again = md.grow.suggest_rate(half_square, at(*rates.rate), x, y, **EXACT)
    np.testing.assert_allclose(again.together, 0.5, rtol=1e-8)
    np.testing.assert_allclose(again.rate, rates.rate, rtol=1e-8)


def test_a_bound_on_the_curvature_takes_the_place_of_the_curvature(getkey):
    model, x, labels = built(grown(3, rbf()), 4, getkey()), draw(1, 6, 4), jnp.arange(6) % 3
    rates = md.grow.suggest_rate(cross_entropy, model, x, labels, curvature=1 / 12, **EXACT)
    ((gram, _),) = dense(cross_entropy, model, x, labels)
    np.testing.assert_allclose(rates.bound[0], 24 / top(gram), rtol=1e-8)
    now = md.grow.suggest_rate(cross_entropy, model, x, labels, **EXACT)
    assert now.bound[0] >= rates.bound[0]


def test_a_linear_layer_that_grows_has_the_rate_of_gradient_descent(getkey):
    spec = grown(2, md.Memory(md.Dot(), md.Hebb(0.1)), start="zeros")
    model, x = built(spec, 3, getkey()), draw(1, 8, 3)
    rates = md.grow.suggest_rate(half_square, model, x, draw(2, 8, 2), **EXACT)
    np.testing.assert_allclose(rates.bound[0], 2 / np.linalg.eigvalsh(x.T @ x / 8)[-1], rtol=1e-9)


def test_rows_and_stacked_layers_have_bounds(getkey):
    memory = rbf(rate=0.5)
    block = md.Residual(grown(4, memory))
    stacked = built(md.Repeat(block, 3), 4, getkey())
    x, y = draw(1, 2, 5, 4), draw(2, 2, 5, 4)
    rates = md.grow.suggest_rate(half_square, stacked, x, y, **EXACT)
    layers = stacked.stacked
    unrolled = [
        jax.tree.map(lambda a, i=i: a[i] if eqx.is_array(a) else a, layers) for i in range(3)
    ]

    class Chain(eqx.Module):
        parts: list

        def __call__(self, x):
            for part in self.parts:
                x = part(x)
            return x

    plain = md.grow.suggest_rate(half_square, Chain(unrolled), x, y, **EXACT)
    assert len(rates.rate) == 1 and len(plain.rate) == 3
    # the three have one rate, so that one eigenvalue stands for all of them
    np.testing.assert_allclose(2 * 0.5 / rates.bound[0], 2 * plain.together, rtol=1e-8)


def test_a_convolution_has_the_bound_of_gradient_descent(getkey):
    conv = md.Conv(3, window=3, stride=2, bias=False, trainable=False)
    model = built(md.Grown(conv, md.Memory(md.Dot(), md.Hebb(0.1))), 2, getkey())
    x, y = draw(1, 4, 2, 6, 5), draw(2, 4, 3, 3, 3)

    def of_weights(weight):
        kernel = weight.reshape(3, 2, 3, 3)
        return mean_square(jax.lax.conv_general_dilated(x, kernel, (2, 2), "SAME"), y)

    def mean_square(predictions, targets):
        return jnp.mean((predictions - targets) ** 2)

    rates = md.grow.suggest_rate(mean_square, model, x, y, **EXACT)
    curved = jax.hessian(of_weights)(model.base.weight).reshape(54, 54)
    np.testing.assert_allclose(rates.bound[0], 2 / np.linalg.eigvalsh(curved)[-1], rtol=1e-8)


@pytest.mark.parametrize("negative", ["frozen", "exact"])
def test_the_tangent_kernel_is_what_a_write_does(negative, getkey):
    """`answers - rate T g`, whatever g is: C3 of the weighted softmax layer."""
    memory = md.Memory(
        md.Exp(0.5 * md.Dot()),
        md.Reweight(md.Knob(1.0), spread=1.7, negative=negative),
        capacity=md.Budget(20),
        read=md.Normalised(prior=1.0),
    )
    model, key, error = built(grown(2, memory), 3, getkey()), draw(1, 6, 3), draw(2, 6, 2)
    start = eqx.tree_at(lambda m: m.numbers["write.rate"], model, (jnp.asarray(0.3),))
    model = write(start, (md.grow.Pairs(draw(3, 6, 3), draw(4, 6, 2)),))

    def after(rate):
        moved = eqx.tree_at(lambda m: m.numbers["write.rate"], model, (rate,))
        return jax.vmap(md.grow.write(moved, (md.grow.Pairs(key, error),)))(key)

    step = 1e-5
    slope = (after(jnp.asarray(step)) - after(jnp.asarray(-step))) / (2 * step)
    np.testing.assert_allclose(slope, -tangent(model, key)(error), rtol=1e-7, atol=1e-7)


def test_a_rate_beyond_the_bound_is_warned_of_with_numbers(getkey):
    model, x, y = built(grown(2, rbf(rate=40.0)), 3, getkey()), draw(1, 6, 3), draw(2, 6, 2)
    rates = md.grow.suggest_rate(half_square, model, x, y)
    with pytest.warns(md.grow.RateWarning, match=f"rate 40, .* stable below {rates.bound[0]:.4g} "):
        rates.check()
    two = rates._replace(rate=(1.0, 1.0), bound=(2.0, 2.0), chosen=(1.9, 1.9), together=1.8)
    with pytest.warns(md.grow.RateWarning, match=r"all at once they step 1.8 times too far"):
        two.check()


def test_layers_of_which_nothing_is_known(getkey):
    mean = md.Memory(md.RBF(), md.Hebb(0.5), capacity=md.Budget(8), read=md.Normalised())
    model = built(grown(2, mean), 3, getkey())
    rates = md.grow.suggest_rate(half_square, model, draw(1, 6, 3), draw(2, 6, 2)).check()
    assert rates == ((None,), (None,), (0.5,), 0.0)
    with pytest.raises(md.SpecError, match="no growing layers"):
        md.grow.suggest_rate(
            half_square, built(md.Dense(2), 3, getkey()), draw(1, 6, 3), draw(1, 6, 2)
        )


def test_below_the_bound_training_settles_and_above_it_does_not(getkey):
    x, y = draw(1, 10, 2), draw(2, 10, 2)
    memory = rbf(md.Budget(10, merge=md.AddToNearest()), md.Novelty(0.0), md.Knob(1.0), scale=0.7)
    model = built(grown(2, memory, start="zeros"), 2, getkey())
    (bound,) = md.grow.suggest_rate(half_square, model, x, y, **EXACT).bound

    @eqx.filter_jit
    def last(rate):
        def step(model, _):
            loss, _, pairs = md.grow.backward(half_square, eqx.combine(model, fixed), x, y)
            grown = md.grow.write(eqx.combine(model, fixed), pairs)
            return eqx.filter(grown, eqx.is_array), loss

        start = eqx.tree_at(lambda m: m.numbers["write.rate"], model, (rate,))
        arrays, fixed = eqx.partition(start, eqx.is_array)
        return jax.lax.scan(step, arrays, length=400)[1][-1]

    assert last(jnp.asarray(0.99 * bound)) < 0.1 * last(jnp.asarray(1.01 * bound))
