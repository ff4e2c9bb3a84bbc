"""Bars: statements about the figures of trained models, which every seed must clear."""

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from ._report import Row


Found = Mapping[str, float | None]
"""What a trial came to: `""` at its last test, and further figures by name; `None` is no number."""

At = Callable[[int], Found]
"""The figures of the n-th trial of a bar."""

MEAN = "mean"
"""In the place of a seed: the row of a bar about means."""


def figure_of(at: At, index: int, name: str = "") -> float:
    """A figure of a trial, for comparisons; no number where it came to none, which fails them all."""
    value = at(index)[name]
    return math.nan if value is None else value


class Bar(NamedTuple):
    """A statement about the figures of some trials."""

    id: str
    statement: str
    trials: tuple[Any, ...]
    holds: Callable[[At], bool] | None = None
    """Whether the figures of one seed clear it; `None` where it is about means alone."""
    mean_holds: Callable[[At], bool] | None = None
    """Whether the means over all seeds do; `None` where they do not matter."""
    shown: tuple[tuple[int, str], ...] | None = None
    """`(trial, figure)`, what a table shows; by default the last test of every trial."""

    def figures(self, at: At) -> list[float | None]:
        """What a table shows."""
        shown = self.shown or tuple((index, "") for index in range(len(self.trials)))
        return [at(index)[name] for index, name in shown]


class Suite(NamedTuple):
    """Bars about one thing, and how their trials are run."""

    title: str
    measure: str
    """What the figures of a trial are, as the name of a column."""
    bars: tuple[Bar, ...]
    run: Callable[[Any, int], tuple[dict[str, float | None], float]]
    """The figures of a trial and a seed, and the seconds that it took; called in other processes."""
    spec: Callable[[Any], Any]
    """The model of a trial, as JSON values."""
    cost: Callable[[Any], float]
    """How long a trial takes, in any unit: the longest begin."""
    needs: Callable[[Any], None] = lambda trial: None
    """Raises `SettingError` where a trial cannot be run here."""
    facts: Mapping[str, Any] = MappingProxyType({})
    """What else the figures depend on, as JSON values."""


Figures = Mapping[tuple[Any, int], Found]
"""What has been found so far, of a trial and a seed."""


def judged(bar: Bar, figures: Figures, seed: int) -> Row:
    """The row of a bar and a seed."""
    mine = [figures[trial, seed] for trial in bar.trials]
    assert bar.holds is not None
    return _row(bar, seed, mine, bar.holds)


def judged_by_means(bar: Bar, figures: Figures, seeds: range) -> Row:
    """The row of a bar about means over seeds."""
    mine = [_mean([figures[trial, seed] for seed in seeds]) for trial in bar.trials]
    assert bar.mean_holds is not None
    return _row(bar, MEAN, mine, bar.mean_holds)


def _row(bar: Bar, seed: int | str, mine: list[Found], holds: Callable[[At], bool]) -> Row:
    passes = bool(holds(lambda index: mine[index]))
    figures = [dict(found) for found in mine]
    return {"name": bar.id, "seed": seed, "passes": passes, "figures": figures}


def _mean(found: list[Found]) -> Found:
    """Figure by figure; where one of them is no number, the mean is none."""
    means: dict[str, float | None] = {}
    for name in found[0]:
        values = [one[name] for one in found]
        numbers = [value for value in values if value is not None]
        means[name] = sum(numbers) / len(values) if len(numbers) == len(values) else None
    return means
