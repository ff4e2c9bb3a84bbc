"""Making a state: zeros of the right shape."""

import math
from typing import Any

import jax.numpy as jnp

from .._errors import SpecError
from ..spec._facts import is_solved, one_pair, slots
from ..spec._memory import Memory
from ..spec._write import Descent
from ._base import AbstractState
from ._buffer import BufferState, Counts
from ._descent import DescentState, Latest
from ._gram import GramState
from ._matrix import MatrixState


REPRESENTATIONS = ("matrix", "gram", "buffer")


def empty_state(
    memory: Memory,
    representation: str,
    key_size: int,
    value_size: int,
    capacity: int | None = None,
    dtype: Any = jnp.float32,
) -> AbstractState:
    """The empty function of a peeled memory, `key_size` counting features of the peeled key."""
    rule = one_pair(memory.write)
    special = isinstance(rule, Descent) and not rule.is_plain()
    momentum = isinstance(rule, Descent) and rule.momentum is not None
    width = 2 * value_size if momentum else value_size
    if representation == "buffer":
        count = slots_to_allocate(memory, capacity)
        function: AbstractState = _buffer(memory, count, key_size, width, dtype)
    else:
        features = int(memory.kernel.rank(key_size))
        zero = jnp.zeros((), jnp.int32)
        matrix = jnp.zeros((features, width), dtype)
        if representation == "gram":
            return GramState(jnp.zeros((features, features), dtype), matrix, zero)
        mass = jnp.zeros((features,), dtype) if memory.read.needs_mass() else None
        function = MatrixState(matrix, mass, zero)
    if not special or not isinstance(rule, Descent):
        return function
    latest = Latest(
        jnp.zeros((rule.window, key_size), dtype),
        jnp.zeros((rule.window, value_size), dtype),
        jnp.zeros((rule.window, value_size), dtype),
        jnp.zeros((rule.window,), bool),
    )
    return DescentState(function, momentum, latest)


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
        counts=Counts(zero, zero, zero, zero, zero),
    )
