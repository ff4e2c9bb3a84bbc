"""A memory run over all heads of a layer: its states, its numbers and its answers."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from .._types import at_least_single
from ..plan import Dims, Plan, plan
from ..plan._prepare import prepare
from ..plan._states import empty_tree, leaf_states, representation_of, with_room
from ..plan._stream import run_tree, Stream
from ..plan._tree import leaves
from ..spec._memory import AbstractMemory, Leaf
from ..spec._slots import ground
from ..spec._streams import Sizes
from ..state import AbstractState
from ._numbers import evaluate_constants, evaluate_numbers


Numbers = Mapping[str, tuple[Any, ...]]
"""The parameters of the numbers of a memory, by path."""


def plan_heads(
    memory: AbstractMemory, dims: Dims, time: int | None, purpose: str, state: Any = None
) -> Plan:
    """The plan of a memory for a length, which keeps the representation of a state."""
    kept = {}
    if state is not None:
        kept = {path: representation_of(s) for path, s in leaf_states(memory, state)}
    sized = dataclasses.replace(dims, time=time)
    return plan(memory, sized, purpose=purpose, representation=kept)


def empty_heads(
    memory: AbstractMemory, dims: Dims, numbers: Numbers, time: int | None, dtype: Any
) -> Any:
    """The states of all heads before the first token."""
    time = time or dims.time
    chosen = plan_heads(memory, dims, time, "serve")
    constants = evaluate_constants(memory, numbers, dims.heads, dtype)
    return _with_initial(chosen, _empty(chosen, dims, time, dtype), constants)


def run_heads(
    memory: AbstractMemory,
    dims: Dims,
    numbers: Numbers,
    x: Array,
    streams: Mapping[str, Array],
    state: Any,
    begins: Array | None,
    mask: Array | None,
) -> tuple[Any, Array]:
    """`(states, answers)`; the answers are `[time, heads, answer]`.

    `streams` are `[heads, time * pairs, size]`: `query`, `key`, `value`, and `erase`, `remove`. A
    state of `None` is a fresh start. Where `numbers` holds modules, their answers stand in for them.
    """
    time, heads = len(x), dims.heads
    room, fresh = max(time, 1), state is None
    dtype = at_least_single(x.dtype)
    if fresh:
        chosen = plan_heads(memory, dims, room, "train")
        before = _empty(chosen, dims, room, dtype)
    else:
        chosen = plan_heads(memory, dims, room, "serve" if time == 1 else "train", state)
        before = state
    steps = _steps(chosen, before, time, mask)
    constants, tokens = evaluate_numbers(chosen.memory, numbers, x, heads, steps, dtype)
    if fresh:
        before = _with_initial(chosen, before, constants)

    def one_head(state: Any, streams: Any, constants: Any, tokens: Any) -> tuple[Any, Array]:
        stream = Stream(
            streams["key"],
            streams["value"],
            streams["query"],
            streams.get("erase"),
            streams.get("remove"),
            begins,
            mask,
            constants,
            tokens,
            fresh,
            mask,
        )
        return run_tree(chosen.memory, chosen, state, stream)

    cast = {name: a.astype(dtype) for name, a in streams.items()}
    after, answers = jax.vmap(one_head)(before, cast, constants, tokens)
    if not fresh:
        answers = with_room(chosen.memory, before, after, answers)
    return after, jnp.moveaxis(answers, 0, 1)


def computed_states(numbers: Numbers, time: int | None) -> dict[str, Any]:
    """The states of the layers that compute numbers."""
    return {place: module.init(time) for place, module in _modules(numbers)}


def run_computed(
    numbers: Numbers,
    x: Array,
    states: Mapping[str, Any] | None,
    starts: Array | None,
    mask: Array | None,
) -> tuple[Numbers, dict[str, Any] | None]:
    """The same numbers, what a layer computes in its place, and the states of these layers."""
    answers, after = {}, {}
    for place, module in _modules(numbers):
        before = None if states is None else states[place]
        after[place], answers[place] = module.run(x, before, starts, mask)
    replaced = {
        path: tuple(answers.get(f"{path}.{i}", leaf) for i, leaf in enumerate(several))
        for path, several in numbers.items()
    }
    return replaced, None if states is None else after


def _modules(numbers: Numbers) -> list[tuple[str, Any]]:
    return [
        (f"{path}.{i}", leaf)
        for path, several in sorted(numbers.items())
        for i, leaf in enumerate(several)
        if not isinstance(leaf, tuple | Array | None)
    ]


def _empty(chosen: Plan, dims: Dims, time: int | None, dtype: Any) -> Any:
    sizes = Sizes(dims.key, dims.value, dims.key)
    one = empty_tree(chosen.memory, chosen, sizes, time, dtype)
    return jax.tree.map(lambda a: jnp.broadcast_to(a, (dims.heads, *a.shape)), one)


def _steps(chosen: Plan, memory: Any, time: int, mask: Array | None) -> Array:
    """The number of each token in the life of the memory."""
    found = leaf_states(chosen.memory, memory)
    seen = jnp.ones(time, jnp.int32) if mask is None else mask.astype(jnp.int32)
    count = found[0][1].count[0] if found else jnp.zeros((), jnp.int32)
    return count + jnp.cumsum(seen) - seen


def _with_initial(chosen: Plan, memory: Any, constants: dict[str, Any]) -> Any:
    """The states of fresh memories, with learned initial matrices in their place."""
    initial = {path: value for path, value in constants.items() if path.endswith("initial")}
    if not initial:
        return memory
    states = {path: state for path, state in leaf_states(chosen.memory, memory)}
    for path, value in initial.items():
        prefix = path.removesuffix("initial").rstrip(".")
        leaf = next(m for p, m in leaves(chosen.memory) if p == prefix)
        kind = chosen.rule(prefix).representation

        def clear(state: Any, matrix: Array, leaf: Leaf = leaf, kind: str = kind) -> Any:
            return state.clear(prepare(ground(leaf, {"initial": matrix}), kind)[0])

        states[prefix] = jax.vmap(clear)(states[prefix], value)
    flat = iter(states.values())
    is_state = lambda s: isinstance(s, AbstractState)  # noqa: E731
    return jax.tree.map(lambda s: next(flat) if is_state(s) else s, memory, is_leaf=is_state)
