"""Published layers whose memory is a matrix that is only added to, or attention."""

from ...spec._computed import Computed
from ...spec._feature import (
    EluPlusOne,
    Exponential,
    Grouped,
    LogSigmoid,
    Scale,
    Sigmoid,
    Silu,
    Softmax,
    Wide,
)
from ...spec._gate import Decay, DiagonalDecay, ValueDecay
from ...spec._kernel import Dot
from ...spec._layer import LayerSum, Named, Norm, Recall, Rotary, Tied, Vector
from ...spec._layer_base import AbstractLayer
from ...spec._memory import Memory
from ...spec._number import InverseRoot, Knob
from ...spec._read import Evaluate, Normalised
from ...spec._write import Hebb
from ._parts import convolved, EPSILON, head_norm, linear, low_rank


SCALED = Evaluate(scale=InverseRoot("key"))
ONE = Vector(1, start=1.0, trainable=False)
"""A key that is always 1."""


def linear_attention(model: int, heads: int = 4) -> Tied:
    """Linear attention with elu + 1, normalised: `norm(memory(k, v, q))`, head by head, projected.

    Projections start uniform. The published layer normalises only if asked, and takes another
    feature map unless it is asked for this one.

    Katharopoulos et al. 2020; `LinearAttention` of flash-linear-attention.
    """
    read = Normalised(scale=InverseRoot("key"), prior=1e-10)
    memory = Memory(Dot().pullback(EluPlusOne()), Hebb(), read=read)
    answer = Recall(
        memory,
        query=linear("q_proj", model),
        key=linear("k_proj", model),
        value=linear("v_proj", model),
        heads=heads,
    )
    return Tied(answer >> head_norm("norm", heads) >> linear("o_proj", model))


def retnet(model: int, heads: int = 8, expand_value: float = 2.0) -> Tied:
    """Rotary queries and keys, one fixed decay `1 - 2^(-5 - head)` a head, normed and gated by silu.

    Sun et al. 2023; `MultiScaleRetention` of flash-linear-attention, whose decays are not trained.
    """
    value = int(expand_value * model)
    decay = Decay(Knob(tuple(1 - 2.0 ** (-5 - head) for head in range(heads))))
    answer = Recall(
        Memory(Dot(), Hebb(), decay, read=SCALED),
        query=linear("q_proj", model) >> Rotary(model // heads),
        key=linear("k_proj", model) >> Rotary(model // heads),
        value=linear("v_proj", value),
        heads=heads,
    )
    normed = answer >> head_norm("g_norm_swish_gate", heads)
    return Tied(normed * (linear("g_proj", value) >> Silu()) >> linear("o_proj", model))


def gla(
    model: int,
    heads: int = 4,
    expand_key: float = 0.5,
    expand_value: float = 1.0,
    gate_rank: int = 16,
) -> Tied:
    """Gated linear attention: `log decay = logsigmoid(W2 W1 x + b) / 16`, one a channel of the key.

    Yang et al. 2024; `GatedLinearAttention` of flash-linear-attention.
    """
    key, value = int(expand_key * model), int(expand_value * model)
    log_decay = (
        low_rank("gk_proj", gate_rank, key, bias=True) >> Wide() >> LogSigmoid() >> Scale(1 / 16)
    )
    gate = DiagonalDecay(Computed(log_decay, per="key_channel", log=True))
    answer = Recall(
        Memory(Dot(), Hebb(), gate, read=SCALED),
        query=linear("q_proj", key),
        key=linear("k_proj", key),
        value=linear("v_proj", value),
        heads=heads,
    )
    normed = answer >> head_norm("g_norm_swish_gate", heads)
    return Tied(normed * (linear("g_proj", value) >> Silu()) >> linear("o_proj", model))


def simple_gla(model: int, heads: int = 4) -> Tied:
    """Gated linear attention with one decay a head, behind short convolutions.

    `log decay = logsigmoid(W x + b) / 16`.

    `SimpleGatedLinearAttention` of flash-linear-attention; Dao and Gu 2024 for the memory.
    """
    log_decay = linear("gk_proj", heads, bias=True) >> Wide() >> LogSigmoid() >> Scale(1 / 16)
    gate = Decay(Computed(log_decay, log=True))
    answer = Recall(
        Memory(Dot(), Hebb(), gate, read=SCALED),
        query=convolved("q", model),
        key=convolved("k", model),
        value=convolved("v", model),
        heads=heads,
    )
    normed = answer >> head_norm("g_norm_swish_gate", heads)
    return Tied(normed * (linear("g_proj", model) >> Silu()) >> linear("o_proj", model))


def _bounded_forget(size: int, lower_bound: float | None) -> AbstractLayer:
    """`lambda + (1 - lambda) sigmoid(W x)`, lambda being trained elsewhere, once for all layers."""
    squashed = linear("f_proj", size) >> Wide() >> Sigmoid()
    if lower_bound is None:
        return squashed
    floor = Named("lower_bound", Vector(size, start=lower_bound))
    return LayerSum(floor, (1.0 - floor) * squashed)


def hgrn(model: int, lower_bound: float | None = None) -> Tied:
    """A vector that fades channel by channel: `h <- f h + (1 - f) silu(W x)`, one key, always 1.

    `lower_bound` is where lambda starts, under which no f falls; `None` in the first layer. In the
    published model, lambda is of a table over all layers; here each layer has its own vector.

    Qin et al. 2023; `HGRNAttention` of flash-linear-attention.
    """
    forget = Named("forget", _bounded_forget(model, lower_bound))
    answer = Recall(
        Memory(Dot(), Hebb(), ValueDecay(Computed(forget, per="value_channel"))),
        query=ONE,
        key=ONE,
        value=(1.0 - forget) * (linear("i_proj", model) >> Silu()),
    )
    normed = answer >> Named("g_norm", Norm(epsilon=EPSILON))
    return Tied(normed * (linear("g_proj", model) >> Silu()) >> linear("o_proj", model))


def hgrn2(model: int, head_size: int = 128, lower_bound: float | None = None) -> Tied:
    """Gated linear attention whose key is what the gate lets go: `k = 1 - f`.

    The norm is of the whole width, and there is no gate behind it.

    Qin et al. 2024; `HGRN2Attention` of flash-linear-attention, which keeps the scale `key^-1/2`.
    """
    forget = Named("forget", _bounded_forget(model, lower_bound))
    gate = DiagonalDecay(Computed(forget, per="key_channel"))
    answer = Recall(
        Memory(Dot(), Hebb(), gate, read=SCALED),
        query=linear("q_proj", model) >> Silu(),
        key=1.0 - forget,
        value=linear("i_proj", model),
        heads=model // head_size,
    )
    return Tied(answer >> Named("g_norm", Norm(epsilon=EPSILON)) >> linear("o_proj", model))


def gated_slot_attention(model: int, heads: int = 4, slots: int = 64) -> Tied:
    """Attention to slots: what is written to a slot, `1 - g`, is what it forgets.

    One memory answers how well the query fits each slot, which are running averages of keys; its
    softmax asks another one, of running averages of values. `log g = logsigmoid(W x) / 8`.

    Zhang et al. 2024; `GatedSlotAttention` of flash-linear-attention.
    """
    size = heads * slots
    log_forget = Named(
        "log_forget", linear("f_proj", size) >> Wide() >> LogSigmoid() >> Scale(1 / 8)
    )
    written = Named("written", 1.0 - (log_forget >> Exponential()))
    fit = Recall(
        Memory(Dot(), Hebb(), ValueDecay(Computed(log_forget, per="value_channel", log=True))),
        query=linear("q_proj", model) >> Silu(),
        key=linear("k_proj", model) >> Silu(),
        value=written,
        heads=heads,
    )
    answer = Recall(
        Memory(Dot(), Hebb(), DiagonalDecay(Computed(log_forget, per="key_channel", log=True))),
        query=fit >> Grouped(Softmax(), heads),
        key=written,
        value=linear("v_proj", model) >> Silu(),
        heads=heads,
    )
    normed = answer >> Silu() >> Named("g_norm", Norm(epsilon=EPSILON))
    return Tied(normed >> linear("o_proj", model))
