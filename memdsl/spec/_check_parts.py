"""The rules of one part of a memory: its read, its write, its initial state."""

from .._errors import SpecError
from ._capacity import All, Budget, Drop, LeastUsed
from ._facts import (
    compares_by_dot,
    decays,
    degree,
    has_nonlinear_retention,
    is_nonnegative,
    is_solved,
    moves_keys,
    needs_atoms,
    one_pair,
)
from ._gate import admissions, DiagonalDecay, forgets, Simplex, Surprise, ValueDecay
from ._kernel import AbstractKernel
from ._memory import Memory
from ._number import leaves
from ._read import bonus_of, LocalLinear, Normalised
from ._read_blocks import as_given, blocks_of
from ._slots import peel
from ._write import Delta, Descent, Reweight, Ridge


def check_read(m: Memory) -> None:
    """Raises `SpecError` where the read has no meaning."""
    name = type(m.read.core()).__name__
    if m.read.needs_mass() and not is_nonnegative(m.kernel):
        declare = (
            " A kernel of your own declares nonnegative = True." if _is_foreign(m.kernel) else ""
        )
        raise SpecError(
            f"{name} divides by a mass, and {m.kernel!r} can make it 0 or negative.",
            where=m,
            at="kernel",
            why=f"A weighted mean needs weights that are never below 0.{declare}",
            instead="a positive feature, .pullback(EluPlusOne()), an Exp(...) or a radial kernel; "
            "or Evaluate() as the read.",
        )
    if m.read.needs_mass() and any(isinstance(g, ValueDecay) for g in decays(m)):
        raise SpecError(
            f"ValueDecay fades values and not the mass, so {name} would divide by too much.",
            where=m,
            at="gate",
            instead="Decay(...), which fades both.",
        )
    if m.read.needs_mass() and has_nonlinear_retention(m):
        raise SpecError(
            f"{m.gate!r} acts on a matrix of values, and has no meaning for the mass.",
            where=m,
            at="gate",
            instead="Evaluate() as the read.",
        )
    top = m.read.top()
    blocks, given = blocks_of(m.read), as_given(m.read)
    if blocks is not None and not isinstance(m.capacity, All):
        raise SpecError(
            f"TopBlocks counts the atoms of a document, and {m.capacity!r} lets some of them go.",
            where=m,
            at="capacity",
            why="A block is known by the places of its atoms, and would not be whole.",
            instead="All(); or TopK(n), which ranks atom by atom.",
        )
    if blocks is not None and blocks.group > 1 and not is_nonnegative(m.kernel):
        raise SpecError(
            f"A group of queries ranks by shares, and {m.kernel!r} can make them negative.",
            where=m,
            at="kernel",
            instead="an Exp(...) or a radial kernel; or group=1, which ranks by the kernel itself.",
        )
    if top is not None and top > m.capacity.slots():
        raise SpecError(
            f"TopK({top}) reads more atoms than are kept, {m.capacity.slots():g}.",
            where=m,
            at="read",
            instead="a smaller count, or a larger capacity.",
        )
    by_channel = any(getattr(x, "per", "") == "key_channel" for x in leaves(bonus_of(m.read)))
    if by_channel and not compares_by_dot(m.kernel):
        raise SpecError(
            f"This bonus weighs the channels of a key, and {m.kernel!r} has none of its own.",
            where=m,
            at="read",
            why="It lets (bonus * k) . q through: an inner product of the keys themselves.",
            instead='Dot() or Dot().pullback(...); or a bonus per="head", which weighs the kernel.',
        )
    if by_channel and m.read.needs_mass() and not peel(m)[1].is_nonnegative():
        raise SpecError(
            f"A bonus per channel can make weights of {m.kernel!r} negative, and {name} divides by "
            "their sum.",
            where=m,
            at="read",
            instead='a feature whose outputs are never below 0, such as Relu(); or a bonus per="head".',
        )
    write = one_pair(m.write)
    gated = isinstance(write, Delta) and write.erase_gate is not None
    if given is not None and (by_channel or gated or moves_keys(m)):
        at = "write" if gated else "gate" if moves_keys(m) else "read"
        raise SpecError(
            f"{given} keeps keys as they are given, and this {at} speaks of their channels.",
            where=m,
            at=at,
            why="What ranks need not look at the channels that are read."
            if blocks is not None
            else "There are two kernels, and what is a channel to one need not be to the other.",
            instead=f"{'group=1' if blocks is not None else 'TopK without by'}; or no number per "
            "channel, and a gate that moves no keys.",
        )
    if bonus_of(m.read) is not None and isinstance(m.read.core(), LocalLinear):
        raise SpecError(
            "A bonus adds a pair to sums, and LocalLinear fits a line through its pairs.",
            where=m,
            at="read",
            why="A pair that comes in later would turn the line.",
            instead="Before(...) without a bonus; or a read after the write, which fits it too.",
        )
    if bonus_of(m.read) is not None and is_solved(m):
        raise SpecError(
            "A bonus adds a pair to what was summed, and Ridge sums nothing.",
            where=m,
            at="read",
            instead="Before(...) without a bonus.",
        )


def _is_foreign(kernel: AbstractKernel) -> bool:
    """Whether a kernel is made of one that does not come with the library."""
    inside = [v for v in vars(kernel).values() if isinstance(v, AbstractKernel)]
    here = type(kernel).__module__.partition(".")[0] == __name__.partition(".")[0]
    return not here or any(_is_foreign(k) for k in inside)


def check_ridge(m: Memory) -> None:
    """Raises `SpecError` for parts that have no meaning beside `Ridge`."""
    write = m.write
    if not isinstance(write, Ridge):
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
            f"{m.read.choosing().partition('(')[0]} cannot read a solved memory.",
            where=m,
            at="read",
            why="Every coefficient of the minimiser depends on every pair.",
            instead="Evaluate(), with Budget(n) or Window(n) to bound the pairs.",
        )
    channels = any(isinstance(g, DiagonalDecay | ValueDecay) for g in decays(m))
    if channels or has_nonlinear_retention(m):
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
    if isinstance(m.capacity, Budget) and isinstance(m.capacity.evict, LeastUsed):
        raise SpecError(
            "LeastUsed counts shares of a read, and what Ridge reads is no sum of stored atoms.",
            where=m,
            at="capacity",
            why="How much a pair says is known only when the problem is solved.",
            instead="evict=LeaveOneOut(), which solves it; or Oldest().",
        )
    per = [getattr(leaf, "per", None) for leaf in leaves(write.strength)]
    if "key_channel" in per and needs_atoms(m):
        raise SpecError(
            "A ridge strength per channel of the key needs a matrix, and this memory keeps atoms.",
            where=m,
            at="write",
            instead='per="head".',
        )


def check_write(m: Memory) -> None:
    """Raises `SpecError` where the write has no meaning."""
    write, mass = one_pair(m.write), m.read.needs_mass()
    core = m.read.core()
    if isinstance(write, Reweight) and not isinstance(core, Normalised):
        raise SpecError(
            "Reweight is the gradient of a normalised read.",
            where=m,
            at="read",
            instead="Normalised(prior=1.0), so that an empty memory has a mass.",
        )
    if isinstance(write, Reweight) and isinstance(core, Normalised) and core.prior == 0:
        raise SpecError(
            "Reweight divides by the mass at the key, and an empty memory has none.",
            where=m,
            at="read",
            instead="Normalised(prior=1.0), an atom that is always there.",
        )
    gradients = isinstance(write, Reweight) and write.loss is None
    if gradients and any(isinstance(g, Surprise) for g in admissions(m.gate)):
        raise SpecError(
            "Surprise measures v - f(k), and the values of Reweight are gradients.",
            where=m,
            at="gate",
            instead="Novelty(...) or Coherence(...), which look at keys.",
        )
    if isinstance(write, Delta) and write.on == "atoms" and mass:
        raise SpecError(
            'Delta(on="atoms") moves the values of atoms, and has no rule for their masses.',
            where=m,
            at="write",
            instead="Evaluate() as the read.",
        )
    if isinstance(write, Delta) and write.implicit and mass:
        raise SpecError(
            "An implicit Delta needs a read that does not divide.",
            where=m,
            at="write",
            why="Its closed form solves for a function that is linear in what is written.",
            instead="implicit=False, or Evaluate() as the read.",
        )
    if isinstance(write, Delta) and write.erase_gate is not None and not compares_by_dot(m.kernel):
        raise SpecError(
            f"An erase gate scales the channels of a key, and {m.kernel!r} has none of its own.",
            where=m,
            at="write",
            why="A gated key is a key only where the kernel is an inner product.",
            instead="Dot() or Dot().pullback(...).",
        )
    if isinstance(write, Descent) and not write.is_plain() and mass:
        raise SpecError(
            "Momentum, windows, minibatches, gains and orthogonalised steps are defined for reads that "
            "do not divide.",
            where=m,
            at="read",
            instead="Evaluate().",
        )
    if isinstance(write, Descent) and write.steps > 1 and degree(write) > 0 and mass:
        raise SpecError(
            "Several steps on one pair are defined for reads that do not divide.",
            where=m,
            at="write",
            why="What the second step sees of the first is linear only without a division.",
            instead="steps=1, or Evaluate() as the read.",
        )
    implicit = isinstance(write, Delta) and write.implicit
    several = isinstance(write, Descent) and write.steps > 1 and degree(write) > 0
    if has_nonlinear_retention(m) and (implicit or several):
        raise SpecError(
            f"{m.gate!r} does not go with {'an implicit Delta' if implicit else 'several steps'}.",
            where=m,
            at="write",
            why="Its closed form solves for a function that is linear in what is written, and what is "
            "read here is not.",
            instead="implicit=False." if implicit else "steps=1.",
        )


def check_initial(m: Memory) -> None:
    """Raises `SpecError` where a learned initial state has no meaning."""
    if m.initial is None:
        return
    if isinstance(m.write, Ridge):
        raise SpecError(
            "Ridge has no single initial state to learn.",
            where=m,
            at="initial",
            why="Its state is a Gram matrix and a right-hand side.",
            instead="no initial; add another memory with +.",
        )
    if m.read.needs_mass():
        raise SpecError(
            "A learned initial state has no mass.",
            where=m,
            at="initial",
            why="Normalised would divide what was learned by what was counted.",
            instead="Evaluate() as the read.",
        )
    if any(isinstance(g, Simplex) for g in forgets(m.gate)):
        raise SpecError(
            "A learned initial state need not be a distribution, as Simplex asks of every row.",
            where=m,
            at="initial",
            instead="no initial; a simplex starts uniform.",
        )
    if m.initial.per.endswith("channel"):
        raise SpecError(
            "A learned initial state is a whole matrix, not one number per channel.",
            where=m,
            at="initial",
            instead='Learned(), one matrix a head; or Learned(per="layer").',
        )
