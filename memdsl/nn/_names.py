"""The names of the parameters of a layer: of a named part its own, of anything else its place."""

from typing import Any

import equinox as eqx
import jax
from jaxtyping import Array

from ..spec._number import Knob, Learned, leaves
from ..spec._slots import slots
from ._algebra import Vector
from ._base import AbstractModule


_USUAL = {"gain": "weight", "values": ""}
"""What the arrays of modules are called elsewhere."""


def parameter_names(module: AbstractModule) -> list[str | None]:
    """The name of every trained array of a layer, in the order of `jax.tree.leaves`; `None` of others.

    An array of a part of a `Tied` is named after the part, `"q_proj.weight"`; a `Learned` number
    with a name has that name; anything else is named by where it is in the module.
    """
    found = jax.tree_util.tree_flatten_with_path(module)[0]
    return [_name(module, path) if _counts(leaf) else None for path, leaf in found]


def _counts(leaf: Any) -> bool:
    return eqx.is_array(leaf) and leaf.size > 0


def _name(module: Any, path: tuple[Any, ...]) -> str | None:
    node: Any = module
    words: list[str] = []
    for index, key in enumerate(path):
        if _is_fixed(node):
            return None
        match key:
            case jax.tree_util.GetAttrKey():
                word, inner = key.name, getattr(node, key.name)
            case jax.tree_util.DictKey():
                word, inner = str(key.key), node[key.key]
            case _:
                word, inner = str(key.idx), node[key.idx]
        if word == "parts" and isinstance(inner, dict):
            words = []  # a part is named by itself, wherever its Tied is
        elif word == "numbers" and isinstance(inner, dict):
            number = _number(node.memory, path[index + 1 :])
            if isinstance(number, Knob):
                return None
            if isinstance(number, Learned) and number.name is not None:
                return number.name
            words.append(word)
        else:
            words.append(_USUAL.get(word, word))
        node = inner
    return ".".join(word for word in words if word)


def _is_fixed(node: Any) -> bool:
    return isinstance(node, Vector) and not node.spec.trainable


def _number(memory: Any, path: tuple[Any, ...]) -> Any:
    """The source at a place among the numbers of a memory."""
    number = next(slot.number for slot in slots(memory) if slot.path == path[0].key)
    return leaves(number)[path[1].idx]


def with_parameters(module: AbstractModule, arrays: list[Array | None]) -> AbstractModule:
    """The layer with other arrays in the place of its own, in the order of `jax.tree.leaves`;
    `None` keeps what is there."""
    own, structure = jax.tree.flatten(module)
    chosen = [a if b is None else b for a, b in zip(own, arrays, strict=True)]
    return jax.tree.unflatten(structure, chosen)
