"""Features that squash numbers one by one, and features that cut, spread and sum them."""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from .._errors import SpecError
from .._types import at_least_single
from ._base import refuse, sort, Spec, whole
from ._feature_base import AbstractFeature


class Sigmoid(AbstractFeature):
    """`1 / (1 + exp(-x))`.

    ??? example

        ```python
        >>> import jax.numpy as jnp
        >>> import memdsl as md
        >>> [round(float(x), 4) for x in md.Sigmoid()(jnp.array([2.0, -1.0]))]
        [0.8808, 0.2689]

        ```
    """

    nonnegative: ClassVar[bool] = True

    def __call__(self, x: Any) -> Any:
        return jax.nn.sigmoid(x)


class LogSigmoid(AbstractFeature):
    """`-log(1 + exp(-x))`, the logarithm of a sigmoid.

    ??? example

        ```python
        >>> import jax.numpy as jnp
        >>> import memdsl as md
        >>> [round(float(x), 4) for x in md.LogSigmoid()(jnp.array([2.0, -1.0]))]
        [-0.1269, -1.3133]

        ```
    """

    def __call__(self, x: Any) -> Any:
        return jax.nn.log_sigmoid(x)


class Softplus(AbstractFeature):
    """`log(1 + exp(x))`.

    ??? example

        ```python
        >>> import jax.numpy as jnp
        >>> import memdsl as md
        >>> [round(float(x), 4) for x in md.Softplus()(jnp.array([2.0, -1.0]))]
        [2.1269, 0.3133]

        ```
    """

    nonnegative: ClassVar[bool] = True

    def __call__(self, x: Any) -> Any:
        return jax.nn.softplus(x)


class Tanh(AbstractFeature):
    """`tanh(x)`.

    ??? example

        ```python
        >>> import jax.numpy as jnp
        >>> import memdsl as md
        >>> [round(float(x), 4) for x in md.Tanh()(jnp.array([2.0, -1.0]))]
        [0.964, -0.7616]

        ```
    """

    keeps_sign: ClassVar[bool] = True

    def __call__(self, x: Any) -> Any:
        return jnp.tanh(x)


class Exponential(AbstractFeature):
    """`exp(x)`, number by number (`Exp` is the kernel).

    ??? example

        ```python
        >>> import jax.numpy as jnp
        >>> import memdsl as md
        >>> [round(float(x), 4) for x in md.Exponential()(jnp.array([0.0, -1.0]))]
        [1.0, 0.3679]

        ```
    """

    nonnegative: ClassVar[bool] = True

    def __call__(self, x: Any) -> Any:
        return jnp.exp(x)


class Wide(AbstractFeature):
    """`x` in single precision at least: before what half precision would make too coarse, as a decay.

    ??? example

        ```python
        >>> import jax.numpy as jnp
        >>> import memdsl as md
        >>> md.Wide()(jnp.ones(2, jnp.bfloat16)).dtype
        dtype('float32')

        ```
    """

    keeps_sign: ClassVar[bool] = True

    def __call__(self, x: Any) -> Any:
        return x.astype(at_least_single(x.dtype))


class Slice(AbstractFeature):
    """The numbers from `start` to `stop`, which is left out: a part of a packed projection.

    **Arguments:**

    - `start`, `stop`: whole numbers, `0 <= start < stop`.

    **Raises:** `SpecError` where they are not.

    ??? example

        ```python
        >>> import jax.numpy as jnp
        >>> import memdsl as md
        >>> md.Slice(1, 3)(jnp.array([5.0, 6.0, 7.0, 8.0]))
        Array([6., 7.], dtype=float32)

        ```
    """

    start: int = whole(at_least=0)
    stop: int = whole(at_least=1)
    positional: ClassVar[int] = 2
    keeps_sign: ClassVar[bool] = True

    def __check__(self) -> None:
        _check_ends(self, self.start, self.stop)

    def __call__(self, x: Any) -> Any:
        return x[self.start : self.stop]

    def size(self, in_size: int) -> int:
        _check_inside(self, self.stop, in_size)
        return self.stop - self.start


class Only(AbstractFeature):
    """The numbers from `start` to `stop`, which is left out, where they are; 0 elsewhere.

    **Arguments:**

    - `start`, `stop`: whole numbers, `0 <= start < stop`.

    **Raises:** `SpecError` where they are not.

    ??? example

        ```python
        >>> import jax.numpy as jnp
        >>> import memdsl as md
        >>> md.Only(1, 3)(jnp.array([5.0, 6.0, 7.0, 8.0]))
        Array([0., 6., 7., 0.], dtype=float32)

        ```
    """

    start: int = whole(at_least=0)
    stop: int = whole(at_least=1)
    positional: ClassVar[int] = 2
    keeps_sign: ClassVar[bool] = True

    def __check__(self) -> None:
        _check_ends(self, self.start, self.stop)

    def __call__(self, x: Any) -> Any:
        places = jnp.arange(len(x))
        return jnp.where((places >= self.start) & (places < self.stop), x, 0)

    def size(self, in_size: int) -> int:
        _check_inside(self, self.stop, in_size)
        return in_size


def _check_ends(spec: Spec, start: int, stop: int) -> None:
    if stop <= start:
        raise refuse(spec, "stop", "above start", stop, instead=f"stop={start + 1}, say.")


def _check_inside(spec: Spec, stop: int, in_size: int) -> None:
    if stop > in_size:
        raise SpecError(
            f"There are {in_size} numbers, and not {stop}.",
            where=spec,
            at="stop",
            instead="a wider input, or a part of it.",
        )


class Spread(AbstractFeature):
    """Every number `count` times in a row: one a head becomes one a channel of every head.

    **Arguments:**

    - `count`: at least 1.

    **Raises:** `SpecError` where it is not.

    ??? example

        ```python
        >>> import jax.numpy as jnp
        >>> import memdsl as md
        >>> md.Spread(2)(jnp.array([5.0, 6.0]))
        Array([5., 5., 6., 6.], dtype=float32)

        ```
    """

    count: int = whole(at_least=1)
    positional: ClassVar[int] = 1
    keeps_sign: ClassVar[bool] = True

    def __call__(self, x: Any) -> Any:
        return jnp.repeat(x, self.count)

    def size(self, in_size: int) -> int:
        return in_size * self.count


class Total(AbstractFeature):
    """The sum, one number.

    ??? example

        ```python
        >>> import jax.numpy as jnp
        >>> import memdsl as md
        >>> md.Total()(jnp.array([5.0, 6.0]))
        Array([11.], dtype=float32)

        ```
    """

    keeps_sign: ClassVar[bool] = True

    def __call__(self, x: Any) -> Any:
        return jnp.sum(x, keepdims=True)

    def size(self, in_size: int) -> int:
        return 1


class Grouped(AbstractFeature):
    """A feature of each of `count` equal pieces: what is done head by head to a flat vector.

    **Arguments:**

    - `feature`: of one piece.
    - `count`: how many pieces; it must divide the size.

    **Raises:** `SpecError` where an argument is out of range.

    ??? example

        ```python
        >>> import jax.numpy as jnp
        >>> import memdsl as md
        >>> md.Grouped(md.Total(), 2)(jnp.array([1.0, 2.0, 3.0, 4.0]))
        Array([3., 7.], dtype=float32)

        ```
    """

    feature: AbstractFeature = sort(AbstractFeature)
    count: int = whole(at_least=1)
    positional: ClassVar[int] = 2

    def __call__(self, x: Any) -> Any:
        return jax.vmap(self.feature)(x.reshape(self.count, -1)).reshape(-1)

    def size(self, in_size: int) -> int:
        return self.count * self.feature.size(in_size // self.count)

    def is_nonnegative(self) -> bool:
        return self.feature.is_nonnegative()
