"""The numbers of a memory, token by token, and what a call must bring."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp

from .._errors import SpecError
from ..spec._base import children, Spec
from ..spec._facts import needed_keys, pairs_per_token
from ..spec._gate import forgets, Reset
from ..spec._memory import AbstractMemory, Leaf, Memory, Network
from ..spec._number import FromInput, leaves as number_leaves, Log, Schedule
from ..spec._slots import default_value, evaluate, ground, Slot, slots


class Given(NamedTuple):
    """A number of a spec: `rows` of it a token, or 0 rows where it is the same for all tokens."""

    value: Any
    rows: int

    def at(self, token: int, pair: int) -> Any:
        """Its value for one pair of one token."""
        if self.rows == 0:
            return self.value
        row = token * self.rows + (pair if self.rows > 1 else 0)
        return Log(self.value.log[row]) if isinstance(self.value, Log) else self.value[row]


Numbers = Mapping[str, Given]


def inside(numbers: Numbers, name: str) -> Numbers:
    """The numbers of one field of a spec."""
    start = f"{name}."
    return {p.removeprefix(start): n for p, n in numbers.items() if p.startswith(start)}


def grounded(spec: Any, numbers: Numbers, token: int, pair: int = 0) -> Any:
    """The spec with its numbers at a token in it."""
    return ground(spec, {path: number.at(token, pair) for path, number in numbers.items()})


def leaves(memory: Any) -> Iterator[Leaf]:
    """The memories that a memory is made of."""
    if isinstance(memory, Memory | Network):
        yield memory
        return
    for _, part in children(memory):
        if isinstance(part, Spec):
            yield from leaves(part)


def defined(memory: AbstractMemory) -> int:
    """How many pairs a token of the memory writes; an error where its parts do not agree."""
    counts = {pairs_per_token(leaf.write) for leaf in leaves(memory)}
    if len(counts) > 1:
        raise SpecError(
            f"The parts of this memory write {sorted(counts)} pairs a token, from the same keys.",
            where=memory,
            instead="parts that all write the same number of pairs a token.",
        )
    return counts.pop() if counts else 1


def check_streams(memory: AbstractMemory, streams: Mapping[str, Any]) -> None:
    """An error where a further stream is missing, or is not taken by any part."""
    needed = needed_keys(memory)
    resets = any(isinstance(g, Reset) for leaf in leaves(memory) for g in forgets(leaf.gate))
    for name in ("erase_keys", "remove_keys", *(["starts"] if resets else [])):
        if (name in needed or name == "starts") and streams[name] is None:
            raise SpecError(f"This memory needs {name}.", where=memory, instead=f"{name}=….")
        if name not in needed and name != "starts" and streams[name] is not None:
            raise SpecError(f"This memory takes no {name}.", where=memory, instead="leave it out.")


def given(
    memory: AbstractMemory, signals: Mapping[str, Any], dtype: Any, mask: list[bool], pairs: int
) -> Numbers:
    """The value of every number of the memory, by path."""
    time = len(mask)
    found = slots(memory)
    expected = ", ".join(slot.name for slot in found) or "none"
    for name in signals:
        if name not in [slot.name for slot in found]:
            raise SpecError(f"No signal of this memory is called {name!r}.", instead=expected)
    numbers = {}
    for slot in found:
        if slot.name not in signals:
            numbers[slot.path] = _of_its_own(slot, dtype, mask, expected)
            continue
        value = jnp.asarray(signals[slot.name], dtype)
        rows = pairs if _is_of_a_pair(memory, slot.path) else 1
        changes = value.ndim > 0 and len(value) == time * rows
        if slot.time and not changes:
            raise SpecError(
                f"The signal {slot.name!r} must have {time * rows} rows, and its shape is "
                f"{value.shape}.",
                instead=f"an array with the axes {slot.axes}.",
            )
        is_constant = not slot.time and value.ndim <= len(slot.axes)
        value = Log(value) if slot.log else value
        numbers[slot.path] = Given(value, 0 if is_constant else rows)
    return numbers


def _of_its_own(slot: Slot, dtype: Any, mask: list[bool], expected: str) -> Given:
    """The value of a number that the call does not bring; a schedule counts unmasked tokens."""
    schedules = [leaf for leaf in number_leaves(slot.number) if isinstance(leaf, Schedule)]
    inputs = [leaf for leaf in number_leaves(slot.number) if isinstance(leaf, FromInput)]
    if schedules and not inputs:

        def of(leaf: Any) -> Any:
            if not isinstance(leaf, Schedule):
                return default_value(slot._replace(number=leaf, log=False), dtype)
            steps = [sum(mask[:t]) for t in range(len(mask))]
            return jnp.asarray([leaf.function()(step) for step in steps], dtype)

        return Given(evaluate(slot.number, of, slot.log), 1)
    value = default_value(slot, dtype)
    if value is None:
        raise SpecError(
            f"The signal {slot.name!r} is missing.",
            why=f"{slot.path} is {slot.number!r}.",
            instead=f"{slot.name}=…; the signals are {expected}.",
        )
    return Given(value, 0)


def _is_of_a_pair(memory: Any, path: str) -> bool:
    """Whether a number belongs to the write of a memory, and so to each pair of a token."""
    name, _, rest = path.partition(".")
    if isinstance(memory, Memory | Network):
        return name == "write"
    part = getattr(memory, name)
    return isinstance(part, Spec) and _is_of_a_pair(part, rest) if rest else False
