"""Softmax attention with something more, and attention with other kernels: one expression each.

Sizes are of one head: keys and queries `[time, key]`, values `[time, value]`; `sum_i` is over the
tokens up to the one that reads.
"""

from ..spec._capacity import Window
from ..spec._feature import L2Norm, Linear
from ..spec._gate import Decay, Householder, KeyDecay
from ..spec._kernel import AbstractKernel, Constant, Dot, Exp
from ..spec._memory import AbstractMemory, every, Memory
from ..spec._number import FromInput, Learned
from ..spec._radial import Laplace, Matern52, RationalQuadratic
from ..spec._read import Before, LocalLinear, Normalised, TopK
from ..spec._read_blocks import TopBlocks
from ..spec._streams import Answer, Key, Value
from ..spec._write import Delta, Hebb
from ._classics import softmax


def softmax_sink() -> Memory:
    """`y = sum_i e_i v_i / (sum_i e_i + exp(b))`: a trained sink takes what no key deserves.

    `e_i = exp(k_i . q / sqrt(d))`, over the latest 16 tokens; gpt-oss (2025), and
    flash-linear-attention's `sink_bias`. An atom of value 0 is always there.
    """
    read = Normalised(prior=Learned(1.0, squash="exp"))
    return softmax().replace(capacity=Window(16), read=read)


def streaming_attention() -> Memory:
    """Softmax attention over the first 4 tokens and the 16 latest.

    Xiao et al. 2024, "Efficient Streaming Language Models with Attention Sinks".
    """
    return softmax().replace(capacity=Window(16, sinks=4))


def alibi() -> Memory:
    """`y = sum_i e_i v_i / sum_i e_i`, `e_i = exp(k_i . q / sqrt(d) - m (t - i))`, one slope m a head.

    Press, Smith and Lewis 2022, "Train Short, Test Long"; there m is fixed, `2^(-8 head / heads)`.
    """
    return softmax().replace(gate=Decay(Learned(0.9, squash="sigmoid")))


def path_attention() -> Memory:
    """Softmax attention to keys that move, `k_i <- (I - beta w w^T) k_i` at every token, `|w| = 1`.

    Yang et al. 2025, "PaTH Attention", eq. 5; `zoo.layers.path_attention` is its layer. Keys, queries
    and w are brought to length 1, and logits scaled by a trained number; there keys may keep their
    length, or are normed by a root of mean squares.
    """
    kernel = Exp(Learned(4.0, squash="exp") * Dot()).pullback(L2Norm())
    gate = Householder(FromInput("sigmoid", scale=2.0))
    return Memory(kernel, Hebb(), gate, read=Normalised())


def wall_attention() -> Memory:
    """`e_i = exp(sum_n q_n k_in prod_l alpha_ln / sqrt(d))`: forgetting inside of the exponent.

    `wall_attn` of flash-linear-attention, whose gates start at sigmoid(8).
    """
    return softmax().replace(gate=KeyDecay(FromInput("sigmoid", bias=8.0, per="key_channel")))


def rwkv4() -> Memory:
    """`y = (N + u e^k v) / (D + u e^k)`, read before `(N, D) <- w (N, D) + e^k (v, 1)` is written.

    Peng et al. 2023, "RWKV", eq. 16, with log u and -log w there for u and w here: one head a channel,
    its key one number and its query always 1. The receptance that gates y is of the layer.
    """
    read = Before(Normalised(), bonus=Learned(1.0, squash="exp"))
    return Memory(Exp(Dot()), Hebb(), Decay(Learned(0.9, squash="sigmoid")), read=read)


def deltaformer() -> Memory:
    """`u = v - beta sum_i softmax(k_i . q / sqrt(d)) u_i`, then attention over u: softmax x delta.

    Zhong et al. 2025, "Understanding Transformer from the Perspective of Associative Memory", eq. 26,
    where what is erased is found at the query; here at an `erase_keys` of its own, for a run to give
    the query as. There beta multiplies what is erased alone, here the value too.
    """
    return softmax().replace(write=Delta(rate=FromInput("sigmoid"), erase="own"))


def dsa() -> Memory:
    """Softmax attention to the 8 keys that 4 cheap channels rank highest, `(W k) . (W q)`.

    DeepSeek-AI 2025, "DeepSeek-V3.2", eq. 1-2, with 2048 keys, ranked there by `sum_j w_j relu(q_j . k)`
    over coordinates of their own, which a kernel of one's own says. No gradient flows through the choice:
    W is to be trained by another loss.
    """
    return softmax().replace(read=TopK(8, by=Dot().pullback(Linear(4))))


def nsa(size: int = 64, count: int = 16, window: int = 512) -> AbstractMemory:
    """Three softmax attentions, each with a gate: to the means of blocks, to the tokens of the blocks
    that rank highest, and to the latest tokens.

    Yuan et al. 2025, "Native Sparse Attention", eq. 5. `size` is that of a block and `count` how many
    blocks are read, the first, the reader's own and the one before always among them. The mean stands
    for a block, as in flash-linear-attention; there the heads of a group choose together
    (`TopBlocks(group=...)`), and queries and keys are turned by their places.
    """
    mean = Memory(Constant(), capacity=Window(size), read=Normalised())
    key, value = (Answer(mean.of(value=stream)) for stream in (Key(), Value()))
    compressed = every(size, softmax()).of(key=key, value=value)
    selected = softmax().replace(read=TopBlocks(count, size))
    near = softmax().replace(capacity=Window(window))
    gate = FromInput("sigmoid")
    return gate * compressed + gate * selected + gate * near


def moba(size: int = 512, count: int = 3) -> Memory:
    """Softmax attention to the tokens of the reader's own block, and of those that rank highest.

    Lu et al. 2025, "MoBA", eq. 5-6, a block being ranked by the mean of its keys.
    """
    return softmax().replace(read=TopBlocks(count, size, first=0, latest=1))


def local_linear_attention() -> Memory:
    """`y = a`, `(a, B) = argmin sum_i e_i |a + B (k_i - q) - v_i|^2 + lambda |B|^2`.

    Zuo et al. 2025, "Local Linear Attention": softmax attention, `e_i = exp(k_i . q / sqrt(d))`, fits a
    constant where this fits a line. The ridge lambda is trained.
    """
    return softmax().replace(read=LocalLinear(Learned(1.0, squash="exp")))


def laplace_attention() -> Memory:
    """`y = sum_i kappa_i v_i / sum_i kappa_i`, `kappa_i = exp(-|k_i - q| / s)`: Nadaraya and Watson.

    Nadaraya 1964, Watson 1964, with a kernel that has a corner where a query meets a key.
    """
    return _mean(Laplace(scale=Learned(1.0, squash="exp")))


def matern_attention() -> Memory:
    """Nadaraya and Watson with `kappa = (1 + r + r^2 / 3) exp(-r)`, `r = sqrt(5) |k - q| / s`.

    Between Laplace's corner and the Gaussian's smoothness: twice differentiable.
    """
    return _mean(Matern52(scale=Learned(1.0, squash="exp")))


def rational_attention() -> Memory:
    """Nadaraya and Watson with `kappa = (1 + |k - q|^2 / (2 s^2))^-1`, whose tail is a power.

    A key far away has a part in the answer, where a Gaussian has none.
    """
    return _mean(RationalQuadratic(scale=Learned(0.5, squash="exp")))


def _mean(kernel: AbstractKernel) -> Memory:
    """The weighted mean of values by a kernel of unit keys."""
    return Memory(kernel.pullback(L2Norm()), Hebb(), read=Normalised())
