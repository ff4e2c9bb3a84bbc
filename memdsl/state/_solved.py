"""A ridge problem with its solution beside it, so that a read costs what any sum of atoms does.

A sequence is written and read at every token, and solved at every read. A growing layer is written
once a batch and read all the time, so that it is solved when it is written.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .._linalg import cholesky, solve_by, solve_lower
from ..spec._base import rebuild
from ..spec._memory import Memory
from ..spec._write import Hebb
from ._buffer import BufferState
from ._descent import DescentState
from ._gram import GramState
from ._matrix import MatrixState


_HIGHEST = jax.lax.Precision.HIGHEST


class SolvedState(eqx.Module):
    """The pairs of a ridge problem, and the function that was solved from them."""

    problem: BufferState | GramState
    """The pairs with their targets, as a sequence would keep them."""
    solution: Float[Array, "*layer row value"]
    """The coefficients of the atoms, or of the features."""
    factor: Float[Array, "*layer row row"] | None
    """The lower Cholesky factor of `K + strength` over the slots, where a solve can go on from the last
    one; a row of an empty slot is one of a diagonal matrix."""

    @property
    def count(self) -> Array:
        """How often it was written."""
        return self.problem.count

    @property
    def function(self) -> BufferState | MatrixState:
        """The solution, as any memory that is a sum keeps it."""
        problem = self.problem
        if isinstance(problem, GramState):
            return MatrixState(self.solution, None, problem.count)
        weights = jnp.where(problem.valid, 0, problem.log_weight)
        return problem.put(values=self.solution, log_weight=weights)


def function_of(state: Any) -> BufferState | MatrixState:
    """The function that a state answers with, without what is kept beside it."""
    if isinstance(state, SolvedState):
        return state.function
    return state.parts()["function"] if isinstance(state, DescentState) else state


def as_sum(memory: Memory, state: Any) -> tuple[Memory, BufferState | MatrixState]:
    """What answers a query: a memory that is a sum of what it holds, and no problem to be solved."""
    solved = isinstance(state, SolvedState)
    return rebuild(memory, {"write": _ADDED}) if solved else memory, function_of(state)


_ADDED = Hebb()


def unsolved(problem: BufferState | GramState, *, keeps_factor: bool) -> SolvedState:
    """An empty problem. A factor can be kept where neither kernel nor strength nor weights change."""
    if isinstance(problem, GramState):
        return SolvedState(problem, jnp.zeros_like(problem.matrix), None)
    factor = jnp.eye(len(problem.values), dtype=problem.values.dtype) if keeps_factor else None
    return SolvedState(problem, jnp.zeros_like(problem.values), factor)


def solved_anew(
    memory: Memory, problem: BufferState | GramState, *, keeps_factor: bool
) -> SolvedState:
    """The solution of a problem of which nothing is known."""
    if not keeps_factor or isinstance(problem, GramState):
        return SolvedState(problem, problem.coefficients(memory), None)
    return _by_factor(problem, cholesky(problem.problem(memory)[0]))


def solve_on(
    memory: Memory, before: SolvedState, problem: BufferState | GramState, new: int
) -> SolvedState:
    """The solution of the problem that `before` has become, by at most `new` further atoms.

    With a factor that is kept, atoms behind all others are rows that are appended to it, for
    O(slots^2) a pair; where an atom has left, or one has come in before others, it is made anew, for
    O(slots^3), as it is at every write where none is kept.
    """
    kept, old = before.factor, before.problem
    if kept is None or isinstance(problem, GramState) or isinstance(old, GramState):
        return solved_anew(memory, problem, keeps_factor=False)
    factor = jax.lax.cond(
        _only_appended(old, problem),
        lambda: _appended(memory, kept, old, problem, new),
        lambda: cholesky(problem.problem(memory)[0]),
    )
    return _by_factor(problem, factor)


def _by_factor(problem: BufferState, factor: Array) -> SolvedState:
    _, targets, _ = problem.safe()
    return SolvedState(problem, solve_by(factor, targets), factor)


def covariance(
    memory: Memory, state: SolvedState, keys: Float[Array, "batch key"]
) -> Float[Array, "batch batch"]:
    r"""What the stored pairs leave open at some keys, $\kappa(X, X) - \kappa(X, K) (K + \lambda)^{-1}
    \kappa(K, X)$, in units of the strength: the covariance of a Gaussian process over its noise.

    **Arguments:**

    - `memory`: the memory, grounded, as its representation keeps it.
    - `state`: what it holds.
    - `keys`: the keys.
    """
    write: Any = memory.write
    if isinstance(state.problem, GramState):
        features = jax.vmap(memory.kernel.features)(keys)
        factor = cholesky(state.problem.system(memory))
        left = solve_lower(factor, features.T)
        return jnp.matmul(left.T, left, precision=_HIGHEST)
    matrix, root = state.problem.problem(memory)
    factor = cholesky(matrix) if state.factor is None else state.factor
    _, open_ = _beside(memory, factor, state.problem, root, keys)
    return open_ / jnp.asarray(write.strength, keys.dtype)


def _only_appended(old: BufferState, new: BufferState) -> Bool[Array, ""]:
    """Whether every atom that was there is where it was, and every other one comes after them."""
    places = jnp.arange(len(old.birth))
    stays = jnp.all(~old.valid | (new.valid & (old.birth == new.birth)))
    last = jnp.max(jnp.where(old.valid, places, -1))
    return stays & jnp.all(~new.valid | old.valid | (places > last))


def _appended(
    memory: Memory, factor: Array, old: BufferState, problem: BufferState, new: int
) -> Array:
    r"""The factor with rows for new atoms B behind the old ones A: $L_{BA} = \kappa(B, A)
    L_{AA}^{-\top}$, and $L_{BB}$ that of what is left, $K_{BB} + \lambda - L_{BA} L_{BA}^\top$."""
    slots = len(factor)
    rows = jnp.nonzero(problem.valid & ~old.valid, size=new, fill_value=slots)[0]
    there = rows < slots
    keys = problem.safe()[0].at[rows].get(mode="fill", fill_value=0)
    root = jnp.where(old.valid, 1, 0).astype(factor.dtype)
    left, open_ = _beside(memory, factor, old, root, keys)
    write: Any = memory.write
    eye = jnp.eye(new, dtype=factor.dtype)
    system = open_ + jnp.asarray(write.strength, factor.dtype) * eye
    corner = cholesky(jnp.where(there[:, None] & there[None, :], system, eye))
    lines = left.T.at[:, rows].set(corner, mode="drop")
    return factor.at[rows].set(lines, mode="drop")


def _beside(
    memory: Memory, factor: Array, stored: BufferState, root: Array, keys: Array
) -> tuple[Array, Array]:
    """`(L^-1 W^1/2 K(stored, keys), what that leaves of K(keys, keys))`."""
    cross = root[:, None] * memory.kernel.pairs(stored.safe()[0], keys)
    left = solve_lower(factor, cross)
    known = jnp.matmul(left.T, left, precision=_HIGHEST)
    return left, memory.kernel.pairs(keys, keys) - known
