"""What a write is: one *coefficient* at the key of a new pair.

`f <- f + kernel(k, .) (c, m)`: c is added to the value, m to the mass of a normalised memory.
"""

import math
from abc import abstractmethod
from typing import Any, ClassVar, NamedTuple, TYPE_CHECKING

from ._base import Spec
from ._number import number


if TYPE_CHECKING:
    from ._write import Repeated


RECALLS = ("decayed", "previous")


class Recalled(NamedTuple):
    """What the memory says at the key: the value N, the mass D, and the answer N or N / D."""

    value: Any
    mass: Any
    answer: Any


class AbstractWrite(Spec):
    """How a pair changes the function.

    To add one, write `coefficient`, and declare `degree`: 0 where it does not look at what was
    recalled (additive), 1 where it is affine in it, `inf` otherwise.

    ??? example

        ```python
        >>> import memdsl as md
        >>> class Leaky(md.AbstractWrite):
        ...     '''Half of Hebb's rule, half of the delta rule.'''
        ...
        ...     rate: md.Number = 1.0
        ...     degree = 1
        ...
        ...     def coefficient(self, value, recalled, norm):
        ...         return self.rate * (value - recalled.answer / 2), 1.0
        >>> md.Memory(md.Dot(), Leaky(md.FromInput("sigmoid")), md.Decay(0.9))
        Memory(Dot(), write=Leaky(rate=FromInput("sigmoid")), gate=Decay(0.9))

        ```
    """

    degree: ClassVar[float] = math.inf
    example: ClassVar[str] = "Hebb(), Delta() or Ridge()"

    @abstractmethod
    def coefficient(self, value: Any, recalled: Recalled, norm: Any) -> tuple[Any, Any]:
        """`(c, m)` of a pair, given what was recalled at its key and `norm = kernel(k, k)`."""

    def get_degree(self) -> float:
        """0 additive, 1 affine in what is recalled, `inf` otherwise."""
        return self.degree

    def reads_before_decay(self) -> bool:
        """Whether what is recalled is the memory *before* this token's decay."""
        return False

    def times(self, count: int) -> "Repeated":
        """The same write for `count` different pairs at every token (DeltaProduct)."""
        from ._write import Repeated

        return Repeated(self, count)


def rate(default: Any = 1.0, per: tuple[str, ...] = ("layer", "head", "value_channel")) -> Any:
    """The field of a step size."""
    return number(default=default, per=per, meaning="step size of the write")
