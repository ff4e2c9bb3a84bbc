"""Growing by what is solved, by momentum, by orthogonal steps, and by several memories at once."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import memdsl as md
from memdsl.grow._tangent import tangent
from memdsl.state import SolvedState

from .test_grow import backward, grown, half_square, rbf, write


ZERO = functools.partial(grown, start="zeros")


def draw(seed, *shape):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape))


def gaussian(keys, queries, scale=1.0):
    square = np.sum((np.asarray(keys)[:, None] - np.asarray(queries)[None]) ** 2, -1)
    return np.exp(-square / (2 * scale**2))


def worst(a, b):
    return float(np.max(np.abs(np.asarray(a) - np.asarray(b))))


def built(spec, width=3, dtype=jnp.float64):
    return md.build(spec, md.Dims(model=width), key=jax.random.key(0), dtype=dtype)


def written(model, keys, errors):
    """The model after some batches of pairs that are given."""
    for pair in zip(keys, errors, strict=True):
        model = write(model, (md.grow.Pairs(*pair),))
    return model


@eqx.filter_jit
def asked(model, queries):
    return jax.vmap(model)(queries)


def answers(memory, keys, errors, queries):
    """What a layer over a base of zeros answers after some batches."""
    model = built(ZERO(errors.shape[-1], memory))
    return asked(written(model, keys, errors), queries)


KEYS, ERRORS, QUERIES = draw(1, 3, 4, 3), draw(2, 3, 4, 2), draw(3, 4, 3)


def ridge(capacity=None, gate=None, strength=0.1, rate=1.5, solver=None, kernel=None):
    write = md.Ridge(strength, rate=rate, solver=solver or md.Cholesky())
    capacity = capacity or md.Budget(64)
    return md.Memory(kernel or md.RBF(), write, gate or md.Keep(), capacity)


# ---- Ridge


GATES = {"keep": md.Keep(), "decay": md.Decay(0.8), "novel": md.Novelty(0.9)}
CAPACITIES = {
    "roomy": md.Budget(64),
    "ring": md.Budget(7),
    "sinks": md.Budget(5, evict=md.Oldest(sinks=2)),
    "smallest": md.Budget(7, evict=md.Smallest()),
    "reservoir": md.Budget(7, evict=md.Random(seed=3, reservoir=True)),
    "leave one out": md.Budget(7, evict=md.LeaveOneOut()),
}
QUICK = {("keep", "sinks"), ("decay", "ring")}


@pytest.mark.parametrize(
    ("gate", "capacity"),
    [
        pytest.param(g, c, marks=() if (g, c) in QUICK else (pytest.mark.slow,))
        for g in GATES
        for c in CAPACITIES
    ],
)
def test_ridge_grows_as_a_sequence_of_pairs_with_targets_of_its_own(gate, capacity):
    """A write is a bare run of `Ridge` over (x, f(x) - rate g), which is solved anew at every read."""
    memory = ridge(CAPACITIES[capacity], GATES[gate])
    model = built(ZERO(2, memory))
    free = md.Decay(md.FromInput("sigmoid")) if gate == "decay" else GATES[gate]
    sequence = memory.replace(write=md.Ridge(0.1), gate=free)
    theirs = md.empty(sequence, 3, 2, dtype=jnp.float64)
    solved = jax.jit(lambda state, q: jax.vmap(lambda x: state.solved(sequence, x))(q))
    for keys, errors in zip(KEYS, ERRORS, strict=True):
        np.testing.assert_allclose(asked(model, keys), solved(theirs, keys), rtol=0, atol=1e-11)
        model = written(model, keys[None], errors[None])
        targets = solved(theirs, keys) - 1.5 * errors
        faded = {"log_decay": jnp.zeros(4).at[0].set(jnp.log(0.8))} if gate == "decay" else {}
        theirs, _ = md.run(
            sequence, theirs, keys, targets, keys, using="buffer / recurrent", **faded
        )
    mine = model.state.problem
    assert jax.tree.all(jax.tree.map(jnp.array_equal, mine.counts, theirs.counts))
    np.testing.assert_array_equal(mine.valid, theirs.valid)
    for name in ("keys", "birth", "log_weight", "values"):
        one, two = (np.asarray(getattr(s, name))[np.asarray(mine.valid)] for s in (mine, theirs))
        np.testing.assert_allclose(one, two, rtol=1e-9, atol=1e-11, err_msg=name)
    np.testing.assert_allclose(asked(model, QUERIES), solved(theirs, QUERIES), atol=1e-11)
    if model.state.factor is not None:
        matrix = np.asarray(mine.problem(memory)[0])[np.ix_(mine.valid, mine.valid)]
        factor = np.asarray(model.state.factor)[np.ix_(mine.valid, mine.valid)]
        np.testing.assert_allclose(factor @ factor.T, matrix, atol=1e-12)
        np.testing.assert_array_equal(factor, np.tril(factor))


def test_a_batch_is_one_block_of_the_recursion():
    """Coefficients at new keys `-rate (strength + covariance)^-1 g`, and their echo at the old ones."""
    model = built(ZERO(2, ridge()))
    before = written(model, KEYS[:2], ERRORS[:2])
    old, new = np.asarray(KEYS[:2]).reshape(8, 3), np.asarray(KEYS[2])
    known = np.linalg.solve(gaussian(old, old) + 0.1 * np.eye(8), gaussian(old, new))
    left = gaussian(new, new) - gaussian(new, old) @ known
    own = np.linalg.solve(left + 0.1 * np.eye(4), -1.5 * np.asarray(ERRORS[2]))
    after = written(before, KEYS[2:], ERRORS[2:]).state.solution
    np.testing.assert_allclose(after[8:12], own, rtol=1e-10)
    np.testing.assert_allclose(after[:8], before.state.solution[:8] - known @ own, rtol=1e-9)


def test_a_key_that_is_known_moves_less():
    """In literal numbers: `1 / (1 + 1/4)` of the step, then what a variance of `1/5` leaves."""
    x, error = draw(4, 1, 1, 3), jnp.asarray([[[1.0]]])
    model = built(ZERO(1, ridge(strength=0.25, rate=1.0)))
    found = []
    for _ in range(3):
        model = written(model, x, error)
        found.append(float(model(x[0, 0])[0]))
    steps = np.diff([0.0, *found])
    # the variance is 1, then 1/5, then 1/9: strength / (strength / 1 + times)
    np.testing.assert_allclose(
        steps, [-1 / 1.25, -(1 / 5) / (1 / 5 + 1 / 4), -(1 / 9) / (1 / 9 + 1 / 4)]
    )


def test_a_gram_matrix_is_a_buffer_of_a_finite_kernel():
    for gate in (md.Keep(), md.Decay(0.7)):
        buffer = ridge(kernel=md.Polynomial(2), gate=gate)
        gram = buffer.replace(capacity=md.All())
        assert built(ZERO(2, gram)).representation == "gram"
        one, two = (answers(memory, KEYS, ERRORS, QUERIES) for memory in (buffer, gram))
        np.testing.assert_allclose(one, two, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize(
    "changes",
    [
        {"strength": md.Knob(0.1)},
        {"kernel": md.RBF(scale=md.Knob(1.0))},
        pytest.param(
            {"solver": md.ConjugateGradient(steps=60, tolerance=1e-24)}, marks=pytest.mark.slow
        ),
        pytest.param({"solver": md.GaussSeidel(400)}, marks=pytest.mark.slow),
    ],
    ids=["knob", "kernel", "gradients", "sweeps"],
)
def test_where_no_factor_is_kept_the_solution_is_the_same(changes):
    model = built(ZERO(2, ridge(**changes)))
    assert model.state.factor is None
    found = asked(written(model, KEYS, ERRORS), QUERIES)
    np.testing.assert_allclose(found, answers(ridge(), KEYS, ERRORS, QUERIES), atol=1e-8)


def test_a_strength_that_is_turned_is_that_of_the_write():
    """A write solves for all pairs with the strength of the day; targets stay what they were."""
    model = built(ZERO(2, ridge(strength=md.Knob(1.0))))
    keys, targets, answer = np.zeros((0, 3)), np.zeros((0, 2)), lambda q: np.zeros((len(q), 2))
    for batch, errors, strength in zip(KEYS, ERRORS, (1.0, 0.5, 0.1), strict=True):
        knob = jnp.asarray([strength])
        model = eqx.tree_at(lambda m: m.numbers["write.strength"][0], model, knob)
        model = written(model, batch[None], errors[None])
        targets = np.concatenate([targets, answer(batch) - 1.5 * np.asarray(errors)])
        keys = np.concatenate([keys, batch])
        system = gaussian(keys, keys) + strength * np.eye(len(keys))
        solved = np.linalg.solve(system, targets)
        answer = lambda q, k=keys, c=solved: gaussian(q, k) @ c  # noqa: E731
    np.testing.assert_allclose(asked(model, QUERIES), answer(QUERIES), atol=1e-12)


def test_single_precision_stays_near_the_problem_it_solves():
    """Forty appended blocks of near keys, beside the problem solved in double precision."""
    keys, errors = draw(5, 40, 5, 2).astype(jnp.float32), draw(6, 40, 5, 2).astype(jnp.float32)
    memory = ridge(md.Budget(200), strength=0.01)
    model = built(ZERO(2, memory), 2, jnp.float32)
    model = written(model, keys, errors)
    state = model.state
    assert state.solution.dtype == jnp.float32
    stored = np.asarray(state.problem.keys, np.float64)
    system = gaussian(stored, stored) + 0.01 * np.eye(200)
    solved = np.linalg.solve(system, np.asarray(state.problem.values, np.float64))
    queries = draw(7, 50, 2)
    wanted = gaussian(queries, stored) @ solved
    found = asked(model, queries.astype(jnp.float32))
    assert worst(found, wanted) < 1e-4 * np.max(np.abs(wanted))


def test_a_write_moves_the_answers_by_its_tangent_kernel():
    """Which is what `suggest_rate` looks at, for a buffer and for a Gram matrix."""
    for memory in (ridge(), ridge(kernel=md.Dot()).replace(capacity=md.All())):
        model = written(built(ZERO(2, memory)), KEYS[:2], ERRORS[:2])
        moved = asked(written(model, KEYS[2:], ERRORS[2:]), KEYS[2]) - asked(model, KEYS[2])
        np.testing.assert_allclose(-1.5 * tangent(model, KEYS[2])(ERRORS[2]), moved, atol=1e-12)
    rates = md.grow.suggest_rate(half_square, model, KEYS[2], ERRORS[2])
    assert rates.chosen == (1.5,) and rates.bound[0] > 2 * 4  # no eigenvalue is above 1 / batch


@pytest.mark.parametrize(
    "evict",
    [md.Oldest(), pytest.param(md.LeaveOneOut(), marks=pytest.mark.slow)],
    ids=["oldest", "leave one out"],
)
def test_a_resize_of_what_is_solved_changes_nothing(evict):
    """In the middle of growing, up and down again, with holes that only `LeaveOneOut` leaves."""
    model = built(ZERO(2, ridge(md.Budget(9, evict=evict))))
    model = written(model, KEYS[:2], ERRORS[:2])
    larger = md.grow.resize(model, 30)
    np.testing.assert_allclose(asked(larger, QUERIES), asked(model, QUERIES), atol=1e-13)
    wide = written(larger, KEYS[2:], ERRORS[2:])
    roomy = answers(ridge(), KEYS, ERRORS, QUERIES)
    np.testing.assert_allclose(asked(wide, QUERIES), roomy, atol=1e-11)
    back = written(md.grow.resize(larger, 9), KEYS[2:], ERRORS[2:])
    same = asked(written(model, KEYS[2:], ERRORS[2:]), QUERIES)
    np.testing.assert_allclose(asked(back, QUERIES), same, atol=1e-11)


def test_what_is_solved_is_trained_saved_and_attributed(tmp_path):
    """One trace while it fills, buffers donated, a file, and answers as sums over examples."""
    model = md.build(ZERO(2, ridge(md.Budget(20))), md.Dims(model=3), key=jax.random.key(0))
    traces = []

    @eqx.filter_jit(donate="all-except-first")
    def step(x, model):
        traces.append(1)
        _, _, pairs = backward(half_square, model, x, jnp.sin(x[:, :2]))
        return md.grow.write(model, pairs)

    for start in range(6):
        factor = model.state.factor
        model = step(draw(start, 5, 3).astype(jnp.float32), model)
        assert factor.is_deleted()
    assert len(traces) == 1 and int(model.state.problem.counts.evicted) == 10
    assert md.grow.parameters(model).state.solution is None
    md.save(tmp_path / "grown.md", model)
    again, x = md.load(tmp_path / "grown.md"), draw(9, 3).astype(jnp.float32)
    np.testing.assert_array_equal(again(x), model(x))
    found = md.grow.attribute(again, x)
    assert len(found.ids) == 20 and set(found.ids) == set(range(10, 30))
    np.testing.assert_allclose(found.answer, model(x), atol=1e-5)


# ---- Descent


def descent(kernel=None, capacity=None, gate=None, loss=None, **options):
    write = md.Descent(loss or md.Inner(), **{"rate": 0.7, **options})
    return md.Memory(kernel or md.RBF(), write, gate or md.Keep(), capacity or md.Budget(64))


def test_a_plain_descent_is_hebb():
    one, two = (answers(m, KEYS, ERRORS, QUERIES) for m in (descent(rate=0.5), rbf()))
    np.testing.assert_array_equal(one, two)


def test_a_linear_layer_with_momentum_is_sgd_with_momentum():
    """Two layers, beside optax on their weights."""
    memory = descent(md.Dot(), momentum=0.9, rate=0.2).replace(capacity=md.All())
    model = built(grown(5, memory) >> md.Relu() >> grown(2, memory))
    bases = [model.layers[0].base.weight, model.layers[2].base.weight]
    weights, optimiser = list(bases), optax.sgd(0.2, momentum=0.9)
    state = optimiser.init(weights)

    @jax.jit
    def loss(weights, x, y):
        return half_square(jax.nn.relu(x @ weights[0].T) @ weights[1].T, y)

    for x, y in zip(KEYS, ERRORS, strict=True):
        _, _, pairs = backward(half_square, model, x, y)
        model = write(model, pairs)
        updates, state = optimiser.update(jax.grad(loss)(weights, x, y), state)
        weights = optax.apply_updates(weights, updates)
    for layer, weight, base in zip(md.grow.growing(model), weights, bases, strict=True):
        found = layer.state.parts()["function"].matrix.T
        np.testing.assert_allclose(base + found, weight, atol=1e-14)


@pytest.mark.parametrize("momentum", [None, 0.6], ids=["without", "momentum"])
@pytest.mark.parametrize("orthogonalise", [False, True], ids=["plain", "orthogonal"])
def test_a_descent_is_the_same_on_atoms_and_on_a_matrix(momentum, orthogonalise):
    buffer = descent(
        md.Polynomial(2),
        gate=md.Decay(0.9),
        momentum=momentum,
        orthogonalise=orthogonalise,
        gain=0.3,
    )
    matrix = buffer.replace(capacity=md.All())
    assert built(ZERO(2, matrix)).representation == "matrix"
    one, two = (answers(memory, KEYS, ERRORS, QUERIES) for memory in (buffer, matrix))
    np.testing.assert_allclose(one, two, rtol=1e-9, atol=1e-12)


def inverse_root(matrix):
    values, vectors = np.linalg.eigh(matrix)
    return vectors @ np.diag(values**-0.5) @ vectors.T


def muon_by_hand(keys, errors, queries, room, momentum=0.6, gain=0.3, decay=0.9):
    """`s <- mu s - rate g`, `f <- decay f + gain U (U^T K U)^-1/2`, the oldest atoms forgotten."""
    stored, f, s = np.zeros((0, 3)), np.zeros((0, 2)), np.zeros((0, 2))
    for batch, error in zip(np.asarray(keys), np.asarray(errors), strict=True):
        stored = np.concatenate([stored, batch])[-room:]
        f = np.concatenate([decay * f, np.zeros_like(error)])[-room:]
        s = np.concatenate([momentum * s, -0.7 * error])[-room:]
        f = f + gain * s @ inverse_root(s.T @ gaussian(stored, stored) @ s)
    return gaussian(queries, stored) @ f


@pytest.mark.parametrize(
    "room", [pytest.param(64, marks=pytest.mark.slow), 9], ids=["roomy", "ring"]
)
def test_kernel_muon_by_hand(room):
    """And an atom that leaves takes its part of the momentum with it."""
    memory = descent(
        capacity=md.Budget(room), gate=md.Decay(0.9), momentum=0.6, orthogonalise=True, gain=0.3
    )
    found = answers(memory, KEYS, ERRORS, QUERIES)
    np.testing.assert_allclose(found, muon_by_hand(KEYS, ERRORS, QUERIES, room), atol=1e-12)


def test_with_one_output_an_orthogonal_step_is_a_normalised_gradient():
    keys, errors = KEYS[:1], ERRORS[:1, :, :1]
    found = answers(descent(orthogonalise=True, gain=0.3), keys, errors, QUERIES)
    g = np.asarray(errors[0])
    size = np.sqrt((g.T @ gaussian(keys[0], keys[0]) @ g)[0, 0])
    np.testing.assert_allclose(found, -0.3 * gaussian(QUERIES, keys[0]) @ g / size, atol=1e-14)


@pytest.mark.parametrize("momentum", [None, 0.9], ids=["without", "momentum"])
def test_an_orthogonal_step_sees_no_scale_and_invents_no_direction(momentum):
    """Errors of a softmax, which add up to 0; tiny ones; and none at all."""
    spread = jnp.array([[1.0, -1.0, 0.0], [1.0, 1.0, -2.0]])
    errors = (ERRORS @ spread).astype(jnp.float32)
    keys, queries = KEYS.astype(jnp.float32), QUERIES.astype(jnp.float32)
    memory = descent(orthogonalise=True, gain=0.3, momentum=momentum)
    model = built(ZERO(3, memory), dtype=jnp.float32)
    found = asked(written(model, keys, errors), queries)
    assert worst(jnp.sum(found, 1), 0) < 1e-4 < 0.01 * float(jnp.max(jnp.abs(found)))
    small = asked(written(model, keys, 1e-25 * errors), queries)
    np.testing.assert_allclose(small, found, atol=1e-4)
    np.testing.assert_array_equal(asked(written(model, keys, 0 * errors), queries), 0)


def test_atoms_with_momentum_are_judged_by_the_function_alone():
    """A large momentum on a small coefficient: it is the small coefficient that goes."""
    memory = descent(capacity=md.Budget(2, evict=md.Smallest()), momentum=1.0, gain=1.0, rate=1.0)
    model = built(ZERO(1, memory))
    model = written(model, KEYS[:1, :2], jnp.asarray([[[-3.0], [-1.0]]]))
    function = model.state.function.put(values=jnp.asarray([[3.0, 0.0], [1.0, 50.0]]))
    model = eqx.tree_at(lambda m: m.state, model, model.state.put(function))
    after = written(model, KEYS[:1, 2:3], jnp.asarray([[[-2.0]]])).state.parts()["function"]
    np.testing.assert_array_equal(after.birth, [0, 2])


# ---- several memories


WIDE = rbf(md.Budget(64), rate=0.4, scale=2.0)
NARROW = rbf(md.Budget(64), rate=0.7, scale=0.6)
NEEDLE = rbf(md.Budget(64), rate=0.7, scale=1e-3)


def parts_after(memory, batches=3):
    model = written(built(ZERO(2, memory)), KEYS[:batches], ERRORS[:batches])
    return model, {part.path: part for part in model.parts()}


def test_a_sum_is_written_in_all_its_parts():
    model, parts = parts_after(WIDE + NARROW)
    for alone, path in ((WIDE, "first"), (NARROW, "second")):
        single = parts_after(alone)[0].state
        assert jax.tree.all(jax.tree.map(jnp.array_equal, parts[path].state, single))
    both = md.Memory(md.RBF(scale=2.0) + md.RBF(scale=0.6), md.Hebb(0.4), capacity=md.Budget(64))
    equal = WIDE + NARROW.replace(write=md.Hebb(0.4))
    found = (answers(memory, KEYS, ERRORS, QUERIES) for memory in (both, equal))
    np.testing.assert_allclose(*found, atol=1e-13)
    assert model.representation == "buffer + buffer"


def test_what_boosts_is_written_with_the_rest_of_the_move():
    """The coefficients of both, written out."""
    _, parts = parts_after(WIDE.boost(NARROW))
    first, second = -0.4 * ERRORS, []
    for keys, errors, move in zip(KEYS, ERRORS, first, strict=True):
        second.append(-0.7 * errors - gaussian(keys, keys, 2.0) @ move)
    np.testing.assert_allclose(parts["first"].state.values[:12], first.reshape(12, 2))
    second = np.concatenate(second)
    np.testing.assert_allclose(parts["second"].state.values[:12], second, atol=1e-14)


@pytest.mark.parametrize(
    "first",
    [
        WIDE,
        ridge(),
        md.Memory(md.Dot(), md.Ridge(0.1)),
        descent(momentum=0.9, orthogonalise=True),
        md.Memory(md.RBF(), md.Reweight(0.5), capacity=md.Budget(9), read=md.Normalised(prior=1.0)),
    ],
    ids=["Hebb", "Ridge", "Gram matrix", "Muon", "Reweight"],
)
def test_a_needle_makes_up_for_whatever_the_first_has_done(first):
    """Where what boosts can do as it likes at every key, both together move by its rate times -g."""
    model = built(ZERO(2, first.boost(NEEDLE)))
    for keys, errors in zip(KEYS, ERRORS, strict=True):
        before = asked(model, keys)
        model = written(model, keys[None], errors[None])
        np.testing.assert_allclose(asked(model, keys) - before, -0.7 * errors, atol=1e-12)


def test_boosting_what_never_writes_is_being_alone():
    never = WIDE.replace(gate=md.Never())
    for second in (NARROW, ridge()):
        found = answers(never.boost(second), KEYS, ERRORS, QUERIES)
        np.testing.assert_allclose(found, answers(second, KEYS, ERRORS, QUERIES), atol=1e-13)


def test_boosting_is_associative():
    third = ridge(kernel=md.RBF(scale=0.3))
    left, right = WIDE.boost(NARROW).boost(third), WIDE.boost(NARROW.boost(third))
    one, two = (answers(memory, KEYS, ERRORS, QUERIES) for memory in (left, right))
    np.testing.assert_allclose(one, two, atol=1e-13)


def test_a_solved_memory_aims_at_what_is_left():
    """Where it is all but unconstrained, the answers come to where a step would have them."""
    model = built(ZERO(2, WIDE.boost(ridge(strength=1e-9, rate=0.7))))
    after = written(model, KEYS[:1], ERRORS[:1])
    np.testing.assert_allclose(asked(after, KEYS[0]), -0.7 * ERRORS[0], atol=1e-7)


def test_composites_are_resized_counted_attributed_and_saved(tmp_path):
    gated = md.Memory(md.RBF(scale=0.6), md.Hebb(0.7), md.Novelty(0.5), md.Budget(20))
    memory = (WIDE.replace(capacity=md.Budget(20)) + ridge(md.Budget(20))).boost(gated)
    spec = ZERO(2, memory)
    assert md.from_json(md.to_json(spec)) == spec
    model = written(built(spec), KEYS, ERRORS)
    first, second = model.state
    assert [int(s.counts.attempted) for s in (first[0], first[1].problem, second)] == [12] * 3
    larger = md.grow.resize(model, 33)
    assert larger.spec == ZERO(2, built(larger.spec).memory)
    assert [part.state.count.shape for part in larger.parts()] == [()] * 3
    np.testing.assert_allclose(asked(larger, QUERIES), asked(model, QUERIES), atol=1e-13)
    md.save(tmp_path / "grown.md", larger)
    np.testing.assert_allclose(
        asked(md.load(tmp_path / "grown.md"), QUERIES), asked(larger, QUERIES), atol=1e-5
    )
    found = md.grow.attribute(model, QUERIES[0])
    np.testing.assert_allclose(found.answer, model(QUERIES[0]), atol=1e-12)
    admitted = int(second.counts.admitted)
    assert len(found.ids) == 24 + admitted and len(found.examples().ids) == 12
    with pytest.raises(md.SpecError, match="number their atoms each for itself"):
        md.grow.attribute(model, QUERIES[0], ids=np.arange(12))
    rates = md.grow.suggest_rate(half_square, model, KEYS[0], ERRORS[0])
    assert rates.bound == (None,) and rates.chosen == (1.5,)
    with pytest.raises(md.SpecError, match="atoms have dissolved"):
        mixed = built(ZERO(2, md.Memory(md.Dot()) + NARROW))
        md.grow.attribute(mixed, QUERIES[0])


def test_atoms_of_composites_are_trained_slot_by_slot():
    """Both parts of a sum beside two layers of one part each, with the same gradients."""
    spec = ZERO(2, WIDE + NARROW, trainable=True)
    model = written(built(spec), KEYS[:1], ERRORS[:1])
    optimiser = md.grow.slotwise(optax.sgd(0.1, momentum=0.5))
    state = optimiser.init(md.grow.parameters(model))
    _, gradients, _ = backward(half_square, model, KEYS[0], ERRORS[0])
    updates, state = optimiser.update(gradients, state, md.grow.parameters(model), model=model)
    assert [slots.atom.shape for slots in state.atoms] == [(64,), (64,)]
    for part, slope in zip(updates.state, gradients.state, strict=True):
        np.testing.assert_allclose(part.keys, -0.1 * slope.keys, atol=1e-15)
        assert float(jnp.max(jnp.abs(part.values[:4]))) > 1e-3
    assert eqx.apply_updates(model, updates).state[1].birth.shape == (64,)


def test_equal_layers_of_composites_grow_one_by_one():
    """Stacked in a `Repeat`, beside each of them alone; and they are resized together."""
    memory = WIDE.boost(ridge(md.Budget(16)))
    stacked = built(md.Repeat(md.Residual(ZERO(3, memory)), 2))
    layers = [jax.tree.map(lambda x, i=i: x[i], stacked.stacked).layer for i in range(2)]
    keys, errors = draw(5, 4, 2, 3), draw(6, 4, 2, 3)
    stacked = write(stacked, (md.grow.Pairs(keys, errors),))
    layers = [
        written(layer, keys[None, :, i], errors[None, :, i]) for i, layer in enumerate(layers)
    ]
    half = QUERIES + asked(layers[0], QUERIES)
    whole = half + asked(layers[1], half)
    np.testing.assert_allclose(asked(stacked, QUERIES), whole, atol=1e-13)
    larger = md.grow.resize(stacked, 40)
    np.testing.assert_allclose(asked(larger, QUERIES), whole, atol=1e-13)
    _, second = md.grow.growing(larger)[0].state
    assert isinstance(second, SolvedState) and second.factor.shape == (2, 40, 40)
    assert bool(jnp.all(jnp.diagonal(second.factor, axis1=1, axis2=2) > 0))


def test_memories_that_cannot_grow_together_are_refused():
    for memory, words in (
        (WIDE + md.Memory(md.RBF(), md.Hebb()), "nothing bounds how many"),
        (WIDE.boost(rbf(rate=md.Learned(1.0))), "would never be trained"),
        (WIDE.replace(capacity=md.Budget(9, md.LeastUsed())).boost(NARROW), "least used"),
    ):
        with pytest.raises(md.SpecError, match=words):
            built(ZERO(2, memory))
