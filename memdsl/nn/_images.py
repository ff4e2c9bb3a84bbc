"""Convolutions over images, as one linear map of patches: what a memory can grow on."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._errors import SpecError
from ..plan import Dims
from ..spec._layer import Conv as ConvSpec
from ._blocks import AbstractPointwise


def patches(
    image: Float[Array, "channel height width"], spec: ConvSpec
) -> Float[Array, "down across patch"]:
    """The windows of an image that a convolution looks at, one row each.

    A patch has `channel * window * window` numbers, channel by channel and row by row.
    """
    found = jax.lax.conv_general_dilated_patches(
        image[None],
        filter_shape=(spec.window, spec.window),
        window_strides=(spec.stride, spec.stride),
        padding=spec.padding.upper(),
        precision=jax.lax.Precision.HIGHEST,  # patches are copies, not products
    )
    return jnp.moveaxis(found[0], 0, -1)


def sides(image: tuple[int, int] | None, spec: ConvSpec) -> tuple[int, int] | None:
    """Height and width of what a convolution gives, from those of what it is given."""
    if image is None:
        return None
    lost = spec.window - 1 if spec.padding == "valid" else 0
    if min(image) <= lost:
        raise SpecError(
            f"A window of {spec.window} × {spec.window} does not fit into {image[0]} × {image[1]}.",
            where=spec,
            at="window",
            instead="padding='same', or a smaller window.",
        )
    height, width = (-(-(side - lost) // spec.stride) for side in image)
    return height, width


class Conv(AbstractPointwise):
    """`y[:, i, j] = W patch[i, j] + b`."""

    spec: ConvSpec = eqx.field(static=True)
    dims: Dims = eqx.field(static=True)
    weight: Float[Array, "channels patch"]
    bias: Float[Array, " channels"] | None

    def apply(self, x: Array) -> Array:
        frozen: Any = (lambda a: a) if self.spec.trainable else jax.lax.stop_gradient
        y = patches(x, self.spec) @ frozen(self.weight).astype(x.dtype).T
        if self.bias is not None:
            y = y + jnp.broadcast_to(frozen(self.bias).astype(x.dtype), y.shape)
        return jnp.moveaxis(y, -1, 0)
