"""Sizes: what a spec leaves open, fixed when a plan is made."""

import dataclasses

from .._errors import SpecError


@dataclasses.dataclass(frozen=True)
class Dims:
    """The sizes that a plan or a layer is made for.

    **Arguments:**

    - `model`: the width of the residual stream that a layer reads and writes.
    - `key`, `value`: the sizes of one head's keys and values; for layers `model // heads` by default.
    - `heads`: the number of heads of a plan (a layer says its own).
    - `time`: the longest sequence, or how many tokens an unbounded buffer must hold.
    - `height`, `width`: the sides of the images that a network begins with, whose channels are
        `model`. Only `Flatten` before a layer with weights asks for them.

    **Raises:** `SpecError` for a size below 1.
    """

    model: int | None = None
    key: int | None = None
    value: int | None = None
    heads: int = 1
    time: int | None = None
    height: int | None = None
    width: int | None = None

    def __post_init__(self) -> None:
        for name in ("model", "key", "value", "heads", "time", "height", "width"):
            size = getattr(self, name)
            if size is not None and (
                isinstance(size, bool) or not isinstance(size, int) or size < 1
            ):
                raise SpecError(
                    f"Dims.{name} must be a whole number of at least 1, and it is {size!r}.",
                    instead=f"{name}=64, say.",
                )

    def need(self, name: str, why: str) -> int:
        """A size that must be known."""
        size = getattr(self, name)
        if size is None:
            raise SpecError(
                f"The {name} size is not known, and {why}.", instead=f"Dims(..., {name}=64), say."
            )
        return size

    def sizes(self) -> dict[str, int]:
        """The known sizes by name, as `InverseRoot` asks for them."""
        return {n: s for n in ("model", "key", "value") if (s := getattr(self, n)) is not None}
