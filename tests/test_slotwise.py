"""Optimisers of stored atoms: each slot beside an optimiser of its own, written by hand."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import memdsl as md

from .test_grow import backward, built, grown, half_square, rbf


def draw(seed, *shape):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape))


@pytest.fixture
def promotion():
    """Adam of optax raises floats to whole powers, which strict promotion refuses."""
    with jax.numpy_dtype_promotion("standard"):
        yield


def stepper(optimiser):
    """One step of training, compiled: `(model, state, updates)`."""

    @eqx.filter_jit
    def step(model, state, x, y):
        _, gradients, pairs = md.grow.backward(half_square, model, x, y)
        updates, state = optimiser.update(gradients, state, md.grow.parameters(model), model=model)
        return md.grow.write(eqx.apply_updates(model, updates), pairs), state, updates, gradients

    return step


@pytest.mark.usefixtures("promotion")
def test_every_slot_is_trained_by_an_optimiser_of_its_own(getkey):
    """Seven atoms in three slots, so that the oldest are rewritten: each beside plain Adam."""
    plain = optax.adamw(0.1, weight_decay=0.3)
    memory = rbf(md.Budget(3), rate=0.5)
    model = built(grown(2, memory, trainable=True), 3, getkey())
    optimiser = md.grow.slotwise(plain)
    state, step = optimiser.init(md.grow.parameters(model)), stepper(optimiser)
    known = {}
    for turn in range(7):
        before = model.state
        model, state, updates, gradients = step(
            model, state, draw(turn, 1, 3), draw(turn + 50, 1, 2)
        )
        for slot in range(3):
            move = jax.tree.map(lambda a, s=slot: a[s], (updates.state.keys, updates.state.values))
            if not before.valid[slot]:
                assert not jnp.any(move[0]) and not jnp.any(move[1])
                continue
            atom = int(before.birth[slot])
            held = (before.keys[slot], before.values[slot])
            slope = (gradients.state.keys[slot], gradients.state.values[slot])
            expected, known[atom] = plain.update(slope, known.get(atom, plain.init(held)), held)
            for mine, theirs in zip(move, expected, strict=True):
                np.testing.assert_allclose(mine, theirs, rtol=1e-9, atol=1e-13)
            assert state.atoms[0].atom[slot] == atom
            assert state.atoms[0].inner[0].count[slot] == known[atom][0].count
    assert len(known) == 6


@pytest.mark.usefixtures("promotion")
def test_in_a_scan_and_in_a_chain(getkey):
    memory = rbf(md.Budget(4), rate=0.5)
    spec = grown(3, memory, trainable=True) >> md.Relu() >> md.Dense(2)
    model, x, y = built(spec, 3, getkey()), draw(1, 6, 2, 3), draw(2, 6, 2, 2)
    optimiser = optax.chain(
        optax.clip_by_global_norm(0.1), md.grow.slotwise(optax.scale_by_adam()), optax.scale(-0.1)
    )
    start = optimiser.init(md.grow.parameters(model))
    one, state, step = model, start, stepper(optimiser)
    for inputs, targets in zip(x, y, strict=True):
        one, state, _, _ = step(one, state, inputs, targets)
    arrays, fixed = eqx.partition(model, eqx.is_array)

    @jax.jit
    def scanned(arrays, state):
        def body(carry, batch):
            after, state, _, _ = step(eqx.combine(carry[0], fixed), carry[1], *batch)
            return (eqx.filter(after, eqx.is_array), state), None

        return jax.lax.scan(body, (arrays, state), (x, y))[0]

    two, _ = scanned(arrays, start)
    for mine, theirs in zip(
        jax.tree.leaves(eqx.filter(one, eqx.is_array)), jax.tree.leaves(two), strict=True
    ):
        np.testing.assert_allclose(mine, theirs, rtol=1e-12, atol=1e-14)


@pytest.mark.usefixtures("promotion")
def test_empty_slots_are_inert_whatever_they_hold(getkey):
    model = built(grown(2, rbf(md.Budget(5)), trainable=True), 3, getkey())
    optimiser = md.grow.slotwise(optax.adamw(0.1, weight_decay=0.5))
    start, step = optimiser.init(md.grow.parameters(model)), stepper(optimiser)
    model, state, _, _ = step(model, start, draw(1, 2, 3), draw(2, 2, 2))
    spoiled = model.state.put(
        **{name: getattr(model.state, name).at[2:].set(jnp.nan) for name in ("keys", "values")}
    )
    spoiled = eqx.tree_at(lambda m: m.state, model, spoiled)
    clean, dirty = (step(m, state, draw(3, 2, 3), draw(4, 2, 2)) for m in (model, spoiled))
    for mine, theirs in zip(jax.tree.leaves(clean[1:3]), jax.tree.leaves(dirty[1:3]), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    for array, first in zip(
        jax.tree.leaves(dirty[1].atoms), jax.tree.leaves(start.atoms), strict=True
    ):
        np.testing.assert_array_equal(array[2:], first[2:])
    assert not jnp.any(dirty[2].state.keys[2:])
    assert list(dirty[1].atoms[0].inner[0].count) == [1, 1, 0, 0, 0]


@pytest.mark.parametrize("negative", ["exact", "frozen"])
def test_masses_are_trained_in_the_logarithm(negative, getkey):
    memory = md.Memory(
        md.Exp(0.5 * md.Dot()),
        md.Reweight(1.5, negative=negative),
        capacity=md.Budget(6),
        read=md.Normalised(prior=1.0),
    )
    model = built(grown(2, memory, trainable=True), 3, getkey())
    key, error = draw(1, 4, 3), draw(2, 4, 2)
    for _ in range(2):  # the first pairs find an answer of 0, and so no mass
        model = md.grow.write(model, (md.grow.Pairs(key[:2], error[:2]),))
        key, error = key[2:], error[2:]
    masses = model.state.masses[:4]
    assert (negative == "exact") == bool(jnp.any(masses != 0))
    x, y = draw(5, 3, 3), draw(6, 3, 2)
    optimiser = md.grow.slotwise(optax.sgd(0.3))
    state = optimiser.init(md.grow.parameters(model))
    _, gradients, _ = backward(half_square, model, x, y)
    updates, _ = optimiser.update(gradients, state, md.grow.parameters(model), model=model)

    def loss(logs):
        moved = jnp.sign(masses) * jnp.exp(logs)
        whole = model.state.put(masses=model.state.masses.at[:4].set(moved))
        return half_square(jax.vmap(eqx.tree_at(lambda m: m.state, model, whole))(x), y)

    logs = jnp.log(jnp.where(masses == 0, 1, jnp.abs(masses)))
    slope = jnp.where(masses == 0, 0, jax.grad(loss)(logs))
    expected = masses * jnp.exp(-0.3 * slope)
    after = eqx.apply_updates(model, updates).state.masses
    np.testing.assert_allclose(after[:4], expected, rtol=1e-12)
    assert jnp.all(jnp.sign(after) == jnp.sign(model.state.masses))


@pytest.mark.usefixtures("promotion")
def test_stacked_layers_are_trained_as_their_unrolled_ones(getkey):
    block = md.Residual(grown(3, rbf(md.Budget(4)), trainable=True))
    model = built(md.Repeat(block, 2), 3, getkey())
    optimiser = md.grow.slotwise(optax.adam(0.1))
    state, step = optimiser.init(md.grow.parameters(model)), stepper(optimiser)
    for turn in range(4):
        model, state, _, gradients = step(model, state, draw(turn, 1, 3), draw(turn + 9, 1, 3))
    (own,) = state.atoms
    assert own.atom.shape == (2, 4)
    np.testing.assert_array_equal(own.inner[0].count, [[3, 2, 1, 0]] * 2)
    assert gradients.stacked.layer.state.keys.shape == (2, 4, 3)


@pytest.mark.usefixtures("promotion")
def test_without_atoms_it_is_the_optimiser(getkey):
    model, x, y = built(grown(2, rbf()) >> md.Dense(2), 3, getkey()), draw(1, 4, 3), draw(2, 4, 2)
    _, gradients, _ = backward(half_square, model, x, y)
    weights, plain = md.grow.parameters(model), optax.adam(0.1)
    mine, _ = md.grow.slotwise(plain).update(
        gradients, md.grow.slotwise(plain).init(weights), weights
    )
    theirs, _ = plain.update(gradients, plain.init(weights), weights)
    assert eqx.tree_equal(mine, theirs)


def test_weights_may_have_an_optimiser_of_their_own(getkey):
    spec = md.Grown(md.Dense(2), rbf(md.Budget(4)), trainable=True)
    model, x, y = built(spec, 3, getkey()), draw(1, 4, 3), draw(2, 4, 2)
    model = md.grow.write(model, (md.grow.Pairs(x, y),))
    optimiser = md.grow.slotwise(optax.sgd(0.0), weights=optax.sgd(1.0))
    _, gradients, _ = backward(half_square, model, x, y)
    weights = md.grow.parameters(model)
    updates, _ = optimiser.update(gradients, optimiser.init(weights), weights, model=model)
    assert not jnp.any(updates.state.values)
    np.testing.assert_array_equal(updates.base.weight, -gradients.base.weight)


def test_the_model_is_asked_for(getkey):
    model = built(grown(2, rbf(md.Budget(4)), trainable=True), 3, getkey())
    optimiser, weights = md.grow.slotwise(optax.sgd(0.1)), md.grow.parameters(model)
    state = optimiser.init(weights)
    with pytest.raises(md.SpecError, match="not given the model"):
        optimiser.update(weights, state, weights)
    larger = md.grow.resize(model, 8)
    with pytest.raises(md.SpecError, match="not given the model"):
        optimiser.update(weights, state, weights, model=larger)
    weights = md.grow.parameters(larger)
    with pytest.raises(md.SpecError, match=r"the state of slotwise is of \[\(4,\)\]"):
        optimiser.update(weights, state, weights, model=larger)
