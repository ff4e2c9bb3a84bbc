"""What a memory is, and the operators that make memories of memories."""

import dataclasses
from typing import Any, ClassVar, overload, TYPE_CHECKING

from .._errors import SpecError
from ._base import code, described, refuse, Spec
from ._feature import AbstractFeature
from ._kernel_base import AbstractKernel
from ._number import is_number, Learned, Number


if TYPE_CHECKING:
    from ._composite import Boosted, Chained, Mapped, Scaled
    from ._rewired import Averaged, Rewired
    from ._streams import AbstractStream


class AbstractMemory(Spec):
    """A function that is being learned: it takes keys and values, and answers queries.

    `a + b` answers with the sum, `factor * a` with a multiple, `a >> feature` with a feature of the
    answer. `a >> b` asks b what a answered, `a.boost(b)` writes to b what a got wrong,
    `a.transpose()` swaps keys and values, and `every(n, a)` writes every n tokens. `a.of(key=…)` shows
    it other vectors of a token, and `a.averaged("key")` makes running means of it.

    ??? example

        ```python
        >>> import memdsl as md
        >>> linear, kernel = md.Memory(md.Dot(), md.Ridge()), md.Memory(md.RBF(), md.Delta(0.5))
        >>> linear.boost(md.every(4, kernel)) >> md.L2Norm()
        Memory(Dot(), write=Ridge()).boost(every(4, Memory(RBF(), write=Delta(rate=0.5)))) >> L2Norm()

        ```
    """

    example: ClassVar[str] = "Memory(Dot()), or Zero()"

    def __add__(self, other: Any) -> "AbstractMemory":
        from ._composite import Added, Zero

        other = _memory(other, "+", self)
        if isinstance(other, Zero):
            return self
        return other if isinstance(self, Zero) else Added(self, other)

    def __radd__(self, other: Any) -> "AbstractMemory":
        if is_number(other) and other == 0:  # so that the built-in sum works
            return self
        return _memory(other, "+", self) + self

    def __mul__(self, factor: Number) -> "Scaled":
        from ._composite import Scaled

        if not is_number(factor):
            raise SpecError(
                f"A memory is multiplied by a number, not by {described(factor)}.",
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
        from ._composite import Chained, Mapped

        if isinstance(other, AbstractFeature):
            return Mapped(self, other)
        return Chained(self, _memory(other, ">>", self))

    def boost(self, other: "AbstractMemory") -> "Boosted":
        """The sum of both, where `other` is written with what this one got wrong."""
        from ._composite import Boosted

        return Boosted(self, _memory(other, "boost", self))

    def of(
        self,
        *,
        key: "AbstractStream | None" = None,
        value: "AbstractStream | None" = None,
        query: "AbstractStream | None" = None,
        erase: "AbstractStream | None" = None,
        remove: "AbstractStream | None" = None,
        own: Number = None,
        own_size: int | None = None,
    ) -> "Rewired":
        """The memory, written with other vectors of a token, and asked at another one."""
        from ._rewired import Rewired

        given = {"key": key, "value": value, "query": query, "erase": erase, "remove": remove}
        changed = {name: stream for name, stream in given.items() if stream is not None}
        return Rewired(self, **changed, own=own, own_size=own_size)

    def averaged(self, over: str) -> "Averaged":
        """Running means, weighed by a softmax over time of each channel of the key, or the value."""
        from ._rewired import Averaged

        return Averaged(self, over)

    def transpose(self) -> "AbstractMemory":
        """Keys and values swap roles: values are stored as keys, and it is read from behind."""
        from ._composite import Transposed

        return Transposed(self)


def _memory(value: Any, operator: str, beside: AbstractMemory) -> AbstractMemory:
    if isinstance(value, AbstractMemory):
        return value
    instead = f"{AbstractMemory.example}."
    if isinstance(value, AbstractKernel):
        instead = f"Memory({value!r})."
    elif is_number(value):
        instead = f"{code(value)} * memory, if the answer is to be multiplied."
    raise SpecError(
        f"{operator} takes a memory, and got {described(value)}.", where=beside, instead=instead
    )


def initial_state(axis: str = "state") -> Any:
    """The field of a learned initial state: `Learned(...)` or `None`; `axis` is what it is one of."""

    def check(spec: Spec, name: str, value: Any) -> None:
        if value is not None and not isinstance(value, Learned):
            raise refuse(spec, name, "Learned(...) or None", value, instead="Learned().")

    return dataclasses.field(default=None, metadata={"check": check, "axis": axis})
