"""Convolutions over images, as one linear map of patches: what a memory can grow on."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

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
