"""Images: what a convolution computes, and the sizes that follow it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import memdsl as md

from .helpers import close


@pytest.mark.parametrize("padding", ["same", "valid"])
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_a_convolution_is_that_of_lax(padding: str, stride: int) -> None:
    spec = md.Conv(4, stride=stride, padding=padding)
    layer = md.build(spec, md.Dims(model=2), key=jax.random.key(0), dtype=jnp.float64)
    image = jax.random.normal(jax.random.key(1), (2, 9, 8), jnp.float64)
    weight = layer.weight.reshape(4, 2, 3, 3)
    expected = jax.lax.conv_general_dilated(image[None], weight, (stride, stride), padding.upper())
    close(layer(image), expected[0] + layer.bias[:, None, None], 1e-12)


@pytest.mark.parametrize("sides", [(9, 8), (3, 3), (10, 7)])
@pytest.mark.parametrize("padding", ["same", "valid"])
def test_what_follows_a_flattened_image_is_as_wide_as_it(
    padding: str, sides: tuple[int, int]
) -> None:
    spec = md.Conv(4, stride=2, padding=padding) >> md.Relu() >> md.Flatten() >> md.Dense(10)
    height, width = sides
    net = md.build(spec, md.Dims(model=1, height=height, width=width), key=jax.random.key(0))
    assert net(jnp.ones((1, *sides))).shape == (10,)


def test_without_the_sides_of_an_image_a_layer_after_flatten_asks_for_them() -> None:
    spec = md.Conv(4) >> md.Flatten() >> md.Dense(10)
    with pytest.raises(md.SpecError) as error:
        md.build(spec, md.Dims(model=1), key=jax.random.key(0))
    assert str(error.value) == (
        "The width of what Dense is given is not known.\n\n──▶   Dense(10)\n\n"
        "  An image was flattened whose sides are not known.\n"
        "  Instead: Dims(..., height=28, width=28), the sides of the first image."
    )


def test_a_window_that_does_not_fit_is_refused() -> None:
    spec = md.Conv(4, padding="valid") >> md.Flatten() >> md.Dense(10)
    with pytest.raises(md.SpecError, match="A window of 3 × 3 does not fit into 2 × 8"):
        md.build(spec, md.Dims(model=1, height=2, width=8), key=jax.random.key(0))


def test_a_residual_layer_keeps_the_sides_of_an_image() -> None:
    with pytest.raises(md.SpecError, match="this one makes 4 × 8 × 8 to 4 × 4 × 4"):
        dims = md.Dims(model=4, height=8, width=8)
        md.build(md.Residual(md.Conv(4, stride=2)), dims, key=jax.random.key(0))


def test_a_convolution_grows_from_its_patches() -> None:
    grown = md.Grown(
        md.Conv(3, bias=False, trainable=False), md.Memory(md.Dot(), capacity=md.Budget(8))
    )
    net = grown >> md.Flatten() >> md.Dense(2)
    built = md.build(net, md.Dims(model=1, height=4, width=4), key=jax.random.key(0))
    assert built(np.ones((1, 4, 4), np.float32)).shape == (2,)
