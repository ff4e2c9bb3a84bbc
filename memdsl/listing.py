"""The catalogue as tables: the sorts of every memory, how large its state is, and what can run it."""

import textwrap
from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

from .plan import Dims, Plan, plan, RULES
from .plan._facts import state_shape
from .spec._computed import Computed
from .spec._memory import (
    AbstractMemory,
    Added,
    Averaged,
    Boosted,
    Chained,
    Every,
    Level,
    Mapped,
    Memory,
    Network,
    Rewired,
    Scaled,
    Transposed,
)
from .spec._number import FromInput, InverseRoot, Knob, Learned, leaves
from .spec._slots import ground, slots
from .zoo import catalogue


SORTS = ("kernel", "write", "gate", "capacity", "read")
SIZES = Dims(key=64, value=64, time=4096)
"""What the size of a state is counted at."""
_OF_A_NETWORK = ("write", "gate", "read")
_WORDS = {FromInput: "token", Computed: "computed", Learned: "learned", Knob: "knob"}
_BETWEEN = {Chained: ">>", Added: "+", Boosted: "boosted by"}


class Entry(NamedTuple):
    """A row of the catalogue; `cells` are one a sort, in Markdown."""

    name: str
    cells: tuple[str, ...]
    state: int
    plans: str


def entries() -> list[Entry]:
    """A row for every memory of `memdsl.zoo`.

    ??? example

        ```python
        >>> from memdsl.listing import entries
        >>> row = next(row for row in entries() if row.name == "delta_product")
        >>> row.cells[:2], row.state
        (('`Dot.pullback(L2Norm)`', '`Delta(rate=token).times(2)`'), 4096)
        >>> row.plans
        'matrix: recurrent, chunkwise; buffer: recurrent'

        ```
    """
    found = []
    for name, make in catalogue().items():
        memory = make()
        chosen = plan(memory, SIZES)
        found.append(Entry(name, tuple(cells(memory)), state_size(chosen), legal_plans(chosen)))
    return found


def cells(memory: AbstractMemory) -> list[str]:
    """The five sorts of a memory, as code without empty brackets.

    A number that is not plain is a word: *token* where it is read off every token, *computed* where a
    layer computes it, *learned* where it is trained, *knob* where it is set.
    """
    match memory:
        case Memory():
            return [_code(_in_words(memory), sort) for sort in SORTS]
        case Network():
            widths = ", ".join(map(str, memory.widths))
            shape = f"{widths} hidden" if widths else "linear map"
            write, gate, read = (_code(_in_words(memory), sort) for sort in _OF_A_NETWORK)
            return [f"a network, {shape}", write, gate, "", read]
        case Chained() | Added() | Boosted():
            both = zip(cells(memory.first), cells(memory.second), strict=True)
            sign = f"`{_BETWEEN[type(memory)]}`"
            return [a if a == b else f"{a or '–'} {sign} {b or '–'}" for a, b in both]
        case Transposed():
            return _after_read(memory.memory, ", transposed")
        case Mapped():
            return _after_read(memory.memory, f" `>> {_bare(_in_words(memory).feature)}`")
        case Scaled():
            return _after_read(memory.memory, f" `* {_bare(_in_words(memory).factor)}`")
        case Level():
            return _after_read(memory.memory, ", level by level")
        case Rewired():
            changed = [name for name, _ in memory.shown() if name in memory.streams()]
            text = f", of another {' and '.join(changed)}" if changed else ""
            return _after_read(memory.memory, text)
        case Averaged():
            kernel, write, gate, *others = cells(memory.memory)
            return [kernel, write, f"{gate}, a mean by {memory.over} channel", *others]
        case Every():
            kernel, write, *others = cells(memory.memory)
            return [kernel, f"{write}, every {memory.count} tokens", *others]
        case _:
            return [f"`{_bare(memory)}`", "", "", "", ""]


def state_size(chosen: Plan) -> int:
    """The numbers of one head's state, of the smallest representation that a plan may have."""

    def size(choice: Any) -> int:
        kinds = {rule.representation for rule, _ in choice.legal}
        return min(state_shape(choice.memory, kind, choice.dims)[1] for kind in kinds)

    return sum(size(choice) for choice in chosen.choices)


def legal_plans(chosen: Plan) -> str:
    """What can run a memory, in the order of `md.RULES`: `"matrix: recurrent, associative"`."""
    order = [rule.name for rule in RULES]
    several = {}
    for choice in chosen.choices:
        names = sorted((rule.name for rule, _ in choice.legal), key=order.index)
        several[choice.path] = "; ".join(_by_representation(names))
    if len(set(several.values())) == 1:
        return next(iter(several.values()))
    return "; ".join(f"{path} {names}" for path, names in several.items())


def listing(marked: Collection[str] = (), width: int = 100) -> str:
    """The whole catalogue as text: an entry a group of lines, laid out as the first lines say.

    **Arguments:**

    - `marked`: names to put a `*` in front of.
    - `width`: how wide the text may be.

    ??? example

        ```python
        >>> from memdsl.listing import listing
        >>> for line in listing(["delta_net"]).splitlines()[:3]:
        ...     print(line)
          name                       kernel                               write
            state                    gate                                 capacity
                                     read                                 plans
        >>> text = listing(["delta_net"])
        >>> print("* delta_net" in text, "* klms" in text, max(map(len, text.splitlines())))
        True False 100

        ```
    """
    head = Entry("name", SORTS, 0, "plans")
    rows = entries()
    name = max(len(row.name) for row in rows) + 2
    half = (width - name - 4) // 2
    widths = (name, width - name - 4 - half, half)
    lines = list(_grid(head, "  name", "    state", widths))
    lines.append("─" * width)
    for row in rows:
        mark = "*" if row.name in marked else " "
        size = f"{row.state:_}".replace("_", " ")
        lines += _grid(row, f"{mark} {row.name}", f"    {size}", widths)
    return "\n".join(lines)


def _grid(row: Entry, first: str, second: str, widths: tuple[int, int, int]) -> Iterator[str]:
    """Three rows of three cells, each cell folded where it is too wide."""
    one, *others = widths
    kernel, write, gate, capacity, read = (cell.replace("`", "") for cell in row.cells)
    rows = ((first, kernel, write), (second, gate, capacity), ("", read, row.plans))
    for left, middle, right in rows:
        pairs = zip((middle, right), others, strict=True)
        folded = [textwrap.wrap(cell, size, subsequent_indent="  ") for cell, size in pairs]
        for i in range(max(1, *map(len, folded))):
            a, b = (lines[i] if i < len(lines) else "" for lines in folded)
            yield f"{left if i == 0 else '':<{one}}  {a:<{others[0]}}  {b}".rstrip()


def _by_representation(names: list[str]) -> Iterator[str]:
    """`matrix: recurrent, chunkwise` of names of rules, whatever the size of their chunks."""
    kinds: dict[str, dict[str, None]] = {}
    for name in names:
        kind, execution = name.split(" / ")
        kinds.setdefault(kind, {})[execution.partition(" (")[0]] = None
    for kind, executions in kinds.items():
        yield f"{kind}: {', '.join(executions)}"


def _after_read(memory: AbstractMemory, text: str) -> list[str]:
    *others, read = cells(memory)
    return [*others, f"{read}{text}"]


def _code(memory: Any, sort: str) -> str:
    return f"`{_bare(getattr(memory, sort))}`"


def _bare(spec: Any) -> str:
    return repr(spec).replace("()", "")


def _in_words(memory: Any) -> Any:
    """The memory with words in the place of numbers that are not plain."""
    return ground(memory, {slot.path: _word(slot.number) for slot in slots(memory)})


class _Word:
    """Prints as a word in the place of a number that is not plain."""

    def __init__(self, word: str):
        self.word = word

    def __repr__(self) -> str:
        return self.word


def _word(number: Any) -> _Word:
    """What the table says of a number: where its value comes from."""
    kinds = {type(leaf) for leaf in leaves(number)}
    if kinds == {InverseRoot}:
        return _Word("1/√d")
    return _Word(next((word for kind, word in _WORDS.items() if kind in kinds), "…"))
