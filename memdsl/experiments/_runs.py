"""Learners on problems, by their names: what a run trains, how it is described, and its table."""

import dataclasses
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Protocol

from rich.table import Table

from ._classification import needs
from ._curves import check_course, curves_table, run_learners
from ._judge import Bar
from ._learn import Course, Problem
from ._learners import AbstractLearner
from ._report import Report, Row, SettingError, suggestion


Runs = dict[str, dict[str, AbstractLearner]]
"""By problem, the learners by name."""


class RunSettings(Protocol):
    """What the settings of a run say."""

    @property
    def seed(self) -> int: ...
    @property
    def seeds(self) -> int: ...
    @property
    def runs(self) -> Runs: ...
    def course(self, data: str) -> Course: ...
    def problem(self, data: str, seed: int) -> Problem: ...


def check_runs(settings: Any) -> None:
    """Raises `SettingError` for what no run can do."""
    for data in settings.runs:  # which refuses names that there are not
        needs(data)
        check_course(settings, len(settings.problem(data, settings.seed).train_inputs))


def runs_of_bar(
    preset: str, bars: Sequence[Bar], learner: Callable[[str, str], AbstractLearner]
) -> Runs:
    """What one of some bars is about; or `SettingError`."""
    found = [bar for bar in bars if bar.id == preset]
    if not found:
        known = ", ".join(bar.id for bar in bars)
        raise SettingError(f"--preset {preset}: there is no such preset here. Known: {known}.")
    runs: Runs = {}
    for trial in found[0].trials:
        runs.setdefault(trial.data, {})[trial.learner] = learner(trial.data, trial.learner)
    return runs


def names_of(
    chosen: Iterable[str],
    known: Iterable[str],
    option: str = "learner",
    aside: Collection[str] = (),
) -> list[str]:
    """The names that were asked for, `all` spelled out, without those `aside`; or `SettingError`."""
    known = list(known)
    every = [name for name in known if name not in aside]
    for name in chosen:
        if name not in ["all", *known]:
            near = suggestion(name, ["all", *known])
            raise SettingError(f"--{option} {name}: there is no such {option} here. {near}")
    names = [one for name in chosen for one in (every if name == "all" else [name])]
    if not names:
        raise SettingError(f"--{option} needs at least one name, or all.")
    return list(dict.fromkeys(names))


def _titled(runs: Runs) -> dict[tuple[str, str], str]:
    """What the rows of a learner are called: by its name alone where there is one problem."""
    return {
        (data, name): name if len(runs) == 1 else f"{data} {name}"
        for data, learners in runs.items()
        for name in learners
    }


def run_growth(settings: RunSettings, report: Report) -> None:
    """Trains every learner with every seed: see `run_learners`.

    **Arguments:**

    - `settings`: of a run.
    - `report`: an entered `Report`.
    """
    runs, seeds = settings.runs, range(settings.seed, settings.seed + settings.seeds)
    titles = _titled(runs)
    for data, learners in runs.items():
        named = {titles[data, name]: one for name, one in learners.items()}
        run_learners(
            lambda seed, data=data: settings.problem(data, seed),
            named,
            settings.course(data),
            seeds,
            report,
        )


def growth_specs(settings: RunSettings) -> dict[str, Any]:
    """What is trained, by name: the specs of growing layers, the perceptrons in words."""
    titles = _titled(settings.runs)
    return {
        titles[data, name]: one.described(
            settings.problem(data, settings.seed), settings.course(data)
        )
        for data, learners in settings.runs.items()
        for name, one in learners.items()
    }


def growth_settings(settings: Any) -> dict[str, Any]:
    """The settings as JSON values, with those of the learners and the facts about the data."""
    runs, titles = settings.runs, _titled(settings.runs)
    return {
        **dataclasses.asdict(settings),
        "data": "; ".join(
            f"{data}: {settings.problem(data, settings.seed).about}" for data in runs
        ),
        "batch": ", ".join(str(settings.course(data).batch) for data in runs),
        "learners": {
            titles[data, name]: dataclasses.asdict(one)  # pyright: ignore[reportArgumentType]
            for data, learners in runs.items()
            for name, one in learners.items()
        },
    }


def growth_table(rows: list[Row]) -> Table:
    """What was reached at each test: a line a row, then means over seeds."""
    if rows and "test_error" in rows[0]:
        return curves_table("Test error after so many rows", rows, "test_error")
    return curves_table("Test accuracy after each epoch", rows, "test_accuracy")
