"""The one error of static mistakes: what is wrong, where, why, and what to write instead."""

import textwrap
from typing import Any


_POINTER = "──▶"
_WIDTH = 96


class SpecError(ValueError):
    """A spec, a plan or a call that has no meaning, found before any array is touched.

    The message is laid out as *what*, *where*, *why*, *instead*; the parts are also attributes.

    **Arguments:**

    - `what`: one sentence that names the mistake.
    - `where`: the spec it was found in, printed field by field; or a line of text, such as a path.
    - `at`: the name of the offending field of `where`; a pointer is drawn beside it. Without it the
        pointer is beside the whole.
    - `why`: the reason, one or two sentences.
    - `instead`: what to write instead.

    ??? example

        ```python
        >>> import memdsl as md
        >>> try:
        ...     md.RBF(scale=-1.0)
        ... except md.SpecError as error:
        ...     print(error)
        RBF.scale must be positive, and it is -1.0.
        <BLANKLINE>
              RBF(
        ──▶       scale=-1.0,
              )
        <BLANKLINE>
          Instead: a number above 0, such as 1.0.

        ```
    """

    def __init__(
        self,
        what: str,
        *,
        where: Any = None,
        at: str | None = None,
        why: str | None = None,
        instead: str | None = None,
    ):
        self.what, self.where, self.at, self.why, self.instead = what, where, at, why, instead
        parts = [what]
        if where is not None:
            parts.append(_draw(where, at))
        reasons = [_wrapped(why, "  ")] if why else []
        if instead:
            reasons.append(_wrapped(f"Instead: {instead}", "  ", " " * len("  Instead: ")))
        if reasons:
            parts.append("\n".join(reasons))
        super().__init__("\n\n".join(parts))


def _wrapped(text: str, first: str, later: str | None = None) -> str:
    return textwrap.fill(
        text,
        _WIDTH,
        initial_indent=first,
        subsequent_indent=first if later is None else later,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _draw(where: Any, at: str | None) -> str:
    """The spec, over several lines where that helps, with a pointer at the field `at`."""
    if isinstance(where, str):
        return f"{_POINTER}   {where}" if at is None else f"      {where}"
    shown = where.shown(at)
    whole = repr(where) if at is None else ""
    if not shown or (at is None and (len(whole) <= _WIDTH - 6 or where.binds_operands())):
        return f"{_POINTER}   {whole or repr(where)}"
    lines = [f"{_POINTER if at is None else '   '}   {type(where).__name__}("]
    for name, text in shown:
        margin = _POINTER if name == at else "   "
        lines.append(f"{margin}       {text},")
    return "\n".join([*lines, "      )"])
