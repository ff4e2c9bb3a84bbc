"""Running memories on arrays in the layout of the golden files, by any of their legal plans."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

import memdsl as md
from memdsl.spec._facts import own_keys
from memdsl.state import AbstractState

from ._function import Function, is_buffer, put, take


Using = dict[str, str]


class Runner:
    """`md.run` for a whole batch of heads.

    Keys, values, queries and signals of a token are `[batch, time, heads, …]`; constants a head are
    `[heads, …]`; states are `[batch, heads, …]`. Where there are fewer heads of one stream than of
    another, they are repeated.

    **Arguments:**

    - `dtype`: of the states, and so of everything.
    - `plans`: the plan of each call, in their order; by default the one that the planner takes.

    `legal` collects the legal plans of each call.
    """

    def __init__(self, dtype: Any, plans: Sequence[Using] | None = None):
        self.dtype, self.plans = dtype, plans
        self.legal: list[list[Using]] = []

    def __call__(
        self,
        memory: md.AbstractMemory,
        keys: Array,
        values: Array,
        queries: Array,
        *,
        initial: Any = None,
        constants: Mapping[str, Array] | None = None,
        erase_keys: Array | None = None,
        remove_keys: Array | None = None,
        **signals: Array,
    ) -> tuple[Array, Any]:
        """`(answers, final function)`; of a memory of several, `initial` and final have one for each."""
        extra = dict(erase_keys=erase_keys, remove_keys=remove_keys, **signals)
        streams = dict(keys=keys, values=values, queries=queries, **extra)
        streams = {name: array for name, array in streams.items() if array is not None}
        heads = max(array.shape[2] for array in streams.values())
        batch, time = queries.shape[:2]
        streams = {name: _head_first(array, heads) for name, array in streams.items()}
        fixed = {
            name: jnp.broadcast_to(array[None], (batch, *array.shape))
            for name, array in (constants or {}).items()
        }
        dims = md.Dims(key=keys.shape[-1], value=values.shape[-1], time=time)
        self.legal.append(plans_of(memory, dims))
        using = self.plans[len(self.legal) - 1] if self.plans is not None else None
        given = jax.tree.leaves(initial, is_leaf=lambda f: isinstance(f, Function))
        atoms = max((f.matrix.shape[-2] for f in given), default=0)

        def one(streams: Any, fixed: Any, initial: Any) -> tuple[Array, Function]:
            return self._one_head(memory, atoms, using, initial, **streams, **fixed)

        answers, final = jax.vmap(jax.vmap(one))(streams, fixed, initial)
        return jnp.swapaxes(answers, 1, 2), final

    def _one_head(
        self,
        memory: Any,
        atoms: int,
        using: Any,
        initial: Any,
        *,
        keys: Array,
        values: Array,
        queries: Array,
        **others: Any,
    ) -> tuple[Array, Any]:
        own = own_keys(memory) if isinstance(memory, md.Memory) else ()
        writes = len(keys) * (2 if "remove_keys" in own else 1)
        state = md.empty(
            memory,
            keys.shape[1],
            values.shape[1],
            capacity=writes + atoms,
            using=using,
            purpose="train",
            dtype=self.dtype,
        )
        root = None
        if is_buffer(state) and jnp.ndim(others.get("strength", 0.0)) == 1:
            root = jnp.sqrt(others["strength"])
        several = len(parts_of(state)) > 1
        if several and initial is not None:
            found = zip(parts_of(state), initial, strict=True)
            new = iter([part if f is None else put(part, f, root) for part, f in found])
            state = jax.tree.map(lambda _: next(new), state, is_leaf=is_state)
        elif initial is not None:
            state = put(state, initial, root)
        state, answers = md.run(memory, state, keys, values, queries, using=using, **others)
        if several:
            return answers, tuple(take(part, root) for part in parts_of(state))
        return answers, take(state, root)


def is_state(part: Any) -> bool:
    """Whether a part of a state is that of one memory."""
    return isinstance(part, AbstractState)


def parts_of(state: Any) -> list[Any]:
    """The states of all memories that a memory is made of."""
    return [part for part in jax.tree.leaves(state, is_leaf=is_state) if is_state(part)]


def _head_first(array: Array, heads: int) -> Array:
    repeated = jnp.repeat(array, heads // array.shape[2], axis=2)
    return jnp.swapaxes(repeated, 1, 2)


def plans_of(memory: md.AbstractMemory, dims: md.Dims) -> list[Using]:
    """Plans of a memory, so that every legal rule of each of its leaves is among them."""
    choices = md.plan(memory, dims).choices
    names = [[rule.name for rule, _ in choice.legal] for choice in choices]
    paths = [choice.path for choice in choices]
    return [dict(zip(paths, combined, strict=True)) for combined in cover(names)]


def cover(legal: Sequence[Sequence[Any]]) -> list[tuple[Any, ...]]:
    """Picks, one of each, so that everything that is legal for each is picked."""
    longest = max((len(plans) for plans in legal), default=1)
    return [tuple(plans[min(i, len(plans) - 1)] for plans in legal) for i in range(longest)]
