"""What the function that a memory is says at a point."""

from typing import Any

import jax
import jax.numpy as jnp

from ..spec._guard import guarded
from ..spec._memory import Memory
from ..spec._read import LocalLinear, Normalised, ranked_by
from ..spec._read_blocks import blocks_of
from ..spec._slots import unpulled
from ..spec._write import GaussSeidel, Recalled, Ridge
from ._blocks import in_blocks
from ._function import Atom, Function, is_diagonal, one, plain, weight


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
    value, mass, shift = division(memory, function, atoms, query, read.prior)
    log_mass = jnp.log(jnp.abs(jnp.where(mass == 0, 1, mass))) + shift
    return Recalled(value * jnp.exp(shift), mass * jnp.exp(shift), ratio(value, mass), log_mass)


def division(
    memory: Memory,
    function: Function,
    atoms: tuple[Atom, ...],
    query: Any,
    prior: Any,
    scale: Any = 1.0,
) -> tuple[Any, Any, Any]:
    """`(scale N, scale D + prior, shift)` of a normalised read, up to a factor `exp(shift)`.

    Where masses can be below 0, the second is no nearer to 0 than a thousandth of the sum of their
    sizes.
    """
    value, mass, shift = sums(memory, function, atoms, query, prior)
    mass = scale * mass + relative(prior, shift)
    if one(memory.write).has_signed_masses():
        sizes = tuple(atom.put(mass=jnp.abs(atom.mass)) for atom in atoms)
        size = scale * sums(memory, function, sizes, query, prior)[1] + relative(prior, shift)
        mass = guarded(mass, size)
    return scale * value, mass, shift


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
    """`exp(-shift) prior`, whatever the shift, as little as a float can be; 0 where there is no prior."""
    prior = jnp.asarray(prior, shift.dtype)
    small = jnp.exp(jnp.log(jnp.where(prior > 0, prior, 1)) - shift)
    return jnp.where(prior > 0, jnp.maximum(small, jnp.finfo(small.dtype).tiny), 0)


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
