"""Memories that keep atoms, and memories made of several."""

import math
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

import memdsl as md

from ._case import Case, operator, Outputs, PER_HEAD, PER_KEY, PER_VALUE
from ._function import Function
from ._run import Runner


def softmax(c: SimpleNamespace) -> md.Memory:
    return md.Memory(md.Exp(c.scale * md.Dot()), md.Hebb(), read=md.Normalised())


def softmax_window(c: SimpleNamespace) -> md.Memory:
    return softmax(c).replace(capacity=md.Window(c.window_size))


def forgetting(c: SimpleNamespace) -> md.Memory:
    return softmax(c).replace(gate=md.Decay(PER_HEAD))


def softmax_sink(x: SimpleNamespace, c: SimpleNamespace, run: Runner) -> Outputs:
    read = md.Normalised(prior=md.Learned(1.0, squash="exp"))
    memory = softmax_window(c).replace(read=read)
    prior = jnp.exp(x.sink_bias)
    return {"o": run(memory, x.k, x.v, x.q, constants={"prior": prior})[0]}


def wall(x: SimpleNamespace, c: SimpleNamespace, run: Runner) -> Outputs:
    read = md.Normalised(prior=md.Learned(1.0, squash="exp"))
    memory = softmax(c).replace(gate=md.KeyDecay(PER_KEY), read=read)
    prior = jnp.exp(x.sink_bias)
    return {"o": run(memory, x.k, x.v, x.q, log_decay=x.g, constants={"prior": prior})[0]}


def path(x: SimpleNamespace, c: SimpleNamespace, run: Runner) -> Outputs:
    # the file has its decay inside of the scale of the softmax
    memory = softmax(c).replace(gate=md.Householder(PER_HEAD) @ md.Decay(PER_HEAD))
    decay = c.scale * x.g
    return {"o": run(memory, x.k, x.v, x.q, erase_keys=x.w, rate=x.beta, log_decay=decay)[0]}


def based(c: SimpleNamespace) -> md.Memory:
    return md.Memory(md.Dot().pullback(md.Taylor()), md.Hebb(), read=md.Normalised(prior=c.eps))


def rebased(c: SimpleNamespace) -> md.Memory:
    square = md.Polynomial(2, offset=0.0).pullback(md.Scale(math.sqrt(c.scale)))
    return md.Memory(square, md.Hebb(), read=md.Normalised(prior=c.eps))


def deltaformer(x: SimpleNamespace, c: SimpleNamespace, run: Runner) -> Outputs:
    # the file's rate is of what is erased alone, so that what is written is divided by it first
    write = md.Delta(PER_HEAD, erase="own", write_gate=PER_VALUE)
    gate = jnp.broadcast_to(1 / x.beta[..., None], x.v.shape)
    answers, _ = run(
        softmax(c).replace(write=write), x.k, x.v, x.q,
        erase_keys=x.q, rate=x.beta, write_gate=gate,
    )  # fmt: skip
    return {"o": answers}


def parallax(x: SimpleNamespace, c: SimpleNamespace, run: Runner) -> Outputs:
    # one memory of v, k and their product; r is contracted with what it answers
    products = x.k[..., :, None] * x.v[..., None, :]
    flat = products.reshape(*products.shape[:3], -1)
    mean, _ = run(softmax(c), x.k, jnp.concatenate([x.v, x.k, flat], -1), x.q)
    v, k, kv = jnp.split(mean, [x.v.shape[-1], x.v.shape[-1] + x.k.shape[-1]], axis=-1)
    kv = kv.reshape(*kv.shape[:3], *products.shape[3:])
    return {"o": v * (1 + _dot(x.r, k)) - jnp.sum(x.r[..., None] * kv, -2)}


def _dot(a: Array, b: Array) -> Array:
    return jnp.sum(a * b, -1, keepdims=True)


class Indexer(md.AbstractKernel):
    """`sum_j w_j relu(q_j . k)` of keys (k, 0) and queries (q, w): what ranks need not be symmetric."""

    heads: int = 2

    def __call__(self, k: Array, q: Array) -> Array:
        size = (len(q) - self.heads) // self.heads
        asked, weights = q[: self.heads * size].reshape(self.heads, size), q[self.heads * size :]
        return weights @ jax.nn.relu(asked @ k[:size])


def dsa(x: SimpleNamespace, c: SimpleNamespace, run: Runner) -> Outputs:
    # one key is that of the softmax and that of the indexer, side by side
    batch, time, heads, size = x.q_idx.shape
    asked = x.q_idx.reshape(batch, time, 1, -1) / math.sqrt(size)
    asked = jnp.concatenate([asked, x.w_idx[:, :, None]], -1)
    kept = jnp.zeros_like(asked).at[..., :size].set(x.k_idx[:, :, None])
    of_softmax, of_indexer = (
        md.Slice(0, x.k.shape[-1]),
        md.Slice(x.k.shape[-1], x.k.shape[-1] + asked.shape[-1]),
    )
    memory = softmax(c)
    memory = memory.replace(
        kernel=memory.kernel.pullback(of_softmax),
        read=md.TopK(c.topk, by=Indexer(heads).pullback(of_indexer)),
    )

    def beside(array: Array, indexed: Array) -> Array:
        return jnp.concatenate([array, jnp.repeat(indexed, array.shape[2], 2)], -1)

    keys, queries = beside(x.k, kept), beside(x.q, asked)
    answers, _ = run(memory, keys, x.v, queries)
    # which atoms are read is what a kernel of 1 answers to values that are each a channel of its own
    which = memory.replace(kernel=md.Constant(1.0), read=memory.read.replace(read=md.Evaluate()))
    places = jnp.broadcast_to(jnp.eye(time, dtype=x.k.dtype)[None, :, None], (batch, time, 1, time))
    read, _ = run(which, keys[:, :, :1], places, queries[:, :, :1])
    place = jnp.where(read[:, :, 0] > 0, jnp.arange(time, dtype=x.k.dtype), time)
    place = jnp.sort(place, -1)[..., : c.topk]
    return {"o": answers, "indices": jnp.where(place < time, place, -1)}


def nsa(x: SimpleNamespace, c: SimpleNamespace, run: Runner) -> Outputs:
    # the heads of a group choose blocks together: a query is all of theirs, its own in front
    time, heads, size = x.q.shape[1:]
    asked = jnp.stack([jnp.roll(x.q, -h, axis=2) for h in range(heads)], axis=3)
    asked = asked.reshape(*x.q.shape[:3], heads * size)
    keys = jnp.zeros((*x.k.shape[:3], heads * size), x.k.dtype).at[..., :size].set(x.k)
    blocks = -(-time // c.block_size)
    memory = softmax(c)
    of_blocks = memory.replace(
        kernel=memory.kernel.pullback(md.Slice(0, size)),
        read=md.TopBlocks(c.block_counts, c.block_size, group=heads),
    )
    # which blocks are read is where a value that is 1 in a block alone has a part in the mean
    which = jnp.eye(blocks, dtype=x.v.dtype)[jnp.arange(time) // c.block_size]
    which = jnp.broadcast_to(which[None, :, None], (*x.v.shape[:3], blocks))
    selected, _ = run(of_blocks, keys, jnp.concatenate([x.v, which], -1), asked)
    selected, parts = jnp.split(selected, [x.v.shape[-1]], axis=-1)
    place = jnp.where(parts[:, :, :1] > 0, jnp.arange(blocks, dtype=x.v.dtype), blocks)
    place = jnp.sort(place, -1)[..., : c.block_counts]
    near, _ = run(memory.replace(capacity=md.Window(c.window_size)), x.k, x.v, x.q)
    gates = x.g_cmp, x.g_slc, x.g_swa
    # a block is stored as the mean of its keys and of its values, once it is complete
    mean = md.Memory(md.Constant(), capacity=md.Window(c.block_size), read=md.Normalised())
    key, value = (md.Answer(mean.of(value=stream)) for stream in (md.Key(), md.Value()))
    compressed, _ = run(md.every(c.block_size, memory).of(key=key, value=value), x.k, x.v, x.q)
    parts = compressed, selected, near
    answers = sum(gate[..., None] * part for gate, part in zip(gates, parts, strict=True))
    return {"o": answers, "block_indices": jnp.where(place < blocks, place, -1)}


SLOTS = md.FromInput("identity", per="key_channel")


def gsa(x: SimpleNamespace, c: SimpleNamespace, run: Runner) -> Outputs:
    """Attention to slots that are running sums of keys and of values: a chain of two memories."""
    into = md.Memory(md.Dot(), md.Hebb(), md.ValueDecay(PER_VALUE), read=md.Evaluate(c.scale))
    out = md.Memory(md.Dot(), md.Hebb(), md.DiagonalDecay(PER_KEY))
    chain = into.of(value=md.Own()) >> md.Softmax() >> out.of(key=md.Own())
    answers, (hk, hv) = run(
        chain.of(own=SLOTS, own_size=x.s.shape[-1]), x.k, x.v, x.q, own=x.s,
        initial=(Function(x.initial_hk), Function(x.initial_hv)),
        **{f"{part}.memory.gate.log_decay": x.g for part in ("memory", "second")},
    )  # fmt: skip
    return {"o": answers, "state_hk": hk.matrix, "state_hv": hv.matrix}


def abc(x: SimpleNamespace, c: SimpleNamespace, run: Runner) -> Outputs:
    into = md.Memory(md.Dot(), read=md.Evaluate(c.scale)).averaged("value").of(value=md.Own())
    out = md.Memory(md.Dot()).averaged("key").of(key=md.Own())
    chain = into >> md.Softmax() >> out
    answers, (hk, hv) = run(chain.of(own=SLOTS, own_size=x.s.shape[-1]), x.k, x.v, x.q, own=x.s)
    return {"o": answers, "state_hk": hk.matrix, "state_hv": hv.matrix}


def preconditioned(
    x: SimpleNamespace, c: SimpleNamespace, run: Runner, unit: md.AbstractFeature | None,
    gate: md.AbstractGate,
) -> Outputs:  # fmt: skip
    """A delta rule whose written key is preconditioned by a second memory, of squared keys."""
    key: Any = md.Key() if unit is None else md.Key() >> unit
    moments = md.Memory(md.Dot(), md.Hebb(PER_HEAD), md.Decay(PER_HEAD))  # at the one key 1
    squares = moments.of(key=md.Own(), value=key * key, query=md.Own(), own=1.0)
    scale = md.Preconditioner(md.Knob(0.0), base=c.x, epsilon=c.eps)
    memory = md.Memory(md.Dot(), md.Delta(PER_HEAD, erase="own"), gate, read=md.Evaluate(c.scale))
    query: Any = md.Query() if unit is None else md.Query() >> unit
    whole = memory.of(key=key * (md.Answer(squares) >> scale), erase=key, query=query)
    inner = "memory.memory"
    answers, (state, moments) = run(
        whole, x.k, x.v, x.q,
        initial=(Function(x.initial_state), Function(x.initial_A[:, :, None])),
        constants={"log_scale": x.log_atk_scale},
        **{
            "memory.gate.log_decay": x.g,
            "memory.write.rate": x.beta,
            f"{inner}.gate.log_decay": x.g_atk,
            f"{inner}.write.rate": x.beta_atk,
        },
    )  # fmt: skip
    return {"o": answers, "state": state.matrix, "A": moments.matrix[:, :, 0]}


def precond_gated_delta_rule(x: SimpleNamespace, c: SimpleNamespace, run: Runner) -> Outputs:
    return preconditioned(x, c, run, md.L2Norm(epsilon=0.0), md.Decay(PER_HEAD))


def precond_kda(x: SimpleNamespace, c: SimpleNamespace, run: Runner) -> Outputs:
    return preconditioned(x, c, run, None, md.DiagonalDecay(PER_KEY))


CASES: dict[str, Case] = {
    "softmax_attn": operator(softmax),
    "softmax_attn_window": operator(softmax_window),
    "softmax_attn_sink": softmax_sink,
    "forgetting_attn": operator(forgetting, log_decay="g"),
    "wall_attn": wall,
    "path_attn": path,
    "based": operator(based),
    "rebased": operator(rebased),
    "deltaformer": deltaformer,
    "parallax": parallax,
    "dsa": dsa,
    "nsa": nsa,
    "gsa": gsa,
    "abc": abc,
    "precond_gated_delta_rule": precond_gated_delta_rule,
    "precond_kda": precond_kda,
}
NOTES = {
    "rebased": "float32 by atoms only, (q.k)^2 by features being a sum that cancels",
}
