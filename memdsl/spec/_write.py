"""Writes: how a new pair changes the function."""

from typing import Any, ClassVar

from .._errors import SpecError
from ._base import sort, whole, written
from ._delta import Delta as Delta
from ._descent import Descent as Descent
from ._number import Number
from ._reweight import Reweight as Reweight
from ._ridge import (
    AbstractSolver as AbstractSolver,
    Cholesky as Cholesky,
    ConjugateGradient as ConjugateGradient,
    GaussSeidel as GaussSeidel,
    Ridge as Ridge,
)
from ._write_base import (
    AbstractWrite as AbstractWrite,
    rate as rate,
    Recalled as Recalled,
    RECALLS as RECALLS,
)


class Hebb(AbstractWrite):
    """`c = rate v`: the pair is added, whatever was there; the descent of `Inner`.

    **Arguments:**

    - `rate`: the step β; of the value, not of the mass.

    ??? example

        ```python
        >>> import memdsl as md
        >>> md.Memory(md.Dot(), md.Hebb(rate=md.FromInput("sigmoid")))
        Memory(Dot(), write=Hebb(rate=FromInput("sigmoid")))

        ```

    Source: Katharopoulos et al. 2020 with `Dot`, Vaswani et al. 2017 with `Exp`, both normalised;
    on (x, −dL/dy) the growing layer of "Retrieval-Centric Deep Learning" (2026), section 3.1.
    """

    rate: Number = rate()
    degree: ClassVar[float] = 0

    def coefficient(self, value: Any, recalled: Recalled, norm: Any) -> tuple[Any, Any]:
        return self.rate * value, 1.0


class Repeated(AbstractWrite):
    """`write` for `count` different pairs at every token, after one decay; `write.times(count)`.

    Its keys, values and rates come `count` to a token, and the read follows the last of them.

    **Raises:** `SpecError` for a write that is more than one atom a pair.

    ??? example

        ```python
        >>> import memdsl as md
        >>> md.Delta(rate=md.FromInput("sigmoid", scale=2.0)).times(2)
        Delta(rate=FromInput("sigmoid", scale=2.0)).times(2)

        ```

    Source: Siems et al. 2025 (DeltaProduct).
    """

    write: AbstractWrite = sort(AbstractWrite)
    count: int = whole(at_least=1)
    positional: ClassVar[int] = 2

    def __check__(self) -> None:
        write = self.write
        moving = isinstance(write, Descent) and not write.is_plain()
        spread = isinstance(write, Delta) and write.on == "atoms"
        if isinstance(write, Ridge | Repeated) or moving or spread:
            raise SpecError(
                f"{write!r} cannot be repeated within a token.",
                where=self,
                at="write",
                why="Only a write that is one atom a pair has a meaning pair by pair.",
                instead=f"{write.write!r}.times({self.count * write.count})."
                if isinstance(write, Repeated)
                else "Hebb, Delta or a plain Descent.",
            )

    def get_degree(self) -> float:
        return self.write.get_degree()

    def reads_before_decay(self) -> bool:
        return self.write.reads_before_decay()

    def coefficient(self, value: Any, recalled: Recalled, norm: Any) -> tuple[Any, Any]:
        return self.write.coefficient(value, recalled, norm)

    def __repr__(self) -> str:
        return f"{written(self.write, AbstractWrite.binding)}.times({self.count})"
