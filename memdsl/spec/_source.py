"""Sources: numbers that are known only later. They add and multiply."""

import dataclasses
import math
from typing import Any, ClassVar, NamedTuple

import jax

from .._errors import SpecError
from ._base import (
    as_python_float,
    choice,
    plain_float,
    refuse,
    Spec,
    whole,
    written,
)


AXES = ("layer", "head", "key_channel", "value_channel")


class Log(NamedTuple):
    """The natural logarithm of a positive number: `Log(x)` stands for `exp(x)`."""

    log: jax.Array


class Source(Spec):
    """A number that is known only later: at plan time, at build time, or token by token."""

    time: ClassVar[bool] = False
    """Whether the value changes from token to token."""
    is_array: ClassVar[bool] = False
    """Whether it stands for a matrix or a vector, which only a feature holds."""

    def reach(self) -> tuple[float, float] | None:
        """Where it can be when nothing has been trained yet; `None` where nobody knows."""
        return None

    def within(self, at_most: float, log: bool) -> str | None:
        """What to write instead of it where it leaves its range, if there is more to say."""
        return None

    def __add__(self, other: Any) -> Any:
        return NumberSum(self, other) if is_number(other) else NotImplemented

    def __radd__(self, other: Any) -> Any:
        return NumberSum(other, self) if is_number(other) else NotImplemented

    def __mul__(self, other: Any) -> Any:
        return NumberProduct(self, other) if is_number(other) else NotImplemented

    def __rmul__(self, other: Any) -> Any:
        return NumberProduct(other, self) if is_number(other) else NotImplemented


def is_number(value: Any) -> bool:
    """Whether a value can stand in a number slot of a spec."""
    if isinstance(value, Source):
        return not value.is_array
    return isinstance(value, int | float) and not isinstance(value, bool)


def _operand() -> Any:
    def check(spec: Spec, name: str, value: Any) -> None:
        if not is_number(value):
            raise refuse(spec, name, "a number", value, instead="a float or a source.")

    return dataclasses.field(metadata={"check": check})


def _one_or_several() -> Any:
    def check(spec: Spec, name: str, value: Any) -> None:
        several: tuple[Any, ...] = value if isinstance(value, tuple) and value else (value,)
        for one in several:
            good = isinstance(one, int | float) and not isinstance(one, bool)
            if not good or not math.isfinite(one):
                must = "a finite plain number, or a tuple of them"
                raise refuse(spec, name, must, value, instead=f"{name}=1.0, say.")
        as_python_float(spec, name, value)

    return dataclasses.field(metadata={"check": check})


class Knob(Source):
    """A traced number that is not trained: sweep it without recompiling.

    A plain float is static: every new value compiles anew. A knob starts at `value`, and a run or a
    layer takes another value as an array.

    **Arguments:**

    - `value`: where it starts; a tuple of numbers is one a head of a layer.

    **Raises:** `SpecError` where the value is not finite, or outside the range of its slot.

    ??? example

        ```python
        >>> import memdsl as md
        >>> md.RBF(scale=md.Knob(0.5))
        RBF(scale=Knob(0.5))

        ```
    """

    value: float | tuple[float, ...] = _one_or_several()
    positional: ClassVar[int] = 1

    @property
    def per(self) -> str:
        """Whether it is one number, or one a head."""
        return "head" if isinstance(self.value, tuple) else "layer"

    def reach(self) -> tuple[float, float]:
        several = self.value if isinstance(self.value, tuple) else (self.value,)
        return min(several), max(several)


class Learned(Source):
    """A trained number, `floor + squash(p)`, that starts at `start`.

    **Arguments:**

    - `start`: the value at initialisation.
    - `per`: one for the whole `"layer"`, one a `"head"`, one a `"key_channel"` of each head, or one
        a `"value_channel"`.
    - `squash`: `"identity"`, `"exp"`, `"softplus"` or `"sigmoid"`: keeps the number in its range.
    - `floor`: added after the squash.
    - `name`: what the parameter p is called in files of published layers, if it has a name.

    **Raises:** `SpecError` where the squash cannot give `start`.

    ??? example

        ```python
        >>> import memdsl as md
        >>> strength = md.Learned(1.0, per="key_channel", squash="softplus", floor=0.25)  # MesaNet
        >>> round(strength.raw(), 4)
        0.1106

        ```
    """

    start: float = plain_float(default=0.0)
    per: str = choice(*AXES, default="head")
    squash: str = choice("identity", "exp", "softplus", "sigmoid", default="identity")
    floor: float = plain_float(default=0.0)
    name: str | None = None
    positional: ClassVar[int] = 1

    def __check__(self) -> None:
        gap = self.start - self.floor
        if self.squash in ("exp", "softplus") and gap <= 0:
            raise SpecError(
                f'Learned cannot start at {self.start} with the squash "{self.squash}".',
                where=self,
                at="start",
                why=f'"{self.squash}" gives only numbers above the floor, {self.floor}.',
                instead='a start above the floor, or squash="identity".',
            )
        if self.squash == "sigmoid" and not 0 < gap < 1:
            raise SpecError(
                f'Learned cannot start at {self.start} with the squash "sigmoid".',
                where=self,
                at="start",
                why="A sigmoid gives only numbers between the floor and the floor plus 1.",
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
    - `temperature`: divides the *logarithm* of a decay, `sigmoid(z) ** (1 / temperature)`; GLA: 16.
    - `scale`: multiplies the result; 2 gives a delta rule negative eigenvalues.
    - `rank`: the inner width of a two-layer W, or `None` for a full one.

    **Raises:** `SpecError` in a slot whose range it can leave, and in a kernel, which compares two
    keys and belongs to neither.

    ??? example

        ```python
        >>> import memdsl as md
        >>> md.Decay(md.FromInput("sigmoid", bias=4.0))  # Gated DeltaNet
        Decay(FromInput("sigmoid", bias=4.0))

        ```
    """

    squash: str = choice("sigmoid", "softplus", "exp", "tanh", "identity", "dt")
    bias: float = plain_float(default=0.0)
    per: str = choice(*AXES, default="head")
    temperature: float = plain_float(above=0.0, default=1.0)
    scale: float = plain_float(default=1.0)
    rank: int | None = whole(at_least=1, default=None, optional=True)
    positional: ClassVar[int] = 1
    time: ClassVar[bool] = True

    def within(self, at_most: float, log: bool) -> str:
        if log:
            return 'FromInput("sigmoid") or FromInput("dt").'
        return f'FromInput("{"sigmoid" if at_most == 1 else "softplus"}").'


class Derived(Source):
    """A number that the memory around it computes, token by token; no signal."""

    per: str = choice("key_channel", "value_channel")
    positional: ClassVar[int] = 1
    time: ClassVar[bool] = True


class InverseRoot(Source):
    """`1 / sqrt(size)` of an axis, known at plan time, so that a spec stays free of sizes.

    **Arguments:**

    - `axis`: `"key"`, `"value"` or `"model"`.

    ??? example

        ```python
        >>> import memdsl as md
        >>> md.Exp(md.InverseRoot() * md.Dot())  # the kernel of softmax attention, at any width
        Exp(InverseRoot() * Dot())

        ```
    """

    axis: str = choice("key", "value", "model", default="key")
    positional: ClassVar[int] = 1


class NumberSum(Source):
    """`left + right`, where at least one is a source."""

    left: Any = _operand()
    right: Any = _operand()
    binding: ClassVar[int] = 4

    def __repr__(self) -> str:
        return f"{written(self.left, 4)} + {written(self.right, 5)}"


class NumberProduct(Source):
    """`left * right`, where at least one is a source."""

    left: Any = _operand()
    right: Any = _operand()
    binding: ClassVar[int] = 5

    def __repr__(self) -> str:
        return f"{written(self.left, 5)} * {written(self.right, 6)}"
