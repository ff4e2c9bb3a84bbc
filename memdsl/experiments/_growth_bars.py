"""The bars of growth: what each is about, and the runs it needs."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from ._judge import At, Bar, figure_of


@dataclass(frozen=True)
class GrowthTrial:
    """One learner on one problem, by their names in the recipes."""

    data: str
    learner: str

    @property
    def name(self) -> str:
        """What the trial is called in tables."""
        return f"{self.data}: {self.learner}"


class Limit(NamedTuple):
    """A figure of a trial, and between what it has to be, on every seed."""

    trial: GrowthTrial
    at: str
    """The epoch, the rows seen, or `"atoms"`, `"finite"`, `"warned"`."""
    least: float = -math.inf
    most: float = math.inf

    def holds(self, value: float | None) -> bool:
        """Whether the figure is where it has to be."""
        return value is not None and self.least <= value <= self.most


class Mean(NamedTuple):
    """A statement about means over seeds, and the trials it is about."""

    trials: tuple[GrowthTrial, ...]
    holds: Callable[[At], bool]
    shown: tuple[tuple[int, str], ...]


def _least(data: str, learner: str, **least: float) -> list[Limit]:
    """Lower limits of a trial, by `after_1=.96`."""
    trial = GrowthTrial(data, learner)
    return [Limit(trial, at.removeprefix("after_"), least=x) for at, x in least.items()]


def _most(data: str, learner: str, **most: float) -> list[Limit]:
    """Upper limits of a trial, by `after_768=.066`."""
    trial = GrowthTrial(data, learner)
    return [Limit(trial, at.removeprefix("after_"), most=x) for at, x in most.items()]


def _bar(id: str, statement: str, *limits: list[Limit], mean: Mean | None = None) -> Bar:
    flat = [limit for some in limits for limit in some]
    ahead = mean.trials if mean else ()
    trials = tuple(dict.fromkeys([*ahead, *(limit.trial for limit in flat)]))
    places = [(trials.index(limit.trial), limit.at) for limit in flat]

    def holds(at: At) -> bool:
        return all(
            limit.holds(at(index)[name]) for limit, (index, name) in zip(flat, places, strict=True)
        )

    shown = tuple(dict.fromkeys([*places, *(mean.shown if mean else ())]))
    return Bar(id, statement, trials, holds if flat else None, mean.holds if mean else None, shown)


def _gap(trials: tuple[GrowthTrial, ...], **gaps: float) -> Mean:
    """The mean of the first trial is above the best of the others by so much."""
    names = {at.removeprefix("after_"): gap for at, gap in gaps.items()}

    def holds(at: At) -> bool:
        rest = range(1, len(trials))
        return all(
            figure_of(at, 0, name) - max(figure_of(at, i, name) for i in rest) >= gap
            for name, gap in names.items()
        )

    shown = tuple((index, name) for index in range(len(trials)) for name in names)
    return Mean(trials, holds, shown)


def _share(data: str, share: float, grown: tuple[str, ...], others: tuple[str, ...]) -> Mean:
    """The mean error of every grown layer is at most a share of the best of the others."""
    trials = tuple(GrowthTrial(data, name) for name in (*grown, *others))

    def holds(at: At) -> bool:
        best = min(figure_of(at, len(grown) + i) for i in range(len(others)))
        return all(figure_of(at, i) <= share * best for i in range(len(grown)))

    return Mean(trials, holds, tuple((index, "") for index in range(len(trials))))


_RBF = GrowthTrial("mnist5k", "rbf")
_PERCEPTRONS = ("sgd", "adamw", "muon")
_BEST_MLP = tuple(GrowthTrial("mnist1d", name) for name in _PERCEPTRONS)
_STABLE = {"tanh": (0.025, 0.042, 0.062), "relu": (0.034, 0.041, 0.078)}

GROWTH_BARS: tuple[Bar, ...] = (
    _bar(
        "M1",
        "MNIST-5k, one growing layer, RBF: at least .960 after 1 epoch, .963 after 10",
        _least("mnist5k", "rbf", after_1=0.960, after_10=0.963),
    ),
    _bar(
        "M2",
        "MNIST-5k, one growing layer, weighted softmax, frozen: .960, .962",
        _least("mnist5k", "frozen", after_1=0.960, after_10=0.962),
    ),
    _bar(
        "M3",
        "MNIST-5k, damped: .958 after 1 epoch, and after 10",
        _least("mnist5k", "damped", after_1=0.958, after_10=0.958),
    ),
    _bar(
        "M4",
        "MNIST-5k, clip and gauge: .952 after 1 epoch",
        _least("mnist5k", "clip", after_1=0.952),
        _least("mnist5k", "gauge", after_1=0.952),
    ),
    _bar(
        "M5",
        "MNIST-5k, means: RBF over a perceptron of width 64 under AdamW by .03 after 1 epoch, .01 "
        "after 10",
        mean=_gap((_RBF, GrowthTrial("mnist5k", "adamw")), after_1=0.03, after_10=0.01),
    ),
    _bar(
        "D1",
        "MNIST-1D, two growing RBF layers: .63, .68, .685 after 1, 5, 10 epochs; mean .10 over the "
        "best perceptron",
        _least("mnist1d", "rbf-2", after_1=0.63, after_5=0.68, after_10=0.685),
        mean=_gap((GrowthTrial("mnist1d", "rbf-2"), *_BEST_MLP), after_10=0.10),
    ),
    _bar(
        "D2",
        "MNIST-1D, one layer, RBF: .545 after 1 epoch, .605 after 10; frozen: .59, .59",
        _least("mnist1d", "rbf", after_1=0.545, after_10=0.605),
        _least("mnist1d", "frozen", after_1=0.59, after_10=0.59),
    ),
    _bar(
        "D3",
        "MNIST-1D, two layers, frozen and clip: .66 after 10 epochs",
        _least("mnist1d", "frozen-2", after_10=0.66),
        _least("mnist1d", "clip-2", after_10=0.66),
    ),
    _bar(
        "G1",
        "digits, one layer, RBF, frozen, clip: .938, .950, .955 after 1 epoch; .948, .956, .955 "
        "after 10",
        _least("digits", "rbf", after_1=0.938, after_10=0.948),
        _least("digits", "frozen", after_1=0.950, after_10=0.956),
        _least("digits", "clip", after_1=0.955, after_10=0.955),
    ),
    *(
        _bar(
            id,
            f"{data} teacher, one pass, RBF and frozen: error at most {early} at 768 rows, {late} at "
            f"6144; means at most {share} of {what}",
            _most(data, "rbf", after_768=early, after_6144=late),
            _most(data, "frozen", after_768=early, after_6144=late),
            mean=_share(data, share, ("rbf", "frozen"), others),
        )
        for id, data, early, late, share, what, others in (
            ("T1", "tanh", 0.066, 0.025, 0.6, "the best perceptron", _PERCEPTRONS),
            ("T2", "relu", 0.12, 0.033, 0.75, "AdamW", ("adamw",)),
        )
    ),
    _bar(
        "T3",
        "tanh teacher: damped at most .032, clip and gauge .058; naive at least .15, and 5 times RBF",
        _most("tanh", "damped", after_6144=0.032),
        _most("tanh", "clip", after_6144=0.058),
        _most("tanh", "gauge", after_6144=0.058),
        _least("tanh", "naive", after_6144=0.15),
        mean=Mean(
            (GrowthTrial("tanh", "naive"), GrowthTrial("tanh", "rbf")),
            lambda at: figure_of(at, 0) >= 5 * figure_of(at, 1),
            ((0, ""), (1, "")),
        ),
    ),
    _bar(
        "T4",
        "automatic rate, bandwidth .4, .5, .7: tanh at most .025, .042, .062, relu .034, .041, .078; "
        "1.3 times the bound at .7 diverges, and the warning says so before",
        *(
            _most(data, f"stable-{bandwidth}", after_6144=most)
            for data, each in _STABLE.items()
            for bandwidth, most in zip((0.4, 0.5, 0.7), each, strict=True)
        ),
        *(_most(data, "beyond-0.7", finite=0.0) for data in _STABLE),
        *(_least(data, "beyond-0.7", warned=1.0) for data in _STABLE),
    ),
    *(
        _bar(
            id,
            f"hybrid on MNIST-5k, threshold {threshold}: at most {atoms} atoms and at least {least} "
            "after 10 epochs" + ("; mean at most .020 under that of RBF" if mean else ""),
            _most("mnist5k", f"hybrid-{threshold}", atoms=atoms),
            _least("mnist5k", f"hybrid-{threshold}", after_10=least),
            mean=mean,
        )
        for id, threshold, atoms, least, mean in (
            (
                "H1",
                0.72,
                340,
                0.950,
                _gap((GrowthTrial("mnist5k", "hybrid-0.72"), _RBF), after_10=-0.020),
            ),
            ("H2", 0.80, 110, 0.945, None),
            ("H3", 0.87, 45, 0.922, None),
        )
    ),
)
