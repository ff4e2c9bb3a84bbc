"""The page of the whole catalogue, read off `memdsl.zoo`: `python -m tests.classics` writes it anew."""

import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import memdsl as md
from memdsl.listing import cells, entries, legal_plans, SIZES, SORTS
from memdsl.spec._base import children, Spec


CATALOGUE = Path(__file__).parent.parent / "docs" / "catalogue.md"
WIDTH = 512
"""The width that the published layers are made for where their memories are looked at."""
HEAD = """\
# The catalogue

<!-- written by: python -m tests.classics -->

Everything in [`md.zoo`](api/zoo.md) and [`md.zoo.layers`](api/zoo.md#published-layers): what it computes
and where it is from, what it is made of, what it keeps, and what can run it. `memdsl list` prints the
memories as a table, and `memdsl explain NAME` a page about one of them, with costs.

A *state* is counted in numbers of one head, of the smallest representation that is legal, for keys and
values of 64 and 4096 tokens. *Plans* are the executions that are legal, by representation. *References*
are keys of what `md.cite` prints. Where a memory is said in parts, *token* is a number that is read off
every token, *computed* one that a layer computes, *learned* one that is trained, and *knob* one that is
set and not trained.
"""


def page() -> str:
    """The whole page, in Markdown."""
    sections = [HEAD, "## Memories\n"]
    makers = md.zoo.catalogue()
    for entry in entries():
        make = makers[entry.name]
        memory = make()
        size = f"{entry.state:_}".replace("_", " ")
        facts = [f"expression: `{memory!r}`", f"state: {size}", f"plans: {entry.plans}"]
        sections.append(_section(entry.name, make, facts, memory))
    sections.append("## Published layers\n")
    for name, make in md.zoo.layers.catalogue().items():
        layer = make(WIDTH)
        facts = [f"made by: `{name}{_signature(make)}`"]
        facts += [_parts(memory) for memory in memories(layer)]
        sections.append(_section(name, make, facts, layer))
    return "\n".join(sections)


def memories(layer: Any) -> Iterator[md.AbstractMemory]:
    """The memories of a layer, each once."""
    seen = dict.fromkeys(_memories(layer))
    return iter(seen)


def _memories(spec: Any) -> Iterator[md.AbstractMemory]:
    if isinstance(spec, md.AbstractMemory):
        yield spec
    elif isinstance(spec, Spec):
        for _, child in children(spec):
            yield from _memories(child)


def _parts(memory: md.AbstractMemory) -> str:
    named = zip(SORTS, cells(memory), strict=True)
    said = ", ".join(f"{sort} {cell}" for sort, cell in named if cell)
    return f"memory: {said}\n- plans: {legal_plans(md.plan(memory, SIZES))}"


def _signature(make: Callable[..., Any]) -> str:
    text = re.sub(r" -> .*$", "", str(inspect.signature(make)))
    return re.sub(r": [^,=)]+(?: \| None)?(?= =|,|\))", "", text).replace(" = ", "=")


def _section(name: str, make: Callable[..., Any], facts: list[str], spec: Any) -> str:
    text = (inspect.getdoc(make) or "").split("??? example")[0].strip()
    keys = re.findall(r"^@\w+\{(.*),$", md.cite(spec), flags=re.MULTILINE)
    if keys:
        facts = [*facts, f"references: {', '.join(f'`{key}`' for key in keys)}"]
    return f"### {name}\n\n{text}\n\n" + "\n".join(f"- {fact}" for fact in facts) + "\n"
