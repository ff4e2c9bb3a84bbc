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
from ..plan import Dims, Plan, plan
from ..plan._prepare import prepare
from ..plan._states import empty_tree, leaf_states, representation_of, with_room
from ..plan._stream import run_tree, Stream
from ..plan._tree import leaves, lower, parts
from ..spec._facts import own_keys, pairs_per_token
from ..spec._layer import Layer
from ..spec._memory import AbstractMemory, Chained, Leaf, Mapped, Memory, Network, Transposed
from ..spec._slots import ground, resolve
from ..state import AbstractState
from ._base import AbstractModule
from ._convolution import convolve
from ._numbers import evaluate_numbers, init_numbers


class LayerState(eqx.Module):
    """What a layer carries from piece to piece: its memory (one a head), and the convolution's tail."""

    memory: Any
    tail: Array | None


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
        chosen = self.plan(time or self.dims.time, "serve")
        heads = self.spec.heads
        one = empty_tree(
            chosen.memory,
            chosen,
            self.dims.key or 0,
            self.dims.value or 0,
            time or self.dims.time,
            self.dtype,
        )
        memory = jax.tree.map(lambda x: jnp.broadcast_to(x, (heads, *x.shape)), one)
        constants, _ = evaluate_numbers(
            self.memory,
            self.numbers,
            jnp.zeros((0, self.width), self.dtype),
            heads,
            jnp.zeros(0, jnp.int32),
            self.dtype,
        )
        return LayerState(_with_initial(chosen, memory, constants), self._empty_tail(self.dtype))

    @property
    def width(self) -> int:
        """The size of the vectors that the layer maps."""
        return self.dims.need("model", "a layer reads and writes vectors of it")

    @property
    def dtype(self) -> Any:
        """The dtype of states: float32, or float64 where the parameters are."""
        return at_least_single(self.output.dtype)

    def plan(self, time: int | None, purpose: str, state: Any = None) -> Plan:
        """The plan of the layer's memory for a length."""
        dims = dataclasses.replace(self.dims, time=time)
        kept = {}
        if state is not None:
            kept = {path: representation_of(s) for path, s in leaf_states(self.memory, state)}
        return plan(self.memory, dims, purpose=purpose, representation=kept)

    def run(
        self, x: Array, state: LayerState | None, starts: Array | None, mask: Array | None
    ) -> tuple[LayerState, Array]:
        time, heads = len(x), self.spec.heads
        room = max(time, 1)
        dtype = at_least_single(x.dtype)
        fresh = state is None
        if state is None:
            chosen = self.plan(room, "train")
            one = empty_tree(
                chosen.memory, chosen, self.dims.key or 0, self.dims.value or 0, room, dtype
            )
            memory: Any = jax.tree.map(lambda a: jnp.broadcast_to(a, (heads, *a.shape)), one)
            tail = self._empty_tail(x.dtype)
        else:
            purpose = "serve" if time == 1 else "train"
            chosen = self.plan(room, purpose, state.memory)
            memory, tail = state.memory, state.tail
        if mask is not None:
            x = jnp.where(mask[:, None], x, 0)
        begins = starts if starts is None or mask is None else starts & mask
        streams, tail = self._streams(x, tail, begins, mask)
        steps = _steps(chosen, memory, time, mask)
        constants, tokens = evaluate_numbers(chosen.memory, self.numbers, x, heads, steps, dtype)
        if fresh:
            memory = _with_initial(chosen, memory, constants)

        def one_head(memory: Any, streams: Any, constants: Any, tokens: Any) -> tuple[Any, Array]:
            stream = Stream(
                streams["key"],
                streams["value"],
                streams["query"],
                streams.get("erase"),
                streams.get("remove"),
                begins,
                mask,
                constants,
                tokens,
                fresh,
                mask,
            )
            return run_tree(chosen.memory, chosen, memory, stream)

        cast = {name: a.astype(dtype) for name, a in streams.items()}
        before = memory
        memory, answers = jax.vmap(one_head)(before, cast, constants, tokens)
        if not fresh:
            answers = with_room(chosen.memory, before, memory, answers)
        y = self._finish(x, jnp.moveaxis(answers, 0, 1))
        if mask is not None:
            y = jnp.where(mask[:, None], y, 0)
        return LayerState(memory, tail), y

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


def _steps(chosen: Plan, memory: Any, time: int, mask: Array | None) -> Array:
    """The number of each token in the life of the memory."""
    found = leaf_states(chosen.memory, memory)
    seen = jnp.ones(time, jnp.int32) if mask is None else mask.astype(jnp.int32)
    count = found[0][1].count[0] if found else jnp.zeros((), jnp.int32)
    return count + jnp.cumsum(seen) - seen


def _with_initial(chosen: Plan, memory: Any, constants: dict[str, Any]) -> Any:
    """The states of fresh memories, with learned initial matrices in their place."""
    initial = {path: value for path, value in constants.items() if path.endswith("initial")}
    if not initial:
        return memory
    states = {path: state for path, state in leaf_states(chosen.memory, memory)}
    for path, value in initial.items():
        prefix = path.removesuffix("initial").rstrip(".")
        leaf = next(m for p, m, _ in leaves(chosen.memory) if p == prefix)
        kind = chosen.rule(prefix).representation

        def clear(state: Any, matrix: Array, leaf: Leaf = leaf, kind: str = kind) -> Any:
            return state.clear(prepare(ground(leaf, {"initial": matrix}), kind)[0])

        states[prefix] = jax.vmap(clear)(states[prefix], value)
    flat = iter(states.values())
    is_state = lambda s: isinstance(s, AbstractState)  # noqa: E731
    return jax.tree.map(lambda s: next(flat) if is_state(s) else s, memory, is_leaf=is_state)


def answer_size(memory: AbstractMemory, key_size: int, value_size: int) -> int:
    """The size of what a memory answers."""
    match memory:
        case Transposed():
            inner = memory.memory
            return int(inner.kernel.rank(value_size)) if isinstance(inner, Memory) else key_size
        case Mapped():
            return memory.feature.size(answer_size(memory.memory, key_size, value_size))
        case Chained():
            return answer_size(memory.second, key_size, value_size)
        case Memory() | Network():
            return value_size
        case _:
            inner = [part for _, part in parts(memory)]
            return answer_size(inner[0], key_size, value_size) if inner else value_size


def build_layer(spec: Layer, dims: Dims, key: Array) -> MemoryLayer:
    """The layer of a spec, with fresh parameters."""
    model = dims.need("model", "a layer reads and writes vectors of it")
    heads = spec.heads
    key_size = spec.key_size or dims.key or _share(model, heads, spec)
    value_size = spec.value_size or dims.value or _share(model, heads, spec)
    own = dataclasses.replace(dims, key=key_size, value=value_size, heads=heads)
    memory = lower(resolve(spec.memory, own.sizes()))
    plan(memory, dataclasses.replace(own, time=own.time or 64))  # an illegal memory is refused here
    found = [leaf for _, leaf, _ in leaves(memory)]
    pairs = max((pairs_per_token(leaf.write) for leaf in found), default=1)
    streams = {name for leaf in found for name in own_keys(leaf)}
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
    width = answer_size(memory, key_size, value_size) * heads
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
        numbers=init_numbers(memory, heads, model, key_size, value_size, numbers_key),
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
