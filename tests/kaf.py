"""Kernel adaptive filters as memories, and the protocols by which they were measured elsewhere.

The data, their protocols and what an implementation is held to: tests/golden/README.md.
"""

import math
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

import memdsl as md
from memdsl.state import BufferState


FOLDER = Path(__file__).parent / "golden" / "kaf"


def load(dataset: str) -> dict[str, np.ndarray]:
    """The arrays of a data set and of the filters that were run on it."""
    with np.load(FOLDER / f"{dataset}.npz") as file:
        return {name: file[name] for name in file.files}


def klms(scale: float, rate: float) -> md.Memory:
    """Kernel least mean squares (Liu 2008): every pair is an atom."""
    return md.Memory(md.RBF(scale), md.Delta(rate))


def qklms(scale: float, rate: float, threshold: float, slots: int) -> md.Memory:
    """Quantised (Chen 2012): what is near a stored key is added to it. `slots` is never reached."""
    capacity = md.Budget(slots, merge=md.AddToNearest())
    return klms(scale, rate).replace(gate=md.Novelty(threshold), capacity=capacity)


def norma(scale: float, rate: float, decay: float, slots: int) -> md.Memory:
    """Stochastic descent with weight decay (Kivinen 2004), its error that of after the decay."""
    capacity = md.Budget(slots, evict=md.Oldest())
    return klms(scale, rate).replace(gate=md.Decay(1 - rate * decay), capacity=capacity)


def knlms(scale: float, rate: float, coherence: float, epsilon: float) -> md.Memory:
    """Normalised, with the coherence criterion (Richard 2009)."""
    write = md.Delta(rate, on="atoms", normalise=epsilon)
    return md.Memory(md.RBF(scale), write, md.Coherence(coherence))


def swkrls(scale: float, ridge: float, slots: int) -> md.Memory:
    """Least squares over a sliding window (Van Vaerenbergh 2006)."""
    return md.Memory(md.RBF(scale), md.Ridge(ridge), capacity=md.Window(slots))


def fbkrls(scale: float, ridge: float, slots: int) -> md.Memory:
    """Least squares over a budget, the least missed leaves (Van Vaerenbergh 2010)."""
    capacity = md.Budget(slots, evict=md.LeaveOneOut(ridge))
    return md.Memory(md.RBF(scale), md.Ridge(ridge), capacity=capacity)


class Run(NamedTuple):
    """What a filter did: a number a step, how many atoms it had, and what it ended with."""

    curve: np.ndarray
    sizes: np.ndarray
    state: Any


def empty(memory: md.Memory, x: np.ndarray, dtype: Any = jnp.float64) -> Any:
    """Its empty state, with a value of one channel and room for all of x."""
    return md.empty(memory, x.shape[1], 1, capacity=len(x), dtype=dtype, using="buffer / recurrent")


def forecasts(memory: md.Memory, x: np.ndarray, y: np.ndarray, dtype: Any = jnp.float64) -> Run:
    """Predict, then train, at every step; the curve is the predictions."""

    def one(state: BufferState, pair: tuple[Array, Array]) -> tuple[BufferState, Any]:
        state, guess = md.step(memory, state, *pair)
        return state, (guess[0], jnp.sum(state.valid))

    return _scan(one, empty(memory, x, dtype), (x, y[:, None]), dtype)


def learning_curve(
    memory: md.Memory,
    x: np.ndarray,
    y: np.ndarray,
    x_test: np.ndarray,
    y_test: np.ndarray,
    *,
    before: bool,
    dtype: Any = jnp.float64,
) -> Run:
    """The mean squared error on all of a test set at every step, `before` or after it is learned.

    `y_test` has a row a step where the truth changes on the way, or is one row.
    """
    x_test = jnp.asarray(x_test, dtype)

    def error(state: BufferState, truth: Array) -> Array:
        return jnp.mean((md.evaluate(memory, state, x_test)[:, 0] - truth) ** 2)

    def one(state: BufferState, pair: tuple[Array, ...]) -> tuple[BufferState, Any]:
        key, value, truth = pair
        after, _ = md.step(memory, state, key, value)
        return after, (error(state if before else after, truth), jnp.sum(after.valid))

    truth = np.broadcast_to(y_test, (len(x), y_test.shape[-1]))
    return _scan(one, empty(memory, x, dtype), (x, y[:, None], truth), dtype)


def _scan(step: Any, state: Any, rows: tuple[np.ndarray, ...], dtype: Any) -> Run:
    arrays = tuple(jnp.asarray(row, dtype) for row in rows)
    state, (curve, sizes) = jax.jit(lambda s, r: jax.lax.scan(step, s, r))(state, arrays)
    return Run(np.asarray(curve), np.asarray(sizes), state)


def trained(memory: md.Memory, x: np.ndarray, y: np.ndarray) -> BufferState:
    """The state after all of x and y."""
    data = jnp.asarray(x), jnp.asarray(y)[:, None]
    return jax.jit(lambda s, x, y: md.run(memory, s, x, y)[0])(empty(memory, x), *data)


def dictionary(state: BufferState, x: np.ndarray) -> list[int]:
    """The rows of x that the filter kept, in the order in which it took them."""
    rows = {row.tobytes(): index for index, row in reversed(list(enumerate(x)))}
    keys = np.asarray(state.keys)
    return [rows[keys[slot].tobytes()] for slot in _by_age(state)]


def coefficients(memory: md.Memory, state: BufferState) -> np.ndarray:
    """The coefficient of every atom, in the same order."""
    if isinstance(memory.write, md.Ridge):
        solved = np.asarray(state.coefficients(memory))[:, 0]
    else:
        solved = np.asarray(jnp.exp(state.log_weight) * state.values[:, 0])
    return solved[_by_age(state)]


def _by_age(state: BufferState) -> np.ndarray:
    order = np.argsort(np.asarray(state.birth), kind="stable")
    return order[np.asarray(state.valid)[order]]


def decibels(error: Any) -> float:
    """`10 log10` of a mean squared error."""
    return 10 * math.log10(float(np.mean(error)))
