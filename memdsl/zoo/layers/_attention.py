"""Published layers that are softmax attention with something more."""

from ...spec._computed import Computed
from ...spec._feature import LogSigmoid, Scale, Sigmoid, Silu, Wide
from ...spec._gate import Decay, Householder
from ...spec._kernel import Dot, Exp
from ...spec._layer import Named, Norm, Recall, ShortConvolution, Tied
from ...spec._layer_base import AbstractLayer
from ...spec._memory import Memory
from ...spec._number import InverseRoot
from ...spec._read import Normalised
from ...spec._write import Hebb
from ._parts import EPSILON, head_norm, linear, low_rank, sigmoid, unit


SOFTMAX = Memory(Exp(InverseRoot("key") * Dot()), Hebb(), read=Normalised())


def forgetting_attention(model: int, heads: int = 16, qk_norm: bool = True) -> Tied:
    """Softmax attention whose logits fade by `sum logsigmoid(W x + b)`, gated by a sigmoid.

    Queries and keys are normed head by head, each channel with a gain of its own.

    Lin et al. 2025; `ForgettingAttention` of flash-linear-attention with its output gate, without
    its grouped keys.
    """

    def stream(name: str) -> AbstractLayer:
        projected = linear(f"{name}_proj", model)
        norm = Named(f"{name}_norm", Norm(epsilon=EPSILON, groups=heads))
        return projected >> norm if qk_norm else projected

    fade = Decay(Computed(linear("f_proj", heads, bias=True) >> Wide() >> LogSigmoid(), log=True))
    answer = Recall(
        SOFTMAX.replace(gate=fade),
        query=stream("q"),
        key=stream("k"),
        value=linear("v_proj", model),
        heads=heads,
    )
    return Tied(answer * (linear("g_proj", model) >> Sigmoid()) >> linear("o_proj", model))


def path_attention(
    model: int, heads: int = 32, rank: int = 32, qk_norm: bool = False, forget: bool = False
) -> Tied:
    """Softmax attention whose stored keys lose a part of a direction at every token.

    The direction is `w = convolve(W2 W1 x)`, a silu behind it, at length 1; the part that goes is
    `2 sigmoid(W x + b)`. With `forget`, logits fade by `sum logsigmoid(W x + b)` times the scale
    `key^-1/2` of the softmax, where forgetting attention does not scale what fades.

    Yang et al. 2025 ("PaTH attention"); `PaTHAttention` of flash-linear-attention, without its
    grouped keys.
    """

    def stream(name: str) -> AbstractLayer:
        projected = linear(f"{name}_proj", model)
        return projected >> head_norm(f"maybe_{name}_norm", heads) if qk_norm else projected

    convolution = Named("w_conv1d", ShortConvolution(3))
    direction = low_rank("w_proj", rank, model) >> convolution >> Silu()
    gate = Householder(sigmoid(linear("bt_proj", heads, bias=True), scale=2.0))
    if forget:
        scale = Scale((model // heads) ** -0.5)
        fading = linear("g_proj", heads, bias=True) >> Wide() >> LogSigmoid() >> scale
        gate = gate @ Decay(Computed(fading, log=True))
    answer = Recall(
        SOFTMAX.replace(gate=gate),
        query=stream("q"),
        key=stream("k"),
        value=linear("v_proj", model),
        erase=unit(direction, heads),
        heads=heads,
    )
    return Tied(answer >> linear("o_proj", model))
