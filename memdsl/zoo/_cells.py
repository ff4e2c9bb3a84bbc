"""Cells of the table that nobody has named: what the algebra says where no paper has been."""

from ..spec._gate import Decay
from ..spec._loss import Huber, Squared
from ..spec._memory import Memory
from ..spec._number import FromInput
from ..spec._read import Normalised
from ..spec._write import Delta, Descent, GaussSeidel, Reweight, Ridge
from ._classics import rbf_delta, rbf_ridge, softmax


def softmax_delta() -> Memory:
    """`u = beta (v - s(k))`, `s(q) = sum_i e_i u_i / sum_i e_i`: each pair corrects what attention says.

    DeltaFormer that asks at its own key, as DeltaNet does.
    """
    return softmax().replace(write=Delta(rate=FromInput("sigmoid")))


def softmax_reweight() -> Memory:
    """`(N, D) <- (N, D) + e(k, .) beta / D(k) (-g, w)`, `g = s(k) - v`: weighted softmax x delta.

    The functional gradient of a normalised read ("Retrieval-Centric Deep Learning", 2026, eq. 7) of
    the squared error: masses are learned beside values, and only where they grow.
    """
    write = Reweight(rate=FromInput("sigmoid"), negative="clip", loss=Squared())
    return softmax().replace(write=write, read=Normalised(prior=1.0))


def robust_kernel_delta() -> Memory:
    """`f <- f + beta kappa(k, .) clip(v - f(k), -0.5, 0.5)`: a kernel LMS that no outlier pulls far."""
    write = Descent(Huber(0.5), rate=FromInput("sigmoid", bias=-2.0))
    return rbf_delta().replace(write=write)


def gauss_seidel() -> Memory:
    """Two sweeps over all pairs towards the ridge regression: one is `Delta`, many are `Ridge`.

    `f = sum_i kappa(k_i, .) u_i`, each u_i in its turn what makes `f(k_i) + lambda u_i = v_i`.
    """
    return rbf_ridge().replace(write=Ridge(0.5, solver=GaussSeidel(2)))


def rbf_gated_ridge() -> Memory:
    """`y = kappa(q, K) (kappa(K, K) + lambda / w)^-1 V`, w fading: a Gaussian process that forgets.

    MesaNet in the space of a Gaussian kernel.
    """
    return rbf_ridge().replace(gate=Decay(FromInput("sigmoid", bias=5.0)))
