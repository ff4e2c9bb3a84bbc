"""Memories made of memories."""

from typing import ClassVar

from ._base import sort, Spec, whole, written
from ._feature import AbstractFeature
from ._memory_base import AbstractMemory
from ._number import Number, number


class Zero(AbstractMemory):
    """The memory that always answers 0: the unit of `+`.

    ??? example

        ```python
        >>> import memdsl as md
        >>> md.Memory(md.Dot()) + md.Zero()
        Memory(Dot())

        ```
    """


class _Two(AbstractMemory):
    first: AbstractMemory = sort(AbstractMemory)
    second: AbstractMemory = sort(AbstractMemory)
    positional: ClassVar[int] = 2


class Added(_Two):
    """`first + second`: both are written, and the answers add.

    ??? example

        ```python
        >>> import memdsl as md
        >>> window = md.Memory(md.Exp(md.Dot()), capacity=md.Window(64), read=md.Normalised())
        >>> hybrid = window + md.Memory(md.Dot(), md.Delta(0.5))

        ```
    """

    binding: ClassVar[int] = 4

    def __repr__(self) -> str:
        return f"{written(self.first, 4)} + {written(self.second, 5)}"


class Chained(_Two):
    """`first >> second`: both are written with the same pairs; the second is asked what the first
    answered, so the size of its keys is the size of that answer.

    ??? example

        ```python
        >>> import memdsl as md
        >>> attention = md.Memory(md.Exp(md.Dot()), read=md.Normalised())
        >>> attention >> md.Memory(md.Dot(), initial=md.Learned())
        Memory(Exp(Dot()), read=Normalised()) >> Memory(Dot(), initial=Learned())

        ```

    Source: Behrouz et al. 2025 ("Nested Learning"), equation 69, in column form.
    """

    binding: ClassVar[int] = 3

    def __repr__(self) -> str:
        return f"{written(self.first, 3)} >> {written(self.second, 4)}"


class Boosted(_Two):
    """`first.boost(second)`: the answers add, and the second is written with the first's error.

    Its values are `v - f(k)`, f being the first memory before it is written.

    ??? example

        ```python
        >>> import memdsl as md
        >>> md.Memory(md.Dot(), md.Ridge()).boost(md.Memory(md.RBF(), md.Delta(0.5)))
        Memory(Dot(), write=Ridge()).boost(Memory(RBF(), write=Delta(rate=0.5)))

        ```
    """

    def __repr__(self) -> str:
        return f"{written(self.first, Spec.binding)}.boost({self.second!r})"


class Scaled(AbstractMemory):
    """`factor * memory`: the answer is multiplied.

    **Arguments:**

    - `factor`: one number, one a token, or one `per="value_channel"`.

    ??? example

        ```python
        >>> import memdsl as md
        >>> md.FromInput("sigmoid") * md.Memory(md.Dot())
        FromInput("sigmoid") * Memory(Dot())

        ```
    """

    memory: AbstractMemory = sort(AbstractMemory)
    factor: Number = number(per=("layer", "head", "value_channel"), meaning="factor of the answer")
    positional: ClassVar[int] = 2
    binding: ClassVar[int] = 5

    def __repr__(self) -> str:
        return f"{written(self.factor, 5)} * {written(self.memory, 6)}"


class Mapped(AbstractMemory):
    """`memory >> feature`: the answer goes through a feature.

    ??? example

        ```python
        >>> import memdsl as md
        >>> md.Memory(md.Dot()) >> md.L2Norm()
        Memory(Dot()) >> L2Norm()

        ```
    """

    memory: AbstractMemory = sort(AbstractMemory)
    feature: AbstractFeature = sort(AbstractFeature)
    positional: ClassVar[int] = 2
    binding: ClassVar[int] = 3

    def __repr__(self) -> str:
        return f"{written(self.memory, 3)} >> {written(self.feature, 4)}"


class Transposed(AbstractMemory):
    """`memory.transpose()`: stores values as keys and keys as values, and is read from behind.

    The answer to q is `sum_i feature(v_i) (c_i . q)`.

    **Raises:** `SpecError` where the memory is not a matrix that is read without dividing.

    ??? example

        ```python
        >>> import memdsl as md
        >>> oja = md.Memory(md.Dot().pullback(md.L2Norm()), md.Delta(0.5)).transpose()
        >>> oja.transpose()
        Memory(Dot().pullback(L2Norm()), write=Delta(rate=0.5))

        ```

    Source: the Oja rule of Irie et al. 2022, which is the delta rule with keys and values swapped.
    """

    memory: AbstractMemory = sort(AbstractMemory)
    positional: ClassVar[int] = 1

    def transpose(self) -> AbstractMemory:
        return self.memory

    def __check__(self) -> None:
        from ._check import check_transposed

        check_transposed(self)

    def __repr__(self) -> str:
        return f"{written(self.memory, Spec.binding)}.transpose()"


class Every(AbstractMemory):
    """`every(count, memory)`: written only at every `count`-th token, and read at every one.

    Tokens are counted from the last start; at the others the memory does not fade either.
    """

    count: int = whole(at_least=1)
    memory: AbstractMemory = sort(AbstractMemory)
    positional: ClassVar[int] = 2

    def __repr__(self) -> str:
        return f"every({self.count}, {self.memory!r})"


def every(count: int, memory: AbstractMemory) -> Every:
    """The memory, written at every `count`-th token (the last of each group).

    ??? example

        ```python
        >>> import memdsl as md
        >>> md.every(16, md.Memory(md.Dot(), md.Delta(0.5)))
        every(16, Memory(Dot(), write=Delta(rate=0.5)))

        ```
    """
    return Every(count, memory)


class Level(AbstractMemory):
    """`level(number, memory)`: of the pairs so far, those of one age level alone.

    Tokens are counted from the last start, from 0. The pair of token j is of level 0 for the reader of
    token i = j, and of level `bit_length(i xor j)` for a later one: for level n >= 1 these are the
    `2^(n-1)` tokens of the block before the reader's, where the reader's block is the second of two,
    and none where it is the first. All levels together are all pairs, each once.

    **Raises:** `SpecError` where the memory is not one whose pairs are added, each by itself.
    """

    number: int = whole(at_least=0)
    memory: AbstractMemory = sort(AbstractMemory)
    positional: ClassVar[int] = 2

    def __check__(self) -> None:
        from ._check import check_level

        check_level(self)

    def __repr__(self) -> str:
        return f"level({self.number}, {self.memory!r})"


def level(number: int, memory: AbstractMemory) -> Level:
    """The memory of the pairs of one age level, `bit_length(i xor j)`, for the reader of token i.

    A level keeps one function, whatever its length: the sum of n levels is log-linear attention, which
    weighs what is long ago by blocks that double in size.

    ??? example

        ```python
        >>> import memdsl as md
        >>> attention = md.Memory(md.Dot(), gate=md.Decay(0.9))
        >>> md.level(0, attention) + 0.5 * md.level(1, attention)
        level(0, Memory(Dot(), gate=Decay(0.9))) + 0.5 * level(1, Memory(Dot(), gate=Decay(0.9)))

        ```

    Source: Guo et al. 2025 ("Log-Linear Attention").
    """
    return Level(number, memory)
