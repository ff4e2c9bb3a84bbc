"""Reads: how the function answers a query."""

from typing import Any, ClassVar

from .._errors import SpecError
from ._base import Spec, sort, whole
from ._number import Number, number


def _scale() -> Any:
    return number(default=1.0, of_input=False, meaning="multiplies the function that is read")


class AbstractRead(Spec):
    """How the value N(q) and the mass D(q) become an answer."""

    def core(self) -> "Evaluate | Normalised":
        """The read that makes the answer, inside `Before` and `TopK`."""
        raise NotImplementedError

    def needs_mass(self) -> bool:
        """Whether the mass has to be kept."""
        return isinstance(self.core(), Normalised)

    def is_before(self) -> bool:
        """Whether a token reads the memory before it writes to it."""
        return False

    def top(self) -> int | None:
        """How many atoms are read at most, or `None` for all."""
        return None


class Evaluate(AbstractRead):
    """`y = scale * N(q)`."""

    scale: Number = _scale()

    def core(self) -> "Evaluate | Normalised":
        return self


class Normalised(AbstractRead):
    """`y = scale N(q) / (scale D(q) + prior)`.

    `prior` is a mass with value 0 that is always there: 1e-10 guards a division, `exp(s)` is an
    attention sink, 1 makes an empty memory answer 0.
    """

    scale: Number = _scale()
    prior: Number = number(
        default=0.0, at_least=0.0, of_input=False, meaning="mass of the prior atom"
    )

    def core(self) -> "Evaluate | Normalised":
        return self


class Before(AbstractRead):
    """`read`, before the token is written (RWKV-6, forecasting).

    `bonus` lets the token's own pair through all the same, weighted by channel of the key (RWKV-6).
    """

    read: AbstractRead = sort(AbstractRead, default=Evaluate())
    bonus: Number = number(
        default=None, per=("layer", "head", "key_channel"), optional=True, of_input=False
    )
    positional: ClassVar[int] = 1

    def __check__(self) -> None:
        if self.read.is_before():
            raise SpecError("Before(Before(...)) is no earlier than Before(...).", where=self)
        if self.bonus is not None and self.read.needs_mass():
            raise SpecError("A bonus needs a read that does not divide.", where=self, at="bonus")

    def core(self) -> "Evaluate | Normalised":
        return self.read.core()

    def is_before(self) -> bool:
        return True

    def top(self) -> int | None:
        return self.read.top()


class TopK(AbstractRead):
    """`read` of only the `count` atoms most similar to the query."""

    count: int = whole(at_least=1)
    read: AbstractRead = sort(AbstractRead, default=Normalised())
    positional: ClassVar[int] = 2

    def core(self) -> "Evaluate | Normalised":
        return self.read.core()

    def is_before(self) -> bool:
        return self.read.is_before()

    def top(self) -> int | None:
        inner = self.read.top()
        return self.count if inner is None else min(self.count, inner)


class Backwards(AbstractRead):
    """The matrix read from the side of its values, `y = scale S q`: what `transpose` reads with."""

    read: AbstractRead = sort(AbstractRead, default=Evaluate())
    positional: ClassVar[int] = 1

    def core(self) -> "Evaluate | Normalised":
        return self.read.core()

    def is_before(self) -> bool:
        return self.read.is_before()
