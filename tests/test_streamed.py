"""Large buffers are read in blocks: the same answers and gradients, and no array of all pairs."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import memdsl as md
from memdsl.grow import _nearest
from memdsl.grow._fold import fold
from memdsl.grow._greedy import _most_coherent
from memdsl.grow._nearest import nearest, squares_between
from memdsl.spec._slots import ground, slots
from memdsl.state import _buffer, _streamed, _usage, read
from memdsl.state._usage import observe


WIDE = jnp.float64


def in_small_blocks(monkeypatch):
    """From now on more than 8 slots are many, and a block has 5."""
    for module in (_buffer, _usage, _nearest):
        monkeypatch.setattr(module, "LARGE", 8)
    for module in (_streamed, _nearest):
        monkeypatch.setattr(module, "BLOCK", 5)


def filled_buffer(memory, count, filled, key, dtype=WIDE):
    """A buffer with atoms in some of its slots, NaN in the others, weights and masses of both signs."""
    memory = memory.replace(capacity=md.Budget(count))
    state = md.empty(memory, 3, 2, dtype=dtype)
    draws = [jax.random.fold_in(key, i) for i in range(4)]
    there = jnp.arange(count) * 7 % count < filled

    def spoil(x):
        return jnp.where(there.reshape(-1, *(1,) * (x.ndim - 1)), x, jnp.nan)

    masses = 1 + 0.3 * jax.random.normal(draws[2], (count,), dtype)
    return state.put(
        keys=spoil(jax.random.normal(draws[0], (count, 3), dtype)),
        values=spoil(jax.random.normal(draws[1], (count, 2), dtype)),
        masses=None if state.masses is None else spoil(masses.at[::4].multiply(-0.5)),
        log_weight=jnp.where(there, -jax.random.uniform(draws[3], (count,), dtype), -jnp.inf),
    )


scale = md.Learned(1.3, squash="exp")
MEMORIES = {
    "rbf": md.Memory(md.RBF(scale), md.Hebb()),
    "laplace": md.Memory(md.Laplace(scale), md.Hebb(), read=md.Evaluate(0.5)),
    "polynomial": md.Memory(md.Polynomial(3, offset=scale), md.Hebb()),
    "sum": md.Memory(md.Dot() + scale * md.RBF(), md.Hebb()),
    "softmax": md.Memory(md.Exp(scale * md.Dot()), read=md.Normalised(prior=md.Learned(0.4))),
    "mean": md.Memory(md.RBF(scale), read=md.Normalised(scale=0.5, prior=1.0)),
    "squares": md.Memory(md.Polynomial(2, offset=scale), read=md.Normalised(prior=1e-3)),
}


def answers(memory, state, queries, numbers):
    grounded = ground(memory, numbers)
    return jax.vmap(lambda q: read(grounded, state, q))(queries)


@pytest.mark.parametrize("name", MEMORIES)
def test_in_blocks_is_at_once_in_value_and_every_gradient(name, monkeypatch, getkey):
    """Of queries, keys, coefficients, masses, weights and the numbers of kernel and read; 23 is a
    prime, so that the last block is filled up, and few atoms leave blocks without any."""
    memory = MEMORIES[name]
    states = [filled_buffer(memory, 23, filled, getkey()) for filled in (23, 3, 0)]
    queries, cotangent = jax.random.normal(getkey(), (4, 3)), jax.random.normal(getkey(), (4, 2))
    numbers = {slot.path: jnp.asarray(0.8) for slot in slots(memory)}

    def total(stored, queries, numbers, state):
        keys, values, masses, log_weight = stored
        own = state.put(keys=keys, values=values, masses=masses, log_weight=log_weight)
        out = answers(memory, own, queries, numbers)
        return jnp.sum(cotangent * out), out

    def found():
        both = jax.jit(jax.value_and_grad(total, argnums=(0, 1, 2), has_aux=True))
        return [both(state.stored, queries, numbers, state) for state in states]

    expected = found()
    in_small_blocks(monkeypatch)
    for one, two in zip(jax.tree.leaves(found()), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "how", [md.TopK(3), md.LocalLinear(0.5), md.TopK(5, by=md.Dot())], ids=repr
)
def test_reads_that_look_at_all_atoms_at_once_are_what_they_were(how, monkeypatch, getkey):
    memory = md.Memory(md.RBF(), read=how)
    state, queries = filled_buffer(memory, 23, 12, getkey()), jax.random.normal(getkey(), (4, 3))
    state = state.put(masses=jnp.abs(state.masses))
    expected = answers(memory, state, queries, {})
    in_small_blocks(monkeypatch)
    np.testing.assert_array_equal(answers(memory, state, queries, {}), expected)


def test_blocks_without_atoms_are_passed_over_and_no_count_compiles_anew(monkeypatch, getkey):
    memory = MEMORIES["rbf"]
    in_small_blocks(monkeypatch)
    queries, numbers = jax.random.normal(getkey(), (4, 3)), {"kernel.scale": jnp.asarray(0.8)}
    run = jax.jit(lambda state: answers(memory, state, queries, numbers))
    for filled in (0, 4, 23):
        run(filled_buffer(memory, 23, filled, jax.random.key(0)))
    assert run._cache_size() == 1
    # under vmap a condition that does not depend on the query is one still
    state = filled_buffer(memory, 23, 4, jax.random.key(0))
    said = str(jax.make_jaxpr(lambda state: answers(memory, state, queries, numbers))(state))
    assert said.count("cond[") == 1


def temp(function, *arguments, **options):
    """The bytes that a compiled function needs besides what goes in and out."""
    compiled = jax.jit(function, **options).lower(*arguments).compile()
    return compiled.memory_analysis().temp_size_in_bytes


MANY, QUERIES = 200_000, 64
WHOLE = 4 * MANY * QUERIES
"""The bytes of one single-precision array of all atoms times all queries."""


@pytest.mark.parametrize(
    "memory",
    [
        md.Memory(md.RBF(), md.Hebb(), capacity=md.Budget(MANY)),
        md.Memory(
            md.Exp(md.Dot()), md.Reweight(0.1), md.Decay(0.9), md.Budget(MANY),
            md.Normalised(prior=1.0),
        ),
    ],
    ids=["rbf", "weighted softmax"],
)  # fmt: skip
def test_a_growing_layer_never_makes_all_atoms_times_all_queries(memory, getkey):
    """Forward, backward to inputs and to atoms, and a write: by what the compiler sets aside."""
    layer = md.Grown(md.Dense(2, start="zeros", trainable=False), memory, trainable=True)
    model = md.build(layer, md.Dims(model=4), key=getkey(), dtype=jnp.float32)
    x = jnp.zeros((QUERIES, 4), jnp.float32)
    arrays, rest = eqx.partition(model, eqx.is_inexact_array)

    def answer(arrays, x):
        return jax.vmap(eqx.combine(arrays, rest))(x)

    def loss(arrays, x):
        return jnp.sum(answer(arrays, x) ** 2)

    assert temp(answer, arrays, x) < WHOLE / 8
    assert temp(jax.grad(loss, argnums=1), arrays, x) < WHOLE / 8
    assert temp(jax.grad(loss, argnums=(0, 1)), arrays, x) < WHOLE / 8

    def write(arrays, pairs):
        return eqx.filter(md.grow.write(eqx.combine(arrays, rest), (pairs,)), eqx.is_array)

    pairs = md.grow.Pairs(x, jnp.zeros((QUERIES, 2), jnp.float32))
    assert temp(write, arrays, pairs, donate_argnums=0) < WHOLE / 4  # room for a copy of the keys


@pytest.mark.parametrize("gate", [md.Keep(), md.Novelty(1.0)], ids=repr)
def test_a_write_that_recalls_does_not_copy_the_keys(gate, getkey):
    memory = md.Memory(
        md.Exp(md.Dot()), md.Reweight(0.1), gate, md.Budget(MANY, merge=md.AddToNearest()),
        md.Normalised(prior=1.0),
    )  # fmt: skip
    state = jax.eval_shape(lambda: md.empty(memory, 64, 2))
    keys, errors = jnp.zeros((QUERIES, 64), jnp.float32), jnp.zeros((QUERIES, 2), jnp.float32)
    write = functools.partial(fold, memory)
    assert temp(write, state, keys, errors, donate_argnums=0) < state.keys.size  # a quarter of it


@pytest.mark.parametrize(
    ("gate", "capacity"),
    [
        (md.Novelty(0.1), md.Budget(MANY, merge=md.AddToNearest())),
        (md.Coherence(0.9), md.Budget(MANY, md.LeastUsed())),
    ],
    ids=["novelty", "coherence and usage"],
)
def test_nor_does_what_decides_about_a_batch(gate, capacity, getkey):
    memory = md.Memory(md.RBF(), md.Hebb(), gate, capacity)
    state = jax.eval_shape(lambda: md.empty(memory, 4, 2))
    keys, errors = jnp.zeros((QUERIES, 4), jnp.float32), jnp.zeros((QUERIES, 2), jnp.float32)
    assert temp(functools.partial(fold, memory), state, keys, errors, donate_argnums=0) < WHOLE / 4


@pytest.mark.parametrize("allowed", [23, 4, 0])
def test_the_nearest_in_blocks_is_the_nearest(allowed, monkeypatch, getkey):
    """Among keys that are there several times: the first of them."""
    keys = jnp.round(jax.random.normal(getkey(), (23, 2)))
    queries = jnp.concatenate([keys[::5], jax.random.normal(getkey(), (9, 2))])
    where = jnp.arange(23) * 3 % 23 < allowed
    squares = jnp.where(where[None, :], squares_between(keys, queries), jnp.inf)
    in_small_blocks(monkeypatch)
    monkeypatch.setattr(_nearest, "_SCREENED", 0)
    monkeypatch.setattr(_nearest, "_CANDIDATES", 2)
    square, slot = jax.jit(nearest)(keys, where, queries)
    np.testing.assert_array_equal(slot, jnp.argmin(squares, axis=1))
    np.testing.assert_allclose(square, jnp.min(squares, axis=1), rtol=1e-12)


def test_usage_and_coherence_in_blocks_are_those_of_the_whole(monkeypatch, getkey):
    used = md.Memory(md.RBF(), capacity=md.Budget(23, md.LeastUsed(0.9)))
    dots = md.Memory(md.Polynomial(3), capacity=md.Budget(23, md.LeastUsed(0.9)))
    queries = jax.random.normal(getkey(), (4, 3))

    def found():
        states = [filled_buffer(m, 23, 9, jax.random.key(1)) for m in (used, dots)]
        usage = [observe(m, s, queries).usage for m, s in zip((used, dots), states, strict=True)]
        return *usage, _most_coherent(dots, states[0], states[0].valid, queries)

    expected = found()
    in_small_blocks(monkeypatch)
    for one, two in zip(found(), expected, strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-12)
        assert np.any(np.asarray(two) > 0)
