"""Aliases of the array types that appear on the public boundary, and the checker of that boundary."""

from collections.abc import Callable
from typing import Any, cast, TypeVar

import jax.numpy as jnp
from beartype import beartype
from jaxtyping import Array, Bool, Float, jaxtyped


_F = TypeVar("_F", bound=Callable[..., Any])


def checked(function: _F) -> _F:
    """Checks the annotated shapes and dtypes of a public function; a jitted call pays nothing."""
    return cast(_F, jaxtyped(typechecker=beartype)(function))


def at_least_single(dtype: Any) -> Any:
    """The dtype of states and accumulators: float32, or float64 where that is given."""
    return dtype if jnp.finfo(dtype).bits > 32 else jnp.float32


type_of_key = Float[Array, " key"]
type_of_value = Float[Array, " value"]
Keys = Float[Array, "time key"]
Values = Float[Array, "time value"]
Queries = Float[Array, "time key"]
Outputs = Float[Array, "time answer"]
Flags = Bool[Array, " time"]
Scalar = Float[Array, ""]
