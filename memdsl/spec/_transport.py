"""Gates that move the stored keys: what was stored at k is found at T k from now on."""

from typing import ClassVar

from ._gate_base import AbstractForget
from ._number import Number, number


class AbstractTransport(AbstractForget):
    """`f <- f T^T`, which is `k_i <- T k_i` for every atom, and `S <- T S` where the kernel is `Dot`.

    Keys are what the kernel compares, after the feature of `.pullback`.
    """

    def own_keys(self) -> tuple[str, ...]:
        """The further streams of keys that the gate takes."""
        return ()


class KeyDecay(AbstractTransport):
    """Every coordinate of the stored keys shrinks by its own factor: `k_i <- decay * k_i`.

    On `Dot` it is `DiagonalDecay`. On `Exp(Dot)` it is forgetting inside of the exponent: an old key
    becomes short, and the answer turns towards the mean of all values.

    **Arguments:**

    - `decay`: between 0 and 1, one number or one `per="key_channel"`.

    **Raises:** `SpecError` where it can leave that range; and beside `Ridge`, momentum or a window of
    a `Descent`, which go back to pairs where they were.

    ??? example

        ```python
        >>> import memdsl as md
        >>> softmax = md.Memory(md.Exp(md.Dot() / 8.0), read=md.Normalised())
        >>> wall = softmax.replace(gate=md.KeyDecay(md.FromInput("sigmoid", per="key_channel")))
        >>> wall.gate
        KeyDecay(FromInput("sigmoid", per="key_channel"))

        ```
    """

    decay: Number = number(
        at_least=0.0,
        at_most=1.0,
        per=("layer", "head", "key_channel"),
        log=True,
        meaning="decay",
        range_reason="A decay above 1 would let the past grow without end, and one below 0 has no "
        "logarithm.",
    )
    positional: ClassVar[int] = 1


class Householder(AbstractTransport):
    """The stored keys lose a part of a direction: `k_i <- (I - rate w w^T) k_i`, w the erase key.

    A run takes w as `erase_keys`; with |w| = 1, rate 1 removes the direction and rate 2 reflects it.
    On `Dot` it erases what is found at w, `S <- (I - rate w w^T) S`; on `Exp(Dot)` it is PaTH, a
    position encoding that the data decide.

    **Arguments:**

    - `rate`: at least 0.

    **Raises:** `SpecError` where the rate can be below 0; beside a write with erase keys of its own
    or with several pairs a token; and as `KeyDecay`.

    ??? example

        ```python
        >>> import memdsl as md
        >>> softmax = md.Memory(md.Exp(md.Dot() / 8.0), read=md.Normalised())
        >>> path = softmax.replace(gate=md.Householder(md.FromInput("sigmoid", scale=2.0)))
        >>> [slot.name for slot in md.signals(path)]
        ['rate']

        ```

    Source: Yang et al. 2025 ("PaTH attention", 2505.16381).
    """

    rate: Number = number(at_least=0.0, meaning="rate of the transport")
    positional: ClassVar[int] = 1

    def own_keys(self) -> tuple[str, ...]:
        return ("erase_keys",)
