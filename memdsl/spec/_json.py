"""Specs as JSON: `from_json(to_json(spec)) == spec`. Decoding imports nothing.

    {"memdsl": 1, "spec": {"type": "Memory", "kernel": {"type": "RBF", "scale": 0.5}}}

A spec is an object of its type and of the fields that are not at their defaults. Numbers, strings,
`true`, `false` and `null` are themselves, a tuple is a list, and the numbers that JSON lacks are
`{"float": "inf"}` and `{"float": "-inf"}`.
"""

import dataclasses
import json
import math
from collections.abc import Iterable, Iterator
from typing import Any

from .._errors import SpecError
from ._base import described, fields_of, is_default, Spec
from ._schedule import Schedule
from ._source import Log


VERSION = 1
_INFINITE = {"inf": math.inf, "-inf": -math.inf}


def to_json(spec: Spec, indent: int | None = None) -> str:
    """A spec as JSON text.

    **Arguments:**

    - `spec`: any spec: a memory, a layer, or a part of one.
    - `indent`: as of `json.dumps`.

    **Returns:** the text. `from_json` gives an equal spec back.

    **Raises:** `SpecError` for what is no spec, for a grounded one (it holds arrays), and for a class
    of your own that `from_json` could not tell from another.

    ??? example

        ```python
        >>> import memdsl as md
        >>> md.to_json(md.Memory(md.RBF(scale=0.5), md.Delta(rate=0.2)))
        '{"memdsl": 1, "spec": {"type": "Memory", "kernel": {"type": "RBF", "scale": 0.5}, "write":
        {"type": "Delta", "rate": 0.2}}}'

        ```
    """
    if not isinstance(spec, Spec):
        raise SpecError(
            f"to_json takes a spec, and got {described(spec)}.",
            instead="a memory, a layer, or a part of one; memdsl.save keeps arrays.",
        )
    text = {"memdsl": VERSION, "spec": _encode(spec, "$.spec")}
    return json.dumps(text, indent=indent, allow_nan=False)


def from_json(text: str, types: Iterable[type[Spec]] = ()) -> Any:
    """The spec that a text of `to_json` stands for.

    Types are looked up by name among the classes of specs that exist already, so the modules that
    define your own must have been imported. Nothing is imported here, and nothing is called but
    these classes.

    **Arguments:**

    - `text`: the JSON text.
    - `types`: classes to prefer, where several of your own have one name.

    **Returns:** the spec, checked like any other.

    **Raises:** `SpecError`, with the path in the text, for what is no JSON or of a newer version, for
    unknown types, unknown or missing fields, and for every spec that has no meaning.

    ??? example

        ```python
        >>> import memdsl as md
        >>> md.from_json('{"memdsl": 1, "spec": {"type": "Decay", "decay": 0.9}}')
        Decay(0.9)
        >>> try:
        ...     md.from_json('{"memdsl": 1, "spec": {"type": "Decay", "dekay": 0.9}}')
        ... except md.SpecError as error:
        ...     print(error)
        Decay has no field "dekay".
        <BLANKLINE>
        ──▶   $.spec.dekay
        <BLANKLINE>
          Instead: one of decay.

        ```
    """
    whole = _parsed(text)
    if not isinstance(whole, dict) or set(whole) != {"memdsl", "spec"}:
        raise SpecError(
            'A spec is an object with the two keys "memdsl" and "spec".',
            where="$",
            instead='{"memdsl": 1, "spec": {"type": ...}}.',
        )
    version = whole["memdsl"]
    if type(version) is not int or version < 1:
        raise SpecError(
            f"The version must be a whole number of at least 1, and it is {json.dumps(version)}.",
            where="$.memdsl",
            instead=f'"memdsl": {VERSION}.',
        )
    if version > VERSION:
        raise SpecError(
            f"This text has version {version}, and this memdsl reads up to {VERSION}.",
            where="$.memdsl",
            why="A newer memdsl wrote it; what its fields mean is not known here.",
            instead="a newer memdsl.",
        )
    preferred = tuple(types)
    for cls in preferred:
        if not (isinstance(cls, type) and issubclass(cls, Spec)):
            raise SpecError(
                f"types= takes classes of specs, and got {described(cls)}.",
                instead="from_json(text, types=(MyKernel,)).",
            )
    try:
        spec = _decode(whole["spec"], "$.spec", _known(preferred))
    except RecursionError:
        raise _too_deep() from None
    if not isinstance(spec, Spec):
        raise SpecError(
            f"A spec is an object with a type, and this is {json.dumps(whole['spec'])[:60]}.",
            where="$.spec",
            instead='{"type": ...}.',
        )
    return spec


def _encode(value: Any, path: str) -> Any:
    if isinstance(value, Spec):
        return _encode_spec(value, path)
    if type(value) is tuple:
        return [_encode(item, f"{path}[{index}]") for index, item in enumerate(value)]
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float) and not math.isnan(value):
        name = next((n for n, number in _INFINITE.items() if number == value), None)
        return float(value) if name is None else {"float": name}
    value = value.log if isinstance(value, Log) else value
    if getattr(value, "shape", None) is not None:
        raise SpecError(
            f"to_json writes no arrays, and here is {described(value)}.",
            where=path,
            why="A spec that was grounded holds traced values in the place of its numbers.",
            instead="the spec as it was written down.",
        )
    raise SpecError(
        f"to_json cannot write {described(value)}.",
        where=path,
        instead="numbers, strings, specs, and tuples of these.",
    )


def _encode_spec(spec: Spec, path: str) -> dict[str, Any]:
    cls = type(spec)
    name = cls.__name__
    if not _is_ours(cls) and any(_is_ours(c) for c in _named(name)):
        raise SpecError(
            f"{name} is the name of a class of memdsl, and here of another.",
            where=path,
            why="A text knows classes by their names.",
            instead="another name for your own class.",
        )
    if isinstance(spec, Schedule):
        return {"type": name, "name": spec.name, "arguments": dict(spec.arguments)}
    written: dict[str, Any] = {"type": name}
    for field in fields_of(spec):
        value = getattr(spec, field.name)
        encoded = _encode(value, f"{path}.{field.name}")  # an array of 1 equals a default of 1
        if not is_default(field, value):
            written[field.name] = encoded
    return written


def _parsed(text: Any) -> Any:
    def no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            what = f"The key {json.dumps(twice)} is there twice in one object."
            raise SpecError(what, instead="each key once.")
        return found

    def no_constant(name: str) -> Any:
        raise SpecError(
            f"{name} is no JSON.",
            instead='{"float": "inf"} or {"float": "-inf"}, where a number may be infinite.',
        )

    if not isinstance(text, str):
        raise SpecError(
            f"from_json takes text, a str, and got {type(text).__name__}.",
            instead="what to_json returned.",
        )
    try:
        return json.loads(text, object_pairs_hook=no_duplicates, parse_constant=no_constant)
    except SpecError:
        raise
    except RecursionError:
        raise _too_deep() from None
    except ValueError as error:
        raise SpecError(f"This is no JSON: {error}.", instead="what to_json returned.") from error


def _too_deep() -> SpecError:
    return SpecError("This text is nested too deeply to be read.", where="$.spec")


def _is_ours(cls: type) -> bool:
    return cls.__module__.partition(".")[0] == __name__.partition(".")[0]


def _every_class(cls: type) -> Iterator[type]:
    for sub in cls.__subclasses__():
        yield sub
        yield from _every_class(sub)


def _is_interface(cls: type) -> bool:
    return cls.__name__.startswith(("Abstract", "_")) or cls.__name__ == "Source"


def _named(name: str) -> list[type]:
    """The classes of that name, those that were defined anew only as they are now."""
    found = {
        (cls.__module__, cls.__qualname__): cls
        for cls in _every_class(Spec)
        if cls.__name__ == name and not _is_interface(cls)
    }
    return list(found.values())


def _known(preferred: tuple[type[Spec], ...]) -> dict[str, list[type]]:
    """Every class by its name: those to be preferred alone, then ours, then all others."""
    names = {cls.__name__ for cls in _every_class(Spec) if not _is_interface(cls)}
    known = {name: _named(name) for name in names}
    for name, classes in known.items():
        ours = [cls for cls in classes if _is_ours(cls)]
        known[name] = ours or classes
    for name in {cls.__name__ for cls in preferred}:
        known[name] = [cls for cls in preferred if cls.__name__ == name]
    return known


def _decode(value: Any, path: str, known: dict[str, list[type]]) -> Any:
    if isinstance(value, list):
        return tuple(_decode(item, f"{path}[{i}]", known) for i, item in enumerate(value))
    if not isinstance(value, dict):
        return value
    if set(value) == {"float"}:
        number = _INFINITE.get(value["float"]) if isinstance(value["float"], str) else None
        if number is not None:
            return number
        raise SpecError(
            f"{json.dumps(value)} is no number.",
            where=path,
            instead='{"float": "inf"} or {"float": "-inf"}; other numbers are written as they are.',
        )
    cls = _class_of(value, path, known)
    if cls is Schedule:
        return _decode_schedule(value, path)
    return _decode_spec(cls, value, path, known)


def _class_of(value: dict[str, Any], path: str, known: dict[str, list[type]]) -> type:
    if "type" not in value:
        raise SpecError("This object has no type.", where=path, instead='{"type": "RBF", ...}.')
    name = value["type"]
    found = known.get(name, []) if isinstance(name, str) else []
    if not found:
        raise SpecError(
            f"There is no spec of the type {json.dumps(name)}.",
            where=f"{path}.type",
            why="A type is the name of a class of specs that exists already; nothing is imported.",
            instead="a name that md exports; for a class of your own, import its module first.",
        )
    if len(found) > 1:
        places = " and ".join(f"{cls.__module__}.{cls.__qualname__}" for cls in found)
        raise SpecError(
            f"There are several specs of the type {json.dumps(name)}: {places}.",
            where=f"{path}.type",
            instead="from_json(text, types=(...,)) with the one that is meant.",
        )
    return found[0]


def _decode_spec(cls: type, value: dict[str, Any], path: str, known: Any) -> Any:
    fields = {field.name: field for field in fields_of(cls)}
    _fields_exist(cls.__name__, [key for key in value if key != "type"], fields, path)
    for name, field in fields.items():
        if name not in value and is_required(field):
            raise SpecError(
                f"{cls.__name__} needs the field {json.dumps(name)}.",
                where=path,
                instead=f'{{"type": "{cls.__name__}", "{name}": ...}}.',
            )
    given = {n: _decode(v, f"{path}.{n}", known) for n, v in value.items() if n != "type"}
    try:
        return cls(**given)
    except SpecError as error:
        raise _at_path(error, cls, path) from error
    except TypeError as error:
        raise SpecError(f"{cls.__name__} cannot be made: {error}.", where=path) from error


def is_required(field: Any) -> bool:
    """Whether a field has no default."""
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _fields_exist(name: str, given: list[str], fields: Any, path: str) -> None:
    for key in given:
        if key not in fields:
            raise SpecError(
                f"{name} has no field {json.dumps(key)}.",
                where=f"{path}.{key}",
                instead=f"one of {', '.join(fields)}." if fields else "no field; it has none.",
            )


def _decode_schedule(value: dict[str, Any], path: str) -> Schedule:
    _fields_exist("Schedule", [k for k in value if k != "type"], ("name", "arguments"), path)
    arguments = value.get("arguments", {})
    if "name" not in value or not isinstance(arguments, dict):
        raise SpecError(
            "Schedule needs a name, and an object of arguments.",
            where=path,
            instead='{"type": "Schedule", "name": "constant_schedule", "arguments": {"value": 1}}.',
        )
    try:
        return Schedule(value["name"], arguments)
    except SpecError as error:
        raise _at_path(error, Schedule, path) from error


def _at_path(error: SpecError, cls: type, path: str) -> SpecError:
    """The same error, placed in the text."""
    fields = [field.name for field in fields_of(cls)]
    at = f".{error.at}" if error.at in fields and isinstance(error.where, cls) else ""
    return SpecError(error.what, where=f"{path}{at}", why=error.why, instead=error.instead)
