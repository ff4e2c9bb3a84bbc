"""The record of five sorts; and a memory that is a small network."""

import dataclasses
from typing import Any, ClassVar

from ._base import refuse, sort, Spec
from ._capacity import AbstractCapacity, All
from ._composite import (
    Added as Added,
    Boosted as Boosted,
    Chained as Chained,
    Every as Every,
    every as every,
    Mapped as Mapped,
    Scaled as Scaled,
    Transposed as Transposed,
    Zero as Zero,
)
from ._gate import AbstractGate, Keep
from ._kernel import AbstractKernel
from ._memory_base import AbstractMemory as AbstractMemory
from ._number import Learned
from ._read import AbstractRead, Evaluate
from ._write import AbstractWrite, Hebb


def _initial() -> Any:
    def check(spec: Spec, name: str, value: Any) -> None:
        if value is not None and not isinstance(value, Learned):
            raise refuse(spec, name, "Learned(...) or None", value, instead="Learned().")

    return dataclasses.field(default=None, metadata={"check": check})


class Memory(AbstractMemory):
    """A memory: *which functions, how a pair changes them, how they fade, how many atoms, what is
    read*.

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
    initial: Learned | None = _initial()
    positional: ClassVar[int] = 1

    def __check__(self) -> None:
        from ._check import check_memory  # a memory is checked by rules that know all its parts

        check_memory(self)


def _widths() -> Any:
    def check(spec: Spec, name: str, value: Any) -> None:
        good = isinstance(value, tuple) and all(type(w) is int and w > 0 for w in value)
        if not good:
            raise refuse(spec, name, "a tuple of sizes", value, instead="widths=(64,), say.")

    return dataclasses.field(default=(), metadata={"check": check})


class Network(AbstractMemory):
    """A memory whose function is a small network, trained while it is used.

    **Arguments:**

    - `write`: a `Descent`.
    - `widths`: the hidden widths; `()` is a linear map with bias.
    - `gate`: `Keep`, `Reset` or `Decay` of the parameters.
    - `read`: `Evaluate`, or `Before` of it.

    **Raises:** `SpecError` for parts that speak of atoms or of a matrix.

    ??? example

        ```python
        >>> import memdsl as md
        >>> titans = md.Network(md.Descent(rate=0.1, momentum=0.9), (64,), md.Decay(0.99))

        ```

    Source: Sun et al. 2024 (TTT); Behrouz et al. 2025 (Titans).
    """

    write: AbstractWrite = sort(AbstractWrite)
    widths: tuple[int, ...] = _widths()
    gate: AbstractGate = sort(AbstractGate, default=Keep())
    read: AbstractRead = sort(AbstractRead, default=Evaluate())
    positional: ClassVar[int] = 1

    def __check__(self) -> None:
        from ._check import check_network

        check_network(self)
