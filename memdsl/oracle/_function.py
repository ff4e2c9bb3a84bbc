"""The function that a memory is, as a list of atoms."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from .._errors import SpecError
from ..spec._gate import Decay, DiagonalDecay, forgets, Householder, KeyDecay, ValueDecay
from ..spec._memory import Memory
from ..spec._number import log_of, value_of
from ..spec._write import Descent, Repeated


@dataclasses.dataclass(frozen=True, eq=False)
class Atom:
    """`exp(log_weight) kernel(key, .) (value, mass)`.

    Under a `DiagonalDecay` every feature of the key has a value and a mass of its own. For `Ridge`
    the value is a target and the mass the weight of its pair.
    """

    key: Any
    value: Any
    mass: Any
    log_weight: Any
    birth: int
    usage: Any
    momentum: Any

    def put(self, **changes: Any) -> "Atom":
        """The atom with some of it changed."""
        return dataclasses.replace(self, **changes)

    def moved(self, value: Any, mass: Any = 0.0, log_weight: Any = 0.0) -> "Atom":
        """The atom with `exp(log_weight) kernel(key, .) (value, mass)` added to it; the larger of the
        two weights is its weight now."""
        value = value if jnp.ndim(value) == jnp.ndim(self.value) else value[None, :]
        peak = jnp.maximum(self.log_weight, log_weight)
        now, new = jnp.exp(self.log_weight - peak), jnp.exp(log_weight - peak)
        return self.put(
            value=now * self.value + new * value,
            mass=now * self.mass + new * mass,
            log_weight=peak,
        )


@dataclasses.dataclass(frozen=True)
class Function:
    """Atoms in the order of their slots, beside what a learned initial state has become.

    `origin` and `zero` are a key and a value of zeros.
    `seen` pairs were written and `born` atoms made since the last start; `recent` holds the latest
    pairs of a `Descent` over a window, each with the write of its own token.
    """

    atoms: tuple[Atom, ...]
    initial: Any
    origin: Any
    zero: Any
    seen: int = 0
    born: int = 0
    recent: tuple[Any, ...] = ()

    def put(self, **changes: Any) -> "Function":
        """The function with some of it changed."""
        return dataclasses.replace(self, **changes)

    def each(self, change: Any) -> "Function":
        """The function with `change` made to every atom."""
        return self.put(atoms=tuple(change(atom) for atom in self.atoms))


def one(write: Any) -> Any:
    """The write of one pair."""
    return write.write if isinstance(write, Repeated) else write


def undefined(spec: Any) -> SpecError:
    """The error about a spec that has no definition here."""
    return SpecError(
        f"The oracle does not define {type(spec).__name__} yet.",
        where=spec,
        instead="md.run, which does not need a definition atom by atom.",
    )


def plain(x: Any) -> float:
    """The number itself, to decide by."""
    return float(jax.lax.stop_gradient(x))


def is_diagonal(memory: Memory) -> bool:
    """Whether the features of a key fade one by one."""
    return any(isinstance(gate, DiagonalDecay) for gate in forgets(memory.gate))


def moves_old_atoms(write: Any) -> bool:
    """Whether a write moves atoms by a step that is more than the coefficient of a pair."""
    return isinstance(write, Descent) and not write.is_plain()


def new_atom(
    memory: Memory, function: Function, key: Any, value: Any, mass: Any, log_weight: Any = 0.0
) -> Atom:
    """An atom that no read has used yet and that has not faded."""
    one = jnp.ones((), key.dtype)
    mass, log_weight = jnp.asarray(mass, key.dtype), jnp.asarray(log_weight, key.dtype)
    if is_diagonal(memory):
        each = jnp.ones_like(memory.kernel.features(key))
        value, mass = each[:, None] * value[None, :], each * mass
    return Atom(key, value, mass, log_weight, function.born, one, jnp.zeros_like(value))


def faded(memory: Memory, function: Function, erase_key: Any) -> Function:
    """The function after the gate. An atom whose weight has become exactly 0 is gone."""
    for gate in forgets(memory.gate):
        if isinstance(gate, Decay):
            function = _times(memory, function, log_of(gate.decay))
        elif isinstance(gate, DiagonalDecay):
            function = _channels(function, value_of(gate.decay), of_keys=True)
        elif isinstance(gate, ValueDecay):
            function = _channels(function, value_of(gate.decay), of_keys=False)
        elif isinstance(gate, KeyDecay):
            function = _moved(
                function, jnp.diag(value_of(gate.decay) * jnp.ones_like(function.origin))
            )
        elif isinstance(gate, Householder):
            eye = jnp.eye(len(function.origin), dtype=function.origin.dtype)
            function = _moved(function, eye - gate.rate * jnp.outer(erase_key, erase_key))
    return function


def _moved(function: Function, transport: Any) -> Function:
    """Every key k becomes T k."""
    if function.initial is not None:
        function = function.put(initial=transport @ function.initial)
    return function.each(lambda atom: atom.put(key=transport @ atom.key))


def _times(memory: Memory, function: Function, log_factor: Any) -> Function:
    if function.initial is not None:
        function = function.put(initial=jnp.exp(log_factor) * function.initial)
    if plain(log_factor) > -jnp.inf:
        return function.each(lambda atom: atom.put(log_weight=atom.log_weight + log_factor))
    if not moves_old_atoms(one(memory.write)):
        return function.put(atoms=())
    return function.each(  # a later step may still move its coefficient
        lambda atom: atom.put(
            value=0 * atom.value, mass=0 * atom.mass, log_weight=0 * atom.log_weight
        )
    )


def _channels(function: Function, factor: Any, *, of_keys: bool) -> Function:
    factor = jnp.asarray(factor)

    def scale(matrix: Any) -> Any:
        axis = 0 if of_keys else -1
        each = jnp.broadcast_to(factor.astype(matrix.dtype), (matrix.shape[axis],))
        if matrix.ndim == 1:
            return each * matrix
        return (each[:, None] if of_keys else each[None, :]) * matrix

    def fade(atom: Atom) -> Atom:
        return atom.put(value=scale(atom.value), mass=scale(atom.mass) if of_keys else atom.mass)

    if function.initial is not None:
        function = function.put(initial=scale(function.initial))
    return function.each(fade)


def weight(memory: Memory, atom: Atom, query: Any) -> Any:
    """How much an atom says at a query, `exp(log_weight) kernel(key, query)`."""
    return jnp.exp(atom.log_weight) * memory.kernel(atom.key, query)
