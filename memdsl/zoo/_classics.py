"""The classics, one expression each: read this file to learn what a published memory is."""

from ..spec._capacity import AddToNearest, Budget, Smallest, Window
from ..spec._feature import EluPlusOne, L2Norm
from ..spec._gate import Coherence, Decay, DiagonalDecay, Novelty
from ..spec._kernel import Dot, Exp, Pullback
from ..spec._memory import AbstractMemory, Chained, Memory
from ..spec._number import FromInput, InverseRoot, Learned
from ..spec._radial import RBF
from ..spec._read import Before, Evaluate, Normalised
from ..spec._write import Delta, Hebb, Ridge


def linear_attention() -> Memory:
    """`S <- S + phi(k) v^T`, `y = S^T phi(q) / (z . phi(q))`, with `phi = elu + 1`.

    Katharopoulos et al. 2020, "Transformers are RNNs", eq. 10-12.
    """
    return Memory(Dot().pullback(EluPlusOne()), Hebb(), read=Normalised(prior=1e-10))


def linear_attention_identity() -> Memory:
    """`S <- S + k v^T`, `y = S^T q / sqrt(d)`: no feature, and nothing divided.

    The un-normalised form of flash-linear-attention's `LinearAttention`.
    """
    return Memory(Dot(), Hebb(), read=Evaluate(scale=InverseRoot("key")))


def retnet() -> Memory:
    """`S <- gamma S + k v^T`, with one gamma a head, here trained and starting at 1 - 2^-5.

    Sun et al. 2023, "Retentive Network", eq. 6; there gamma is fixed at `1 - 2^(-5 - head)`.
    """
    decay = Decay(Learned(0.96875, squash="sigmoid"))
    return Memory(Dot(), Hebb(), decay, read=Evaluate(scale=InverseRoot("key")))


def mamba2() -> Memory:
    """`S <- exp(-exp(A) dt) S + k v^T`, with dt read off the token: the scalar-gated linear memory.

    Dao and Gu 2024, "Transformers are SSMs", with q = C, k = B and v = dt x.
    """
    return Memory(Dot(), Hebb(), Decay(FromInput("dt")))


def gla() -> Memory:
    """`S <- diag(alpha) S + k v^T`, with `alpha = sigmoid(W x)^(1/16)`, one a channel of the key.

    Yang et al. 2024, "Gated Linear Attention", eq. 3.
    """
    gate = DiagonalDecay(FromInput("sigmoid", per="key_channel", temperature=16.0, rank=16))
    return Memory(Dot(), Hebb(), gate, read=Evaluate(scale=InverseRoot("key")))


def rwkv6() -> Memory:
    """`y = (S + diag(u) k v^T)^T q`, read before `S <- diag(w) S + k v^T` is written.

    Peng et al. 2024, "Eagle and Finch", eq. 17-19.
    """
    gate = DiagonalDecay(FromInput("sigmoid", bias=4.0, per="key_channel"))
    return Memory(Dot(), Hebb(), gate, read=Before(bonus=Learned(per="key_channel")))


def delta_net() -> Memory:
    """`S <- S + beta k (v - S^T k)^T` on unit keys: each write corrects what was recalled.

    Schlag et al. 2021, "Linear Transformers Are Secretly Fast Weight Programmers", eq. 24.
    """
    return Memory(
        Dot().pullback(L2Norm()),
        Delta(rate=FromInput("sigmoid")),
        read=Evaluate(scale=InverseRoot("key")),
    )


def gated_delta_net() -> Memory:
    """`S' = alpha S`, `S <- S' + beta k (v - S'^T k)^T`: the error is of the decayed memory.

    Yang et al. 2024, "Gated Delta Networks", eq. 10.
    """
    return delta_net().replace(gate=Decay(FromInput("dt")))


def kimi_delta_attention() -> Memory:
    """Gated DeltaNet with one decay a channel of the key.

    Kimi Team 2025, "Kimi Linear", eq. 1.
    """
    return delta_net().replace(gate=DiagonalDecay(FromInput("dt", per="key_channel", rank=32)))


def gated_delta_net2() -> Memory:
    """`S' = diag(alpha) S`, `S <- S' + k (w * v - S'^T (b * k))^T`: erase and write gates.

    Gated DeltaNet-2; `b = w = beta` is Kimi Delta Attention.
    """
    write = Delta(
        erase_gate=FromInput("sigmoid", per="key_channel"),
        write_gate=FromInput("sigmoid", per="value_channel"),
    )
    return kimi_delta_attention().replace(write=write)


def delta_product() -> Memory:
    """Two delta writes a token, with different keys, and one read after both.

    Siems et al. 2025, "DeltaProduct", eq. 5; rates up to 2 give negative eigenvalues.
    """
    return delta_net().replace(write=Delta(rate=FromInput("sigmoid", scale=2.0)).times(2))


def comba() -> Memory:
    """`S <- alpha S + beta k (v - S^T p)^T`: the *undecayed* memory is asked at a key p of its own.

    Hu et al. 2025, "Comba", eq. 9.
    """
    write = Delta(rate=FromInput("sigmoid"), recall="previous", erase="own")
    return gated_delta_net().replace(write=write)


def rwkv7() -> Memory:
    """`S <- diag(w) S - b (a^T S) + k v^T`: asked at a, taken away at b, written at k.

    Peng et al. 2025, "RWKV-7 Goose", eq. 2; b holds the in-context learning rate.
    """
    gate = DiagonalDecay(FromInput("sigmoid", bias=4.0, per="key_channel"))
    return Memory(Dot(), Delta(recall="previous", erase="own", remove="own"), gate)


def longhorn() -> Memory:
    """`S <- S + beta / (1 + beta |k|^2) k (v - S^T k)^T`: the error *after* the step is descended.

    Liu et al. 2024, "Longhorn", eq. 6, without its diagonal approximation.
    """
    return Memory(Dot(), Delta(rate=FromInput("sigmoid"), implicit=True))


def oja_net() -> AbstractMemory:
    """`S <- S + beta (k - S v) v^T`: DeltaNet with keys and values swapped, read from the other side.

    Irie et al. 2022, "Neural Differential Equations for Learning to Program Neural Nets".
    """
    return delta_net().replace(read=Evaluate()).transpose()


def mesa_net() -> Memory:
    """`y = B^T (H + Lambda)^-1 q`, with `H <- alpha H + beta k k^T` and `B <- alpha B + beta k v^T`.

    Von Oswald et al. 2025, "MesaNet", eq. 8.
    """
    return mesa_net_ungated().replace(gate=Decay(FromInput("sigmoid", bias=5.0)))


def mesa_net_ungated() -> Memory:
    """MesaNet without forgetting: the ridge regression of every prefix.

    Von Oswald et al. 2025, "MesaNet", with alpha = 1.
    """
    strength = Learned(1.0, per="key_channel", squash="softplus", floor=0.25)
    return Memory(Dot().pullback(L2Norm()), Ridge(strength, rate=FromInput("sigmoid")))


def softmax() -> Memory:
    """`y = sum_i exp(k_i . q / sqrt(d)) v_i / sum_i exp(k_i . q / sqrt(d))`.

    Vaswani et al. 2017, "Attention Is All You Need", eq. 1, causal.
    """
    return Memory(Exp(InverseRoot("key") * Dot()), Hebb(), read=Normalised())


def sliding_window() -> Memory:
    """Softmax attention over the latest 16 tokens.

    Beltagy et al. 2020, "Longformer"; sinks as in Xiao et al. 2024 are `Window(n, sinks=4)`.
    """
    return softmax().replace(capacity=Window(16))


def forgetting_attention() -> Memory:
    """Softmax attention whose logits fade by `sum log f`, f read off every token.

    Lin et al. 2025, "Forgetting Transformer", eq. 4.
    """
    return softmax().replace(gate=Decay(FromInput("sigmoid", bias=4.0)))


def ada_transformer() -> Chained:
    """Softmax attention whose answer is the query of a linear memory with a trained start.

    Behrouz et al. 2025, "Nested Learning", eq. 69, in column form.
    """
    return softmax() >> Memory(Dot(), Hebb(), initial=Learned(1.0))


def nadaraya_watson() -> Memory:
    """`y = sum_i kappa(k_i, q) v_i / sum_i kappa(k_i, q)` with a Gaussian of trained width.

    Nadaraya 1964, Watson 1964.
    """
    return Memory(_gaussian(), Hebb(), read=Normalised())


def rbf_delta() -> Memory:
    """`f <- f + beta kappa(k, .) (v - f(k))` with a Gaussian: kernel LMS as a sequence layer.

    DeltaNet and kernel LMS (Liu, Pokharel and Principe 2008) are one spec with two kernels.
    """
    return Memory(_gaussian(), Delta(rate=FromInput("sigmoid", bias=-2.0)))


def rbf_gated_delta() -> Memory:
    """The gated delta rule in the space of a Gaussian kernel: a cell that no zoo has."""
    return rbf_delta().replace(gate=Decay(FromInput("sigmoid", bias=5.0)))


def rbf_ridge() -> Memory:
    """`y = kappa(q, K) (kappa(K, K) + lambda)^-1 V`: the Gaussian-process mean of every prefix."""
    return Memory(_gaussian(), Ridge(Learned(1.0, squash="softplus", floor=1e-3)))


def rbf_delta_budget() -> Memory:
    """Kernel LMS that keeps 16 atoms; the smallest makes room."""
    return rbf_delta().replace(capacity=Budget(16, evict=Smallest()))


def klms() -> Memory:
    """`f <- f + 0.2 kappa(x, .) (y - f(x))`.

    Liu, Pokharel and Principe 2008, "The Kernel Least-Mean-Square Algorithm", eq. 9.
    """
    return Memory(RBF(scale=1.0), Delta(rate=0.2))


def qklms() -> Memory:
    """Kernel LMS that adds to the nearest atom where there is one within 0.5.

    Chen et al. 2012, "Quantized Kernel Least Mean Square Algorithm", table 1.
    """
    return klms().replace(gate=Novelty(0.5), capacity=Budget(256, merge=AddToNearest()))


def norma() -> Memory:
    """Kernel LMS whose coefficients fade by `1 - 0.005`, over the latest 256 atoms.

    Kivinen, Smola and Williamson 2004, "Online Learning with Kernels", eq. 9.
    """
    return klms().replace(gate=Decay(0.995), capacity=Budget(256))


def knlms() -> Memory:
    """Normalised LMS on the kernels of a dictionary whose atoms are at most 0.95 coherent.

    Richard, Bermudez and Honeine 2009, "Online Prediction of Time Series Data With Kernels", eq. 32.
    """
    write = Delta(rate=0.5, on="atoms", normalise=1e-2)
    return Memory(RBF(scale=1.0), write, Coherence(0.95), Budget(256))


def sliding_window_ridge() -> Memory:
    """The ridge regression of the latest 64 pairs.

    Van Vaerenbergh, Via and Santamaria 2006, "A Sliding-Window Kernel RLS Algorithm".
    """
    return Memory(RBF(scale=1.0), Ridge(1e-2), capacity=Window(64))


def _gaussian() -> Pullback:
    """`exp(-|k - q|^2 / (2 s^2))` on unit vectors, s trained and starting at 8^-1/2."""
    return RBF(scale=Learned(0.35355, squash="exp")).pullback(L2Norm())
