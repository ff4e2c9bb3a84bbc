"""What a read divides by where masses can be below 0."""

from typing import Any

import jax.numpy as jnp


SHARE = 1e-3
"""How much of the sum of the sizes of all masses their sum is taken to be, at least."""


def guarded(mass: Any, size: Any) -> Any:
    """The sum of masses, no nearer to 0 than `SHARE` times the sum of their sizes; the sign stays."""
    least = SHARE * size
    return jnp.where(jnp.abs(mass) < least, jnp.where(mass < 0, -least, least), mass)
