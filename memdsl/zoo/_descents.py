"""Memories that learn by another loss, another algorithm or another retention, one expression each.

Where the paper has a small network for the memory, `Network` in the place of a `Memory` makes one.
"""

from ..spec._feature import L2Norm, LayerNorm, Weight
from ..spec._gate import Decay, LqNorm, Simplex, SoftThreshold
from ..spec._kernel import Dot, Polynomial, Pullback
from ..spec._loss import Huber, Power, ValueShift
from ..spec._memory import Memory, Network
from ..spec._number import FromInput, Learned
from ..spec._write import Descent


def ttt_linear() -> Network:
    """`f(x) = x + LN(W x + b)`, whose W and b descend `|f(k) - v|^2 / 2`, 16 tokens from one function.

    Sun et al. 2024, "Learning to (Learn at Test Time)", section 2.7. There a pair's `rate` is read off
    its token, and all that a minibatch has moved is multiplied by a trained number of the token that
    reads, a `gain`; flash-linear-attention has the gain alone, and reads `z + LN(z)`, `z = W q + b`.
    """
    return _test_time_trained(())


def ttt_mlp() -> Network:
    """`f(x) = x + LN(W_2 gelu(W_1 x + b_1) + b_2)`, trained as `ttt_linear`; here 64 are hidden.

    Sun et al. 2024, "Learning to (Learn at Test Time)", section 2.7; there four times the key's size.
    """
    return _test_time_trained((64,))


def titans() -> Memory:
    """`s <- mu s - theta k (S_0^T k - v)^T`, `S <- alpha S + s`: momentum, and errors of S_0, the matrix
    at the beginning of 16 tokens.

    Behrouz et al. 2025, "Titans", eq. 13-14 and 16 (`minibatch=1` is the rule before it is made
    parallel), with a matrix for the memory. flash-linear-attention reads `z + LN(z)` and descends the
    error after a layer norm, by a gradient that is not quite that of it.
    """
    return Memory(_unit(), _titans(), _fading(), initial=Learned(1.0))


def titans_mlp() -> Network:
    """`s <- mu s - theta dl/dw`, `w <- alpha w + s` for the weights w of `f(x) = x + W_2 silu(W_1 x)`.

    Behrouz et al. 2025, "Titans", section 3.1, in minibatches of 16; here 64 are hidden.
    """
    return Network(
        _titans(), (64,), _fading(),
        activation="silu", bias=False, before=L2Norm(), residual=True, initial=Learned(1.0),
    )  # fmt: skip


def omega_net() -> Memory:
    """`S <- alpha S - sum_i gamma_i phi(k_i) (S^T phi(k_i) - v_i)^T` over the latest 4 pairs, with phi
    the products of two channels.

    Behrouz et al. 2025, "Atlas", eq. 9 (the Omega rule), with a matrix for the memory; "Nested
    Learning", eq. 68, with the gradient that it lacks and the memory before the step.
    """
    write = Descent(rate=FromInput("sigmoid", scale=0.25), window=4, recall="previous")
    return Memory(Polynomial(2).pullback(L2Norm()), write, _fading())


def atlas() -> Memory:
    """`s <- mu s - sum_i gamma_i gradient_i`, `S <- alpha S + eta orthogonal(s)`: the Omega rule, its
    step made orthogonal by Newton and Schulz.

    Behrouz et al. 2025, "Atlas", section 5, with a matrix for the memory.
    """
    write = omega_net().write.replace(
        momentum=FromInput("sigmoid"), orthogonalise=True, gain=FromInput("sigmoid", scale=0.1)
    )
    return omega_net().replace(write=write)


def moneta() -> Memory:
    """`A <- alpha A - eta k (3 sign(e) |e|^2)^T`, `e = S^T k - v`; S is the mirror image of A under
    `|A|_4^2 / 2`.

    Behrouz et al. 2025, "It's All Connected" (MIRAS), with (p, q) = (3, 4) and a matrix for the memory.
    The map is the exact one, `sign(A) |A|^(1/3) |A|_(4/3)^(2/3)`. It makes the step of a matrix whose
    entries are alike longer by the root of their number, 32 times for 32 x 32, and the cubic loss lets a
    step that is too long run away: so the highest rate here is 0.003 (at 0.1 answers overflow).
    """
    return _moneta(0.003, LqNorm(4.0))


def _moneta(highest: float, norm: LqNorm) -> Memory:
    write = Descent(Power(3.0), rate=FromInput("sigmoid", scale=highest))
    return Memory(_unit(), write, _fading() @ norm)


def moneta_miras() -> Memory:
    """Moneta with the map that the paper is quoted with, `S = A / |A|_4^2`.

    Behrouz et al. 2025, "It's All Connected" (MIRAS). It is not the minimiser of its own problem, and
    grows without bound as A vanishes.
    """
    return _moneta(0.1, LqNorm(4.0, form="miras"))


def yaad() -> Memory:
    """`S <- alpha S - eta k clip(S^T k - v, -1, 1)^T`: an outlier pulls no harder than 1.

    Behrouz et al. 2025, "It's All Connected" (MIRAS), with a matrix for the memory and a threshold that
    does not change. The loss as printed there jumps at the threshold: `Huber(1.0, by="switch")`.
    """
    return Memory(_unit(), Descent(Huber(1.0), rate=FromInput("sigmoid")), _fading())


def memora() -> Memory:
    """`S <- softmax(lambda log S - eta k (S^T k - v)^T)`: each value channel weighs the key's channels.

    Behrouz et al. 2025, "It's All Connected" (MIRAS), with a matrix for the memory.
    """
    gate = Simplex(FromInput("sigmoid", bias=4.0))
    return Memory(_unit(), Descent(rate=FromInput("sigmoid")), gate)


def elastic_net() -> Memory:
    """`S <- soft(alpha S - eta k (S^T k - v)^T, 0.001)`: small numbers become 0 and stay there.

    The elastic-net retention of Behrouz et al. 2025, "It's All Connected" (MIRAS).
    """
    return Memory(_unit(), Descent(rate=FromInput("sigmoid")), _fading() @ SoftThreshold(1e-3))


def value_shift() -> Memory:
    """`S <- alpha S - eta (1 + 0.1 / |e|) k e^T`, `e = S^T k - v`: right for the worst value near v.

    The robust objective of Behrouz et al. 2025, "It's All Connected" (MIRAS).
    """
    write = Descent(ValueShift(0.1), rate=FromInput("sigmoid"))
    return Memory(_unit(), write, _fading())


def _unit() -> Pullback:
    """The inner product of unit keys."""
    return Dot().pullback(L2Norm())


def _fading() -> Decay:
    """A decay that begins near 1."""
    return Decay(FromInput("sigmoid", bias=4.0))


def _titans() -> Descent:
    rate, momentum = FromInput("sigmoid", bias=-2.0), FromInput("sigmoid")
    return Descent(rate=rate, momentum=momentum, minibatch=16, recall="previous")


def _test_time_trained(widths: tuple[int, ...]) -> Network:
    norm = LayerNorm(Weight(vector=True, start="ones"), Weight(vector=True, start="zeros"))
    write = Descent(rate=FromInput("sigmoid", bias=-2.0), minibatch=16)
    return Network(write, widths, after=norm, residual=True, initial=Learned(1.0))
