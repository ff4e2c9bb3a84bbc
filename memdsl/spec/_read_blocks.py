"""A read that chooses whole blocks of atoms, by the place at which they arrived."""

from typing import Any, ClassVar

from .._errors import SpecError
from ._base import sort, whole
from ._read import AbstractRead, Backwards, Before, bonus_of, Core, Forecast, Normalised, ranked_by


class TopBlocks(AbstractRead):
    """`read` of only the atoms in `count` blocks: the first, the latest, and the nearest of the others.

    The atoms of a document are split into blocks of `size` in the order in which they came. The `first`
    blocks and the `latest` are always read, the last of these being the reader's own, which may be
    unfinished. Of the others those are read, until there are `count`, that have the largest

        w_c kernel(k_c, q),    k_c the mean of the keys of block c, w_c that of their decays.

    Keys are compared, and their mean is taken, after the `pullback` of the kernel. Of equals, the
    earlier block is read. What a write recalls is of all atoms, and no gradient flows through the choice.

    With a `group` of G, several queries choose together, as heads of a layer that share their keys. A
    query then is G queries side by side, that of the reader in front, and a block is ranked by the mean,
    over each of them in front in turn, of its share `w_c kernel(k_c, q) / sum_b w_b kernel(k_b, q)`
    among the blocks that are complete. Keys are as long as queries, and it is for the kernel to compare
    their front alone: `.pullback(Slice(0, size))`, or a `Dot` with keys that are 0 behind it.

    **Arguments:**

    - `count`: how many blocks are read, at least `first + latest`.
    - `size`: how many atoms are in a block.
    - `read`: how the atoms in them are answered with.
    - `group`: how many queries choose together.
    - `first`, `latest`: how many blocks are read whatever they hold; at least 0 and 1.

    **Raises:** `SpecError` where a number is out of range, where reads are nested so that one of them
    says nothing, and where atoms are not all kept; with a group, for a kernel that can be negative, and
    beside parts that speak of the channels of a key after a feature.

    ??? example

        ```python
        >>> import jax.numpy as jnp
        >>> import memdsl as md
        >>> memory = md.Memory(md.Exp(md.Dot()), read=md.TopBlocks(2, 2, first=0, latest=1))
        >>> keys = jnp.array([[5.0], [5.0], [-5.0], [-5.0], [0.0]])
        >>> state = md.empty(memory, key_size=1, value_size=1, capacity=5)
        >>> state, _ = md.run(memory, state, keys, jnp.arange(5.0)[:, None])
        >>> md.evaluate(memory, state, jnp.array([[1.0], [-1.0]]))[:, 0].round(1)
        Array([0.5, 2.5], dtype=float32)

        ```

    Source: Yuan et al. 2025, "Native Sparse Attention", equations 8-12, with `first=1` and `latest=2`;
    Lu et al. 2025, "MoBA", with `first=0` and `latest=1`.
    """

    count: int = whole(at_least=1)
    size: int = whole(at_least=1)
    read: AbstractRead = sort(AbstractRead, default=Normalised())
    group: int = whole(at_least=1, default=1)
    first: int = whole(at_least=0, default=1)
    latest: int = whole(at_least=1, default=2)
    positional: ClassVar[int] = 3

    def __check__(self) -> None:
        if self.count < self.first + self.latest:
            raise SpecError(
                f"TopBlocks always reads {self.first} + {self.latest} blocks, and count is {self.count}.",
                where=self,
                at="count",
                instead="a larger count; or fewer blocks that are always read, first=0 and latest=1.",
            )
        if self.read.is_before():
            raise SpecError(
                "TopBlocks says which atoms are read, and Before when: Before comes first.",
                where=self,
                at="read",
                instead=f"{Before(self.replace(read=self.read.core()), bonus_of(self.read))!r}.",
            )
        if self.read.top() is not None:
            raise SpecError(
                f"TopBlocks and {type(self.read).__name__} both say which atoms are read.",
                where=self,
                at="read",
                instead=f"{self.replace(read=self.read.core())!r}.",
            )

    def core(self) -> Core:
        return self.read.core()

    def top(self) -> int | None:
        return self.count * self.size

    def choosing(self) -> str:
        return f"TopBlocks({self.count}, {self.size})"


def blocks_of(read: Any) -> TopBlocks | None:
    """The part of a read that chooses blocks, if there is one."""
    while isinstance(read, Before | Forecast | Backwards):
        read = read.read
    return read if isinstance(read, TopBlocks) else None


def as_given(read: Any) -> str | None:
    """What in a read asks for keys as they are given, not mapped by the pullback of the kernel."""
    if ranked_by(read) is not None:
        return "TopK(by=...)"
    blocks = blocks_of(read)
    return "TopBlocks(group=...)" if blocks is not None and blocks.group > 1 else None
