"""Training what the bars of dual optimisers need, and timing their steps."""

from time import perf_counter
from typing import Any

import numpy as np

from ._allocator import keep_freed_memory
from ._classification import Classification, needs
from ._dual_bars import DUAL_BARS, StepTrial
from ._growth_bars import GrowthTrial
from ._growth_trials import figures_of
from ._judge import Suite
from ._learn import classification, learn, Problem
from ._optimiser_recipes import (
    optimiser_course,
    optimiser_learner,
    optimiser_problem,
)


TIMED = "mnist5k"
"""The problem whose network is timed, with other inputs."""
STRETCHES, STEPS, BATCH = 15, 20, 100


def run_dual_trial(
    trial: GrowthTrial | StepTrial, seed: int
) -> tuple[dict[str, float | None], float]:
    """The figures of a trial, and the seconds it took."""
    start = perf_counter()
    if isinstance(trial, StepTrial):
        return step_times(trial, seed), perf_counter() - start
    task, path = optimiser_problem(trial.data, seed), optimiser_course(trial.data)
    figures = figures_of(task, path, optimiser_learner(trial.data, trial.learner), seed)
    return figures, perf_counter() - start


def step_times(trial: StepTrial, seed: int) -> dict[str, float | None]:
    """How long a step takes: the ratio `""` of the medians, and both in milliseconds.

    The two optimisers take turns, so that whatever else the machine does is met by both.
    """
    keep_freed_memory()
    task, path = _noise(trial.inputs, seed), optimiser_course(TIMED)
    order = np.random.default_rng(seed).integers(0, len(task.train_inputs), (STEPS, BATCH))
    running = {}
    for name in ("adamw", trial.optimiser):
        one = optimiser_learner(TIMED, name)
        model, optimiser = one.model(task, path, seed), one.optimiser(task, path)
        running[name] = learn(task, model, optimiser, [order] * (STRETCHES + 1))
    ends: dict[str, list[float]] = {name: [] for name in running}
    for _ in range(STRETCHES + 1):  # the first is a warm-up
        for name, tests in running.items():
            ends[name].append(next(tests).seconds)
    base, own = (1000 / STEPS * float(np.median(np.diff(ends[name]))) for name in ends)
    return {"": own / base, "adamw_ms": base, f"{trial.optimiser}_ms": own}


def _noise(inputs: int, seed: int) -> Problem:
    """Rows of so many numbers between 0 and 1, with labels of no meaning."""
    rng = np.random.default_rng(seed)
    rows, labels = rng.uniform(size=(2000, inputs)), rng.integers(0, 10, 2000)
    rows, labels = rows.astype(np.float32), labels.astype(np.int32)
    return classification(Classification(rows, labels, rows[:100], labels[:100]))


def _spec(trial: GrowthTrial | StepTrial) -> Any:
    if isinstance(trial, StepTrial):
        one = optimiser_learner(TIMED, trial.optimiser)
        return one.described(_noise(trial.inputs, 0), optimiser_course(TIMED))
    one = optimiser_learner(trial.data, trial.learner)
    return one.described(optimiser_problem(trial.data, 0), optimiser_course(trial.data))


def _needs(trial: GrowthTrial | StepTrial) -> None:
    if isinstance(trial, GrowthTrial):
        needs(trial.data)


DUALS = Suite(
    title="Dual optimisers",
    measure="score",
    bars=DUAL_BARS,
    run=run_dual_trial,
    spec=_spec,
    cost=lambda trial: isinstance(trial, StepTrial),
    needs=_needs,
)
