"""Reads of whole blocks of atoms, of many tokens at once."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from ..spec._memory import Memory
from ..spec._read_blocks import blocks_of
from ..state import BufferState, chosen
from ._inputs import Inputs
from ._parallel import Answer


def within_blocks(
    memory: Memory, state: BufferState, tokens: Inputs, log_decay: Array | None, answer: Answer
) -> Answer:
    """An answer from all atoms, made one from the atoms in the blocks that each reader reads.

    Of what is stored, the oldest come first, as in `whole_parallel`. Blocks are numbered over all
    documents; where one begins or all is forgotten, so does a block.
    """
    read: Any = blocks_of(memory.read)
    places, block, written, count = _arrivals(state, tokens, log_decay, read.size)

    def from_blocks(keys: Array, coefficients: Array, query: Array, logs: Array) -> Array:
        pad = (0, len(keys) - len(places))  # the last block of a run is filled up
        of = jnp.pad(block, pad, constant_values=count - 1)
        logs = jnp.where(jnp.pad(written, pad)[None, :], logs, -jnp.inf)
        picked = chosen(memory, keys, jnp.pad(places, pad), of, logs, query, count)
        return answer(keys, coefficients, query, jnp.where(picked, logs, -jnp.inf))

    return from_blocks


def _arrivals(
    state: BufferState, tokens: Inputs, log_decay: Array | None, size: int
) -> tuple[Array, Array, Array, int]:
    """`(place, block, is written, how many blocks)` of all atoms that are stored and of every token.

    A token that writes nothing has the place of the next that does.
    """
    time = tokens.time
    active = jnp.ones(time, bool) if tokens.enters is None else tokens.enters
    starts = jnp.zeros(time, bool) if tokens.starts is None else tokens.starts
    before = jnp.cumsum(active, dtype=jnp.int32) - active.astype(jnp.int32)  # in this run
    since = jax.lax.cummax(jnp.where(starts, before, -1)) if time else before
    base = state.counts.admitted - state.origin
    run = jnp.where(since < 0, base + before, before - since)
    ends = starts if log_decay is None else starts | (log_decay == -jnp.inf)
    document = jnp.cumsum(ends, dtype=jnp.int32)
    if tokens.fresh:
        places, documents, written = run, document, active
        slots = 0
    else:
        order = jnp.argsort(
            jnp.where(state.valid, state.birth, jnp.iinfo(jnp.int32).max), stable=True
        )
        stored = jnp.where(state.valid, state.birth - state.origin, base)[order]
        slots = len(stored)
        places = jnp.concatenate([stored, run])
        documents = jnp.concatenate([jnp.zeros_like(stored), document])
        written = jnp.concatenate([state.valid[order], active])
    number = places // size
    new = (number[1:] != number[:-1]) | (documents[1:] != documents[:-1])
    block = jnp.concatenate(
        [jnp.zeros(min(1, len(places)), jnp.int32), jnp.cumsum(new, dtype=jnp.int32)]
    )
    together = tokens.starts is None and log_decay is None
    most = -(-slots // size) + -(-time // size) + 2 if together else slots + time
    return places, block, written, max(min(most, slots + time), 1)
