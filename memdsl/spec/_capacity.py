"""Capacities: how many atoms may be kept, which one goes, and what becomes of what it knew."""

import math
from typing import Any, ClassVar

from .._errors import SpecError
from ._base import Spec, plain_float, sort, whole
from ._number import Number, number


class AbstractCapacity(Spec):
    """How many atoms may be kept."""

    def slots(self) -> float:
        """The number of atoms, `inf` where there is no bound."""
        return math.inf


class All(AbstractCapacity):
    """Every atom is kept."""


class Window(AbstractCapacity):
    """The latest `size` atoms, besides the first `sinks` ones."""

    size: int = whole(at_least=1)
    sinks: int = whole(at_least=0, default=0)
    positional: ClassVar[int] = 1

    def slots(self) -> float:
        return self.size + self.sinks


class AbstractEviction(Spec):
    """Which atom of a full memory makes room. Lowest score goes; ties: the lowest slot."""


class Oldest(AbstractEviction):
    """The atom written first; the first `sinks` atoms are never evicted."""

    sinks: int = whole(at_least=0, default=0)


class Smallest(AbstractEviction):
    """The atom with the smallest norm of its weighted coefficient."""


class LeastUsed(AbstractEviction):
    """The atom that reads have used least: `use <- fade use + share of the read` at every read.

    A new atom starts at 1, as if one read had been all its own. `fade=1` is H2O, `fade=0` TOVA.
    """

    fade: Number = number(default=1.0, at_least=0.0, at_most=1.0, of_input=False)
    positional: ClassVar[int] = 1


class LeaveOneOut(AbstractEviction):
    """The atom whose removal changes the memory least at its own key, `|c_i| / [(K + ridge I)^-1]_ii`.

    The new atom competes too, so it may be the one that goes (fixed-budget kernel least squares).
    """

    ridge: Number = number(default=1e-2, above=0.0, of_input=False)
    positional: ClassVar[int] = 1


class Random(AbstractEviction):
    """A uniformly random atom; with `reservoir`, the new atom itself may be the one (Vitter's R)."""

    seed: int = whole(at_least=0, default=0)
    reservoir: bool = False


class AbstractMerge(Spec):
    """What becomes of the coefficient of an atom that is not kept."""


class Drop(AbstractMerge):
    """It is lost."""


class AddToNearest(AbstractMerge):
    """It is added, value and mass, to the nearest stored atom (quantised kernel LMS)."""


class Project(AbstractMerge):
    """It is spread over the stored atoms as the least-squares projection `(K + ridge I)^-1 k`."""

    ridge: float = plain_float(above=0.0, default=1e-4)


class Budget(AbstractCapacity):
    """At most `size` atoms.

    **Arguments:**

    - `size`: how many.
    - `evict`: which atom of a full memory makes room for an admitted one.
    - `merge`: what becomes of a pair that the gate did not admit, and of an evicted atom.
    """

    size: int = whole(at_least=1)
    evict: AbstractEviction = sort(AbstractEviction, default=Oldest())
    merge: AbstractMerge = sort(AbstractMerge, default=Drop())
    positional: ClassVar[int] = 1

    def slots(self) -> float:
        return self.size

    def __check__(self) -> None:
        sinks = getattr(self.evict, "sinks", 0)
        if sinks >= self.size:
            raise SpecError(
                f"Budget({self.size}) has no room beside {sinks} pinned atoms.",
                where=self,
                at="evict",
                why="Pinned atoms are never evicted, so nothing new could be written.",
                instead=f"a budget above {sinks}, or fewer sinks.",
            )
