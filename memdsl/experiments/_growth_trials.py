"""Training what the bars of growth need."""

import math
import warnings
from time import perf_counter
from typing import Any

import memdsl as md

from ._allocator import keep_freed_memory
from ._classification import needs
from ._curves import check_rates
from ._growth_bars import GROWTH_BARS, GrowthTrial
from ._judge import Suite
from ._learn import Course, learn, Problem
from ._learners import AbstractLearner
from ._recipes import course, learner, problem, TEACHERS


def run_growth_trial(trial: GrowthTrial, seed: int) -> tuple[dict[str, float | None], float]:
    """Trains one learner: its score after every test, and the seconds it took; see `figures_of`."""
    start = perf_counter()
    task, path = problem(trial.data, seed), course(trial.data)
    figures = figures_of(task, path, learner(trial.data, trial.learner), seed)
    return figures, perf_counter() - start


def figures_of(
    task: Problem, path: Course, one: AbstractLearner, seed: int
) -> dict[str, float | None]:
    """What a learner comes to.

    The figures go by the number of the epoch, or of the rows seen where each is seen once; `""` is
    the last. `train_loss` is as the course says, `finite` whether all of them are, `warned` whether
    `md.grow.RateWarning` was given before anything ran, `atoms` how many there are in the end.
    """
    keep_freed_memory()
    once = not path.shuffled
    path = path if once else path._replace(parts=1)
    model, rows = one.model(task, path, seed), len(task.train_inputs)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", md.grow.RateWarning)
        check_rates(task, model, path, seed)
    warned = any(issubclass(one.category, md.grow.RateWarning) for one in caught)
    figures: dict[str, float | None] = {"warned": float(warned), "finite": 1.0}
    optimiser, orders = one.optimiser(task, path), path.orders(rows, seed)
    tests = learn(task, model, optimiser, orders, looks_back=path.looks_back)
    for number, at in enumerate(tests, 1):
        score = at.score if math.isfinite(at.score) else None
        figures[str(at.samples if once else number)] = figures[""] = score
        figures["train_loss"] = at.train_loss if math.isfinite(at.train_loss) else None
        figures["atoms"] = None if at.atoms is None else float(at.atoms)
        if score is None:
            figures["finite"] = 0.0
    return figures


def _spec(trial: GrowthTrial) -> Any:
    one = learner(trial.data, trial.learner)
    return one.described(problem(trial.data, 0), course(trial.data))


def _cost(trial: GrowthTrial) -> float:
    """Two layers keep every pair; a teacher shows every row once."""
    return (trial.data not in TEACHERS) + 4.0 * trial.learner.endswith("-2")


GROWTH = Suite(
    title="Growth",
    measure="score",
    bars=GROWTH_BARS,
    run=run_growth_trial,
    spec=_spec,
    cost=_cost,
    needs=lambda trial: needs(trial.data),
)
