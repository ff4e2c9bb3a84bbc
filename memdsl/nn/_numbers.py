"""The numbers of a memory as parameters: made at build time, evaluated at every call."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from .._errors import SpecError
from .._types import at_least_single
from ..plan._channels import channels, feature_sizes
from ..plan._tree import leaves as leaves_of
from ..spec._computed import Computed
from ..spec._feature import Weight
from ..spec._layer_base import AbstractLayer
from ..spec._memory import AbstractMemory, Network
from ..spec._number import FromInput, Knob, Learned, leaves, Log, Schedule
from ..spec._slots import evaluate, Slot, slots


Make = Callable[[AbstractLayer, Array], tuple[Any, int | None]]
"""Builds a layer on the input, given a key: `(module, width of what it gives)`."""


def _cannot(layer: AbstractLayer, key: Array) -> tuple[Any, int | None]:
    raise SpecError("Nothing computes numbers here.", where=layer, instead="Learned(x) or a float.")


def init_numbers(
    memory: AbstractMemory,
    heads: int,
    model: int,
    key_size: int,
    value_size: int,
    key: Array,
    make: Make = _cannot,
) -> dict[str, tuple[Any, ...]]:
    """The parameters of every number, by path: one entry a leaf of its sum or product.

    Of a `Computed` number it is a module, which `make` builds.
    """
    sizes = dict(channels(memory, key_size, value_size))
    inputs = dict(feature_sizes(memory, key_size, value_size))
    found = ((f"{p}." if p else "", leaf) for p, leaf in leaves_of(memory))
    networks = {prefix: leaf for prefix, leaf in found if isinstance(leaf, Network)}
    made: dict[str, tuple[Any, ...]] = {}
    for slot in slots(memory):
        shape = _shape(slot, sizes, inputs, key_size, value_size)
        several = _pairs(slot, sizes)
        parameters = []
        for leaf in leaves(slot.number):
            key, own = jax.random.split(key)
            if isinstance(leaf, Computed):
                module, width = make(leaf.layer, own)
                _check_width(leaf, width, heads, shape, several)
                parameters.append(module)
                continue
            if slot.per == "parameters":
                prefix = _leaf_of(slot.path, sizes) or ""
                of_key, of_value, _ = sizes[prefix]
                parameters.append(_init_network(networks[prefix], leaf, heads, of_key, of_value))
                continue
            parameters.append(_init_leaf(leaf, slot, heads, shape, several, model, own))
        made[slot.path] = tuple(parameters)
    return made


def _check_width(
    leaf: Computed, width: int | None, heads: int, shape: tuple[int, ...], pairs: int
) -> None:
    count = 1 if leaf.per == "layer" else heads
    channels = math.prod(shape) if leaf.per.endswith("channel") else 1
    if width != pairs * count * channels:
        factors = [f"{count} heads"] if leaf.per != "layer" else []
        factors = [f"{pairs} pairs", *factors] if pairs > 1 else factors
        factors += [f"{channels} channels"] if leaf.per.endswith("channel") else []
        raise SpecError(
            f"The numbers that this layer computes are {width}, and {pairs * count * channels} are "
            "asked for.",
            where=leaf,
            at="layer",
            why=f"A number per {leaf.per} here is {' times '.join(factors) or 'one'}.",
            instead=f"a layer that is {pairs * count * channels} wide.",
        )


def _leaf_of(path: str, sizes: dict[str, Any]) -> str | None:
    """The longest prefix of a path that is a leaf of the memory."""
    found = [prefix for prefix in sizes if path.startswith(prefix)]
    return max(found, key=len) if found else None


def _pairs(slot: Slot, sizes: dict[str, tuple[int, int, int]]) -> int:
    prefix = _leaf_of(slot.path, sizes)
    of_write = prefix is not None and slot.path.removeprefix(prefix).startswith("write.")
    return sizes[prefix][2] if of_write and prefix is not None else 1


def _shape(
    slot: Slot,
    sizes: dict[str, tuple[int, int, int]],
    inputs: dict[str, int],
    key_size: int,
    value_size: int,
) -> tuple[int, ...]:
    """The shape of one head's number, without time."""
    prefix = _leaf_of(slot.path, sizes)
    of_key, of_value, _ = sizes.get(prefix or "", (key_size, value_size, 1))
    if isinstance(slot.number, Weight):
        size = inputs[slot.path.rpartition(".")[0]]
        rows = slot.number.rows or size
        return (rows,) if slot.number.vector else (rows, size)
    return {
        "key_channel": (of_key,),
        "value_channel": (of_value,),
        "state": (of_key, of_value),
    }.get(slot.per, ())


def _init_leaf(
    leaf: Any, slot: Slot, heads: int, shape: tuple[int, ...], pairs: int, model: int, key: Array
) -> Any:
    match leaf:
        case Knob():
            if isinstance(leaf.value, tuple) and len(leaf.value) != heads:
                raise SpecError(
                    f"This knob has {len(leaf.value)} numbers, and the layer {heads} heads.",
                    where=leaf,
                    at="value",
                    instead="one number, or one a head.",
                )
            return jnp.asarray(leaf.value, jnp.float32)
        case Learned() if slot.per == "state":
            scale = leaf.start / math.sqrt(shape[0])
            return scale * jax.random.normal(key, (heads, *shape), jnp.float32)
        case Learned():
            own = () if leaf.per == "layer" else (heads,) if leaf.per == "head" else (heads, *shape)
            return jnp.full(own, leaf.raw(), jnp.float32)
        case FromInput():
            own = shape if leaf.per.endswith("channel") else ()
            return _init_projection(leaf, heads, pairs * math.prod(own), model, key)
        case Weight():
            return _init_weight(leaf, heads, shape, key)
        case Schedule():
            return None
        case _:
            return None  # a plain float inside a sum or product


def _init_network(network: Network, leaf: Learned, heads: int, key: int, value: int) -> Array:
    """A network a head: the one that its seed draws, the next seeds for the other heads."""
    drawn = [
        network.replace(seed=network.seed + head).start(key, value)
        for head in range(1 if leaf.per == "layer" else heads)
    ]
    return leaf.start * jnp.broadcast_to(
        jnp.asarray(np.stack(drawn), jnp.float32), (heads, len(drawn[0]))
    )


def _init_projection(leaf: FromInput, heads: int, width: int, model: int, key: Array) -> Any:
    count = 1 if leaf.per == "layer" else heads
    first, second, third, fourth = jax.random.split(key, 4)
    rows = count * width
    if leaf.rank is None:
        weights: tuple[Array, ...] = (jax.random.normal(first, (rows, model)) / math.sqrt(model),)
    else:
        down = jax.random.normal(first, (leaf.rank, model)) / math.sqrt(model)
        weights = (down, jax.random.normal(second, (rows, leaf.rank)) / math.sqrt(leaf.rank))
    if leaf.squash != "dt":
        return weights, jnp.full((rows,), leaf.bias, jnp.float32), None
    # Mamba's gate: a log-uniform step in [1e-3, 0.1], and a rate of decay in [1, 16]
    dt = jnp.exp(jax.random.uniform(third, (rows,), minval=math.log(1e-3), maxval=math.log(0.1)))
    dt = jnp.maximum(dt, 1e-4)
    a = jnp.log(jax.random.uniform(fourth, (count,), minval=1.0, maxval=16.0))
    return weights, dt + jnp.log(-jnp.expm1(-dt)), a


def _init_weight(leaf: Weight, heads: int, shape: tuple[int, ...], key: Array) -> Array:
    match leaf.start:
        case "zeros":
            return jnp.zeros((heads, *shape), jnp.float32)
        case "ones":
            return jnp.ones((heads, *shape), jnp.float32)
        case "identity":
            return jnp.broadcast_to(jnp.eye(*shape, dtype=jnp.float32), (heads, *shape))
        case _:
            return jax.nn.initializers.orthogonal(column_axis=-1)(key, (heads, *shape), jnp.float32)


def evaluate_constants(
    memory: AbstractMemory, parameters: Mapping[str, tuple[Any, ...]], heads: int, dtype: Any
) -> dict[str, Any]:
    """The values of those numbers that do not change from token to token, by path."""
    nothing, steps = jnp.zeros((0, 0), dtype), jnp.zeros(0, jnp.int32)
    fixed = [slot for slot in slots(memory) if not slot.time]
    return {s.path: _slot_value(memory, s, parameters, nothing, heads, steps, dtype) for s in fixed}


def evaluate_numbers(
    memory: AbstractMemory,
    parameters: Mapping[str, tuple[Any, ...]],
    x: Array,
    heads: int,
    steps: Array,
    dtype: Any,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """`(constants, tokens)`: values by path with a leading axis of heads; tokens then have time.

    The numbers of a write of several pairs a token have `time * pairs` rows.
    """
    constants: dict[str, Any] = {}
    tokens: dict[str, Any] = {}
    for slot in slots(memory):
        value = _slot_value(memory, slot, parameters, x, heads, steps, dtype)
        (tokens if slot.time else constants)[slot.path] = value
    return constants, tokens


def _slot_value(
    memory: AbstractMemory,
    slot: Slot,
    parameters: Mapping[str, tuple[Any, ...]],
    x: Array,
    heads: int,
    steps: Array,
    dtype: Any,
) -> Any:
    table = dict(zip(map(id, leaves(slot.number)), parameters[slot.path], strict=True))
    pairs = _pairs(slot, dict(channels(memory, 1, 1)))

    def of(leaf: Any) -> Any:
        value = _leaf_value(leaf, table.get(id(leaf)), x, heads, steps, slot, pairs)
        if isinstance(value, Log):
            return Log(value.log.astype(dtype))
        return jnp.asarray(value, dtype)

    return evaluate(slot.number, of, slot.log)


def _leaf_value(
    leaf: Any, parameter: Any, x: Array, heads: int, steps: Array, slot: Slot, pairs: int
) -> Any:
    wide = {"key_channel", "value_channel"}
    match leaf:
        case Knob():
            value = jax.lax.stop_gradient(parameter)
            return _over_heads(value, heads, slot)
        case Learned():
            value = (
                parameter
                if slot.per in ("state", "parameters")
                else leaf.floor + _SQUASH[leaf.squash](parameter)
            )
            value = value if value.ndim else jnp.broadcast_to(value, (heads,))
            value = value[:, None] if slot.per in wide and value.ndim == 1 else value
            return value[:, None] if slot.time else value
        case FromInput():
            return _from_input(leaf, parameter, x, heads, slot, pairs)
        case Computed():
            shaped = _shaped(leaf, _by_head(leaf, parameter, heads, pairs), heads, slot, pairs)
            return Log(shaped) if leaf.log else shaped
        case Weight():
            return parameter
        case Schedule():
            value = jnp.broadcast_to(
                leaf.function()(steps.astype(at_least_single(x.dtype))), (heads, len(steps))
            )
            return value[..., None] if slot.per in wide else value
        case int() | float():
            return _over_heads(jnp.asarray(leaf, jnp.float32), heads, slot)
        case _:
            raise SpecError(f"{leaf!r} has no value in a layer.", where=leaf)


def _over_heads(value: Array, heads: int, slot: Slot) -> Array:
    extra = (1,) * (slot.time + (slot.per in ("key_channel", "value_channel")))
    return jnp.broadcast_to(value.reshape(-1, *extra), (heads, *extra))


def _from_input(
    leaf: FromInput, parameter: Any, x: Array, heads: int, slot: Slot, pairs: int
) -> Any:
    weights, bias, a = parameter
    z = x
    for weight in weights:
        z = z @ weight.astype(x.dtype).T
    wide = at_least_single(x.dtype)
    z = z.astype(wide) + bias.astype(wide)[None, :]
    count = 1 if leaf.per == "layer" else heads
    z = jnp.moveaxis(z.reshape(len(x), count, z.shape[1] // count), 1, 0)
    # [heads, time, pairs * channels]
    if a is not None:
        z = -jnp.exp(a.astype(wide))[:, None, None] * jax.nn.softplus(z)
        z = Log(z / leaf.temperature)
    elif slot.log and leaf.squash == "sigmoid":
        z = Log(jax.nn.log_sigmoid(z) / leaf.temperature + math.log(leaf.scale))
    else:
        z = leaf.scale * _SQUASH[leaf.squash](z)

    if isinstance(z, Log):
        return Log(_shaped(leaf, z.log, heads, slot, pairs))
    return _shaped(leaf, z, heads, slot, pairs)


def _by_head(leaf: Computed, y: Array, heads: int, pairs: int) -> Array:
    """What a layer gave, pair after pair and head after head, as `[heads, time, pairs * channels]`."""
    count = 1 if leaf.per == "layer" else heads
    y = jnp.moveaxis(y.reshape(len(y), pairs, count, y.shape[1] // (pairs * count)), 2, 0)
    return y.reshape(count, y.shape[1], pairs * y.shape[3])


def _shaped(leaf: Any, array: Array, heads: int, slot: Slot, pairs: int) -> Array:
    """`[heads, time, pairs * channels]` as `[heads, time * pairs]`, with channels behind if there are."""
    time = array.shape[1]
    array = jnp.broadcast_to(array, (heads, *array.shape[1:]))
    if leaf.per.endswith("channel"):  # pairs go along time
        return array.reshape(heads, time * pairs, array.shape[-1] // pairs)
    array = array.reshape(heads, time * pairs)
    return array[..., None] if slot.per in ("key_channel", "value_channel") else array


_SQUASH = {
    "identity": lambda z: z,
    "exp": jnp.exp,
    "softplus": jax.nn.softplus,
    "sigmoid": jax.nn.sigmoid,
    "tanh": jnp.tanh,
}
