"""The tensors that a memory trains: the linear layers of captured models, or all of a tree."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
from jaxtyping import Array

from .._errors import SpecError
from .._types import at_least_single
from ._capture import Captured
from ._gram import Gram
from ._projection import Projection


class Trained(NamedTuple):
    """A tensor that a memory trains, with its bias."""

    weight: str
    bias: str | None
    projection: Projection | None
    """How it is a matrix, or `None` where that does not matter."""

    def of(self, tree: dict[str, Array]) -> Array:
        """`[W b]`, `[*stack, out, in]`, of a tree like the parameters; the tensor as it is where it need
        not be a matrix."""
        weight = tree[self.weight]
        if self.projection is not None:
            weight = self.projection.joined(weight, None if self.bias is None else tree[self.bias])
        return weight.astype(at_least_single(weight.dtype))

    def parts(self, joined: Array, tree: dict[str, Array]) -> dict[str, Array]:
        """The inverse of `of`: tensors like those of a tree, by their places."""
        weight, bias = tree[self.weight], None if self.bias is None else tree[self.bias]
        if self.projection is None:
            return {self.weight: joined.astype(weight.dtype)}
        tensor, vector = self.projection.parted(joined, weight, bias)
        found = {self.weight: tensor}
        return found if self.bias is None or vector is None else {**found, self.bias: vector}

    @property
    def is_table(self) -> bool:
        """Whether its rows are looked up."""
        return self.projection is not None and self.projection.lookup


def tensors(tree: Any) -> dict[str, Array]:
    """The floating arrays of a tree by their places."""
    found = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {name_of(path): leaf for path, leaf in found if eqx.is_inexact_array(leaf)}


def name_of(path: Any) -> str:
    """A place in a tree, as text."""
    return jax.tree_util.keystr(path)


def every(tree: Any) -> list[Trained]:
    """All tensors of a tree, of any shape."""
    return [Trained(name, None, None) for name in tensors(tree)]


def linear(tree: Any) -> list[Trained]:
    """The linear layers of the captured models in a tree, as far as they are in it."""
    nodes = jax.tree_util.tree_flatten_with_path(tree, is_leaf=_is_captured)[0]
    captured = [(name_of(path), node) for path, node in nodes if _is_captured(node)]
    if not captured:
        raise SpecError(
            "The dual of this memory trains a captured model, and there is none.",
            why="It must know which tensors are linear layers, and what they are given.",
            instead="captured = md.optim.capture(model, inputs), in the place of the model.",
        )
    known, found = tensors(tree), []
    for prefix, node in captured:
        for projection in node.projections:
            weight = f"{prefix}.model{projection.weight}"
            bias = f"{prefix}.model{projection.bias}"
            if weight in known:  # and not masked, nor frozen
                found.append(Trained(weight, bias if bias in known else None, projection))
    return found


def _is_captured(node: Any) -> bool:
    return isinstance(node, Captured)


def without(tree: Any, gone: list[Trained]) -> Any:
    """A tree without some of its tensors."""
    names = {name for one in gone for name in (one.weight, one.bias)}
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: None if name_of(path) in names else leaf, tree
    )


def grams_of(grams: Any, trained: list[Trained], sizes: dict[str, int]) -> dict[str, Gram]:
    """The Gram matrix of every tensor, as wide as it is with its bias."""
    nodes = jax.tree_util.tree_flatten_with_path(grams, is_leaf=_is_gram)[0]
    known = {name_of(path): node for path, node in nodes if _is_gram(node)}
    missing = [one.weight for one in trained if one.weight not in known]
    if missing:
        raise SpecError(
            f"The dual was given no Gram matrix of {missing[0]}."
            if known
            else "The dual was given no Gram matrices.",
            why="It was not used as it was when the model was captured." if known else None,
            instead="optimiser.update(gradients, state, parameters, grams=grams), with what "
            "md.optim.backward or md.optim.with_grams gave.",
        )
    found = {one.weight: known[one.weight] for one in trained}
    return {
        name: gram if gram.size == sizes[name] else gram.without_bias()
        for name, gram in found.items()
    }


def _is_gram(node: Any) -> bool:
    return isinstance(node, Gram)
