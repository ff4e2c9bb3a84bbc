"""Every legal plan computes what the oracle says, in value and in gradient; and runs can be cut.

Chunks are of 4 tokens here, so that the few tokens that the oracle takes are more than one chunk.
"""

import dataclasses
import functools
import re
import zlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import memdsl as md
from memdsl.plan import plan, RULES
from memdsl.plan._tree import forecasting
from memdsl.run._buffer import buffer_chunkwise
from memdsl.run._gram import gram_chunkwise
from memdsl.run._matrix import matrix_chunkwise

from ..helpers import (
    close,
    COMPOSITES,
    covering,
    inputs,
    KEY,
    LISTS,
    random,
    some_of,
    TIME,
    VALUE,
)


CHUNK = 4
CHUNKWISE = {"matrix": matrix_chunkwise, "gram": gram_chunkwise, "buffer": buffer_chunkwise}
FEW = covering(1)
many = functools.cache(covering)
PARTS = 64
DELTA = md.Delta(md.FromInput("sigmoid"))
DECAY = md.Decay(md.FromInput("sigmoid"))
CORE = {
    "gla": md.Memory(md.Dot(), gate=LISTS["gate"]["diagonal"]),
    "delta_net": md.Memory(LISTS["kernel"]["delta_net"], DELTA, DECAY),
    "previous": md.Memory(md.Dot(), md.Delta(0.4, recall="previous"), LISTS["gate"]["both"]),
    "normalised": md.Memory(LISTS["kernel"]["elu"], gate=DECAY, read=md.Normalised(prior=0.1)),
    "product": md.Memory(md.Dot(), DELTA.times(2), DECAY),
    "mesa": md.Memory(md.Dot(), LISTS["write"]["mesa"], DECAY),
    "momentum": md.Memory(md.Dot(), LISTS["write"]["titans"], DECAY),
    "omega": md.Memory(md.RBF(), LISTS["write"]["omega"], DECAY),
    "minibatch": md.Memory(md.Dot(), LISTS["write"]["minibatch"], DECAY),
    "network": md.Network(
        md.Descent(rate=md.FromInput("sigmoid"), minibatch=2, gain=md.FromInput("sigmoid")),
        gate=DECAY,
    ),
    "softmax": md.Memory(LISTS["kernel"]["root"], read=md.Normalised()),
    "sliding": md.Memory(
        LISTS["kernel"]["root"], gate=DECAY, capacity=md.Window(2, sinks=1), read=md.Normalised()
    ),
    "local": md.Memory(LISTS["kernel"]["root"], gate=DECAY, read=md.LocalLinear(0.5)),
    "local_sliding": md.Memory(
        LISTS["kernel"]["elu"], capacity=md.Window(3, sinks=1), read=md.LocalLinear(md.Knob(0.5))
    ),
    "kernel_delta": md.Memory(md.RBF(), DELTA, DECAY),
    "kernel_ridge": md.Memory(md.RBF(), md.Ridge(0.7)),
    "budget": md.Memory(
        md.RBF(), DELTA, md.Novelty(0.8), md.Budget(3, md.Smallest(), md.AddToNearest())
    ),
    "used": md.Memory(md.RBF(), DELTA, DECAY, md.Budget(3, md.LeastUsed(0.5))),
    "reservoir": md.Memory(md.RBF(), DELTA, capacity=md.Budget(3, md.Random(1, reservoir=True))),
    "solved": md.Memory(md.RBF(), md.Ridge(0.7), DECAY, md.Budget(3, md.Smallest())),
    "nearest": md.Memory(md.RBF(), DELTA, DECAY, read=md.TopK(2)),
    "blocks": md.Memory(
        LISTS["kernel"]["root"], gate=DECAY, read=md.TopBlocks(2, 2, first=0, latest=1)
    ),
    "before": md.Memory(md.Dot(), DELTA, DECAY, read=LISTS["read"]["bonus"]),
    "every": COMPOSITES["every_sum"],
    "boosted": COMPOSITES["boosted"],
    "oja": COMPOSITES["oja"],
    "initial": COMPOSITES["initial_diagonal"],
    "schedule": COMPOSITES["schedule"],
}


def _short(rule: Any) -> Any:
    if not re.fullmatch(r"chunkwise \(\d+\)", rule.execution):
        return rule
    run = CHUNKWISE[rule.representation](CHUNK)
    return dataclasses.replace(rule, execution=f"chunkwise ({CHUNK})", run=run)


SHORT = tuple({rule.name: rule for rule in map(_short, RULES)}.values())


def plans(memory: Any, value: int = VALUE) -> list[dict[str, str]]:
    """Every rule that is legal for a leaf, the other leaves on the rule that was chosen."""
    chosen = plan(memory, md.Dims(key=KEY, value=value, time=TIME), rules=SHORT)
    best = {choice.path: choice.rule.name for choice in chosen.choices}
    found = [best]
    for choice in chosen.choices:
        for rule, _ in choice.legal:
            other = {**best, choice.path: rule.name}
            if other not in found:
                found.append(other)
    return found


def numbered(using: dict[str, str]) -> str:
    return " + ".join(using.values())


def start(
    memory: Any, using: Any, room: int = 2 * TIME, dtype: Any = jnp.float64, value: int = VALUE
) -> Any:
    return md.empty(memory, KEY, value, capacity=room, using=using, rules=SHORT, dtype=dtype)


def run(memory: Any, made: dict[str, Any], using: Any, state: Any = None, **kind: Any) -> Any:
    state = start(memory, using, **kind) if state is None else state
    return md.run(memory, state, using=using, rules=SHORT, **made)


def split(memory: Any, made: dict[str, Any], which: slice, time: int = TIME) -> dict[str, Any]:
    """The part of every array along time, pairs of a token together."""
    constant = {slot.name for slot in md.signals(memory) if not slot.time}

    def part(array: Any) -> Any:
        each = len(array) // time if array.ndim else 0
        if not each or len(array) % time:
            return array
        rows = range(time)[which]
        return array[rows.start * each : rows.stop * each]

    return {n: array if n in constant else part(array) for n, array in made.items()}


def spoiled(memory: Any, made: dict[str, Any], there: Any) -> dict[str, Any]:
    """NaN in all that a masked token brings."""
    constant = {slot.name for slot in md.signals(memory) if not slot.time} | {"starts"}

    def spoil(array: Any) -> Any:
        rows = jnp.repeat(there, len(array) // len(there))
        return jnp.where(rows.reshape(-1, *[1] * (array.ndim - 1)), array, jnp.nan)

    return {n: a if n in constant else spoil(a) for n, a in made.items()}


def value_and_gradient(function: Any, made: dict[str, Any], cotangent: Any, *, jit: bool) -> Any:
    fixed = {n: a for n, a in made.items() if a.dtype == bool}
    floats = {n: a for n, a in made.items() if n not in fixed}

    def loss(floats: dict[str, Any]) -> Any:
        answers = function({**floats, **fixed})
        return jnp.sum(cotangent * answers), answers

    both = jax.value_and_grad(loss, has_aux=True)
    quickly = {"xla_backend_optimization_level": 0}  # compiling is what these tests cost
    (_, answers), gradient = (jax.jit(both, compiler_options=quickly) if jit else both)(floats)
    return answers, gradient


def tolerance(memory: Any) -> float:
    """The distance of a key to itself, by matrix products, is about 1e-8 and not 0; a root shows it."""
    return 1e-6 if re.search("Matern|ConjugateGradient", repr(memory)) else 1e-8


def check_against_the_oracle(memory: Any, made: dict[str, Any]) -> None:
    shape = md.denote(memory, **made).shape
    cotangent = random(7, *shape)
    answers, gradient = value_and_gradient(
        lambda made: md.denote(memory, **made), made, cotangent, jit=False
    )
    for using in plans(memory):
        ours, slopes = value_and_gradient(
            lambda made, using=using: run(memory, made, using)[1], made, cotangent, jit=True
        )
        try:
            close(ours, answers, tolerance(memory))
            for name in gradient:
                close(slopes[name], gradient[name], 100 * tolerance(memory))
        except AssertionError as error:
            raise AssertionError(f"{numbered(using)} of {memory!r}\n{error}") from error


def is_tie(memory: Any) -> bool:
    """Which of equally near atoms is read, and which of equally small ones goes, says nothing.

    A Huber loss by the norm clips, so that many coefficients have one norm, but for rounding.
    """
    said = repr(memory)
    clipped = 'by="norm"' in said and "Smallest" in said
    return clipped or ("Constant" in said and "Top" in said)


def check(name: str, memory: Any, *, is_flagged: bool) -> None:
    if is_tie(memory):
        return
    made = inputs(memory, zlib.crc32(name.encode()) % 1000)
    if is_flagged:
        there = jnp.arange(TIME) != 2
        starts = jnp.isin(jnp.arange(TIME), jnp.asarray([2, 4]))  # the first of the two is masked
        made = spoiled(memory, {**made, "starts": starts}, there)
        made["mask"] = there
    check_against_the_oracle(memory, made)


@pytest.mark.parametrize("name", some_of(COMPOSITES, 9))
def test_every_plan_of_a_composite(name: str):
    check(name, COMPOSITES[name], is_flagged=False)


@pytest.mark.parametrize("name", some_of(FEW, 4))
def test_every_plan(name: str):
    """Half of them with masked tokens that hold NaN, and with several documents."""
    check(name, FEW[name], is_flagged=zlib.crc32(name.encode()) % 2 == 0)


@pytest.mark.slow
@pytest.mark.parametrize("is_flagged", [False, True], ids=["plain", "flagged"])
@pytest.mark.parametrize("part", range(PARTS))
def test_every_plan_of_every_pair_of_parts(part: int, is_flagged: bool):
    """In so many parts, since the list is long to make."""
    memories = {**many(), **COMPOSITES, **CORE}
    for name in sorted(memories)[part::PARTS]:
        check(name, memories[name], is_flagged=is_flagged)


@pytest.mark.parametrize("name", some_of(CORE, 6))
def test_runs_can_be_cut_anywhere(name: str):
    """`run(xs ++ ys) = run(ys) after run(xs)`, no and one token included, whatever rules run them."""
    memory = CORE[name]
    made = inputs(memory, 3)
    using, *others = plans(memory)
    state, whole = run(memory, made, using)
    close(whole, md.denote(memory, **made), tolerance(memory))
    for cut in (0, 1, 4, TIME):
        first, answers = run(memory, split(memory, made, slice(0, cut)), using)
        second, rest = run(memory, split(memory, made, slice(cut, None)), using, first)
        close(jnp.concatenate([answers, rest]), whole, tolerance(memory))
        assert jax.tree.structure(second) == jax.tree.structure(state)
        for a, b in zip(jax.tree.leaves(second), jax.tree.leaves(state), strict=True):
            assert a.dtype == b.dtype and a.shape == b.shape
    for other in others:
        first, answers = run(memory, split(memory, made, slice(0, 3)), using)
        try:
            _, rest = run(memory, split(memory, made, slice(3, None)), other, first)
        except md.SpecError as error:  # another representation, which cannot take this state
            assert "the state that is there" in str(error).lower()
            continue
        close(jnp.concatenate([answers, rest]), whole, tolerance(memory))


@pytest.mark.parametrize("name", some_of(CORE, 5))
def test_steps_are_a_run(name: str):
    memory = CORE[name]
    if "times(" in repr(memory):
        return  # a step takes one pair
    made = inputs(memory, 4)
    constant = {slot.name for slot in md.signals(memory) if not slot.time}
    state, answers = start(memory, None), []

    for t in range(TIME):
        key, value, query = (made[n][t] for n in ("keys", "values", "queries"))
        row = {n: a if n in constant else a[t] for n, a in made.items()}
        rest = {n: a for n, a in row.items() if n not in ("keys", "values", "queries")}
        state, answer = md.step(memory, state, key, value, query, **rest)
        answers.append(answer)
    _, whole = run(memory, made, None)
    close(jnp.stack(answers), whole, tolerance(memory))


@pytest.mark.parametrize("name", some_of(CORE, 6))
def test_forecasts(name: str):
    """Without queries, the answer at every key before its token is written."""
    memory = CORE[name]
    if "times(" in repr(memory) or name == "before":
        return  # no single key to forecast at; a bonus would need the value
    made = inputs(memory, 5)
    made.pop("queries")
    expected = md.denote(memory, **made)
    for using in plans(forecasting(memory)):
        close(run(memory, made, using)[1], expected, tolerance(memory))


@pytest.mark.parametrize("name", some_of(CORE, 6))
def test_nothing_flows_back_in_time_nor_between_documents(name: str):
    """The gradient of early answers to later tokens is exactly 0, and that of a document to others."""
    memory = CORE[name]
    made = inputs(memory, 6)
    made["starts"] = made.get("starts", jnp.zeros(TIME, bool))
    apart = {**made, "starts": made["starts"].at[3].set(True)}
    constant = {slot.name for slot in md.signals(memory) if not slot.time} | {"starts"}
    early = jnp.zeros((TIME, 1)).at[:3].set(1.0)
    expected = md.denote(memory, **apart)
    for using in plans(memory):

        @jax.jit
        def both(made: dict[str, Any], cotangent: Any, using: Any = using) -> Any:
            return value_and_gradient(
                lambda made: run(memory, made, using)[1], made, cotangent, jit=False
            )

        for case, cotangent, rows in (
            (made, early, slice(3, None)),
            (apart, early, slice(3, None)),
            (apart, 1 - early, slice(0, 3)),
        ):
            answers, gradient = both(case, cotangent)
            for name_of, slope in gradient.items():
                if name_of not in constant:
                    outside = split(memory, {name_of: slope}, rows)[name_of]
                    assert not np.any(np.asarray(outside)), (numbered(using), name_of)
        close(answers, expected, tolerance(memory))


@pytest.mark.parametrize("name", some_of(CORE, 5))
def test_single_precision(name: str):
    memory = CORE[name]
    made = inputs(memory, 8)
    single = {n: a if a.dtype == bool else a.astype(jnp.float32) for n, a in made.items()}
    expected = md.denote(memory, **made)
    for using in plans(memory):
        _, answers = run(memory, single, using, dtype=jnp.float32)
        assert answers.dtype == jnp.float32
        close(answers, expected, 2e-4)
