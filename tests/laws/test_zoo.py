"""Every memory of the zoo by every plan: packed, masked, in pieces and token by token.

All of it is what the oracle says. A new entry of the catalogue is tested without a line here. By
default each is run once, by the plan that a long sequence gets, from bfloat16, and token by token;
`-m slow` runs every plan from either precision, in pieces too, and the documents and the padding apart.
"""

import functools
import re
import zlib
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import memdsl as md
from memdsl.plan import plan

from ..helpers import close, inputs, KEY, TIME, VALUE
from .test_runs import CHUNK, numbered, plans, run, SHORT, spoiled, start


FLAGS = {
    "both": ((2, 4), (2,)),  # the first of the two starts is masked
    "packed": ((2, 4), ()),
    "masked": ((), (0, 3)),
}
"""By name, the tokens that a document starts at, and those that are padding."""
TOLERANCE = 2e-4
"""Of float32, as for the memories of `test_runs`."""


def value_size(memory: Any) -> int:
    """Another one than that of the keys, but for memories that add a key to an answer."""
    try:
        md.plan(memory, md.Dims(key=KEY, value=VALUE))
    except md.SpecError:
        return KEY
    return VALUE


def default_plan(memory: Any) -> dict[str, str]:
    """By path, what a long sequence is run by, in chunks as short as those of these tests."""
    chosen = plan(memory, md.Dims(key=64, value=64, time=4096)).choices
    return {c.path: re.sub(r"(?<=chunkwise) \(\d+\)", f" ({CHUNK})", c.rule.name) for c in chosen}


def cases() -> Iterator[Any]:
    for name, make in md.zoo.catalogue().items():
        memory = make()
        usual = default_plan(memory)
        for using in [
            usual,
            *(other for other in plans(memory, value_size(memory)) if other != usual),
        ]:
            for dtype in ("bfloat16", "float32"):
                label = f"{name}-{numbered(using)}-{dtype}"
                yield pytest.param(name, using, dtype, False, id=label, marks=pytest.mark.slow)
        yield pytest.param(name, usual, "bfloat16", True, id=name)


@functools.cache
def prepared(name: str, dtype: str, flag: str) -> tuple[dict[str, Any], Any]:
    """Inputs of a precision, with NaN where there is padding, and what the oracle says of them."""
    memory = md.zoo.catalogue()[name]()
    made = inputs(memory, zlib.crc32(name.encode()) % 1000, value=value_size(memory))
    made = {n: a if a.dtype == bool else a.astype(dtype) for n, a in made.items()}
    starts, padding = (jnp.isin(jnp.arange(TIME), jnp.asarray(at, int)) for at in FLAGS[flag])
    made = {**spoiled(memory, {**made, "starts": starts}, ~padding), "mask": ~padding}
    exact = {n: a if a.dtype == bool else a.astype(jnp.float64) for n, a in made.items()}
    return made, md.denote(memory, **exact)


def in_pieces(
    memory: Any, made: dict[str, Any], state: Any, size: int, **how: Any
) -> tuple[Any, Any]:
    """Pieces of a size, one after the other, each going on from the state that the last one left."""
    constant = {slot.name for slot in md.signals(memory) if not slot.time}
    fixed = {n: a for n, a in made.items() if n in constant}
    count = TIME // size
    rows = {
        n: a.reshape(count, len(a) // count, *a.shape[1:])
        for n, a in made.items()
        if n not in constant
    }

    def one(state: Any, row: dict[str, Any]) -> tuple[Any, Any]:
        return md.run(memory, state, rules=SHORT, **how, **row, **fixed)

    state, answers = jax.lax.scan(one, state, rows)
    return state, answers.reshape(TIME, -1)


def kinds(tree: Any) -> Any:
    """The structure, shapes and dtypes of a state."""
    return jax.tree.map(lambda a: (a.shape, a.dtype), tree)


@pytest.mark.parametrize(("name", "using", "dtype", "is_usual"), list(cases()))
def test_every_memory_of_the_zoo_by_every_plan(
    name: str, using: dict[str, str], dtype: str, is_usual: bool
):
    """States are of one kind and in single precision, whatever way led to them."""
    memory = md.zoo.catalogue()[name]()

    @functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
    def all_ways(made: dict[str, Any]) -> Any:
        before = start(memory, using, dtype=jnp.float32, value=value_size(memory))
        ways = {
            "whole": run(memory, made, using, before),
            "steps": in_pieces(memory, made, before, 1, purpose="serve"),  # as generation does
        }
        if not is_usual:
            ways["split"] = in_pieces(memory, made, before, TIME // 2, using=using)
        return before, ways

    for flag in FLAGS:
        if flag != "both" and is_usual:
            continue
        made, wanted = prepared(name, dtype, flag)
        before, ways = all_ways(made)
        for way, (state, answers) in ways.items():
            assert answers.dtype == jnp.float32
            assert kinds(state) == kinds(before), way
            try:
                close(answers, wanted, TOLERANCE)
            except AssertionError as error:
                raise AssertionError(f"{way}, {flag}, {memory!r}\n{error}") from error
