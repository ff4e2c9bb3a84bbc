"""What was recorded, in few pieces: steps are joined as the digits of a binary counter are carried.

So a history of T steps has at most log2 T + 1 pieces, and every pair is copied at most so often.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int


class Steps(NamedTuple):
    """One step or more."""

    keys: Float[Array, "row key"]
    """x."""
    cotangents: Float[Array, "row value"]
    """g."""
    ids: Int[np.ndarray, " row"]
    """Whose rows they are."""
    rows: Int[np.ndarray, " step"]
    """How many rows every step has."""
    matrices: tuple[Float[np.ndarray, "step new old"], ...]
    """For each tensor: what every step made of it, of its gradient and of what the optimiser keeps."""


History = tuple[Steps, ...]


def joined(first: Steps, second: Steps) -> Steps:
    """The steps of both."""
    return Steps(
        jnp.concatenate([first.keys, second.keys]),
        jnp.concatenate([first.cotangents, second.cotangents]),
        np.concatenate([first.ids, second.ids]),
        np.concatenate([first.rows, second.rows]),
        tuple(np.concatenate(pair) for pair in zip(first.matrices, second.matrices, strict=True)),
    )


def extended(history: History, step: Steps) -> History:
    """The history with one step more."""
    while history and len(history[-1].rows) == len(step.rows):
        history, step = history[:-1], joined(history[-1], step)
    return (*history, step)


def whole(history: History, start: Steps) -> Steps:
    """All of it, as one piece, after `start`."""
    for steps in history:
        start = joined(start, steps)
    return start
