"""States of whole memories: a tuple of states for a memory that is made of memories."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from .._errors import SpecError
from ..spec._facts import is_unbounded
from ..spec._gate import admissions
from ..spec._memory import (
    AbstractMemory,
    Added,
    Boosted,
    Chained,
    Every,
    Leaf,
    Level,
    Memory,
    Network,
    Transposed,
    Zero,
)
from ..state import AbstractState, BufferState, empty_state, GramState, NetworkState
from ._dims import Dims
from ._plan import Plan, plan, Using
from ._prepare import kept_size, prepare
from ._rule import Rule
from ._rules import RULES
from ._tree import leaves


def leaf_states(memory: AbstractMemory, state: Any) -> list[tuple[Any, ...]]:
    """`(path, state)` of every leaf, in order."""
    found = leaves(memory)
    states = jax.tree.leaves(state, is_leaf=lambda s: isinstance(s, AbstractState))
    states = [s for s in states if isinstance(s, AbstractState)]
    if len(states) != len(found):
        raise SpecError(
            f"The state has {len(states)} parts, and the memory {len(found)}.",
            where=memory,
            instead="a state from md.empty(memory, ...), or from a run of this memory.",
        )
    return [(path, s) for (path, _, _), s in zip(found, states, strict=True)]


def representation_of(state: Any) -> str:
    """`"matrix"`, `"gram"`, `"buffer"` or `"network"`."""
    inner = getattr(state, "function", state)
    if isinstance(inner, NetworkState):
        return "network"
    if isinstance(inner, BufferState):
        return "buffer"
    return "gram" if isinstance(inner, GramState) else "matrix"


def state_dtype(state: AbstractState) -> Any:
    """The dtype of the numbers of a state."""
    return next(x.dtype for x in jax.tree.leaves(state) if jnp.issubdtype(x.dtype, jnp.floating))


def empty(
    memory: AbstractMemory,
    key_size: int,
    value_size: int,
    *,
    capacity: int | None = None,
    using: Using = None,
    purpose: str = "serve",
    rules: tuple[Rule, ...] = RULES,
    dtype: Any = jnp.float32,
) -> Any:
    """The empty state of a memory: the function that is 0 everywhere, and of a network the one that it
    starts as.

    The value of a learned initial state comes with a run, whose first token then starts from it.

    **Arguments:**

    - `memory`: the memory; one head.
    - `key_size`, `value_size`: the sizes of its keys and values.
    - `capacity`: the most atoms an `All()` buffer must hold.
    - `using`, `purpose`, `rules`: which plan it is for; a matrix or a buffer comes of it.
    - `dtype`: float32, or float64.

    **Returns:** a state; a tuple of states for a memory made of memories.

    **Raises:** `SpecError` where an unbounded buffer is given no capacity.

    ??? example

        ```python
        >>> import memdsl as md
        >>> state = md.empty(md.Memory(md.Dot(), md.Delta(0.5)), key_size=4, value_size=2)
        >>> state.matrix.shape
        (4, 2)

        ```
    """
    dims = Dims(key=key_size, value=value_size, time=capacity)
    chosen = plan(memory, dims, using=using, purpose=purpose, rules=rules)
    return empty_tree(chosen.memory, chosen, key_size, value_size, capacity, dtype)


def empty_tree(
    memory: AbstractMemory,
    chosen: Plan,
    key_size: int,
    value_size: int,
    capacity: int | None,
    dtype: Any,
    path: str = "",
) -> Any:
    """The empty state of a memory under a plan."""

    def part(name: str, k: int, v: int) -> Any:
        inner = getattr(memory, name)
        return empty_tree(inner, chosen, k, v, capacity, dtype, f"{path}{name}.")

    match memory:
        case Memory() | Network():
            representation = chosen.rule(path.rstrip(".")).representation
            size = kept_size(memory, key_size, representation)
            prepared, _ = prepare(memory, representation)
            return empty_state(prepared, representation, size, value_size, capacity, dtype)
        case Zero():
            return ()
        case Added() | Chained() | Boosted():
            return part("first", key_size, value_size), part("second", key_size, value_size)
        case Every() | Level():
            return jnp.zeros((), jnp.int32), part("memory", key_size, value_size)
        case Transposed():
            return (part("memory", value_size, key_size),)
        case _:
            return (part("memory", key_size, value_size),)


def with_room(memory: AbstractMemory, before: Any, after: Any, out: Array) -> Array:
    """The answers, or an error at run time where a buffer that should keep all atoms was full."""
    lost = jnp.asarray(False)
    pairs = zip(leaf_states(memory, before), leaf_states(memory, after), strict=True)
    for (_, leaf, _), ((_, old), (_, new)) in zip(leaves(memory), pairs, strict=True):
        old, new = getattr(old, "function", old), getattr(new, "function", new)
        if isinstance(new, BufferState) and _keeps_all(leaf) and not admissions(leaf.gate):
            lost = lost | jnp.any(new.counts.dropped > old.counts.dropped)
    if lost is False or not any(_keeps_all(leaf) for _, leaf, _ in leaves(memory)):
        return out
    return eqx.error_if(
        out,
        lost,
        "All() keeps every atom, and its buffer is full. Instead: a larger capacity in md.empty "
        "(time in layer.init), or Budget(n) or Window(n).",
    )


def _keeps_all(leaf: Leaf) -> bool:
    return isinstance(leaf, Memory) and is_unbounded(leaf)
