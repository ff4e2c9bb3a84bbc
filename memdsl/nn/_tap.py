"""The tap: how one ordinary backward pass hands out what it saw at a layer.

A *sink* is an input that changes nothing. Its "gradient" is not a derivative but the pair itself: what
the layer was given, and the derivative of the loss with respect to what it answered.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


class Pairs(NamedTuple):
    """What a growing layer learns from: one row for every use of the layer.

    The leading axes are those of the batch, then those of the layer's own input but for the last.
    """

    key: Float[Array, "... key"]
    """What the layer was given, as its memory is asked: x itself, or the patches of an image."""
    cotangent: Float[Array, "... value"]
    """The derivative of the loss with respect to what the layer answered."""


@jax.custom_vjp
def tap(y: Float[Array, "*row value"], x: Float[Array, "*row key"], sink: Pairs) -> Array:
    r"""Returns `y`, and makes the "gradient" of `sink` the pair of `x` and the cotangent of `y`.

    $$\bar y = \frac{\partial L}{\partial y}, \qquad \bar x = 0, \qquad
      \overline{\mathrm{sink}} = (x, \bar y)$$

    Exact under `jit`, `vmap`, `scan` and `jax.checkpoint`. Under `vmap` the sink must be batched as
    `y` is, or the pairs of the batch are summed; a sink that is used twice holds the sum of both
    uses. `md.grow.backward` makes the sinks, and refuses both mistakes.

    **Arguments:**

    - `y`: what a layer answered.
    - `x`: what it was given; no derivative flows to it from here.
    - `sink`: `Pairs` of zeros, of the shapes and dtypes of `x` and `y`.

    **Returns:** `y`.

    ??? example

        ```python
        >>> import jax
        >>> import jax.numpy as jnp
        >>> import memdsl as md
        >>> x, w = jnp.array([1.0, 2.0]), jnp.array([[3.0, 4.0]])
        >>> sink = md.grow.Pairs(key=jnp.zeros(2), cotangent=jnp.zeros(1))
        >>> pair = jax.grad(lambda sink: jnp.sum(md.grow.tap(w @ x, x, sink) ** 2))(sink)
        >>> print(pair.key, pair.cotangent)
        [1. 2.] [22.]

        ```
    """
    return y


def _forward(y: Array, x: Array, sink: Pairs) -> tuple[Array, Array]:
    return y, x


def _backward(x: Array, cotangent: Array) -> tuple[Array, Array, Pairs]:
    return cotangent, jnp.zeros_like(x), Pairs(x, cotangent)


tap.defvjp(_forward, _backward)


@jax.custom_vjp
def tally(y: Array, uses: Float[Array, ""]) -> Array:
    """Returns `y`; the "gradient" of `uses` is 1, so that it counts how often it was passed."""
    return y


def _tally_forward(y: Array, uses: Array) -> tuple[Array, Array]:
    return y, uses


def _tally_backward(uses: Array, cotangent: Array) -> tuple[Array, Array]:
    # one for each cotangent: a count that is the same for a whole batch would not be summed over it
    seen = jnp.any(cotangent == 0) | True
    return cotangent, seen.astype(uses.dtype)


tally.defvjp(_tally_forward, _tally_backward)


class Uses(NamedTuple):
    """A sink that counts uses instead of taking pairs."""

    times: Float[Array, ""]


class Shapes:
    """The shapes that went through a layer while it was traced."""

    def __init__(self) -> None:
        self.seen: set[tuple[Any, ...]] = set()

    def record(self, y: Array, x: Array) -> None:
        """Notes what one use would put into a sink."""
        self.seen.add((x.shape, jnp.dtype(x.dtype).name, y.shape, jnp.dtype(y.dtype).name))


class Probe(eqx.Module):
    """A sink without arrays, that only notes shapes."""

    shapes: Shapes = eqx.field(static=True)


class Nudge(NamedTuple):
    """A sink that is added to the answer: the loss as a function of it has a curvature."""

    shift: Float[Array, "... value"]


def through(y: Array, x: Array, sink: Pairs | Uses | Probe | Nudge | None) -> Array:
    """`y`, having passed whatever is in the place of a sink."""
    match sink:
        case Pairs():
            return tap(y, x, sink)
        case Uses():
            return tally(y, sink.times)
        case Nudge():
            return y + sink.shift
        case Probe():
            sink.shapes.record(y, x)
            return y
        case _:
            return y
