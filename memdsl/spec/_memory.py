"""Memories: the record of five sorts, and the algebra of memories."""

from typing import Any, ClassVar, overload

from .._errors import SpecError
from ._base import Spec, sort, whole
from ._capacity import AbstractCapacity, All
from ._feature import AbstractFeature
from ._gate import AbstractGate, Keep
from ._kernel import AbstractKernel
from ._number import Learned, Number, Source, is_number, number
from ._read import AbstractRead, Evaluate
from ._write import AbstractWrite, Hebb


class AbstractMemory(Spec):
    """A function that is being learned: it takes keys and values, and answers queries."""

    def __add__(self, other: "AbstractMemory") -> "AbstractMemory":
        other = _memory(other, "+", self)
        if isinstance(other, Zero):
            return self
        return other if isinstance(self, Zero) else Added(self, other)

    def __radd__(self, other: Any) -> "AbstractMemory":
        if other == 0:
            return self
        return _memory(other, "+", self) + self

    def __mul__(self, factor: Number) -> "Scaled":
        if not is_number(factor):
            raise SpecError(
                f"A memory is multiplied by a number, not by {factor!r}.",
                where=self,
                instead="a float, Learned(...) or FromInput(...).",
            )
        return Scaled(self, factor)

    def __rmul__(self, factor: Number) -> "Scaled":
        return self * factor

    @overload
    def __rshift__(self, other: "AbstractMemory") -> "Chained": ...
    @overload
    def __rshift__(self, other: AbstractFeature) -> "Mapped": ...
    def __rshift__(self, other: Any) -> "Chained | Mapped":
        if isinstance(other, AbstractFeature):
            return Mapped(self, other)
        return Chained(self, _memory(other, ">>", self))

    def boost(self, other: "AbstractMemory") -> "Boosted":
        """The sum of both, where `other` is written with what this one got wrong."""
        return Boosted(self, _memory(other, "boost", self))

    def transpose(self) -> "AbstractMemory":
        """Keys and values swap roles: values are stored as keys, and a query is answered backwards."""
        return Transposed(self)


class Memory(AbstractMemory):
    """A memory: *which functions, how a pair changes them, how they fade, how many atoms, how they answer*.

    The state is a function `f = (N, D) = sum_i w_i kernel(k_i, .) (c_i, m_i)`, and a token does

        f <- gate f;   (c, m) = write(v, f(k));   f <- f + kernel(k, .) (c, m);   y = read(f, q)

    **Arguments:**

    - `kernel`: the function space.
    - `write`: how a new pair changes the function.
    - `gate`: how the old function fades, and which pairs are let in.
    - `capacity`: how many atoms may be kept.
    - `read`: how it answers.
    - `initial`: `Learned()` for a trained initial matrix (finite kernels only), or `None` for 0.

    **Raises:** `SpecError` where the parts have no meaning together.

    ??? example

        ```python
        >>> import memdsl as md
        >>> delta_net = md.Memory(
        ...     md.Dot().pullback(md.Silu() >> md.L2Norm()), md.Delta(rate=md.FromInput("sigmoid"))
        ... )
        >>> delta_net.replace(gate=md.Decay(0.9)).gate
        Decay(0.9)

        ```
    """

    kernel: AbstractKernel = sort(AbstractKernel)
    write: AbstractWrite = sort(AbstractWrite, default=Hebb())
    gate: AbstractGate = sort(AbstractGate, default=Keep())
    capacity: AbstractCapacity = sort(AbstractCapacity, default=All())
    read: AbstractRead = sort(AbstractRead, default=Evaluate())
    initial: Learned | None = None
    positional: ClassVar[int] = 1

    def __check__(self) -> None:
        from ._check import check_memory  # a memory is checked by rules that know all its parts

        check_memory(self)


class Zero(AbstractMemory):
    """The memory that always answers 0: the unit of `+`."""


class _Two(AbstractMemory):
    first: AbstractMemory = sort(AbstractMemory)
    second: AbstractMemory = sort(AbstractMemory)
    positional: ClassVar[int] = 2


class Added(_Two):
    """`first + second`: both are written, the answers add."""

    def __repr__(self) -> str:
        return f"{self.first!r} + {self.second!r}"


class Chained(_Two):
    """`first >> second`: both are written, the second is asked what the first answered."""

    def __repr__(self) -> str:
        return f"{self.first!r} >> {self.second!r}"


class Boosted(_Two):
    """`first.boost(second)`: the second is written with the first's error; the answers add."""


class Scaled(AbstractMemory):
    """`factor * memory`: the answer is multiplied."""

    memory: AbstractMemory = sort(AbstractMemory)
    factor: Number = number(per=("layer", "head", "value_channel"), meaning="factor of the answer")
    positional: ClassVar[int] = 2


class Mapped(AbstractMemory):
    """`memory >> feature`: the answer goes through a feature."""

    memory: AbstractMemory = sort(AbstractMemory)
    feature: AbstractFeature = sort(AbstractFeature)
    positional: ClassVar[int] = 2

    def __repr__(self) -> str:
        return f"{self.memory!r} >> {self.feature!r}"


class Transposed(AbstractMemory):
    """`memory.transpose()`: stores values as keys and keys as values, and answers backwards."""

    memory: AbstractMemory = sort(AbstractMemory)
    positional: ClassVar[int] = 1

    def transpose(self) -> AbstractMemory:
        return self.memory

    def __check__(self) -> None:
        from ._check import check_transposed

        check_transposed(self)


class Every(AbstractMemory):
    """`memory`, written only at every `count`-th token, and read at every one."""

    count: int = whole(at_least=1)
    memory: AbstractMemory = sort(AbstractMemory)
    positional: ClassVar[int] = 2


def every(count: int, memory: AbstractMemory) -> Every:
    """The memory, written at every `count`-th token (the last of each group)."""
    return Every(count, memory)


class Network(AbstractMemory):
    """A memory whose function is a small network, trained while it is used (TTT, Titans).

    **Arguments:**

    - `widths`: the hidden widths; `()` is a linear map with bias.
    - `write`: a `Descent`.
    - `gate`: `Keep` or `Decay` of the parameters.
    """

    write: AbstractWrite = sort(AbstractWrite)
    widths: tuple[int, ...] = ()
    gate: AbstractGate = sort(AbstractGate, default=Keep())
    read: AbstractRead = sort(AbstractRead, default=Evaluate())


def _memory(value: Any, operator: str, beside: AbstractMemory) -> AbstractMemory:
    if isinstance(value, AbstractMemory):
        return value
    hint = " Multiply with *." if isinstance(value, Source | int | float) else ""
    raise SpecError(
        f"{operator} takes a memory, and got {value!r}.{hint}",
        where=beside,
        instead="a Memory(...), or Zero().",
    )
