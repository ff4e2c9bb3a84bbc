"""A page about a memory: what it means, how it will run, and why not otherwise."""

from ..spec._computed import Computed
from ..spec._memory import Memory
from ..spec._number import FromInput, Knob, Learned, leaves as number_leaves, Schedule
from ..spec._slots import Slot, slots
from ._facts import kernel_line, meaning, state_shape
from ._plan import Choice, Plan


def page(chosen: Plan, name: str) -> list[str]:
    """The lines of a page about a plan: recurrence, kernel, signals, sizes, and every plan's fate."""
    memory, dims = chosen.memory, chosen.dims
    lines = [f"Memory  {name or type(memory).__name__}"]
    several = len(chosen.choices) > 1
    if several:
        lines.append(row("is", repr(memory)))
    else:
        lines += _meaning(chosen.choices[0])
    for index, slot in enumerate(slots(memory)):
        lines.append(row("signals" if index == 0 else "", _number(slot)))
    types = f"key {dims.key}, value {dims.value}, heads {dims.heads}, time {dims.time}"
    lines.append(row("types", types))
    for choice in chosen.choices:
        if several:
            lines += ["", f"  part {choice.path}", *_meaning(choice)]
        lines += _choice(choice)
    return lines


def row(name: str, text: str) -> str:
    """One line of the page."""
    return f"  {name:<11}{text}"


def _meaning(choice: Choice) -> list[str]:
    name = "kernel" if isinstance(choice.memory, Memory) else "function"
    return [
        row("meaning", meaning(choice.memory)),
        row(name, kernel_line(choice.memory, choice.dims)),
    ]


def _choice(choice: Choice) -> list[str]:
    memory, dims = choice.memory, choice.dims
    shape, floats = state_shape(memory, choice.rule.representation, dims)
    size = in_bytes(4 * floats * dims.heads)
    constant = "constant in time"
    if choice.rule.representation == "buffer" and isinstance(memory, Memory):
        constant = _growth(memory)
    rows = [
        row("plan", f"{choice.rule.name:<24}{choice.rule.note}"),
        row("  state", f"{f'{dims.heads} × ({shape}) float32 ':<24}{size} a sequence, {constant}"),
    ]
    if choice.rule.because():
        rows.append(row("  because", choice.rule.because()))
    for index, (rule, seconds) in enumerate(r for r in choice.legal if r[0] != choice.rule):
        ratio = seconds / choice.seconds if choice.seconds else 1.0
        title = "also legal" if index == 0 else ""
        rows.append(row(title, f"{rule.name:<24}about {ratio:.1f} × the time   {rule.note}"))
    for index, (rule, why) in enumerate(choice.rejected):
        rows.append(row("rejected" if index == 0 else "", f"{rule.name:<24}{why[0]}"))
    return rows


def _growth(memory: Memory) -> str:
    bounded = memory.capacity.slots() < 1e18
    return "bounded by its capacity" if bounded else "growing with time"


def in_bytes(count: float) -> str:
    """A number of bytes in the largest unit of which there is one."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            return f"{count:.3g} {unit}"
        count /= 1024
    raise AssertionError


def _number(slot: Slot) -> str:
    kinds = {
        FromInput: "read off the token",
        Computed: "computed from the input",
        Learned: "trained",
        Knob: "swept",
        Schedule: "scheduled",
    }
    how = ", ".join(dict.fromkeys(kinds.get(type(x), "fixed") for x in number_leaves(slot.number)))
    shown = f"{slot.name} = {slot.number!r}"
    shown = shown if len(shown) <= 72 else f"{shown[:71]}…"  # a layer that computes it may be long
    return f"{shown:<39} {how}, per {slot.per}"
