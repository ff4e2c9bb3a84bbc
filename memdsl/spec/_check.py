"""The combinations that have no meaning, each refused with its reason."""

from typing import Any

from .._errors import SpecError
from ._capacity import All, Budget, Drop, Window
from ._facts import (
    decays,
    degree,
    has_nonlinear_retention,
    is_finite,
    is_nonnegative,
    is_solved,
    needs_atoms,
    needs_matrix,
    one_pair,
)
from ._gate import admissions, DiagonalDecay, ValueDecay
from ._kernel import Dot, Pullback
from ._memory import AbstractMemory, Memory, Transposed
from ._number import FromInput, Learned
from ._read import AbstractRead, Before, Normalised, TopK
from ._slots import slots
from ._write import Delta, Descent, Hebb, Repeated, Reweight, Ridge


def check_memory(memory: Memory) -> None:
    """Raises `SpecError` for a memory that means nothing."""
    for check in (_kernel, _read, _ridge, _capacity, _write, _initial):
        check(memory)


def _kernel(m: Memory) -> None:
    name = type(m.kernel).__name__
    diagonal = any(isinstance(g, DiagonalDecay) for g in decays(m))
    if diagonal and not is_finite(m.kernel):
        raise SpecError(
            f"DiagonalDecay needs coordinates, and {name} has none.",
            where=m,
            at="gate",
            why=f"A diagonal gate scales each feature of a key; {name} has infinitely many features.",
            instead="Decay(...) scales the whole function, or .random_features(256) on the kernel "
            "makes them finite.",
        )
    if needs_matrix(m) and not is_finite(m.kernel):
        at = "initial" if m.initial is not None else "write"
        at = "gate" if has_nonlinear_retention(m) else at
        raise SpecError(
            f"{_part(m, at)} needs a matrix, and {name} has infinitely many features.",
            where=m,
            at=at,
            why="It acts on the numbers of a matrix, and this memory keeps atoms.",
            instead="a kernel of finite rank, such as Dot() or RBF(1.0).random_features(256).",
        )
    if needs_matrix(m) and needs_atoms(m):
        at = "gate" if admissions(m.gate) else "capacity"
        at = "read" if at == "capacity" and isinstance(m.capacity, All) else at
        raise SpecError(
            f"{_part(m, at)} keeps atoms, and another part of this memory needs a matrix.",
            where=m,
            at=at,
            why="DiagonalDecay, orthogonalise, SoftThreshold, LqNorm, Simplex and initial speak of "
            "the coordinates of a matrix, in which atoms have dissolved.",
            instead="All() with Always() and a plain read; or Decay(...), which atoms obey too.",
        )


def _part(m: Memory, at: str) -> str:
    return repr(getattr(m, at)) if at != "initial" else "A learned initial state"


def _read(m: Memory) -> None:
    if m.read.needs_mass() and not is_nonnegative(m.kernel):
        raise SpecError(
            f"Normalised divides by a mass, and {m.kernel!r} can make it 0 or negative.",
            where=m,
            at="kernel",
            why="A weighted mean needs weights that are never below 0.",
            instead="a positive feature, .pullback(EluPlusOne()), an Exp(...) or a radial kernel; "
            "or Evaluate() as the read.",
        )
    if m.read.needs_mass() and any(isinstance(g, DiagonalDecay | ValueDecay) for g in decays(m)):
        diagonal = any(isinstance(g, DiagonalDecay) for g in decays(m))
        if not diagonal:
            raise SpecError(
                "ValueDecay fades values and not the mass, so Normalised would divide by too much.",
                where=m,
                at="gate",
                instead="Decay(...), which fades both.",
            )
    top = m.read.top()
    if top is not None and top > m.capacity.slots():
        raise SpecError(
            f"TopK({top}) reads more atoms than are kept, {m.capacity.slots():g}.",
            where=m,
            at="read",
            instead="a smaller count, or a larger capacity.",
        )
    if has_nonlinear_retention(m) and m.read.needs_mass():
        raise SpecError(
            f"{m.gate!r} acts on a matrix of values, and has no meaning for the mass.",
            where=m,
            at="gate",
            instead="Evaluate() as the read.",
        )

    if _has_bonus(m.read) and not _linear_keys(m):
        raise SpecError(
            "A bonus weighs the channels of a key, and this kernel has none of its own.",
            where=m,
            at="read",
            why="It lets the token's own pair through as (bonus k) . q.",
            instead="Dot() or Dot().pullback(...), or Before without a bonus.",
        )


def _ridge(m: Memory) -> None:
    write = m.write
    if not is_solved(m) or not isinstance(write, Ridge):
        return
    if m.read.needs_mass():
        raise SpecError(
            "Ridge has no mass to divide by.",
            where=m,
            at="read",
            why="A solved memory answers with the minimiser itself; its weights may be negative.",
            instead="Evaluate().",
        )
    if m.read.top() is not None:
        raise SpecError(
            "TopK cannot read a solved memory.",
            where=m,
            at="read",
            why="Every coefficient of the minimiser depends on every pair.",
            instead="Evaluate(), with Budget(n) or Window(n) to bound the pairs.",
        )
    if any(isinstance(g, DiagonalDecay | ValueDecay) for g in decays(m)) or has_nonlinear_retention(
        m
    ):
        raise SpecError(
            "Ridge forgets whole pairs, not channels.",
            where=m,
            at="gate",
            why="The decay of a ridge problem is the weight of a pair in its sum.",
            instead="Decay(...).",
        )
    if isinstance(m.capacity, Budget) and not isinstance(m.capacity.merge, Drop):
        raise SpecError(
            f"{m.capacity.merge!r} adds coefficients, and Ridge keeps targets.",
            where=m,
            at="capacity",
            why="The sum of two targets is not a target.",
            instead="merge=Drop().",
        )
    strength = write.strength
    if isinstance(strength, Learned) and strength.per == "key_channel" and needs_atoms(m):
        raise SpecError(
            "A ridge strength per key channel needs a matrix.",
            where=m,
            at="write",
            instead='Learned(..., per="head").',
        )
    if m.initial is not None:
        raise SpecError(
            "Ridge has no single initial state to learn.",
            where=m,
            at="initial",
            why="Its state is a Gram matrix and a right-hand side.",
            instead="no initial; add another memory with +.",
        )


def _capacity(m: Memory) -> None:
    if isinstance(m.capacity, Window) and admissions(m.gate):
        raise SpecError(
            "A window is of tokens, and an admission gate leaves tokens out.",
            where=m,
            at="gate",
            instead=f"Budget({m.capacity.size}, evict=Oldest()), which counts admitted atoms.",
        )
    one = one_pair(m.write)
    windowed = isinstance(one, Descent) and one.window > 1
    if windowed and admissions(m.gate):
        raise SpecError(
            "A Descent over a window needs its pairs to be stored.",
            where=m,
            at="gate",
            why="It goes back to the latest pairs; one that was not admitted has no atom to move.",
            instead="no admission gate, or window=1.",
        )
    if windowed and needs_atoms(m) and not isinstance(m.capacity, All):
        raise SpecError(
            "A Descent over a window needs its pairs to stay where they are.",
            where=m,
            at="capacity",
            why="It goes back to the latest pairs; an evicted or merged atom has no place any more.",
            instead="All(), or Delta with this capacity.",
        )


def _write(m: Memory) -> None:
    write = one_pair(m.write)
    if isinstance(write, Reweight) and not m.read.needs_mass():
        raise SpecError(
            "Reweight is the gradient of a normalised read.",
            where=m,
            at="read",
            instead="Normalised(prior=1.0), so that an empty memory has a mass.",
        )
    core = m.read.core()
    no_prior = isinstance(core, Normalised) and core.prior == 0
    if isinstance(write, Reweight) and no_prior:
        raise SpecError(
            "Reweight divides by the mass at a key, and an empty memory without a prior has none.",
            where=m,
            at="read",
            instead="Normalised(prior=1.0).",
        )
    if isinstance(write, Delta) and write.on == "atoms" and m.read.needs_mass():
        raise SpecError(
            'Delta(on="atoms") moves the values of atoms, and has no rule for their masses.',
            where=m,
            at="write",
            instead="Evaluate() as the read.",
        )
    if isinstance(write, Delta) and write.on == "atoms" and isinstance(m.write, Repeated):
        raise SpecError('Delta(on="atoms") cannot be repeated within a token.', where=m, at="write")
    if isinstance(write, Delta) and write.erase_gate is not None and not _linear_keys(m):
        raise SpecError(
            "An erase gate scales the channels of a key, and this kernel has none of its own.",
            where=m,
            at="write",
            why="The gated key is no key of the kernel's space.",
            instead="Dot() or Dot().pullback(...).",
        )
    if isinstance(write, Descent) and not write.is_plain() and m.read.needs_mass():
        raise SpecError(
            "Momentum, windows and orthogonalised steps are defined for reads that do not divide.",
            where=m,
            at="read",
            instead="Evaluate().",
        )
    if isinstance(write, Descent) and write.steps > 1 and degree(write) > 0 and m.read.needs_mass():
        raise SpecError(
            "Several steps on one pair are defined for reads that do not divide.",
            where=m,
            at="write",
            instead="steps=1, or Evaluate().",
        )
    if isinstance(write, Descent) and write.momentum is not None and admissions(m.gate):
        raise SpecError(
            "Momentum goes on moving the memory at tokens that the gate keeps out.",
            where=m,
            at="gate",
            instead="no admission gate, or no momentum.",
        )


def _has_bonus(read: AbstractRead) -> bool:
    """Whether the read lets a token's own pair through with a bonus."""
    while isinstance(read, TopK):
        read = read.read
    return isinstance(read, Before) and read.bonus is not None


def _linear_keys(m: Memory) -> bool:
    kernel = m.kernel
    while isinstance(kernel, Pullback):
        kernel = kernel.kernel
    return isinstance(kernel, Dot)


def _initial(m: Memory) -> None:
    if m.initial is not None and m.read.needs_mass():
        raise SpecError(
            "A learned initial state has no mass.",
            where=m,
            at="initial",
            why="Normalised would divide what was learned by what was counted.",
            instead="Evaluate() as the read.",
        )


def check_transposed(spec: Transposed) -> None:
    """Raises `SpecError` where a memory cannot be read from the side of its values."""
    inner: AbstractMemory = spec.memory
    if not isinstance(inner, Memory):
        raise SpecError(
            f"transpose is of one Memory, not of {type(inner).__name__}.",
            where=inner,
            instead="the parts transposed, then combined.",
        )
    if not _linear_keys(inner) or needs_atoms(inner) or is_solved(inner):
        raise SpecError(
            "transpose needs a memory that is a matrix.",
            where=inner,
            at="kernel",
            why="Only a linear map can be read from both sides.",
            instead="Dot() or Dot().pullback(...), with All() and a write that is not solved.",
        )
    if inner.read.needs_mass():
        raise SpecError(
            "transpose needs a read that does not divide.",
            where=inner,
            at="read",
            instead="Evaluate().",
        )


def check_grown(spec: Any) -> None:
    """Raises `SpecError` for a layer that cannot grow."""
    memory = spec.memory
    if not isinstance(memory, Memory):
        raise SpecError(
            f"A layer grows by one Memory, not by {type(memory).__name__}.",
            where=spec,
            at="memory",
            instead="Memory(RBF(...), Hebb(rate=...), capacity=Budget(n)).",
        )
    write = memory.write
    if not isinstance(write, Hebb | Reweight):
        raise SpecError(
            f"{type(write).__name__} cannot grow a layer.",
            where=memory,
            at="write",
            why="The error signal is the gradient of the loss already: it is written as it is.",
            instead="Hebb(rate=...), or Reweight(...) under a normalised read.",
        )
    if memory.read.is_before() or memory.initial is not None:
        raise SpecError(
            "A growing layer is read as it stands, and starts from its base.",
            where=memory,
            at="read" if memory.read.is_before() else "initial",
            instead="a plain read, and the base for what there is at the start.",
        )
    for slot in slots(memory):
        if isinstance(slot.number, FromInput):
            raise SpecError(
                f"A growing layer has no token to read {slot.name!r} off.",
                where=memory,
                instead="a float, Knob(x) or Schedule(...).",
            )
