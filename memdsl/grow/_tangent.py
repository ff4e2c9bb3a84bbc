"""What a write does to the answers it was made for: the tangent kernel of a growing layer.

A batch of pairs with error signals g moves the answers at its own keys by `-rate T g`, to first order
in the rate. For `Hebb` that is exact, and T is the kernel matrix of the keys; for `Ridge` it is exact
where nothing fades, and `T = C (C + 1)^-1`, C being what is open at the keys, over the strength.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._linalg import solve_positive
from ..nn._grown import GrownLayer
from ..spec._facts import descends
from ..spec._memory import Memory
from ..spec._read import Evaluate, Normalised
from ..spec._write import Reweight
from ..state import SolvedState
from ..state._solved import covariance
from ..state._write import recall
from ._layers import depth


class Tangent(NamedTuple):
    """T of one layer on one batch; stacked layers have their axes in front."""

    gram: Float[Array, "*layer pair pair"]
    answers: Float[Array, "*layer pair value"] | None
    """What is answered at each key, where a write moves the mass as well."""

    def __call__(self, errors: Float[Array, "batch *layer_and_row value"]) -> Array:
        """`T g`, in the shape of g."""
        if self.gram.ndim > 2:
            first = jnp.moveaxis(errors, 1, 0)
            return jnp.moveaxis(jax.vmap(Tangent.__call__)(self, first), 0, 1)
        g = errors.reshape(-1, errors.shape[-1]).astype(self.gram.dtype)
        moved = self.gram @ g
        if self.answers is not None:
            inner = jnp.sum(g * self.answers, axis=-1)
            moved = moved + (self.gram @ inner)[:, None] * self.answers
        return moved.reshape(errors.shape).astype(errors.dtype)


def has_tangent(layer: GrownLayer) -> bool:
    """Whether a write of the layer is a step down a slope, with a kernel matrix that says so.

    `Hebb` under a read that divides is none: it moves a weighted mean by the number of its pairs. Nor
    is a step with a momentum or of a length of its own, and of a memory made of several nothing is told.
    """
    memory = layer.memory
    if not isinstance(memory, Memory) or descends(memory):
        return False
    core = memory.read.core()
    if not isinstance(memory.write, Reweight):
        return isinstance(core, Evaluate)
    return isinstance(core, Normalised) and core.scale == 1.0


def tangent(layer: GrownLayer, keys: Float[Array, "batch *layer_and_row key"]) -> Tangent:
    """T of a layer as it stands, as if every pair were let in.

    **Arguments:**

    - `layer`: the layer; its own axes are after the batch's where layers are stacked.
    - `keys`: what it was given.
    """
    if not depth(layer):
        return _of_one(layer, keys)
    arrays, static = eqx.partition(layer, eqx.is_array)

    def one(turn: tuple[Any, Array]) -> Tangent:
        return tangent(eqx.combine(turn[0], static), turn[1])

    return jax.lax.map(one, (arrays, jnp.moveaxis(keys, 1, 0)))


def _of_one(layer: GrownLayer, keys: Array) -> Tangent:
    (part,) = layer.parts()
    memory: Any = part.memory
    rows = part.key_map(keys.reshape(-1, keys.shape[-1]).astype(layer.dtype))
    write = memory.write
    if isinstance(part.state, SolvedState):
        open_ = covariance(memory, part.state, rows)
        gram = solve_positive(open_ + jnp.eye(len(open_), dtype=open_.dtype), open_)
        return Tangent(gram * jnp.asarray(memory.read.core().scale, gram.dtype), None)
    if not isinstance(write, Reweight):
        gram = memory.kernel.pairs(rows, rows)
        return Tangent(gram * jnp.asarray(memory.read.core().scale, gram.dtype), None)
    found = jax.vmap(lambda key: recall(memory, part.state, key))(rows)
    logs, sign = found.log_mass, jnp.where(found.mass < 0, -1.0, 1.0).astype(rows.dtype)
    scale = 2 * jnp.mean(logs) if write.scale_free else 0.0
    gram = jnp.exp(memory.kernel.log_pairs(rows, rows) - logs[:, None] - logs[None, :] + scale)
    gram = gram * sign[:, None] * sign[None, :]
    spread = jnp.asarray(write.spread, gram.dtype)
    answers = None if write.negative == "frozen" else found.answer / jnp.sqrt(spread)
    return Tangent(gram * spread, answers)


def rate_of(layer: GrownLayer) -> Float[Array, "*layer"]:
    """The largest rate of the layer's writes, as their schedules have them now."""
    if depth(layer):
        arrays, static = eqx.partition(layer, eqx.is_array)
        return jax.lax.map(lambda own: rate_of(eqx.combine(own, static)), arrays)
    writes: list[Any] = [part.memory.write for part in layer.parts()]
    return jnp.max(jnp.stack([jnp.max(jnp.asarray(w.rate, layer.dtype)) for w in writes]))
