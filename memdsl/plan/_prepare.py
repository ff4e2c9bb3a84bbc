"""From a memory to what a representation keeps: features of keys, taken once and ahead."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from ..spec._base import rebuild
from ..spec._kernel import Dot
from ..spec._memory import Leaf, Network
from ..spec._number import leaves
from ..spec._slots import peel
from ..spec._write import Ridge


KeyMap = Callable[[Array], Array]
"""A map of keys `[n, key] -> [n, features]`."""


def prepare(memory: Leaf, representation: str) -> tuple[Any, KeyMap]:
    """`(memory, key_map)`: an equal memory on mapped keys and queries.

    A matrix holds features, so its kernel becomes `Dot`; a buffer holds keys, so only the pullbacks
    are taken out. A ridge strength per channel becomes a scaling of keys and queries, which a buffer
    can have too.
    """
    peeled, feature = peel(memory)
    if isinstance(memory, Network):
        return memory, lambda rows: rows
    if representation != "buffer" and not isinstance(peeled.kernel, Dot):
        kernel = peeled.kernel
        lowered = rebuild(peeled, {"kernel": Dot()})
        mapped = _over_rows(lambda k: kernel.features(feature(k)))
        return lowered, mapped
    mapped = _over_rows(feature)
    write: Any = peeled.write
    strength = write.strength if isinstance(write, Ridge) else None
    if representation == "buffer" and isinstance(strength, jax.Array) and strength.ndim == 1:
        root = jnp.sqrt(strength)
        kernel = peeled.kernel
        lowered = rebuild(peeled, {"kernel": Dot(), "write": rebuild(write, {"strength": 1.0})})
        scaled = _over_rows(lambda k: kernel.features(feature(k)) / root)
        return lowered, scaled
    return peeled, mapped


def _over_rows(function: Callable[[Array], Array]) -> KeyMap:
    return lambda rows: jax.vmap(function)(rows)


def kept_size(memory: Leaf, key_size: int, representation: str) -> int:
    """The size of the keys that a representation keeps."""
    if isinstance(memory, Network):
        return key_size
    peeled, feature = peel(memory)
    size = feature.size(key_size)
    write: Any = peeled.write
    per_channel = isinstance(write, Ridge) and any(
        getattr(leaf, "per", "") == "key_channel" for leaf in leaves(write.strength)
    )
    if representation != "buffer" or per_channel:
        return int(peeled.kernel.rank(size))
    return size
