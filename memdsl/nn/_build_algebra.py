"""How the layers of the algebra are built: sums, products, parts, vectors, and memories of layers."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from .._errors import SpecError
from ..plan import Dims, plan
from ..plan._tree import leaves, lower
from ..spec import _layer as specs
from ..spec._facts import needed_keys, pairs_per_token
from ..spec._rewired import answer_size
from ..spec._slots import resolve
from ..spec._streams import Sizes
from . import _algebra as algebra, _time as time
from ._build import known, Made, make, Shape
from ._numbers import init_numbers


def _pointwise(spec: Any, dims: Dims, given: Shape, vocabulary: int | None, key: Array) -> Made:
    modules, widths = [], []
    for operand, own in zip((spec.left, spec.right), jax.random.split(key), strict=True):
        plain = isinstance(operand, int | float)
        made = None if plain else make(operand, dims, given, vocabulary, own)
        modules.append(None if made is None else made.module)
        widths.append(1 if made is None else known(made.shape, operand))
    if widths[0] != widths[1] and 1 not in widths:
        raise SpecError(
            f"{widths[0]} numbers cannot be put beside {widths[1]}.",
            where=spec,
            at="right",
            instead="layers of one width, or Spread(n) to make one a head one a channel.",
        )
    module = algebra.Pointwise(spec=spec, dims=dims, left=modules[0], right=modules[1])
    return Made(module, Shape(max(widths)))


make.register(specs.LayerSum)(_pointwise)
make.register(specs.LayerProduct)(_pointwise)


@make.register
def _(spec: specs.Named, dims: Dims, given: Shape, vocabulary: int | None, key: Array) -> Made:
    inner = make(spec.layer, dims, given, vocabulary, key)
    return Made(algebra.Named(spec=spec, dims=dims, layer=inner.module), inner.shape)


@make.register
def _(spec: specs.Tied, dims: Dims, given: Shape, vocabulary: int | None, key: Array) -> Made:
    inner = make(spec.layer, dims, given, vocabulary, key)
    return Made(algebra.tie(spec, dims, inner.module), inner.shape)


@make.register
def _(spec: specs.Vector, dims: Dims, given: Shape, vocabulary: int | None, key: Array) -> Made:
    start = spec.start
    if isinstance(start, specs.Uniform):
        values = _drawn(start, spec.size, key)
    else:
        several = jnp.asarray(start if isinstance(start, tuple) else (start,), jnp.float32)
        values = jnp.tile(several, spec.size // len(several))
    return Made(algebra.Vector(spec=spec, dims=dims, values=values), Shape(spec.size))


def _drawn(start: specs.Uniform, size: int, key: Array) -> Array:
    """`p` with `through(p)`, or its logarithm, uniform."""
    ends = (math.log(start.low), math.log(start.high)) if start.log else (start.low, start.high)
    drawn = jax.random.uniform(key, (size,), minval=ends[0], maxval=ends[1])
    if start.through == "exp":
        tiny = jnp.finfo(drawn.dtype).tiny
        return drawn if start.log else jnp.log(jnp.maximum(drawn, tiny))
    drawn = jnp.exp(drawn) if start.log else drawn
    return drawn + jnp.log(-jnp.expm1(-drawn)) if start.through == "softplus" else drawn


@make.register
def _(spec: specs.Shift, dims: Dims, given: Shape, vocabulary: int | None, key: Array) -> Made:
    module = time.Shift(spec=spec, dims=dims, size=known(given, spec), precision=jnp.zeros(0))
    return Made(module, given)


@make.register
def _(
    spec: specs.ShortConvolution, dims: Dims, given: Shape, vocabulary: int | None, key: Array
) -> Made:
    channels, bound = known(given, spec), 1 / math.sqrt(spec.width)
    first, second = jax.random.split(key)
    weight = jax.random.uniform(first, (channels, spec.width), minval=-bound, maxval=bound)
    bias = None
    if spec.bias:
        bias = jax.random.uniform(second, (channels,), minval=-bound, maxval=bound)
    module = time.ShortConvolution(spec=spec, dims=dims, weight=weight, bias=bias)
    return Made(module, given)


@make.register
def _(spec: specs.Rotary, dims: Dims, given: Shape, vocabulary: int | None, key: Array) -> Made:
    if known(given, spec) % spec.size:
        raise SpecError(
            f"Heads of {spec.size} do not divide a width of {given.width}.",
            where=spec,
            at="size",
            instead="the size of one head.",
        )
    return Made(time.Rotary(spec=spec, dims=dims), given)


@make.register
def _(spec: specs.Recall, dims: Dims, given: Shape, vocabulary: int | None, key: Array) -> Made:
    found = [leaf for _, leaf in leaves(lower(spec.memory))]
    pairs = max((pairs_per_token(leaf.write) for leaf in found), default=1)
    wanted = {name.removesuffix("_keys") for name in needed_keys(spec.memory)}
    numbers_key, *keys = jax.random.split(key, 6)
    streams, widths = {}, {}
    for name, own in zip(("query", "key", "value", "erase", "remove"), keys, strict=True):
        layer = getattr(spec, name)
        if name in ("erase", "remove") and (layer is None) != (name not in wanted):
            raise SpecError(
                f"The memory {'asks for' if layer is None else 'has no'} {name} keys.",
                where=spec,
                at=name,
                instead=f"{name}=..., a layer, exactly where the memory takes {name}_keys.",
            )
        if layer is not None:
            made = make(layer, dims, given, vocabulary, own)
            streams[name], widths[name] = made.module, known(made.shape, layer)
    own = _sizes(spec, dims, given, widths, pairs)
    memory = lower(resolve(spec.memory, own.sizes()))
    plan(memory, dataclasses.replace(own, time=own.time or 64))  # an illegal memory is refused here

    def inner(layer: specs.AbstractLayer, own: Array) -> tuple[Any, int | None]:
        made = make(layer, dims, given, vocabulary, own)
        return made.module, made.shape.width

    key_size, value_size, heads = own.key or 0, own.value or 0, own.heads
    model = known(given, spec)
    module = time.Recall(
        spec=spec,
        dims=own,
        memory=memory,
        pairs=pairs,
        streams=streams,
        numbers=init_numbers(memory, heads, model, key_size, value_size, numbers_key, inner),
        precision=jnp.zeros(0),
    )
    width = answer_size(memory, Sizes(key_size, value_size, key_size)) or 0
    return Made(module, Shape(heads * width))


def _sizes(
    spec: specs.Recall, dims: Dims, given: Shape, widths: dict[str, int], pairs: int
) -> Dims:
    """The sizes of a head, checked against the width of every stream."""
    heads = spec.heads
    key_size = spec.key_size or widths["query"] // heads or 1
    value_size = spec.value_size or widths["value"] // (heads * pairs) or 1
    for name, width in widths.items():
        size = value_size if name == "value" else key_size
        own = width // (size * (1 if name == "query" else pairs))
        if own * size * (1 if name == "query" else pairs) != width or not own or heads % own:
            several = f" and {pairs} pairs" if pairs > 1 else ""
            raise SpecError(
                f"A {name} stream of {width} is none of {heads} heads of {size}{several}.",
                where=spec,
                at=name,
                why="It must be a whole number of heads, which divides that of the memory.",
                instead=f"{name}=Dense({heads * size * pairs}), say, or key_size= and value_size=.",
            )
    return dataclasses.replace(dims, model=given.width, key=key_size, value=value_size, heads=heads)
