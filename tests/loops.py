"""Definitions of the array executions, a token at a time in NumPy, with nothing of memdsl in them.

They are analytic, so that their gradients are complex steps: exact, and no autodiff.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np


KEY, VALUE = 3, 2


class Atom(NamedTuple):
    key: Any
    coefficient: Any
    mass: Any
    weight: Any
    sink: bool = False
    token: int = -1


KERNELS: dict[str, Callable] = {
    "gauss": lambda a, k, q: np.exp(-a * np.sum((k - q) ** 2)),
    "exponential": lambda a, k, q: np.exp(a * np.sum(k * q)),
    "linear": lambda a, k, q: a * np.sum(k * q),
    "tanh": lambda a, k, q: np.tanh(a * np.sum(k * q)),
}
PAIRS: dict[str, Callable] = {
    "gauss": lambda a: lambda k, q: jnp.exp(-a * jnp.sum((k[:, None] - q[None]) ** 2, -1)),
    "exponential": lambda a: lambda k, q: jnp.exp(a * (k @ q.T)),
    "linear": lambda a: lambda k, q: a * (k @ q.T),
    "tanh": lambda a: lambda k, q: jnp.tanh(a * (k @ q.T)),
}
LOG_PAIRS: dict[str, Callable] = {
    "gauss": lambda a: lambda k, q: -a * jnp.sum((k[:, None] - q[None]) ** 2, -1),
    "exponential": lambda a: lambda k, q: a * (k @ q.T),
}


def before(stored: dict | None) -> list[Atom]:
    """The stored atoms that are there."""
    if stored is None:
        return []
    n = len(stored["log_weight"])
    masses = stored.get("masses", np.ones(n))
    pinned = stored.get("pinned", np.zeros(n, bool))
    return [
        Atom(
            stored["keys"][i],
            stored["coefficients"][i],
            masses[i],
            np.exp(stored["log_weight"][i]),
            bool(pinned[i]),
        )
        for i in range(n)
        if stored["there"][i]
    ]


def recall(kernel, atoms: list[Atom], query, size: int):
    return sum((a.weight * kernel(a.key, query) * a.coefficient for a in atoms), np.zeros(size))


def faded(atoms: list[Atom], factor) -> list[Atom]:
    return [a._replace(weight=a.weight * factor) for a in atoms]


def delta(kernel, d: dict, *, recalled="decayed", implicit=False, read_before=False):
    """Answers, the coefficients written, and what is left of run and stored atoms (NaN: gone)."""
    atoms, out, written = before(d.get("stored")), [], []
    size = d["values"].shape[1]
    for t in range(len(d["keys"])):
        k, v, q = d["keys"][t], d["values"][t], d["queries"][t]
        if d["starts"][t]:
            atoms = []
        old = atoms
        if d["mask"][t]:
            atoms = faded(atoms, np.exp(d["log_decay"][t]))
            rate = d["rate"][t]
            rate = rate / (1 + rate * kernel(k, k)) if implicit else rate
            seen = old if recalled == "previous" else atoms
            u = rate * (v - recall(kernel, seen, k, size))
            atoms = [*atoms, Atom(k, u, 1.0, 1.0, token=t)]
            written.append(u)
        else:
            written.append(np.zeros(size))
        out.append(recall(kernel, old if read_before else atoms, q, size))
    return out, written, {a.token: a.weight for a in atoms if a.token >= 0}


def additive(
    kernel, d: dict, *, window=None, sinks=0, normalised=False, prior=None, read_before=False
):
    """Answers from the pairs themselves: the latest `window` and the first `sinks`, or all."""
    atoms, out = before(d.get("stored")), []
    size, first = d["values"].shape[1], sum(a.sink for a in atoms)
    for t in range(len(d["keys"])):
        if d["starts"][t]:
            atoms, first = [], 0
        old = atoms
        if d["mask"][t]:
            atoms = faded(atoms, np.exp(d["log_decay"][t]))
            new = Atom(d["keys"][t], d["values"][t], d["masses"][t], 1.0, first < sinks)
            first += first < sinks
            atoms = [*atoms, new]
        held = old if read_before else atoms
        if window is not None:
            held = [a for i, a in enumerate(held) if a.sink or i >= len(held) - window]
        total = recall(kernel, held, d["queries"][t], size)
        if normalised:
            mass = sum(a.weight * kernel(a.key, d["queries"][t]) * a.mass for a in held)
            mass = mass if prior is None else mass + np.exp(prior)
            nothing = not held and prior is None
            total = np.zeros(size) if nothing else total / mass
        out.append(total)
    return out


def ridge(kernel, d: dict, *, read_before=False):
    """Every prefix solved by itself; the ridge is forgotten with the pairs."""
    out, begin = [], 0
    for t in range(len(d["keys"])):
        begin = t if d["starts"][t] else begin
        among = range(begin, t + (not read_before))
        among = [i for i in among if d["mask"][i] and np.real(d["importance"][i]) > 0]
        if not among:
            out.append(np.zeros(d["values"].shape[1]))
            continue
        level = {
            i: sum(d["log_decay"][j] for j in range(begin, i + 1) if d["mask"][j]) for i in among
        }
        diagonal = np.stack(
            [d["strength"][i] * np.exp(level[i]) / d["importance"][i] for i in among]
        )
        gram = np.stack(
            [np.stack([kernel(d["keys"][i], d["keys"][j]) for j in among]) for i in among]
        )
        cross = np.stack([kernel(d["keys"][i], d["queries"][t]) for i in among])
        targets = np.stack([d["values"][i] for i in among])
        out.append(cross @ np.linalg.solve(gram + np.diag(diagonal), targets))
    return out


def mesa(d: dict, *, read_before=False):
    """Answers and the last H and B."""
    gram, moment = d["gram"], d["moment"]
    out = []
    for t in range(len(d["keys"])):
        if d["starts"][t]:
            gram, moment = 0 * gram, 0 * moment
        old = gram, moment
        if d["mask"][t]:
            fade, k, rate = np.exp(d["log_decay"][t]), d["keys"][t], d["rate"][t]
            gram = fade * gram + rate * np.outer(k, k)
            moment = fade * moment + rate * np.outer(k, d["values"][t])
        g, m = old if read_before else (gram, moment)
        out.append(m.T @ np.linalg.solve(g + np.diag(d["strength"]), d["queries"][t]))
    return out, gram, moment


def sequence(length: int, *, flags: bool = True, stored: bool = True, seed: int = 0) -> dict:
    """Everything that any execution takes, in NumPy."""
    rng = np.random.default_rng([seed, length])
    d: dict[str, Any] = {
        "keys": rng.normal(size=(length, KEY)),
        "values": rng.normal(size=(length, VALUE)),
        "queries": rng.normal(size=(length, KEY)),
        "rate": rng.uniform(0.1, 1, length),
        "masses": rng.uniform(0.5, 2, length),
        "log_decay": -rng.uniform(0, 1, length),
        "importance": rng.uniform(0.5, 2, length),
        "strength": rng.uniform(0.5, 2, length),
        "starts": np.zeros(length, bool),
        "mask": np.ones(length, bool),
        "scale": np.asarray(0.7),
    }
    if flags:
        d["starts"] = np.isin(np.arange(length), (2, 6))
        d["mask"] = ~np.isin(np.arange(length), (1, 5))
    if stored:
        d["stored"] = {
            "keys": rng.normal(size=(3, KEY)),
            "coefficients": rng.normal(size=(3, VALUE)),
            "log_weight": -rng.uniform(0, 1, 3),
            "there": np.array([True, False, True]),
        }
        d["stored"]["log_weight"][1] = -np.inf
    return d


def spoiled(d: dict) -> dict:
    """The same with NaN wherever nothing may be felt: in masked tokens and in free slots."""

    def without(where: np.ndarray, array: np.ndarray) -> np.ndarray:
        return np.where(where.reshape((-1,) + (1,) * (array.ndim - 1)), array, np.nan)

    d = {**d}
    for name in ("keys", "values", "log_decay", "rate", "masses", "importance"):
        d[name] = without(d["mask"], d[name])
    if "stored" in d:
        there = d["stored"]["there"]
        free = {n: without(there, d["stored"][n]) for n in ("keys", "coefficients")}
        d["stored"] = {**d["stored"], **free}
    return d


def stored(d: dict) -> tuple | None:
    old = d.get("stored")
    return old and tuple(old[name] for name in ("keys", "coefficients", "log_weight"))


def arrays(d: dict) -> dict:
    return jax.tree.map(jnp.asarray, d)


def close(ours: Any, theirs: Any, tolerance: float = 1e-12):
    np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance)


def stacked(rows: list, width: int) -> np.ndarray:
    return np.stack(rows) if rows else np.zeros((0, width))


def loss(results: Any) -> Any:
    """One number of everything that comes out."""
    return sum(np.sum(np.sin(np.asarray(x))) for x in jax.tree.leaves(results))


def near(ours: Any, theirs: Any, tolerance: float):
    """Within `tolerance` of the largest of `theirs`."""
    size = np.max(np.abs(np.asarray(theirs)))
    np.testing.assert_allclose(np.asarray(ours), theirs, rtol=0, atol=tolerance * size)


def complex_step(function: Callable[[dict], Any], d: dict, name: str) -> np.ndarray:
    """The gradient of `loss(function(d))` with respect to `d[name]`."""
    out = np.zeros(d[name].shape)
    for index in np.ndindex(out.shape):
        step = d[name].astype(complex)
        step[index] += 1e-30j
        out[index] = np.imag(loss(function({**d, name: step}))) / 1e-30
    return out


def value_and_gradients(function: Callable[[dict], Any], names: list[str]) -> Callable:
    """A compiled function of `d`: what `function` says, and the gradients of `loss`."""

    def both(d: dict) -> tuple[Any, dict]:
        def loss(free: dict) -> tuple[Any, Any]:
            results = function({**d, **free})
            return sum(jnp.sum(jnp.sin(x)) for x in jax.tree.leaves(results)), results

        free = {name: d[name] for name in names}
        gradients, results = jax.grad(loss, has_aux=True)(free)
        return results, gradients

    return quick(both)


def quick(function: Callable) -> Callable:
    """Compiled with little effort: the tests compile more than they compute."""
    return jax.jit(function, compiler_options={"xla_backend_optimization_level": 0})
