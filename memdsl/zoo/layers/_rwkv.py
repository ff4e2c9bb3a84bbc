"""Published layers that mix every token with the one before it: RWKV-6 and RWKV-7."""

import math
from collections.abc import Sequence

from ...spec._computed import Computed
from ...spec._feature import (
    AbstractFeature,
    Exponential,
    Grouped,
    Identity,
    L2Norm,
    Only,
    Sigmoid,
    Silu,
    Slice,
    Spread,
    Tanh,
    Total,
    Wide,
)
from ...spec._gate import DiagonalDecay
from ...spec._kernel import Dot
from ...spec._layer import Named, Norm, Recall, Shift, Tied, Vector
from ...spec._layer_base import AbstractLayer, Map
from ...spec._memory import Memory
from ...spec._number import Learned
from ...spec._read import Before
from ...spec._write import Delta, Hebb
from ._parts import EPSILON, linear, ramp, ROOT_E, X, zigzag


def _lora(
    name: str, rank: int, size: int, between: AbstractFeature, bias: Sequence[float] | None
) -> AbstractLayer:
    """Two projections with a function between them, which start at their bias alone."""
    first = linear(f"{name}.lora.0", rank, start="zeros")
    gain = 0.1 * math.sqrt(max(rank / size, 1.0))
    second = linear(f"{name}.lora.2", size, start="orthogonal", gain=gain)
    low = first >> second if isinstance(between, Identity) else first >> between >> second
    if bias is None:
        return low
    return low + Named(f"{name}.lora.2.bias", Vector(size, start=tuple(bias)))


def _group_norm(heads: int, epsilon: float, start: float = 1.0) -> Named:
    norm = Norm(epsilon=epsilon, groups=heads, centred=True, bias=True, start=start)
    return Named("g_norm", norm)


def rwkv6(
    model: int, heads: int = 4, expand_key: float = 0.5, rank: int = 32, gate_rank: int = 64
) -> Tied:
    """Each stream has its own, data-dependent mix of x with the token before it.

        z = tanh(W (x + d mu));   x_i = x + d (W_i z_i + b_i),   d = x_{t-1} - x_t

    for the five streams r, w, k, v, g. The log decay is `-exp(W2 tanh(W1 x_w) + b)`; the read comes
    before the write, with a trained bonus for the token itself, unscaled. Each head's answer is
    centred and normed, and gated by silu.

    Peng et al. 2024; `RWKV6Attention` of flash-linear-attention.
    """
    key, start, gain = int(expand_key * model), "xavier", 2.0**-2.5
    before = Named("delta", Shift() - X)
    mixed = X + before * Named("x_proj.0.mu", Vector(model))
    z = Named("z", mixed >> linear("x_proj.0.linear", 5 * rank, start=start, gain=gain) >> Tanh())
    biases = Named("x_bias", Vector(5 * model))

    def stream(index: int) -> AbstractLayer:
        own = z >> Only(index * rank, (index + 1) * rank)
        weights = own >> linear("x_proj.2", model, start=start, gain=gain)
        shift = weights + (biases >> Slice(index * model, (index + 1) * model))
        return X + before * shift

    def projected(name: str, index: int, size: int) -> AbstractLayer:
        return stream(index) >> linear(f"{name}_proj.linear", size, start=start, gain=gain)

    fading = stream(1) >> _lora("w_proj.linear", gate_rank, key, Tanh(), [0.0] * key)
    gate = DiagonalDecay(Computed(-1.0 * (fading >> Exponential()), per="key_channel", log=True))
    bonus = Learned(0.0, per="key_channel", name="bonus")
    answer = Recall(
        Memory(Dot(), Hebb(), gate, read=Before(bonus=bonus)),
        query=projected("r", 0, key),
        key=projected("k", 2, key),
        value=projected("v", 3, model),
        heads=heads,
    )
    gated = (answer >> _group_norm(heads, EPSILON)) * (projected("g", 4, model) >> Silu())
    return Tied(gated >> linear("o_proj", model, start=start, gain=gain))


def rwkv7(
    model: int,
    head_size: int = 64,
    ranks: tuple[int, int, int, int] = (64, 64, 32, 128),
    layer: int = 0,
    layers: int = 12,
) -> Tied:
    """The memory before it fades is asked at a unit key, and what it recalls taken away at `a` of it.

    Six streams `x + d x_i`, `d = x_{t-1} - x_t`, give r, w, k, v, a and g. The log decay is
    `-exp(-1/2) sigmoid(W2 tanh(W1 x_w) + b)`, the key that is asked `k k_k` at length 1, the key that
    is written `k (1 + (a - 1) k_a)`. Each head's answer is centred and normed, `(r k r_k) v` is added
    to it, and the sum is gated by `W2 sigmoid(W1 x_g)`.

    In every layer but the first, values go towards those of the first layer, v_first, by
    `sigmoid(W2 W1 x_v + b)`: the input is x and v_first side by side, `2 model` wide.

    `ranks` are of the decay, of a, of the value and of the gate; `layer` of `layers` sets where
    parameters start. Implementations differ in the epsilon of the unit key, which is 1e-12 here, and
    1e-6 where norms are fused.

    Peng et al. 2025; `RWKV7Attention` of flash-linear-attention.
    """
    heads, late = model // head_size, layer / max(layers - 1, 1)
    early = 1 - layer / layers
    x = X if layer == 0 else Named("x", Map(Slice(0, model)))
    delta = Named("delta", (x >> Shift()) - x)

    def stream(name: str, power: float) -> AbstractLayer:
        start = tuple(1.0 - (n / model) ** (power * early) for n in range(model))
        return x + delta * Named(f"x_{name}", Vector(model, start=start))

    def vector(name: str, start: float | tuple[float, ...]) -> Named:
        return Named(name, Vector(model, start=start))

    line, bend = ramp(model), zigzag(model, head_size)
    fall = [-6 + 6 * (u + 0.5) ** (1 + late**0.3) for u in line]
    decays = [w + 0.5 + 2.5 * z for w, z in zip(fall, bend, strict=True)]
    rates = [-0.19 + 0.3 * z + 0.4 * u for z, u in zip(bend, line, strict=True)]

    r = Named("r", stream("r", 0.2) >> linear("r_proj", model, start="orthogonal"))
    k = Named("k", stream("k", 0.7) >> linear("k_proj", model, start="orthogonal", gain=0.1))
    own = stream("v", 0.7)
    v = Named("v0", own >> linear("v_proj", model, start="orthogonal"))
    if layer > 0:
        towards = own >> _lora(
            "v_lora", ranks[2], model, Identity(), [0.73 - 0.4 * u for u in line]
        )
        first = Map(Slice(model, 2 * model))
        v = Named("v", v + (first - v) * (towards >> Sigmoid()))
    a = Named("a", stream("a", 0.9) >> _lora("a_lora", ranks[1], model, Identity(), rates))
    a = a >> Sigmoid()
    asked = Named(
        "asked",
        k * vector("k_k", tuple(0.71 - 0.1 * u for u in line)) >> Grouped(L2Norm(1e-24), heads),
    )
    written = Named("written", k * (1.0 + (a - 1.0) * vector("k_a", 1.02)))
    fading = (
        stream("w", 0.9) >> _lora("w_lora", ranks[0], model, Tanh(), decays) >> Wide() >> Sigmoid()
    )
    gate = DiagonalDecay(Computed(-ROOT_E * fading, per="key_channel", log=True))
    answer = Recall(
        Memory(Dot(), Delta(1.0, recall="previous", erase="own", remove="own"), gate),
        query=r,
        key=written,
        value=v,
        erase=asked,
        remove=asked * a,
        heads=heads,
    )
    normed = answer >> _group_norm(heads, head_size * EPSILON, ((layer + 1) / layers) ** 0.7)
    fit = r * written * vector("r_k", -0.04) >> Grouped(Total(), heads) >> Spread(head_size)
    out = stream("g", 0.2) >> _lora("g_lora", ranks[3], model, Sigmoid(), None)
    return Tied((normed + fit * v) * out >> linear("o_proj", model, start="zeros"))
