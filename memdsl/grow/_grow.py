"""A batch and the memory of a layer: every leaf by the rule of its write, and what boosts what."""

import functools
from collections.abc import Mapping

import jax.numpy as jnp
from jaxtyping import Array, Float

from ..nn._grown import Part
from ..plan._tree import parts as parts_of
from ..spec._memory import AbstractMemory, Boosted, Memory
from ..state import DescentState, SolvedState
from ._descend import descend
from ._fold import fold
from ._solve import solve


Leaves = Mapping[str, Part]


def grow(
    memory: AbstractMemory,
    leaves: Leaves,
    keys: Float[Array, "batch key"],
    errors: Float[Array, "batch value"],
    moved: Float[Array, "batch value"] | None = None,
    path: str = "",
) -> Leaves:
    r"""The leaves of a memory after a batch.

    Both memories of a sum are written with the error signals g. In `first.boost(second)` the second
    is written with what the first got wrong: it is to move the answers to the batch by $-\eta g$, at
    its own rate, and the first has moved them by $\Delta$ already, so that $-\eta g - \Delta$ is left.

    **Arguments:**

    - `memory`: the memory, or a part of it at `path`.
    - `leaves`: every leaf of the layer, by its path.
    - `keys`: what the layer was given.
    - `errors`: the derivatives of the loss with respect to its answers.
    - `moved`: what other memories have moved the answers by, where that is to be made up for.
    """
    if isinstance(memory, Memory):
        part = leaves[path.rstrip(".")]
        return {part.path: part._replace(state=_written(part, part.key_map(keys), errors, moved))}
    after: dict[str, Part] = {}
    for name, inner in parts_of(memory):
        after |= grow(inner, leaves, keys, errors, moved, f"{path}{name}.")
        if name == "first" and isinstance(memory, Boosted):
            steps = [new.answers(keys) - leaves[at].answers(keys) for at, new in after.items()]
            moved = functools.reduce(jnp.add, steps if moved is None else [moved, *steps])
    return after


def _written(part: Part, keys: Array, errors: Array, moved: Array | None) -> object:
    state = part.state
    if isinstance(state, SolvedState):
        return solve(part.memory, state, keys, errors, moved)
    if isinstance(state, DescentState):
        return descend(part.memory, state, keys, errors)
    return fold(part.memory, state, keys, errors, moved)
