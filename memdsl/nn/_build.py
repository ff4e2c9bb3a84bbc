"""From a layer spec and sizes to an Equinox module with fresh parameters."""

import dataclasses
import functools
import math
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from .._errors import SpecError
from .._types import at_least_single
from ..plan import Dims
from ..spec import _layer as specs
from ..spec._feature import Weight
from ..spec._slots import slots
from ..state import AbstractState
from . import _blocks as blocks, _images as images
from ._base import AbstractModule
from ._grown import grown_layer
from ._layer import build_layer
from ._signal import check_signal


class Made(NamedTuple):
    """A module and the width of what it gives."""

    module: Any
    width: int | None


@functools.singledispatch
def make(spec: Any, dims: Dims, width: int | None, vocabulary: int | None, key: Array) -> Made:
    """The module of a spec, given the width of its input."""
    raise SpecError(
        f"build takes a layer, and got {spec!r}.",
        instead="Layer(memory, heads=...) for a memory, Map(feature) for a feature.",
    )


def build(
    spec: specs.AbstractLayer, dims: Dims, *, key: Array, dtype: Any = jnp.float32
) -> AbstractModule:
    """An Equinox module for a layer spec, with fresh parameters.

    **Arguments:**

    - `spec`: the layer.
    - `dims`: the sizes; `model` is the width of the first input. `time` bounds unbounded buffers.
    - `key`: a `jax.random.key` for the parameters.
    - `dtype`: of the parameters; what has grown stays float32 (float64 where they are).

    **Returns:** a module: `layer(x)` for a sequence `[time, model]`, `layer.init()`,
    `layer.step(state, token)` and `layer.prefill(x, state)` for the same in pieces.

    **Raises:** `SpecError` for a size that is missing or does not fit, or a memory no rule can run.

    ??? example

        ```python
        >>> import jax
        >>> import memdsl as md
        >>> memory = md.Memory(md.Dot().pullback(md.L2Norm()), md.Delta(md.FromInput("sigmoid")))
        >>> layer = md.build(md.Layer(memory, heads=2), md.Dims(model=8), key=jax.random.key(0))
        >>> layer(jax.numpy.ones((5, 8))).shape
        (5, 8)

        ```
    """
    if isinstance(spec, specs.AbstractLayer):
        check_signal(spec)
    vocabulary = next((s.vocabulary for s in _walk(spec) if isinstance(s, specs.Embed)), None)
    module = make(spec, dims, dims.model, vocabulary, key).module

    def cast(leaf: Any, wanted: Any = dtype) -> Any:
        if isinstance(leaf, AbstractState):
            return jax.tree.map(lambda x: cast(x, at_least_single(dtype)), leaf)
        floating = eqx.is_array(leaf) and jnp.issubdtype(leaf.dtype, jnp.floating)
        return leaf.astype(wanted) if floating else leaf

    return jax.tree.map(cast, module, is_leaf=lambda x: isinstance(x, AbstractState))


def _walk(spec: Any) -> list[Any]:
    inner = [spec]
    for name in ("layer", "base"):
        part = vars(spec).get(name)
        inner += _walk(part) if isinstance(part, specs.AbstractLayer) else []
    for part in vars(spec).get("layers", ()):
        inner += _walk(part)
    return inner


def _known(width: int | None, spec: Any) -> int:
    if width is None:
        raise SpecError(
            f"The width of what {type(spec).__name__} is given is not known.",
            where=spec,
            instead="Dims(model=...), the width of the first input.",
        )
    return width


def _normal(key: Array, rows: int, columns: int) -> Array:
    return jax.random.normal(key, (rows, columns)) / math.sqrt(columns)


@make.register
def _(spec: specs.Layer, dims: Dims, width: int | None, vocabulary: int | None, key: Array) -> Made:
    dims = dataclasses.replace(dims, model=_known(width, spec))
    return Made(build_layer(spec, dims, key), width)


@make.register
def _(spec: specs.Dense, dims: Dims, width: int | None, vocabulary: int | None, key: Array) -> Made:
    columns = _known(width, spec)
    rows = spec.size or columns
    weight = _normal(key, rows, columns)
    weight = jnp.zeros_like(weight) if spec.start == "zeros" else weight
    bias = jnp.zeros(rows) if spec.bias else None
    return Made(blocks.Dense(spec=spec, dims=dims, weight=weight, bias=bias), rows)


@make.register
def _(spec: specs.Conv, dims: Dims, width: int | None, vocabulary: int | None, key: Array) -> Made:
    weight = _normal(key, spec.channels, _known(width, spec) * spec.window**2)
    bias = jnp.zeros(spec.channels) if spec.bias else None
    module = images.Conv(spec=spec, dims=dims, weight=weight, bias=bias)
    return Made(module, spec.channels)


@make.register
def _(spec: specs.Grown, dims: Dims, width: int | None, vocabulary: int | None, key: Array) -> Made:
    base_key, own = jax.random.split(key)
    base = make(spec.base, dims, width, vocabulary, base_key)
    patch = spec.base.window**2 if isinstance(spec.base, specs.Conv) else 1
    key_size, value_size = _known(width, spec) * patch, _known(base.width, spec)
    return Made(grown_layer(spec, dims, base.module, key_size, value_size, key=own), base.width)


@make.register
def _(spec: specs.Mlp, dims: Dims, width: int | None, vocabulary: int | None, key: Array) -> Made:
    size = _known(width, spec)
    inner = int(spec.expand * size)
    first, second, third = jax.random.split(key, 3)
    module = blocks.Mlp(
        spec=spec,
        dims=dims,
        inner=_normal(first, inner, size),
        gate=_normal(second, inner, size),
        outer=_normal(third, size, inner),
    )
    return Made(module, size)


@make.register
def _(spec: specs.Norm, dims: Dims, width: int | None, vocabulary: int | None, key: Array) -> Made:
    return Made(blocks.Norm(spec=spec, dims=dims, gain=jnp.ones(_known(width, spec))), width)


@make.register
def _(spec: specs.Map, dims: Dims, width: int | None, vocabulary: int | None, key: Array) -> Made:
    trained = [slot.path for slot in slots(spec.feature) if isinstance(slot.number, Weight)]
    if trained:
        raise SpecError(
            "A feature between layers has no weights of its own.",
            where=spec,
            at="feature",
            why=f"{trained[0]} is trained, one a head, inside a kernel.",
            instead="Dense(...) for a trained map between layers.",
        )
    size = None if width is None else spec.feature.size(width)
    return Made(blocks.Map(spec=spec, dims=dims, weights={}, feature=spec.feature), size)


@make.register
def _(
    spec: specs.Flatten, dims: Dims, width: int | None, vocabulary: int | None, key: Array
) -> Made:
    return Made(blocks.Flatten(spec=spec, dims=dims), width)


@make.register
def _(spec: specs.Embed, dims: Dims, width: int | None, vocabulary: int | None, key: Array) -> Made:
    size = dims.need("model", "Embed makes vectors of it")
    weight = 0.02 * jax.random.normal(key, (spec.vocabulary, size))
    return Made(blocks.Embed(spec=spec, dims=dims, weight=weight), size)


@make.register
def _(
    spec: specs.Unembed, dims: Dims, width: int | None, vocabulary: int | None, key: Array
) -> Made:
    rows = spec.vocabulary or vocabulary
    if rows is None:
        raise SpecError(
            "Unembed has no vocabulary: the model has no Embed.",
            where=spec,
            at="vocabulary",
            instead="Unembed(256), say.",
        )
    weight = _normal(key, rows, _known(width, spec))
    return Made(blocks.Unembed(spec=spec, dims=dims, weight=weight), rows)


@make.register
def _(
    spec: specs.Residual, dims: Dims, width: int | None, vocabulary: int | None, key: Array
) -> Made:
    inner = make(spec.layer, dims, width, vocabulary, key)
    _same(spec, width, inner.width)
    return Made(blocks.Residual(spec=spec, dims=dims, layer=inner.module), width)


@make.register
def _(
    spec: specs.Sequence, dims: Dims, width: int | None, vocabulary: int | None, key: Array
) -> Made:
    modules = []
    for part, own in zip(spec.layers, jax.random.split(key, len(spec.layers)), strict=True):
        module, width = make(part, dims, width, vocabulary, own)
        modules.append(module)
    return Made(blocks.Sequence(spec=spec, dims=dims, layers=tuple(modules)), width)


@make.register
def _(
    spec: specs.Repeat, dims: Dims, width: int | None, vocabulary: int | None, key: Array
) -> Made:
    def one(own: Array) -> Any:
        return make(spec.layer, dims, width, vocabulary, own).module

    shape = eqx.filter_eval_shape(lambda k: make(spec.layer, dims, width, vocabulary, k), key)
    _same(spec, width, shape.width)
    stacked = eqx.filter_vmap(one)(jax.random.split(key, spec.count))
    return Made(blocks.Repeat(spec=spec, dims=dims, stacked=stacked), width)


def _same(spec: Any, before: int | None, after: int | None) -> None:
    if before != after:
        raise SpecError(
            f"{type(spec).__name__} needs a layer that keeps the width, and this one makes "
            f"{before} to {after}.",
            where=spec,
            at="layer",
            instead="a layer whose output is as wide as its input.",
        )
