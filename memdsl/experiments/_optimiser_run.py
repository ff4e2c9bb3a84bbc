"""The experiment of optimisers: what it is set to, and its table."""

import dataclasses
from dataclasses import dataclass

import numpy as np
from rich.table import Table

from ._curves import check_positive, shown
from ._dual_bars import DUAL_BARS
from ._growth_bars import GrowthTrial
from ._learn import Course, Problem
from ._learners import AbstractLearner, GradientLearner
from ._optimiser_recipes import (
    optimiser_course,
    optimiser_learner,
    optimiser_problem,
    OptimiserData,
    OPTIMISERS,
)
from ._report import Row, table
from ._runs import check_runs, names_of, Runs, runs_of_bar


PRESETS = [bar for bar in DUAL_BARS if isinstance(bar.trials[0], GrowthTrial)]
"""The bars that compare what is learned; those about time are no preset."""


@dataclass(frozen=True)
class OptimiserSettings:
    """Settings of the optimisers' run.

    Every optimiser has a learning rate and other settings of its own, from searches of one size on rows
    that no run tests on (`benchmarks/tune_optimisers.py`).
    """

    data: OptimiserData = "digits"
    """digits: raw pixels, 8 x 8. mnist5k: 14 x 14, five epochs; mnist5k-once: one. teacher-student: what
    a random network answers; teacher-student-unequal: the same, of inputs of very unequal size. lm: a
    language model of characters. MNIST comes with a package: pip install '.[bench]'."""
    optimiser: tuple[str, ...] = ("all",)
    """One or several, or all. Of optax: sgd, adamw, muon. Duals of memories: mesa, a ridge whose pairs
    fade; mesa-momentum, mesa-adam, mesa-muon, its steps through these; mesa-cumulative, a ridge of all
    pairs; delta, delta gradient descent."""
    preset: str | None = None
    """A bar of memdsl reproduce duals, whose data and optimisers are taken instead."""
    tests: int = 8
    """Tests in the first epoch; later ones have one at their end."""
    seed: int = 0
    """The first seed; it decides the initial weights, the order of the rows and the teacher."""
    seeds: int = 1
    """How many seeds to run: seed, seed + 1, ..."""
    rate: float | None = None
    """Learning rate of all of them, in the place of their own."""

    def check(self) -> None:
        """Raises `SettingError` for a value that cannot be."""
        if self.rate is not None:
            check_positive(self, "rate")
        check_runs(self)

    @property
    def task(self) -> str:
        """What the folder of results is called after."""
        return self.preset or self.data

    @property
    def runs(self) -> Runs:
        """What is trained, on what."""
        if self.preset is not None:
            runs = runs_of_bar(self.preset, PRESETS, optimiser_learner)
        else:
            known = OPTIMISERS[self.data]
            names = names_of(self.optimiser, known, "optimiser")
            runs: Runs = {self.data: {name: known[name] for name in names}}
        return {
            data: {name: self._changed(one) for name, one in learners.items()}
            for data, learners in runs.items()
        }

    def course(self, data: str) -> Course:
        """How long it is trained."""
        return optimiser_course(data, self.tests)

    def problem(self, data: str, seed: int) -> Problem:
        """The rows and the test."""
        return optimiser_problem(data, seed)

    def _changed(self, one: AbstractLearner) -> AbstractLearner:
        if self.rate is None or not isinstance(one, GradientLearner):
            return one
        return dataclasses.replace(one, rate=self.rate)


def optimisers_table(rows: list[Row]) -> Table:
    """What was reached in the end, and the milliseconds of a step: a line a row, then means."""
    measure = next(name for name in rows[0] if name.startswith("test_"))

    def line(name: str, seed: str, same: list[Row]) -> list[str]:
        ends = [row["train_loss"] for row in same], [row[measure][-1] for row in same]
        step = float(np.median([row["step_ms"] for row in same]))
        return [name, seed, *(_mean(end) for end in ends), f"{step:.1f}"]

    sections = [[line(row["name"], str(row["seed"]), [row]) for row in rows]]
    if len({row["seed"] for row in rows}) > 1:
        names = dict.fromkeys(row["name"] for row in rows)
        sections.append([line(n, "all", [r for r in rows if r["name"] == n]) for n in names])
    heads = ["optimiser", "seed", "training loss", measure.replace("_", " "), "ms a step"]
    return table("After the last step", heads, sections)


def _mean(numbers: list[float | None]) -> str:
    finite = [number for number in numbers if number is not None]
    return shown(float(np.mean(finite)) if len(finite) == len(numbers) else None)
