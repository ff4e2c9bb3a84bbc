"""Where the values of a traced function come from: a tensor of the model, or the answer of one."""

import dataclasses
from collections.abc import Sequence
from typing import Any


@dataclasses.dataclass(frozen=True)
class Origin:
    """A value that is a tensor of the model, or an answer of it, with its axes in some order.

    Only what moves axes keeps an origin: transposes, axes of one number, casts.
    """

    weight: str
    """Where the tensor is."""
    axes: tuple[int | None, ...]
    """For every axis of the value the axis of the tensor that it is, or `None` for one of its own."""
    scanned: tuple[int, ...] = ()
    """The axes of the tensor that loops run over, outermost first."""
    answers: bool = False
    """Whether it is the answer of the tensor, in which its outputs are still to be seen."""

    def moved(self, axes: Sequence[int | None]) -> "Origin":
        """The same with its axes elsewhere: for each new axis the old one, or `None`."""
        found = tuple(None if axis is None else self.axes[axis] for axis in axes)
        return dataclasses.replace(self, axes=found)


def passed(equation: Any, origin: Origin) -> Origin | None:
    """The origin of what an equation of one operand makes of a value, if it only moves its axes."""
    (operand, *_), parameters = equation.invars, equation.params
    shape, new = operand.aval.shape, equation.outvars[0].aval.shape
    match equation.primitive.name:
        case "convert_element_type" | "copy" | "reduce_precision":
            return origin
        case "transpose":
            return origin.moved(parameters["permutation"])
        case "squeeze":
            gone = [axis % len(shape) for axis in parameters["dimensions"]]
            return origin.moved([axis for axis in range(len(shape)) if axis not in gone])
        case "broadcast_in_dim":
            places = [int(axis) for axis in parameters["broadcast_dimensions"]]
            kept = {p: i for i, p in enumerate(places) if shape[i] == new[p]}
            return origin.moved([kept.get(axis) for axis in range(len(new))])
        case "reshape":
            return _reshaped(origin, shape, new)
        case _:
            return None


def _reshaped(origin: Origin, shape: tuple[int, ...], new: tuple[int, ...]) -> Origin | None:
    """Through a reshape that only puts in or takes out axes of one number."""
    wide = [axis for axis, size in enumerate(shape) if size != 1]
    if [shape[axis] for axis in wide] != [size for size in new if size != 1]:
        return None
    rest = iter(wide)
    return origin.moved([None if size == 1 else next(rest) for size in new])
