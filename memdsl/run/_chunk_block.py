"""A block of chunks of the canonical recurrence: see `_chunkwise`, whose formulas these are."""

import functools
from collections.abc import Callable
from typing import Any, cast, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ._chunk_decay import chunk_decays, FLOOR
from ._triangular import unit_lower_inverse


class Tokens(NamedTuple):
    """A sequence, a block of it, or a block in chunks; `None` is a term that is not there."""

    queries: Any
    keys: Any
    values: Any
    log_decay: Any
    erase: Any
    remove: Any
    starts: Any


class Sizes(NamedTuple):
    """What is known before any array is."""

    chunk: int
    block: int  # tokens at once, a multiple of the chunk
    read_before: bool
    precision: jax.lax.PrecisionLike


class _Chunks(NamedTuple):
    """Chunks that do not know their incoming state yet. Each field is `[chunks, ...]`, or `None`."""

    reach: Any  # [chunk, key]: rows through which that state is answered
    own: Any  # [chunk, value]: answers from the chunk's own tokens
    decay: Any  # [#key, 1]: of that state, until the end
    added: Any  # [key, value]: what is written whatever is recalled
    remove: Any  # [chunk, key]: where the rank-one terms write, decayed until the end
    recall: Any  # [chunk, key]: rows through which they recall that state
    found: Any  # [chunk, value]: what they write beside that


def run_block(sizes: Sizes, state: Array, tokens: Tokens) -> tuple[Array | None, Array]:
    """The answers to a block of tokens, and the state after it."""
    tokens = _in_chunks(sizes, tokens, state.dtype)
    chunks = _without_state(sizes, tokens)
    product = functools.partial(jnp.matmul, precision=sizes.precision)
    alive = cleared = None
    if tokens.starts is not None:
        until = np.tril(np.ones((sizes.chunk, sizes.chunk), bool))
        alive = ~jnp.any(tokens.starts[:, None] & until[None], axis=-1)[..., None]
        cleared = ~alive[:, -1]

    def step(state: Array, x: tuple[_Chunks, Array | None]) -> tuple[Array, Array]:
        c, cleared = x
        kept = state if cleared is None else jnp.where(cleared[None], 0, state)
        after = c.decay * kept
        if c.added is not None:
            after = after + c.added
        if c.remove is not None:
            after = after + product(c.remove.T, c.found + product(c.recall, kept))
        return after, state

    reach, own = chunks.reach, chunks.own
    rest = chunks._replace(reach=None, own=None)
    final, states = jax.lax.scan(step, state, (rest, cleared))
    if tokens.queries is None:
        return None, final
    if alive is None:
        out = own + product(reach, states)
    else:  # the rows after a start are 0, and must not meet a state that has overflowed
        reach = jnp.where(alive, reach, 0)
        out = own + jnp.where(alive, product(reach, states), 0)
    return out.reshape(-1, out.shape[-1]), final


def _in_chunks(sizes: Sizes, tokens: Tokens, dtype: Any) -> Tokens:
    """The tokens `[chunks, chunk, ...]` in the dtype of the state, and starts as decays of 0.

    Where there are starts, what is not finite is 0: products with the zeros between two sequences
    would spread it. The answers that it belongs to are marked by the caller.
    """
    starts, log_decay = tokens.starts, tokens.log_decay
    time = tokens.keys.shape[0]

    def chunked(x: Array | None, cleared: bool = False) -> Array | None:
        if x is None:
            return None
        x = x.astype(dtype)
        if starts is not None:
            x = jnp.where(jnp.isfinite(x), x, 0)
        if starts is not None and cleared:
            x = jnp.where(starts[:, None], 0, x)
        return x.reshape(-1, sizes.chunk, x.shape[-1])

    if log_decay is not None:
        log_decay = log_decay.astype(dtype).reshape(time, -1)
        if starts is not None:
            log_decay = jnp.where(log_decay < jnp.inf, log_decay, 0)
        log_decay = jnp.maximum(log_decay, FLOOR)
    elif starts is not None:
        log_decay = jnp.zeros((time, 1), dtype)
    if starts is not None:
        log_decay = jnp.where(starts[:, None], FLOOR, cast(Array, log_decay))
    if log_decay is not None:
        log_decay = log_decay.reshape(-1, sizes.chunk, log_decay.shape[1])
    return Tokens(
        queries=chunked(tokens.queries, cleared=sizes.read_before),
        keys=chunked(tokens.keys),
        values=chunked(tokens.values),
        log_decay=log_decay,
        erase=chunked(tokens.erase, cleared=True),
        remove=chunked(tokens.remove),
        starts=None if starts is None else starts.reshape(-1, sizes.chunk),
    )


def _without_state(sizes: Sizes, tokens: Tokens) -> _Chunks:
    """All that does not depend on the states, for all chunks at once."""
    keys, values, remove = tokens.keys, tokens.values, tokens.remove
    decays = chunk_decays(tokens.log_decay, keys, sizes.precision)
    product = functools.partial(jnp.matmul, precision=sizes.precision)

    def reader(rows: Array, before: bool) -> tuple[Callable[[Array], Array], Array]:
        """How rows of tokens meet what is written at columns, and the incoming state."""
        if not before:
            return lambda columns: decays.pairs(rows, columns), rows * decays.to_token
        # What is read before token i is what is read after token i - 1.
        ahead = jnp.concatenate([rows[:, 1:], jnp.zeros_like(rows[:, :1])], axis=1)
        return (
            lambda columns: _down(decays.pairs(ahead, columns)),
            _down(ahead * decays.to_token, rows[:, :1]),
        )

    def written(rows: Array, values: Array) -> Array:
        return product(jnp.swapaxes(rows * decays.to_end, 1, 2), values)

    decay = jnp.swapaxes(decays.to_token[:, -1:], 1, 2)
    ask = own = reach = None
    if tokens.queries is not None:
        ask, reach = reader(tokens.queries, sizes.read_before)
    if tokens.erase is None:
        if ask is not None:
            own = product(ask(keys), values)
        return _Chunks(reach, own, decay, written(keys, values), None, None, None)

    meets, recall = reader(tokens.erase, True)
    inverse = unit_lower_inverse(meets(keys if remove is None else remove), sizes.precision)
    recall = product(inverse, recall)
    found = product(inverse, values if remove is None else product(meets(keys), values))
    if ask is not None:
        answers = ask(keys if remove is None else remove)
        own = product(answers, found)
        reach = cast(Array, reach) + product(answers, recall)
        if remove is not None:
            own = own + product(ask(keys), values)
    removed = (keys if remove is None else remove) * decays.to_end
    added = None if remove is None else written(keys, values)
    return _Chunks(reach, own, decay, added, removed, recall, found)


def _down(x: Array, first: Array | None = None) -> Array:
    """Every row a token later."""
    first = jnp.zeros_like(x[:, :1]) if first is None else first
    return jnp.concatenate([first, x[:, :-1]], axis=1)
