"""Gates: how the old function fades, and which pairs are let in. They compose with `@`."""

from abc import abstractmethod
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp

from .._errors import SpecError
from ._base import Spec, sort
from ._number import Number, NumberProduct, number


class Arrival(NamedTuple):
    """What an admission gate may look at: the new pair beside the stored atoms (none: inf, 0, |v|)."""

    distance: Any
    """Euclidean distance to the nearest stored key."""
    coherence: Any
    """Largest `|kernel(k, k_j)| / sqrt(kernel(k, k) kernel(k_j, k_j))`."""
    surprise: Any
    """Norm of `v - f(k)`."""


class AbstractGate(Spec):
    """What happens to the memory before a pair is written, and whether the pair is written."""

    def __matmul__(self, other: "AbstractGate") -> "AbstractGate":
        if not isinstance(other, AbstractGate):
            raise SpecError(f"A gate is composed with a gate, not with {other!r}.", where=self)
        return compose(self, other)


class AbstractForget(AbstractGate):
    """A gate that acts on the stored function."""


class AbstractAdmission(AbstractGate):
    """A gate that lets a pair in or keeps it out. `admits` is all a new one needs."""

    @abstractmethod
    def admits(self, arrival: Arrival) -> Any:
        """Whether the pair becomes an atom, a boolean scalar."""


class Keep(AbstractForget):
    """Nothing fades; the unit of `@`."""


def _decay(*per: str) -> Any:
    return number(at_least=0.0, at_most=1.0, per=("layer", "head", *per), log=True, meaning="decay")


class Decay(AbstractForget):
    """`f <- decay * f`. In a grounded spec and as a signal it is the logarithm, `log_decay <= 0`."""

    decay: Number = _decay()
    positional: ClassVar[int] = 1


class DiagonalDecay(AbstractForget):
    """Each feature of the key fades by its own `decay`: `S <- diag(decay) S`."""

    decay: Number = _decay("key_channel")
    positional: ClassVar[int] = 1


class ValueDecay(AbstractForget):
    """Each channel of the value fades by its own `decay`: `f <- decay * f`, channel by channel."""

    decay: Number = _decay("value_channel")
    positional: ClassVar[int] = 1


class Reset(AbstractForget):
    """`f <- 0` at every token flagged in `starts`, which it makes a required signal."""


class SoftThreshold(AbstractForget):
    """Every number of the matrix moves towards 0 by `threshold` and stops there (elastic net)."""

    threshold: Number = number(at_least=0.0, meaning="soft threshold")
    positional: ClassVar[int] = 1


class LqNorm(AbstractForget):
    """The matrix is read through the mirror map of `|A|_q^2 / 2` (Moneta)."""

    q: float = 4.0
    form: str = "exact"
    positional: ClassVar[int] = 1

    def __check__(self) -> None:
        if not self.q > 1:
            raise SpecError(f"LqNorm.q must be above 1: {self.q!r}.", where=self, at="q")
        if self.form not in ("exact", "miras"):
            raise SpecError(
                f"LqNorm.form must be 'exact' or 'miras': {self.form!r}.", where=self, at="form"
            )


class Simplex(AbstractForget):
    """Every row of the matrix stays a distribution of `total`: softmax of a faded logarithm (Memora)."""

    decay: Number = _decay()
    total: float = 1.0
    positional: ClassVar[int] = 1


class Always(AbstractAdmission):
    """Every pair becomes an atom."""

    def admits(self, arrival: Arrival) -> Any:
        return jnp.asarray(True)


class Never(AbstractAdmission):
    """No pair becomes an atom."""

    def admits(self, arrival: Arrival) -> Any:
        return jnp.asarray(False)


class Novelty(AbstractAdmission):
    """Admits a key farther than `threshold` from every stored one (strictly; the retrieval-centric
    paper, section 3.3). Below 0: always. `inf`: never."""

    threshold: Number = number(of_input=False, infinite=True, meaning="distance threshold")
    positional: ClassVar[int] = 1

    def admits(self, arrival: Arrival) -> Any:
        never = self.threshold == jnp.inf
        return (arrival.distance > self.threshold) & ~jnp.asarray(never)


class Coherence(AbstractAdmission):
    """Admits a key whose coherence with every stored one is at most `threshold` (Richard 2009)."""

    threshold: Number = number(
        above=0.0, at_most=1.0, of_input=False, meaning="coherence threshold"
    )
    positional: ClassVar[int] = 1

    def admits(self, arrival: Arrival) -> Any:
        return arrival.coherence <= self.threshold


class Surprise(AbstractAdmission):
    """Admits a pair whose error `|v - f(k)|` is above `threshold`."""

    threshold: Number = number(at_least=0.0, of_input=False, meaning="error threshold")
    positional: ClassVar[int] = 1

    def admits(self, arrival: Arrival) -> Any:
        return arrival.surprise > self.threshold


class Composed(AbstractGate):
    """`left @ right …`: all of them; forgetting first, then every admission must agree."""

    gates: tuple[AbstractGate, ...]

    def __repr__(self) -> str:
        return " @ ".join(map(repr, self.gates))


def parts(gate: AbstractGate) -> tuple[AbstractGate, ...]:
    """The gates that a gate is composed of, without units."""
    if isinstance(gate, Composed):
        return gate.gates
    return () if isinstance(gate, Keep | Always) else (gate,)


def forgets(gate: AbstractGate) -> tuple[AbstractForget, ...]:
    """The parts that act on the stored function."""
    return tuple(g for g in parts(gate) if isinstance(g, AbstractForget))


def admissions(gate: AbstractGate) -> tuple[AbstractAdmission, ...]:
    """The parts that let pairs in."""
    return tuple(g for g in parts(gate) if isinstance(g, AbstractAdmission))


def compose(left: AbstractGate, right: AbstractGate) -> AbstractGate:
    """`left @ right`, in normal form: no units, and decays of one kind multiplied into one."""
    merged: list[AbstractGate] = []
    for gate in (*parts(left), *parts(right)):
        twin = next((i for i, g in enumerate(merged) if type(g) is type(gate)), None)
        if twin is not None and isinstance(gate, Decay | DiagonalDecay | ValueDecay):
            merged[twin] = type(gate)(_product(merged[twin].decay, gate.decay))  # pyright: ignore[reportAttributeAccessIssue]
        elif gate not in merged:
            merged.append(gate)
    if not merged:
        return Keep()
    return merged[0] if len(merged) == 1 else Composed(tuple(merged))


def _product(left: Any, right: Any) -> Any:
    if isinstance(left, int | float) and isinstance(right, int | float):
        return left * right
    return NumberProduct(left, right)


def as_gate() -> Any:
    """The gate field of a memory."""
    return sort(AbstractGate, default=Keep())
