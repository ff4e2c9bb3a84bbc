"""What one token does to one memory: decay, recall, correct, absorb, and read."""

from typing import Any, NamedTuple

import jax.numpy as jnp

from ..spec._descent import orthogonalised
from ..spec._memory import Leaf, Memory, Network
from ..spec._read import bonus_of, Normalised
from ..spec._write import AbstractWrite, Delta, Descent, Ridge
from . import _parameters
from ._capacity import admits, offer
from ._evaluate import division, evaluate, nearest, ratio
from ._function import Atom, faded, Function, moves_old_atoms, new_atom, one, weight
from ._parameters import is_point, Point, start


class Pair(NamedTuple):
    """A pair to write, its keys already mapped by the feature."""

    key: Any
    value: Any
    erase_key: Any
    remove_key: Any


class Recent(NamedTuple):
    """A pair that a `Descent` over a window goes back to."""

    birth: int
    key: Any
    value: Any
    write: Descent


def begun(memory: Leaf, first: Pair, keys: list[Any]) -> Function | Point:
    """What a memory is at a start, given the first pair and the keys of all that will be written."""
    if isinstance(memory, Network) or is_point(memory):
        all_keys = jnp.stack(keys) if keys else first.key[None][:0]
        return start(memory, len(first.key), len(first.value), all_keys)
    return Function((), memory.initial, jnp.zeros_like(first.key), jnp.zeros_like(first.value))


def asked_at(
    memory: Any,
    function: Function | Point,
    query: Any,
    value_size: int,
    *,
    is_backwards: bool,
    own: Pair | None = None,
) -> Any:
    """The answer to a query, whatever the memory is; `own` is a pair that its bonus lets through."""
    if isinstance(function, Function) and memory.read.needs_mass():
        return read(memory, function, query, own)
    if isinstance(function, Function):
        answer = (backwards if is_backwards else read)(memory, function, query)
    elif is_backwards:
        answer = _parameters.backwards(memory, function, query)
    else:
        answer = _parameters.read(memory, function, query, value_size)
    if own is None:
        return answer
    return answer + let_through(memory, own, query, is_backwards=is_backwards)


def all_written(
    memories: list[Any], pairs: list[Pair], function: Function | Point
) -> Function | Point:
    """What a memory is after a token of pairs, each with the memory of its own numbers."""
    if isinstance(function, Point):
        return _parameters.written(memories, pairs, function)
    before, function = function, faded(memories[0], function, pairs[0].erase_key)
    for j, (memory, pair) in enumerate(zip(memories, pairs, strict=True)):
        function = written(memory, function, function if j else before, pair)
        function = function.put(seen=function.seen + 1)
    return function


def read(memory: Memory, function: Function, query: Any, own: Pair | None = None) -> Any:
    """The answer to a query. Where it divides, an own pair is one more atom."""
    core, top = memory.read.core(), memory.read.top()
    if not isinstance(core, Normalised):
        return core.scale * evaluate(memory, function, query, top).answer
    atoms = function.atoms if top is None else nearest(memory, function, query, top)
    bonus = None if own is None else bonus_of(memory.read)
    if own is not None and bonus is not None:
        by_channel = jnp.ndim(bonus) > 0
        key, share = (bonus * own.key, 1.0) if by_channel else (own.key, bonus)
        atoms = (*atoms, new_atom(memory, function, key, share * own.value, share))
    value, mass, _ = division(memory, function, atoms, query, core.prior, core.scale)
    return ratio(value, mass)


def backwards(memory: Memory, function: Function, query: Any) -> Any:
    """The answer from the side of the values, `sum_i phi(k_i) (c_i . query)`: a matrix times it."""
    answer = jnp.zeros_like(memory.kernel.features(function.origin))
    if function.initial is not None:
        answer = answer + function.initial @ query
    for atom in function.atoms:
        features = jnp.exp(atom.log_weight) * memory.kernel.features(atom.key)
        answer = answer + features * (atom.value @ query)
    return memory.read.core().scale * answer


def let_through(memory: Memory, pair: Pair, query: Any, *, is_backwards: bool) -> Any:
    """What a read before the write adds of the token's own pair, `bonus kernel(k, q) v`."""
    bonus = bonus_of(memory.read)
    if bonus is None:
        return jnp.zeros((), pair.key.dtype)
    scale = memory.read.core().scale
    if is_backwards:
        return scale * bonus * pair.key * (pair.value @ query)
    if jnp.ndim(bonus) > 0:
        return scale * ((bonus * pair.key) @ query) * pair.value
    return scale * bonus * memory.kernel(pair.key, query) * pair.value


def written(memory: Memory, function: Function, before: Function, pair: Pair) -> Function:
    """The faded `function` after a pair, where `before` is the function that had not faded."""
    write: AbstractWrite = one(memory.write)
    asked = before if write.reads_before_decay() else function
    key, value = pair.key, pair.value
    admitted = admits(memory, function, asked, key, value)

    def take(
        function: Function, key: Any, value: Any, mass: Any, log_weight: Any = None
    ) -> Function:
        weight = 0.0 if log_weight is None else log_weight
        atom = new_atom(memory, function, key, value, mass, weight)
        return offer(memory, function, atom, admitted=admitted)

    if isinstance(write, Ridge):
        return take(function, key, value, write.rate)
    if moves_old_atoms(write):
        return _descended(memory, take, function, asked, pair)
    if not isinstance(write, Delta):
        recalled = evaluate(memory, asked, key)
        return take(function, key, *write.atom(memory.kernel, key, value, recalled))
    erase_key = write.erase_key(pair.erase_key if write.erase == "own" else key)
    recalled = evaluate(memory, asked, erase_key).answer
    if write.on == "atoms":
        if admitted:
            function = take(function, key, jnp.zeros_like(value), 1.0)
        return _spread(memory, write, function, key, write.target(value) - recalled)
    step = write.step(memory.kernel(key, key))
    if write.remove == "key":
        return take(function, key, step * (write.target(value) - recalled), 1.0)
    function = take(function, key, step * write.target(value), 1.0)
    return take(function, pair.remove_key, -step * recalled, 0.0)


def _spread(memory: Memory, write: Delta, function: Function, key: Any, error: Any) -> Function:
    """Every stored coefficient moves by `step(|h|^2) error h_j`, `h_j = w_j kernel(k_j, k)`."""
    h = [weight(memory, atom, key) for atom in function.atoms]
    step = write.step(sum((x * x for x in h), jnp.zeros((), key.dtype)))
    pairs = zip(function.atoms, h, strict=True)
    return function.put(atoms=tuple(a.put(value=a.value + x * step * error) for a, x in pairs))


def _descended(
    memory: Memory, take: Any, function: Function, asked: Function, pair: Pair
) -> Function:
    """`S <- mu S - sum_j rate_j gradient_j` over the latest pairs, then `f <- f + gain S`, or its
    orthogonal factor.

    Every gradient is at the same function; without momentum mu is 0. S has the same keys as f, and
    an atom that leaves takes its part of S with it.
    """
    write: Descent = one(memory.write)
    latest = Recent(function.born, pair.key, pair.value, write)
    recent = (*function.recent, latest)[-write.window :]
    moves = {}
    for p in recent:
        prediction = evaluate(memory, asked, p.key).answer
        moves[p.birth] = -p.write.rate * p.write.loss.gradient(prediction, p.value)
    mu = 0.0 if write.momentum is None else write.momentum

    def step(atom: Atom) -> Atom:
        new = jnp.broadcast_to(moves.get(atom.birth, jnp.zeros_like(pair.value)), atom.value.shape)
        return atom.put(momentum=mu * atom.momentum + new)

    function = take(function, pair.key, jnp.zeros_like(pair.value), 1.0)
    function = function.put(recent=recent).each(step)
    steps: Any = [atom.momentum for atom in function.atoms]
    if write.orthogonalise and steps:
        gram = [[memory.kernel(a.key, b.key) for b in function.atoms] for a in function.atoms]
        steps = orthogonalised(jnp.stack(steps), jnp.asarray(gram))
    pairs = zip(function.atoms, steps, strict=True)
    return function.put(atoms=tuple(atom.moved(write.gain * s) for atom, s in pairs))
