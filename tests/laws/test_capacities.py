"""Capacities: what is kept when there is room for all, and what becomes of what is not."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import memdsl as md

from ..helpers import close, inputs, KEY, law, random, TIME, VALUE


WRITES = [md.Hebb(), md.Delta(0.5), md.Ridge(0.8), md.Delta(0.4, on="atoms", normalise=0.1)]
EVICTIONS = [
    md.Oldest(),
    md.Oldest(sinks=1),
    md.Smallest(),
    md.LeastUsed(0.5),
    md.LeaveOneOut(),
    md.Random(seed=3),
    md.Random(seed=3, reservoir=True),
]
MERGES = [md.Drop(), md.AddToNearest(), md.Project()]


def denote(memory: Any, made: dict[str, Any], **changes: Any) -> Any:
    return md.denote(memory, **{**made, **changes})


@pytest.mark.parametrize("write", WRITES, ids=repr)
@law
def test_room_for_all_is_all(write: Any, seed: int):
    memory = md.Memory(md.RBF(), write, md.Decay(0.9))
    made = inputs(memory, seed)
    answers = denote(memory, made)
    close(answers, denote(memory.replace(capacity=md.Window(TIME)), made))
    close(answers, denote(memory.replace(capacity=md.Window(TIME - 2, sinks=2)), made))
    for evict in EVICTIONS:
        if not (isinstance(write, md.Ridge) and isinstance(evict, md.LeastUsed)):  # refused
            close(answers, denote(memory.replace(capacity=md.Budget(TIME, evict)), made))


@pytest.mark.parametrize("write", WRITES, ids=repr)
@law
def test_a_window_is_a_budget_that_evicts_the_oldest(write: Any, seed: int):
    memory = md.Memory(md.RBF(), write, md.Decay(0.9))
    made = inputs(memory, seed)

    def same(window: Any, budget: Any) -> None:
        close(
            denote(memory.replace(capacity=window), made),
            denote(memory.replace(capacity=budget), made),
        )

    same(md.Window(3), md.Budget(3))
    same(md.Window(2, sinks=2), md.Budget(4, md.Oldest(sinks=2)))


@law
def test_a_window_of_hebb_sees_only_the_latest_pairs(seed: int):
    memory = md.Memory(md.Exp(md.Dot()), read=md.Normalised(), capacity=md.Window(2, sinks=1))
    made = inputs(memory, seed)
    logits = np.asarray(made["queries"] @ made["keys"].T)
    at, of = np.arange(TIME)[:, None], np.arange(TIME)[None, :]
    seen = (of <= at) & ((of > at - 2) | (of < 1))
    weights = np.where(seen, np.exp(logits), 0)
    close(denote(memory, made), weights / weights.sum(-1, keepdims=True) @ made["values"])


@pytest.mark.parametrize("evict", EVICTIONS, ids=repr)
@law
def test_merging_keeps_the_sum_of_all_coefficients(evict: Any, seed: int):
    """Under a kernel that cannot tell keys apart, adding to the nearest loses nothing."""
    gates = (md.Keep(), md.Decay(0.8), md.Novelty(1.0) @ md.Decay(0.9))
    for gate, read in zip(
        gates, (md.Evaluate(), md.Normalised(prior=0.5), md.Evaluate()), strict=True
    ):
        memory = md.Memory(md.Constant(1.0), md.Hebb(), gate, read=read)
        made = inputs(memory, seed)
        budget = memory.replace(capacity=md.Budget(2, evict, md.AddToNearest()))
        forgets = memory.replace(
            gate=gate if isinstance(gate, md.Keep | md.Decay) else md.Decay(0.9)
        )
        close(denote(budget, made), denote(forgets, made))
        dropped = memory.replace(capacity=md.Budget(2, evict))
        assert float(jnp.max(jnp.abs(denote(dropped, made) - denote(forgets, made)))) > 1e-6


@law
def test_projection_loses_nothing_in_the_span_of_the_atoms(seed: int):
    """A rejected pair at a stored key adds to its atom; a victim's function is kept at the others."""
    kernel, tiny = md.RBF(), md.Project(1e-12)
    keys, values = random(seed, 3, KEY), random(seed + 2, 3, VALUE)
    every = md.Memory(kernel, md.Hebb())
    at = jnp.broadcast_to(random(seed + 3, KEY), (3, KEY))
    again = jnp.concatenate([keys[:2], keys[:1]])
    rejected = md.Memory(kernel, md.Hebb(), md.Novelty(0.0), md.Budget(3, merge=tiny))
    close(md.denote(rejected, again, values, at), md.denote(every, again, values, at), 1e-6)
    evicted = md.Memory(kernel, md.Hebb(), md.Keep(), md.Budget(2, md.Smallest(), tiny))
    values = values.at[0].multiply(1e-3)  # the first one goes when the third one comes
    at = jnp.broadcast_to(keys[1], (3, KEY))
    close(md.denote(evicted, keys, values, at), md.denote(every, keys, values, at), 1e-6)
    dropped = evicted.replace(capacity=md.Budget(2, md.Smallest()))
    gap = md.denote(dropped, keys, values, at)[-1] - md.denote(every, keys, values, at)[-1]
    close(gap, -kernel(keys[0], keys[1]) * values[0])


@law
def test_the_smallest_goes(seed: int):
    """With orthogonal one-hot values every coefficient can be read off."""
    sizes = np.random.default_rng(seed).permutation(TIME) + 1.0
    memory = md.Memory(md.Exp(md.Dot()), md.Hebb(), capacity=md.Budget(3, md.Smallest()))
    made = inputs(memory, seed)
    answers = np.asarray(denote(memory, made, values=jnp.diag(jnp.asarray(sizes))))
    kept: list[int] = []
    for t in range(TIME):
        if len(kept) == 3:
            kept.remove(min(kept, key=lambda i: sizes[i]))
        kept.append(t)
        assert set(np.flatnonzero(answers[t])) == set(kept)


@law
def test_of_a_ridge_memory_the_smallest_solved_coefficient_goes(seed: int):
    kernel, strength = md.RBF(scale=1.5), 0.3
    memory = md.Memory(kernel, md.Ridge(strength), capacity=md.Budget(3, md.Smallest()))
    made = inputs(memory, seed)
    keys, values = np.asarray(made["keys"]), np.asarray(made["values"])
    queries = np.asarray(made["queries"])

    def pairs(k: np.ndarray, q: np.ndarray) -> np.ndarray:
        return np.exp(-np.sum((k[:, None] - q[None]) ** 2, -1) / (2 * 1.5**2))

    def solved(kept: list[int]) -> np.ndarray:
        gram = pairs(keys[kept], keys[kept]) + strength * np.eye(len(kept))
        return np.linalg.solve(gram, values[kept])

    kept, expected = [], []
    for t in range(TIME):
        if len(kept) == 3:
            goes = int(np.argmin(np.linalg.norm(solved(kept), axis=1)))
            kept[goes] = t
        else:
            kept.append(t)
        expected.append(pairs(queries[t][None], keys[kept])[0] @ solved(kept))
    close(denote(memory, made), np.stack(expected))
    state = md.empty(memory, KEY, VALUE, dtype=jnp.float64)
    close(md.run(memory, state, **made)[1], np.stack(expected))


@law
def test_the_least_used_goes(seed: int):
    memory = md.Memory(
        md.Exp(md.Dot()), md.Hebb(), capacity=md.Budget(3, md.LeastUsed(0.5)), read=md.Normalised()
    )
    made = inputs(memory, seed)
    answers = np.asarray(denote(memory, made, values=jnp.eye(TIME)))
    used: dict[int, float] = {}
    for t in range(TIME):
        if len(used) == 3:
            del used[min(used, key=lambda i: used[i])]
        used[t] = 1.0
        assert set(np.flatnonzero(answers[t])) == set(used)
        used = {i: 0.5 * use + answers[t, i] for i, use in used.items()}  # a read is its shares


@law
def test_leave_one_out_removes_what_is_missed_least(seed: int):
    """For a ridge memory the score is the error at a pair of the memory without that pair."""
    kernel, strength = md.RBF(scale=1.5), 0.3
    memory = md.Memory(kernel, md.Ridge(strength), capacity=md.Budget(3, md.LeaveOneOut()))
    made = inputs(memory, seed, time=4)
    keys, values = np.asarray(made["keys"]), np.asarray(made["values"])

    def fitted(kept: list[int], query: np.ndarray) -> np.ndarray:
        gram = np.asarray(
            kernel.pairs(made["keys"][np.asarray(kept)], made["keys"][np.asarray(kept)])
        )
        u = np.linalg.solve(gram + strength * np.eye(len(kept)), values[kept])
        return np.asarray([kernel(keys[i], query) for i in kept]) @ u

    every = list(range(4))
    misses = [
        np.linalg.norm(values[i] - fitted([j for j in every if j != i], keys[i])) for i in every
    ]
    kept = [i for i in every if i != int(np.argmin(misses))]
    close(denote(memory, made)[-1], fitted(kept, made["queries"][-1]))


def test_a_reservoir_is_uniform_over_what_it_has_seen():
    """Of 8 pairs, each is among the 3 kept three times in eight."""
    runs, time = 80, 8
    keys, values, counts = random(0, time, KEY), jnp.eye(time), np.zeros(time)
    for seed in range(runs):
        evict = md.Random(seed=seed, reservoir=True)
        memory = md.Memory(md.Exp(md.Dot()), md.Hebb(), capacity=md.Budget(3, evict))
        kept = np.asarray(md.denote(memory, keys, values, keys)[-1]) != 0
        assert kept.sum() == 3
        counts += kept
    # a binomial of 80 draws at 3/8 has mean 30 and deviation 4.3
    assert np.all(np.abs(counts - 30) < 4 * 4.33)


@law
def test_a_budget_of_one_keeps_the_latest(seed: int):
    memory = md.Memory(md.RBF(), md.Hebb(), capacity=md.Budget(1))
    made = inputs(memory, seed)
    weights = jnp.stack(
        [md.RBF()(k, q) for k, q in zip(made["keys"], made["queries"], strict=True)]
    )
    close(denote(memory, made), weights[:, None] * made["values"])


def test_quantised_kernel_least_mean_squares_by_hand():
    """Width 1, step 1/2, keys 0, 1, 0 and values 1, 0, 1 (Chen et al. 2012)."""
    keys, values = jnp.asarray([[0.0], [1.0], [0.0]]), jnp.asarray([[1.0], [0.0], [1.0]])
    klms = md.Memory(md.RBF(), md.Delta(0.5))
    close(md.denote(klms, keys, values)[:, 0], [0, 0.5 * np.exp(-0.5), 0.5 - 0.25 * np.exp(-1)])
    forecasts = np.asarray(md.denote(klms, keys, values)[:, 0])
    np.testing.assert_allclose(forecasts, [0, 0.3032653, 0.4080301], atol=5e-8)
    quantised = klms.replace(gate=md.Novelty(0.5), capacity=md.Budget(8, merge=md.AddToNearest()))
    first, second = (
        md.denote(memory, keys, values, jnp.broadcast_to(jnp.asarray(q), (3, 1)))[-1, 0]
        for memory in (quantised,)
        for q in ([0.0], [1.0])
    )
    kernel = np.asarray([[1, np.exp(-0.5)], [np.exp(-0.5), 1]])
    np.testing.assert_allclose(
        np.linalg.solve(kernel, [first, second]), [0.7959849, -0.1516327], atol=5e-8
    )
