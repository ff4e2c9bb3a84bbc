"""Which layers can get an error signal at all, known before any array exists."""

from typing import Any

from .._errors import SpecError
from ..spec._layer import Dense, Embed, Grown, Repeat, Residual, Sequence


def check_signal(spec: Any) -> None:
    """Raises `SpecError` for a stack of growing layers that could never learn.

    A growing layer whose base is zero answers 0 until it is written. Two of them in a row are stuck
    for ever: all keys of the second are the same, so that what it grows is flat where it is asked,
    and not even later does a signal reach the first.
    """
    _varies(spec, True)


def _varies(spec: Any, given: bool) -> bool:
    """Whether what a fresh layer answers depends on the input, where `given` says if what it is
    given does."""
    match spec:
        case Sequence():
            for layer in spec.layers:
                given = _varies(layer, given)
            return given
        case Residual():
            inside = _varies(spec.layer, given)
            return given or inside
        case Repeat():
            for _ in range(min(spec.count, 2)):
                given = _varies(spec.layer, given)
            return given
        case Grown():
            through_base = _varies(spec.base, True)
            if not given and not through_base:
                raise SpecError(
                    "This growing layer starts at zero, and so does what is beneath it.",
                    where=spec,
                    at="base",
                    why="What it is given is the same for every example, so no error signal ever "
                    "reaches the layers beneath.",
                    instead="Dense(...) or Conv(...) as the base of the lower one (random; "
                    "trainable=False keeps it so), or Residual(...) around it.",
                )
            return given and through_base
        case Dense():
            return given and spec.start != "zeros"
        case Embed():
            return True
        case _:
            return given
