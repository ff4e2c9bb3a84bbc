"""The numbers of a bare run: which there are, and arrays checked and put beside their paths."""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array

from .._errors import SpecError
from ..spec._feature import Weight
from ..spec._memory import AbstractMemory, Leaf, Network
from ..spec._number import leaves, Log, Schedule
from ..spec._slots import default_value, evaluate, key_channels, Slot, slots
from ._channels import feature_sizes


def signals(memory: AbstractMemory) -> tuple[Slot, ...]:
    """The signals of a memory: every number that is not a plain float.

    Those with a time axis and a `FromInput` must be passed to `run`; the others have a value of
    their own, which `run` takes unless it is given another.

    ??? example

        ```python
        >>> import memdsl as md
        >>> memory = md.Memory(md.Dot(), md.Delta(md.FromInput("sigmoid")), md.Decay(md.Knob(0.9)))
        >>> for signal in md.signals(memory):
        ...     print(signal.name, signal.axes, signal.number)
        rate ('time',) FromInput("sigmoid")
        log_decay () Knob(0.9)

        ```
    """
    return slots(memory)


def bind(
    memory: AbstractMemory,
    given: Mapping[str, Any],
    *,
    time: int,
    pairs: int,
    steps: Array,
    dtype: Any,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """`(constants, tokens)`, values by path, from signals by name.

    `steps` is the number of each token in the life of the memory, for schedules.
    """
    known = slots(memory)
    by_name = {slot.name: slot for slot in known}
    for name in given:
        if name not in by_name:
            names = ", ".join(by_name) or "none: every number of it is a plain float"
            raise SpecError(
                f"The memory has no signal {name!r}.", where=memory, instead=f"one of {names}."
            )
    constants, tokens = {}, {}
    for slot in known:
        value = given.get(slot.name)
        if value is None:
            value = _own_value(slot, steps, dtype)
        else:
            value = jnp.asarray(value).astype(dtype)
            value = Log(value) if slot.log else value
        if value is None:
            raise SpecError(
                f"The signal {slot.name!r} is missing.",
                where=memory,
                why=f"{slot.number!r} is read off the input, and a bare run has none: pass its value"
                + (", the logarithm of the factor, at most 0." if slot.log else "."),
                instead=f"{slot.name}=..., an array with axes ({', '.join(slot.axes)}).",
            )
        array = value.log if isinstance(value, Log) else value
        rows = time * (pairs if slot.path.split(".")[-2:-1] == ["write"] else 1)
        over_time = slot.time or (array.ndim > len(slot.axes) and len(array) == rows)
        _check_shape(memory, slot, array, rows, over_time)
        (tokens if over_time else constants)[slot.path] = value
    return constants, tokens


def _own_value(slot: Slot, steps: Array, dtype: Any) -> Any:
    if not any(isinstance(leaf, Schedule) for leaf in leaves(slot.number)):
        return default_value(slot, dtype)

    def of(leaf: Any) -> Any:
        if isinstance(leaf, Schedule):
            return jnp.asarray(leaf.function()(steps.astype(dtype)), dtype)
        value = default_value(slot._replace(number=leaf, log=False), dtype)
        if value is None:
            raise SpecError(f"{slot.number!r} mixes a schedule with the input.", where=leaf)
        return value

    return evaluate(slot.number, of, slot.log)


def _check_shape(
    memory: AbstractMemory, slot: Slot, array: Array, rows: int, over_time: bool
) -> None:
    axes = slot.axes if slot.time or not over_time else ("time", *slot.axes)
    most, fewest = len(axes), 1 if over_time else 0
    if not fewest <= array.ndim <= most or (over_time and len(array) != rows):
        wanted = ", ".join(f"time={rows}" if axis == "time" else axis for axis in axes)
        raise SpecError(
            f"The signal {slot.name!r} has shape {tuple(array.shape)}, and ({wanted}) is expected.",
            where=memory,
        )


def signal_shape(
    memory: Leaf, slot: Slot, key_size: int, value_size: int, rows: int
) -> tuple[int, ...]:
    """The shape of a signal of one memory, `rows` being the length of the time axis."""
    sizes = {"time": rows, "key": key_size, "value": value_size, "in": key_size}
    if isinstance(memory, Network):
        sizes["parameters"] = memory.count(key_size, value_size)
    else:
        sizes["key"] = sizes["features"] = key_channels(memory, key_size)
    if isinstance(slot.number, Weight):
        size = dict(feature_sizes(memory, key_size, value_size))[slot.path.rpartition(".")[0]]
        own = size if slot.number.rows is None else slot.number.rows
        return (own,) if slot.number.vector else (own, size)
    return tuple(sizes[axis] for axis in slot.axes)
