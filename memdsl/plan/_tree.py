"""Memories made of memories: one traversal, whatever is done at the leaves."""

from collections.abc import Callable
from typing import Any

from .._errors import SpecError
from ..spec._base import rebuild
from ..spec._capacity import Budget, LeastUsed
from ..spec._memory import (
    AbstractMemory,
    Added,
    Boosted,
    Chained,
    Every,
    Leaf,
    Level,
    Mapped,
    Memory,
    Network,
    Scaled,
    Transposed,
    Zero,
)
from ..spec._read import Backwards, Before, bonus_of, Forecast


def parts(memory: AbstractMemory) -> tuple[tuple[str, AbstractMemory], ...]:
    """`(field name, memory)` of the memories that a memory is made of; none for a leaf."""
    match memory:
        case Boosted() if any(_counts_reads(leaf) for _, leaf, _ in leaves(memory.first)):
            raise SpecError(
                "A memory that evicts what is least used cannot be boosted.",
                where=memory.first,
                why="It is asked a second time, for its error, and that read would count as use.",
                instead="another eviction, such as Oldest() or Smallest().",
            )
        case Added() | Chained() | Boosted():
            return (("first", memory.first), ("second", memory.second))
        case Scaled() | Mapped() | Every() | Level() | Transposed():
            return (("memory", memory.memory),)
        case Memory() | Network() | Zero():
            return ()
        case _:
            raise SpecError(
                f"No execution is known for {type(memory).__name__}.",
                where=memory,
                instead="Memory(...) and what +, >>, *, boost, transpose, every and level make of it.",
            )


def _counts_reads(leaf: Leaf) -> bool:
    """Whether reads leave a trace in the memory."""
    capacity = leaf.capacity if isinstance(leaf, Memory) else None
    return isinstance(capacity, Budget) and isinstance(capacity.evict, LeastUsed)


def lower(memory: AbstractMemory) -> AbstractMemory:
    """The same memory with every `transpose` said by the read of a leaf."""
    if isinstance(memory, Transposed) and isinstance(memory.memory, Memory):
        inner = memory.memory
        if isinstance(inner.read, Backwards):
            return memory
        return rebuild(memory, {"memory": rebuild(inner, {"read": Backwards(inner.read)})})
    changes = {}
    for name, part in parts(memory):
        new = lower(part)
        if new is not part:
            changes[name] = new
    return rebuild(memory, changes)


def forecasting(memory: AbstractMemory) -> AbstractMemory:
    """The same memory, every leaf read before it is written."""
    if isinstance(memory, Memory | Network):
        if bonus_of(memory.read) is not None:
            return rebuild(memory, {"read": rebuild(_FORECAST, {"read": memory.read})})
        if memory.read.is_before():
            return memory
        return rebuild(memory, {"read": rebuild(_BEFORE, {"read": memory.read})})
    return rebuild(memory, {name: forecasting(part) for name, part in parts(memory)})


def leaves(
    memory: AbstractMemory, prefix: str = "", transposed: bool = False
) -> list[tuple[str, Leaf, bool]]:
    """`(path, leaf, whether keys and values swap)` of every leaf."""
    if isinstance(memory, Memory | Network):
        return [(prefix.rstrip("."), memory, transposed)]
    swaps = isinstance(memory, Transposed)
    found = []
    for name, part in parts(memory):
        found += leaves(part, f"{prefix}{name}.", transposed ^ swaps)
    return found


def map_leaves(
    memory: AbstractMemory, function: Callable[[str, Leaf], Any], prefix: str = ""
) -> Any:
    """`function(path, leaf)` at every leaf, in tuples of the shape of the memory."""
    if isinstance(memory, Memory | Network):
        return function(prefix.rstrip("."), memory)
    return tuple(map_leaves(p, function, f"{prefix}{n}.") for n, p in parts(memory))


def answer_size(memory: AbstractMemory, key_size: int, value_size: int) -> int:
    """The size of what a memory answers."""
    match memory:
        case Transposed():
            inner = memory.memory
            return int(inner.kernel.rank(value_size)) if isinstance(inner, Memory) else key_size
        case Mapped():
            return memory.feature.size(answer_size(memory.memory, key_size, value_size))
        case Chained():
            return answer_size(memory.second, key_size, value_size)
        case Memory() | Network():
            return value_size
        case _:
            inner = [part for _, part in parts(memory)]
            return answer_size(inner[0], key_size, value_size) if inner else value_size


def check_chains(memory: AbstractMemory, key_size: int, value_size: int) -> None:
    """Refuses a chain whose second memory would be asked at something that is no key of it."""
    if isinstance(memory, Transposed):
        key_size, value_size = value_size, key_size
    for _, part in parts(memory):
        check_chains(part, key_size, value_size)
    if isinstance(memory, Chained):
        size = answer_size(memory.first, key_size, value_size)
        if size != key_size:
            raise SpecError(
                f"The second memory has keys of {key_size} numbers, and is asked at one of {size}.",
                where=memory,
                at="second",
                why="Both memories are written at the same keys; the second is asked at an answer.",
                instead=f"keys as wide as values, or first >> Linear({key_size}) >> second.",
            )


_BEFORE, _FORECAST = Before(), Forecast()
