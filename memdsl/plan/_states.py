"""States of whole memories: a tuple of states for a memory that is made of memories."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from .._errors import SpecError
from ..run._shares import NOTHING
from ..spec._facts import is_unbounded
from ..spec._gate import admissions
from ..spec._memory import (
    AbstractMemory,
    Averaged,
    Every,
    Leaf,
    Level,
    Memory,
    Network,
)
from ..spec._rewired import sizes_of
from ..spec._streams import Sizes
from ..state import AbstractState, BufferState, empty_state, GramState, NetworkState
from ._dims import Dims
from ._plan import Plan, plan, Using
from ._prepare import kept_size, prepare
from ._rule import Rule
from ._rules import RULES
from ._tree import leaves, parts


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
    return [(path, s) for (path, _), s in zip(found, states, strict=True)]


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
    sizes = Sizes(key_size, value_size, key_size)
    return empty_tree(chosen.memory, chosen, sizes, capacity, dtype)


def empty_tree(
    memory: AbstractMemory,
    chosen: Plan,
    sizes: Sizes,
    capacity: int | None,
    dtype: Any,
    path: str = "",
) -> Any:
    """The empty state of a memory under a plan."""

    def inside() -> tuple[Any, ...]:
        return tuple(
            empty_tree(
                part, chosen, sizes_of(memory, name, sizes), capacity, dtype, f"{path}{name}."
            )
            for name, part in parts(memory)
        )

    match memory:
        case Memory() | Network():
            representation = chosen.rule(path.rstrip(".")).representation
            size = kept_size(memory, sizes.key or 0, representation)
            prepared, _ = prepare(memory, representation)
            return empty_state(prepared, representation, size, sizes.value or 0, capacity, dtype)
        case Every() | Level():
            return jnp.zeros((), jnp.int32), *inside()
        case Averaged():
            channels = sizes.key if memory.over == "key" else sizes.value
            return jnp.full(channels or 0, NOTHING, dtype), *inside()
        case _:
            return inside()


def with_room(memory: AbstractMemory, before: Any, after: Any, out: Array) -> Array:
    """The answers, or an error at run time where a buffer that should keep all atoms was full."""
    lost = jnp.asarray(False)
    pairs = zip(leaf_states(memory, before), leaf_states(memory, after), strict=True)
    for (_, leaf), ((_, old), (_, new)) in zip(leaves(memory), pairs, strict=True):
        old, new = getattr(old, "function", old), getattr(new, "function", new)
        if isinstance(new, BufferState) and _keeps_all(leaf) and not admissions(leaf.gate):
            lost = lost | jnp.any(new.counts.dropped > old.counts.dropped)
    if lost is False or not any(_keeps_all(leaf) for _, leaf in leaves(memory)):
        return out
    return eqx.error_if(
        out,
        lost,
        "All() keeps every atom, and its buffer is full. Instead: a larger capacity in md.empty "
        "(time in layer.init), or Budget(n) or Window(n).",
    )


def _keeps_all(leaf: Leaf) -> bool:
    return isinstance(leaf, Memory) and is_unbounded(leaf)
