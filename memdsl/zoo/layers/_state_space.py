"""Published layers that began as state-space models: Mamba and Mamba-2."""

import math

from ...spec._computed import Computed
from ...spec._feature import Exponential, Silu, Slice, Softplus, Spread
from ...spec._gate import Decay, DiagonalDecay
from ...spec._kernel import Dot
from ...spec._layer import Named, Norm, Recall, ShortConvolution, Tied, Uniform, Vector
from ...spec._memory import Memory
from ...spec._write import Hebb
from ._parts import EPSILON, linear, log_decay, step_size


def mamba(
    model: int, inner: int | None = None, state: int = 16, rank: int | None = None, width: int = 4
) -> Tied:
    """One head for each of `inner` channels, each with a value of one number and a key of `state`.

    All heads share the key B and the query C. With the step `dt = softplus(W2 W1 u + b)` of a head,
    what is written is `dt u`, key channel n of head d fades by `exp(-exp(A_log[d, n]) dt)`, and u is
    added to the answer times D. Last comes the gate; there is no norm.

    `inner` is `2 model` by default, and `rank` `model / 16`. `exp(A_log[d, n])` starts at n + 1.

    Gu and Dao 2023; `Mamba` of flash-linear-attention.
    """
    size, rank = inner or 2 * model, rank or math.ceil(model / 16)
    packed = linear("in_proj", 2 * size)
    convolution = Named("conv1d", ShortConvolution(width, bias=True))
    u = Named("u", packed >> Slice(0, size) >> convolution >> Silu())
    read_off = u >> linear("x_proj", rank + 2 * state)
    bias = Vector(size, start=Uniform(1e-3, 0.1, through="softplus", log=True))
    projected = read_off >> Slice(0, rank) >> linear("dt_proj", size)
    step = Named("step", (projected + Named("dt_proj.bias", bias)) >> Softplus())
    rates = tuple(math.log(n + 1) for n in range(state))
    a = Named("A_log", Vector(size * state, start=rates)) >> Exponential()
    fade = Computed(-1.0 * a * (step >> Spread(state)), per="key_channel", log=True)
    answer = Recall(
        Memory(Dot(), Hebb(), DiagonalDecay(fade)),
        query=read_off >> Slice(rank + state, rank + 2 * state),
        key=read_off >> Slice(rank, rank + state),
        value=step * u,
        heads=size,
        key_size=state,
    )
    gate = packed >> Slice(size, 2 * size) >> Silu()
    skipped = answer + Named("D", Vector(size, start=1.0)) * u
    return Tied(skipped * gate >> linear("out_proj", model))


def mamba2(
    model: int, head_size: int = 64, state: int = 128, expand: int = 2, width: int = 4
) -> Tied:
    """One decay a head, one key B and one query C for all heads, and a value that the step scales.

    One projection gives `[z, x, B, C, dt]`; x, B and C are convolved together. The value is
    `softplus(dt + dt_bias) x`, the answer is not scaled, x is added to it times D (one a head), and
    it is gated by `silu(z)` *before* it is normed over the whole width.

    With several groups of B and C, published implementations differ in which head takes which; here
    there is one group.

    Dao and Gu 2024; `Mamba2` of flash-linear-attention.
    """
    size = expand * model
    heads, mixed = size // head_size, size + 2 * state
    packed = linear("in_proj", size + mixed + heads)
    convolution = Named("conv1d", ShortConvolution(width, bias=True))
    convolved = Named("convolved", packed >> Slice(size, size + mixed) >> convolution >> Silu())
    x = convolved >> Slice(0, size)
    rate = packed >> Slice(size + mixed, size + mixed + heads)
    step = Named("step", step_size(rate, heads))
    answer = Recall(
        Memory(Dot(), Hebb(), Decay(Computed(log_decay(step, heads, low=1.0), log=True))),
        query=convolved >> Slice(size + state, mixed),
        key=convolved >> Slice(size, size + state),
        value=x * (step >> Spread(head_size)),
        heads=heads,
        key_size=state,
    )
    skipped = answer + x * (Named("D", Vector(heads, start=1.0)) >> Spread(head_size))
    gated = skipped * (packed >> Slice(0, size) >> Silu())
    return Tied(gated >> Named("norm", Norm(epsilon=EPSILON)) >> linear("out_proj", model))
