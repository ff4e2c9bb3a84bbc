"""Gates that let pairs in. They look at the atoms from before the pair."""

from typing import Any, ClassVar

import jax.numpy as jnp

from ._gate_base import AbstractAdmission, Arrival
from ._number import Number, number


class Always(AbstractAdmission):
    """Every pair becomes an atom; a unit of `@`, as `Keep` is.

    ??? example

        ```python
        >>> import memdsl as md
        >>> md.Decay(0.9) @ md.Always()
        Decay(0.9)

        ```
    """

    def admits(self, arrival: Arrival) -> Any:
        return jnp.asarray(True)


class Never(AbstractAdmission):
    """No pair becomes an atom: what is stored is only trained, or merged into.

    ??? example

        ```python
        >>> import memdsl as md
        >>> md.Budget(64, merge=md.AddToNearest()), md.Never()
        (Budget(64, merge=AddToNearest()), Never())

        ```
    """

    def admits(self, arrival: Arrival) -> Any:
        return jnp.asarray(False)


class Novelty(AbstractAdmission):
    """Admits a key that is far from every stored one: `min_j |k - k_j| > threshold`.

    The distance is Euclidean, between keys as the kernel's own feature gives them, and the
    comparison strict: an exact copy is not novel at a threshold of 0. An empty memory admits.

    **Arguments:**

    - `threshold`: below 0 everything is admitted; at `inf`, nothing.

    ??? example

        ```python
        >>> import memdsl as md
        >>> from memdsl.spec._gate import Arrival
        >>> [bool(md.Novelty(0.5).admits(Arrival(d, 0.0, 0.0))) for d in (0.4, 0.5, 0.6)]
        [False, False, True]

        ```

    Source: "Retrieval-Centric Deep Learning" (2026), section 3.3; quantised kernel least mean
    squares (Chen et al. 2012), with `Budget(n, merge=AddToNearest())`.
    """

    threshold: Number = number(of_input=False, infinite=True, meaning="distance threshold")
    positional: ClassVar[int] = 1

    def admits(self, arrival: Arrival) -> Any:
        never = self.threshold == jnp.inf
        return (arrival.distance > self.threshold) & ~jnp.asarray(never)


class Coherence(AbstractAdmission):
    """Admits a key whose coherence with every stored one is at most `threshold`.

    The coherence of two keys is `|kernel(k, k')| / sqrt(kernel(k, k) kernel(k', k'))`: comparable
    between kernels, as a distance is not. It is 0 where the kernel of a key with itself is 0.

    **Arguments:**

    - `threshold`: above 0 and at most 1; 1 admits everything.

    **Raises:** `SpecError` where the threshold is out of range.

    ??? example

        ```python
        >>> import memdsl as md
        >>> from memdsl.spec._gate import Arrival
        >>> [bool(md.Coherence(0.5).admits(Arrival(1.0, c, 0.0))) for c in (0.5, 0.6)]
        [True, False]

        ```

    Source: Richard, Bermudez and Honeine 2009.
    """

    threshold: Number = number(
        above=0.0, at_most=1.0, of_input=False, meaning="coherence threshold"
    )
    positional: ClassVar[int] = 1

    def admits(self, arrival: Arrival) -> Any:
        return arrival.coherence <= self.threshold


class Surprise(AbstractAdmission):
    """Admits a pair whose error is above a threshold: `|v - f(k)| > threshold`.

    **Arguments:**

    - `threshold`: at least 0; `inf` admits nothing.

    **Raises:** `SpecError` where the threshold is below 0.

    ??? example

        ```python
        >>> import memdsl as md
        >>> md.Novelty(0.1) @ md.Surprise(0.05)  # the two tests of a resource-allocating network
        Novelty(0.1) @ Surprise(0.05)

        ```

    Source: the error test of Platt 1991.
    """

    threshold: Number = number(
        at_least=0.0, of_input=False, infinite=True, meaning="error threshold"
    )
    positional: ClassVar[int] = 1

    def admits(self, arrival: Arrival) -> Any:
        return arrival.surprise > self.threshold
