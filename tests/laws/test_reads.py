"""Reads: a normalised one is a convex combination, an earlier one is the answer of the past."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import memdsl as md

from ..helpers import close, inputs, KERNELS, law, random, TIME


LAST = md.Dot().pullback(md.Slice(2, 3))
POSITIVE = sorted(name for name, kernel in KERNELS.items() if kernel.is_nonnegative())


def denote(memory: Any, made: dict[str, Any], **changes: Any) -> Any:
    return md.denote(memory, **{**made, **changes})


@pytest.mark.parametrize("name", POSITIVE)
@law
def test_a_normalised_read_is_a_convex_combination(name: str, seed: int):
    """Answers to one-hot values are the weights: none below 0, and they add to 1 (or less, beside
    a prior)."""
    for gate in (md.Keep(), md.Decay(0.7)):
        memory = md.Memory(KERNELS[name], gate=gate, read=md.Normalised())
        made = inputs(memory, seed)
        weights = denote(memory, made, values=jnp.eye(TIME))
        assert bool(jnp.all(weights >= 0)) and bool(jnp.all(jnp.triu(weights, 1) == 0))
        close(denote(memory, made), weights @ made["values"])
        total, kernel = jnp.sum(weights, -1), KERNELS[name]
        mass = [
            sum(kernel(k, q) for k in made["keys"][: t + 1]) for t, q in enumerate(made["queries"])
        ]
        close(total, (jnp.stack(mass) > 0).astype(float))  # 0 where there is no mass at all
        prior = memory.replace(read=md.Normalised(prior=0.5))
        beside = jnp.sum(denote(prior, made, values=jnp.eye(TIME)), -1)
        assert bool(jnp.all(beside < 1))


@law
def test_a_prior_is_an_atom_of_value_zero(seed: int):
    """Under a kernel of 1, it is one more pair with the value 0."""
    memory = md.Memory(md.Constant(1.0), read=md.Normalised(prior=1.0))
    made = inputs(memory, seed)
    one_more = {n: jnp.concatenate([0 * a[:1], a]) for n, a in made.items()}
    plain = memory.replace(read=md.Normalised())
    close(denote(memory, made), denote(plain, one_more)[1:])


@law
def test_the_scale_multiplies_the_function_that_is_read_and_nothing_else(seed: int):
    memory = md.Memory(md.RBF(), md.Delta(0.5), md.Decay(0.9))
    made = inputs(memory, seed)
    close(denote(memory.replace(read=md.Evaluate(0.3)), made), 0.3 * denote(memory, made))
    root = memory.replace(read=md.Evaluate(md.InverseRoot("key")))
    close(denote(root, made), denote(memory, made) / np.sqrt(3))
    mean = memory.replace(read=md.Normalised(scale=0.3, prior=0.6))
    close(denote(mean, made)[:1], denote(mean.replace(read=md.Normalised(prior=2.0)), made)[:1])
    plain = md.Memory(md.RBF(), read=md.Normalised(scale=0.3, prior=0.6))
    close(denote(plain, made), denote(plain.replace(read=md.Normalised(prior=2.0)), made))


@pytest.mark.parametrize("write", [md.Hebb(), md.Delta(0.5), md.Ridge(0.7)], ids=repr)
@law
def test_before_is_the_answer_of_the_token_before(write: Any, seed: int):
    memory = md.Memory(md.RBF(), write, md.Decay(0.8))
    made = inputs(memory, seed)
    before = denote(memory.replace(read=md.Before()), made)
    shifted = denote(memory, made, queries=jnp.roll(made["queries"], -1, axis=0))
    close(before[0], jnp.zeros_like(before[0]))
    close(before[1:], shifted[:-1])
    # a forecast is the answer at the key, before its token
    forecasts = denote(memory, made, queries=None)
    close(forecasts, denote(memory.replace(read=md.Before()), made, queries=made["keys"]))


@law
def test_a_bonus_lets_the_own_pair_through(seed: int):
    """RWKV-6: `y = c (S + diag(u) k v')' q`, before the write."""
    bonus = md.Before(md.Evaluate(0.5), bonus=md.Learned(per="key_channel"))
    memory = md.Memory(md.Dot(), gate=md.Decay(0.8), read=bonus)
    made = inputs(memory, seed)
    plain = memory.replace(read=md.Before(md.Evaluate(0.5)))
    u = made["bonus"]
    own = jnp.sum(u[None, :] * made["keys"] * made["queries"], -1)[:, None] * made["values"]
    without = {n: a for n, a in made.items() if n != "bonus"}
    close(denote(memory, made), denote(plain, without) + 0.5 * own)


@law
def test_an_own_pair_enters_value_and_mass(seed: int):
    """RWKV-4: one channel, keys of one number, queries of 1."""
    made = inputs(md.zoo.rwkv4(), seed, key=1)
    made |= {"queries": jnp.ones((TIME, 1)), "bonus": jnp.exp(0.4), "log_decay": jnp.log(0.8)}
    k, v = np.asarray(made["keys"][:, 0]), np.asarray(made["values"])
    value, mass, answers = np.zeros_like(v[0]), 0.0, []
    for t in range(TIME):
        own = np.exp(0.4 + k[t])
        answers.append((value + own * v[t]) / (mass + own))
        value, mass = 0.8 * value + np.exp(k[t]) * v[t], 0.8 * mass + np.exp(k[t])
    close(denote(md.zoo.rwkv4(), made), np.stack(answers))


@pytest.mark.parametrize("name", POSITIVE)
@law
def test_a_bonus_of_one_reads_after_the_write(name: str, seed: int):
    """Where nothing fades, and every pair is added as it is; with a decay they differ."""
    memory = md.Memory(KERNELS[name], read=md.Normalised(prior=0.3))
    made = inputs(memory, seed)
    own = memory.replace(read=md.Before(memory.read, bonus=1.0))
    close(denote(own, made), denote(memory, made))
    nothing = memory.replace(read=md.Before(memory.read, bonus=0.0))
    close(denote(nothing, made), denote(memory.replace(read=md.Before(memory.read)), made))
    # a forecast lets nothing through
    close(denote(own, made, queries=None), denote(nothing, made, queries=made["keys"]))


@law
def test_nearest_reads(seed: int):
    softmax = md.Memory(md.Exp(3.0 * md.Dot()), read=md.Normalised())
    made = inputs(softmax, seed)
    close(denote(softmax, made), denote(softmax.replace(read=md.TopK(TIME)), made))
    one = denote(softmax.replace(read=md.TopK(1)), made)
    logits = np.asarray(made["queries"] @ made["keys"].T)
    best = [int(np.argmax(logits[t, : t + 1])) for t in range(TIME)]
    close(one, made["values"][np.asarray(best)])
    two = softmax.replace(read=md.TopK(2, md.Evaluate()))
    top = [np.argsort(-logits[t, : t + 1])[:2] for t in range(TIME)]
    sums = [np.exp(3 * logits[t, i]) @ np.asarray(made["values"])[i] for t, i in enumerate(top)]
    close(denote(two, made), np.stack(sums))
    # reading fewer changes no write: recall is over all atoms
    delta = md.Memory(md.RBF(), md.Delta(0.5), read=md.TopK(TIME, md.Evaluate()))
    close(denote(delta, made), denote(delta.replace(read=md.Evaluate()), made))


@law
def test_atoms_ranked_by_another_kernel(seed: int):
    """A kernel that ranks as the first does changes nothing; another chooses, and has no gradient."""
    memory = md.Memory(md.Exp(md.Dot()), md.Hebb(), md.Decay(0.9), read=md.TopK(2))
    made = inputs(memory, seed)
    same = memory.replace(read=md.TopK(2, by=md.Exp(md.Dot())))
    close(denote(same, made), denote(memory, made))
    apart = md.Memory(md.Exp(md.Dot().pullback(md.Slice(0, 2))), read=md.TopK(2, by=LAST))
    keys, queries = np.asarray(made["keys"]), np.asarray(made["queries"])
    answers = []
    for t in range(TIME):
        ranks = np.argsort(-keys[: t + 1, 2] * queries[t, 2])[:2]
        weights = np.exp(keys[ranks, :2] @ queries[t, :2])
        answers.append(weights @ np.asarray(made["values"])[ranks] / weights.sum())
    close(denote(apart, made), np.stack(answers))
    slopes = jax.grad(lambda q: jnp.sum(denote(apart, made, queries=q)))(made["queries"])
    assert bool(jnp.all(slopes[:, 2] == 0)) and bool(jnp.any(slopes[:, :2] != 0))


@law
def test_blocks_that_are_all_read(seed: int):
    for read in (md.Normalised(prior=0.3), md.Evaluate(0.5), md.LocalLinear(0.5)):
        memory = md.Memory(md.RBF(), md.Hebb(), md.Decay(0.9), read=read)
        made = inputs(memory, seed)
        for blocks in (md.TopBlocks(3, 2, read), md.TopBlocks(TIME, 1, read, group=3)):
            close(denote(memory.replace(read=blocks), made), denote(memory, made))


def test_blocks_that_are_read():
    """Seven blocks of two atoms; one-hot values show which of them answer."""
    keys = jnp.repeat(jnp.array([0.1, 3.0, -2.0, 2.0, -3.0, 0.2, 0.3]), 2)[:, None]
    keys = keys.at[2].add(0.5).at[3].add(-0.5)  # the mean is what counts
    values = jnp.repeat(jnp.eye(7), 2, axis=0)
    memory = md.Memory(md.Exp(md.Dot()), read=md.TopBlocks(4, 2))

    def read(memory: Any, query: float, time: int) -> set[int]:
        queries = jnp.full((14, 1), query)
        answers = md.denote(memory, keys, values, queries)
        for using in ("buffer / recurrent", "buffer / parallel"):
            state = md.empty(memory, 1, 7, capacity=14, dtype=jnp.float64)
            close(md.run(memory, state, keys, values, queries, using=using)[1], answers)
        return set(np.flatnonzero(np.asarray(answers[time - 1])))

    assert read(memory, 1.0, 14) == {0, 5, 6, 1}
    assert read(memory, -1.0, 14) == {0, 5, 6, 4}
    assert read(memory, -1.0, 9) == {0, 3, 4, 2}  # the own block is the fifth, half full
    assert read(memory, 1.0, 5) == {0, 1, 2}
    moba = memory.replace(read=md.TopBlocks(3, 2, first=0, latest=1))
    assert read(moba, 1.0, 14) == {6, 1, 3}
    faded = moba.replace(gate=md.Decay(0.5))
    assert read(faded, 1.0, 14) == {6, 5, 3}  # 2^-8 and 2^-10 of e^3 and e^2, and 2^-2 of e^0.2


def test_a_query_that_is_no_group():
    memory = md.Memory(md.RBF(), read=md.TopBlocks(4, 8, group=2))
    state = md.empty(memory, 3, 2, capacity=4)
    with pytest.raises(md.SpecError, match="A query of 3 channels is no group of 2 queries"):
        md.run(memory, state, random(0, 4, 3), random(1, 4, 2), random(2, 4, 3))


@law
def test_blocks_that_a_group_of_queries_reads(seed: int):
    """By the mean of the shares of a block: what one query prefers, all of its group read."""
    keys, others = random(seed, 12, 2), random(seed + 1, 12, 2)
    queries = random(seed + 2, 12, 2)
    kernel = md.Exp(2.0 * md.Dot())
    read = md.TopBlocks(2, 3, group=2, first=0, latest=1)
    memory = md.Memory(kernel.pullback(md.Slice(0, 2)), read=read)
    made = jnp.concatenate([keys, 0 * keys], 1), random(seed + 3, 12, 2)
    asked = jnp.concatenate([queries, others], 1)
    answers = md.denote(memory, *made, asked)
    logits = [2 * np.asarray(q @ keys.reshape(4, 3, 2).mean(1).T) for q in (queries, others)]
    for t in range(12):
        complete, own = (t + 1) // 3, t // 3
        shares = [np.exp(x[t, :complete]) / np.exp(x[t, :complete]).sum() for x in logits]
        ranks = [b for b in np.argsort(-sum(shares)) if b != own] if complete else []
        chosen = [own, *ranks[:1]]
        there = np.array([i for i in range(t + 1) if i // 3 in chosen])
        weights = np.exp(2 * np.asarray(keys)[there] @ np.asarray(queries)[t])
        close(answers[t], weights @ np.asarray(made[1])[there] / weights.sum())
    slopes = jax.grad(lambda q: jnp.sum(md.denote(memory, *made, q)))(asked)
    assert bool(jnp.all(slopes[:, 2:] == 0)) and bool(jnp.any(slopes[:, :2] != 0))


LOCAL = {
    "softmax": md.Exp(0.5 * md.Dot()),
    "rbf": md.RBF(scale=1.5),
    "squares": md.Polynomial(2, offset=0.5),
    "laplace": md.Laplace(scale=2.0),
}


@pytest.mark.parametrize("name", sorted(LOCAL))
@law
def test_a_local_linear_read_reproduces_what_is_affine_in_the_keys(name: str, seed: int):
    """`v = A k + b` at every stored pair answers `A q + b`, once there are more pairs than channels."""
    memory = md.Memory(LOCAL[name], gate=md.Decay(0.9), read=md.LocalLinear(1e-11))
    keys, queries = random(seed, 12, 3), random(seed + 1, 12, 3)
    slope, offset = random(seed + 2, 2, 3), random(seed + 3, 2)
    values = keys @ slope.T + offset[None, :]
    state = md.empty(memory, 3, 2, capacity=12, dtype=jnp.float64)
    for answers in (
        md.denote(memory, keys, values, queries),
        md.run(memory, state, keys, values, queries)[1],
    ):
        close(answers[6:], (queries @ slope.T + offset[None, :])[6:], 1e-4)
    mean = md.denote(memory.replace(read=md.Normalised()), keys, values, queries)
    assert float(jnp.max(jnp.abs(mean - queries @ slope.T - offset[None, :])[6:])) > 0.1


@pytest.mark.parametrize("name", sorted(LOCAL))
@law
def test_a_local_linear_read_is_the_mean_where_its_ridge_is_large(name: str, seed: int):
    memory = md.Memory(LOCAL[name], gate=md.Decay(0.9), read=md.LocalLinear(1e12))
    made = inputs(memory, seed)
    close(denote(memory, made), denote(memory.replace(read=md.Normalised()), made), 1e-8)


def test_a_local_linear_read_is_a_weighted_regression():
    """With numbers that were solved for by NumPy's least squares, outside of all of this."""
    keys, values = jnp.array([[0.0], [1.0], [3.0]]), jnp.array([[1.0], [2.0], [0.0]])
    memory = md.Memory(md.RBF(scale=1.0), md.Hebb(), md.Decay(0.5), read=md.LocalLinear(0.25))
    weights = np.array([0.25, 0.5, 1.0]) * np.exp(-((2.0 - np.array([0.0, 1.0, 3.0])) ** 2) / 2)
    rows = np.sqrt(weights)[:, None] * np.array([[1.0, -2.0], [1.0, -1.0], [1.0, 1.0]])
    rows = np.concatenate([rows, [[0.0, 0.5]]])
    right = np.concatenate([np.sqrt(weights) * [1.0, 2.0, 0.0], [0.0]])
    (answer, _), *_ = np.linalg.lstsq(rows, right)
    close(answer, 0.8470600066723031)
    queries = jnp.full((3, 1), 2.0)
    close(md.denote(memory, keys, values, queries)[2, 0], 0.8470600066723031)
    state = md.empty(memory, 1, 1, capacity=3, dtype=jnp.float64)
    close(md.run(memory, state, keys, values, queries)[1][2, 0], 0.8470600066723031)


@law
def test_a_local_linear_read_is_the_formula_that_is_published(seed: int):
    """Zuo et al. 2025: `sum s (1 - z . rho) v / (omega - mu . rho)`."""
    memory = md.Memory(md.Exp(0.5 * md.Dot()), read=md.LocalLinear(0.7))
    made = inputs(memory, seed)
    keys, values = np.asarray(made["keys"]), np.asarray(made["values"])
    answers = denote(memory, made)
    for t, q in enumerate(np.asarray(made["queries"])):
        z, s = keys[: t + 1] - q, np.exp(0.5 * keys[: t + 1] @ q)
        rho = np.linalg.solve((s * z.T) @ z + 0.7 * np.eye(3), s @ z)
        close(answers[t], (s * (1 - z @ rho)) @ values[: t + 1] / (s.sum() - s @ z @ rho))


@pytest.mark.parametrize("using", ["buffer / recurrent", "buffer / parallel"])
@pytest.mark.parametrize("size", [0.0, 1.0, 30.0, 300.0])
def test_a_local_linear_read_is_finite_in_single_precision(using: str, size: float):
    """Logits of either sign, up to a thousand times what an exponential can hold; equal keys; one key."""
    memory = md.Memory(md.Exp(md.Dot()), read=md.LocalLinear(md.Knob(1e-3)))
    keys, values = random(0, 9, 3).astype("float32") * size, random(1, 9, 2).astype("float32")
    keys = keys.at[4:6].set(keys[3])
    state = md.empty(memory, 3, 2, capacity=9)

    def answers(keys, values, queries, ridge):
        return md.run(memory, state, keys, values, queries, using=using, ridge=ridge)[1]

    for queries in (keys, -keys, 0 * keys):
        out = answers(keys, values, queries, jnp.float32(1e-3))
        slopes = jax.grad(lambda *x: jnp.sum(answers(*x)), (0, 1, 2, 3))(
            keys, values, queries, jnp.float32(1e-3)
        )
        for array in (out, *slopes):
            assert bool(jnp.all(jnp.isfinite(array)))
        close(
            out[0], values[0], 1e-6
        )  # a single pair is answered as it is, wherever it is asked for


@law
def test_one_nearest_neighbour_is_the_limit_of_zero_temperature(seed: int):
    memory = md.Memory(md.RBF(scale=0.01), read=md.Normalised())
    made = inputs(memory, seed)
    keys, queries = np.asarray(made["keys"]), np.asarray(made["queries"])
    distances = np.linalg.norm(queries[:, None] - keys[None, :], axis=-1)
    nearest = [int(np.argmin(distances[t, : t + 1])) for t in range(TIME)]
    close(denote(memory, made), made["values"][np.asarray(nearest)])


@law
def test_an_unnormalised_radial_read_far_away_is_zero(seed: int):
    memory = md.Memory(md.RBF())
    answers = md.denote(
        memory, random(seed, 2, 3), random(seed + 1, 2, 2), 1e3 + random(seed, 2, 3)
    )
    assert bool(jnp.all(answers == 0))
