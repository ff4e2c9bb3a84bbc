"""The record of five sorts, and what is made of such records."""

from typing import ClassVar

from ._base import sort
from ._capacity import AbstractCapacity, All
from ._composite import (
    Added as Added,
    Boosted as Boosted,
    Chained as Chained,
    Every as Every,
    every as every,
    Level as Level,
    level as level,
    Mapped as Mapped,
    Scaled as Scaled,
    Transposed as Transposed,
    Zero as Zero,
)
from ._gate import AbstractGate, Keep
from ._kernel import AbstractKernel
from ._memory_base import AbstractMemory as AbstractMemory, initial_state
from ._network import Network as Network
from ._number import Learned
from ._read import AbstractRead, Evaluate
from ._rewired import Averaged as Averaged, Rewired as Rewired
from ._write import AbstractWrite, Hebb


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
    initial: Learned | None = initial_state()
    positional: ClassVar[int] = 1

    def __check__(self) -> None:
        from ._check import check_memory  # a memory is checked by rules that know all its parts

        check_memory(self)


Leaf = Memory | Network
"""A memory that is made of no other."""
