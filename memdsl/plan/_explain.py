"""A page about a memory: what it means, how it will run, and why not otherwise."""

from ..spec._memory import AbstractMemory, Memory
from ..spec._number import FromInput, Knob, Learned, leaves as number_leaves, Schedule
from ..spec._slots import Slot, slots
from ._dims import Dims
from ._facts import kernel_line, meaning, state_shape
from ._measure import machine
from ._plan import Choice, Plan, plan, Using
from ._rule import Rule
from ._rules import RULES


def explain(
    memory: AbstractMemory,
    dims: Dims | None = None,
    *,
    name: str = "",
    using: Using = None,
    purpose: str = "train",
    rules: tuple[Rule, ...] = RULES,
) -> str:
    """A page about a memory: its recurrence, kernel, signals, sizes, plan, and every other plan's fate.

    **Arguments:**

    - `memory`: the memory.
    - `dims`: its sizes; key and value 64, 8 heads and 4096 tokens by default.
    - `name`: printed in the first line.
    - `using`, `purpose`, `rules`: as for `md.plan`.

    **Returns:** the page as text.

    ??? example

        ```python
        >>> import memdsl as md
        >>> page = md.explain(md.Memory(md.Dot(), md.Delta(0.5)), name="delta rule")
        >>> print(page.splitlines()[0])
        Memory  delta rule
        >>> print(page.splitlines()[1])
          meaning    f ← f + κ(k,·) β (v − f(k));   y = f(q)

        ```
    """
    dims = dims or Dims(key=64, value=64, heads=8, time=4096)
    chosen = plan(memory, dims, using=using, purpose=purpose, rules=rules)
    lines = [f"Memory  {name or type(memory).__name__}"]
    several = len(chosen.choices) > 1
    if several:
        lines.append(_row("is", repr(memory)))
    for choice in chosen.choices:
        if several:
            lines += ["", f"  part {choice.path}"]
        lines += _leaf(choice, chosen, dims)
    numbers = slots(chosen.memory)
    if numbers:
        lines.append("")
        for index, slot in enumerate(numbers):
            lines.append(_row("signals" if index == 0 else "", _number(slot)))
    lines.append(_row("machine", machine()))
    return "\n".join(lines)


def _row(name: str, text: str) -> str:
    return f"  {name:<11}{text}"


def _leaf(choice: Choice, chosen: Plan, dims: Dims) -> list[str]:
    memory = choice.memory
    shape, floats = state_shape(memory, choice.rule.representation, dims)
    size = _bytes(4 * floats * dims.heads)
    constant = "constant in time"
    if choice.rule.representation == "buffer" and isinstance(memory, Memory):
        constant = _growth(memory)
    rows = [
        _row("meaning", meaning(memory)),
        _row("kernel" if isinstance(memory, Memory) else "function", kernel_line(memory, dims)),
        _row(
            "types",
            f"key {dims.key}, value {dims.value}, heads {dims.heads}, time {dims.time}",
        ),
        _row("plan", f"{choice.rule.name}   {choice.rule.note}"),
        _row("  state", f"{dims.heads} × ({shape}) float32   {size} a sequence, {constant}"),
    ]
    for index, (rule, seconds) in enumerate(r for r in choice.legal if r[0] != choice.rule):
        ratio = seconds / choice.seconds if choice.seconds else 1.0
        title = "also legal" if index == 0 else ""
        rows.append(_row(title, f"{rule.name:<24}about {ratio:.1f} × the time   {rule.note}"))
    for index, (rule, why) in enumerate(choice.rejected):
        rows.append(_row("rejected" if index == 0 else "", f"{rule.name:<24}{why[0]}"))
    return rows


def _growth(memory: Memory) -> str:
    bounded = memory.capacity.slots() < 1e18
    return "bounded by its capacity" if bounded else "growing with time"


def _bytes(count: float) -> str:
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            return f"{count:.3g} {unit}"
        count /= 1024
    raise AssertionError


def _number(slot: Slot) -> str:
    kinds = {
        FromInput: "read off the token",
        Learned: "trained",
        Knob: "swept",
        Schedule: "scheduled",
    }
    how = ", ".join(dict.fromkeys(kinds.get(type(x), "fixed") for x in number_leaves(slot.number)))
    return f"{slot.name:<14}{slot.number!r}   {how}, per {slot.per}"
