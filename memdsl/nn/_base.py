"""What every built layer can do: a whole sequence, or the same thing piece by piece."""

from abc import abstractmethod
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool

from ..plan import Dims


class AbstractModule(eqx.Module):
    """A layer with its parameters.

    `layer(x)` maps a whole sequence; `layer.init()`, `layer.prefill` and `layer.step` do the same in
    pieces. All of them are `run`, once. `spec` and `dims` are what it was built from.
    """

    spec: eqx.AbstractVar[Any]
    dims: eqx.AbstractVar[Dims]

    @abstractmethod
    def run(
        self,
        x: Array,
        state: Any,
        starts: Bool[Array, " time"] | None,
        mask: Bool[Array, " time"] | None,
    ) -> tuple[Any, Array]:
        """`(state, y)`; a state of `None` is a fresh start whose end is of no interest."""

    @abstractmethod
    def init(self, time: int | None = None) -> Any:
        """The state before the first token; `time` bounds an `All()` buffer."""

    def __call__(
        self,
        x: Array,
        *,
        starts: Bool[Array, " time"] | None = None,
        mask: Bool[Array, " time"] | None = None,
    ) -> Array:
        """The layer of a whole sequence `[time, width]`; batch it with `jax.vmap`.

        **Arguments:**

        - `x`: the sequence.
        - `starts`: True at the first token of every packed document.
        - `mask`: False for padding.
        """
        return self.run(_there(x, mask), None, starts, mask)[1]

    def prefill(
        self,
        x: Array,
        state: Any = None,
        *,
        starts: Bool[Array, " time"] | None = None,
        mask: Bool[Array, " time"] | None = None,
    ) -> tuple[Any, Array]:
        """`(state, y)` of a piece of a sequence, going on from `state` (by default from `init()`)."""
        state = self.init() if state is None else state
        return self.run(_there(x, mask), state, starts, mask)

    def step(self, state: Any, token: Array) -> tuple[Any, Array]:
        """`(state, y)` of one token."""
        state, y = self.run(token[None], state, None, None)
        return state, y[0]


def _there(x: Array, mask: Array | None) -> Array:
    """Zeros in the place of padding: whatever it holds, NaN included, reaches nothing."""
    if mask is None:
        return x
    return jnp.where(mask.reshape(-1, *(1,) * (x.ndim - 1)), x, jnp.zeros((), x.dtype))
