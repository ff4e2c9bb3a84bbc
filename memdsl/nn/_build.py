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


class Shape(NamedTuple):
    """What is known of an array between layers: its width, and the sides of an image."""

    width: int | None
    image: tuple[int, int] | None = None
    """`(height, width)`, where the array is `[channel, height, width]` and `width` its channels."""
    flattened: bool = False
    """Whether the width is unknown because an image of unknown sides was flattened."""

    def say(self) -> str:
        """The width, with the sides of an image if they are known."""
        return " × ".join(str(size) for size in (self.width, *(self.image or ())))


class Made(NamedTuple):
    """A module and the shape of what it gives."""

    module: Any
    shape: Shape


@functools.singledispatch
def make(spec: Any, dims: Dims, given: Shape, vocabulary: int | None, key: Array) -> Made:
    """The module of a spec, given the shape of its input."""
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
    image = (dims.height, dims.width) if dims.height and dims.width else None
    module = make(spec, dims, Shape(dims.model, image), vocabulary, key).module

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


def known(given: Shape, spec: Any) -> int:
    """The width of what a layer is given, which must be known."""
    if given.width is None:
        sides = "Dims(..., height=28, width=28), the sides of the first image."
        raise SpecError(
            f"The width of what {type(spec).__name__} is given is not known.",
            where=spec,
            why="An image was flattened whose sides are not known." if given.flattened else None,
            instead=sides if given.flattened else "Dims(model=...), the width of the first input.",
        )
    return given.width


def _dense(spec: specs.Dense, rows: int, columns: int, key: Array) -> tuple[Array, Array | None]:
    """Where the weight and the bias of a `Dense` start."""
    bias = jnp.zeros(rows)
    match spec.start:
        case "zeros":
            weight = jnp.zeros((rows, columns))
        case "uniform":
            first, second = jax.random.split(key)
            bound = 1 / math.sqrt(columns)
            weight = jax.random.uniform(first, (rows, columns), minval=-bound, maxval=bound)
            bias = jax.random.uniform(second, (rows,), minval=-bound, maxval=bound)
        case "xavier":
            bound = math.sqrt(6 / (rows + columns))
            weight = jax.random.uniform(key, (rows, columns), minval=-bound, maxval=bound)
        case "orthogonal":
            weight = jax.nn.initializers.orthogonal()(key, (rows, columns), jnp.float32)
        case _:
            weight = _normal(key, rows, columns)
    return spec.gain * weight, bias if spec.bias else None


def _normal(key: Array, rows: int, columns: int) -> Array:
    return jax.random.normal(key, (rows, columns)) / math.sqrt(columns)


@make.register
def _(spec: specs.Layer, dims: Dims, given: Shape, vocabulary: int | None, key: Array) -> Made:
    dims = dataclasses.replace(dims, model=known(given, spec))

    def inner(layer: specs.AbstractLayer, own: Array) -> tuple[Any, int | None]:
        made = make(layer, dims, given, vocabulary, own)
        return made.module, made.shape.width

    return Made(build_layer(spec, dims, inner, key), given)


@make.register
def _(spec: specs.Dense, dims: Dims, given: Shape, vocabulary: int | None, key: Array) -> Made:
    columns = known(given, spec)
    rows = spec.size or columns
    weight, bias = _dense(spec, rows, columns, key)
    module = blocks.Dense(spec=spec, dims=dims, weight=weight, bias=bias)
    return Made(module, Shape(rows))


@make.register
def _(spec: specs.Conv, dims: Dims, given: Shape, vocabulary: int | None, key: Array) -> Made:
    weight = _normal(key, spec.channels, known(given, spec) * spec.window**2)
    bias = jnp.zeros(spec.channels) if spec.bias else None
    module = images.Conv(spec=spec, dims=dims, weight=weight, bias=bias)
    return Made(module, Shape(spec.channels, images.sides(given.image, spec)))


@make.register
def _(spec: specs.Grown, dims: Dims, given: Shape, vocabulary: int | None, key: Array) -> Made:
    base_key, own = jax.random.split(key)
    base = make(spec.base, dims, given, vocabulary, base_key)
    patch = spec.base.window**2 if isinstance(spec.base, specs.Conv) else 1
    key_size, value_size = known(given, spec) * patch, known(base.shape, spec)
    return Made(grown_layer(spec, dims, base.module, key_size, value_size, key=own), base.shape)


@make.register
def _(spec: specs.Mlp, dims: Dims, given: Shape, vocabulary: int | None, key: Array) -> Made:
    size = known(given, spec)
    inner = int(spec.expand * size)
    first, second, third = jax.random.split(key, 3)
    module = blocks.Mlp(
        spec=spec,
        dims=dims,
        inner=_normal(first, inner, size),
        gate=_normal(second, inner, size),
        outer=_normal(third, size, inner),
    )
    return Made(module, given)


@make.register
def _(spec: specs.Norm, dims: Dims, given: Shape, vocabulary: int | None, key: Array) -> Made:
    width = known(given, spec)
    if width % spec.groups:
        raise SpecError(
            f"{spec.groups} groups do not divide a width of {width}.",
            where=spec,
            at="groups",
            instead="a number of groups that does.",
        )
    size = width // spec.groups if spec.shared_gain else width
    bias = jnp.zeros(size) if spec.bias else None
    module = blocks.Norm(spec=spec, dims=dims, gain=jnp.full(size, spec.start), bias=bias)
    return Made(module, given)


@make.register
def _(spec: specs.Map, dims: Dims, given: Shape, vocabulary: int | None, key: Array) -> Made:
    trained = [slot.path for slot in slots(spec.feature) if isinstance(slot.number, Weight)]
    if trained:
        raise SpecError(
            "A feature between layers has no weights of its own.",
            where=spec,
            at="feature",
            why=f"{trained[0]} is trained, one a head, inside a kernel.",
            instead="Dense(...) for a trained map between layers.",
        )
    size = None if given.width is None else int(spec.feature.size(given.width))
    module = blocks.Map(spec=spec, dims=dims, weights={}, feature=spec.feature)
    return Made(module, given._replace(width=size))


@make.register
def _(spec: specs.Flatten, dims: Dims, given: Shape, vocabulary: int | None, key: Array) -> Made:
    module = blocks.Flatten(spec=spec, dims=dims)
    if given.width is None or given.image is None:
        return Made(module, Shape(None, flattened=True))
    return Made(module, Shape(given.width * math.prod(given.image)))


@make.register
def _(spec: specs.Embed, dims: Dims, given: Shape, vocabulary: int | None, key: Array) -> Made:
    size = dims.need("model", "Embed makes vectors of it")
    weight = 0.02 * jax.random.normal(key, (spec.vocabulary, size))
    return Made(blocks.Embed(spec=spec, dims=dims, weight=weight), Shape(size))


@make.register
def _(spec: specs.Unembed, dims: Dims, given: Shape, vocabulary: int | None, key: Array) -> Made:
    rows = spec.vocabulary or vocabulary
    if rows is None:
        raise SpecError(
            "Unembed has no vocabulary: the model has no Embed.",
            where=spec,
            at="vocabulary",
            instead="Unembed(256), say.",
        )
    weight = _normal(key, rows, known(given, spec))
    return Made(blocks.Unembed(spec=spec, dims=dims, weight=weight), Shape(rows))


@make.register
def _(spec: specs.Residual, dims: Dims, given: Shape, vocabulary: int | None, key: Array) -> Made:
    inner = make(spec.layer, dims, given, vocabulary, key)
    _same(spec, given, inner.shape)
    return Made(blocks.Residual(spec=spec, dims=dims, layer=inner.module), given)


@make.register
def _(spec: specs.Sequence, dims: Dims, given: Shape, vocabulary: int | None, key: Array) -> Made:
    modules = []
    for part, own in zip(spec.layers, jax.random.split(key, len(spec.layers)), strict=True):
        module, given = make(part, dims, given, vocabulary, own)
        modules.append(module)
    return Made(blocks.Sequence(spec=spec, dims=dims, layers=tuple(modules)), given)


@make.register
def _(spec: specs.Repeat, dims: Dims, given: Shape, vocabulary: int | None, key: Array) -> Made:
    def one(own: Array) -> Any:
        return make(spec.layer, dims, given, vocabulary, own).module

    made = eqx.filter_eval_shape(lambda k: make(spec.layer, dims, given, vocabulary, k), key)
    _same(spec, given, made.shape)
    stacked = eqx.filter_vmap(one)(jax.random.split(key, spec.count))
    return Made(blocks.Repeat(spec=spec, dims=dims, stacked=stacked), given)


def _same(spec: Any, before: Shape, after: Shape) -> None:
    if before != after:
        raise SpecError(
            f"{type(spec).__name__} needs a layer that keeps the width, and this one makes "
            f"{before.say()} to {after.say()}.",
            where=spec,
            at="layer",
            instead="a layer whose output is as wide as its input.",
        )
