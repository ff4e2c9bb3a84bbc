"""The combinations that have no meaning, each refused with its reason: what must be kept, and how.

Every rule is a function of a whole memory. Those about one part and its neighbours are in
`_check_parts`, those about what is outside a `Memory` in `_check_outside`.
"""

from typing import Any

from .._errors import SpecError
from ._base import Spec
from ._capacity import All, Budget, Project, Window
from ._check_grown import check_grown as check_grown
from ._check_outside import (
    check_level as check_level,
    check_network as check_network,
    check_transposed as check_transposed,
)
from ._check_parts import check_initial, check_read, check_ridge, check_write
from ._check_transport import check_transport
from ._facts import (
    compares_by_dot,
    has_nonlinear_retention,
    is_finite,
    one_pair,
    retention,
)
from ._gate import (
    AbstractAdmission,
    AbstractForget,
    AbstractRetention,
    admissions,
    Decay,
    DiagonalDecay,
    forgets,
    parts,
    Simplex,
    transports,
    ValueDecay,
)
from ._kernel import AbstractKernel
from ._memory import Memory
from ._read import Backwards, LocalLinear
from ._write import Delta, Descent, GaussSeidel, Ridge


def check_memory(memory: Memory) -> None:
    """Raises `SpecError` for a memory that means nothing."""
    parts = check_read, check_ridge, _capacity, check_write, check_initial
    for check in (_gate, _matrix, check_transport, *parts):
        check(memory)


def _gate(m: Memory) -> None:
    for gate in parts(m.gate):
        if not isinstance(gate, AbstractForget | AbstractAdmission):
            raise SpecError(
                f"{gate!r} neither forgets nor admits.",
                where=m,
                at="gate",
                why="A gate of your own lets pairs in: that is all that is asked of it.",
                instead=f"class {type(gate).__name__}(AbstractAdmission), with a method admits.",
            )
    nonlinear = [g for g in forgets(m.gate) if isinstance(g, AbstractRetention)]
    if len(nonlinear) > 1:
        first, second = nonlinear[:2]
        raise SpecError(
            f"{first!r} and {second!r} do not go together.",
            where=m,
            at="gate",
            why="Each says what the numbers of the matrix are, and they cannot be both.",
            instead="one of them.",
        )
    fading = [g for g in forgets(m.gate) if isinstance(g, Decay | DiagonalDecay | ValueDecay)]
    if fading and nonlinear and isinstance(nonlinear[0], Simplex):
        raise SpecError(
            f"{fading[0]!r} does not go with Simplex.",
            where=m,
            at="gate",
            why="The rows of a simplex add up to a constant, so what fades is their logarithm.",
            instead="Simplex(decay), which does that.",
        )


def _matrix(m: Memory) -> None:
    needs_matrix, needs_atoms = _what_needs_a_matrix(m), _what_keeps_atoms(m)
    if needs_matrix is None:
        return
    at, name, what_it_does = needs_matrix
    if not is_finite(m.kernel) and name == "DiagonalDecay":
        raise SpecError(
            f"DiagonalDecay needs coordinates, and {m.kernel!r} has none.",
            where=m,
            at="gate",
            why=f"A diagonal gate scales each feature of a key; {m.kernel!r} has infinitely many.",
            instead=f"Decay(...), which scales the whole function; or {_made_finite(m.kernel)}.",
        )
    if not is_finite(m.kernel):
        raise SpecError(
            f"{name} needs a matrix, and {m.kernel!r} has infinitely many features.",
            where=m,
            at=at,
            why=f"{what_it_does}, and this memory keeps atoms.",
            instead=f"{_made_finite(m.kernel)}.",
        )
    if needs_atoms is not None:
        field, other = needs_atoms
        fade = "; or Decay(...), which atoms obey too" if name == "DiagonalDecay" else ""
        raise SpecError(
            f"{name} needs a matrix, and {other} keeps atoms.",
            where=m,
            at=field,
            why="Atoms dissolve in a matrix: it does not know them one by one any more.",
            instead=f"one of the two without the other{fade}.",
        )


def _what_needs_a_matrix(m: Memory) -> tuple[str, str, str] | None:
    """`(field, name, what it does)` of a part that speaks of the numbers of a matrix, if any."""
    if isinstance(m.read, Backwards):
        raise SpecError(
            "Backwards is no read of a Memory.",
            where=m,
            at="read",
            why="It is what a transposed memory is read with.",
            instead="memory.transpose().",
        )
    if any(isinstance(g, DiagonalDecay) for g in forgets(m.gate)):
        return "gate", "DiagonalDecay", "It scales the features of a key one by one"
    if has_nonlinear_retention(m):
        name = type(retention(m)).__name__
        return "gate", name, "It acts on the numbers of a matrix one by one"
    if m.initial is not None:
        return "initial", "A learned initial state", "It is a matrix that is trained"
    return None


def _what_keeps_atoms(m: Memory) -> tuple[str, str] | None:
    """`(field, name)` of a part that speaks of single atoms, if any."""
    if admissions(m.gate):
        return "gate", repr(admissions(m.gate)[0])
    if not isinstance(m.capacity, All):
        return "capacity", repr(m.capacity)
    if transports(m.gate) and not compares_by_dot(m.kernel):
        return "gate", f"{transports(m.gate)[0]!r} on {m.kernel!r}"
    write = one_pair(m.write)
    if isinstance(write, Delta) and write.on == "atoms":
        return "write", 'Delta(on="atoms")'
    if isinstance(write, Ridge) and isinstance(write.solver, GaussSeidel):
        return "write", repr(write.solver)
    if write.has_signed_masses():
        return "write", f"{type(write).__name__} with masses below 0"
    if m.read.top() is not None:
        return "read", m.read.choosing()
    if isinstance(m.read.core(), LocalLinear):
        return "read", "LocalLinear"
    return None


def _made_finite(kernel: AbstractKernel) -> str:
    try:
        kernel.random_features(256)
    except SpecError:
        return "a kernel of finite rank, such as Dot()"
    operator = kernel.binding < Spec.binding
    return f"{f'({kernel!r})' if operator else repr(kernel)}.random_features(256), which is finite"


def _capacity(m: Memory) -> None:
    admission: Any = admissions(m.gate)
    if isinstance(m.capacity, Window) and admission:
        raise SpecError(
            f"A window is of tokens, and {admission[0]!r} leaves tokens out.",
            where=m,
            at="gate",
            instead=f"Budget({m.capacity.size}, evict=Oldest()), which counts admitted atoms.",
        )
    write = one_pair(m.write)
    one_by_one = _what_keeps_atoms(m)
    decides = one_by_one is not None and one_by_one[0] in ("gate", "capacity")
    returns = isinstance(write, Descent) and (write.window > 1 or write.minibatch > 1)
    if isinstance(write, Descent) and returns and one_by_one and decides:
        name = "window" if write.window > 1 else "minibatch"
        raise SpecError(
            f"A Descent over a {name} needs its pairs to stay where they are.",
            where=m,
            at=one_by_one[0],
            why="It goes back to the latest pairs, and a pair that is not kept has no coefficient "
            "that could move.",
            instead=f"All() and no admission gate; or {name}=1.",
        )
    if isinstance(write, Delta) and write.remove == "own" and one_by_one and decides:
        raise SpecError(
            f'Delta(remove="own") writes two atoms a token, and {one_by_one[1]} decides about one.',
            where=m,
            at=one_by_one[0],
            why="The value could be kept without its removal, or the removal without its value.",
            instead='All() and no admission gate; or remove="key".',
        )
    if isinstance(write, Descent) and write.momentum is not None and admission:
        raise SpecError(
            f"Momentum goes on moving the memory at tokens that {admission[0]!r} keeps out.",
            where=m,
            at="gate",
            instead="no admission gate, or no momentum.",
        )
    projects = isinstance(m.capacity, Budget) and isinstance(m.capacity.merge, Project)
    if projects and m.read.needs_mass():
        raise SpecError(
            f"Project spreads masses with either sign, and {type(m.read.core()).__name__} divides by "
            "their sum.",
            where=m,
            at="capacity",
            why="A projection has negative shares, so that the sum can be 0 or negative.",
            instead="merge=AddToNearest() or merge=Drop(); or Evaluate() as the read.",
        )
