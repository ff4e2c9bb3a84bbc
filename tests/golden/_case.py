"""A case: what memory a file is of. `operator` writes the usual ones as a spec and a few names."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from jaxtyping import Array

import memdsl as md

from ._function import Function
from ._run import Runner


Outputs = dict[str, Array]
Case = Callable[[SimpleNamespace, SimpleNamespace, Runner], Outputs]
"""`(inputs, constants, run) -> outputs`, all by the names that they have in the file."""


PER_HEAD = md.FromInput("sigmoid")
PER_KEY = md.FromInput("sigmoid", per="key_channel")
PER_VALUE = md.FromInput("sigmoid", per="value_channel")
"""A bare run is given their values, so that only what they are one of matters."""


def operator(
    spec: Callable[[SimpleNamespace], md.AbstractMemory],
    *,
    keys: str = "k",
    values: str = "v",
    queries: str = "q",
    erase_keys: str | None = None,
    remove_keys: str | None = None,
    **signals: str,
) -> Case:
    """One memory whose state, if the file has one, is a matrix; `signals` names their inputs."""

    def case(x: SimpleNamespace, c: SimpleNamespace, run: Runner) -> Outputs:
        streams = {name: getattr(x, source) for name, source in signals.items()}
        for name, source in (("erase_keys", erase_keys), ("remove_keys", remove_keys)):
            if source is not None:
                sign = -1 if source.startswith("-") else 1
                streams[name] = sign * getattr(x, source.removeprefix("-"))
        initial: Any = getattr(x, "initial_state", None)
        answers, final = run(
            spec(c),
            getattr(x, keys),
            getattr(x, values),
            getattr(x, queries),
            initial=None if initial is None else Function(initial),
            **streams,
        )
        return {"o": answers} if initial is None else {"o": answers, "state": final.matrix}

    return case
