"""Room for atoms: who goes, what becomes of what it knew, and what is counted, as a layer grows."""

import functools
import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import memdsl as md
from memdsl.grow._fold import Atoms, fold, one_by_one, take
from memdsl.state._usage import observe


WIDE = jnp.float64
write = eqx.filter_jit(md.grow.write)
EVICTIONS = {
    "oldest": md.Oldest(),
    "pinned": md.Oldest(sinks=1),
    "smallest": md.Smallest(),
    "least used": md.LeastUsed(0.5),
    "leave one out": md.LeaveOneOut(0.1),
    "random": md.Random(seed=3),
    "reservoir": md.Random(seed=3, reservoir=True),
}
MERGES = {
    "drop": md.Drop(),
    "nearest": md.AddToNearest(),
    "project": md.Project(1e-3),
    "pairwise": md.Pairwise(),
}
QUICK = {
    ("oldest", "nearest"),
    ("pinned", "pairwise"),
    ("smallest", "project"),
    ("least used", "pairwise"),
    ("leave one out", "drop"),
    ("random", "nearest"),
    ("reservoir", "pairwise"),
}
PRODUCT = [
    pytest.param(
        EVICTIONS[evict],
        MERGES[merge],
        id=f"{evict}, {merge}",
        marks=() if (evict, merge) in QUICK else (pytest.mark.slow,),
    )
    for evict, merge in itertools.product(EVICTIONS, MERGES)
]


@functools.partial(jax.jit, static_argnums=0)
def folded(memory, state, keys, errors):
    return fold(memory, state, keys, errors)


@functools.partial(jax.jit, static_argnums=0)
def in_order(memory, state, keys, errors):
    sizes = jnp.linalg.norm(errors, axis=-1)
    batch = Atoms(keys, -0.5 * errors, 0 * sizes, 0 * sizes, sizes)
    return one_by_one(memory, observe(memory, state, keys), batch)


def remembered(state, queries):
    """f at some queries, by its definition."""
    valid = np.asarray(state.valid)
    keys, values = np.asarray(state.keys)[valid], np.asarray(state.values)[valid]
    weight = np.exp(np.asarray(state.log_weight)[valid])
    squares = np.sum((keys[:, None] - np.asarray(queries)[None]) ** 2, -1)
    return (weight[:, None] * np.exp(-squares / 2)).T @ values


@pytest.mark.parametrize(("evict", "merge"), PRODUCT)
def test_a_batch_that_overflows_is_its_pairs_in_order_and_all_are_counted(evict, merge, getkey):
    memory = md.Memory(md.RBF(), md.Hebb(0.5), md.Novelty(0.7), md.Budget(4, evict, merge))
    keys = jnp.round(jax.random.normal(getkey(), (2, 8, 2)), 1)
    errors = jax.random.normal(getkey(), (2, 8, 3))
    whole = one = md.empty(memory, 2, 3, dtype=WIDE)
    for batch, error in zip(keys, errors, strict=True):
        whole = folded(memory, whole, batch, error)
        if isinstance(evict, md.LeastUsed):  # the reads of a batch come before its writes
            one = in_order(memory, one, batch, error)
            continue
        for row in range(8):
            one = folded(memory, one, batch[row : row + 1], error[row : row + 1])
    counts = {name: int(getattr(whole.counts, name)) for name in vars(whole.counts)}
    assert counts == {name: int(getattr(one.counts, name)) for name in counts}
    np.testing.assert_allclose(
        remembered(whole, keys[0]), remembered(one, keys[0]), rtol=1e-9, atol=1e-11
    )
    np.testing.assert_array_equal(whole.birth, one.birth)
    assert counts["attempted"] == 16
    assert counts["evicted"] > 0
    assert counts["admitted"] - counts["evicted"] == jnp.sum(whole.valid) == 4
    if isinstance(merge, md.Drop):  # an evicted atom is lost, and counted as evicted alone
        assert counts["attempted"] == counts["admitted"] + counts["dropped"]
        assert counts["merged"] == 0
    else:  # what is not admitted and what is evicted are merged, or dropped where nothing is stored
        leaves = counts["attempted"] - counts["admitted"] + counts["evicted"]
        assert counts["merged"] + counts["dropped"] == leaves > counts["evicted"]


@pytest.mark.parametrize("gate", [md.Keep(), md.Novelty(0.4)], ids=["keep", "novel"])
@pytest.mark.parametrize("merge", [md.Drop(), md.AddToNearest()], ids=["drop", "nearest"])
@pytest.mark.parametrize("evict", EVICTIONS.values(), ids=EVICTIONS.keys())
def test_masses_and_weights_of_a_batch_go_where_those_of_its_pairs_go(evict, merge, gate, getkey):
    """Of more pairs than slots, so that those of a batch take the places of each other."""
    read = md.Normalised(prior=1.0)
    memory = md.Memory(md.Exp(md.Dot()), md.Reweight(), gate, md.Budget(5, evict, merge), read)
    whole = one = md.empty(memory, 2, 3, dtype=WIDE)
    for _ in range(3):
        keys, values = jax.random.normal(getkey(), (7, 2)), jax.random.normal(getkey(), (7, 3))
        masses, logs = jax.random.normal(getkey(), (2, 7))
        batch = Atoms(keys.round(1), values, masses, 3 * logs, jnp.linalg.norm(values, axis=-1))
        whole = jax.jit(take, static_argnums=0)(memory, whole, batch)
        one = jax.jit(one_by_one, static_argnums=0)(memory, one, batch)
        for name in ("valid", "birth", "keys", "usage"):
            np.testing.assert_array_equal(getattr(whole, name), getattr(one, name), err_msg=name)
        for name in ("values", "masses", "log_weight"):
            mine, theirs = (getattr(state, name)[one.valid] for state in (whole, one))
            np.testing.assert_allclose(mine, theirs, rtol=1e-12, atol=1e-12, err_msg=name)
        for name in vars(one.counts):
            assert getattr(whole.counts, name) == getattr(one.counts, name), name
    assert int(one.counts.evicted) > 3


def test_an_atom_that_is_nothing_yet_is_no_free_slot():
    """A pair of error 0 is an atom of coefficient 0: the smallest, but there."""
    memory = md.Memory(md.RBF(), md.Hebb(), capacity=md.Budget(3, md.Smallest()))
    state = md.empty(memory, 1, 1, dtype=WIDE)
    keys, values = jnp.arange(4.0)[:, None], jnp.array([[0.0], [1.0], [2.0], [3.0]])
    for rows, held in ((slice(0, 2), 2), (slice(2, 3), 3), (slice(3, 4), 3)):
        state, _ = md.run(memory, state, keys[rows], values[rows])
        assert jnp.sum(state.valid) == held == state.counts.admitted - state.counts.evicted
    np.testing.assert_array_equal(jnp.sort(state.keys[:, 0]), [1, 2, 3])


def test_the_oldest_is_known_after_more_pairs_than_floats_can_count():
    memory = md.Memory(md.RBF(), md.Hebb(), capacity=md.Budget(3))
    state = md.empty(memory, 1, 1)
    state, _ = md.run(memory, state, jnp.zeros((3, 1), jnp.float32), jnp.ones((3, 1), jnp.float32))
    many = 2**25
    state = state.put(birth=jnp.array([2, 1, 0], jnp.int32) + many)
    state = eqx.tree_at(lambda s: s.counts.admitted, state, jnp.asarray(many + 3, jnp.int32))
    for last in (2, 1, 0):
        one = jnp.ones((1, 1), jnp.float32)
        key = jnp.full((1, 1), last + 1.0, jnp.float32)
        state, _ = md.run(memory, state, key, one)
        assert state.keys[last, 0] == last + 1


# ---- what a merge loses, in the space of the kernel


def lost(memory, keys, values):
    """The square of the change of f by what a memory does with pairs: atoms of `RBF()` beside all."""
    state, _ = md.run(memory, md.empty(memory, 1, 1, dtype=WIDE), keys, values)
    valid = np.asarray(state.valid)
    places = np.concatenate([np.asarray(keys), np.asarray(state.keys)[valid]])[:, 0]
    weights = np.exp(np.asarray(state.log_weight)[valid])
    kept = weights * np.asarray(state.values)[valid, 0]
    change = np.concatenate([np.asarray(values)[:, 0], -kept])
    gram = np.exp(-((places[:, None] - places[None, :]) ** 2) / 2)
    return change @ gram @ change


@pytest.mark.parametrize(
    ("first", "merge", "loss"),
    [
        (1.0, md.Drop(), 1.0),
        (1.0, md.Project(1e-12), 0.632),
        (1.0, md.Pairwise(), 0.0979),
        (3.0, md.Drop(), 1.0),
        (3.0, md.Project(1e-12), 0.632),
        (3.0, md.Pairwise(), 0.1941),
    ],
    ids=str,
)
def test_what_the_removal_of_one_of_two_atoms_loses(first, merge, loss):
    """Width 1, one apart, coefficients 1 and 1, or 3 and 1: the figures of the literature on budgets."""
    keys, values = jnp.array([[0.0], [1.0]]), jnp.array([[first], [1.0]])
    memory = md.Memory(md.RBF(), md.Hebb(), md.Novelty(2.0), md.Budget(1, merge=merge))
    digits = len(str(loss)) - 2
    assert round(float(lost(memory, keys, values)), digits) == loss


@pytest.mark.parametrize("merge", MERGES.values(), ids=MERGES)
def test_a_resize_loses_what_the_same_merge_loses_in_a_write(merge):
    """Of two stored atoms the smaller goes, as a pair goes that is not let in."""
    keys, values = jnp.array([[0.0], [1.0]]), jnp.array([[3.0], [1.0]])
    kept = md.Memory(md.RBF(), md.Hebb(), md.Novelty(2.0), md.Budget(1, merge=merge))
    one, _ = md.run(kept, md.empty(kept, 1, 1, dtype=WIDE), keys, values)
    memory = md.Memory(md.RBF(), md.Hebb(), capacity=md.Budget(2, md.Smallest(), merge))
    layer = md.Grown(md.Dense(1, start="zeros"), memory)
    model = md.build(layer, md.Dims(model=1), key=jax.random.key(0), dtype=WIDE)
    model = write(model, (md.grow.Pairs(keys, -values),))
    small = md.grow.resize(model, 1, merge=merge)
    at = jnp.array([[0.3], [2.0]])
    np.testing.assert_allclose(jax.vmap(small)(at), md.evaluate(kept, one, at), atol=1e-12)


@pytest.mark.parametrize("first", [1.0, 3.0])
def test_where_two_atoms_become_one(first):
    """z = 0.5 and c = 1.76499 of 1 and 1; z = 0.19767 and c = 3.66675 of 3 and 1."""
    place, coefficient = {1.0: (0.5, 1.76499), 3.0: (0.19767, 3.66675)}[first]
    memory = md.Memory(md.RBF(), md.Hebb(), md.Novelty(2.0), md.Budget(1, merge=md.Pairwise()))
    state = md.empty(memory, 1, 1, dtype=WIDE)
    state, _ = md.run(memory, state, jnp.array([[0.0], [1.0]]), jnp.array([[first], [1.0]]))
    np.testing.assert_allclose(
        [state.keys[0, 0], state.values[0, 0]], [place, coefficient], atol=6e-6
    )


@pytest.mark.parametrize(
    ("kernel", "read"),
    [
        (md.RBF(scale=0.8), md.Evaluate()),
        (md.Exp(md.Dot()), md.Normalised(prior=1.0)),
        (md.Polynomial(2), md.Evaluate()),
    ],
    ids=["rbf", "softmax", "polynomial"],
)
def test_no_partner_and_no_place_on_a_fine_grid_loses_less(kernel, read, getkey):
    memory = md.Memory(kernel, md.Hebb(), md.Novelty(9.0), md.Budget(6, merge=md.Pairwise()), read)
    keys, values = jax.random.normal(getkey(), (6, 2)), jax.random.normal(getkey(), (6, 3))
    state = md.empty(memory.replace(gate=md.Keep()), 2, 3, dtype=WIDE)
    state, _ = md.run(memory.replace(gate=md.Keep()), state, keys, values)
    key, value = jax.random.normal(getkey(), (2,)), 0.5 * jax.random.normal(getkey(), (3,))
    after, _ = md.run(memory, state, key[None], value[None])
    (slot,) = np.flatnonzero(np.any(np.asarray(after.keys != state.keys), axis=1))

    def coefficients(state):
        mass = [] if state.masses is None else [state.masses[:, None]]
        return jnp.concatenate([state.values, *mass], axis=1)

    own = jnp.append(value, 1.0) if read.needs_mass() else value

    def loss(old, z, new):
        """The square of the change of f by two atoms that become one at z."""
        three = jnp.stack([key, keys[old], z])
        change = jnp.stack([own, coefficients(state)[old], -new])
        return jnp.sum(kernel.pairs(three, three) * (change @ change.T))

    def least(old, h):
        z = (1 - h) * key + h * keys[old]
        share = jnp.stack([kernel(key, z), kernel(keys[old], z)]) / kernel(z, z)
        return loss(old, z, share @ jnp.stack([own, coefficients(state)[old]]))

    grid = jax.jit(jax.vmap(jax.vmap(least, (None, 0)), (0, None)))
    found = np.asarray(grid(jnp.arange(6), jnp.linspace(0, 1, 401)))
    ours = float(loss(slot, after.keys[slot], coefficients(after)[slot]))
    assert ours <= found.min() + 1e-12
    assert after.counts.merged == 1


def test_coefficients_that_point_apart_are_projected_on_one_key(getkey):
    memory = md.Memory(md.RBF(), md.Hebb(), md.Novelty(9.0), md.Budget(1, merge=md.Pairwise()))
    state = md.empty(memory, 1, 1, dtype=WIDE)
    state, _ = md.run(memory, state, jnp.array([[0.0], [1.0]]), jnp.array([[3.0], [-1.0]]))
    assert state.keys[0, 0] == 0
    np.testing.assert_allclose(state.values[0, 0], 3 - np.exp(-0.5), rtol=1e-14)


def test_atoms_of_huge_kernel_values_merge_in_single_precision():
    """exp(k . k) is beyond float32 here; the mean that is read is not."""
    memory = md.Memory(
        md.Exp(md.Dot()), md.Hebb(), md.Novelty(9.0), md.Budget(1, merge=md.Pairwise()),
        md.Normalised(),
    )  # fmt: skip
    keys = jnp.array([[12.0, 0.0], [12.0, 1.0]], jnp.float32)
    values = jnp.array([[1.0], [3.0]], jnp.float32)
    state, _ = md.run(memory, md.empty(memory, 2, 1), keys, values)
    assert state.counts.merged == 1
    answer = md.evaluate(memory, state, keys)
    assert np.all((answer > 1) & (answer < 3))


# ---- fewer slots


def model_of(evict, merge, getkey, read=None, kernel=None):
    memory = md.Memory(
        kernel or md.RBF(), md.Hebb(0.5), md.Keep(), md.Budget(12, evict, merge),
        read or md.Evaluate(),
    )  # fmt: skip
    layer = md.Grown(md.Dense(3, start="zeros", trainable=False), memory)
    model = md.build(layer, md.Dims(model=2), key=getkey(), dtype=WIDE)
    pairs = md.grow.Pairs(jax.random.normal(getkey(), (9, 2)), jax.random.normal(getkey(), (9, 3)))
    return write(model, (pairs,))


@pytest.mark.parametrize(
    ("evict", "merge"),
    [
        (md.Oldest(sinks=2), md.AddToNearest()),
        (md.Smallest(), md.Pairwise()),
        (md.LeaveOneOut(), md.Project(1e-3)),
    ],
    ids=str,
)
def test_fewer_slots_evict_and_merge_as_a_write_does(evict, merge, getkey):
    model = model_of(evict, merge, getkey)
    small = md.grow.resize(model, 4)
    state, before = small.state, model.state.counts
    assert int(jnp.sum(state.valid)) == 4
    assert state.keys.shape[0] == 4 + isinstance(evict, md.LeaveOneOut)
    assert small.spec.memory.capacity == md.Budget(4, evict, merge)
    assert state.counts.evicted == state.counts.merged == 5
    assert (state.counts.attempted, state.counts.admitted) == (before.attempted, before.admitted)
    if isinstance(evict, md.Oldest):  # two are pinned, and the others are the latest
        np.testing.assert_array_equal(np.sort(state.birth), [0, 1, 7, 8])
        np.testing.assert_allclose(
            jnp.sum(state.values, 0), jnp.sum(model.state.values, 0), rtol=1e-12
        )
    twice = md.grow.resize(md.grow.resize(model, 7), 4)
    x = model.state.keys[:9]
    np.testing.assert_allclose(jax.vmap(twice)(x), jax.vmap(small)(x), rtol=1e-12, atol=1e-13)
    written = write(small, (md.grow.Pairs(jnp.ones((1, 2)), jnp.ones((1, 3))),))
    assert written.state.counts.evicted == 6


def test_nothing_is_dropped_unless_it_is_said(getkey):
    model = model_of(md.Oldest(), md.Drop(), getkey)
    words = r"9 atoms do not fit into 4 slots, and the merge of the layer is Drop\(\)"
    with pytest.raises(md.SpecError, match=words) as error:
        md.grow.resize(model, 4)
    for way in ("merge=md.Pairwise()", "merge=md.Drop()", "at least 9"):
        assert way in " ".join(str(error.value).split())
    dropped = md.grow.resize(model, 4, merge=md.Drop())
    np.testing.assert_array_equal(dropped.state.birth, [5, 6, 7, 8])
    assert (dropped.state.counts.evicted, dropped.state.counts.merged) == (5, 0)
    kept = md.grow.resize(model, 4, merge=md.Pairwise())
    assert (kept.state.counts.evicted, kept.state.counts.merged) == (5, 5)
    assert kept.spec.memory.capacity == md.Budget(4)
    x = model.state.keys[:9]
    misses = [jnp.sum((jax.vmap(small)(x) - jax.vmap(model)(x)) ** 2) for small in (kept, dropped)]
    assert misses[0] < misses[1]


def test_a_merge_that_a_memory_cannot_have_is_refused(getkey):
    model = model_of(md.Oldest(), md.Drop(), getkey, md.Normalised(prior=1.0), md.Exp(md.Dot()))
    with pytest.raises(md.SpecError, match="Project spreads masses with either sign"):
        md.grow.resize(model, 4, merge=md.Project())


def test_equal_layers_of_a_stack_shrink_one_by_one(getkey):
    memory = md.Memory(
        md.RBF(md.Learned(1.0, squash="exp")), md.Hebb(0.5), md.Novelty(0.1),
        md.Budget(8, merge=md.Pairwise()),
    )  # fmt: skip
    layer = md.Residual(md.Grown(md.Dense(2, start="zeros", trainable=False), memory))
    model = md.build(md.Repeat(layer, 2), md.Dims(model=2), key=getkey(), dtype=WIDE)
    x = jax.random.normal(getkey(), (8, 2))

    def loss(y, t):
        return jnp.mean((y - t) ** 2)

    _, _, pairs = eqx.filter_jit(md.grow.backward)(loss, model, x, jnp.sin(3 * x))
    model = write(model, pairs)
    (stacked,) = md.grow.growing(md.grow.resize(model, 3))
    (before,) = md.grow.growing(model)
    for index in range(2):
        one = jax.tree.map(lambda a, i=index: a[i], before)
        state = md.grow.resize(one, 3).state
        for a, b in zip(jax.tree.leaves(state), jax.tree.leaves(stacked.state), strict=True):
            np.testing.assert_allclose(a, b[index], rtol=1e-12, atol=1e-14)
