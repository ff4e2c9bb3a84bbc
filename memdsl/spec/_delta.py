"""The delta rule, in the forms that have been published."""

from typing import Any, ClassVar

from .._errors import SpecError
from ._base import choice, flag, plain_float
from ._number import Number, number
from ._write_base import AbstractWrite, rate, Recalled, RECALLS


class Delta(AbstractWrite):
    """`c = rate (v - f(k))`: the pair corrects what was recalled, the descent of `Squared`.

    On unit keys with rate 1 the latest pair is recalled exactly. Stable where `rate kernel(k, k) <
    2`.

    **Arguments:**

    - `rate`: the step β.
    - `recall`: whether f(k) is the memory after this token's decay (`"decayed"`: Gated DeltaNet,
        KDA) or before it (`"previous"`: RWKV-7, Comba, Titans).
    - `implicit`: the error after the step instead of before it: β becomes
        `β / (1 + β kernel(k, k))`, stable at any rate (Longhorn).
    - `erase`: `"key"`, or `"own"`: f is asked at a key of its own, given as `erase_keys`.
    - `remove`: `"key"`, or `"own"`: what was recalled is taken away at a key of its own,
        given as `remove_keys` (DPLR, RWKV-7), while v is written at k.
    - `erase_gate`: multiplies the key at which f is asked, channel by channel (Gated DeltaNet-2).
    - `write_gate`: multiplies v, channel by channel.
    - `on`: `"key"` makes a new atom; `"atoms"` spreads the correction over every stored atom in
        proportion to its kernel with k (kernel normalised least mean squares).
    - `normalise`: divides the step by `normalise + |h|^2`, where h is what the step is spread over.

    **Raises:** `SpecError` for forms that exclude each other.

    ??? example

        ```python
        >>> import jax.numpy as jnp
        >>> import memdsl as md
        >>> from memdsl.spec._write import Recalled
        >>> value, answer = jnp.array([1.0, 0.0]), jnp.array([0.5, 0.5])
        >>> c, _ = md.Delta(rate=0.5).coefficient(value, Recalled(answer, None, answer), norm=1.0)
        >>> c
        Array([ 0.25, -0.25], dtype=float32)

        ```

    Source: Schlag et al. 2021 and Yang et al. 2024 with `Dot`; Liu et al. 2008 (kernel least mean
    squares) with any kernel.
    """

    rate: Number = rate()
    recall: str = choice(*RECALLS, default="decayed")
    implicit: bool = flag()
    erase: str = choice("key", "own", default="key")
    remove: str = choice("key", "own", default="key")
    erase_gate: Number = number(
        default=None, per=("layer", "head", "key_channel"), optional=True, meaning="erase gate"
    )
    write_gate: Number = number(
        default=None, per=("layer", "head", "value_channel"), optional=True, meaning="write gate"
    )
    on: str = choice("key", "atoms", default="key")
    normalise: float | None = plain_float(above=0.0, default=None, optional=True)
    degree: ClassVar[float] = 1

    def __check__(self) -> None:
        if self.implicit and self.recall == "previous":
            raise SpecError(
                "Delta cannot be implicit about the previous memory.",
                where=self,
                at="recall",
                why="The implicit step solves for the memory after this token, decay included.",
                instead='recall="decayed".',
            )
        if self.implicit and self.own_key():
            raise SpecError(
                "An implicit Delta erases at its own key.",
                where=self,
                at=self.own_key(),
                why="The implicit step has its closed form only where the erased and the written "
                "key are one.",
                instead="implicit=False, or no separate key.",
            )
        if self.on == "atoms" and (self.own_key() or self.implicit):
            raise SpecError(
                'Delta(on="atoms") writes at no key of its own.',
                where=self,
                at=self.own_key() or "implicit",
                why="It moves the coefficients of the atoms that are stored.",
                instead='on="key", or neither separate keys nor an implicit step.',
            )

    def own_key(self) -> str | None:
        """The field that sets the erased or the removed key apart from the written one, if any."""
        apart = (
            ("erase", self.erase == "own"),
            ("remove", self.remove == "own"),
            ("erase_gate", self.erase_gate is not None),
        )
        return next((name for name, is_apart in apart if is_apart), None)

    def reads_before_decay(self) -> bool:
        return self.recall == "previous"

    def step(self, norm: Any) -> Any:
        """The step that multiplies the error, given `norm = |h|^2`."""
        step = self.rate
        if self.normalise is not None:
            step = step / (self.normalise + norm)
        return step / (1 + step * norm) if self.implicit else step

    def target(self, value: Any) -> Any:
        """What f(k) should become."""
        return value if self.write_gate is None else self.write_gate * value

    def erase_key(self, key: Any) -> Any:
        """The key at which f is asked."""
        return key if self.erase_gate is None else self.erase_gate * key

    def coefficient(self, value: Any, recalled: Recalled, norm: Any) -> tuple[Any, Any]:
        return self.step(norm) * (self.target(value) - recalled.answer), 1.0
