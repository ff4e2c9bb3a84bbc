"""Descent in minibatches, a minibatch at a time: its errors are of one function, so they come at once.

Inside a minibatch everything is linear in what it begins with, f, the momentum s and what was moved
already S, and in the gradients of its tokens. A first pass, over the places of a minibatch and of all
minibatches together, finds the factors; the second goes from minibatch to minibatch. A matrix whose
steps are plain is never written out token by token, `y = F_0 q + (W * Q K^T) C`; other functions are.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ..spec._facts import retention
from ..spec._gate import Decay, forgets, Simplex
from ..spec._memory import Leaf, Memory
from ..spec._number import log_of
from ..state import AbstractState, DescentState, NetworkState
from ..state._descent import direction, joined, Latest
from ._inputs import Inputs
from ._recurrent import recurrent


class Factors(NamedTuple):
    """Of every place of a minibatch (and, of `rows`, before the first one).

    `rows` give f after a token from (what the rest of f began as, S at the beginning, every direction);
    `moved` the same of S, `momentum` the momentum from (s at the beginning, every gradient).
    """

    rows: Float[Array, "before minibatch_and_two"]
    moved: Float[Array, "minibatch minibatch_and_one"]
    momentum: Float[Array, "minibatch minibatch_and_one"]
    asked: Float[Array, " minibatch"]
    gain: Float[Array, ""]


def minibatch(memory: Leaf, state: AbstractState, inputs: Inputs) -> tuple[AbstractState, Array]:
    """The state after a sequence, and the answer to every query; token by token where documents start
    or tokens are masked, since a minibatch then ends anywhere."""
    write: Any = memory.write
    size, time = write.minibatch, inputs.time
    aligned = inputs.starts is None and inputs.active is None
    if not isinstance(state, DescentState) or not aligned or time == 0:
        return recurrent(memory, state, inputs)
    blocks = -(-time // size) + (0 if inputs.fresh else 1)

    def in_blocks(array: Array) -> Array:
        padded = jnp.zeros((blocks * size, *array.shape[1:]), array.dtype)
        at = (state.place, *[jnp.zeros_like(state.place)] * (array.ndim - 1))
        padded = jax.lax.dynamic_update_slice(padded, array, at)
        return padded.reshape(blocks, size, *array.shape[1:])

    tokens = jax.tree.map(in_blocks, inputs)
    valid = in_blocks(jnp.ones(time, bool))
    factors = _factors(memory, state, tokens, valid)

    def body(carry: DescentState, block: Any) -> tuple[DescentState, Array]:
        return _block(memory, carry, *block)

    after, answers = jax.lax.scan(body, state, (tokens, valid, factors))
    flat = answers.reshape(blocks * size, *answers.shape[2:])
    out = jax.lax.dynamic_slice_in_dim(flat, state.place, time)
    rate = jax.vmap(lambda t: jnp.asarray(t.grounded(memory, 0).write.rate, flat.dtype))(inputs)
    last = jnp.broadcast_to(rate[-1], inputs.values.shape[1:])
    newest = (inputs.keys[-1:], inputs.values[-1:], last[None], jnp.ones(1, bool))
    function: Any = after.function
    function = type(function)(
        **{n: getattr(function, n) for n in function.__dataclass_fields__ if n != "count"},
        count=function.count + time,
    )
    place = (state.place + time) % size
    return DescentState(function, after.names, Latest(*newest), place, after.gain), out


def _numbers(memory: Leaf, token: Inputs) -> tuple[Array, Array, Array]:
    """The decay of a token, its momentum and its gain."""
    m: Any = token.grounded(memory, 0)
    dtype = token.values.dtype
    logs = [log_of(g.decay) for g in forgets(m.gate) if isinstance(g, Decay | Simplex)]
    decay = jnp.exp(sum((jnp.asarray(x, dtype) for x in logs), jnp.zeros((), dtype)))
    momentum = 0.0 if m.write.momentum is None else m.write.momentum
    return decay, jnp.asarray(momentum, dtype), jnp.asarray(m.write.gain, dtype)


def _factors(
    memory: Leaf, state: DescentState, tokens: Inputs, valid: Bool[Array, "blocks size"]
) -> Factors:
    """The factors of all minibatches, `[blocks, …]`, place by place."""
    write: Any = memory.write
    decay, momentum, gain = jax.vmap(jax.vmap(lambda token: _numbers(memory, token)))(tokens)
    # a place that holds no token changes nothing
    decay, momentum = jnp.where(valid, decay, 1), jnp.where(valid, momentum, 1)
    blocks, size = valid.shape
    eye = jnp.eye(size, dtype=decay.dtype)
    whole = jnp.zeros((blocks, size + 1), decay.dtype).at[:, 0].set(1)
    first = _first_gain(memory, state, gain.dtype)
    before = jnp.concatenate([first[None], _last_gains(gain, valid, first)[:-1]])

    def place(carry: Any, at: Any) -> tuple[Any, Any]:
        rest, moved, s, eta = carry
        fade, mu, own, there, unit = at
        one = jnp.where(there, 1, 0).astype(rest.dtype)[:, None] * unit[None, :]
        s = mu[:, None] * s + jnp.pad(one, ((0, 0), (1, 0)))
        rest = fade * rest
        moved = fade[:, None] * moved + jnp.pad(one, ((0, 0), (1, 0)))
        eta = jnp.where(there, own, eta)
        row = jnp.concatenate([rest[:, None], eta[:, None] * moved], axis=-1)
        return (rest, moved, s, eta), (row, moved, s, rest)

    start = (jnp.ones(blocks, decay.dtype), whole, whole, before)
    along = (decay.T, momentum.T, gain.T, valid.T, eye)
    (_, _, _, eta), found = jax.lax.scan(place, start, along)
    rows, moved, s, rest = (jnp.swapaxes(x, 0, 1) for x in found)
    first_row = jnp.concatenate(
        [jnp.ones((blocks, 1), rows.dtype), before[:, None] * whole], axis=-1
    )
    rows = jnp.concatenate([first_row[:, None], rows], axis=1)
    asked = jnp.ones_like(rest) if write.recall == "previous" else rest
    return Factors(rows, moved, s, asked, eta)


def _first_gain(memory: Leaf, state: DescentState, dtype: Any) -> Array:
    """The gain of what a minibatch that goes on has moved already, where that is known apart."""
    write: Any = memory.write
    return state.gain if "moved" in state.names else jnp.asarray(write.gain, dtype)


def _last_gains(gain: Array, valid: Array, first: Array) -> Array:
    """The gain of the last token of every minibatch."""
    last = jnp.max(jnp.where(valid, jnp.arange(valid.shape[1])[None, :], -1), axis=1)
    own = jnp.take_along_axis(gain, jnp.maximum(last, 0)[:, None], axis=1)[:, 0]
    return jnp.where(last >= 0, own, first)


def _block(
    memory: Leaf, state: DescentState, tokens: Inputs, valid: Array, factors: Factors
) -> tuple[DescentState, Array]:
    """The state after a minibatch, and its answers."""
    write: Any = memory.write
    parts = {name: part.numbers() for name, part in state.parts().items()}
    like: Any = state.parts()["function"]
    begins = valid[0]
    start = jnp.where(begins, parts["function"], parts["start"])
    zero = jnp.zeros_like(start)
    moved = jnp.where(begins, 0, parts["moved"]) if "moved" in parts else zero
    rest = parts["function"] - state.gain * moved if "moved" in parts else parts["function"]
    s = parts.get("momentum", zero)
    signals = _signals(memory, like.with_numbers(start), tokens, valid, factors.asked)
    reads = slice(None, -1) if memory.read.is_before() else slice(1, None)
    plain = retention(memory) is None and not write.orthogonalise
    if plain and not isinstance(like, NetworkState) and isinstance(memory, Memory):
        features = jax.vmap(memory.kernel.features)
        keys, queries = features(tokens.keys), features(tokens.queries)
        # directions are momenta: their factors are those of the gradients
        directions = factors.momentum * valid[:, None].astype(s.dtype)
        rows = factors.rows[:, 2:] @ directions
        mixed = rows[reads, 1:] * (queries @ keys.T)
        out = factors.rows[reads, :1] * (queries @ rest) + mixed @ signals
        out = out + factors.rows[reads, 1:2] * (queries @ moved) + rows[reads, :1] * (queries @ s)
        out = memory.read.core().scale * out

        def summed(weights: Array) -> Array:
            return weights[0] * s + keys.T @ (weights[1:, None] * signals)

        last = factors.rows[-1]
        function = last[0] * rest + last[1] * moved + summed(rows[-1])
        kept = factors.moved[-1, 1:] @ directions
        moved = factors.moved[-1, 0] * moved + summed(kept)
        s = summed(factors.momentum[-1])
    else:
        steps = _gradients(memory, like.with_numbers(start), tokens, signals, factors.asked)
        s_all = _combined(factors.momentum, [s, steps])
        directions = jax.vmap(lambda step: direction(memory, like, step))(s_all)
        directions = jnp.where(valid.reshape(-1, *[1] * s.ndim), directions, 0)
        functions = _combined(factors.rows, [rest, moved, directions])
        moved = _combined(factors.moved[-1:], [moved, directions])[0]
        out = jax.vmap(lambda f, q: _answer(memory, like.with_numbers(f), q))(
            functions[reads], tokens.queries
        )
        function, s = functions[-1], s_all[-1]
    # a minibatch that goes on is asked at its beginning, faded by what it has seen
    new = {"function": function, "momentum": s, "moved": moved, "start": factors.asked[-1] * start}
    whole = joined({name: like.with_numbers(new[name]) for name in state.names})
    return DescentState(whole, state.names, state.latest, state.place, factors.gain), out


def _signals(memory: Leaf, start: Any, tokens: Inputs, valid: Array, asked: Array) -> Array:
    """`-rate dloss/da(k)` of every token, of the function at the beginning."""

    def one(token: Inputs, there: Array, prediction: Array) -> Array:
        m: Any = token.grounded(memory, 0)
        gradient = m.write.loss.gradient(prediction, token.values)
        rate = jnp.asarray(m.write.rate, gradient.dtype)
        return jnp.where(there, -rate * gradient, 0)

    return jax.vmap(one)(tokens, valid, _predictions(memory, start, tokens, asked))


def _predictions(memory: Leaf, start: Any, tokens: Inputs, asked: Array) -> Array:
    def at(function: Any, key: Array) -> Array:
        return function.evaluate(memory, key).value

    if not _fades(memory):
        return jax.vmap(lambda key: at(start, key))(tokens.keys)
    if retention(memory) is None and not isinstance(start, NetworkState):
        return asked[:, None] * jax.vmap(lambda key: at(start, key))(tokens.keys)
    return jax.vmap(lambda a, key: at(start.with_numbers(a * start.numbers()), key))(
        asked, tokens.keys
    )


def _gradients(memory: Leaf, start: Any, tokens: Inputs, signals: Array, asked: Array) -> Array:
    """What moves the function by the signals at the keys, token by token."""
    if isinstance(memory, Memory):
        return jax.vmap(lambda k, c: memory.kernel.features(k)[:, None] * c[None, :])(
            tokens.keys, signals
        )
    if not _fades(memory):
        return jax.vmap(lambda k, c: start.pull(memory, k, c))(tokens.keys, signals)
    return jax.vmap(lambda a, k, c: start.with_numbers(a * start.numbers()).pull(memory, k, c))(
        asked, tokens.keys, signals
    )


def _fades(memory: Leaf) -> bool:
    """Whether what the errors are of fades inside a minibatch."""
    write: Any = memory.write
    decays = any(isinstance(g, Decay | Simplex) for g in forgets(memory.gate))
    return decays and write.recall != "previous"


def _answer(memory: Leaf, function: Any, query: Array) -> Array:
    return memory.read.core().scale * function.evaluate(memory, query).value


def _combined(rows: Array, of: list[Array]) -> Array:
    """`rows @ of`, where the last of `of` has as many entries as there are places."""
    *single, many = of
    stacked = jnp.concatenate([*[x[None] for x in single], many])
    return jnp.tensordot(rows, stacked, axes=1)
