"""Matrices that only fade and add, or that correct, beside the classics: one expression each.

Sizes are of one head: keys and queries `[time, key]`, values `[time, value]`, S `[key, value]`. What
is read off the token here may be computed in another way in a published layer: see `zoo.layers`.
"""

from ..spec._feature import LayerNorm, Silu, Taylor, Weight
from ..spec._gate import Decay, DiagonalDecay
from ..spec._kernel import Constant, Dot, Polynomial
from ..spec._memory import AbstractMemory, level, Memory
from ..spec._number import FromInput, InverseRoot, Learned
from ..spec._read import Evaluate, Normalised
from ..spec._write import Delta, Hebb, Ridge
from ._classics import delta_product, gla, kimi_delta_attention, mamba2, mesa_net, rwkv7


def lightning_attention() -> Memory:
    """`S <- gamma S + silu(k) v^T`, `y = S^T silu(q)`: RetNet without its scale, after a silu.

    Qin et al. 2024, "Lightning Attention-2", eq. 2; there gamma is fixed, one a head and layer.
    """
    decay = Decay(Learned(0.96875, squash="sigmoid"))
    return Memory(Dot().pullback(Silu()), Hebb(), decay)


def simple_gla() -> Memory:
    """`S <- alpha S + k v^T`, with `alpha = sigmoid(w . x)^(1/16)`, one a head.

    `SimpleGatedLinearAttention` of flash-linear-attention; Mamba-2 with the gate of GLA.
    """
    gate = Decay(FromInput("sigmoid", temperature=16.0))
    return Memory(Dot(), Hebb(), gate, read=Evaluate(scale=InverseRoot("key")))


def log_linear_attention(levels: int = 5) -> AbstractMemory:
    """`y = sum_j lambda[l(i, j)] a_j (k_j . q) v_j`, `l = bit_length(i xor j)`: log-linear attention.

    Guo et al. 2025, "Log-Linear Attention", eq. 10, a_j being the decays since token j: one matrix a
    level, one weight a level and token. Five levels hold 16 tokens, and 15 there 2^14. Each level
    has a decay of its own here, where they share one there.
    """
    all_levels: AbstractMemory = FromInput("softplus") * level(0, mamba2())
    for number in range(1, levels):
        all_levels = all_levels + FromInput("softplus") * level(number, mamba2())
    return all_levels


def hgrn() -> Memory:
    """`h <- f * h + (1 - f) * v`, channel by channel: a delta rule whose one key is always 1.

    Qin et al. 2023, "Hierarchically Gated Recurrent Neural Network", eq. 5, h being `[value]` and
    `1 - f` the rate, `h <- h + (1 - f) * (v - h)`. There f has a floor that grows with depth. Where
    `(1 - f) * v` is given as the value, `ValueDecay(f)` of `Hebb` is the same function.
    """
    return Memory(Constant(1.0), Delta(rate=FromInput("sigmoid", per="value_channel")))


def hgrn2() -> Memory:
    """`S <- diag(f) S + k v^T` for keys `k = 1 - f`: what is let go makes room for what is written.

    Qin et al. 2024, "HGRN2", eq. 7. A bare memory is given its keys, so that `k = 1 - f` is for the
    layer to compute, as `zoo.layers.hgrn2` does; there f has a floor that grows with depth.
    """
    return gla().replace(gate=DiagonalDecay(FromInput("sigmoid", bias=4.0, per="key_channel")))


def based() -> Memory:
    """`y = sum_i kappa_i v_i / (sum_i kappa_i + 1e-6)`, `kappa = 1 + s + s^2 / 2`, `s = k . q / sqrt(d)`.

    Arora et al. 2024, "Based", eq. 3; there with keys of 16 channels, beside a sliding window.
    """
    return Memory(Dot().pullback(Taylor()), Hebb(), read=Normalised(prior=1e-6))


def rebased() -> Memory:
    """Based with `kappa = (n(k) . n(q))^2`, n a layer norm with a trained gain and shift.

    Aksenov et al. 2024, "Linear Transformers with Learnable Kernel Functions are Better In-Context
    Models", eq. 8; there keys and queries have a norm each, and s is scaled by 1 / sqrt(d).
    """
    norm = LayerNorm(Weight(vector=True, start="ones"), Weight(vector=True, start="zeros"))
    return Memory(Polynomial(2, offset=0.0).pullback(norm), Hebb(), read=Normalised(prior=1e-6))


def dplr() -> Memory:
    """`S <- diag(d) S - b (a^T S) + k v^T`: a transition that is diagonal plus low rank.

    `generalized_delta_rule/dplr` of flash-linear-attention, with b there the negative of this one.
    It is RWKV-7 with a free a and b, whose answer is scaled; every row of the delta family is one
    of its cases.
    """
    return rwkv7().replace(read=Evaluate(scale=InverseRoot("key")))


def iplr() -> Memory:
    """`S <- S - b (a^T S) + k v^T`: a transition that is the identity plus low rank.

    `generalized_delta_rule/iplr` of flash-linear-attention, with b there the negative of this one.
    """
    write = Delta(recall="previous", erase="own", remove="own")
    return Memory(Dot(), write, read=Evaluate(scale=InverseRoot("key")))


def gated_delta_product() -> Memory:
    """DeltaProduct whose memory fades once a token, before the first of its writes.

    Siems et al. 2025, "DeltaProduct", section 3; a reference operator has no scale, the layer has.
    """
    return delta_product().replace(gate=Decay(FromInput("dt")))


def gated_oja() -> AbstractMemory:
    """`S' = S diag(alpha)`, `S <- S' + beta (k - S' v) v^T`: Oja's rule with a decay a value channel.

    `gated_oja_rule` of flash-linear-attention: Kimi Delta Attention with keys and values swapped.
    """
    return kimi_delta_attention().replace(read=Evaluate()).transpose()


def kalman_net() -> Memory:
    """`y = B^T (H + Lambda)^-1 q`: the mean of a linear Gaussian model, a pair's noise being `1 / beta`.

    The Kalman gain `P k / (k^T P k + 1 / beta)`, `P = (H + Lambda)^-1`, takes S to the same matrix
    one pair after another. Gated KalmaNet (2025): MesaNet, whose rates here have no bound.
    """
    return mesa_net().replace(
        write=Ridge(
            Learned(1.0, per="key_channel", squash="softplus", floor=0.25),
            rate=FromInput("softplus"),
        )
    )


def normalised_delta() -> Memory:
    """`S <- S + beta k / (0.01 + |k|^2) (v - S^T k)^T`: the Kalman gain of noise 0.01 and P = I.

    Normalised least mean squares (Nagumo and Noda 1967), with any length of key.
    """
    write = Delta(rate=FromInput("sigmoid"), normalise=1e-2)
    return Memory(Dot(), write, read=Evaluate(scale=InverseRoot("key")))
