"""Layers that look at more than one token: the token before, a few, their places, a memory."""

from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from .._types import at_least_single
from ..plan import Dims
from ..spec._layer import (
    Recall as RecallSpec,
    Rotary as RotarySpec,
    Shift as ShiftSpec,
    ShortConvolution as ShortConvolutionSpec,
)
from ..spec._memory import AbstractMemory
from ._base import AbstractModule
from ._convolution import convolve
from ._heads import computed_states, empty_heads, run_computed, run_heads


class Shift(AbstractModule):
    """The token before."""

    spec: ShiftSpec = eqx.field(static=True)
    dims: Dims = eqx.field(static=True)
    size: int = eqx.field(static=True)
    precision: Array
    """Of no numbers: its dtype says in what precision a fresh state is."""

    def init(self, time: int | None = None) -> Array:
        return jnp.zeros((1, self.size), at_least_single(self.precision.dtype))

    def run(
        self, x: Array, state: Array | None, starts: Array | None, mask: Array | None
    ) -> tuple[Array, Array]:
        tail = jnp.zeros((1, self.size), x.dtype) if state is None else state
        taps = jnp.broadcast_to(jnp.asarray([1, 0], x.dtype), (self.size, 2))
        y, after = convolve(x, taps, tail, starts, mask)
        return after if state is None else after.astype(state.dtype), y


class ShortConvolution(AbstractModule):
    """A causal convolution of every channel by itself."""

    spec: ShortConvolutionSpec = eqx.field(static=True)
    dims: Dims = eqx.field(static=True)
    weight: Array
    bias: Array | None

    def init(self, time: int | None = None) -> Array:
        channels, width = self.weight.shape
        return jnp.zeros((width - 1, channels), at_least_single(self.weight.dtype))

    def run(
        self, x: Array, state: Array | None, starts: Array | None, mask: Array | None
    ) -> tuple[Array, Array]:
        channels, width = self.weight.shape
        tail = jnp.zeros((width - 1, channels), x.dtype) if state is None else state
        y, after = convolve(x, self.weight, tail, starts, mask)
        if self.bias is not None:
            y = y + jnp.broadcast_to(self.bias.astype(x.dtype), y.shape)
        return after if state is None else after.astype(state.dtype), y


class Rotary(AbstractModule):
    """Numbers turned by an angle that grows with the place in the document."""

    spec: RotarySpec = eqx.field(static=True)
    dims: Dims = eqx.field(static=True)

    def init(self, time: int | None = None) -> Array:
        return jnp.zeros((), jnp.int32)

    def run(
        self, x: Array, state: Array | None, starts: Array | None, mask: Array | None
    ) -> tuple[Array, Array]:
        places, after = _places(len(x), state, starts, mask)
        wide, half = at_least_single(x.dtype), self.spec.size // 2
        speeds = self.spec.base ** (-jnp.arange(half, dtype=wide) / half)
        angles = places.astype(wide)[:, None, None] * speeds[None, None, :]
        pairs = x.astype(wide).reshape(len(x), x.shape[1] // self.spec.size, 2, half)
        first, second = pairs[:, :, 0], pairs[:, :, 1]
        cosine, sine = jnp.cos(angles), jnp.sin(angles)
        turned = (first * cosine - second * sine, second * cosine + first * sine)
        return after, jnp.stack(turned, axis=2).reshape(x.shape).astype(x.dtype)


def _places(
    time: int, count: Array | None, starts: Array | None, mask: Array | None
) -> tuple[Array, Array]:
    """Each token's place in its document, and that of the next one; padding has no place."""
    seen = jnp.ones(time, jnp.int32) if mask is None else mask.astype(jnp.int32)
    count = jnp.zeros((), jnp.int32) if count is None else count
    totals = jnp.concatenate([count[None], count + jnp.cumsum(seen)])
    if starts is None:
        return totals[:-1], totals[-1]
    begins = starts if mask is None else starts & mask
    begun = jax.lax.cummax(jnp.where(begins, totals[:-1], 0))
    last = begun[-1] if time else jnp.zeros((), jnp.int32)
    return totals[:-1] - begun, totals[-1] - last


class RecallState(eqx.Module):
    """What a `Recall` carries: its memory (one a head), and what its streams and numbers carry."""

    memory: Any
    streams: dict[str, Any]
    computed: dict[str, Any] | None


class Recall(AbstractModule):
    """A memory asked and written by layers, head after head."""

    spec: RecallSpec = eqx.field(static=True)
    dims: Dims = eqx.field(static=True)
    memory: AbstractMemory = eqx.field(static=True)
    pairs: int = eqx.field(static=True)
    streams: dict[str, Any]
    """`query`, `key`, `value`, and `erase`, `remove` where the write has keys of its own."""
    numbers: dict[str, tuple[Any, ...]]
    precision: Array
    """Of no numbers: its dtype says in what precision a fresh state is."""

    def init(self, time: int | None = None) -> RecallState:
        dtype = at_least_single(self.precision.dtype)
        return RecallState(
            empty_heads(self.memory, self.dims, self.numbers, time, dtype),
            {name: module.init(time) for name, module in self.streams.items()},
            computed_states(self.numbers, time),
        )

    def run(
        self, x: Array, state: RecallState | None, starts: Array | None, mask: Array | None
    ) -> tuple[RecallState | None, Array]:
        begins = starts if starts is None or mask is None else starts & mask
        flat, after = {}, {}
        for name, module in self.streams.items():
            own = None if state is None else state.streams[name]
            after[name], flat[name] = module.run(x, own, begins, mask)
        before = None if state is None else state.computed
        numbers, computed = run_computed(self.numbers, x, before, begins, mask)
        memory = None if state is None else state.memory
        memory, answers = run_heads(
            self.memory, self.dims, numbers, x, self._by_head(flat), memory, begins, mask
        )
        y = answers.reshape(len(x), answers.shape[1] * answers.shape[2]).astype(x.dtype)
        if mask is not None:
            y = jnp.where(mask[:, None], y, 0)
        return None if state is None else RecallState(memory, after, computed), y

    def _by_head(self, flat: Mapping[str, Array]) -> dict[str, Array]:
        """`[time, pairs * heads * size]` as `[heads, time * pairs, size]`, heads repeated."""
        streams = {}
        for name, array in flat.items():
            size = stream_size(name, self.dims, self.spec)
            pairs = 1 if name == "query" else self.pairs
            own = array.shape[1] // (pairs * size)
            array = array.reshape(len(array) * pairs, own, size)
            streams[name] = jnp.moveaxis(jnp.repeat(array, self.dims.heads // own, axis=1), 1, 0)
        return streams


def stream_size(name: str, dims: Dims, spec: RecallSpec) -> int:
    """The size of one head of a stream."""
    size = dims.value if name == "value" else dims.key
    return dims.need("key", f"{name} keys have it") if size is None else size
