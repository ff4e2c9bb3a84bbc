"""Layers of layers, pointwise; trained vectors; and parts with names, which are one part."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from .._errors import SpecError
from .._types import at_least_single
from ..plan import Dims
from ..spec._layer import (
    LayerProduct as LayerProductSpec,
    LayerSum as LayerSumSpec,
    Named as NamedSpec,
    Tied as TiedSpec,
    Vector as VectorSpec,
)
from ._base import AbstractModule
from ._blocks import Repeat


class Pointwise(AbstractModule):
    """`left(x) + right(x)` or `left(x) * right(x)`; a plain number of the spec is no module."""

    spec: LayerSumSpec | LayerProductSpec = eqx.field(static=True)
    dims: Dims = eqx.field(static=True)
    left: AbstractModule | None
    right: AbstractModule | None

    def init(self, time: int | None = None) -> tuple[Any, Any]:
        left, right = self.left, self.right
        return (
            None if left is None else left.init(time),
            None if right is None else right.init(time),
        )

    def run(
        self, x: Array, state: Any, starts: Array | None, mask: Array | None
    ) -> tuple[Any, Array]:
        after, answers = [], []
        before = (None, None) if state is None else state
        operands = (self.left, self.spec.left), (self.right, self.spec.right)
        for (module, plain), own in zip(operands, before, strict=True):
            if module is None:
                after.append(None)
                answers.append(plain)
                continue
            own, y = module.run(x, own, starts, mask)
            after.append(own)
            answers.append(y)
        return None if state is None else tuple(after), self._combined(*answers)

    def _combined(self, left: Any, right: Any) -> Array:
        if isinstance(left, Array) and isinstance(right, Array):
            dtype = max(left.dtype, right.dtype, key=lambda dtype: jnp.finfo(dtype).bits)
            left, right = left.astype(dtype), right.astype(dtype)
        return left + right if isinstance(self.spec, LayerSumSpec) else left * right


class Vector(AbstractModule):
    """The same vector at every token."""

    spec: VectorSpec = eqx.field(static=True)
    dims: Dims = eqx.field(static=True)
    values: Array

    def init(self, time: int | None = None) -> None:
        return None

    def run(
        self, x: Array, state: Any, starts: Array | None, mask: Array | None
    ) -> tuple[Any, Array]:
        values = self.values.astype(at_least_single(x.dtype))
        values = values if self.spec.trainable else jax.lax.stop_gradient(values)
        return state, jnp.broadcast_to(values, (*x.shape[:-1], len(values)))


class Named(AbstractModule):
    """A part that stands alone; inside a `Tied` a `Reference` takes its place."""

    spec: NamedSpec = eqx.field(static=True)
    dims: Dims = eqx.field(static=True)
    layer: AbstractModule

    def init(self, time: int | None = None) -> Any:
        return self.layer.init(time)

    def run(
        self, x: Array, state: Any, starts: Array | None, mask: Array | None
    ) -> tuple[Any, Array]:
        return self.layer.run(x, state, starts, mask)


class Reference(AbstractModule):
    """Where a part of a `Tied` is used; its parameters and its state are with the `Tied`."""

    spec: NamedSpec = eqx.field(static=True)
    dims: Dims = eqx.field(static=True)

    def init(self, time: int | None = None) -> None:
        return None

    def run(
        self, x: Array, state: Any, starts: Array | None, mask: Array | None
    ) -> tuple[Any, Array]:
        raise SpecError(
            f"{self.spec.name} is a part of a Tied, and runs only inside it.", where=self.spec
        )


class Once:
    """A part during one run of a `Tied`: of one input it is computed once."""

    def __init__(self, spec: NamedSpec, part: AbstractModule, state: Any):
        self.spec, self.part, self.state = spec, part, state
        self.module: Any = None  # the part, once the parts inside it are in their places
        self.seen: list[tuple[Array, Array]] = []

    def run(
        self, x: Array, state: Any, starts: Array | None, mask: Array | None
    ) -> tuple[Any, Array]:
        """The part of an input; its own state stays here."""
        for known, y in self.seen:
            if known is x:
                return state, y
        if self.seen and jax.tree.leaves(self.part.init(1)):
            raise SpecError(
                f"{self.spec.name} is given two different inputs.",
                where=self.spec,
                why="It carries something from token to token, and so can follow one sequence only.",
                instead="one name for each place, or Named around all that leads up to it.",
            )
        after, y = self.module.run(x, self.state, starts, mask)
        self.state = None if self.state is None else after
        self.seen.append((x, y))
        return state, y


class Tied(AbstractModule):
    """A layer whose named parts are each there once."""

    spec: TiedSpec = eqx.field(static=True)
    dims: Dims = eqx.field(static=True)
    layer: AbstractModule
    parts: dict[str, AbstractModule]

    def init(self, time: int | None = None) -> tuple[Any, dict[str, Any]]:
        return self.layer.init(time), {name: part.init(time) for name, part in self.parts.items()}

    def run(
        self, x: Array, state: Any, starts: Array | None, mask: Array | None
    ) -> tuple[Any, Array]:
        before, states = (None, None) if state is None else state
        begins = starts if starts is None or mask is None else starts & mask
        once: dict[str, Once] = {}

        def inserted(node: Any) -> Any:
            if not isinstance(node, Reference):
                return node
            name = node.spec.name
            if name not in once:
                part = self.parts[name]
                once[name] = Once(node.spec, part, None if states is None else states[name])
                once[name].module = _replaced(part, inserted, Reference)
            return once[name]

        after, y = _replaced(self.layer, inserted, Reference).run(x, before, begins, mask)
        if mask is not None:
            y = jnp.where(mask[:, None], y, 0)
        if states is None:
            return None, y.astype(x.dtype)
        return (after, {name: once[name].state for name in states}), y.astype(x.dtype)


def tie(spec: TiedSpec, dims: Dims, layer: AbstractModule) -> Tied:
    """A built layer with each of its named parts in one place only: the first is the one that stays."""
    parts: dict[str, AbstractModule] = {}

    def hoisted(node: Any) -> Any:
        if not isinstance(node, Named):
            return node  # a Repeat keeps its own parts, one a copy
        name, inner = node.spec.name, _replaced(node.layer, hoisted, Named | Repeat)
        if name not in parts:
            parts[name] = inner
        known = parts[name]
        if known.spec != inner.spec or _shapes(known) != _shapes(inner):
            raise SpecError(
                f"Two different parts are called {name}.",
                where=node.spec,
                why=f"The other one is {known.spec!r}."
                if known.spec != inner.spec
                else "They are given inputs of different widths.",
                instead="a name for each.",
            )
        return Reference(spec=node.spec, dims=node.dims)

    return Tied(spec=spec, dims=dims, layer=_replaced(layer, hoisted, Named | Repeat), parts=parts)


def _replaced(module: Any, change: Any, kinds: Any) -> Any:
    return jax.tree.map(change, module, is_leaf=lambda node: isinstance(node, kinds))


def _shapes(module: AbstractModule) -> list[tuple[int, ...]]:
    return [leaf.shape for leaf in jax.tree.leaves(module)]
