"""The bars of dual optimisers: what each is about, and the runs it needs."""

from collections.abc import Callable
from dataclasses import dataclass

from ._growth_bars import GrowthTrial
from ._judge import At, Bar, figure_of


@dataclass(frozen=True)
class StepTrial:
    """How long the steps of an optimiser take beside AdamW's, in a network with so many inputs."""

    inputs: int
    optimiser: str

    @property
    def name(self) -> str:
        """What the trial is called in tables."""
        return f"{self.inputs} inputs: a step of {self.optimiser} / AdamW"


def _once(at: At) -> bool:
    mesa, *others = (figure_of(at, index, "train_loss") for index in range(3))
    return mesa <= 0.14 and mesa <= 0.6 * min(others) and figure_of(at, 0) >= 0.918


def _five(at: At) -> bool:
    mesa, muon = (figure_of(at, index, "train_loss") for index in range(2))
    return mesa <= 0.013 and mesa < muon and figure_of(at, 0) >= 0.942


def _unequal(at: At) -> bool:
    mesa, descent = figure_of(at, 0), figure_of(at, 1)
    return mesa <= 0.080 and mesa <= 0.5 * descent


def _learned(
    id: str,
    statement: str,
    data: str,
    names: str,
    holds: Callable[[At], bool],
    shown: tuple[tuple[int, str], ...],
) -> Bar:
    trials = tuple(GrowthTrial(data, name) for name in names.split())
    return Bar(id, statement, trials, holds, shown=shown)


def _timed(id: str, inputs: int, most: float) -> Bar:
    statement = f"a step of mesa is at most {most:g} of AdamW's, with {inputs} inputs"
    trial = StepTrial(inputs, "mesa")
    return Bar(id, statement, (trial,), lambda at: figure_of(at, 0) <= most)


_LOSS = "train_loss"

DUAL_BARS: tuple[Bar, ...] = (
    _learned(
        "O1",
        "MNIST-5k, raw pixels, 40 steps of cumulative mesa: training loss at most .14, and .6 of "
        "Muon's and AdamW's; test at least .918",
        "mnist5k-once",
        "mesa-cumulative muon adamw",
        _once,
        ((0, _LOSS), (1, _LOSS), (2, _LOSS), (0, "")),
    ),
    _learned(
        "O2",
        "the same, 200 steps of mesa: training loss at most .013, and below Muon's; test at least .942",
        "mnist5k",
        "mesa muon",
        _five,
        ((0, _LOSS), (1, _LOSS), (0, "")),
    ),
    _learned(
        "O3",
        "teacher with inputs of unequal size, mesa: error at most .080, and .5 of SGD's with momentum",
        "teacher-student-unequal",
        "mesa sgd",
        _unequal,
        ((0, ""), (1, "")),
    ),
    _timed("O4", 196, 12),
    _timed("O4 wide", 784, 25),
)
