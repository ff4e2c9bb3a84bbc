"""Numbers: one sort, whether a plain float, a swept one, a learned one, or one read off the input.

A spec holds `float | Source`. A plain float is static (changing it recompiles); every source
becomes a traced value when the spec is *grounded*. Values in `(0, 1]` that multiply along time are
kept as `Log`, the natural logarithm, so that nothing under- or overflows.
"""

import dataclasses
import math
from typing import Annotated, Any

import jax.numpy as jnp

from .._errors import SpecError
from ._base import as_python_float, code, described, fields_of, refuse, Spec
from ._schedule import Schedule as Schedule
from ._source import (
    AXES as AXES,
    FromInput as FromInput,
    InverseRoot as InverseRoot,
    is_number as is_number,
    Knob as Knob,
    Learned as Learned,
    Log as Log,
    NumberProduct as NumberProduct,
    NumberSum as NumberSum,
    Source as Source,
)


Number = Annotated[Any, "a float or a source"]
"""A plain float or a `Source`; in a grounded spec, the traced array or `Log` in its place."""

OF_A_KERNEL = (
    "A kernel compares two keys and must be symmetric in them: a number that belongs to one token "
    "has no place in it."
)
_NO_ARRAYS = "A spec holds no arrays, so that it can be hashed, compared and saved."
OF_THE_MEMORY = "This number belongs to the memory, not to one of its tokens."

_AXIS = {
    "layer": "layer",
    "head": "head",
    "key_channel": "channel of the key",
    "value_channel": "channel of the value",
}


def leaves(number: Any) -> list[Any]:
    """The floats and sources that a number is made of, from left to right."""
    if isinstance(number, NumberSum | NumberProduct):
        return leaves(number.left) + leaves(number.right)
    return [number]


def axis_of(number: Any) -> str:
    """What a number is one of: the finest of the axes of what it is made of."""
    axes = [getattr(leaf, "per", "layer") for leaf in leaves(number)]
    return max(axes, key=AXES.index)


def interval(number: Any) -> tuple[float, float] | None:
    """Where a number can be when nothing has been trained yet; `None` where nobody knows."""
    match number:
        case NumberSum() | NumberProduct():
            left, right = interval(number.left), interval(number.right)
            both = sum_of if isinstance(number, NumberSum) else product_of
            return both(left, right)
        case Learned():
            return number.start, number.start
        case InverseRoot():
            return 0.0, 1.0
        case FromInput():
            ends = [
                0.0 if number.scale == 0 else number.scale * x for x in _SQUASHED[number.squash]
            ]
            return min(ends), max(ends)
        case int() | float():
            return number, number
        case Source():
            return number.reach()
        case _:
            return None


Interval = tuple[float, float] | None
"""A least and a greatest number, or `None` where nobody knows them."""


def sum_of(left: Interval, right: Interval) -> Interval:
    """Where a sum is, its terms being in two intervals."""
    if left is None or right is None:
        return None
    return left[0] + right[0], left[1] + right[1]


def product_of(left: Interval, right: Interval) -> Interval:
    """Where a product is, its factors being in two intervals."""
    if left is None or right is None:
        return None
    corners = [0.0 if 0 in (x, y) else x * y for x in left for y in right]
    return min(corners), max(corners)


_SQUASHED = {
    "sigmoid": (0.0, 1.0),
    "dt": (0.0, 1.0),
    "tanh": (-1.0, 1.0),
    "softplus": (0.0, math.inf),
    "exp": (0.0, math.inf),
    "identity": (-math.inf, math.inf),
}


@dataclasses.dataclass(frozen=True)
class Bounds:
    """The numbers that a slot takes."""

    above: float = -math.inf
    at_least: float = -math.inf
    at_most: float = math.inf
    infinite: bool = False

    def __str__(self) -> str:
        if self.above == 0 and self.at_most == math.inf:
            return "positive"
        if self.at_least == 0 and self.at_most < math.inf:
            return f"between 0 and {self.at_most:g}"
        low = [f"above {self.above:g}"] if self.above > -math.inf else []
        low += [f"at least {self.at_least:g}"] if self.at_least > -math.inf else []
        high = [f"at most {self.at_most:g}"] if self.at_most < math.inf else []
        return " and ".join(low + high) or "a number"

    def holds(self, value: float) -> bool:
        """Whether a plain number is in the range."""
        above = self.above == -math.inf or self.above < value
        return above and self.at_least <= value <= self.at_most

    def instead(self) -> str:
        """What to write instead of a number out of range."""
        if str(self) == "positive":
            return "a number above 0, such as 1.0."
        words = str(self) if str(self) == "a number" else f"a number {self}"
        words = words.replace("a number at least", "a number of at least")
        return f"{words}, such as {0.9 if self.at_most == 1 else 1.0}."

    def contains(self, low: float, high: float) -> bool:
        """Whether an interval lies in the range; an end that is never reached may touch it."""
        return max(self.above, self.at_least) <= low and high <= self.at_most


def number(
    *,
    default: Any = dataclasses.MISSING,
    above: float = -math.inf,
    at_least: float = -math.inf,
    at_most: float = math.inf,
    infinite: bool = False,
    per: tuple[str, ...] = ("layer", "head"),
    log: bool = False,
    of_input: bool = True,
    optional: bool = False,
    meaning: str = "",
    fixed: str = OF_THE_MEMORY,
    range_reason: str | None = None,
) -> Any:
    """A dataclass field for a number.

    **Arguments:**

    - `above`, `at_least`, `at_most`: its range; `infinite`: whether it may be infinite.
    - `per`: the axes that it may have.
    - `log`: whether its value is kept as a `Log`, as decays are.
    - `of_input`: whether it may change from token to token; if not, `fixed` says why.
    - `optional`: whether it may be `None`.
    - `meaning`: what it is called in listings.
    - `range_reason`: why it has this range.
    """
    bounds = Bounds(above, at_least, at_most, infinite)

    def check(spec: Spec, name: str, value: Any) -> None:
        if optional and value is None:
            return
        _check_kind(spec, name, value, of_input, optional)
        for leaf in leaves(value):
            _check_leaf(spec, name, leaf, per, log, fixed if not of_input else None)
        _check_range(spec, name, value, bounds, range_reason, log)
        as_python_float(spec, name, value)

    metadata = {"check": check, "number": True, "log": log, "per": per, "meaning": meaning}
    return dataclasses.field(default=default, metadata=metadata)


def _check_kind(spec: Spec, name: str, value: Any, of_input: bool, optional: bool) -> None:
    if is_number(value):
        return
    array = getattr(value, "shape", None) is not None
    reason = _NO_ARRAYS if array else None
    if isinstance(value, Source):
        reason = "A weight is a matrix or a vector, which only a feature holds."
    sources = "a float, Knob(x) to sweep it, or Learned(x) to train it."
    if of_input:
        sources = "a float, Knob(x) to sweep it, Learned(x) to train it, or FromInput(...)."
    if isinstance(value, type) and issubclass(value, Source):
        sources = f"{value.__name__}(...), a value of the class."
    raise refuse(
        spec,
        name,
        f"a number{', or None' if optional else ''}",
        value,
        why=reason,
        instead=sources,
    )


def _check_leaf(
    spec: Spec, name: str, leaf: Any, per: tuple[str, ...], log: bool, fixed: str | None
) -> None:
    slot = f"{type(spec).__name__}.{name}"
    if isinstance(leaf, Source) and leaf.time and fixed is not None:
        raise SpecError(
            f"{slot} cannot change from token to token.",
            where=spec,
            at=name,
            why=fixed,
            instead="a float, Knob(x) or Learned(x).",
        )
    if isinstance(leaf, FromInput) and not log and leaf.squash == "dt":
        raise SpecError(
            f'{slot} cannot take the squash "dt".',
            where=spec,
            at=name,
            why='"dt" gives a decay, exp(-exp(A) softplus(W x + b)), and this is no decay.',
            instead='another squash, such as "sigmoid" or "softplus".',
        )
    if isinstance(leaf, FromInput) and not log and leaf.temperature != 1:
        raise SpecError(
            f"{slot} cannot take a temperature.",
            where=spec,
            at=name,
            why="A temperature divides the logarithm of a decay, and this is no decay.",
            instead="scale=..., which multiplies the number.",
        )
    axis = getattr(leaf, "per", None)
    if axis is not None and axis not in per:
        listed = " or ".join(f'per="{p}"' for p in per)
        raise SpecError(
            f"{slot} cannot be one number per {_AXIS[axis]}.",
            where=spec,
            at=name,
            instead=f"{listed}.",
        )


def _check_range(
    spec: Spec, name: str, value: Any, bounds: Bounds, reason: str | None, log: bool
) -> None:
    slot, plain = f"{type(spec).__name__}.{name}", isinstance(value, int | float)
    found = interval(value)
    if plain and (value != value or (not bounds.infinite and abs(value) == math.inf)):
        must, found_text = "a finite number", f"it is {value!r}"
    elif found is None or (found[0] < found[1] and bounds.contains(*found)):
        return
    elif found[0] < found[1]:
        must, found_text = str(bounds), f"{code(value)} ranges from {found[0]:g} to {found[1]:g}"
    elif bounds.holds(found[0]):
        return
    else:
        must = str(bounds)
        found_text = f"it is {value!r}" if plain else f"{code(value)} is {found[0]!r}"
    instead = bounds.instead()
    sources = [leaf for leaf in leaves(value) if isinstance(leaf, Source)]
    safe = [leaf.within(bounds.at_most, log) for leaf in sources]
    instead = next((text for text in safe if text is not None), instead)
    raise SpecError(
        f"{slot} must be {must}, and {found_text}.",
        where=spec,
        at=name,
        why=reason,
        instead=instead,
    )


def check_plain_field(spec: Spec, name: str, value: Any) -> None:
    """The check of a field that has none of its own: what a user's spec may hold."""
    (field,) = (f for f in fields_of(spec) if f.name == name)
    if _is_number_annotation(field.type) or (isinstance(value, Source) and is_number(value)):
        slot = number(infinite=True, per=AXES, of_input=not spec.shared, fixed=OF_A_KERNEL)
        slot.metadata["check"](spec, name, value)
    elif isinstance(value, list | dict | set) or getattr(value, "shape", None) is not None:
        raise SpecError(
            f"{type(spec).__name__}.{name} holds {described(value)}.",
            where=spec,
            at=name,
            why="A spec holds neither arrays nor what can change, so that it can be hashed, "
            "compared and saved.",
            instead="a number, a string, a spec, or a tuple of these.",
        )


def _is_number_annotation(annotation: Any) -> bool:
    written_out = isinstance(annotation, str) and annotation.rpartition(".")[2] == "Number"
    return annotation is Number or written_out


def log_of(value: Any) -> Any:
    """The natural logarithm of a grounded number, whether it is a float, an array or a `Log`."""
    if isinstance(value, Log):
        return value.log
    if isinstance(value, int | float):
        return math.log(value) if value > 0 else -math.inf
    return jnp.log(value)


def value_of(value: Any) -> Any:
    """A grounded number itself: `Log(x)` becomes `exp(x)`."""
    return jnp.exp(value.log) if isinstance(value, Log) else value
