"""Layers of layers, pointwise: sums and products, parts with names, and trained vectors."""

import dataclasses
import math
from typing import Any, ClassVar

from .._errors import SpecError
from ._base import choice, described, flag, plain_float, refuse, sort, Spec, whole, written
from ._layer_base import AbstractLayer


def _operand() -> Any:
    def check(spec: Spec, name: str, value: Any) -> None:
        plain = isinstance(value, int | float) and not isinstance(value, bool)
        if not plain and not isinstance(value, AbstractLayer):
            raise refuse(spec, name, "a layer or a plain number", value, instead="Dense(64), say.")

    return dataclasses.field(metadata={"check": check})


class _Pointwise(AbstractLayer):
    left: Any = _operand()
    right: Any = _operand()
    positional: ClassVar[int] = 2


class LayerSum(_Pointwise):
    """`left(x) + right(x)`, written `left + right`; one of them may be a plain number.

    The widths are equal, or one of them is 1.

    ??? example

        ```python
        >>> import jax, jax.numpy as jnp
        >>> import memdsl as md
        >>> opposite = 1.0 - (md.Map(md.Identity()) >> md.Sigmoid())
        >>> layer = md.build(opposite, md.Dims(model=2), key=jax.random.key(0))
        >>> layer(jnp.zeros((1, 2)))
        Array([[0.5, 0.5]], dtype=float32)

        ```
    """

    binding: ClassVar[int] = 4

    def __repr__(self) -> str:
        return f"{written(self.left, 4)} + {written(self.right, 5)}"


class LayerProduct(_Pointwise):
    """`left(x) * right(x)`, number by number, written `left * right`; one may be a plain number.

    The widths are equal, or one of them is 1.

    ??? example

        ```python
        >>> import memdsl as md
        >>> md.Norm() * (md.Dense() >> md.Silu())
        Norm() * (Dense() >> Map(Silu()))

        ```
    """

    binding: ClassVar[int] = 5

    def __repr__(self) -> str:
        return f"{written(self.left, 5)} * {written(self.right, 6)}"


class Named(AbstractLayer):
    """A layer with a name: the same function, whose parameters are found under that name.

    Inside one `Tied`, parts of one name are one part: they share their parameters and are computed
    once.

    **Arguments:**

    - `name`: of the part, such as `"q_proj"`.
    - `layer`: the part.

    **Raises:** `SpecError` where the name is no text.

    ??? example

        ```python
        >>> import memdsl as md
        >>> md.Named("q_proj", md.Dense(64, bias=False))
        Named("q_proj", Dense(64, bias=False))

        ```
    """

    name: str
    layer: AbstractLayer = sort(AbstractLayer)
    positional: ClassVar[int] = 2

    def __check__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise SpecError(
                f"A part is named by a text, and here by {described(self.name)}.",
                where=self,
                at="name",
                instead='Named("q_proj", layer), say.',
            )


class Tied(AbstractLayer):
    """The layer, in which parts of one name are one part, and whose answer has the dtype of x.

    A part that is given one input in several places is computed once there; a part that carries
    something from token to token must be given one input everywhere.

    **Arguments:**

    - `layer`: a layer with `Named` parts.

    **Raises:** `SpecError` where two different layers have one name.

    ??? example

        ```python
        >>> import jax, jax.numpy as jnp
        >>> import memdsl as md
        >>> inner = md.Named("inner", md.Dense(4))
        >>> spec = md.Tied((inner >> md.Silu()) * inner)
        >>> layer = md.build(spec, md.Dims(model=8), key=jax.random.key(0))
        >>> list(layer.parts), layer(jnp.ones((5, 8))).shape
        (['inner'], (5, 4))

        ```
    """

    layer: AbstractLayer = sort(AbstractLayer)
    positional: ClassVar[int] = 1


class Uniform(Spec):
    """Where a trained number p starts: with `through(p)` uniform between two numbers.

    **Arguments:**

    - `low`, `high`: the numbers.
    - `through`: `"identity"`; `"exp"`, so that p is a logarithm of what is uniform; `"softplus"`.
    - `log`: whether the *logarithm* of `through(p)` is uniform.

    **Raises:** `SpecError` where no p gives such numbers.

    ??? example

        ```python
        >>> import memdsl as md
        >>> md.Vector(4, start=md.Uniform(1.0, 16.0, through="exp"))  # the logarithm of a rate
        Vector(4, start=Uniform(1.0, 16.0, through="exp"))

        ```
    """

    low: float = plain_float()
    high: float = plain_float()
    through: str = choice("identity", "exp", "softplus", default="identity")
    log: bool = flag()
    positional: ClassVar[int] = 2

    def __check__(self) -> None:
        above_zero = self.low > 0 or (self.through == "exp" and not self.log and self.low == 0)
        if self.high < self.low or ((self.log or self.through != "identity") and not above_zero):
            raise SpecError(
                f"Nothing is uniform between {self.low} and {self.high} here.",
                where=self,
                at="low",
                why='The low end may not be above the high one, and must be above 0 for "softplus" '
                'and log, and at least 0 for "exp".',
                instead="Uniform(1.0, 16.0), say.",
            )

    def parameter(self, value: float) -> float:
        """The p with `through(p) == value`."""
        if self.through == "exp":
            return math.log(value) if value > 0 else -math.inf
        if self.through == "softplus":
            return value + math.log(-math.expm1(-value))
        return value


def _start() -> Any:
    def check(spec: Spec, name: str, value: Any) -> None:
        plain = isinstance(value, int | float) and not isinstance(value, bool)
        listed = isinstance(value, tuple) and all(isinstance(x, int | float) for x in value)
        if not plain and not listed and not isinstance(value, Uniform):
            must = "a number, a tuple of numbers, or a Uniform"
            raise refuse(spec, name, must, value, instead="start=0.0, say.")
        size = vars(spec)["size"]
        if isinstance(value, tuple) and (not value or size % len(value)):
            must = f"of as many numbers as divide the size, {size}"
            raise refuse(spec, name, must, value, instead="as many numbers as the size says.")

    return dataclasses.field(default=0.0, metadata={"check": check})


class Vector(AbstractLayer):
    """The same vector at every token, whatever x is, and trained; in float32 at least.

    **Arguments:**

    - `size`: how long it is.
    - `start`: a number, a tuple of numbers, said again until there are `size`, or `Uniform(...)`.
    - `trainable`: whether it is trained; if not, it stays where it starts.

    **Raises:** `SpecError` where an argument is out of range.

    ??? example

        ```python
        >>> import jax, jax.numpy as jnp
        >>> import memdsl as md
        >>> layer = md.build(md.Vector(2, start=0.5), md.Dims(model=8), key=jax.random.key(0))
        >>> layer(jnp.ones((1, 8)))
        Array([[0.5, 0.5]], dtype=float32)

        ```
    """

    size: int = whole(at_least=1)
    start: Any = _start()
    trainable: bool = flag(default=True)
    positional: ClassVar[int] = 1
