"""Memories that are a point in a space of numbers: what cannot be said, or not well, atom by atom.

The point is the matrix of a memory whose kernel has finitely many features; the parameters of a
network; or, for a kernel that has none, one coefficient for every pair that will ever be written.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from ..spec._descent import orthogonalised
from ..spec._facts import descends, needs_atoms, retention
from ..spec._gate import (
    Decay,
    DiagonalDecay,
    forgets,
    Householder,
    KeyDecay,
    Simplex,
    ValueDecay,
)
from ..spec._memory import Leaf, Memory, Network
from ..spec._number import log_of, value_of
from ..spec._read import ranked_by
from ..spec._read_blocks import blocks_of
from ..spec._write import Delta, Recalled
from ._blocks import in_blocks
from ._function import one


def is_point(memory: Leaf) -> bool:
    """Whether a memory is defined by its numbers, and not by its atoms."""
    if isinstance(memory, Network) or retention(memory) is not None:
        return True
    write: Any = one(memory.write)
    if not descends(memory):
        return False
    of_matrix = not needs_atoms(memory) and (write.orthogonalise or write.has_gain())
    return of_matrix or write.minibatch > 1


@dataclasses.dataclass(frozen=True)
class Step:
    """A pair that was written: its row among all pairs, and the write of its token."""

    row: int
    key: Any
    value: Any
    write: Any


@dataclasses.dataclass(frozen=True)
class Point:
    """Numbers, beside what a descent remembers.

    `keys` are those of all pairs, where the numbers are coefficients. `base` is the point at the end of
    the last minibatch and `moves` what every token of this one has moved, all faded since; `asked` is
    the point that the errors of this minibatch are of. `written` counts the pairs since the last start.
    """

    numbers: Any
    keys: Any
    momentum: Any
    base: Any
    moves: tuple[Any, ...] = ()
    asked: Any = None
    recent: tuple[Step, ...] = ()
    written: int = 0

    def put(self, **changes: Any) -> "Point":
        """The point with some of it changed."""
        return dataclasses.replace(self, **changes)


def start(memory: Leaf, key_size: int, value_size: int, keys: Any) -> Point:
    """The point at a start; `keys` are those of all pairs, `[pairs, key]`."""
    initial: Any = memory.initial  # grounded: an array
    numbers: Any
    if isinstance(memory, Network):
        numbers = memory.start(key_size, value_size) if initial is None else initial
        numbers = jnp.asarray(numbers, keys.dtype)
    elif memory.kernel.is_finite():
        numbers = jnp.zeros((int(memory.kernel.rank(key_size)), value_size), keys.dtype)
        numbers = numbers if initial is None else initial
    else:
        numbers = jnp.zeros((len(keys), value_size), keys.dtype)
    return Point(numbers, keys, jnp.zeros_like(numbers), numbers)


def features(memory: Memory, point: Point, key: Any) -> Any:
    """What the numbers are multiplied with at a key."""
    if memory.kernel.is_finite():
        return memory.kernel.features(key)
    similar = jnp.stack([memory.kernel(k, key) for k in point.keys])
    return jnp.where(jnp.arange(len(similar)) < point.written, similar, 0)


def says(memory: Leaf, point: Point, numbers: Any, key: Any, value_size: int) -> Any:
    """The value at a key of the function that these numbers are."""
    if isinstance(memory, Network):
        return memory.answer(numbers, key, value_size)
    gate = retention(memory)
    matrix = numbers if gate is None else gate.mirror(numbers)
    return features(memory, point, key) @ matrix


def read(memory: Leaf, point: Point, query: Any, value_size: int) -> Any:
    """The answer to a query."""
    top, scale = memory.read.top(), memory.read.core().scale
    if top is None or not isinstance(memory, Memory):
        return scale * says(memory, point, point.numbers, query, value_size)
    weights = features(memory, point, query)
    if blocks_of(memory.read) is not None:
        atoms = [(i, point.keys[i], 0.0) for i in range(point.written)]
        read = jnp.asarray(in_blocks(memory, atoms, query), bool)
        return scale * (weights[: point.written] * read) @ point.numbers[: point.written]
    by = ranked_by(memory.read)
    height = weights if by is None else jnp.stack([by(k, query) for k in point.keys])
    order = jnp.argsort(jnp.where(jnp.arange(len(weights)) < point.written, -height, jnp.inf))
    chosen = order[: min(top, point.written)]
    return scale * weights[chosen] @ point.numbers[chosen]


def backwards(memory: Memory, point: Point, query: Any) -> Any:
    """The matrix times a query from the side of the values."""
    gate = retention(memory)
    matrix = point.numbers if gate is None else gate.mirror(point.numbers)
    return memory.read.core().scale * matrix @ query


def faded(memory: Leaf, numbers: Any, erase_key: Any = None) -> Any:
    """Numbers after the gate. A gate that moves keys moves the rows of a matrix."""
    for gate in forgets(memory.gate):
        if isinstance(gate, Decay | Simplex):
            numbers = jnp.exp(log_of(gate.decay)) * numbers
        elif isinstance(gate, Householder):
            found = erase_key @ numbers
            numbers = numbers - gate.rate * erase_key[:, None] * found[None, :]
        elif isinstance(gate, DiagonalDecay | KeyDecay | ValueDecay):
            axis = 1 if isinstance(gate, ValueDecay) else 0
            factor = jnp.asarray(value_of(gate.decay), numbers.dtype)
            factor = jnp.broadcast_to(factor, (numbers.shape[axis],))
            numbers = (factor[:, None] if axis == 0 else factor[None, :]) * numbers
    return numbers


def written(memories: list[Any], pairs: list[Any], point: Point) -> Point:
    """The point after a token of pairs, each with the memory of its own numbers."""
    memory, before = memories[0], point.numbers
    if descends(memory):
        point = _descended(memory, point, pairs[0])
    else:
        point = point.put(numbers=faded(memory, before, pairs[0].erase_key))
        for j, (here, pair) in enumerate(zip(memories, pairs, strict=True)):
            early = j == 0 and one(here.write).reads_before_decay()
            point = _absorbed(here, point, before if early else point.numbers, pair)
    gate = retention(memory)
    if gate is None:
        return point
    moved = gate.settle(point.numbers)
    # what a minibatch has moved stays what it is: the rest gives way
    return point.put(base=point.base + moved - point.numbers, numbers=moved)


def _absorbed(memory: Memory, point: Point, asked: Any, pair: Any) -> Point:
    """One atom a pair (two, where it is removed at another key), into a matrix."""
    write, kernel = one(memory.write), memory.kernel

    def recalled(key: Any) -> Any:
        return says(memory, point, asked, key, len(pair.value))

    def outer(key: Any, c: Any) -> Any:
        return kernel.features(key)[:, None] * c[None, :]

    norm = kernel(pair.key, pair.key)
    if isinstance(write, Delta):
        erased = recalled(write.erase_key(pair.erase_key if write.erase == "own" else pair.key))
        gone = pair.remove_key if write.remove == "own" else pair.key
        step = write.step(norm)
        move = outer(pair.key, step * write.target(pair.value)) - outer(gone, step * erased)
    else:
        answer = recalled(pair.key)
        mass = jnp.ones((), answer.dtype)
        move = outer(
            pair.key, write.coefficient(pair.value, Recalled(answer, mass, answer), norm)[0]
        )
    return point.put(numbers=point.numbers + move)


def _descended(memory: Leaf, point: Point, pair: Any) -> Point:
    """`s <- mu s - g`, and `base + gain sum(s)` over the minibatch, by what `Descent` says."""
    write: Any = memory.write
    before, size = point.numbers, len(pair.value)
    if len(point.moves) % write.minibatch == 0:
        point = point.put(base=before, moves=(), asked=before)
    base = faded(memory, point.base)
    moves = tuple(faded(memory, move) for move in point.moves)
    decayed = write.recall == "decayed"
    asked = faded(memory, point.asked) if decayed else point.asked
    latest = Step(point.written, pair.key, pair.value, write)
    recent = (*point.recent, latest)[-write.window :]

    def gradient(numbers: Any) -> Any:
        total = jnp.zeros_like(numbers)
        for p in recent:
            prediction = says(memory, point, numbers, p.key, size)
            signal = p.write.rate * p.write.loss.gradient(prediction, p.value)
            total = total + _pulled(memory, point, numbers, p, signal)
        return total

    step = -gradient(asked)
    for _ in range(write.steps - 1):
        step = step - gradient(asked + step)
    momentum = step if write.momentum is None else write.momentum * point.momentum + step
    direction = momentum
    if write.orthogonalise and isinstance(memory, Network):
        direction = memory.each_matrix(orthogonalised, momentum, len(pair.key), size)
    elif write.orthogonalise:
        direction = orthogonalised(momentum)
    moves = (*moves, direction)
    return point.put(
        numbers=base + write.gain * sum(moves[1:], moves[0]),
        momentum=momentum,
        base=base,
        moves=moves,
        asked=asked,
        recent=recent,
        written=point.written + 1,
    )


def _pulled(memory: Leaf, point: Point, numbers: Any, p: Step, signal: Any) -> Any:
    """The derivative, by the numbers, of the function at a pair, times a signal there."""
    if isinstance(memory, Network):
        return jax.grad(lambda n: memory.answer(n, p.key, len(p.value)) @ signal)(numbers)
    if memory.kernel.is_finite():
        return memory.kernel.features(p.key)[:, None] * signal[None, :]
    return jnp.zeros_like(numbers).at[p.row].add(signal)
