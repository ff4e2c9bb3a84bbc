"""What a gate is: it acts on the stored function, or lets pairs in. Gates compose with `@`."""

from abc import abstractmethod
from typing import Any, ClassVar, NamedTuple

from .._errors import SpecError
from ._base import described, Spec
from ._number import number


class Arrival(NamedTuple):
    """What an admission gate may look at: a pair beside the stored atoms (none: inf, 0, |v|)."""

    distance: Any
    """Euclidean distance to the nearest stored key."""
    coherence: Any
    """Largest `|kernel(k, k_j)| / sqrt(kernel(k, k) kernel(k_j, k_j))`; 0 where the root is 0."""
    surprise: Any
    """Norm of `v - f(k)`."""


class AbstractGate(Spec):
    """What happens to the memory before a pair is written, and whether the pair is written.

    Gates compose with `@`, a monoid whose unit is `Keep()`. What they forget comes first, in the
    order written; then all that admit must agree. Decays of one kind multiply into one.

    ??? example

        ```python
        >>> import memdsl as md
        >>> md.Novelty(0.1) @ md.Decay(0.5) @ md.Keep() @ md.Decay(0.5)
        Decay(0.25) @ Novelty(0.1)

        ```
    """

    example: ClassVar[str] = "Keep(), Decay(0.9) or Novelty(0.1)"

    def __matmul__(self, other: Any) -> "AbstractGate":
        from ._gate import compose

        if not isinstance(other, AbstractGate):
            forgot = isinstance(other, type) and issubclass(other, AbstractGate)
            raise SpecError(
                f"A gate is composed with a gate, not with {described(other)}.",
                where=self,
                instead=f"{other.__name__}(...)." if forgot else f"{self.example}.",
            )
        return compose(self, other)


class AbstractForget(AbstractGate):
    """A gate that acts on the stored function."""


class AbstractAdmission(AbstractGate):
    """A gate that lets a pair in or keeps it out. To add one, write `admits`.

    ??? example

        ```python
        >>> import memdsl as md
        >>> class Far(md.AbstractAdmission):
        ...     '''Admits a key that is far from all others and badly predicted.'''
        ...
        ...     def admits(self, arrival):
        ...         return (arrival.distance > 1) & (arrival.surprise > 0.5)
        >>> md.Decay(0.9) @ Far()
        Decay(0.9) @ Far()

        ```
    """

    @abstractmethod
    def admits(self, arrival: Arrival) -> Any:
        """Whether the pair becomes an atom, a boolean scalar."""


def decay_number(*per: str) -> Any:
    """The field of a decay."""
    return number(
        at_least=0.0,
        at_most=1.0,
        per=("layer", "head", *per),
        log=True,
        meaning="decay",
        range_reason="A decay above 1 would let the past grow without end, and one below 0 has no "
        "logarithm.",
    )
