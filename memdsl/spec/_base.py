"""What every spec is: frozen, hashable data that prints as the code that makes it."""

import dataclasses
import json
import math
from abc import ABCMeta
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, dataclass_transform, Self

from .._errors import SpecError


ATOM = 9
"""How tightly a call or a literal binds: never in need of parentheses."""


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
class Spec(metaclass=ABCMeta):  # noqa: B024
    """Frozen data: subclasses become dataclasses by themselves, compare by value, and hash.

    `positional` is the number of leading fields that print without their name. `__check__` is run
    after construction; it raises `SpecError` and returns nothing. A field without a check of its
    own may hold anything but an array or something mutable.
    """

    positional: ClassVar[int] = 0
    binding: ClassVar[int] = ATOM
    """How tightly the printed form binds, as in Python: 3 for `>>`, 4 for `+`, 5 for `*`, `@`."""
    shared: ClassVar[bool] = False
    """Whether its numbers may belong to no single token, as those of a kernel."""
    example: ClassVar[str] = ""
    """What errors suggest where a spec of this sort is missing."""
    __array_ufunc__: ClassVar[None] = None  # NumPy scalars leave `*` and `+` to us

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        dataclasses.dataclass(frozen=True, repr=False)(cls)

    def __post_init__(self) -> None:
        from ._number import check_plain_field  # numbers are specs too

        for field in fields_of(self):
            check = field.metadata.get("check", check_plain_field)
            check(self, field.name, getattr(self, field.name))
        self.__check__()

    def __check__(self) -> None:  # noqa: B027
        """Raises `SpecError` where the fields make no sense together."""

    def replace(self, **changes: Any) -> Self:
        """The same spec with some fields changed, checked anew."""
        known = [field.name for field in fields_of(self)]
        for name in changes:
            if name not in known:
                raise SpecError(
                    f"{type(self).__name__} has no field {code(name)}.",
                    where=self,
                    instead=f"one of {', '.join(known)}." if known else "no field; it has none.",
                )
        return dataclasses.replace(self, **changes)  # pyright: ignore[reportArgumentType]

    def shown(self, at: str | None = None) -> list[tuple[str, str]]:
        """`(name, code)` of every field that is not at its default, or that is named `at`."""
        shown = []
        for index, field in enumerate(fields_of(self)):
            value = getattr(self, field.name)
            if field.name != at and is_default(field, value):
                continue
            bare = index < self.positional and len(shown) == index
            shown.append((field.name, code(value) if bare else f"{field.name}={code(value)}"))
        return shown

    def binds_operands(self) -> bool:
        """Whether it prints as an expression of its operands, not as a call of its class."""
        return type(self).__repr__ is not Spec.__repr__

    @classmethod
    def suggestion(cls, value: Any) -> str:
        """What to write for `value`, which is not of this sort."""
        return f"{cls.example}." if cls.example else "a value of that sort."

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(text for _, text in self.shown())})"


def fields_of(spec: Any) -> tuple[dataclasses.Field[Any], ...]:
    """The fields of a spec, or of a class of specs."""
    return dataclasses.fields(spec)


def is_default(field: dataclasses.Field[Any], value: Any) -> bool:
    """Whether a field holds its default, `1` and `1.0` being different."""
    default = field.default
    return type(value) is type(default) and value == default


def code(value: Any) -> str:
    """The Python expression of the value of a field."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, float) and math.isinf(value):
        return 'float("inf")' if value > 0 else '-float("inf")'
    if type(value) is tuple:
        items = [code(item) for item in value]
        return f"({', '.join(items)}{',' if len(items) == 1 else ''})"
    if isinstance(value, type):
        return value.__name__
    if not isinstance(value, Spec) and getattr(value, "shape", None) is not None:
        return f"<{described(value).partition(' ')[2]}>"
    return repr(value)


def written(value: Any, at_least: int) -> str:
    """`code(value)`, in parentheses where it binds less tightly than its surroundings ask."""
    binding = value.binding if isinstance(value, Spec) else ATOM
    return f"({code(value)})" if binding < at_least else code(value)


def described(value: Any) -> str:
    """What a value of the wrong kind is called in an error."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if isinstance(value, Spec | int | float | str | None):
        return code(value)
    shape = getattr(value, "shape", None)
    if shape is not None and shape == () and type(value).__module__ == "numpy":
        return f"a NumPy {type(value).__name__}"
    if shape is not None:
        return f"an array of shape {tuple(shape)}"
    kind = type(value).__name__
    return f"{'an' if kind[0].lower() in 'aeiou' else 'a'} {kind}"


def children(spec: Any) -> Iterator[tuple[str, Any]]:
    """`(field name, value)` of every field, tuples unrolled as `name.0`, `name.1`, …"""
    for field in fields_of(spec):
        value = getattr(spec, field.name)
        if isinstance(value, tuple):
            for index, item in enumerate(value):
                yield f"{field.name}.{index}", item
        else:
            yield field.name, value


def rebuild(spec: Any, changes: Mapping[str, Any]) -> Any:
    """A copy with some fields changed and *no check run*, so that fields may hold traced arrays."""
    if not changes:
        return spec
    copy = object.__new__(type(spec))
    for field in fields_of(spec):
        value = getattr(spec, field.name)
        if isinstance(value, tuple):
            value = tuple(
                changes.get(f"{field.name}.{index}", item) for index, item in enumerate(value)
            )
        object.__setattr__(copy, field.name, changes.get(field.name, value))
    return copy


def refuse(spec: Spec, name: str, must: str, value: Any, **reasons: str | None) -> SpecError:
    """The error of a field that must be something else."""
    return SpecError(
        f"{type(spec).__name__}.{name} must be {must}, and it is {described(value)}.",
        where=spec,
        at=name,
        **reasons,
    )


def whole(*, at_least: int, default: Any = dataclasses.MISSING, optional: bool = False) -> Any:
    """A dataclass field for a whole number with a lower bound, or `None` where `optional`."""

    def check(spec: Spec, name: str, value: Any) -> None:
        if optional and value is None:
            return
        if isinstance(value, bool) or not isinstance(value, int) or value < at_least:
            must = f"a whole number of at least {at_least}{', or None' if optional else ''}"
            raise refuse(spec, name, must, value, instead=f"{name}={max(at_least, 16)}, say.")

    return dataclasses.field(default=default, metadata={"check": check})


def flag(*, default: bool = False) -> Any:
    """A dataclass field for yes or no."""

    def check(spec: Spec, name: str, value: Any) -> None:
        if not isinstance(value, bool):
            instead = f"{name}=True or {name}=False."
            raise refuse(spec, name, "True or False", value, instead=instead)

    return dataclasses.field(default=default, metadata={"check": check})


def choice(*names: str | None, default: Any = dataclasses.MISSING) -> Any:
    """A dataclass field for one of a few words (`None` may be one)."""

    def check(spec: Spec, name: str, value: Any) -> None:
        if not isinstance(value, str | None) or value not in names:
            listed = ", ".join(code(n) for n in names)
            raise SpecError(
                f"{type(spec).__name__}.{name} is none of its choices: {described(value)}.",
                where=spec,
                at=name,
                instead=f"one of {listed}.",
            )

    return dataclasses.field(default=default, metadata={"check": check})


def plain_float(
    *,
    above: float = -math.inf,
    at_least: float = -math.inf,
    default: Any = dataclasses.MISSING,
    optional: bool = False,
) -> Any:
    """A dataclass field for a finite number that is never traced nor learned."""

    def check(spec: Spec, name: str, value: Any) -> None:
        if optional and value is None:
            return
        good = isinstance(value, int | float) and not isinstance(value, bool)
        if not good or not math.isfinite(value) or value <= above or value < at_least:
            bound = f" above {above:g}" if above > -math.inf else ""
            bound = f" of at least {at_least:g}" if at_least > -math.inf else bound
            must = f"a finite plain number{bound}{', or None' if optional else ''}"
            usual = default if isinstance(default, float) else max(above, 0.0) + 1.0
            raise refuse(spec, name, must, value, instead=f"{name}={usual!r}, say.")
        as_python_float(spec, name, value)

    return dataclasses.field(default=default, metadata={"check": check})


def as_python_float(spec: Spec, name: str, value: Any) -> None:
    """Stores a NumPy float as the Python float that it is, so that it prints and saves as one."""
    if isinstance(value, float) and type(value) is not float:
        object.__setattr__(spec, name, float(value))


def sort(kind: type[Spec], *, default: Any = dataclasses.MISSING, optional: bool = False) -> Any:
    """A dataclass field that must hold a spec of the given sort."""
    word = kind.__name__.removeprefix("Abstract").lower()

    def check(spec: Spec, name: str, value: Any) -> None:
        if isinstance(value, kind) or (optional and value is None):
            return
        must = f"{'an' if word[0] in 'aeiou' else 'a'} {word}{', or None' if optional else ''}"
        if isinstance(value, type) and issubclass(value, kind):
            instead = f"{value.__name__}(...), a value of the class."
        else:
            instead = _elsewhere(spec, name, value) or kind.suggestion(value)
        raise refuse(spec, name, must, value, instead=instead)

    return dataclasses.field(default=default, metadata={"check": check, "kind": kind})


def _elsewhere(spec: Spec, name: str, value: Any) -> str | None:
    """`field=value` for the other field of a spec that takes such a value, if there is one."""
    for field in fields_of(spec):
        kind = field.metadata.get("kind")
        if field.name != name and kind is not None and isinstance(value, kind):
            return f"{field.name}={value!r}."
    return None
