"""Writes: how a new pair changes the function. A write is one *coefficient* at the key.

`f <- f + kernel(k, .) (c, m)`: c is added to the value, m to the mass of a normalised memory.
"""

import math
from abc import abstractmethod
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp

from .._errors import SpecError
from ._base import Spec, choice, plain_float, sort, whole
from ._loss import AbstractLoss, Squared
from ._number import Number, number


class Recalled(NamedTuple):
    """What the memory says at the key: the value N, the mass D, and the answer N or N / D."""

    value: Any
    mass: Any
    answer: Any


class AbstractWrite(Spec):
    """How a pair changes the function.

    To add one, write `coefficient`, and declare `degree`: 0 where it does not look at what was
    recalled (additive), 1 where it is affine in it, `inf` otherwise.
    """

    degree: ClassVar[float] = math.inf

    @abstractmethod
    def coefficient(self, value: Any, recalled: Recalled, norm: Any) -> tuple[Any, Any]:
        """`(c, m)` of a pair, given what the memory recalled at its key and `norm = kernel(k, k)`."""

    def get_degree(self) -> float:
        """0 additive, 1 affine in what is recalled, `inf` otherwise."""
        return self.degree

    def reads_before_decay(self) -> bool:
        """Whether what is recalled is the memory *before* this token's decay."""
        return False

    def times(self, count: int) -> "Repeated":
        """The same write for `count` different pairs at every token (DeltaProduct)."""
        return Repeated(self, count)


def rate(default: Any = 1.0) -> Any:
    """The field of a step size."""
    return number(
        default=default, per=("layer", "head", "value_channel"), meaning="step size of the write"
    )


class Hebb(AbstractWrite):
    """`c = rate v`: the descent of `Inner`."""

    rate: Number = rate()
    degree: ClassVar[float] = 0

    def coefficient(self, value: Any, recalled: Recalled, norm: Any) -> tuple[Any, Any]:
        return self.rate * value, 1.0


RECALLS = ("decayed", "previous")


class Delta(AbstractWrite):
    """`c = rate (v - f(k))`: the descent of `Squared`.

    **Arguments:**

    - `rate`: the step β.
    - `recall`: whether f(k) is the memory after this token's decay (`"decayed"`: Gated DeltaNet, KDA)
        or before it (`"previous"`: RWKV-7, Comba, Titans).
    - `implicit`: the error after the step instead of before it: β becomes `β / (1 + β kernel(k, k))`
        (Longhorn).
    - `erase`: `"key"`, or `"own"`: f is asked at a key of its own, given as `erase_keys`.
    - `remove`: `"key"`, or `"own"`: what was recalled is taken away at a key of its own,
        given as `remove_keys` (DPLR, RWKV-7), while v is written at k.
    - `erase_gate`: multiplies the key at which f is asked, channel by channel (Gated DeltaNet-2).
    - `write_gate`: multiplies v, channel by channel.
    - `on`: `"key"` makes a new atom; `"atoms"` spreads the correction over every stored atom in
        proportion to its kernel with k (kernel normalised LMS).
    - `normalise`: divides the step by `normalise + |h|^2`, where h is what the step is spread over.
    """

    rate: Number = rate()
    recall: str = choice(*RECALLS, default="decayed")
    implicit: bool = False
    erase: str = choice("key", "own", default="key")
    remove: str = choice("key", "own", default="key")
    erase_gate: Number = number(
        default=None, per=("layer", "head", "key_channel"), optional=True, meaning="erase gate"
    )
    write_gate: Number = number(
        default=None, per=("layer", "head", "value_channel"), optional=True, meaning="write gate"
    )
    on: str = choice("key", "atoms", default="key")
    normalise: float | None = None
    degree: ClassVar[float] = 1

    def __check__(self) -> None:
        if self.implicit and self.recall == "previous":
            raise SpecError(
                "Delta cannot be implicit about the previous memory.",
                where=self,
                at="recall",
                why="The implicit step solves for the memory after this token, decay included.",
                instead='recall="decayed".',
            )
        if self.implicit and (self.erase == "own" or self.remove == "own" or self.erase_gate):
            raise SpecError(
                "An implicit Delta erases at its own key.",
                where=self,
                at="implicit",
                why="The implicit step has its closed form only where the erased and the written "
                "key are one.",
                instead="implicit=False, or no separate erase key.",
            )
        if self.on == "atoms" and (self.erase == "own" or self.remove == "own" or self.implicit):
            raise SpecError(
                'Delta(on="atoms") writes at no key of its own.',
                where=self,
                at="on",
                why="It moves the coefficients of the atoms that are stored.",
                instead='on="key", or no separate keys.',
            )
        if self.normalise is not None and not self.normalise > 0:
            raise SpecError(
                f"Delta.normalise must be positive, and it is {self.normalise!r}.",
                where=self,
                at="normalise",
                instead="a small number such as 1e-2, or None.",
            )

    def reads_before_decay(self) -> bool:
        return self.recall == "previous"

    def step(self, norm: Any) -> Any:
        """The step that multiplies the error, given `norm = |h|^2`."""
        step = self.rate
        if self.normalise is not None:
            step = step / (self.normalise + norm)
        return step / (1 + step * norm) if self.implicit else step

    def target(self, value: Any) -> Any:
        """What f(k) should become."""
        return value if self.write_gate is None else self.write_gate * value

    def erase_key(self, key: Any) -> Any:
        """The key at which f is asked."""
        return key if self.erase_gate is None else self.erase_gate * key

    def coefficient(self, value: Any, recalled: Recalled, norm: Any) -> tuple[Any, Any]:
        return self.step(norm) * (self.target(value) - recalled.answer), 1.0


class Descent(AbstractWrite):
    """`c = -rate dloss/dprediction`, any number of steps, over a window, with momentum.

    **Arguments:**

    - `loss`: what is descended.
    - `rate`: the step θ.
    - `steps`: gradient steps on the same pair.
    - `window`: how many of the latest pairs are descended at every token (Omega).
    - `momentum`: μ of `S <- μ S - θ gradient`, `f <- α f + S` (Titans); `None` for none.
    - `orthogonalise`: the step is made orthogonal by Newton–Schulz (Atlas); matrices only.
    - `recall`: as in `Delta`.
    """

    loss: AbstractLoss = sort(AbstractLoss, default=Squared())
    rate: Number = rate()
    steps: int = whole(at_least=1, default=1)
    window: int = whole(at_least=1, default=1)
    momentum: Number = number(
        default=None, at_least=0.0, at_most=1.0, optional=True, meaning="momentum of the write"
    )
    orthogonalise: bool = False
    recall: str = choice(*RECALLS, default="decayed")
    positional: ClassVar[int] = 1

    def __check__(self) -> None:
        if self.steps > 1 and (self.window > 1 or self.momentum is not None):
            raise SpecError(
                "Descent takes several steps on one pair, or a window, or momentum.",
                where=self,
                at="steps",
                why="Repeated steps on the same pair collapse into one longer step; with a window "
                "or momentum the order of the two is not defined by any paper.",
                instead="steps=1.",
            )

    def is_plain(self) -> bool:
        """Whether one token is one atom: no window, no momentum, no orthogonalisation."""
        return self.window == 1 and self.momentum is None and not self.orthogonalise

    def get_degree(self) -> float:
        plain = self.is_plain() and (self.steps == 1 or self.loss.degree == 0)
        return self.loss.degree if plain else math.inf

    def reads_before_decay(self) -> bool:
        return self.recall == "previous"

    def coefficient(self, value: Any, recalled: Recalled, norm: Any) -> tuple[Any, Any]:
        prediction, total = recalled.answer, jnp.zeros_like(value)
        for _ in range(self.steps):
            move = -self.rate * self.loss.gradient(prediction, value)
            prediction, total = prediction + norm * move, total + move
        return total, 1.0


class AbstractSolver(Spec):
    """How a ridge problem is solved."""


class Cholesky(AbstractSolver):
    """Exactly, by a Cholesky factor."""


class ConjugateGradient(AbstractSolver):
    """By conjugate gradients, at most `steps`, until the residual is below `tolerance`."""

    steps: int = whole(at_least=1, default=30)
    tolerance: float = plain_float(default=1e-12)


class GaussSeidel(AbstractSolver):
    """By sweeps over the stored pairs from zero: one sweep is `Delta`, many are `Cholesky`."""

    sweeps: int = whole(at_least=1, default=1)
    positional: ClassVar[int] = 1


class Ridge(AbstractWrite):
    """The minimiser itself: `f = argmin sum_i w_i |f(k_i) - v_i|^2 + strength |f|^2`.

    w_i is `rate` times the decay since token i; the strength does not fade. For a matrix the strength
    may differ by key channel (MesaNet).
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


NEGATIVE = ("frozen", "damped", "clip", "gauge", "centred", "exact")


class Reweight(AbstractWrite):
    """The functional gradient of a normalised read, `(c, m) = rate / D(k) (-spread g, w)`.

    g is the error signal (the derivative of the loss with respect to the answer) that is passed as
    the value; s is the answer. `negative` says what becomes of `w = <g, s>` where it is below 0
    ("Retrieval-Centric Deep Learning", eq. 7, and its repairs).
    """

    rate: Number = rate()
    spread: Number = number(default=1.0, above=0.0, of_input=False, meaning="value variance")
    negative: str = choice(*NEGATIVE, default="frozen")
    margin: float = plain_float(above=0.0, default=1e-2)

    def coefficient(self, value: Any, recalled: Recalled, norm: Any) -> tuple[Any, Any]:
        g, s = value, recalled.answer
        step = self.rate / recalled.mass
        inner, size = g @ s, jnp.sqrt(jnp.maximum(g @ g, jnp.finfo(g.dtype).tiny))
        if self.negative in ("exact", "damped"):
            return -step * self.spread * g, step * inner
        if self.negative == "frozen":
            return -step * self.spread * g, jnp.zeros_like(step)
        if self.negative == "clip":
            return -step * self.spread * g, step * jnp.maximum(inner, 0)
        if self.negative == "gauge":
            mass = jnp.maximum(inner, self.margin * size)
            shift = jnp.maximum(self.margin - inner / size, 0) * g / size
            return -step * (self.spread * g + mass * shift), step * mass
        mass = self.margin * size
        return step * (mass * s - (self.spread + self.margin**2) * g), step * mass


class Repeated(AbstractWrite):
    """`write` for `count` different pairs at every token, after one decay (DeltaProduct)."""

    write: AbstractWrite = sort(AbstractWrite)
    count: int = whole(at_least=1)
    positional: ClassVar[int] = 2

    def __check__(self) -> None:
        if isinstance(self.write, Ridge | Repeated) or (
            isinstance(self.write, Descent) and not self.write.is_plain()
        ):
            raise SpecError(
                f"{type(self.write).__name__} cannot be repeated within a token.",
                where=self,
                at="write",
                why="Only a write that is one atom a pair has a meaning pair by pair.",
                instead="Hebb, Delta or a plain Descent.",
            )

    def get_degree(self) -> float:
        return self.write.get_degree()

    def reads_before_decay(self) -> bool:
        return self.write.reads_before_decay()

    def coefficient(self, value: Any, recalled: Recalled, norm: Any) -> tuple[Any, Any]:
        return self.write.coefficient(value, recalled, norm)
