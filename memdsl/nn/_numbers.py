"""The numbers of a memory as parameters: made at build time, evaluated at every call."""

import math
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from .._errors import SpecError
from .._types import at_least_single
from ..plan._tree import leaves as leaves_of, parts
from ..spec._facts import pairs_per_token
from ..spec._feature import AbstractFeature, Then, Weight
from ..spec._kernel import AbstractKernel, Pullback
from ..spec._loss import After
from ..spec._memory import AbstractMemory, Mapped, Memory, Network, Transposed
from ..spec._number import FromInput, Knob, Learned, leaves, Log, Schedule
from ..spec._slots import evaluate, key_channels, Slot, slots


def channels(
    memory: AbstractMemory, key_size: int, value_size: int, prefix: str = ""
) -> Iterator[tuple[str, tuple[int, int, int]]]:
    """`(path, (key channels, value channels, pairs a token))` of every leaf."""
    if isinstance(memory, Memory):
        wide = key_channels(memory, key_size)
        yield prefix, (wide, value_size, pairs_per_token(memory.write))
    if isinstance(memory, Network):
        yield prefix, (key_size, value_size, 1)
    if isinstance(memory, Transposed):
        key_size, value_size = value_size, key_size
    for name, part in parts(memory):
        yield from channels(part, key_size, value_size, f"{prefix}{name}.")


def feature_sizes(
    memory: AbstractMemory, key_size: int, value_size: int, prefix: str = ""
) -> Iterator[tuple[str, int]]:
    """`(path of a feature, the size of what it is given)`."""

    def inside(feature: AbstractFeature, size: int, path: str) -> Iterator[tuple[str, int]]:
        yield path, size
        if isinstance(feature, Then):
            yield from inside(feature.first, size, f"{path}.first")
            yield from inside(feature.second, feature.first.size(size), f"{path}.second")

    def kernels(kernel: AbstractKernel, size: int, path: str) -> Iterator[tuple[str, int]]:
        if isinstance(kernel, Pullback):
            yield from inside(kernel.feature, size, f"{path}.feature")
            size = kernel.feature.size(size)
        for name in ("kernel", "inner", "left", "right"):
            part = vars(kernel).get(name)
            if isinstance(part, AbstractKernel):
                yield from kernels(part, size, f"{path}.{name}")

    if isinstance(memory, Memory):
        yield from kernels(memory.kernel, key_size, f"{prefix}kernel")
    if isinstance(memory, Network):
        yield from inside(memory.before, key_size, f"{prefix}before")
        yield from inside(memory.after, value_size, f"{prefix}after")
    loss = vars(vars(memory).get("write", memory)).get("loss")
    path = f"{prefix}write.loss"
    while isinstance(loss, After):
        yield from inside(loss.feature, value_size, f"{path}.feature")
        loss, path = loss.loss, f"{path}.loss"
    if isinstance(memory, Mapped):
        yield from inside(memory.feature, value_size, f"{prefix}feature")
    if isinstance(memory, Transposed):
        key_size, value_size = value_size, key_size
    for name, part in parts(memory):
        yield from feature_sizes(part, key_size, value_size, f"{prefix}{name}.")


def init_numbers(
    memory: AbstractMemory, heads: int, model: int, key_size: int, value_size: int, key: Array
) -> dict[str, tuple[Any, ...]]:
    """The parameters of every number, by path: one entry a leaf of its sum or product."""
    sizes = dict(channels(memory, key_size, value_size))
    inputs = dict(feature_sizes(memory, key_size, value_size))
    found = ((f"{p}." if p else "", leaf) for p, leaf, _ in leaves_of(memory))
    networks = {prefix: leaf for prefix, leaf in found if isinstance(leaf, Network)}
    made: dict[str, tuple[Any, ...]] = {}
    for slot in slots(memory):
        shape = _shape(slot, sizes, inputs, key_size, value_size)
        network = networks.get(_leaf_of(slot.path, sizes) or "")
        several = _pairs(slot, sizes)
        parameters = []
        for leaf in leaves(slot.number):
            key, own = jax.random.split(key)
            if network is not None and slot.per == "parameters":
                key_channels, value_channels, _ = sizes[_leaf_of(slot.path, sizes) or ""]
                parameters.append(_init_network(network, leaf, heads, key_channels, value_channels))
            else:
                parameters.append(_init_leaf(leaf, slot, heads, shape, several, model, own))
        made[slot.path] = tuple(parameters)
    return made


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


def evaluate_numbers(
    memory: AbstractMemory,
    parameters: dict[str, tuple[Any, ...]],
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
    sizes = dict(channels(memory, 1, 1))
    for slot in slots(memory):
        table = dict(zip(map(id, leaves(slot.number)), parameters[slot.path], strict=True))

        def of(leaf: Any, table: Any = table, slot: Slot = slot) -> Any:
            pairs = _pairs(slot, sizes)
            value = _leaf_value(leaf, table.get(id(leaf)), x, heads, steps, slot, pairs)
            if isinstance(value, Log):
                return Log(value.log.astype(dtype))
            return jnp.asarray(value, dtype)

        (tokens if slot.time else constants)[slot.path] = evaluate(slot.number, of, slot.log)
    return constants, tokens


def _leaf_value(
    leaf: Any, parameter: Any, x: Array, heads: int, steps: Array, slot: Slot, pairs: int
) -> Any:
    wide, whole = {"key_channel", "value_channel"}, {"state", "parameters"}
    match leaf:
        case Knob():
            value = jax.lax.stop_gradient(parameter)
            return _over_heads(value, heads, slot)
        case Learned():
            value = parameter if slot.per in whole else leaf.floor + _SQUASH[leaf.squash](parameter)
            value = value if value.ndim else jnp.broadcast_to(value, (heads,))
            value = value[:, None] if slot.per in wide and value.ndim == 1 else value
            return value[:, None] if slot.time else value
        case FromInput():
            return _from_input(leaf, parameter, x, heads, slot, pairs)
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
    return jnp.broadcast_to(value, (heads, *extra))


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
    time = len(x)
    z = jnp.moveaxis(
        z.reshape(time, count, z.shape[1] // count), 1, 0
    )  # [heads, time, pairs * channels]
    if a is not None:
        z = -jnp.exp(a.astype(wide))[:, None, None] * jax.nn.softplus(z)
        z = Log(z / leaf.temperature)
    elif slot.log and leaf.squash == "sigmoid":
        z = Log(jax.nn.log_sigmoid(z) / leaf.temperature + math.log(leaf.scale))
    else:
        z = leaf.scale * _SQUASH[leaf.squash](z)

    def shaped(array: Array) -> Array:
        array = jnp.broadcast_to(array, (heads, *array.shape[1:]))
        if leaf.per.endswith("channel"):  # pairs go along time
            return array.reshape(heads, time * pairs, array.shape[-1] // pairs)
        array = array.reshape(heads, time * pairs)
        return array[..., None] if slot.per in ("key_channel", "value_channel") else array

    return Log(shaped(z.log)) if isinstance(z, Log) else shaped(z)


_SQUASH = {
    "identity": lambda z: z,
    "exp": jnp.exp,
    "softplus": jax.nn.softplus,
    "sigmoid": jax.nn.sigmoid,
    "tanh": jnp.tanh,
}
