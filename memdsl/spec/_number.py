"""Numbers: one sort, whether a plain float, a swept one, a learned one, or one read off the input.

A spec holds `float | Source`. A plain float is static (changing it recompiles); every source becomes
a traced value when the spec is *grounded*. Values in `(0, 1]` that multiply along time are kept as
`Log`, the natural logarithm, so that nothing under- or overflows.
"""

import dataclasses
import inspect
import math
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import optax

from .._errors import SpecError
from ._base import Spec, choice, plain_float


AXES = ("layer", "head", "key_channel", "value_channel")


class Log(NamedTuple):
    """The natural logarithm of a positive number: `Log(x)` stands for `exp(x)`."""

    log: jax.Array


class Source(Spec):
    """A number that is known only later: at plan time, at build time, or token by token."""

    time: ClassVar[bool] = False
    """Whether the value changes from token to token."""

    def __add__(self, other: Any) -> Any:
        if not isinstance(other, Source | int | float):
            return NotImplemented
        return NumberSum(self, other)

    def __radd__(self, other: float) -> "NumberSum":
        return NumberSum(other, self)

    def __mul__(self, other: Any) -> Any:
        if not isinstance(other, Source | int | float):
            return NotImplemented
        return NumberProduct(self, other)

    def __rmul__(self, other: float) -> "NumberProduct":
        return NumberProduct(other, self)


Number = Any
"""A plain float or a `Source`; in a grounded spec, the traced array or `Log` in its place."""


class Knob(Source):
    """A traced number that is not trained: sweep it without recompiling.

    ??? example

        ```python
        >>> import memdsl as md
        >>> md.RBF(scale=md.Knob(0.5))
        RBF(scale=Knob(0.5))

        ```
    """

    value: float = plain_float()
    positional: ClassVar[int] = 1


class Learned(Source):
    """A trained number, `floor + squash(p)`, that starts at `start`.

    **Arguments:**

    - `start`: the value at initialisation.
    - `per`: one for the whole `"layer"`, one a `"head"`, one a `"key_channel"` of each head, or one
        a `"value_channel"`.
    - `squash`: `"identity"`, `"exp"`, `"softplus"` or `"sigmoid"`: keeps the number in its range.
    - `floor`: added after the squash.
    """

    start: float = plain_float(default=0.0)
    per: str = choice(*AXES, default="head")
    squash: str = choice("identity", "exp", "softplus", "sigmoid", default="identity")
    floor: float = plain_float(default=0.0)
    positional: ClassVar[int] = 1

    def __check__(self) -> None:
        gap = self.start - self.floor
        if self.squash in ("exp", "softplus") and gap <= 0:
            raise SpecError(
                f"Learned cannot start at {self.start} with squash {self.squash!r}.",
                where=self,
                at="start",
                why=f"{self.squash} only gives numbers above the floor, {self.floor}.",
                instead="a start above the floor, or squash='identity'.",
            )
        if self.squash == "sigmoid" and not 0 < gap < 1:
            raise SpecError(
                f"Learned cannot start at {self.start} with squash 'sigmoid'.",
                where=self,
                at="start",
                why="A sigmoid only gives numbers between floor and floor + 1.",
                instead="a start strictly between them.",
            )

    def raw(self) -> float:
        """The parameter p with `floor + squash(p) == start`."""
        gap = self.start - self.floor
        if self.squash == "exp":
            return math.log(gap)
        if self.squash == "softplus":
            return gap + math.log(-math.expm1(-gap))
        if self.squash == "sigmoid":
            return math.log(gap / (1 - gap))
        return gap


class FromInput(Source):
    """A number read off the token: `scale * squash(W x + b)`, one W and b a head (or channel).

    **Arguments:**

    - `squash`: `"sigmoid"`, `"softplus"`, `"exp"`, `"tanh"`, `"identity"`, or `"dt"`, Mamba's gate
        `exp(-exp(A) softplus(W x + b))` with a learned A, for decays only.
    - `bias`: where b starts.
    - `per`: `"head"`, `"key_channel"`, `"value_channel"` or `"layer"`.
    - `temperature`: divides the *logarithm* of a decay: `sigmoid(z) ** (1 / temperature)` (GLA: 16).
    - `scale`: multiplies the result (2 gives a delta rule negative eigenvalues).
    - `rank`: the inner width of a two-layer W, or `None` for a full one.
    """

    squash: str = choice("sigmoid", "softplus", "exp", "tanh", "identity", "dt")
    bias: float = plain_float(default=0.0)
    per: str = choice(*AXES, default="head")
    temperature: float = plain_float(above=0.0, default=1.0)
    scale: float = plain_float(default=1.0)
    rank: int | None = None
    positional: ClassVar[int] = 1
    time: ClassVar[bool] = True

    def __check__(self) -> None:
        if self.rank is not None and (not isinstance(self.rank, int) or self.rank < 1):
            raise SpecError(
                f"FromInput.rank must be None or a whole number of at least 1: {self.rank!r}.",
                where=self,
                at="rank",
                instead="rank=16, say.",
            )


class Schedule(Source):
    """A number that follows a schedule of `optax.schedules`, by name, over the count of writes.

    ??? example

        ```python
        >>> import memdsl as md
        >>> md.Schedule("linear_schedule", init_value=0.5, end_value=0.1, transition_steps=100)
        Schedule("linear_schedule", end_value=0.1, init_value=0.5, transition_steps=100)

        ```
    """

    name: str
    arguments: tuple[tuple[str, float], ...] = ()
    positional: ClassVar[int] = 1
    time: ClassVar[bool] = True

    def __init__(self, name: str, arguments: Any = (), **named: float):
        merged = tuple(sorted({**dict(arguments), **named}.items()))
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "arguments", merged)
        self.__check__()

    def __check__(self) -> None:
        if not self.name.endswith("schedule") or self.name not in vars(optax.schedules):
            known = ", ".join(n for n in sorted(vars(optax.schedules)) if n.endswith("schedule"))
            raise SpecError(
                f"Schedule knows no {self.name!r}.",
                where=self,
                at="name",
                instead=f"one of {known}.",
            )
        try:
            inspect.signature(self.function()).bind(0)
        except TypeError as error:
            raise SpecError(
                f"Schedule {self.name!r} cannot be made: {error}.",
                where=self,
                at="arguments",
                instead=f"the arguments of optax.schedules.{self.name}.",
            ) from error

    def shown(self, at: str | None = None) -> list[tuple[str, str]]:
        return [("name", f'"{self.name}"'), *((k, f"{k}={v!r}") for k, v in self.arguments)]

    def function(self) -> Callable[[Any], Any]:
        """The optax schedule: a function of the step."""
        return getattr(optax.schedules, self.name)(**dict(self.arguments))


class InverseRoot(Source):
    """`1 / sqrt(size)` of an axis, known at plan time: `Exp(InverseRoot("key") * Dot())`."""

    axis: str = choice("key", "value", "model", default="key")
    positional: ClassVar[int] = 1


class NumberSum(Source):
    """`left + right`."""

    left: Number
    right: Number

    def __repr__(self) -> str:
        return f"{self.left!r} + {self.right!r}"


class NumberProduct(Source):
    """`left * right`."""

    left: Number
    right: Number

    def __repr__(self) -> str:
        return f"{self.left!r} * {self.right!r}"


def leaves(number: Any) -> list[Any]:
    """The floats and sources that a number is made of, from left to right."""
    if isinstance(number, NumberSum | NumberProduct):
        return leaves(number.left) + leaves(number.right)
    return [number]


def is_number(value: Any) -> bool:
    """Whether a value can stand in a number slot of a spec."""
    return isinstance(value, Source | int | float) and not isinstance(value, bool)


def number(
    *,
    default: Any = dataclasses.MISSING,
    above: float = -math.inf,
    at_least: float = -math.inf,
    at_most: float = math.inf,
    per: tuple[str, ...] = ("layer", "head"),
    log: bool = False,
    of_input: bool = True,
    optional: bool = False,
    meaning: str = "",
) -> Any:
    """A dataclass field for a number: its range, the axes it may have, whether it is kept as a `Log`."""

    def check(spec: Spec, name: str, value: Any) -> None:
        slot = f"{type(spec).__name__}.{name}"
        if optional and value is None:
            return
        if not is_number(value):
            array = isinstance(value, jax.Array) or type(value).__module__ == "numpy"
            raise SpecError(
                f"{slot} must be a number, and it is {_describe(value)}.",
                where=type(spec).__name__ + f"({name}=...)",
                why="A spec holds no arrays: it must hash, compare and save." if array else None,
                instead="a float, Knob(x) to sweep it, Learned(x) to train it, or FromInput(...).",
            )
        for leaf in leaves(value):
            _check_leaf(spec, name, slot, leaf)
        if isinstance(value, int | float):
            _check_range(spec, name, slot, value)

    def _check_range(spec: Spec, name: str, slot: str, value: float) -> None:
        if math.isnan(value) or value <= above or value < at_least or value > at_most:
            words = "positive" if above == 0 and at_most == math.inf else _range()
            example = 1.0 if above < 1 <= at_most else at_most
            aim = "a number above 0, such as 1.0." if words == "positive" else f"such as {example}."
            raise SpecError(
                f"{slot} must be {words}, and it is {value!r}.", where=spec, at=name, instead=aim
            )

    def _range() -> str:
        low = f"above {above:g}" if above > -math.inf else f"at least {at_least:g}"
        if at_most == math.inf:
            return low
        return f"at most {at_most:g}" if low.endswith("-inf") else f"{low} and at most {at_most:g}"

    def _check_leaf(spec: Spec, name: str, slot: str, leaf: Any) -> None:
        if isinstance(leaf, FromInput | Schedule) and not of_input:
            raise SpecError(
                f"{slot} cannot change from token to token.",
                where=spec,
                at=name,
                why="A kernel compares two keys, and must be symmetric in them: a number that "
                "belongs to one token has no place in it.",
                instead="a float, Knob(x) or Learned(x).",
            )
        if isinstance(leaf, FromInput) and leaf.squash == "dt" and not log:
            raise SpecError(
                f"{slot} cannot take the squash 'dt'.",
                where=spec,
                at=name,
                why="'dt' gives a decay, exp(-exp(A) softplus(W x + b)).",
                instead="it inside Decay(...), or another squash here.",
            )
        axis = getattr(leaf, "per", None)
        if axis is not None and axis not in per:
            listed = " or ".join(f'"{p}"' for p in per)
            raise SpecError(
                f"{slot} cannot be one number per {axis}.",
                where=spec,
                at=name,
                instead=f"per={listed}.",
            )

    metadata = {"check": check, "number": True, "log": log, "per": per, "meaning": meaning}
    return dataclasses.field(default=default, metadata=metadata)


def _describe(value: Any) -> str:
    shape = getattr(value, "shape", None)
    if shape is not None:
        return f"an array of shape {tuple(shape)}"
    return repr(value) if isinstance(value, str | bool | None) else type(value).__name__


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
