"""The function that a memory is, as a list of atoms, and what it says at a point."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from .._errors import SpecError
from ..spec._gate import Decay, DiagonalDecay, forgets, Householder, KeyDecay, ValueDecay
from ..spec._memory import Memory
from ..spec._number import log_of, value_of
from ..spec._read import LocalLinear, Normalised, ranked_by
from ..spec._read_blocks import blocks_of
from ..spec._slots import unpulled
from ..spec._write import Descent, GaussSeidel, Recalled, Repeated, Ridge
from ._blocks import in_blocks


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

    def moved(self, value: Any, mass: Any = 0.0) -> "Atom":
        """The atom with `kernel(key, .) (value, mass)` added to it, its weight taken in: 1 again."""
        value = value if jnp.ndim(value) == jnp.ndim(self.value) else value[None, :]
        now = jnp.exp(self.log_weight)
        return self.put(
            value=now * self.value + value,
            mass=now * self.mass + mass,
            log_weight=jnp.zeros_like(self.log_weight),
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
    """Whether a write goes back to atoms of earlier tokens."""
    return isinstance(write, Descent) and (write.window > 1 or write.momentum is not None)


def new_atom(memory: Memory, function: Function, key: Any, value: Any, mass: Any) -> Atom:
    """An atom that no read has used yet and that has not faded."""
    one, zero = jnp.ones((), key.dtype), jnp.zeros((), key.dtype)
    mass = jnp.asarray(mass, key.dtype)
    if is_diagonal(memory):
        each = jnp.ones_like(memory.kernel.features(key))
        value, mass = each[:, None] * value[None, :], each * mass
    return Atom(key, value, mass, zero, function.born, one, jnp.zeros_like(value))


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


def evaluate(memory: Memory, function: Function, query: Any, top: int | None = None) -> Recalled:
    """N, D and the answer at a query, before any scale of the read; a prior counts as mass.

    Both sums of a normalised read are taken relative to their largest term, so that the answer is
    right where they would both be 0.
    """
    write, read = one(memory.write), memory.read.core()
    if isinstance(write, Ridge):
        return _alone(_solved_at(memory, write, function, query))
    atoms = function.atoms if top is None else nearest(memory, function, query, top)
    if isinstance(read, LocalLinear):
        return fitted(memory, function, atoms, query, read.ridge)
    if not isinstance(read, Normalised):
        value = function.zero
        for atom in atoms:
            value = value + _at(memory, atom, query)[0]
        if function.initial is not None:
            value = value + memory.kernel.features(query) @ function.initial
        return _alone(value)
    value, mass, shift = sums(memory, function, atoms, query, read.prior)
    answer = ratio(value, mass + relative(read.prior, shift))
    return Recalled(value * jnp.exp(shift), mass * jnp.exp(shift) + read.prior, answer)


def sums(
    memory: Memory, function: Function, atoms: tuple[Atom, ...], query: Any, prior: Any
) -> tuple[Any, Any, Any]:
    """`(N, D, shift)` of a normalised read: the true sums are `exp(shift)` times these."""
    value, mass, shift = function.zero, jnp.zeros((), query.dtype), jnp.zeros((), query.dtype)
    if not memory.kernel.is_exponential() or is_diagonal(memory):
        for atom in atoms:
            n, d = _at(memory, atom, query)
            value, mass = value + n, mass + d
        return value, mass, shift
    logs = [atom.log_weight + memory.kernel.log(atom.key, query) for atom in atoms]
    known = jax.lax.stop_gradient(jnp.asarray(prior, query.dtype))
    peak = jnp.max(jnp.stack([*jax.lax.stop_gradient(logs), jnp.log(known)]))
    shift = jnp.where(jnp.isfinite(peak), peak, 0)
    for log, atom in zip(logs, atoms, strict=True):
        value, mass = (
            value + jnp.exp(log - shift) * atom.value,
            mass + jnp.exp(log - shift) * atom.mass,
        )
    return value, mass, shift


def fitted(
    memory: Memory, function: Function, atoms: tuple[Atom, ...], query: Any, ridge: Any
) -> Recalled:
    """The value at the query of the line through the atoms around it, and their mass there.

    The line is the `a + B z`, `z = k - q`, with the least `sum_i s_i (m_i |a + B z_i|^2 - 2 c_i . (a +
    B z_i)) + ridge |B|^2`, s the weights: for `c = m v` that is the squared error to the values v. Its
    normal equations are written out, relative to the largest weight.
    """
    value, mass, shift = sums(memory, function, atoms, query, 0.0)
    _, feature = unpulled(memory.kernel)
    size = len(feature(query))
    ridges = jnp.full(size, jnp.asarray(ridge, query.dtype) * jnp.exp(-shift))
    left = jnp.diag(jnp.concatenate([jnp.zeros(1, query.dtype), ridges]))
    right = jnp.zeros((1 + size, len(value)), value.dtype)
    for atom in atoms:
        if memory.kernel.is_exponential():
            s = jnp.exp(atom.log_weight + memory.kernel.log(atom.key, query) - shift)
        else:
            s = weight(memory, atom, query)
        z = jnp.concatenate([jnp.ones(1, query.dtype), feature(atom.key) - feature(query)])
        left = left + s * atom.mass * jnp.outer(z, z)
        right = right + s * jnp.outer(z, atom.value)
    eye = jnp.eye(1 + size, dtype=query.dtype)
    line = jnp.linalg.solve(jnp.where(mass == 0, eye, left), right)
    answer, mass = jnp.where(mass == 0, 0, line[0]), mass * jnp.exp(shift)
    return Recalled(mass * answer, mass, answer)


def relative(prior: Any, shift: Any) -> Any:
    """`exp(-shift) prior`, whatever the shift; 0 where there is no prior."""
    prior = jnp.asarray(prior, shift.dtype)
    return jnp.where(prior > 0, jnp.exp(jnp.log(jnp.where(prior > 0, prior, 1)) - shift), 0)


def ratio(value: Any, mass: Any) -> Any:
    """`value / mass`, and 0 where there is no mass."""
    return jnp.where(mass == 0, 0, value / jnp.where(mass == 0, 1, mass))


def _alone(value: Any) -> Recalled:
    return Recalled(value, jnp.ones((), value.dtype), value)


def _at(memory: Memory, atom: Atom, query: Any) -> tuple[Any, Any]:
    """What one atom adds to N and D."""
    if is_diagonal(memory):
        both = memory.kernel.features(atom.key) * memory.kernel.features(query)
        both = jnp.exp(atom.log_weight) * both
        return both @ atom.value, both @ atom.mass
    w = weight(memory, atom, query)
    return w * atom.value, w * atom.mass


def nearest(memory: Memory, function: Function, query: Any, top: int) -> tuple[Atom, ...]:
    """The atoms with the largest weights at the query (of equals, the lowest slots), or in blocks."""
    if blocks_of(memory.read) is not None:
        known = [(a.birth, a.key, a.log_weight) for a in function.atoms]
        read = in_blocks(memory, known, query)
        return tuple(a for a, is_read in zip(function.atoms, read, strict=True) if is_read)
    by = ranked_by(memory.read) or memory.kernel

    def height(atom: Atom) -> float:
        return plain(jnp.exp(atom.log_weight) * by(atom.key, query))

    return tuple(sorted(function.atoms, key=lambda a: -height(a)))[:top]


def solved(memory: Memory, function: Function) -> tuple[Any, Any]:
    """`(G, U)` of a `Ridge` problem, whose minimiser is `sum_i g(k_i, .) u_i`.

    With the strength taken into the kernel, g = kernel / strength (feature by feature where it
    differs by channel), the problem is `sum_i w_i |f(k_i) - v_i|^2 + |f|^2`, so that
    `(G + W^-1) U = V`.
    """
    write, atoms = one(memory.write), function.atoms
    gram = _gram(memory, write, function)
    weights = jnp.stack([atom.mass * jnp.exp(atom.log_weight) for atom in atoms])
    values = jnp.stack([atom.value for atom in atoms])
    if not isinstance(write.solver, GaussSeidel):
        eye = jnp.eye(len(atoms), dtype=gram.dtype)
        u = jnp.linalg.solve(weights[:, None] * gram + eye, weights[:, None] * values)
        return gram, u
    u = [jnp.zeros_like(value) for value in values]
    for _ in range(write.solver.sweeps):
        for i, value in enumerate(values):
            u[i] = jnp.zeros_like(value)
            rest = value - gram[i] @ jnp.stack(u)
            u[i] = weights[i] * rest / (weights[i] * gram[i, i] + 1)
    return gram, jnp.stack(u)


def _gram(memory: Memory, write: Ridge, function: Function) -> Any:
    keys = [atom.key for atom in function.atoms]
    if jnp.ndim(write.strength) == 0:
        return jnp.stack([similarities(memory, write, function, key) for key in keys])
    features = jnp.stack([memory.kernel.features(key) for key in keys])
    return features / jnp.asarray(write.strength)[None, :] @ features.T


def similarities(memory: Memory, write: Ridge, function: Function, query: Any) -> Any:
    """`kernel / strength` of every atom with a query."""
    strength, kernel = write.strength, memory.kernel
    if jnp.ndim(strength) == 0:
        return jnp.stack([kernel(atom.key, query) / strength for atom in function.atoms])
    features = kernel.features(query) / strength
    return jnp.stack([kernel.features(atom.key) @ features for atom in function.atoms])


def _solved_at(memory: Memory, write: Ridge, function: Function, query: Any) -> Any:
    if not function.atoms:
        return function.zero
    _, u = solved(memory, function)
    return similarities(memory, write, function, query) @ u
