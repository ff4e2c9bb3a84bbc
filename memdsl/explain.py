"""A page about a memory: what it means, how it will run here, what is trained, and whom to cite."""

import dataclasses
import re
from collections.abc import Iterator
from typing import Any

import equinox as eqx
import jax

from ._errors import SpecError
from .cite import cite
from .grow import growing
from .nn import build
from .nn._layer import MemoryLayer
from .nn._time import Recall
from .plan import Dims, machine, page, plan, row, Rule, RULES
from .plan._plan import Using
from .spec._layer import AbstractLayer, Layer
from .spec._memory import AbstractMemory
from .spec._number import Knob, leaves
from .spec._slots import slots


def explain(
    memory: AbstractMemory | AbstractLayer,
    dims: Dims | None = None,
    *,
    name: str = "",
    using: Using = None,
    purpose: str = "train",
    rules: tuple[Rule, ...] = RULES,
) -> str:
    """A page about a memory: its recurrence, kernel, signals, sizes, plan, and every other plan's fate.

    **Arguments:**

    - `memory`: the memory; or a layer, for the memories in it and for what the layer trains.
    - `dims`: its sizes; key and value 64, 8 heads and 4096 tokens by default.
    - `name`: printed in the first line.
    - `using`, `purpose`, `rules`: as for `md.plan`.

    **Returns:** the page as text. What is trained is that of a plain `md.Layer` around a memory, of
    the width `dims.model`, or else of all heads' values together.

    **Raises:** `SpecError` where no rule is legal, or the one that is named is not; where a layer that
    is no `md.Layer` has no memory, or `dims` no `model` for it.

    ??? example

        ```python
        >>> import memdsl as md
        >>> page = md.explain(md.Memory(md.Dot(), md.Delta(0.5)), name="delta rule")
        >>> print(page.splitlines()[0])
        Memory  delta rule
        >>> print(page.splitlines()[1])
          meaning    f ← f + κ(k,·) β (v − f(k));   y = f(q)
        >>> page = md.explain(md.zoo.layers.hgrn2(256), md.Dims(model=256), name="HGRN2")
        >>> print(page.splitlines()[-3].strip())
        trained    262 400 parameters

        ```
    """
    how = dict(using=using, purpose=purpose, rules=rules)
    if isinstance(memory, AbstractMemory | Layer):
        lines = _of_memory(memory, dims or Dims(key=64, value=64, heads=8, time=4096), name, how)
    else:
        lines = _of_layer(memory, dims or Dims(), name, how)
    keys = re.findall(r"^@\w+\{(.*),$", cite(memory), flags=re.MULTILINE)
    lines.append(row("machine", machine()))
    return "\n".join([*lines, row("cite", ", ".join(keys))] if keys else lines)


def _of_memory(
    memory: AbstractMemory | Layer, dims: Dims, name: str, how: dict[str, Any]
) -> list[str]:
    layer = memory if isinstance(memory, Layer) else Layer(memory, heads=dims.heads)
    model = dims.model or layer.heads * (layer.value_size or dims.value or 64)
    dims = dataclasses.replace(
        dims,
        model=model,
        key=layer.key_size or dims.key or model // layer.heads,
        value=layer.value_size or dims.value or model // layer.heads,
        heads=layer.heads,
    )
    lines = page(plan(layer.memory, dims, **how), name)
    return [*lines, row("trained", _trained(layer, dims))]


def _of_layer(layer: AbstractLayer, dims: Dims, name: str, how: dict[str, Any]) -> list[str]:
    """A page for every memory of a layer that is written out, and one count of parameters."""
    built: Any = eqx.filter_eval_shape(lambda key: build(layer, dims, key=key), jax.random.key(0))

    def is_memory(part: Any) -> bool:
        return isinstance(part, MemoryLayer | Recall)

    found: Any = [m for m in jax.tree.leaves(built, is_leaf=is_memory) if is_memory(m)]
    if not found and growing(built):
        raise SpecError(
            "A layer that grows has no plan: it is written once a batch, and read as it stands.",
            where=layer,
            instead="md.explain(memory), of the memory that it grows by.",
        )
    if not found:
        raise SpecError("There is no memory to explain.", where=layer, instead="print(layer).")
    lines, count = [], _count(built)
    for module in found:
        sizes = dataclasses.replace(module.dims, time=dims.time or 4096)
        lines += page(plan(module.memory, sizes, **how), name)
        count -= sum(_count(x) for _, number, x in _numbers(module) if isinstance(number, Knob))
    return [*lines, row("trained", f"{_spaced(count)} parameters")]


def _trained(layer: Layer, dims: Dims) -> str:
    """How many parameters the layer has, and of what."""
    module: Any = eqx.filter_eval_shape(lambda key: build(layer, dims, key=key), jax.random.key(0))

    own = {
        **module.projections,
        "convolution": module.convolution,
        "gate": module.gate,
        "norm": module.gain,
        "output": module.output,
    }
    parts: dict[str, Any] = {name: [part] for name, part in own.items()}
    for name, number, array in _numbers(module):
        if not isinstance(number, Knob):
            parts.setdefault(name, []).append(array)
    names = ", ".join(name for name, part in parts.items() if _count(part))
    return f"{_spaced(_count(parts))} parameters   {names}"


def _numbers(module: Any) -> Iterator[tuple[str, Any, Any]]:
    """`(name of the signal, number, what it is made of)` of all numbers of a memory in a layer."""
    for slot in slots(module.memory):
        for number, made in zip(leaves(slot.number), module.numbers[slot.path], strict=True):
            yield slot.name, number, made


def _count(part: Any) -> int:
    """How many numbers the arrays of a part hold."""
    return sum(x.size for x in jax.tree.leaves(part) if hasattr(x, "size"))


def _spaced(count: int) -> str:
    return f"{count:_}".replace("_", " ")
