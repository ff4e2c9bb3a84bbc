"""A model that hands out the Gram matrices of its linear layers."""

import dataclasses
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax

from .._errors import SpecError
from .._types import checked
from ..grow._layers import parameters
from ._origin import Origin
from ._projection import Projection
from ._uses import Use
from ._watch import AbstractWatcher, watched


class Captured(eqx.Module):
    """A model, and which of its tensors are linear layers; made by `md.optim.capture`.

    It is called as the model is, and holds the model's parameters: it is what an optimiser is given,
    and what is trained. `captured.model` is the model itself.

    ??? example

        ```python
        >>> import equinox as eqx
        >>> import jax
        >>> import jax.numpy as jnp
        >>> import memdsl as md
        >>> layer = eqx.nn.Linear(2, 3, key=jax.random.key(0))
        >>> captured = md.optim.capture(layer, jnp.ones((4, 2)))
        >>> captured(jnp.ones(2)).shape, captured.model is layer
        ((3,), True)

        ```
    """

    model: Any
    projections: tuple[Projection, ...] = eqx.field(static=True)
    """Which tensors are linear layers."""
    rows: bool = eqx.field(static=True, default=False)
    """Whether inputs are handed out as they are, and not as their products."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.model(*args, **kwargs)


def over_examples(model: Any, *inputs: Any) -> Any:
    """The model of every example of a batch."""
    return jax.vmap(model)(*inputs)


@checked
def capture(
    model: Any,
    *example: Any,
    call: Callable[..., Any] = over_examples,
    largest: int = 4096,
    rows: bool = False,
) -> Captured:
    r"""The model, ready to hand out what its linear layers are given.

    $$\bar S = \frac1N \sum_i x_i x_i^\top$$

    A linear layer is a tensor of the model that a matrix product, a convolution or a look-up maps inputs
    by, however the model is written: a layer of Equinox, of memdsl or of one's own, a projection inside
    attention, an array in a dictionary. They are found by following what is computed for an example;
    nothing is run. A vector that is added to all answers of one is its bias, the weight of an input that
    is always 1: then x ends with a 1.

    Tensors without a Gram matrix are those that are no linear layer, those that are used in two ways (a
    table that also makes the logits), those with more than `largest` inputs, and those that are used
    only inside of a `cond`, a `while_loop` or a function with its own derivative.

    **Arguments:**

    - `model`: any pytree.
    - `example`: a batch of what it is given; arrays, or their shapes.
    - `call`: how it is given it, `call(model, *example)`; by default as `jax.vmap(model)(*example)`.
    - `largest`: with more inputs than this, a layer has no Gram matrix: it has the square of it in
        numbers.
    - `rows`: hand out the inputs themselves. There are fewer of them than products where a batch is
        smaller than the layer, and an inverse can be carried on by them.

    **Returns:** a `Captured`: call it, differentiate it and train it in the place of the model.

    **Raises:** `SpecError` where there is no example, or no linear layer in what is computed for it.

    ??? example

        ```python
        >>> import jax.numpy as jnp
        >>> import memdsl as md
        >>> weights = {"w": jnp.ones((2, 3)), "b": jnp.zeros(3), "scale": jnp.ones(3)}
        >>> def apply(weights, x):
        ...     return weights["scale"] * jnp.tanh(x @ weights["w"] + weights["b"])
        >>> captured = md.optim.capture(weights, jnp.ones((5, 2)), call=apply)
        >>> [(found.weight, found.inputs, found.bias) for found in captured.projections]
        [("['w']", (0,), "['b']")]

        ```
    """
    if not example:
        raise SpecError(
            "capture was given no example.",
            why="Which tensors are linear layers is seen in what is computed.",
            instead="md.optim.capture(model, inputs), with a batch or its shapes.",
        )
    found = _Finder()

    def traced(tree: Any, *inputs: Any) -> None:
        watched(call, found, tree, *inputs)

    eqx.filter_eval_shape(traced, model, *example)
    shapes = _shapes(parameters(model))
    kept = [
        dataclasses.replace(p, bias=p.bias if p.bias in shapes else None)
        for p in found.projections()
        if p.weight in shapes and (p.lookup or p.size(shapes[p.weight]) <= largest)
    ]
    if not kept:
        raise SpecError(
            "There is no linear layer in this model.",
            why="No trained tensor of it is used as one, with one way to use it and at most "
            f"{largest} inputs.",
            instead="call=lambda model, inputs: …, which applies it; or a larger `largest`.",
        )
    return Captured(model, tuple(kept), rows)


def _shapes(tree: Any) -> dict[str, tuple[int, ...]]:
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {jax.tree_util.keystr(path): leaf.shape for path, leaf in leaves}


class _Finder(AbstractWatcher):
    """Notes every use, and runs nothing."""

    def __init__(self) -> None:
        self.uses: dict[str, list[Projection]] = defaultdict(list)
        self.added: dict[str, list[str]] = defaultdict(list)

    def use(self, use: Use, operand: Any) -> None:
        self.uses[use.projection.weight].append(use.projection)

    def add(self, answer: Origin, vector: Origin) -> None:
        self.added[vector.weight].append(answer.weight)

    def projections(self) -> list[Projection]:
        """Tensors that are used in one way only, each with the bias that goes with all its uses."""
        alike = {name: several for name, several in self.uses.items() if len(set(several)) == 1}
        bias = {
            weights[0]: vector
            for vector, weights in self.added.items()
            if len(set(weights)) == 1 and weights[0] in alike
            if len(weights) == len(alike[weights[0]])
        }
        return [
            dataclasses.replace(several[0], bias=bias.get(name)) for name, several in alike.items()
        ]
