"""Reads: how the function answers a query."""

from abc import abstractmethod
from typing import Any, ClassVar, TypeAlias

from .._errors import SpecError
from ._base import sort, Spec, whole
from ._kernel_base import AbstractKernel
from ._number import interval, Number, number


class AbstractRead(Spec):
    """How the value N(q) and the mass D(q) become an answer."""

    example: ClassVar[str] = "Evaluate() or Normalised()"

    @abstractmethod
    def core(self) -> "Core":
        """The read that makes the answer, inside `Before` and `TopK`."""

    def needs_mass(self) -> bool:
        """Whether the mass has to be kept."""
        return not isinstance(self.core(), Evaluate)

    def is_before(self) -> bool:
        """Whether a token reads the memory before it writes to it."""
        return False

    def top(self) -> int | None:
        """How many atoms are read at most, or `None` for all."""
        return None

    def choosing(self) -> str:
        """What chooses the atoms that are read, where something does."""
        return ""


class Evaluate(AbstractRead):
    """`y = scale N(q)`: the function itself.

    **Arguments:**

    - `scale`: of the answer only; the error of a delta rule is of the function without it.

    ??? example

        ```python
        >>> import memdsl as md
        >>> md.Evaluate(scale=md.InverseRoot("key"))  # the 1 / sqrt(key size) of published layers
        Evaluate(scale=InverseRoot())

        ```
    """

    scale: Number = number(
        default=1.0, of_input=False, meaning="multiplies the function that is read"
    )

    def core(self) -> "Core":
        return self


class Normalised(AbstractRead):
    """`y = scale N(q) / (scale D(q) + prior)`, and 0 where that would divide by 0.

    With a kernel that is never negative and prior 0, the answer is a weighted mean of what was
    written: softmax attention, linear attention, Nadaraya–Watson.

    **Arguments:**

    - `scale`: positive; only a prior notices it.
    - `prior`: at least 0: the mass of an atom with value 0 that is always there. 1e-10 guards a
        division, `exp(s)` is an attention sink, 1 makes an empty memory answer 0.

    Where a write makes masses below 0 (see `Reweight`), the mass is taken to be no nearer to 0 than a
    thousandth of the sum of the sizes of all masses.

    **Raises:** `SpecError` where an argument is out of range; and with a kernel that can be
    negative.

    ??? example

        ```python
        >>> import memdsl as md
        >>> md.Memory(md.Exp(md.Dot() / 8.0), read=md.Normalised())
        Memory(Exp(Dot() * 0.125), read=Normalised())

        ```

    Source: Vaswani et al. 2017, equation 1; Katharopoulos et al. 2020.
    """

    scale: Number = number(
        default=1.0, above=0.0, of_input=False, meaning="multiplies the function that is read"
    )
    prior: Number = number(
        default=0.0, at_least=0.0, of_input=False, meaning="mass of the prior atom"
    )

    def core(self) -> "Core":
        return self


class LocalLinear(AbstractRead):
    """`y = sum_i s_i (1 - z_i . rho) v_i / (omega - mu . rho)`: a line is fitted around the query.

    With `s_i = w_i kernel(k_i, q)` and `z_i = k_i - q`, the answer is the a of

        min over a and B of  sum_i s_i |a + B z_i - v_i|^2 + ridge |B|^2,

    `omega = sum s_i`, `mu = sum s_i z_i`, `rho = (sum s_i z_i z_i^T + ridge)^-1 mu`. Where masses are
    not 1 they multiply `s_i`, and divide the coefficient `c_i = m_i v_i`. Nothing written answers 0.
    As the ridge grows this is `Normalised`, which fits a constant; as it shrinks, what is affine in
    the keys is answered as it is, outside of the stored keys too.

    Keys are compared as the kernel compares them, after its `pullback`. The ridge is in units of the
    kernel: a factor of the kernel, which `Normalised` would divide away, is one of the ridge here.

    **Arguments:**

    - `ridge`: positive; so small a part of the spread of the keys that rounding hides it is not felt.

    **Raises:** `SpecError` where the ridge is not positive; and with a kernel that can be negative, a
    solved write, a bonus, and parts that need a matrix.

    ??? example

        ```python
        >>> import jax.numpy as jnp
        >>> import memdsl as md
        >>> memory = md.Memory(md.RBF(scale=1.0), read=md.LocalLinear(1e-3))
        >>> state = md.empty(memory, key_size=1, value_size=1, capacity=3)
        >>> keys = jnp.array([[0.0], [1.0], [2.0]])
        >>> state, _ = md.run(memory, state, keys, 10 * keys + 5)
        >>> md.evaluate(memory, state, jnp.array([[0.5], [3.0]]))[:, 0].round(1)
        Array([10. , 34.9], dtype=float32)
        >>> mean = memory.replace(read=md.Normalised())
        >>> md.evaluate(mean, state, jnp.array([[0.5], [3.0]]))[:, 0].round(1)
        Array([12.3, 22.9], dtype=float32)

        ```

    Source: Zuo et al. 2025, "Local Linear Attention"; Cleveland 1979 for the regression.
    """

    ridge: Number = number(
        default=1.0, above=0.0, of_input=False, meaning="holds the slope of the line to 0"
    )
    positional: ClassVar[int] = 1
    scale: ClassVar[float] = 1.0
    prior: ClassVar[float] = 0.0

    def core(self) -> "Core":
        return self


Core: TypeAlias = Evaluate | Normalised | LocalLinear
"""The reads that make an answer."""


class Before(AbstractRead):
    """`read`, before the token is written: what the memory forecasts.

    With a bonus the token's own pair (v, 1) is let through all the same, with the weight
    `bonus kernel(k, q)`: in the value, and in the mass where the read divides.

    **Arguments:**

    - `read`: how what is there is answered with.
    - `bonus`: one number; or one `per="key_channel"`, `(bonus * k) . q`, where the kernel is `Dot`; or
        `None`.

    **Raises:** `SpecError` for a bonus that can be below 0 under a read that divides, and one per
    channel of a kernel that is not `Dot`.

    ??? example

        ```python
        >>> import memdsl as md
        >>> md.Before(bonus=md.Learned(per="key_channel"))  # RWKV-6
        Before(bonus=Learned(per="key_channel"))
        >>> md.Before(md.Normalised(), bonus=md.Learned(1.0, squash="exp"))  # RWKV-4
        Before(Normalised(), bonus=Learned(1.0, squash="exp"))

        ```

    Source: Peng et al. 2023 (RWKV-4), and 2024 (RWKV-6).
    """

    read: AbstractRead = sort(AbstractRead, default=Evaluate())
    bonus: Number = number(
        default=None, per=("layer", "head", "key_channel"), optional=True, of_input=False
    )
    positional: ClassVar[int] = 1

    def __check__(self) -> None:
        if self.read.is_before():
            raise SpecError(
                "Before(Before(...)) is no earlier than Before(...).",
                where=self,
                at="read",
                instead=f"{self.read!r}." if self.bonus is None else "one Before, with the bonus.",
            )
        reach = None if self.bonus is None else interval(self.bonus)
        if self.read.needs_mass() and reach is not None and reach[0] < 0:
            raise SpecError(
                "A bonus below 0 can make the mass 0 or negative.",
                where=self,
                at="bonus",
                why="The token's own pair enters the mass that Normalised divides by.",
                instead='a bonus of at least 0, such as Learned(1.0, squash="exp").',
            )

    def core(self) -> "Core":
        return self.read.core()

    def is_before(self) -> bool:
        return True

    def top(self) -> int | None:
        return self.read.top()

    def choosing(self) -> str:
        return self.read.choosing()


class TopK(AbstractRead):
    """`read` of only the `count` atoms with the largest weight `w_i kernel(k_i, q)`, w the decays.

    (Of a `Reweight` memory, w is also the 1 / D with which its atoms come.)

    What a write recalls is of all atoms. Of equals, those in the lowest slots are read. No gradient
    flows through the choice.

    **Arguments:**

    - `count`: at least 1, and at most as many as are kept.
    - `read`: how they are answered with.
    - `by`: another kernel, whose `w_i by(k_i, q)` is the weight that ranks: a cheap one, or one of
        other coordinates. Keys then are kept as they are given, for both kernels to take from them what
        each compares (`.pullback(Slice(0, 8))`), and this one need not be symmetric.

    **Raises:** `SpecError` where `count` is out of range, and where reads are nested so that one of
    them says nothing; with `by`, beside parts that speak of the channels of a key after a feature.

    ??? example

        ```python
        >>> import memdsl as md
        >>> md.Memory(md.RBF(), read=md.TopK(1)).read  # the nearest neighbour
        TopK(1)
        >>> indexer = md.Dot().pullback(md.Slice(8, 12))
        >>> md.Memory(md.Exp(md.Dot().pullback(md.Slice(0, 8))), read=md.TopK(64, by=indexer)).read
        TopK(64, by=Dot().pullback(Slice(8, 12)))

        ```

    Source: DeepSeek-AI 2025 (DeepSeek-V3.2, sparse attention) for `by`.
    """

    count: int = whole(at_least=1)
    read: AbstractRead = sort(AbstractRead, default=Normalised())
    by: AbstractKernel | None = sort(AbstractKernel, default=None, optional=True)
    positional: ClassVar[int] = 2

    def __check__(self) -> None:
        inner = self.read
        if isinstance(inner, TopK):
            raise SpecError(
                f"TopK({self.count}) of TopK({inner.count}) is one TopK.",
                where=self,
                at="read",
                instead=f"{self.replace(count=min(self.count, inner.count), read=inner.core())!r}.",
            )
        if self.read.is_before():
            raise SpecError(
                "TopK says which atoms are read, and Before when: Before comes first.",
                where=self,
                at="read",
                instead=f"{Before(self.replace(read=self.read.core()), bonus_of(self.read))!r}.",
            )
        if inner.top() is not None:
            raise SpecError(
                f"TopK and {type(inner).__name__} both say which atoms are read.",
                where=self,
                at="read",
                instead=f"{self.replace(read=inner.core())!r}.",
            )

    def core(self) -> "Core":
        return self.read.core()

    def top(self) -> int | None:
        return self.count

    def choosing(self) -> str:
        return f"TopK({self.count})"


class Backwards(AbstractRead):
    """The matrix from the side of its values, `y = scale S q`: what `transpose` reads with.

    A memory takes it from `transpose()` when it is planned, and refuses it from anybody else.
    """

    read: AbstractRead = sort(AbstractRead, default=Evaluate())
    positional: ClassVar[int] = 1

    def core(self) -> "Core":
        return self.read.core()

    def is_before(self) -> bool:
        return self.read.is_before()


class Forecast(AbstractRead):
    """`read`, before the token is written and with nothing let through: what a forecast reads with."""

    read: AbstractRead = sort(AbstractRead, default=Evaluate())
    positional: ClassVar[int] = 1

    def core(self) -> "Core":
        return self.read.core()

    def is_before(self) -> bool:
        return True

    def top(self) -> int | None:
        return self.read.top()

    def choosing(self) -> str:
        return self.read.choosing()


def ranked_by(read: Any) -> AbstractKernel | None:
    """The kernel by which a read ranks atoms, where it is another one than that it reads through."""
    while isinstance(read, Before | Forecast | Backwards):
        read = read.read
    return read.by if isinstance(read, TopK) else None


def bonus_of(read: Any) -> Any:
    """The bonus of a read, or `None`."""
    read = read.read if isinstance(read, Backwards) else read
    return read.bonus if isinstance(read, Before) else None
