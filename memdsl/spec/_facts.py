"""Facts about specs, by recursion. A new question is a new function, not a new method."""

import math
from typing import Any

from ._base import children, Spec
from ._capacity import All, Budget, LeaveOneOut, Window
from ._gate import (
    AbstractRetention,
    admissions,
    Decay,
    DiagonalDecay,
    forgets,
    transports,
    ValueDecay,
)
from ._kernel import AbstractKernel, Dot, Pullback
from ._memory import AbstractMemory, Leaf, Memory, Network, Rewired
from ._read import Backwards, LocalLinear
from ._write import AbstractWrite, Delta, Descent, GaussSeidel, Repeated, Ridge


def is_finite(kernel: AbstractKernel) -> bool:
    """Whether the kernel has finitely many features, so that a memory of it can be a matrix."""
    return kernel.is_finite()


def is_nonnegative(kernel: AbstractKernel) -> bool:
    """Whether the kernel is never below 0, so that its weights can be normalised."""
    return kernel.is_nonnegative()


def is_bounded(kernel: AbstractKernel) -> bool:
    """Whether `kernel(k, k)` is bounded over all keys, so that one step size is safe for all."""
    return kernel.is_bounded()


def rank(kernel: AbstractKernel, key_size: int) -> float:
    """The number of features of the kernel on keys of a size, or `inf`."""
    return kernel.rank(key_size)


def degree(write: AbstractWrite) -> float:
    """How a write depends on what it recalls: 0 not at all, 1 affinely, `inf` otherwise."""
    return write.get_degree()


def is_additive(memory: Memory) -> bool:
    """Whether every pair is written without looking at the memory."""
    return degree(memory.write) == 0


def is_affine(memory: Memory) -> bool:
    """Whether the state after a token is an affine function of the state before it."""
    d = degree(memory.write)
    return d == 0 or (d == 1 and not memory.read.needs_mass())


def is_solved(memory: Memory) -> bool:
    """Whether the memory is the minimiser of a ridge problem."""
    return isinstance(memory.write, Ridge)


def decays(memory: Leaf) -> tuple[Any, ...]:
    """The decays of the gate."""
    return tuple(
        g for g in forgets(memory.gate) if isinstance(g, Decay | DiagonalDecay | ValueDecay)
    )


def retention(memory: Leaf) -> AbstractRetention | None:
    """The gate that acts on the numbers of the matrix one by one, if there is one."""
    return next((g for g in forgets(memory.gate) if isinstance(g, AbstractRetention)), None)


def has_nonlinear_retention(memory: Memory) -> bool:
    """Whether the gate acts on the numbers of the matrix one by one, not on the function."""
    return retention(memory) is not None


def descends(memory: Leaf) -> bool:
    """Whether the write is a descent that remembers more than the function, or trains a network."""
    write = one_pair(memory.write)
    return isinstance(write, Descent) and (isinstance(memory, Network) or not write.is_plain())


def needs_matrix(memory: Memory) -> bool:
    """Whether a part of the memory speaks of the features of a key, so that it must be a matrix."""
    diagonal = any(isinstance(g, DiagonalDecay) for g in forgets(memory.gate))
    from_both_sides = isinstance(memory.read, Backwards)
    learned = memory.initial is not None
    return diagonal or has_nonlinear_retention(memory) or learned or from_both_sides


def needs_atoms(memory: Memory) -> bool:
    """Whether the atoms must be kept: an infinite kernel, a bound on them, or a rule about them."""
    write = memory.write
    on_atoms = isinstance(write, Delta) and write.on == "atoms"
    on_pairs = isinstance(write, Ridge) and isinstance(write.solver, GaussSeidel)
    guarded = one_pair(write).has_signed_masses()  # by the size of every mass
    return (
        not is_finite(memory.kernel)
        or (moves_keys(memory) and not compares_by_dot(memory.kernel))
        or not isinstance(memory.capacity, All)
        or bool(admissions(memory.gate))
        or memory.read.top() is not None
        or isinstance(memory.read.core(), LocalLinear)
        or on_atoms
        or on_pairs
        or guarded
    )


def slots(memory: Memory) -> float:
    """How many atoms are held at most, `inf` where nothing bounds them."""
    capacity = memory.capacity
    extra = isinstance(capacity, Budget) and isinstance(capacity.evict, LeaveOneOut)
    return capacity.slots() + extra


def is_windowed(memory: Memory) -> bool:
    """Whether the latest atoms are kept and nothing else decides."""
    return isinstance(memory.capacity, Window)


def pairs_per_token(write: AbstractWrite) -> int:
    """How many pairs a token writes."""
    return write.count if isinstance(write, Repeated) else 1


def one_pair(write: AbstractWrite) -> AbstractWrite:
    """The write of one pair."""
    return write.write if isinstance(write, Repeated) else write


def own_keys(memory: Leaf) -> tuple[str, ...]:
    """The further streams of keys that a memory takes: `erase_keys`, `remove_keys`."""
    inner = one_pair(memory.write)
    moved = tuple(name for gate in transports(memory.gate) for name in gate.own_keys())
    if not isinstance(inner, Delta):
        return tuple(dict.fromkeys(moved))
    streams = [("erase_keys", inner.erase), ("remove_keys", inner.remove)]
    written = tuple(name for name, choice in streams if choice == "own")
    return tuple(dict.fromkeys((*written, *moved)))


def needed_keys(memory: AbstractMemory) -> set[str]:
    """The further streams of keys that a memory and all its parts must be given."""
    if isinstance(memory, Memory | Network):
        return set(own_keys(memory))
    if isinstance(memory, Rewired):
        given = {f"{name}_keys" for name in memory.streams()}
        within = needed_keys(memory.memory) - given
        return within.union(*(needed_keys(part) for _, part in memory.answers()))
    parts = [part for _, part in children(memory) if isinstance(part, AbstractMemory)]
    return set().union(*(needed_keys(part) for part in parts))


def writes_of(memory: Any) -> list[AbstractWrite]:
    """The writes of all parts of a memory."""
    if isinstance(memory, Memory | Network):
        return [memory.write]
    return [
        write for _, part in children(memory) if isinstance(part, Spec) for write in writes_of(part)
    ]


def moves_keys(memory: Leaf) -> bool:
    """Whether the gate moves the stored keys."""
    return bool(transports(memory.gate))


def compares_by_dot(kernel: AbstractKernel) -> bool:
    """Whether the kernel is the inner product of its (mapped) keys."""
    while isinstance(kernel, Pullback):
        kernel = kernel.kernel
    return isinstance(kernel, Dot)


def is_unbounded(memory: Memory) -> bool:
    """Whether the number of atoms grows without end."""
    return needs_atoms(memory) and slots(memory) == math.inf
