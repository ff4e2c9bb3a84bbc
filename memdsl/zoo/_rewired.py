"""Memories that see other vectors of a token than their key and value: one expression each.

Sizes are of one head: keys and queries `[time, key]`, values `[time, value]`.
"""

from ..spec._feature import L2Norm, Preconditioner, Silu, Softmax
from ..spec._gate import AbstractGate, Decay, DiagonalDecay, ValueDecay
from ..spec._kernel import Constant, Dot
from ..spec._memory import AbstractMemory, Memory, Rewired
from ..spec._number import FromInput, InverseRoot, Learned
from ..spec._read import Evaluate
from ..spec._streams import Answer, Key, Own, Query
from ..spec._write import Delta, Hebb


SCALED = Evaluate(scale=InverseRoot("key"))


def lightnet() -> AbstractMemory:
    """`y = S^T silu(q) / sqrt(d)`, row n of S being the mean of all values weighed by `exp(k_n)`.

    Qin et al. 2024, "You Only Scan Once", eq. 9, there `S <- diag(e^(z_{t-1} - z_t)) S +
    e^(k_t - z_t) v^T` for `z_t = log sum_{i <= t} e^(k_i)`, which is how it runs.
    """
    return Memory(Dot(), Hebb(), read=SCALED).averaged("key").of(query=Query() >> Silu())


def abc(slots: int | None = None) -> Rewired:
    """`y = V^T softmax(K q / sqrt(d))` on slots: row m of K and V is a mean of all keys and values, both
    weighed by `exp(s_m)` for logits s of the token; by default as many as the key has channels.

    Peng et al. 2022, "ABC: Attention with Bounded-memory Control", eq. 6. flash-linear-attention
    clamps the logits to [-32, 32]; the running means here need no bound.
    """
    keys = Memory(Dot(), Hebb(), read=SCALED).averaged("value").of(value=Own())
    values = Memory(Dot()).averaged("key").of(key=Own())
    own = FromInput("identity", per="key_channel")
    return (keys >> Softmax() >> values).of(own=own, own_size=slots)


def gsa(slots: int | None = None) -> Rewired:
    """Gated slot attention: `y = V^T softmax(K q / sqrt(d))` on slots that fade, each by its own factor,
    `K <- diag(a) K + s k^T`, `V <- diag(a) V + s v^T`; by default as many as the key has channels.

    Zhang et al. 2024, "Gated Slot Attention", eq. 9. There `s = 1 - a`; here s, and the a of either
    memory, are read off the token each by itself: `zoo.layers.gsa` computes them from one another.
    """
    forget = FromInput("sigmoid", per="value_channel", temperature=8.0)
    keys = Memory(Dot(), Hebb(), ValueDecay(forget), read=SCALED).of(value=Own())
    gate = DiagonalDecay(forget.replace(per="key_channel"))
    values = Memory(Dot(), Hebb(), gate).of(key=Own())
    own = FromInput("sigmoid", per="key_channel")
    return (keys >> Softmax() >> values).of(own=own, own_size=slots)


def preconditioned_delta_net() -> Rewired:
    """Gated DeltaNet that writes at `M * k`, M being small for channels whose `k^2` has been large.

        A <- a A + b k * k,   r = log(A + 1e-6) - s,   M = 1.5^(-r / (1 + |r|))
        S' = alpha S,   S <- S' + beta (M * k) (v - S'^T k)^T

    Tumma et al. 2026, "Preconditioned DeltaNet": the diagonal of the Gram matrix of keys in the
    place of the matrix itself. s is trained, one a head; a and b are read off the token as alpha
    and beta are.
    """
    return _preconditioned(Decay(FromInput("dt")))


def preconditioned_kda() -> Rewired:
    """`preconditioned_delta_net` with one decay a channel of the key.

    Tumma et al. 2026, "Preconditioned DeltaNet", on Kimi Delta Attention.
    """
    return _preconditioned(DiagonalDecay(FromInput("dt", per="key_channel", rank=32)))


def _preconditioned(gate: AbstractGate) -> Rewired:
    key = Key() >> L2Norm()
    squares = Memory(Constant(), Hebb(FromInput("sigmoid")), Decay(FromInput("dt")))
    size = Answer(squares.of(value=key * key)) >> Preconditioner(Learned(0.0))
    delta = Memory(Dot(), Delta(FromInput("sigmoid"), erase="own"), gate, read=SCALED)
    return delta.of(key=key * size, erase=key, query=Query() >> L2Norm())
