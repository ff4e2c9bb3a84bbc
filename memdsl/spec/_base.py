"""What every spec is: frozen, hashable data that prints as the code that makes it."""

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Self, dataclass_transform

from .._errors import SpecError


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
class Spec:
    """Frozen data: subclasses become dataclasses by themselves, compare by value and can be hashed.

    `positional` is the number of leading fields that print without their name. `__check__` is run
    after construction; it raises `SpecError` and returns nothing.
    """

    positional: ClassVar[int] = 0

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        dataclasses.dataclass(frozen=True, repr=False)(cls)

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):  # pyright: ignore[reportArgumentType]
            check = field.metadata.get("check")
            if check is not None:
                check(self, field.name, getattr(self, field.name))
        self.__check__()

    def __check__(self) -> None:
        """Raises `SpecError` where the fields make no sense together."""

    def replace(self, **changes: Any) -> Self:
        """The same spec with some fields changed, checked anew."""
        known = [f.name for f in dataclasses.fields(self)]  # pyright: ignore[reportArgumentType]
        for name in changes:
            if name not in known:
                raise SpecError(
                    f"{type(self).__name__} has no field {name!r}.",
                    where=self,
                    instead=f"one of {', '.join(known)}.",
                )
        return dataclasses.replace(self, **changes)  # pyright: ignore[reportArgumentType]

    def shown(self, at: str | None = None) -> list[tuple[str, str]]:
        """`(name, code)` of every field that is not at its default, or that is named `at`."""
        shown = []
        for index, field in enumerate(dataclasses.fields(self)):  # pyright: ignore[reportArgumentType]
            value = getattr(self, field.name)
            if field.name != at and _is_default(field, value):
                continue
            bare = index < self.positional and len(shown) == index
            shown.append((field.name, _code(value) if bare else f"{field.name}={_code(value)}"))
        return shown

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(text for _, text in self.shown())})"


def _is_default(field: dataclasses.Field[Any], value: Any) -> bool:
    default = field.default
    return type(value) is type(default) and value == default


def _code(value: Any) -> str:
    if isinstance(value, str):
        return f'"{value}"'
    return repr(value)


def children(spec: Any) -> Iterator[tuple[str, Any]]:
    """`(field name, value)` of every field, tuples unrolled as `name.0`, `name.1`, …"""
    for field in dataclasses.fields(spec):
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
    for field in dataclasses.fields(spec):
        value = getattr(spec, field.name)
        if isinstance(value, tuple):
            value = tuple(
                changes.get(f"{field.name}.{index}", item) for index, item in enumerate(value)
            )
        object.__setattr__(copy, field.name, changes.get(field.name, value))
    return copy


def whole(*, at_least: int, default: Any = dataclasses.MISSING) -> Any:
    """A dataclass field for a whole number with a lower bound."""

    def check(spec: Spec, name: str, value: Any) -> None:
        if isinstance(value, bool) or not isinstance(value, int) or value < at_least:
            raise SpecError(
                f"{type(spec).__name__}.{name} must be a whole number of at least {at_least}, "
                f"and it is {value!r}.",
                where=spec,
                at=name,
                instead=f"a whole number such as {max(at_least, 1)}.",
            )

    return dataclasses.field(default=default, metadata={"check": check})


def choice(*names: str, default: Any = dataclasses.MISSING) -> Any:
    """A dataclass field for one of a few words."""

    def check(spec: Spec, name: str, value: Any) -> None:
        if value not in names:
            listed = ", ".join(f'"{n}"' for n in names)
            raise SpecError(
                f"{type(spec).__name__}.{name} is none of its choices: {value!r}.",
                where=spec,
                at=name,
                instead=f"one of {listed}.",
            )

    return dataclasses.field(default=default, metadata={"check": check})


def plain_float(*, above: float = -math.inf, default: Any = dataclasses.MISSING) -> Any:
    """A dataclass field for a number that is never traced nor learned."""

    def check(spec: Spec, name: str, value: Any) -> None:
        good = isinstance(value, int | float) and not isinstance(value, bool)
        if not good or not math.isfinite(value) or value <= above:
            bound = "" if above == -math.inf else f" above {above:g}"
            raise SpecError(
                f"{type(spec).__name__}.{name} must be a plain number{bound}, and it is {value!r}.",
                where=spec,
                at=name,
                instead="a Python float.",
            )

    return dataclasses.field(default=default, metadata={"check": check})


def sort(kind: type, *, default: Any = dataclasses.MISSING, optional: bool = False) -> Any:
    """A dataclass field that must hold a spec of the given sort."""

    def check(spec: Spec, name: str, value: Any) -> None:
        if isinstance(value, kind) or (optional and value is None):
            return
        forgot = isinstance(value, type) and issubclass(value, kind)
        word = kind.__name__.removeprefix("Abstract").lower()
        raise SpecError(
            f"{type(spec).__name__}.{name} must be a {word}, and it is {_name_of(value)}.",
            where=spec,
            at=name,
            why=f"{_name_of(value)} is a class, not a value of it." if forgot else None,
            instead=f"{value.__name__}(...)." if forgot else f"one of the {word}s, called.",
        )

    return dataclasses.field(default=default, metadata={"check": check})


def _name_of(value: Any) -> str:
    if isinstance(value, type):
        return value.__name__
    return repr(value) if isinstance(value, Spec | int | float | str) else type(value).__name__
