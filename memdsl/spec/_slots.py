"""The numbers of a spec: listing them, resolving sizes, and putting values in their place."""

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp

from .._errors import SpecError
from ._base import children, rebuild, Spec
from ._facts import moves_keys
from ._feature import AbstractFeature, Identity, Then, Weight
from ._kernel import Pullback
from ._layer_base import AbstractLayer
from ._memory import Memory
from ._number import (
    axis_of,
    InverseRoot,
    Knob,
    Learned,
    leaves,
    Log,
    NumberProduct,
    NumberSum,
    Source,
    value_of,
)
from ._read_blocks import as_given
from ._source import Derived


_CHANNELS = {
    "key_channel": ("key",),
    "value_channel": ("value",),
    "state": ("features", "value"),
    "parameters": ("parameters",),
}


class Slot(NamedTuple):
    """One number of a spec that is not a plain float."""

    path: str
    """Where it is, `"gate.decay"`."""
    name: str
    """What it is called as a signal of a bare run: the shortest unique end of the path."""
    number: Any
    """The source, or the sum or product of sources."""
    per: str
    """`"layer"`, `"head"`, `"key_channel"`, `"value_channel"`; `"matrix"` for a weight of a feature,
    `"state"` for an initial matrix and `"parameters"` for those of a network."""
    time: bool
    """Whether it changes from token to token."""
    log: bool
    """Whether its value is kept as a logarithm."""
    meaning: str

    @property
    def axes(self) -> tuple[str, ...]:
        """The names of the axes of its value in a bare run."""
        channel = _CHANNELS.get(self.per, ())
        if isinstance(self.number, Weight):
            channel = ("features",) if self.number.vector else ("features", "in")
        return (("time",) if self.time else ()) + channel


def slots(spec: Spec) -> tuple[Slot, ...]:
    """Every traced number of a spec, in the order of its fields."""
    found = list(_walk(spec, ""))
    names = [_signal(path, bool(known.get("log"))) for path, _, known in found]
    return tuple(
        Slot(
            path,
            _shortest(name, names),
            number,
            known["axis"] if "axis" in known else _per(number),
            any(getattr(leaf, "time", False) for leaf in leaves(number)),
            bool(known.get("log")),
            str(known.get("meaning", "")),
        )
        for (path, number, known), name in zip(found, names, strict=True)
    )


def _walk(spec: Any, prefix: str) -> Iterator[tuple[str, Any, Mapping[str, Any]]]:
    """`(path, number, what its field declares)`."""
    meta = {f.name: f.metadata for f in dataclasses.fields(spec)}
    for name, value in children(spec):
        path = f"{prefix}{name}"
        if isinstance(value, Derived):
            continue
        if isinstance(value, Source):
            yield path, value, meta[name.split(".")[0]]
        elif isinstance(value, Spec):
            yield from _walk(value, f"{path}.")


def _signal(path: str, log: bool) -> str:
    head, _, last = path.rpartition(".")
    last = f"log_{last}" if log else last
    return f"{head}.{last}" if head else last


def _shortest(name: str, names: list[str]) -> str:
    parts = name.split(".")
    for length in range(1, len(parts) + 1):
        tail = ".".join(parts[-length:])
        if sum(other == tail or other.endswith(f".{tail}") for other in names) == 1:
            return tail
    return name


def _per(number: Any) -> str:
    if isinstance(number, Weight):
        return "matrix"
    return axis_of(number)


def resolve(spec: Any, sizes: Mapping[str, int]) -> Any:
    """The spec with `InverseRoot` replaced by numbers, and constant sums and products by floats."""
    if isinstance(spec, InverseRoot):
        if spec.axis not in sizes:
            raise SpecError(
                f"InverseRoot({spec.axis!r}) needs the {spec.axis} size, and it is not known here.",
                where=spec,
                instead=f"Dims({spec.axis}=...), or a plain number.",
            )
        return 1 / math.sqrt(sizes[spec.axis])
    if isinstance(spec, NumberSum | NumberProduct):
        left, right = resolve(spec.left, sizes), resolve(spec.right, sizes)
        if isinstance(left, int | float) and isinstance(right, int | float):
            return left + right if isinstance(spec, NumberSum) else left * right
        return rebuild(spec, {"left": left, "right": right})
    if not isinstance(spec, Spec) or isinstance(spec, AbstractLayer):
        return spec  # a layer has sizes of its own
    changes = {}
    for name, value in children(spec):
        new = resolve(value, sizes)
        if new is not value:
            changes[name] = new
    return rebuild(spec, changes)


def ground(spec: Any, values: Mapping[str, Any], prefix: str = "") -> Any:
    """The same spec with traced values put in the place of its sources, by path.

    A grounded spec is for running only: it can be neither hashed, compared nor saved.
    """
    changes = {}
    for name, value in children(spec):
        path = f"{prefix}{name}"
        if path in values:
            changes[name] = values[path]
        elif isinstance(value, Spec) and any(p.startswith(f"{path}.") for p in values):
            changes[name] = ground(value, values, f"{path}.")
    return rebuild(spec, changes)


def evaluate(number: Any, leaf_value: Any, log: bool) -> Any:
    """The value of a sum or product of sources, given a function from leaf to value.

    `leaf_value(leaf)` may return a `Log`. With `log`, the result is a `Log`.
    """
    if isinstance(number, NumberSum):
        left = value_of(evaluate(number.left, leaf_value, False))
        right = value_of(evaluate(number.right, leaf_value, False))
        return _as(left + right, log)
    if isinstance(number, NumberProduct):
        left = evaluate(number.left, leaf_value, log)
        right = evaluate(number.right, leaf_value, log)
        return Log(left.log + right.log) if log else value_of(left) * value_of(right)
    return _as(leaf_value(number), log)


def _as(value: Any, log: bool) -> Any:
    if log:
        return value if isinstance(value, Log) else Log(jnp.log(jnp.asarray(value)))
    return value_of(value)


def default_value(slot: Slot, dtype: Any) -> Any:
    """The value of a slot where a bare run is not given one, or `None` where it must be given."""
    found = [leaf for leaf in leaves(slot.number) if isinstance(leaf, Source)]
    if any(leaf.time or isinstance(leaf, Weight | InverseRoot) for leaf in found):
        return None
    given = slot.per in ("state", "parameters")
    if given or any(isinstance(getattr(x, "value", 0), tuple) for x in found):
        return None

    def of(leaf: Any) -> Any:
        if isinstance(leaf, Knob):
            return jnp.asarray(leaf.value, dtype)
        if isinstance(leaf, Learned):
            return jnp.asarray(leaf.start, dtype)
        return jnp.asarray(leaf, dtype)

    return evaluate(slot.number, of, slot.log)


_THEN = Then(Identity(), Identity())


def peel(memory: Any) -> tuple[Any, AbstractFeature]:
    """`(memory, feature)` with the pullbacks of the kernel taken out of it, so that keys may be
    mapped once, ahead: the memory means the same on `feature(k)` and `feature(q)`. A network has none,
    and one that ranks by another kernel, or by several queries, needs its keys as they are.
    """
    if not isinstance(memory, Memory) or as_given(memory.read) is not None:
        return memory, Identity()
    kernel, feature = unpulled(memory.kernel)
    return rebuild(memory, {"kernel": kernel}), feature


def unpulled(kernel: Any) -> tuple[Any, AbstractFeature]:
    """A kernel without its pullbacks, and what they make of a key: what it compares."""
    feature: AbstractFeature = Identity()
    while isinstance(kernel, Pullback):  # K.pullback(f).pullback(g): g first, then f
        outer = kernel.feature
        feature = (
            outer
            if isinstance(feature, Identity)
            else rebuild(_THEN, {"first": feature, "second": outer})
        )
        kernel = kernel.kernel
    return kernel, feature


def key_channels(memory: Any, key_size: int) -> int:
    """How many numbers there are `per="key_channel"`: one a feature, or one a coordinate of a mapped
    key, where there are no finitely many features, or where the gate moves keys."""
    if not isinstance(memory, Memory):
        return key_size
    rank = memory.kernel.rank(key_size)
    of_keys = rank == math.inf or moves_keys(memory)
    return peel(memory)[1].size(key_size) if of_keys else int(rank)
