"""The table of the classics, read off `memdsl.zoo`: `python -m tests.classics` writes it anew.

It stands between two marks in the README and in the documents; `tests/test_classics.py` compares.
"""

import re
from pathlib import Path
from typing import Any

import memdsl as md
from memdsl.spec._memory import Added, Chained, Transposed
from memdsl.spec._number import FromInput, InverseRoot, Learned, leaves
from memdsl.spec._slots import ground, slots


ROOT = Path(__file__).parent.parent
DOCUMENTS = (ROOT / "README.md", ROOT / "docs" / "idea.md")
START, END = "<!-- the classics: python -m tests.classics -->", "<!-- end of the classics -->"
SORTS = ("kernel", "write", "gate", "capacity", "read")


_OF_A_NETWORK = ("write", "gate", "read")


class Word:
    """Prints as a word in the place of a number that is not plain."""

    def __init__(self, word: str):
        self.word = word

    def __repr__(self) -> str:
        return self.word


def word(number: Any) -> Word:
    """What the table says of a number: where its value comes from."""
    kinds = {type(leaf) for leaf in leaves(number)}
    if kinds == {InverseRoot}:
        return Word("1/√d")
    return Word("token" if FromInput in kinds else "learned" if Learned in kinds else "…")


def cells(memory: Any) -> list[str]:
    """The five sorts of a memory, as code without empty brackets."""
    if isinstance(memory, Chained):
        both = zip(cells(memory.first), cells(memory.second), strict=True)
        return [first if first == second else f"{first} `>>` {second}" for first, second in both]
    if isinstance(memory, Added):
        *others, read = cells(memory.second.memory.memory)  # levels, each with a factor
        return [*others, f"{read}, level by level"]
    if isinstance(memory, Transposed):
        *others, read = cells(memory.memory)
        return [*others, f"{read}, transposed"]
    if isinstance(memory, md.Network):
        sizes = (
            "linear map" if not memory.widths else f"{', '.join(map(str, memory.widths))} hidden"
        )
        plain = ground(memory, {slot.path: word(slot.number) for slot in slots(memory)})
        write, gate, read = (
            f"`{repr(getattr(plain, n)).replace('()', '')}`" for n in _OF_A_NETWORK
        )
        return [f"a network, {sizes}", write, gate, "", read]
    plain = ground(memory, {slot.path: word(slot.number) for slot in slots(memory)})
    return [f"`{repr(getattr(plain, name)).replace('()', '')}`" for name in SORTS]


def table() -> str:
    """The whole table, in Markdown."""
    rows = [["name", *SORTS], ["---"] * 6]
    for name, make in md.zoo.catalogue().items():
        rows.append([f"`{name}`", *cells(make())])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def marked(text: str) -> re.Match[str] | None:
    """The place of the table in a document."""
    return re.search(f"(?<={re.escape(START)}\n\n).*?(?=\n\n{re.escape(END)})", text, re.DOTALL)


def main() -> None:
    """Writes the table into every document that has a place for it."""
    for document in DOCUMENTS:
        text = document.read_text(encoding="utf-8")
        place = marked(text)
        if place is None:
            raise SystemExit(f"{document} has no place between {START} and {END}")
        document.write_text(text[: place.start()] + table() + text[place.end() :], encoding="utf-8")


if __name__ == "__main__":
    main()
