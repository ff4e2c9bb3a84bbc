"""Which atoms are read where whole blocks of them are, by what `TopBlocks` says."""

from typing import Any

import jax
import jax.numpy as jnp

from ..spec._memory import Memory
from ..spec._read_blocks import blocks_of
from ..spec._slots import unpulled


def in_blocks(memory: Memory, atoms: list[tuple[int, Any, float]], query: Any) -> list[bool]:
    """Whether each atom is read; `atoms` are places in the document, keys and logarithms of weights."""
    read: Any = blocks_of(memory.read)
    blocks: dict[int, list[int]] = {}
    for index, (place, _, _) in enumerate(atoms):
        blocks.setdefault(place // read.size, []).append(index)
    if not atoms:
        return []
    arrived = 1 + max(place for place, _, _ in atoms)
    newest = (arrived - 1) // read.size
    always = [b for b in blocks if b < read.first or b > newest - read.latest]
    complete = [b for b in blocks if (b + 1) * read.size <= arrived]
    height = dict.fromkeys(complete, 0.0)
    size = len(query) // read.group
    for turn in range(read.group):
        said = {
            b: _weight(memory, [atoms[i] for i in blocks[b]], jnp.roll(query, -turn * size))
            for b in complete
        }
        shift = max(log for _, log in said.values()) if said else 0.0
        total = sum(sign * _plain(jnp.exp(log - shift)) for sign, log in said.values())
        for b, (sign, log) in said.items():
            if read.group > 1:
                height[b] += sign * _plain(jnp.exp(log - shift)) / total if total else 0.0
            else:
                height[b] = log if memory.kernel.is_exponential() else sign * _plain(jnp.exp(log))
    others = sorted((b for b in complete if b not in always), key=lambda b: (-height[b], b))
    chosen = {*always, *others[: read.count - len(always)]}
    return [place // read.size in chosen for place, _, _ in atoms]


def _weight(memory: Memory, atoms: list[tuple[int, Any, float]], query: Any) -> tuple[float, float]:
    """`(sign, logarithm)` of the weight of a block: its mean key, and the mean of its weights."""
    kernel, feature = unpulled(memory.kernel)
    mean = sum((feature(key) for _, key, _ in atoms), jnp.zeros_like(feature(query))) / len(atoms)
    logs = jnp.stack([jnp.asarray(log) for _, _, log in atoms])
    faded = _plain(jnp.max(logs) + jnp.log(jnp.mean(jnp.exp(logs - jnp.max(logs)))))
    if kernel.is_exponential():
        return 1.0, _plain(kernel.log(mean, feature(query))) + faded
    value = kernel(mean, feature(query))
    return _plain(jnp.sign(value)), _plain(jnp.log(jnp.abs(value))) + faded


def _plain(x: Any) -> float:
    """The number itself, to decide by."""
    return float(jax.lax.stop_gradient(x))
