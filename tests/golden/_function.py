"""A state as the arrays of a golden file, whatever the representation: both ways."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from memdsl.state import AbstractState, BufferState, DescentState, GramState, MatrixState


class Function(NamedTuple):
    """`f(q) = S^T q`, its mass `z . q`, and the Gram matrix of a ridge problem."""

    matrix: Array
    mass: Array | None = None
    gram: Array | None = None


def put(state: Any, f: Function, root: Array | None) -> Any:
    """The state, empty until now, as the function f.

    In a buffer a matrix is the atoms `(e_i, S_i)`, one a row, and a ridge problem is the columns of a
    Cholesky factor of its Gram matrix. `root` is the square root of a ridge strength a channel, by
    which a buffer divides its keys.
    """
    match state:
        case (inner,):  # of a transposed memory
            return (put(inner, Function(f.matrix.T), root),)
        case DescentState():
            others = [jnp.zeros_like(f.matrix) for _ in state.names[1:]]
            whole = jnp.concatenate([f.matrix, *others], 1)
            return state.put(put(state.function, Function(whole), root))
        case MatrixState():
            return MatrixState(f.matrix, f.mass, state.count)
        case GramState():
            assert f.gram is not None
            return GramState(f.gram, f.matrix, state.count)
        case BufferState():
            return _put_atoms(state, f, root)
        case _:
            raise TypeError(f"no way into {type(state).__name__}")


def _put_atoms(state: BufferState, f: Function, root: Array | None) -> BufferState:
    n = len(f.matrix)
    if f.gram is None:
        keys, values = jnp.eye(n, dtype=f.matrix.dtype), f.matrix
    else:
        factor = jnp.linalg.cholesky(f.gram)
        keys, values = factor.T, jax.scipy.linalg.solve_triangular(factor, f.matrix, lower=True)
        keys = keys if root is None else keys / root[None, :]
    masses = state.masses
    if masses is not None:
        masses = masses.at[:n].set(jnp.zeros(n, masses.dtype) if f.mass is None else f.mass)
    return state.put(
        keys=state.keys.at[:n].set(keys),
        values=state.values.at[:n].set(values),
        masses=masses,
        log_weight=state.log_weight.at[:n].set(0),
        birth=state.birth.at[:n].set(jnp.arange(n, dtype=state.birth.dtype)),
        counts=eqx.tree_at(lambda c: c.admitted, state.counts, state.counts.admitted + n),
    )


def take(state: Any, root: Array | None) -> Function:
    """The function that a state holds."""
    match state:
        case (_, inner):  # a level, beside its place
            return take(inner, root)
        case (inner,):
            return Function(take(inner, root).matrix.T)
        case DescentState():
            return take(state.parts()["function"], root)
        case MatrixState():
            return Function(state.matrix, state.mass)
        case GramState():
            return Function(state.matrix, None, state.gram)
        case BufferState():
            keys, values, masses = state.safe()
            keys = keys if root is None else keys * root[None, :]
            weighted = jnp.where(state.valid, jnp.exp(state.log_weight), 0)[:, None] * keys
            mass = None if masses is None else masses @ weighted
            return Function(weighted.T @ values, mass, weighted.T @ keys)
        case _:
            raise TypeError(f"no way out of {type(state).__name__}")


def is_buffer(state: Any) -> bool:
    """Whether a state, or the one state in it, keeps atoms."""
    leaves = jax.tree.leaves(state, is_leaf=lambda s: isinstance(s, AbstractState))
    return any(isinstance(getattr(leaf, "function", leaf), BufferState) for leaf in leaves)
