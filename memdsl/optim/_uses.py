"""The operations by which a tensor of a model is a linear layer, and what they are given."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

from ._origin import Origin
from ._projection import Projection


class Use(NamedTuple):
    """One operation of a traced function that maps inputs by a tensor of the model."""

    projection: Projection
    answer: Origin
    """What is known of its result."""
    inputs: Callable[[Array], Array]
    """From the other operand to the inputs `[*stack, row, in]`, or the indices of a table `[row]`."""
    operand: int
    """Which of the operands that is."""


def uses(equation: Any, origins: list[Origin | None]) -> list[Use]:
    """The uses that an equation makes of tensors, given the origins of its operands."""
    read = {"dot_general": _product, "conv_general_dilated": _convolution, "gather": _lookup}
    reader = read.get(equation.primitive.name)
    if reader is None:
        return []
    tensors = [(i, o) for i, o in enumerate(origins) if o is not None and not o.answers]
    found = [reader(equation, place, origin) for place, origin in tensors]
    return [use for use in found if use is not None]


def _product(equation: Any, place: int, origin: Origin) -> Use | None:
    """A matrix product: the axes that are summed over are the inputs."""
    contracted, batched = equation.params["dimension_numbers"]
    shape, other = (equation.invars[i].aval.shape for i in (place, 1 - place))
    own, its = contracted[place], contracted[1 - place]
    pairs = sorted((origin.axes[a], b) for a, b in zip(own, its, strict=True) if _known(origin, a))
    beside = list(zip(batched[place], batched[1 - place], strict=True))
    stacked = sorted((origin.axes[a], b) for a, b in beside if _known(origin, a))
    free = [axis for axis in range(len(shape)) if axis not in (*own, *batched[place])]
    if len(pairs) < len(own) or any(shape[a] > 1 and not _known(origin, a) for a in free):
        return None
    places = [axis for _, axis in stacked]
    last = [axis for _, axis in pairs]
    rows = [axis for axis in range(len(other)) if axis not in (*places, *last)]

    def inputs(x: Array) -> Array:
        x = jnp.transpose(x, (*places, *rows, *last))
        lead = x.shape[: len(places)]
        return x.reshape(
            *lead, math.prod(other[a] for a in rows), math.prod(other[a] for a in last)
        )

    stack = (*origin.scanned, *(axis for axis, _ in stacked))
    projection = Projection(origin.weight, tuple(axis for axis, _ in pairs), stack)
    theirs = [None] * (len(other) - len(its) - len(beside))
    outputs = [origin.axes[axis] for axis in free]
    sides = (outputs, theirs) if place == 0 else (theirs, outputs)
    axes = [*(origin.axes[a] for a, _ in beside), *sides[0], *sides[1]]
    return Use(projection, _answer(origin, axes), inputs, 1 - place)


def _convolution(equation: Any, place: int, origin: Origin) -> Use | None:
    """A convolution: its inputs are patches."""
    known, shape = equation.params, equation.invars[1].aval.shape
    if place != 1 or None in origin.axes or known["batch_group_count"] != 1:
        return None
    image, kernel, result = known["dimension_numbers"]
    outputs, channels, *sides = (origin.axes[axis] for axis in kernel)
    groups = known["feature_group_count"]

    def inputs(x: Array) -> Array:
        patches = jax.lax.conv_general_dilated_patches(
            jnp.transpose(x, image),
            filter_shape=[shape[axis] for axis in kernel[2:]],
            precision=jax.lax.Precision.HIGHEST,  # patches are copies, not products
            **{name: known[name] for name in _OF_PATCHES},
        )
        patches = jnp.moveaxis(patches, 1, -1)
        rows = patches.reshape(-1, groups, patches.shape[-1] // groups)
        return jnp.moveaxis(rows, 1, 0) if groups > 1 else rows[:, 0]

    every = (channels, *sides)
    projection = Projection(origin.weight, every, origin.scanned, groups)
    axes = [outputs if axis == result[1] else None for axis in range(len(result))]
    return Use(projection, _answer(origin, axes), inputs, 0)


_OF_PATCHES = ("window_strides", "padding", "lhs_dilation", "rhs_dilation")


def _lookup(equation: Any, place: int, origin: Origin) -> Use | None:
    """A table whose rows are looked up: inputs are indices."""
    known, shape = equation.params, equation.invars[0].aval.shape
    numbers, sizes = known["dimension_numbers"], known["slice_sizes"]
    looked = [axis for axis, size in enumerate(sizes) if size != shape[axis]]
    if place != 0 or None in origin.axes or len(looked) != 1 or sizes[looked[0]] != 1:
        return None
    if looked[0] not in numbers.start_index_map or numbers.operand_batching_dims:
        return None
    column = numbers.start_index_map.index(looked[0])

    def inputs(indices: Array) -> Array:
        return indices[..., column].reshape(-1)

    axes = [axis for axis in origin.axes if axis is not None]
    projection = Projection(origin.weight, (axes[looked[0]],), origin.scanned, lookup=True)
    nothing = [None] * len(equation.outvars[0].aval.shape)
    return Use(projection, _answer(origin, nothing), inputs, 1)


def _known(origin: Origin, axis: int) -> bool:
    return origin.axes[axis] is not None


def _answer(origin: Origin, axes: list[Any]) -> Origin:
    return dataclasses.replace(origin, axes=tuple(axes), answers=True)


def added(equation: Any, origins: list[Origin | None]) -> tuple[Origin, Origin] | None:
    """`(answer, vector)` where a tensor is added to the answer of another, output by output."""
    if equation.primitive.name != "add":
        return None
    shapes = [variable.aval.shape for variable in equation.invars]
    both = list(zip(origins, shapes, strict=True))
    answers = [(o, shape) for o, shape in both if o is not None and o.answers]
    vectors = [(o, shape) for o, shape in both if o is not None and not o.answers]
    if len(answers) != 1 or len(vectors) != 1:
        return None
    (answer, wide), (vector, own) = answers[0], vectors[0]
    outputs = [axis if size > 1 else None for axis, size in zip(answer.axes, wide, strict=True)]
    axes = [axis if size > 1 else None for axis, size in zip(vector.axes, own, strict=True)]
    met = sorted(
        (a, b) for a, b in zip(outputs, axes, strict=True) if a is not None and b is not None
    )
    seen = [len(several) - several.count(None) for several in (outputs, axes)]
    if seen != [len(met)] * 2 or len(vector.scanned) != len(answer.scanned):
        return None
    order = [*vector.scanned, *(axis for _, axis in met)]
    return (answer, vector) if order == sorted(order) else None
