"""Gates that act on the stored function, and how gates compose with `@`."""

from typing import Any, ClassVar

from .._errors import SpecError
from ._admission import (
    Always as Always,
    Coherence as Coherence,
    Never as Never,
    Novelty as Novelty,
    Surprise as Surprise,
)
from ._base import written
from ._gate_base import (
    AbstractAdmission as AbstractAdmission,
    AbstractForget as AbstractForget,
    AbstractGate as AbstractGate,
    Arrival as Arrival,
    decay_number,
)
from ._number import Number, NumberProduct, NumberSum
from ._retention import (
    AbstractRetention as AbstractRetention,
    LqNorm as LqNorm,
    Simplex as Simplex,
    SoftThreshold as SoftThreshold,
)
from ._transport import (
    AbstractTransport as AbstractTransport,
    Householder as Householder,
    KeyDecay as KeyDecay,
)


class Keep(AbstractForget):
    """Nothing fades: `f <- f`, the unit of `@`.

    ??? example

        ```python
        >>> import memdsl as md
        >>> md.Keep() @ md.Keep()
        Keep()

        ```
    """


class Decay(AbstractForget):
    """The whole function fades, value and mass: `f <- decay * f`.

    A run takes it by the name `log_decay`, its logarithm, at most 0.

    **Arguments:**

    - `decay`: between 0 and 1.

    **Raises:** `SpecError` where it can leave that range.

    ??? example

        ```python
        >>> import memdsl as md
        >>> md.Decay(0.9) @ md.Decay(0.5)
        Decay(0.45)

        ```

    Source: RetNet (Sun et al. 2023) where it is constant; Mamba-2 (Dao and Gu 2024), Gated DeltaNet
    (Yang et al. 2024) and forgetting attention (Lin et al. 2025) where it is read off the input.
    """

    decay: Number = decay_number()
    positional: ClassVar[int] = 1


class DiagonalDecay(AbstractForget):
    """Each feature of the key fades by its own decay: `S <- diag(decay) S`.

    Only matrices have coordinates that could fade one by one; the mass of a normalised memory fades
    feature by feature too.

    **Arguments:**

    - `decay`: between 0 and 1, one number or one `per="key_channel"`.

    **Raises:** `SpecError` as `Decay`; and in a memory that keeps atoms.

    ??? example

        ```python
        >>> import memdsl as md
        >>> gate = md.DiagonalDecay(md.FromInput("sigmoid", per="key_channel", temperature=16.0))
        >>> md.Memory(md.Dot(), md.Hebb(), gate).gate == gate  # gated linear attention
        True

        ```

    Source: Yang et al. 2024 ("Gated Linear Attention Transformers"); Kimi Linear (2025).
    """

    decay: Number = decay_number("key_channel")
    positional: ClassVar[int] = 1


class ValueDecay(AbstractForget):
    """Each channel of the value fades by its own decay: `f <- decay * f`, channel by channel.

    The mass does not fade, so it does not go with a `Normalised` read.

    **Arguments:**

    - `decay`: between 0 and 1, one number or one `per="value_channel"`.

    **Raises:** `SpecError` as `Decay`; and under a normalised read.

    ??? example

        ```python
        >>> import memdsl as md
        >>> md.ValueDecay(0.9) @ md.DiagonalDecay(0.8)
        ValueDecay(0.9) @ DiagonalDecay(0.8)

        ```

    Source: the gate of the gated Oja rule, on the side of the values.
    """

    decay: Number = decay_number("value_channel")
    positional: ClassVar[int] = 1


class Reset(AbstractForget):
    """`f <- 0` (or the learned initial state) at every token flagged in `starts`.

    Every run takes `starts`; with `Reset` it is required. It is `Decay(0)` in meaning, and a
    `where` in execution: what was before a start cannot leak through it, not even a NaN.

    ??? example

        ```python
        >>> import memdsl as md
        >>> md.Reset() @ md.Reset()
        Reset()

        ```
    """


LINEAR = Decay | DiagonalDecay | ValueDecay | Reset
"""The gates that commute with each other, since they multiply."""


class Composed(AbstractGate):
    """`left @ right …`: all of them; forgetting first, then every admission must agree."""

    gates: tuple[AbstractGate, ...]
    binding: ClassVar[int] = 5

    def __check__(self) -> None:
        gates = self.gates
        good = isinstance(gates, tuple) and all(isinstance(gate, AbstractGate) for gate in gates)
        if not good or len(gates) < 2 or normal_form(gates) != gates:
            raise SpecError(
                "Gates are composed by @, which brings them into normal form.",
                instead=" @ ".join(repr(gate) for gate in gates) + "." if good and gates else None,
            )

    def __repr__(self) -> str:
        return " @ ".join(written(gate, 6) for gate in self.gates)


def parts(gate: AbstractGate) -> tuple[AbstractGate, ...]:
    """The gates that a gate is composed of, without units."""
    if isinstance(gate, Composed):
        return gate.gates
    return () if isinstance(gate, Keep | Always) else (gate,)


def forgets(gate: AbstractGate) -> tuple[AbstractForget, ...]:
    """The parts that act on the stored function."""
    return tuple(g for g in parts(gate) if isinstance(g, AbstractForget))


def transports(gate: AbstractGate) -> tuple[AbstractTransport, ...]:
    """The parts that move the stored keys."""
    return tuple(g for g in parts(gate) if isinstance(g, AbstractTransport))


def admissions(gate: AbstractGate) -> tuple[AbstractAdmission, ...]:
    """The parts that let pairs in."""
    return tuple(g for g in parts(gate) if isinstance(g, AbstractAdmission))


def compose(left: AbstractGate, right: AbstractGate) -> AbstractGate:
    """`left @ right`, in normal form."""
    gates = normal_form((*parts(left), *parts(right)))
    if not gates:
        return Keep()
    return gates[0] if len(gates) == 1 else Composed(gates)


def normal_form(gates: tuple[AbstractGate, ...]) -> tuple[AbstractGate, ...]:
    """The same gates without units, what forgets first, what merges merged, nothing said twice."""
    forgetting: list[AbstractGate] = []
    admitting: list[AbstractGate] = []
    for gate in (part for composed in gates for part in parts(composed)):
        if isinstance(gate, AbstractForget):
            _add(forgetting, gate)
        elif gate not in admitting:
            admitting.append(gate)
    return (*forgetting, *admitting)


def _add(gates: list[AbstractGate], gate: AbstractForget) -> None:
    """Adds a gate behind others, merged into one of its kind that it can be brought next to."""
    if isinstance(gate, SoftThreshold) and gates and isinstance(gates[-1], SoftThreshold):
        gates[-1] = SoftThreshold(_sum(gates[-1].threshold, gate.threshold))
        return
    for index in range(len(gates) - 1, -1, -1) if isinstance(gate, LINEAR) else ():
        before = gates[index]
        if not isinstance(before, LINEAR):
            break
        if type(before) is type(gate):
            if not isinstance(before, Reset):
                fade: Any = gate
                gates[index] = before.replace(decay=_product(before.decay, fade.decay))
            return
    gates.append(gate)


def _plain(*numbers: Any) -> bool:
    return all(isinstance(number, int | float) for number in numbers)


def _product(left: Any, right: Any) -> Any:
    return left * right if _plain(left, right) else NumberProduct(left, right)


def _sum(left: Any, right: Any) -> Any:
    return left + right if _plain(left, right) else NumberSum(left, right)
