"""Making a state: zeros of the right shape."""

import math
from typing import Any

import jax.numpy as jnp

from .._errors import SpecError
from ..spec._base import rebuild
from ..spec._facts import descends, is_solved, one_pair, slots
from ..spec._memory import Leaf, Memory, Network
from ._base import AbstractState
from ._buffer import BufferState, Counts
from ._descent import DescentState, Latest, remembered
from ._gram import GramState
from ._matrix import MatrixState
from ._network import NetworkState


REPRESENTATIONS = ("matrix", "gram", "buffer", "network")


def empty_state(
    memory: Leaf,
    representation: str,
    key_size: int,
    value_size: int,
    capacity: int | None = None,
    dtype: Any = jnp.float32,
) -> AbstractState:
    """The empty function of a peeled memory, `key_size` counting features of the peeled key."""
    rule: Any = one_pair(memory.write)
    names = remembered(rule) if descends(memory) else ("function",)
    zero = jnp.zeros((), jnp.int32)
    if isinstance(memory, Network):
        size = memory.count(key_size, value_size)
        whole: Any = NetworkState(jnp.zeros(len(names) * size, dtype), zero, key_size, value_size)
    elif representation == "buffer":
        count = slots_to_allocate(memory, capacity)
        whole = _buffer(memory, count, key_size, len(names) * value_size, dtype)
    else:
        features = int(memory.kernel.rank(key_size))
        matrix = jnp.zeros((features, len(names) * value_size), dtype)
        if representation == "gram":
            return GramState(jnp.zeros((features, features), dtype), matrix, zero)
        mass = jnp.zeros((features,), dtype) if memory.read.needs_mass() else None
        whole = MatrixState(matrix, mass, zero)
    if not descends(memory):
        return whole
    latest = Latest(
        jnp.zeros((rule.window, key_size), dtype),
        jnp.zeros((rule.window, value_size), dtype),
        jnp.zeros((rule.window, value_size), dtype),
        jnp.zeros((rule.window,), bool),
    )
    state = DescentState(whole, names, latest, zero, jnp.zeros((), dtype))
    if not isinstance(memory, Network):
        return state
    # a learned start has no value here: it is put in where there is one, at a start or by a layer
    return state.clear(rebuild(memory, {"initial": None}))


def slots_to_allocate(memory: Memory, capacity: int | None) -> int:
    """How many slots the buffer of a memory needs."""
    bound = slots(memory)
    if bound == math.inf:
        if capacity is None:
            raise SpecError(
                "All() keeps every atom, and how many there will be is not known here.",
                where=memory,
                at="capacity",
                why="A buffer has a fixed number of slots, so that it can be compiled.",
                instead="capacity=..., the most tokens it will see; or Budget(n) or Window(n).",
            )
        return capacity
    return int(bound)


def _buffer(memory: Memory, count: int, key_size: int, width: int, dtype: Any) -> BufferState:
    zero = jnp.zeros((), jnp.int32)
    needs_mass = memory.read.needs_mass() and not is_solved(memory)
    return BufferState(
        keys=jnp.zeros((count, key_size), dtype),
        values=jnp.zeros((count, width), dtype),
        masses=jnp.zeros((count,), dtype) if needs_mass else None,
        log_weight=jnp.full((count,), -jnp.inf, dtype),
        birth=jnp.zeros((count,), jnp.int32),
        usage=jnp.zeros((count,), dtype),
        count=zero,
        origin=zero,
        began=zero,
        counts=Counts(**{name: zero for name in Counts.__dataclass_fields__}),
    )
