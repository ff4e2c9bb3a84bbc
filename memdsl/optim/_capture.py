"""A model that hands out the Gram matrices of its linear layers."""

import dataclasses
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
from jaxtyping import Array, PyTree

from .._types import at_least_single
from ..grow._layers import parameters, trained
from ._gram import counts_of, Gram, gram_of
from ._origin import Origin
from ._projection import Projection
from ._uses import Use
from ._watch import AbstractWatcher, watched


class Captured(eqx.Module):
    """A model, and which of its tensors are linear layers; made by `md.optim.capture`.

    It is called as the model is, and has the model's parameters: it is what an optimiser is given, and
    what is trained. `captured.model` is the model itself.
    """

    model: Any
    projections: tuple[Projection, ...] = eqx.field(static=True)
    rows: bool = eqx.field(static=True, default=False)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.model(*args, **kwargs)


def over_examples(model: Any, *inputs: Any) -> Any:
    """The model of every example of a batch."""
    return jax.vmap(model)(*inputs)


def capture(
    model: Any,
    *example: PyTree[Any],
    call: Callable[..., Any] = over_examples,
    largest: int = 4096,
    rows: bool = False,
) -> Captured:
    found = _Finder()

    def traced(tree: Any, *inputs: Any) -> None:
        watched(call, found, tree, *inputs)

    eqx.filter_eval_shape(traced, model, *example)
    shapes = _shapes(parameters(model))
    kept = [p for p in found.projections() if p.weight in shapes]
    kept = [p for p in kept if p.lookup or p.size(shapes[p.weight]) <= largest]
    fixed = [dataclasses.replace(p, bias=p.bias if p.bias in shapes else None) for p in kept]
    return Captured(model, tuple(fixed), rows)


def with_grams(function: Callable[..., Any]) -> Callable[..., Any]:
    def both(captured: Captured, *args: Any) -> tuple[Any, Any]:
        measuring = _Measurer(captured)
        out, found = watched(function, measuring, captured.model, *args)
        return out, _mirrored(captured, found)

    return both


def backward(
    loss: Callable[..., Array], captured: Captured, *batch: PyTree[Array]
) -> tuple[Array, Any, Any]:
    inputs, *rest = batch
    learning, fixed = eqx.partition(captured, trained(captured))

    def total(learning: Captured) -> tuple[Array, Any]:
        def of_batch(model: Any, inputs: Any, *rest: Any) -> Array:
            return loss(jax.vmap(model)(inputs), *rest)

        return with_grams(of_batch)(eqx.combine(learning, fixed), inputs, *rest)

    (value, grams), gradients = jax.value_and_grad(total, has_aux=True)(learning)
    return value, gradients, grams


def _shapes(tree: Any) -> dict[str, tuple[int, ...]]:
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {jax.tree_util.keystr(path): leaf.shape for path, leaf in leaves}


def _mirrored(captured: Captured, found: dict[str, Gram]) -> Captured:
    """A tree like the parameters, with a Gram matrix where there is one and `None` elsewhere."""

    def gram(path: Any, leaf: Any) -> Gram | None:
        return found.get(jax.tree_util.keystr(path))

    model = jax.tree_util.tree_map_with_path(gram, captured.model)
    return Captured(model, captured.projections, captured.rows)


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


class _Measurer(AbstractWatcher):
    """Makes Gram matrices of the uses that were captured."""

    def __init__(self, captured: Captured) -> None:
        self.known = {projection.weight: projection for projection in captured.projections}
        self.rows = captured.rows
        leaves = jax.tree_util.tree_flatten_with_path(captured.model)[0]
        self.leaves = {jax.tree_util.keystr(path): leaf for path, leaf in leaves}

    def use(self, use: Use, operand: Any) -> Gram | None:
        wanted = self.known.get(use.projection.weight)
        if wanted is None or dataclasses.replace(wanted, bias=None) != use.projection:
            return None
        inputs = use.inputs(operand)
        if not wanted.lookup:
            return gram_of(inputs, wanted.bias is not None, self.rows)
        table = self.leaves[wanted.weight]
        return counts_of(inputs, table.shape[wanted.inputs[0]], at_least_single(table.dtype))

    def add(self, answer: Origin, vector: Origin) -> None:
        pass
