"""The minimiser itself, and the ways to solve for it."""

from typing import Any, ClassVar

from ._base import plain_float, sort, Spec, whole
from ._number import Number, number
from ._write_base import AbstractWrite, Recalled


class AbstractSolver(Spec):
    """How a ridge problem is solved."""

    example: ClassVar[str] = "Cholesky(), ConjugateGradient() or GaussSeidel(3)"


class Cholesky(AbstractSolver):
    """Exactly, by a Cholesky factor.

    ??? example

        ```python
        >>> import memdsl as md
        >>> md.Ridge(0.1) == md.Ridge(0.1, solver=md.Cholesky())
        True

        ```
    """


class ConjugateGradient(AbstractSolver):
    """By conjugate gradients, at most `steps`, until the residual is below `tolerance`.

    **Arguments:**

    - `steps`: at least 1; as many as there are features are exact in exact arithmetic.
    - `tolerance`: at least 0; of the squared residual.

    ??? example

        ```python
        >>> import memdsl as md
        >>> md.Ridge(0.1, solver=md.ConjugateGradient(steps=15))
        Ridge(0.1, solver=ConjugateGradient(steps=15))

        ```

    Source: von Oswald et al. 2025 (MesaNet), with 30 steps.
    """

    steps: int = whole(at_least=1, default=30)
    tolerance: float = plain_float(at_least=0.0, default=1e-12)


class GaussSeidel(AbstractSolver):
    """By sweeps over the stored pairs, oldest first, from zero: it keeps the pairs as atoms.

    One sweep is `Delta` with the rate `1 / (kernel(k, k) + strength)`; many are `Cholesky`.

    **Arguments:**

    - `sweeps`: at least 1.

    ??? example

        ```python
        >>> import memdsl as md
        >>> md.Ridge(0.1, solver=md.GaussSeidel(3))
        Ridge(0.1, solver=GaussSeidel(3))

        ```
    """

    sweeps: int = whole(at_least=1, default=1)
    positional: ClassVar[int] = 1


class Ridge(AbstractWrite):
    """The minimiser itself: `f = argmin sum_i w_i |f(k_i) - v_i|^2 + strength |f|^2`.

    w_i is `rate` times the decay since token i; the strength does not fade. With features the
    answer is `B^T (H + strength)^-1 phi(q)`, `H = sum w phi phi^T`, `B = sum w phi v^T`.

    **Arguments:**

    - `strength`: positive; for a matrix, also one `per="key_channel"` (MesaNet).
    - `rate`: the weight of a pair, at least 0. In a growing layer, where every pair weighs 1, the
        step η of the targets `f(k) - η g` that the layer sets itself.
    - `solver`: `Cholesky()`, `ConjugateGradient(...)` or `GaussSeidel(n)`.

    **Raises:** `SpecError` where an argument is out of range; and beside parts of a memory that
    speak of coefficients, which are known only when the problem is solved.

    ??? example

        ```python
        >>> import memdsl as md
        >>> md.Memory(md.RBF(), md.Ridge(0.01))  # the mean of a Gaussian process
        Memory(RBF(), write=Ridge(0.01))

        ```

    Source: von Oswald et al. 2025 (MesaNet);
    kernel recursive least squares, Engel et al. 2004. That a linear layer grows by `-η G H^-1` is
    FOOF, Benzing 2022, for one batch.
    """

    strength: Number = number(
        default=1.0,
        above=0.0,
        per=("layer", "head", "key_channel"),
        of_input=False,
        meaning="ridge strength",
    )
    rate: Number = number(default=1.0, at_least=0.0, meaning="weight of the pair")
    solver: AbstractSolver = sort(AbstractSolver, default=Cholesky())
    positional: ClassVar[int] = 1

    def coefficient(self, value: Any, recalled: Recalled, norm: Any) -> tuple[Any, Any]:
        return value, 1.0  # a target, kept until it is solved for
