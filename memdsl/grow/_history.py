"""What a training came to, epoch by epoch."""

import csv
import io
import math
import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from .._errors import SpecError
from .._files import replacing


class EarlyStop(NamedTuple):
    """When to stop before the last epoch: when a column has not become better for some epochs.

    ??? example

        ```python
        >>> import memdsl as md
        >>> stop = md.grow.EarlyStop("test_accuracy", patience=2, highest=True)
        >>> stop.best([0.5, 0.7, 0.6, 0.65]), stop.reached([0.5, 0.7, 0.6, 0.65])
        (1, True)

        ```
    """

    column: str = "test_loss"
    """Of the history: `test_loss`, `test_` and the name of a metric, or `loss`."""
    patience: int = 5
    """How many epochs without a better one are borne."""
    highest: bool = False
    """Whether high is good."""
    by: float = 0.0
    """By how much an epoch must be better to count."""

    def best(self, values: Sequence[float]) -> int:
        """Which of the epochs was the last that became better; the first, where none did."""
        best, at = -math.inf, 0
        for index, value in enumerate(values):
            score = value if self.highest else -value
            if score > best + self.by or (best == -math.inf and score > best):
                best, at = score, index
        return at

    def reached(self, values: Sequence[float]) -> bool:
        """Whether to stop after these epochs."""
        return len(values) > self.patience + self.best(values)


class History:
    """One row an epoch: `history["loss"]` is an array, `history.save(path)` writes a CSV file.

    ??? example

        ```python
        >>> import memdsl as md
        >>> history = md.grow.History([{"epoch": 1, "loss": 0.5}, {"epoch": 2, "loss": 0.25}])
        >>> history.columns, history["loss"], len(history)
        (('epoch', 'loss'), array([0.5 , 0.25]), 2)
        >>> print(history.csv(), end="")
        epoch,loss
        1,0.5
        2,0.25

        ```
    """

    def __init__(self, rows: Sequence[Mapping[str, float]] = ()):
        self.rows: list[dict[str, float]] = [dict(row) for row in rows]

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns."""
        return tuple(dict.fromkeys(name for row in self.rows for name in row))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, column: str) -> Float[np.ndarray, " epoch"]:
        if column not in self.columns:
            raise SpecError(
                f"The history has no column {column!r}.",
                instead=f"one of {', '.join(self.columns)}." if self.rows else "an epoch first.",
            )
        return np.asarray([row.get(column, math.nan) for row in self.rows], dtype=np.float64)

    def __repr__(self) -> str:
        return f"History({len(self)} epochs of {', '.join(self.columns)})"

    def csv(self) -> str:
        """The history as text: a line of names, then a line an epoch; every number exactly."""
        out = io.StringIO()
        writer = csv.DictWriter(out, self.columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.rows)
        return out.getvalue()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes `csv()` to a file, which is whole at every moment.

        **Arguments:**

        - `path`: the file.
        """
        with replacing(path) as file:
            file.write(self.csv().encode())
