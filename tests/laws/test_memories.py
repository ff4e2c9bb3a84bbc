"""Memories add, chain, boost and transpose as functions do."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest

import memdsl as md

from ..helpers import close, COMPOSITES, inputs, KEY, law, random, some_of, TIME, VALUE


DOT = md.Memory(md.Dot(), md.Delta(0.4), md.Decay(0.9))
RBF = md.Memory(md.RBF(), md.Delta(0.5))
SOFTMAX = md.Memory(md.Exp(md.InverseRoot("key") * md.Dot()), read=md.Normalised())
MEAN = md.Memory(md.RBF(), md.Hebb(), read=md.Normalised(prior=1.0))


def denote(memory: Any, made: dict[str, Any], **changes: Any) -> Any:
    return md.denote(memory, **{**made, **changes})


def made_for(memory: Any, seed: int) -> dict[str, Any]:
    return inputs(memory, seed)


@law
def test_a_commutative_monoid(seed: int):
    made = made_for(DOT, seed)

    def same(a: Any, b: Any) -> None:
        close(denote(a, made), denote(b, made))

    same(DOT + RBF, RBF + DOT)
    same((DOT + RBF) + SOFTMAX, DOT + (RBF + SOFTMAX))
    same(sum([DOT, RBF, SOFTMAX]), DOT + RBF + SOFTMAX)
    assert DOT + md.Zero() == md.Zero() + DOT == DOT
    close(denote(md.Zero(), made), jnp.zeros((TIME, VALUE)))
    close(denote(DOT + RBF, made), denote(DOT, made) + denote(RBF, made))


@law
def test_scaling_is_an_action_of_numbers(seed: int):
    made = made_for(DOT, seed)
    close(denote(2.0 * (DOT + RBF), made), denote(2.0 * DOT + 2.0 * RBF, made))
    close(denote(1.0 * DOT, made), denote(DOT, made))
    close(denote(0.0 * DOT, made), jnp.zeros((TIME, VALUE)))
    factor = md.FromInput("sigmoid", per="value_channel") * DOT
    factors = random(seed, TIME, VALUE)
    close(denote(factor, made, factor=factors), factors * denote(DOT, made))


@law
def test_the_kernel_sum_law_holds_for_hebb_and_fails_for_delta(seed: int):
    a, b = md.Dot(), md.RBF()
    made = made_for(DOT, seed)
    for gate in (md.Keep(), md.Decay(0.8)):
        whole = md.Memory(a + b, md.Hebb(0.7), gate)
        parts = md.Memory(a, md.Hebb(0.7), gate) + md.Memory(b, md.Hebb(0.7), gate)
        close(denote(whole, made), denote(parts, made))
    delta = (
        md.Memory(a + b, md.Delta(0.7)),
        md.Memory(a, md.Delta(0.7)) + md.Memory(b, md.Delta(0.7)),
    )
    gap = jnp.max(jnp.abs(denote(delta[0], made) - denote(delta[1], made)))
    assert float(gap) > 1e-3  # each of the two corrects the same error: the boundary of the law


@law
def test_a_kernel_and_its_features_are_one_memory(seed: int):
    """A finite kernel on keys means what the dot product means on its features."""
    for kernel in (md.Polynomial(2), md.Dot() + md.Constant(0.5), md.Dot().pullback(md.Taylor())):
        for write in (md.Hebb(), md.Delta(0.1), md.Ridge(0.7), md.Descent(rate=0.1, momentum=0.5)):
            made = made_for(DOT, seed)
            mapped = {n: jax.vmap(kernel.features)(made[n]) for n in ("keys", "queries")}
            memory = md.Memory(kernel, write, md.Decay(0.9))
            close(denote(memory, made), denote(memory.replace(kernel=md.Dot()), {**made, **mapped}))


@law
def test_transposing_twice_is_nothing(seed: int):
    assert DOT.transpose().transpose() == DOT
    memory = md.Memory(md.Dot().pullback(md.L2Norm()), md.Delta(md.FromInput("sigmoid")))
    oja = memory.transpose()
    made, matrix, rows = made_for(oja, seed), jnp.zeros((VALUE, KEY)), []
    for t in range(TIME):
        v = md.L2Norm()(made["values"][t])
        matrix = matrix + made["rate"][t] * jnp.outer(v, made["keys"][t] - matrix.T @ v)
        rows.append(matrix @ made["queries"][t])
    close(denote(oja, made), jnp.stack(rows))


@law
def test_a_transposed_hebbian_memory_is_itself(seed: int):
    """Hebb stores `k v'` either way round."""
    made = made_for(DOT, seed)
    hebb = md.Memory(md.Dot(), md.Hebb(0.5), md.Decay(0.8))
    close(denote(hebb.transpose(), made), denote(hebb, made))
    start = random(seed, KEY, VALUE)
    learned = hebb.replace(initial=md.Learned())
    answers = denote(learned.transpose(), made, initial=start.T)
    close(answers, denote(learned, made, initial=start))


@law
def test_a_chain_asks_the_second_what_the_first_answered(seed: int):
    memory = RBF >> md.Linear(KEY) >> MEAN
    made = made_for(memory, seed)
    weight = made.pop("weight")
    close(denote(RBF >> md.Linear(KEY), made, weight=weight), denote(RBF, made) @ weight.T)
    asked = denote(RBF, made) @ weight.T
    close(denote(memory, made, weight=weight), denote(MEAN, made, queries=asked))
    close(denote(RBF >> md.Silu(), made), jax.nn.silu(denote(RBF, made)))


@law
def test_boosting_learns_what_the_first_got_wrong(seed: int):
    made = made_for(DOT, seed)
    for first in (DOT, MEAN, SOFTMAX):
        errors = made["values"] - denote(first, made, queries=None)
        second = denote(RBF, made, values=errors)
        close(denote(first.boost(RBF), made), denote(first, made) + second)
    close(denote(md.Zero().boost(RBF), made), denote(RBF, made))
    # a second memory that is a perfect fit makes the sum one
    exact = md.Memory(md.RBF(), md.Delta(1.0))
    forecasts = denote(DOT.boost(exact), made, queries=None)
    close(forecasts[0], jnp.zeros(VALUE))


@law
def test_every_writes_the_last_of_each_group(seed: int):
    made = made_for(DOT, seed)
    close(denote(md.every(1, RBF), made), denote(RBF, made))
    mask = jnp.arange(TIME) % 2 == 1
    written = denote(RBF, made, mask=mask)
    close(denote(md.every(2, RBF), made)[1::2], written[1::2])
    close(denote(md.every(2, md.every(3, RBF)), made), denote(md.every(6, RBF), made))
    starts = jnp.arange(TIME) == 3  # the count starts again there
    answers = denote(md.every(2, RBF), made, starts=starts)
    tail = {n: a[3:] for n, a in made.items()}
    close(answers[3:], denote(md.every(2, RBF), tail))


@law
def test_of_shows_a_memory_other_vectors(seed: int):
    made = made_for(DOT, seed)
    unit = md.L2Norm()
    pulled = md.Memory(md.Dot().pullback(unit), md.Delta(0.7))
    plain = md.Memory(md.Dot(), md.Delta(0.7))
    both = plain.of(key=md.Key() >> unit, query=md.Query() >> unit)
    close(denote(both, made), denote(pulled, made))
    # of after of: what the inner one sees is what the outer one gives
    twice = plain.of(key=md.Key() >> md.Silu()).of(key=md.Key() >> unit)
    close(denote(twice, made), denote(plain.of(key=(md.Key() >> unit) >> md.Silu()), made))
    # to be asked at an answer is to be chained
    first = MEAN.of(value=md.Key())
    close(denote(plain.of(query=md.Answer(first)), made), denote(first >> plain, made))
    # a vector of one's own, and numbers of one for all
    own = made["keys"] * 0.5
    vector = plain.of(key=md.Own(), own=md.FromInput("identity", per="key_channel"))
    close(denote(vector, made, own=own), denote(plain, made, keys=own))
    halves = plain.of(key=md.Key() * md.Own(), value=md.Value() + md.Own(), own=0.5)
    close(denote(halves, made), denote(plain, made, keys=own, values=made["values"] + 0.5))


@law
def test_averaged_is_a_softmax_over_time(seed: int):
    """Both ways by the formula, and for logits whose exponentials no float holds."""
    memory = md.Memory(md.Dot())
    for scale in (1.0, 300.0):
        made = made_for(DOT, seed)
        made["keys"] = made["keys"] * scale
        for t, answer in enumerate(denote(memory.averaged("key"), made)):
            shares = jax.nn.softmax(made["keys"][: t + 1], axis=0)
            close(answer, (shares.T @ made["values"][: t + 1]).T @ made["queries"][t])
        made = made_for(DOT, seed)
        made["values"] = made["values"] * scale
        for t, answer in enumerate(denote(memory.averaged("value"), made)):
            shares = jax.nn.softmax(made["values"][: t + 1], axis=0)
            close(answer, shares.T @ (made["keys"][: t + 1] @ made["queries"][t]))
        state = md.empty(memory.averaged("value"), KEY, VALUE)
        single = {n: a.astype(jnp.float32) for n, a in made.items()}
        _, answers = md.run(memory.averaged("value"), state, **single)
        close(answers, denote(memory.averaged("value"), made), 1e-5)


@law
def test_levels_are_all_pairs_by_their_age(seed: int):
    """Log-linear attention by its formula; and all levels together are the memory itself."""
    time = 11
    memory = md.Memory(md.Dot(), gate=md.Decay(md.FromInput("sigmoid")))
    made = inputs(memory, seed, time=time)
    levels = [denote(md.level(n, memory), made) for n in range(6)]
    close(sum(levels), denote(memory, made))
    assert not bool(jnp.any(levels[5])) and bool(jnp.all(levels[4][:8] == 0))
    keys, values, queries = (made[n] for n in ("keys", "values", "queries"))
    fades = jnp.cumsum(made["log_decay"])
    for number, answers in enumerate(levels):
        pairs = [
            [(i ^ j).bit_length() == number and j <= i for j in range(time)] for i in range(time)
        ]
        weights = jnp.where(jnp.asarray(pairs), jnp.exp(fades[:, None] - fades[None, :]), 0)
        close(answers, (weights * (queries @ keys.T)) @ values)
    # a document starts its own count
    starts = jnp.arange(time) == 3
    rest = {n: a[3:] for n, a in made.items()}
    after = denote(md.level(2, memory), made, starts=starts)[3:]
    close(after, denote(md.level(2, memory), rest))


@law
def test_a_level_keeps_one_matrix(seed: int):
    """However long the sequence: token by token, level n remembers one function and a place."""
    memory = md.level(3, md.Memory(md.Dot(), gate=md.Decay(0.9)))
    made = inputs(memory, seed, time=11)
    state = md.empty(memory, KEY, VALUE, using="matrix / recurrent", dtype=jnp.float64)
    assert sum(x.size for x in jax.tree.leaves(state)) == KEY * VALUE + 2
    answers = []
    for t in range(11):
        state, answer = md.step(memory, state, *(made[n][t] for n in ("keys", "values", "queries")))
        answers.append(answer)
    close(jnp.stack(answers), denote(memory, made))


@pytest.mark.parametrize("name", some_of(COMPOSITES, 3))
@law
def test_documents_are_apart_and_padding_is_nothing(name: str, seed: int):
    """Packed documents equal separate ones, and a masked token leaves no trace, NaN or not."""
    memory = COMPOSITES[name]
    made = inputs(memory, seed)
    if name == "schedule":
        return  # it counts tokens, whatever document they are in
    time_axis = [n for n, a in made.items() if a.ndim and a.shape[0] == TIME]

    def part(which: Any) -> dict[str, Any]:
        return {n: a[which] if n in time_axis else a for n, a in made.items()}

    packed = denote(memory, made, starts=jnp.arange(TIME) == 2)
    close(packed[:2], denote(memory, part(slice(0, 2))))
    close(packed[2:], denote(memory, part(slice(2, None))))
    there = jnp.asarray([True, False, True, True, False, True])
    starts = jnp.asarray([False, True, False, False, False, False])  # on a masked token: nothing
    poison = {
        n: jnp.where(there.reshape(-1, *[1] * (a.ndim - 1)), a, jnp.nan) if n in time_axis else a
        for n, a in made.items()
    }
    answers = denote(memory, poison, mask=there, starts=starts)
    close(answers[there], denote(memory, part(there)))
    close(answers[~there], jnp.zeros((2, answers.shape[1])))


@law
def test_causality(seed: int):
    """What comes later changes no earlier answer."""
    for name in ("hybrid", "boosted", "klms", "every_sum", "oja"):
        made = inputs(COMPOSITES[name], seed)
        later = {n: a.at[4:].add(1.0) if a.ndim and len(a) == TIME else a for n, a in made.items()}
        close(denote(COMPOSITES[name], made)[:4], denote(COMPOSITES[name], later)[:4])
