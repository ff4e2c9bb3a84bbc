"""What a feature is: a map of one key. Features are composed with `>>`."""

from abc import abstractmethod
from typing import Any, ClassVar

from .._errors import SpecError
from ._base import described, sort, Spec, written


class AbstractFeature(Spec):
    """A map of one key, `[in_size] -> [size(in_size)]`, the same for keys and queries.

    To add one, write `__call__`, on a single key; `size` where the size changes; and
    `nonnegative = True` where no output is below 0.

    ??? example

        ```python
        >>> import jax.numpy as jnp
        >>> import memdsl as md
        >>> class Square(md.AbstractFeature):
        ...     nonnegative = True
        ...
        ...     def __call__(self, x):
        ...         return x * x
        >>> feature = md.L2Norm(epsilon=0.0) >> Square()
        >>> [round(float(x), 2) for x in feature(jnp.array([3.0, 4.0]))]
        [0.36, 0.64]
        >>> md.is_nonnegative(md.Dot().pullback(feature))
        True

        ```
    """

    nonnegative: ClassVar[bool] = False
    """Whether every output is at least 0."""
    keeps_sign: ClassVar[bool] = False
    """Whether an output is at least 0 wherever the input is."""
    shared: ClassVar[bool] = True
    example: ClassVar[str] = "a feature such as Silu() >> L2Norm()"

    @abstractmethod
    def __call__(self, x: Any) -> Any:
        """The features of one key."""

    def size(self, in_size: int) -> int:
        """How many features a key of `in_size` numbers has."""
        return in_size

    def is_unit(self) -> bool:
        """Whether every output has Euclidean norm 1."""
        return False

    def is_nonnegative(self) -> bool:
        """Whether every output is at least 0."""
        return self.nonnegative

    def dot_is_nonnegative(self) -> bool:
        """Whether the inner product of two outputs is at least 0."""
        return self.is_nonnegative()

    def __rshift__(self, other: Any) -> Any:
        if isinstance(other, AbstractFeature):
            return Then(self, other)
        if isinstance(other, Spec) and "__rrshift__" in dir(type(other)):
            return NotImplemented
        pulled = f"{other!r}.pullback({self!r})." if isinstance(other, Spec) else None
        is_kernel = "pullback" in dir(type(other))
        raise SpecError(
            f">> takes a feature, and got {described(other)}.",
            where=self,
            instead=pulled if is_kernel else "a feature such as L2Norm().",
        )


class Then(AbstractFeature):
    """`second(first(x))`, written `first >> second`.

    ??? example

        ```python
        >>> import memdsl as md
        >>> md.Silu() >> md.L2Norm()
        Silu() >> L2Norm()

        ```
    """

    first: AbstractFeature = sort(AbstractFeature)
    second: AbstractFeature = sort(AbstractFeature)
    binding: ClassVar[int] = 3

    def __call__(self, x: Any) -> Any:
        return self.second(self.first(x))

    def size(self, in_size: int) -> int:
        return self.second.size(self.first.size(in_size))

    def is_unit(self) -> bool:
        return self.second.is_unit()

    def is_nonnegative(self) -> bool:
        kept = self.second.keeps_sign and self.first.is_nonnegative()
        return self.second.is_nonnegative() or kept

    def dot_is_nonnegative(self) -> bool:
        return self.second.dot_is_nonnegative() or self.is_nonnegative()

    def __repr__(self) -> str:
        return f"{written(self.first, 3)} >> {written(self.second, 4)}"


def one_feature(value: Any, kernel: Any = None) -> AbstractFeature:
    """`value`, or a readable error where it is no feature."""
    if isinstance(value, AbstractFeature):
        return value
    forgot = isinstance(value, type) and issubclass(value, AbstractFeature)
    raise SpecError(
        f"pullback takes a feature, and got {described(value)}.",
        where=kernel,
        instead=f"{value.__name__}(...)." if forgot else "a feature such as Silu() >> L2Norm().",
    )
