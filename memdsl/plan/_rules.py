"""The rules that come with the library."""

from ..run._recurrent import recurrent
from ..spec._facts import has_nonlinear_retention, is_finite, is_solved, needs_atoms, needs_matrix
from ..spec._memory import Memory
from ..spec._write import Descent
from ._dims import Dims
from ._rule import Cost, Requirement, Rule


def _not_defined_yet(m: Memory) -> bool:
    muon = isinstance(m.write, Descent) and m.write.orthogonalise
    return not muon and not has_nonlinear_retention(m)


LINEAR = Requirement(
    _not_defined_yet, "orthogonalised steps and nonlinear retentions have no execution yet"
)
FINITE = Requirement(lambda m: is_finite(m.kernel), "the kernel has infinitely many features")
NO_ATOMS = Requirement(
    lambda m: not needs_atoms(m) or not is_finite(m.kernel),
    "a window, a budget, an admission gate or a read of the nearest speaks of single atoms",
)
UNSOLVED = Requirement(lambda m: not is_solved(m), "Ridge solves for its coefficients")
SOLVED = Requirement(is_solved, "only Ridge keeps a Gram matrix")
ATOMS = Requirement(
    lambda m: not needs_matrix(m), "a part of the memory speaks of the coordinates of a matrix"
)
MATRIX = (FINITE, NO_ATOMS, UNSOLVED, LINEAR)
GRAM = (FINITE, NO_ATOMS, SOLVED, LINEAR)
BUFFER = (ATOMS, LINEAR)


def sizes(memory: Memory, dims: Dims) -> tuple[int, int, int]:
    """`(time, features or key size, value size)` for the cost model, with guesses for the unknown."""
    key, value = dims.key or 64, dims.value or 64
    features = memory.kernel.rank(key)
    return dims.time or 1024, int(features) if features < 1e9 else key, value


def _matrix_recurrent(m: Memory, dims: Dims, training: bool) -> Cost:
    time, r, v = sizes(m, dims)
    return Cost((14 if training else 5) * time * r * v, (6 if training else 0) * time * r * v, time)


def _buffer_recurrent(m: Memory, dims: Dims, training: bool) -> Cost:
    time, k, v = sizes(m, dims)
    n = min(m.capacity.slots(), time)
    solve = n**3 / 3 if is_solved(m) else 0
    one = 3 * n * (k + v) + solve
    return Cost((3 if training else 1) * time * one, (5 * training + 1) * time * n * (k + v), time)


def _gram_recurrent(m: Memory, dims: Dims, training: bool) -> Cost:
    time, r, v = sizes(m, dims)
    one = r**3 / 3 + 4 * r * (r + v)
    many = 3 if training else 1
    return Cost(many * time * one, many * time * r * (r + v), time)


RULES: tuple[Rule, ...] = (
    Rule(
        "matrix",
        "recurrent",
        MATRIX,
        _matrix_recurrent,
        recurrent,
        note="constant state; one small step a token",
    ),
    Rule(
        "gram",
        "recurrent",
        GRAM,
        _gram_recurrent,
        recurrent,
        note="constant state; one solve a token",
    ),
    Rule(
        "buffer",
        "recurrent",
        BUFFER,
        _buffer_recurrent,
        recurrent,
        note="exact for every rule about atoms",
    ),
)
