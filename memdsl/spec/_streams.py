"""What a memory is written with and asked at: vectors of a token, made of one another."""

from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple

from .._errors import SpecError
from ._base import children, described, sort, Spec, written
from ._feature import AbstractFeature


class Sizes(NamedTuple):
    """How many numbers the vectors of a token have; `None` where nobody knows yet."""

    key: int | None
    value: int | None
    query: int | None
    own: int | None = None


class AbstractStream(Spec):
    """A vector a token, which `memory.of(...)` puts in the place of a key, a value or a query.

    `stream >> feature` maps it; `a * b` and `a + b` are number by number, and where one of them has
    one number, that number is for all.

    ??? example

        ```python
        >>> import memdsl as md
        >>> (md.Key() >> md.L2Norm()) * md.Answer(md.Memory(md.Constant()).of(value=md.Key()))
        (Key() >> L2Norm()) * Answer(Memory(Constant()).of(value=Key()))

        ```
    """

    example: ClassVar[str] = "a stream such as Key(), or Key() >> L2Norm()"

    def size(self, sizes: Sizes) -> int | None:
        """How many numbers it has, or `None` where that is not known yet."""
        raise NotImplementedError

    def __rshift__(self, other: Any) -> "MappedStream":
        if not isinstance(other, AbstractFeature):
            raise SpecError(
                f">> takes a feature, and got {described(other)}.",
                where=self,
                instead="a feature such as L2Norm().",
            )
        return MappedStream(self, other)

    def __mul__(self, other: Any) -> "StreamProduct":
        return StreamProduct(self, other)

    def __add__(self, other: Any) -> "StreamSum":
        return StreamSum(self, other)


class Key(AbstractStream):
    """The key of a token.

    ??? example

        ```python
        >>> import memdsl as md
        >>> md.Memory(md.Dot()).of(value=md.Key())  # it stores keys at keys
        Memory(Dot()).of(value=Key())

        ```
    """

    def size(self, sizes: Sizes) -> int | None:
        return sizes.key


class Value(AbstractStream):
    """The value of a token.

    ??? example

        ```python
        >>> import memdsl as md
        >>> md.Memory(md.Dot()).of(key=md.Value(), value=md.Key())
        Memory(Dot()).of(key=Value(), value=Key())

        ```
    """

    def size(self, sizes: Sizes) -> int | None:
        return sizes.value


class Query(AbstractStream):
    """What the memory is asked at.

    ??? example

        ```python
        >>> import memdsl as md
        >>> md.Memory(md.Dot()).of(query=md.Query() >> md.Softmax())
        Memory(Dot()).of(query=Query() >> Softmax())

        ```
    """

    def size(self, sizes: Sizes) -> int | None:
        return sizes.query


class Own(AbstractStream):
    """The further vector of a token that the nearest `of(own=...)` around it brings.

    ??? example

        ```python
        >>> import memdsl as md
        >>> slots = md.FromInput("sigmoid", per="key_channel")
        >>> md.Memory(md.Dot()).of(key=md.Own(), own=slots)
        Memory(Dot()).of(key=Own(), own=FromInput("sigmoid", per="key_channel"))

        ```
    """

    def size(self, sizes: Sizes) -> int | None:
        return sizes.own


class Answer(AbstractStream):
    """What a memory of its own answers to a token, once it is written.

    **Arguments:**

    - `memory`: it is written with the same token, and asked at its query, unless `of` says otherwise.

    ??? example

        ```python
        >>> import memdsl as md
        >>> mean = md.Memory(md.Constant(), read=md.Normalised()).of(value=md.Key())
        >>> md.Memory(md.Dot()).of(key=md.Answer(mean))  # at the mean of the keys so far
        Memory(Dot()).of(key=Answer(Memory(Constant(), read=Normalised()).of(value=Key())))

        ```
    """

    memory: Any
    positional: ClassVar[int] = 1

    def __check__(self) -> None:
        from ._memory_base import AbstractMemory  # which is made of streams

        if not isinstance(self.memory, AbstractMemory):
            raise SpecError(
                f"Answer is of a memory, not of {described(self.memory)}.",
                where=self,
                at="memory",
                instead=f"{AbstractMemory.example}.",
            )

    def size(self, sizes: Sizes) -> int | None:
        from ._rewired import answer_size

        return answer_size(self.memory, sizes)


class MappedStream(AbstractStream):
    """`stream >> feature`: the stream goes through a feature.

    ??? example

        ```python
        >>> import memdsl as md
        >>> md.Key() >> md.L2Norm()
        Key() >> L2Norm()

        ```
    """

    stream: AbstractStream = sort(AbstractStream)
    feature: AbstractFeature = sort(AbstractFeature)
    positional: ClassVar[int] = 2
    binding: ClassVar[int] = 3

    def size(self, sizes: Sizes) -> int | None:
        given = self.stream.size(sizes)
        return None if given is None else self.feature.size(given)

    def __repr__(self) -> str:
        return f"{written(self.stream, 3)} >> {written(self.feature, 4)}"


class _TwoStreams(AbstractStream):
    left: AbstractStream = sort(AbstractStream)
    right: AbstractStream = sort(AbstractStream)
    positional: ClassVar[int] = 2

    def size(self, sizes: Sizes) -> int | None:
        left, right = self.left.size(sizes), self.right.size(sizes)
        if left is None or right is None:
            return None
        if 1 not in (left, right) and left != right:
            raise SpecError(
                f"A stream of {left} numbers and one of {right} do not go together.",
                where=self,
                instead="streams of one size, or one of a single number.",
            )
        return max(left, right)


class StreamProduct(_TwoStreams):
    """`left * right`, number by number.

    ??? example

        ```python
        >>> import memdsl as md
        >>> md.Key() * md.Key()
        Key() * Key()

        ```
    """

    binding: ClassVar[int] = 5

    def __repr__(self) -> str:
        return f"{written(self.left, 5)} * {written(self.right, 6)}"


class StreamSum(_TwoStreams):
    """`left + right`, number by number.

    ??? example

        ```python
        >>> import memdsl as md
        >>> md.Key() + md.Value()
        Key() + Value()

        ```
    """

    binding: ClassVar[int] = 4

    def __repr__(self) -> str:
        return f"{written(self.left, 4)} + {written(self.right, 5)}"


def inner_streams(stream: Any, path: str) -> Iterator[tuple[str, AbstractStream]]:
    """`(path, stream)` of a stream and of all that it is made of, those of memories apart."""
    if isinstance(stream, AbstractStream):
        yield path, stream
        for name, part in children(stream):
            yield from inner_streams(part, f"{path}.{name}")
