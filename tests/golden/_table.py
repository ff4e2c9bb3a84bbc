"""The table: how far every memory is from its file, by every legal plan, in both precisions."""

import math
import re
from collections.abc import Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from . import _atoms, _descents, _layers, _matrices, _pieces
from ._case import Case
from ._file import Golden, load
from ._run import cover, Runner, Using


CASES: dict[str, Case] = {
    **_matrices.CASES,
    **_atoms.CASES,
    **_descents.CASES,
    **_pieces.CASES,
    **_layers.CASES,
}
NOTES: dict[str, str] = {
    **_matrices.NOTES,
    **_atoms.NOTES,
    **_descents.NOTES,
    **_pieces.NOTES,
    **_layers.NOTES,
}
"""What of a file is said in another way than by a memory, and why."""
REASONS: dict[str, str] = _layers.REASONS
"""Why a file has no case yet."""
TOLERANCE = {"float64": 1e-9, "float32": 1e-4}
Plans = tuple[Using, ...]
STATES = ("state", "z", "A")
DOUBLE_ONLY = {
    # (q.k)^2 by features is a sum of 45 numbers that cancel: 1.2e-4 in the gradient of q
    "rebased": ("matrix", None),
    # atoms get this gradient through the inverse of the matrix, whose condition is 1e4
    "mesa_net": ("buffer", "initial_kk"),
}
"""What single precision cannot do, by file: of plans that keep this, all or only this gradient."""
SYMMETRIC = ("initial_kk",)
"""Symmetric inputs: only the symmetric part of a derivative by them means anything."""


class Errors(NamedTuple):
    """The worst relative errors of one run, in the final states of those that have one."""

    value: float
    state: float
    gradient: float

    @property
    def worst(self) -> float:
        """The worst of them."""
        return max(self)


class Row(NamedTuple):
    """A file, and how far from it the memory is by the plans that are furthest."""

    name: str
    has_state: bool
    double: Errors | None
    single: Errors | None
    plans: int
    worst: str
    note: str

    @property
    def verdict(self) -> str:
        """`pass`, `fail`, or what cannot be said of the file yet."""
        if self.double is None or self.single is None:
            return "reason"
        good = (
            self.double.worst <= TOLERANCE["float64"] and self.single.worst <= TOLERANCE["float32"]
        )
        return "pass" if good else "fail"


def measure(name: str, *, every: bool = True) -> Row:
    """The row of a file: the worst over its legal plans.

    With `every` these are all of them, in both precisions. Without, the two that the planner thinks
    the fastest (of chunks, one size) stand for all, and the first of them in single precision.
    """
    case = CASES.get(name)
    if case is None:
        note = REASONS.get(name, "no case is written for it")
        return Row(name, False, None, None, 0, "", note)
    golden = load(name)
    legal = legal_plans(golden, case)
    plans = legal if every else _one_chunk_size(legal)[:2]
    doubles = [compare(golden, case, plan, jnp.float64) for plan in plans]
    in_single = [plan for plan in legal if not _double_only(name, plan, None)]
    in_single = in_single if every else in_single[:1]
    singles = [compare(golden, case, plan, jnp.float32) for plan in in_single]
    furthest = max(range(len(plans)), key=lambda i: doubles[i].worst)
    return Row(
        name,
        any(output.startswith(STATES) for output in golden.outputs),
        _worst(doubles),
        _worst(singles),
        len(plans),
        _shown(plans[furthest]),
        NOTES.get(name, ""),
    )


def _one_chunk_size(plans: Sequence[Plans]) -> list[Plans]:
    """Of plans that differ in the size of their chunks alone, the one with the smallest."""
    kept: dict[str, tuple[int, Plans]] = {}
    for plan in plans:
        shown = _shown(plan)
        size = sum(map(int, re.findall(r"\((\d+)\)", shown)))
        family = re.sub(r"\(\d+\)", "", shown)
        if family not in kept or size < kept[family][0]:
            kept[family] = size, plan
    return [plan for _, plan in kept.values()]


def legal_plans(golden: Golden, case: Case) -> list[Plans]:
    """Plans of the memories of a case, so that each legal plan of each memory is among them."""
    run = Runner(jnp.float64)
    jax.eval_shape(lambda x: _call(case, golden, run, x), _cast(golden.inputs, jnp.float64))
    return cover(run.legal)


def compare(golden: Golden, case: Case, plan: Plans, dtype: Any) -> Errors:
    """The errors of one plan in one precision."""

    # compiling is what this costs, so that the compiler is not asked for its best
    @partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
    def both(inputs: Any, cotangents: Any) -> tuple[Any, Any]:
        def pulled(inputs: Any) -> tuple[Any, Any]:
            outputs = _call(case, golden, Runner(dtype, plan), inputs)
            return {name: outputs[name] for name in cotangents}, outputs

        _, pull, outputs = jax.vjp(pulled, inputs, has_aux=True)
        return outputs, pull(cotangents)[0]

    outputs, gradients = both(_cast(golden.inputs, dtype), _cast(golden.cotangents, dtype))
    wrong = [n for n, array in outputs.items() if array.dtype != dtype]
    if wrong:
        raise TypeError(f"{golden.name}: {wrong} came back in another precision than {dtype}")
    states = {n: array for n, array in golden.outputs.items() if n.startswith(STATES)}
    values = {n: array for n, array in golden.outputs.items() if n not in states}
    wanted = {
        n: array
        for n, array in golden.gradients.items()
        if dtype == jnp.float64 or not _double_only(golden.name, plan, n)
    }
    return Errors(_error(outputs, values), _error(outputs, states), _error(gradients, wanted))


def _double_only(name: str, plan: Plans, gradient: str | None) -> bool:
    """Whether single precision is not held to a plan, or to this gradient by it."""
    representation, which = DOUBLE_ONLY.get(name, ("nothing", None))
    return which == gradient and _shown(plan).startswith(representation)


def _call(case: Case, golden: Golden, run: Runner, inputs: Mapping[str, Any]) -> dict[str, Any]:
    outputs = case(SimpleNamespace(**inputs), golden.constants, run)
    if outputs.keys() != golden.outputs.keys():
        raise KeyError(f"{golden.name} has {sorted(golden.outputs)}, the case {sorted(outputs)}")
    return outputs


def _cast(arrays: Mapping[str, np.ndarray], dtype: Any) -> dict[str, Any]:
    return {name: jnp.asarray(array, dtype) for name, array in arrays.items()}


def _error(ours: Mapping[str, Any], theirs: Mapping[str, np.ndarray]) -> float:
    """The largest difference, each array's relative to its largest number."""
    worst = 0.0
    for name, right in theirs.items():
        got = np.asarray(ours[name], np.float64)
        if name in SYMMETRIC:
            got, right = (a + np.swapaxes(a, -1, -2) for a in (got, right))
        if got.shape != right.shape:
            raise ValueError(f"{name} has shape {got.shape}, and should have {right.shape}")
        error = float(np.max(np.abs(got - right)) / np.max(np.abs(right)))
        worst = max(worst, error if math.isfinite(error) else math.inf)
    return worst


def _worst(many: Sequence[Errors]) -> Errors:
    return Errors(*(max(column) for column in zip(*many, strict=True)))


def _shown(plan: Plans) -> str:
    return "; ".join(", ".join(using.values()) for using in plan)
