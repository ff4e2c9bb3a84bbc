"""A row of the table, and its list."""

from collections.abc import Callable
from typing import NamedTuple


class Property(NamedTuple):
    """One identity: what it says, the error that was measured, and the error that is allowed."""

    id: str
    statement: str
    error: float
    tolerance: float

    @property
    def holds(self) -> bool:
        """Whether the error is within the tolerance (a NaN is not)."""
        return self.error <= self.tolerance


Check = Callable[[], float]
CHECKS: dict[str, tuple[str, float, Check]] = {}


def check(name: str, statement: str, tolerance: float) -> Callable[[Check], Check]:
    """Adds a check to the table: a function that measures the error of an identity."""

    def add(measure: Check) -> Check:
        if name in CHECKS:
            raise ValueError(f"two checks are called {name}")
        CHECKS[name] = (statement, tolerance, measure)
        return measure

    return add


def measured(name: str) -> Property:
    """The row of one check."""
    statement, tolerance, measure = CHECKS[name]
    return Property(name, statement, float(measure()), tolerance)
