"""Additive reads of kept atoms, a block of readers at a time.

Weights stay outside the kernel values: `Σ_i e^{row + w_i} κ(k_i, q) c_i` takes one exponential a
reader and one an atom, and both logarithms are ≤ 0.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from ._atoms import keep, Known, Left, Pairs


def over_blocks(function: Callable[[Any], Array], blocks: Any) -> Array:
    """The function of every block, made again when it is differentiated.

    A single block is no loop: on a CPU, XLA is several times faster outside of one.
    """
    again = jax.checkpoint(function)
    if len(jax.tree.leaves(blocks)[0]) == 1:
        return again(jax.tree.map(lambda x: x[0], blocks))[None]
    return jax.lax.map(again, blocks)


def over_blocks_in_turn(step: Any, carry: Array, blocks: Any, *, reverse: bool = False) -> Any:
    """`jax.lax.scan`; a single block, as there, without the loop."""
    if len(jax.tree.leaves(blocks)[0]) == 1:
        carry, out = step(carry, jax.tree.map(lambda x: x[0], blocks))
        return carry, jax.tree.map(lambda x: x[None], out)
    return jax.lax.scan(step, carry, blocks, reverse=reverse)


def flat(array: Array) -> Array:
    return array.reshape(-1, array.shape[-1])


def earlier(pairs: Pairs, keys: Array, query: Array, weight: Array) -> Array:
    """`κ ⊙ e^weight`, `[size, atoms]`: atoms that are not there yet, or gone, are not looked at."""
    there = weight > -jnp.inf
    return pairs(keep(there, keys), query).T * jnp.exp(weight)[None, :]


def here(pairs: Pairs, keys: Array, query: Array, within: Array) -> Array:
    """`κ ⊙ e^within`, `[size, size]`, inside one block."""
    return jnp.where(within > -jnp.inf, pairs(keys, query).T * jnp.exp(within), 0)


def stored_answers(pairs: Pairs, old: Known, queries: Array, row: Array, weights: Array) -> Array:
    """What the stored atoms answer to `[blocks, size, key]`."""
    if old.log_weight.shape[0] == 0:
        return jnp.zeros((*row.shape, old.coefficients.shape[1]), row.dtype)

    def answer(block: tuple[Array, Array, Array]) -> Array:
        query, row, weight = block
        recalled = earlier(pairs, old.keys, query, weight) @ old.coefficients
        return jnp.exp(row)[:, None] * recalled

    return over_blocks(answer, (queries, row, weights))


def answers(
    pairs: Pairs, keys: Array, coefficients: Array, queries: Array, met: Left, weights: Array
) -> Array:
    """What the atoms of the run answer to `[blocks, size, key]`."""

    def answer(block: tuple[Array, Array, Array, Left, Array]) -> Array:
        key, coefficient, query, met, weight = block
        inside = here(pairs, key, query, met.within) @ coefficient
        if len(keys) == 1:  # a single block has nothing before it
            return inside
        recalled = earlier(pairs, flat(keys), query, weight) @ flat(coefficients)
        return jnp.exp(met.row)[:, None] * recalled + inside

    return over_blocks(answer, (keys, coefficients, queries, met, weights))
