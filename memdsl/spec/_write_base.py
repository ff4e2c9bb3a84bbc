"""What a write is: one *coefficient* at the key of a new pair.

`f <- f + kernel(k, .) (c, m)`: c is added to the value, m to the mass of a normalised memory.
"""

import math
from abc import abstractmethod
from typing import Any, ClassVar, NamedTuple, TYPE_CHECKING

import jax

from ._base import Spec
from ._kernel_base import AbstractKernel
from ._number import number


if TYPE_CHECKING:
    from ._write import Repeated


RECALLS = ("decayed", "previous")


class Recalled(NamedTuple):
    """What the memory says at the key: the value N, the mass D, and the answer N or N / D."""

    value: Any
    mass: Any
    answer: Any
    log_mass: Any = None
    """The logarithm of |D|, which is finite where D itself is not."""
    guarded: Any = None
    """Where masses can be below 0, whether D was too near to 0, so that it was kept away from it."""


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

    def atom(
        self, kernel: AbstractKernel, key: Any, value: Any, recalled: Recalled
    ) -> tuple[Any, Any, Any]:
        """`(c, m, log_weight)` of a pair, the atom `exp(log_weight) (c, m)`; `None` for a weight of 1."""
        return *self.coefficient(value, recalled, kernel(key, key)), None

    def atoms(
        self, kernel: AbstractKernel, keys: Any, values: Any, recalled: Recalled
    ) -> tuple[Any, Any, Any]:
        """`atom` of every pair of a batch, all of one function, with one row a pair."""
        return jax.vmap(lambda *pair: self.atom(kernel, *pair))(keys, values, recalled)

    def has_signed_masses(self) -> bool:
        """Whether m can be below 0, so that the masses of a normalised read can add up to 0."""
        return False

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
