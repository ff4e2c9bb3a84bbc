"""Memories made of memories: one traversal, whatever is done at the leaves."""

from collections.abc import Callable, Mapping
from typing import Any

from .._errors import SpecError
from ..spec._base import rebuild
from ..spec._capacity import Budget, LeastUsed
from ..spec._gate import DiagonalDecay, ValueDecay
from ..spec._kernel import Constant
from ..spec._memory import (
    AbstractMemory,
    Added,
    Averaged,
    Boosted,
    Chained,
    Every,
    Leaf,
    Level,
    Mapped,
    Memory,
    Network,
    Rewired,
    Scaled,
    Transposed,
    Zero,
)
from ..spec._read import Backwards, Before, bonus_of, Forecast
from ..spec._rewired import sizes_of
from ..spec._source import Derived
from ..spec._streams import Query, Sizes


def parts(memory: AbstractMemory) -> tuple[tuple[str, AbstractMemory], ...]:
    """`(path, memory)` of the memories that a memory is made of; none for a leaf."""
    match memory:
        case Boosted() if any(_counts_reads(leaf) for _, leaf in leaves(memory.first)):
            raise SpecError(
                "A memory that evicts what is least used cannot be boosted.",
                where=memory.first,
                why="It is asked a second time, for its error, and that read would count as use.",
                instead="another eviction, such as Oldest() or Smallest().",
            )
        case Added() | Chained() | Boosted():
            return (("first", memory.first), ("second", memory.second))
        case Scaled() | Mapped() | Every() | Level() | Transposed() | Averaged():
            return (("memory", memory.memory),)
        case Rewired():
            return (("memory", memory.memory), *memory.answers())
        case Memory() | Network() | Zero():
            return ()
        case _:
            raise SpecError(
                f"No execution is known for {type(memory).__name__}.",
                where=memory,
                instead="Memory(...) and what +, >>, *, boost, transpose, every, level, of and averaged "
                "make of it.",
            )


def _counts_reads(leaf: Leaf) -> bool:
    """Whether reads leave a trace in the memory."""
    capacity = leaf.capacity if isinstance(leaf, Memory) else None
    return isinstance(capacity, Budget) and isinstance(capacity.evict, LeastUsed)


def part_at(memory: AbstractMemory, path: str) -> AbstractMemory:
    """The part of a memory at a path, such as `"first"` or `"key.stream.memory"`."""
    part: Any = memory
    for name in path.split("."):
        part = getattr(part, name)
    return part


def with_parts(spec: Any, changes: Mapping[str, Any]) -> Any:
    """The spec with other parts at these paths, and no check run."""
    inside: dict[str, dict[str, Any]] = {}
    for path, part in changes.items():
        name, _, rest = path.partition(".")
        inside.setdefault(name, {})[rest] = part
    own = {
        name: parts[""] if "" in parts else with_parts(getattr(spec, name), parts)
        for name, parts in inside.items()
    }
    return rebuild(spec, own)


def lower(memory: AbstractMemory) -> AbstractMemory:
    """The same memory, with every `transpose` said by the read of a leaf, and `averaged` by its gate."""
    inner = vars(memory).get("memory")
    if isinstance(memory, Transposed) and isinstance(inner, Memory):
        if isinstance(inner.read, Backwards):
            return memory
        return rebuild(memory, {"memory": rebuild(inner, {"read": Backwards(inner.read)})})
    if isinstance(memory, Averaged) and isinstance(inner, Memory):
        fading = DiagonalDecay if memory.over == "key" else ValueDecay
        gate = rebuild(fading(0.5), {"decay": Derived(f"{memory.over}_channel")})
        return rebuild(memory, {"memory": rebuild(inner, {"gate": gate})})
    found = [(path, part, lower(part)) for path, part in parts(memory)]
    return with_parts(memory, {path: new for path, old, new in found if new is not old})


def forecasting(memory: AbstractMemory) -> AbstractMemory:
    """The same memory, every leaf that answers read before it is written."""
    if isinstance(memory, Memory | Network):
        if bonus_of(memory.read) is not None:
            return rebuild(memory, {"read": rebuild(_FORECAST, {"read": memory.read})})
        if memory.read.is_before():
            return memory
        return rebuild(memory, {"read": rebuild(_BEFORE, {"read": memory.read})})
    return with_parts(
        memory,
        {
            path: forecasting(part)
            for path, part in parts(memory)
            if not isinstance(memory, Rewired) or path.startswith(("memory", "query"))
        },
    )


def leaves(memory: AbstractMemory, prefix: str = "") -> list[tuple[str, Leaf]]:
    """`(path, leaf)` of every leaf."""
    return [(path, leaf) for path, leaf, _ in sized_leaves(memory, _UNKNOWN, prefix)]


def sized_leaves(
    memory: AbstractMemory, sizes: Sizes, prefix: str = ""
) -> list[tuple[str, Leaf, Sizes]]:
    """`(path, leaf, sizes of what it is given)` of every leaf."""
    if isinstance(memory, Memory | Network):
        return [(prefix.rstrip("."), memory, sizes)]
    found = []
    for path, part in parts(memory):
        found += sized_leaves(part, sizes_of(memory, path, sizes), f"{prefix}{path}.")
    return found


def map_leaves(
    memory: AbstractMemory, function: Callable[[str, Leaf], Any], prefix: str = ""
) -> Any:
    """`function(path, leaf)` at every leaf, in tuples of the shape of the memory."""
    if isinstance(memory, Memory | Network):
        return function(prefix.rstrip("."), memory)
    return tuple(map_leaves(p, function, f"{prefix}{n}.") for n, p in parts(memory))


def check_chains(memory: AbstractMemory, sizes: Sizes) -> None:
    """Refuses a memory that would be asked at something that is no key of it."""
    for path, part in parts(memory):
        check_chains(part, sizes_of(memory, path, sizes))
    if isinstance(memory, Chained | Rewired):
        name = "second" if isinstance(memory, Chained) else "memory"
        inner = sizes_of(memory, name, sizes)
        wanted = asked_size(part_at(memory, name), inner)
        if None not in (wanted, inner.query) and wanted != inner.query:
            chained = isinstance(memory, Chained)
            what = "The second memory" if chained else "The memory within"
            raise SpecError(
                f"{what} has keys of {wanted} numbers, and is asked at one of {inner.query}.",
                where=memory,
                at="second" if chained else "query",
                why="Both memories are written at the same keys; the second is asked at an answer."
                if chained
                else "It sees the keys that of(...) gives it, and must be asked at one of their size.",
                instead=f"keys as wide as values, or first >> Linear({wanted}) >> second."
                if chained
                else f"query=Query() >> Linear({wanted}), say.",
            )


def asked_size(memory: AbstractMemory, sizes: Sizes) -> int | None:
    """How many numbers the vectors have that a memory is asked at; `None` where any will do."""
    if isinstance(memory, Memory) and not isinstance(memory.read, Backwards):
        return None if isinstance(memory.kernel, Constant) else sizes.key
    if isinstance(memory, Memory):
        return sizes.value
    if isinstance(memory, Network):
        return sizes.key
    asked = [
        asked_size(part, sizes_of(memory, path, sizes))
        for path, part in parts(memory)
        if path in ("first", "memory")
    ]
    if isinstance(memory, Rewired) and memory.query != Query():
        return None
    return asked[0] if asked else None


_BEFORE, _FORECAST = Before(), Forecast()
_UNKNOWN = Sizes(None, None, None)
