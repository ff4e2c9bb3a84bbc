"""Capacities: how many atoms may be kept, which one goes, and what becomes of what it knew."""

import math
from typing import ClassVar

from .._errors import SpecError
from ._base import flag, plain_float, sort, Spec, whole
from ._number import Number, number


class AbstractCapacity(Spec):
    """How many atoms may be kept."""

    example: ClassVar[str] = "All(), Window(64) or Budget(256)"

    def slots(self) -> float:
        """The number of atoms, `inf` where there is no bound."""
        return math.inf

    def eviction(self) -> "AbstractEviction | None":
        """Who makes room for an admitted atom; nobody, where what finds none is dropped."""
        return None

    def merging(self) -> "AbstractMerge":
        """What becomes of what is not kept."""
        return Drop()


class All(AbstractCapacity):
    """Every atom is kept.

    ??? example

        ```python
        >>> import memdsl as md
        >>> md.All().slots()
        inf

        ```
    """


class Window(AbstractCapacity):
    """The latest `size` atoms, this token's included, besides the first `sinks` ones.

    **Arguments:**

    - `size`: at least 1.
    - `sinks`: how many atoms from the start of a document are kept for good.

    **Raises:** `SpecError` where a count is out of range; and beside an admission gate, since a
    window is of tokens.

    ??? example

        ```python
        >>> import memdsl as md
        >>> md.Window(1024, sinks=4).slots()
        1028

        ```

    Source: Beltagy et al. 2020 (Longformer); the sinks, Xiao et al. 2024 (StreamingLLM).
    """

    size: int = whole(at_least=1)
    sinks: int = whole(at_least=0, default=0)
    positional: ClassVar[int] = 1

    def slots(self) -> float:
        return self.size + self.sinks

    def eviction(self) -> "AbstractEviction":
        return Oldest(sinks=self.sinks)


class AbstractEviction(Spec):
    """Which atom of a full memory makes room. The lowest score goes; of equals, the lowest slot."""

    example: ClassVar[str] = "Oldest(), Smallest() or LeastUsed()"


class Oldest(AbstractEviction):
    """The atom that was written first; the first `sinks` atoms are never evicted.

    ??? example

        ```python
        >>> import memdsl as md
        >>> md.Budget(256, evict=md.Oldest(sinks=4))
        Budget(256, evict=Oldest(sinks=4))

        ```

    Source: NORMA (Kivinen, Smola and Williamson 2004); the sinks, Xiao et al. 2024.
    """

    sinks: int = whole(at_least=0, default=0)


class Smallest(AbstractEviction):
    """The atom with the smallest norm of its weighted coefficient, `w_i |c_i|`.

    ??? example

        ```python
        >>> import memdsl as md
        >>> md.Budget(256, evict=md.Smallest())
        Budget(256, evict=Smallest())

        ```

    Source: the fixed-budget kernel least mean squares of Rzepka 2012.
    """


class LeastUsed(AbstractEviction):
    """The atom that reads have used least: `use <- fade use + share of the read`, at every read.

    The share of an atom is `w_i |kernel(k_i, q)|` over the sum of these. A new atom starts at 1, as
    if one read had been all its own.

    **Arguments:**

    - `fade`: between 0 and 1; 1 is H2O, 0 is TOVA.

    **Raises:** `SpecError` where `fade` is out of range; and with `Ridge`, whose read is no such
    sum.

    ??? example

        ```python
        >>> import memdsl as md
        >>> md.Budget(256, evict=md.LeastUsed(0.9))
        Budget(256, evict=LeastUsed(0.9))

        ```

    Source: Zhang et al. 2023 (H2O); Oren et al. 2024 (TOVA). Both keep a share of recent tokens as
    well, or average over heads; this does neither.
    """

    fade: Number = number(default=1.0, at_least=0.0, at_most=1.0, of_input=False)
    positional: ClassVar[int] = 1


class LeaveOneOut(AbstractEviction):
    """The atom whose removal changes the memory least at its key, `|c_i| / [(K + ridge I)^-1]_ii`.

    The new atom competes too, so it may be the one that goes.

    **Arguments:**

    - `ridge`: above 0. A `Ridge` memory brings its own problem instead.

    **Raises:** `SpecError` where `ridge` is not positive.

    ??? example

        ```python
        >>> import memdsl as md
        >>> md.Memory(md.RBF(), md.Ridge(0.01), capacity=md.Budget(100, md.LeaveOneOut())).capacity
        Budget(100, evict=LeaveOneOut())

        ```

    Source: Van Vaerenbergh et al. 2010 (fixed-budget kernel recursive least squares).
    """

    ridge: Number = number(default=1e-2, above=0.0, of_input=False)
    positional: ClassVar[int] = 1


class Random(AbstractEviction):
    """A uniformly random atom; with `reservoir`, the new atom itself may be the one.

    **Arguments:**

    - `seed`: of the draws.
    - `reservoir`: the t-th token enters with probability `size / t`, so that what is kept is a
        uniform sample of all that came.

    ??? example

        ```python
        >>> import memdsl as md
        >>> md.Budget(256, evict=md.Random(reservoir=True))
        Budget(256, evict=Random(reservoir=True))

        ```

    Source: the randomised budget perceptron (Cavallanti et al. 2007); the reservoir, Vitter 1985.
    """

    seed: int = whole(at_least=0, default=0)
    reservoir: bool = flag()


class AbstractMerge(Spec):
    """What becomes of the coefficient of an atom that is not kept."""

    example: ClassVar[str] = "Drop(), AddToNearest(), Project() or Pairwise()"


class Drop(AbstractMerge):
    """It is lost.

    ??? example

        ```python
        >>> import memdsl as md
        >>> md.Budget(256) == md.Budget(256, merge=md.Drop())
        True

        ```
    """


class AddToNearest(AbstractMerge):
    """It is added, value and mass, to the nearest stored atom.

    ??? example

        ```python
        >>> import memdsl as md
        >>> quantised = md.Memory(
        ...     md.RBF(), md.Delta(0.2), md.Novelty(0.5), md.Budget(256, merge=md.AddToNearest())
        ... )

        ```

    Source: Chen et al. 2012 (quantised kernel least mean squares).
    """


class Project(AbstractMerge):
    """It is spread over the stored atoms as the projection `(K + ridge I)^-1 kernel(k, .)`.

    **Arguments:**

    - `ridge`: above 0; single precision wants 1e-4 or more.

    **Raises:** `SpecError` where `ridge` is not positive; and under a `Normalised` read, since
    shares of either sign would make masses negative.

    ??? example

        ```python
        >>> import memdsl as md
        >>> md.Budget(256, md.Smallest(), md.Project())
        Budget(256, evict=Smallest(), merge=Project())

        ```

    Source: the projectron (Orabona, Keshet and Caputo 2008), with a ridge.
    """

    ridge: float = plain_float(above=0.0, default=1e-4)


class Pairwise(AbstractMerge):
    r"""It and one stored atom become one atom, at a key between theirs: the least change of f.

    Of an atom (k, c) and a stored one (k', c'), with coefficients of value and mass,

    $$z = (1 - h)\, k + h\, k', \qquad
      c_z = \frac{κ(k, z)\, c + κ(k', z)\, c'}{κ(z, z)}, \qquad
      \mathrm{loss} = \lVert κ(k, ·)\, c + κ(k', ·)\, c' - κ(z, ·)\, c_z \rVert^2$$

    in the space of the kernel. The partner is the atom with the least loss at h = 0, 1/8, …, 1; then h
    moves to where the loss has its minimum there. No gradient flows through either choice. What
    points apart (c · c' below 0) is projected on one of the two keys. Keys are those that the kernel
    compares, after its `pullback`.

    ??? example

        ```python
        >>> import jax.numpy as jnp
        >>> import memdsl as md
        >>> memory = md.Memory(md.RBF(), capacity=md.Budget(1, merge=md.Pairwise()), gate=md.Novelty(2.0))
        >>> state = md.empty(memory, key_size=1, value_size=1)
        >>> keys, values = jnp.array([[0.0], [1.0]]), jnp.array([[3.0], [1.0]])
        >>> state, _ = md.run(memory, state, keys, values)
        >>> print(state.keys.round(4), state.values.round(4), state.counts.merged)
        [[0.1977]] [[3.6668]] 1

        ```

    Source: Wang, Crammer and Vucetic 2012, for two coefficients of one sign; vectors, masses and other
    kernels are not from there.
    """


class Budget(AbstractCapacity):
    """At most `size` atoms.

    **Arguments:**

    - `size`: how many.
    - `evict`: which atom of a full memory makes room for an admitted one.
    - `merge`: what becomes of a pair that the gate did not admit, and of an evicted atom.

    **Raises:** `SpecError` where pinned atoms leave no room.

    ??? example

        ```python
        >>> import memdsl as md
        >>> md.Budget(256, md.LeastUsed(), md.AddToNearest())
        Budget(256, evict=LeastUsed(), merge=AddToNearest())

        ```
    """

    size: int = whole(at_least=1)
    evict: AbstractEviction = sort(AbstractEviction, default=Oldest())
    merge: AbstractMerge = sort(AbstractMerge, default=Drop())
    positional: ClassVar[int] = 1

    def slots(self) -> float:
        return self.size

    def eviction(self) -> AbstractEviction:
        return self.evict

    def merging(self) -> AbstractMerge:
        return self.merge

    def __check__(self) -> None:
        sinks = self.evict.sinks if isinstance(self.evict, Oldest) else 0
        if sinks >= self.size:
            raise SpecError(
                f"Budget({self.size}) has no room beside {sinks} pinned atoms.",
                where=self,
                at="evict",
                why="Pinned atoms are never evicted, so nothing new could be written.",
                instead=f"a budget above {sinks}, or fewer sinks.",
            )
