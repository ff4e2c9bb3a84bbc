"""A memory as a sequence layer."""

import dataclasses
import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from .._errors import SpecError
from .._types import at_least_single
from ..plan import Dims, plan
from ..plan._tree import leaves, lower
from ..spec._facts import needed_keys, pairs_per_token
from ..spec._layer import Layer
from ..spec._memory import AbstractMemory
from ..spec._rewired import answer_size
from ..spec._slots import resolve
from ..spec._streams import Sizes
from ._base import AbstractModule
from ._convolution import convolve
from ._heads import computed_states, empty_heads, run_computed, run_heads
from ._numbers import init_numbers, Make


class LayerState(eqx.Module):
    """What a layer carries from piece to piece: its memory (one a head), the convolution's tail, and
    what the layers that compute its numbers carry."""

    memory: Any
    tail: Array | None
    computed: dict[str, Any] | None = None


class MemoryLayer(AbstractModule):
    """`y = W_o (norm(memory(k, v, q)) * gate(W_g x))`, with k, v, q read off x, head by head."""

    spec: Layer = eqx.field(static=True)
    dims: Dims = eqx.field(static=True)
    memory: AbstractMemory = eqx.field(static=True)
    projections: dict[str, Array]
    """`query`, `key`, `value`, and `erase`, `remove` where the write has keys of its own."""
    convolution: Array | None
    numbers: dict[str, tuple[Any, ...]]
    gain: Array | None
    gate: Array | None
    output: Array

    def init(self, time: int | None = None) -> LayerState:
        memory = empty_heads(self.memory, self.dims, self.numbers, time, self.dtype)
        computed = computed_states(self.numbers, time)
        return LayerState(memory, self._empty_tail(self.dtype), computed)

    @property
    def width(self) -> int:
        """The size of the vectors that the layer maps."""
        return self.dims.need("model", "a layer reads and writes vectors of it")

    @property
    def dtype(self) -> Any:
        """The dtype of states: float32, or float64 where the parameters are."""
        return at_least_single(self.output.dtype)

    def run(
        self, x: Array, state: LayerState | None, starts: Array | None, mask: Array | None
    ) -> tuple[LayerState | None, Array]:
        tail = self._empty_tail(x.dtype) if state is None else state.tail
        if mask is not None:
            x = jnp.where(mask[:, None], x, 0)
        begins = starts if starts is None or mask is None else starts & mask
        streams, tail = self._streams(x, tail, begins, mask)
        before = None if state is None else state.computed
        numbers, computed = run_computed(self.numbers, x, before, begins, mask)
        memory = None if state is None else state.memory
        memory, answers = run_heads(
            self.memory, self.dims, numbers, x, streams, memory, begins, mask
        )
        y = self._finish(x, answers)
        if mask is not None:
            y = jnp.where(mask[:, None], y, 0)
        if tail is not None and state is not None and state.tail is not None:
            tail = tail.astype(state.tail.dtype)
        return LayerState(memory, tail, computed), y

    def _streams(
        self, x: Array, tail: Array | None, starts: Array | None, mask: Array | None
    ) -> tuple[dict[str, Array], Array | None]:
        """Projections, convolved and activated, as `[heads, time * pairs, size]`."""
        names = list(self.projections)
        flat = [x @ self.projections[name].astype(x.dtype).T for name in names]
        if self.convolution is not None and tail is not None:
            joined, tail = convolve(
                jnp.concatenate(flat, axis=-1), self.convolution, tail, starts, mask
            )
            edges = [sum(f.shape[-1] for f in flat[: i + 1]) for i in range(len(flat) - 1)]
            flat = jnp.split(joined, edges, axis=-1)
        if self.spec.activation == "silu":
            flat = [jax.nn.silu(array) for array in flat]
        sizes = {"value": self.dims.value}
        streams = {}
        for name, array in zip(names, flat, strict=True):
            size = sizes.get(name, self.dims.key) or 0
            pairs = array.shape[-1] // (size * self.spec.heads)
            array = array.reshape(len(x), pairs, self.spec.heads, size)
            array = array.reshape(len(x) * pairs, self.spec.heads, size)
            streams[name] = jnp.moveaxis(array, 1, 0)
        return streams, tail

    def _finish(self, x: Array, answers: Array) -> Array:
        """Norm a head, gate, and the output projection; `answers` is `[time, heads, answer]`."""
        if self.gain is not None:
            square = jnp.mean(answers * answers, axis=-1, keepdims=True)
            answers = (
                answers
                * jax.lax.rsqrt(square + 1e-5)
                * self.gain.astype(answers.dtype)[None, None, :]
            )
        flat = answers.reshape(len(x), answers.shape[1] * answers.shape[2]).astype(x.dtype)
        if self.gate is not None:
            gates = {"silu": jax.nn.silu, "sigmoid": jax.nn.sigmoid}
            flat = flat * gates[self.spec.output_gate or "silu"](x @ self.gate.astype(x.dtype).T)
        return flat @ self.output.astype(x.dtype).T

    def _empty_tail(self, dtype: Any) -> Array | None:
        if self.convolution is None:
            return None
        channels, width = self.convolution.shape
        return jnp.zeros((width - 1, channels), dtype)


def build_layer(spec: Layer, dims: Dims, make: Make, key: Array) -> MemoryLayer:
    """The layer of a spec, with fresh parameters; `make` builds the layers that compute numbers."""
    model = dims.need("model", "a layer reads and writes vectors of it")
    heads = spec.heads
    key_size = spec.key_size or dims.key or _share(model, heads, spec)
    value_size = spec.value_size or dims.value or _share(model, heads, spec)
    own = dataclasses.replace(dims, key=key_size, value=value_size, heads=heads)
    memory = lower(resolve(spec.memory, own.sizes()))
    plan(memory, dataclasses.replace(own, time=own.time or 64))  # an illegal memory is refused here
    found = [leaf for _, leaf in leaves(memory)]
    pairs = max((pairs_per_token(leaf.write) for leaf in found), default=1)
    streams = needed_keys(memory)
    widths = {"query": heads * key_size, "key": pairs * heads * key_size}
    widths["value"] = pairs * heads * value_size
    for name in ("erase", "remove"):
        if f"{name}_keys" in streams:
            widths[name] = pairs * heads * key_size
    keys = jax.random.split(key, len(widths) + 4)
    projections = {
        name: jax.random.normal(k, (width, model)) / math.sqrt(model)
        for k, (name, width) in zip(keys, widths.items(), strict=False)
    }
    taps, numbers_key, gate_key, output_key = keys[-4:]
    width = (answer_size(memory, Sizes(key_size, value_size, key_size)) or 0) * heads
    convolution = None
    if spec.convolution:
        bound = 1 / math.sqrt(spec.convolution)
        shape = (sum(widths.values()), spec.convolution)
        convolution = jax.random.uniform(taps, shape, minval=-bound, maxval=bound)
    gate = None
    if spec.output_gate is not None:
        gate = jax.random.normal(gate_key, (width, model)) / math.sqrt(model)
    return MemoryLayer(
        spec=spec,
        dims=own,
        memory=memory,
        projections=projections,
        convolution=convolution,
        numbers=init_numbers(memory, heads, model, key_size, value_size, numbers_key, make),
        gain=jnp.ones(width // heads) if spec.norm == "rms" else None,
        gate=gate,
        output=jax.random.normal(output_key, (model, width)) / math.sqrt(width),
    )


def _share(model: int, heads: int, spec: Layer) -> int:
    if model % heads:
        raise SpecError(
            f"{heads} heads do not divide a model of {model}.",
            where=spec,
            at="heads",
            instead="a number of heads that does, or key_size= and value_size=.",
        )
    return model // heads
