"""What a layer inside a model is given, found by running the model."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from .._errors import SpecError
from ._backward import sinks_for
from ._layers import tapped, with_sinks


def place_of(model: Any, layer: Any) -> int:
    """Which of the tapped layers of the model it is."""
    return next(i for i, other in enumerate(tapped(model)) if other is layer)


def given(model: Any, layer: Any, inputs: Any) -> Array:
    """The keys that a tapped layer of the model is asked, one row an example of the batch `inputs`.

    **Raises:** `SpecError` for a layer that has no part in what the model answers.
    """
    keys = _keys(model, place_of(model, layer), inputs)
    if keys is None:
        raise SpecError(
            "The layer has no part in what the model answers.",
            instead="where=lambda model: …, which selects a layer that is used.",
        )
    return keys


@eqx.filter_jit
def _keys(model: Any, index: int, inputs: Any) -> Array | None:
    size = len(jax.tree.leaves(inputs)[0])
    one = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape[1:], a.dtype), inputs)
    sinks = sinks_for(model, one, size)
    if sinks[index] is None:
        return None

    def total(sinks: Any) -> Any:
        y = jax.vmap(lambda own, x: with_sinks(model, own)(x))(sinks, inputs)
        return sum((jnp.sum(a) for a in jax.tree.leaves(y) if eqx.is_inexact_array(a)), 0.0)

    return jax.grad(total)(sinks)[index].key
