"""Published layers whose memory corrects what it recalls: the delta family, and MesaNet."""

from ...spec._computed import Computed
from ...spec._feature import L2Norm, LogSigmoid, Sigmoid, Silu, Spread, Wide
from ...spec._gate import Decay, DiagonalDecay
from ...spec._kernel import Dot
from ...spec._layer import Named, Recall, Tied, Vector
from ...spec._layer_base import AbstractLayer
from ...spec._memory import Memory
from ...spec._number import InverseRoot, Learned
from ...spec._read import Evaluate
from ...spec._write import Delta, Ridge
from ._parts import (
    convolved,
    dt_gate,
    head_norm,
    linear,
    log_decay,
    low_rank,
    sigmoid,
    step_size,
)


UNIT = Dot().pullback(L2Norm())
SCALED = Evaluate(scale=InverseRoot("key"))


def delta_net(model: int, heads: int = 4) -> Tied:
    """The delta rule on unit keys, `beta = sigmoid(W x)`, behind short convolutions and silu.

    Yang et al. 2024 ("Parallelizing Linear Transformers"); `DeltaNet` of flash-linear-attention
    without its optional gate.
    """
    answer = Recall(
        Memory(UNIT, Delta(rate=sigmoid(linear("b_proj", heads))), read=SCALED),
        query=convolved("q", model),
        key=convolved("k", model),
        value=convolved("v", model),
        heads=heads,
    )
    return Tied(answer >> head_norm("o_norm", heads) >> linear("o_proj", model))


def gated_delta_net(
    model: int, heads: int = 6, head_size: int = 256, expand_value: float = 2.0
) -> Tied:
    """The delta rule on a memory that fades, `log decay = -exp(A_log) softplus(W x + dt_bias)`.

    Yang et al. 2024 ("Gated Delta Networks"); `GatedDeltaNet` of flash-linear-attention.
    """
    key, value = heads * head_size, int(expand_value * heads * head_size)
    write = Delta(rate=sigmoid(linear("b_proj", heads)))
    answer = Recall(
        Memory(UNIT, write, Decay(dt_gate(linear("a_proj", heads), heads)), read=SCALED),
        query=convolved("q", key),
        key=convolved("k", key),
        value=convolved("v", value),
        heads=heads,
    )
    gate = linear("g_proj", value) >> Silu()
    return Tied((answer >> head_norm("o_norm", heads)) * gate >> linear("o_proj", model))


def _gated_by_channel(model: int, heads: int, head_size: int, write: Delta) -> Tied:
    size = heads * head_size
    step = step_size(low_rank("f_proj", head_size, size), size)
    fading = log_decay(step, heads, head_size, low=1.0)
    fade = DiagonalDecay(Computed(fading, per="key_channel", log=True))
    answer = Recall(
        Memory(UNIT, write, fade, read=SCALED),
        query=convolved("q", size),
        key=convolved("k", size),
        value=convolved("v", size),
        heads=heads,
    )
    gate = low_rank("g_proj", head_size, size, bias=True) >> Sigmoid()
    return Tied((answer >> head_norm("o_norm", heads)) * gate >> linear("o_proj", model))


def kimi_delta_attention(model: int, heads: int = 16, head_size: int = 128) -> Tied:
    """Gated DeltaNet with one decay a channel of the key, and a sigmoid gate behind the norm.

    Kimi Team 2025; `KimiDeltaAttention` of flash-linear-attention.
    """
    write = Delta(rate=sigmoid(linear("b_proj", heads)))
    return _gated_by_channel(model, heads, head_size, write)


def gated_delta_net2(model: int, heads: int = 16, head_size: int = 128) -> Tied:
    """Kimi Delta Attention with a gate of what is erased and one of what is written, by channel.

    `GatedDeltaNet2` of flash-linear-attention.
    """
    size = heads * head_size
    write = Delta(
        erase_gate=sigmoid(linear("b_proj", size), per="key_channel"),
        write_gate=sigmoid(linear("w_proj", size), per="value_channel"),
    )
    return _gated_by_channel(model, heads, head_size, write)


def gated_delta_product(
    model: int,
    heads: int = 6,
    head_size: int = 256,
    expand_value: float = 2.0,
    writes: int = 2,
    negative: bool = False,
) -> Tied:
    """Gated DeltaNet with `writes` writes a token, at keys of their own, and one read after them.

    With `negative`, rates go up to 2, which gives the memory's transitions negative eigenvalues.
    The read is scaled by `key^-1/2`; a reference operator of the same project does not scale it.

    Siems et al. 2025; `GatedDeltaProduct` of flash-linear-attention.
    """
    key, value = heads * head_size, int(expand_value * heads * head_size)
    start, gain = "xavier", 2.0**-2.5
    rate = linear("b_proj", writes * heads, start=start, gain=gain)
    write = Delta(rate=sigmoid(rate, scale=2.0 if negative else 1.0)).times(writes)
    fade = dt_gate(linear("a_proj", heads, start=start, gain=gain), heads)
    answer = Recall(
        Memory(UNIT, write, Decay(fade), read=SCALED),
        query=convolved("q", key, start=start, gain=gain),
        key=convolved("k", writes * key, start=start, gain=gain),
        value=convolved("v", writes * value, start=start, gain=gain),
        heads=heads,
    )
    gated = (answer >> head_norm("o_norm", heads)) * (
        linear("g_proj", value, start=start, gain=gain) >> Silu()
    )
    return Tied(gated >> linear("o_proj", model, start=start, gain=gain))


def comba(
    model: int,
    heads: int = 6,
    head_size: int = 256,
    expand_value: float = 2.0,
    correction: float = 1.0,
) -> Tied:
    """The memory before it fades is asked at `p = k sigmoid(decay)`, and the read at `q - D p`.

    All three are brought to length 1 afterwards, so that p is k but for an epsilon.

    Hu et al. 2025; `Comba` of flash-linear-attention, whose start of D is `correction` (0.02 in its
    models of 1.3 billion parameters).
    """
    key, value = heads * head_size, int(expand_value * heads * head_size)

    def one_a_head(name: str, start: float) -> Named:
        return Named(name, Vector(heads, start=start))

    k: AbstractLayer = Named("k", convolved("k", key))
    p = k * (one_a_head("decay", 1.0) >> Sigmoid() >> Spread(head_size))
    q = convolved("q", key) - (one_a_head("D", correction) >> Spread(head_size)) * p
    write = Delta(rate=sigmoid(linear("b_proj", heads)), recall="previous", erase="own")
    answer = Recall(
        Memory(UNIT, write, Decay(dt_gate(linear("a_proj", heads), heads)), read=SCALED),
        query=q,
        key=k,
        value=convolved("v", value),
        erase=p,
        heads=heads,
    )
    gate = linear("g_proj", value) >> Sigmoid()
    return Tied((answer >> head_norm("o_norm", heads)) * gate >> linear("o_proj", model))


def mesa_net(model: int, heads: int = 16, head_size: int = 128) -> Tied:
    """The ridge regression of all that was seen, `lambda = softplus(p) + 0.25`, one a key channel.

    Values are not convolved. The published layer solves by 30 steps of conjugate gradients where a
    reference solves exactly, as here.

    Von Oswald et al. 2025; `MesaNet` of flash-linear-attention without its optional gate.
    """
    size = heads * head_size
    fade = Decay(Computed(linear("a_proj", heads, bias=True) >> Wide() >> LogSigmoid(), log=True))
    strength = Learned(1.0, per="key_channel", squash="softplus", floor=0.25, name="lambda_params")
    write = Ridge(strength, rate=sigmoid(linear("b_proj", heads, bias=True)))
    answer = Recall(
        Memory(UNIT, write, fade),
        query=convolved("q", size),
        key=convolved("k", size),
        value=linear("v_proj", size),
        heads=heads,
    )
    return Tied(answer >> head_norm("o_norm", heads) >> linear("o_proj", model))
