"""The median rule: a length scale from keys."""

from typing import Any

import numpy as np

from .._errors import SpecError
from ._base import described


def median_distance(keys: Any, most: int, where: str) -> float:
    """The median Euclidean distance of two different rows, of at most `most` of them.

    Computed once, in float64, outside of any compiled function: a spec holds floats, not arrays.

    **Arguments:**

    - `keys`: rows of numbers; of an array with more axes, its last axis is the key's.
    - `most`: how many rows are looked at; from more, that many are drawn, the same ones each time.
    - `where`: what an error says this is for.
    """
    rows = np.asarray(keys)
    if rows.ndim < 2 or rows.shape[-1] == 0 or rows.dtype.kind in "cOSU":
        raise SpecError(
            f"The median distance is of rows of real numbers, not of {described(keys)}.",
            where=where,
            instead="an array [keys, key size].",
        )
    rows = rows.reshape(-1, rows.shape[-1]).astype(np.float64)
    if not isinstance(most, int) or most < 2:
        raise SpecError(
            f"A distance is of two keys, and most is {described(most)}.",
            where=where,
            instead="a whole number of at least 2, such as 1000.",
        )
    if len(rows) > most:
        rows = rows[np.sort(np.random.default_rng(0).choice(len(rows), most, replace=False))]
    square = np.sum(rows**2, axis=1)
    squares = square[:, None] + square[None, :] - 2 * rows @ rows.T
    above = np.sqrt(np.maximum(squares[np.triu_indices(len(rows), 1)], 0))
    median = float(np.median(above)) if above.size else float("nan")
    # what rounding leaves of the distance of equal rows is no distance
    if not median > 1e-7 * float(np.sqrt(np.max(square, initial=0))) or median == float("inf"):
        raise SpecError(
            f"The median distance of these {len(rows)} keys is {median}.",
            where=where,
            why="A length scale is positive and finite; half of the keys may be equal, or some of "
            "them not numbers.",
            instead="keys that differ, such as numpy.unique(keys, axis=0), or the scale itself.",
        )
    return median
