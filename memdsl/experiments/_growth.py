"""The growth experiments: classification, teachers and hybrids, each with its settings."""

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass

from ._classification import DataName
from ._curves import check_positive
from ._growth_bars import GROWTH_BARS
from ._learn import Course, Problem
from ._learners import AbstractLearner
from ._learners_growing import GrowthLearner
from ._recipes import ASIDE, course, learner, LEARNERS, problem, TEACHERS
from ._report import SettingError
from ._runs import check_runs, names_of, Runs, runs_of_bar
from ._teacher import TeacherName, TRAIN


@dataclass(frozen=True)
class ClassifySettings:
    """Settings of the classification run.

    The settings of every learner were tuned on a part of the training rows, one setting for every
    number of epochs; the baseline adamw on mnist5k on the test rows, in its own favour.
    """

    data: DataName = "digits"
    """digits: 898 of scikit-learn's 8 x 8 images. mnist5k: 4000 images of MNIST. mnist1d: 4000 signals
    of MNIST-1D. The last two come with packages: pip install '.[bench]'."""
    learner: tuple[str, ...] = ("all",)
    """One or several, or all. Growing layers: rbf, and a weighted softmax by its rule, frozen, damped,
    clip, gauge, or naive insertion; two of them: rbf-2, frozen-2, clip-2. A perceptron of 64 hidden
    units: sgd, adamw, muon. Of mnist5k, and not among all: deep, growing convolutions under a growing
    layer, and deep-fixed, the same with convolutions as they were drawn."""
    preset: str | None = None
    """A bar of memdsl reproduce growth, whose data and learners are taken instead."""
    epochs: int = 10
    """Passes over the training rows."""
    tests: int = 8
    """Tests in the first epoch; later ones have one at their end."""
    seed: int = 0
    """The first seed; it decides the order of the rows and all that is drawn."""
    seeds: int = 1
    """How many seeds to run: seed, seed + 1, ..."""
    rate: float | None = None
    """Step of growing layers, in the place of the tuned one."""
    bandwidth: float | None = None
    """Width of the kernel of growing layers, as a share of the median distance of two inputs, in the
    place of the tuned one."""

    def check(self) -> None:
        """Raises `SettingError` for a value that cannot be."""
        check_runs(self)
        given = [name for name in ("rate", "bandwidth") if getattr(self, name) is not None]
        check_positive(self, *given)

    @property
    def task(self) -> str:
        """What the folder of results is called after."""
        return self.preset or self.data

    @property
    def runs(self) -> Runs:
        """What is trained, on what."""
        chosen = _chosen(self.preset, CLASSIFY, self.data, self.learner)
        return {
            data: {name: self._changed(one) for name, one in learners.items()}
            for data, learners in chosen.items()
        }

    def course(self, data: str) -> Course:
        """How long it is trained."""
        return course(data, self.epochs, self.tests)

    def problem(self, data: str, seed: int) -> Problem:
        """The rows and the test."""
        return problem(data, seed)

    def _changed(self, one: AbstractLearner) -> AbstractLearner:
        if not isinstance(one, GrowthLearner):
            return one
        layers = len(one.rates)
        return dataclasses.replace(
            one,
            rates=one.rates if self.rate is None else (self.rate,) * layers,
            bandwidths=one.bandwidths if self.bandwidth is None else (self.bandwidth,) * layers,
        )


@dataclass(frozen=True)
class TeacherSettings:
    """Settings of the teacher-student run.

    The settings of every learner were tuned on a teacher of its own, which no seed gives.
    """

    teacher: TeacherName = "tanh"
    """A random network: tanh and relu are smooth, hard is tanh far in its saturation."""
    learner: tuple[str, ...] = ("all",)
    """One or several, or all. Growing layers: rbf, frozen, damped, clip, gauge, naive. A perceptron of 64
    hidden units: sgd, adamw, muon. Not among all are: stable-0.4, stable-0.5, stable-0.7, rbf of that
    width at .8 of the stable rate, and beyond-0.7 at 1.3 of it, which diverges; of hard, tuned for 24576
    rows, muon-long, muon-falls with a rate that falls, fading with a memory beside it, solved and
    solved-falls with a last layer that grows."""
    preset: str | None = None
    """A bar of memdsl reproduce growth, whose teachers and learners are taken instead."""
    rows: int = TRAIN
    """How many rows are seen, each once."""
    tests: int = 8
    """How often it is tested on the way."""
    seed: int = 0
    """The first seed; it decides the teacher and all that is drawn."""
    seeds: int = 1
    """How many seeds to run: seed, seed + 1, ..."""

    def check(self) -> None:
        """Raises `SettingError` for a value that cannot be."""
        batch = course(self.teacher).batch
        if self.rows < batch:
            raise SettingError(f"--rows must be at least {batch}, a batch, not {self.rows}.")
        check_runs(self)

    @property
    def task(self) -> str:
        """What the folder of results is called after."""
        return self.preset or self.teacher

    @property
    def runs(self) -> Runs:
        """What is trained, on what."""
        return _chosen(self.preset, STUDENT, self.teacher, self.learner)

    def course(self, data: str) -> Course:
        """How long it is trained."""
        return course(data, parts=self.tests)

    def problem(self, data: str, seed: int) -> Problem:
        """The rows and the test."""
        return problem(data, seed, self.rows)


@dataclass(frozen=True)
class HybridSettings:
    """Settings of the hybrid run.

    The rates of Adam were tuned on a part of the training rows: on mnist5k for the hybrid, which mnist1d
    takes over, on digits for its control.
    """

    data: DataName = "mnist5k"
    """As of memdsl run classify."""
    threshold: tuple[float, ...] = (0.87, 0.80, 0.72, 0.65)
    """How far a row must be from all atoms to become one, as shares of the median distance."""
    centres: tuple[int, ...] = ()
    """The control: so many atoms at random rows, and none that grows."""
    merged: tuple[int, ...] = ()
    """So many atoms, which the rows of the first epoch are merged into."""
    preset: str | None = None
    """A bar of memdsl reproduce growth, whose learners are taken instead."""
    epochs: int = 10
    """Passes over the training rows."""
    tests: int = 8
    """Tests in the first epoch; later ones have one at their end."""
    seed: int = 0
    """The first seed; it decides the order of the rows."""
    seeds: int = 1
    """How many seeds to run: seed, seed + 1, ..."""

    def check(self) -> None:
        """Raises `SettingError` for a value that cannot be."""
        check_runs(self)
        for threshold in self.threshold:
            if not 0 < threshold < 10:
                raise SettingError(f"--threshold must be between 0 and 10, not {threshold}.")
        for name in ("centres", "merged"):
            for count in getattr(self, name):
                if count < 1:
                    raise SettingError(f"--{name} must be at least 1, not {count}.")

    @property
    def task(self) -> str:
        """What the folder of results is called after."""
        return self.preset or self.data

    @property
    def runs(self) -> Runs:
        """What is trained, on what."""
        names = [
            "rbf",
            *(f"hybrid-{threshold:g}" for threshold in self.threshold),
            *(f"centres-{count}" for count in self.centres),
            *(f"merged-{count}" for count in self.merged),
        ]
        if self.preset is not None:
            return _chosen(self.preset, HYBRID, self.data, ())
        return {self.data: {name: learner(self.data, name) for name in names}}

    def course(self, data: str) -> Course:
        """How long it is trained."""
        return course(data, self.epochs, self.tests)

    def problem(self, data: str, seed: int) -> Problem:
        """The rows and the test."""
        return problem(data, seed)


def _is_hybrid(id: str) -> bool:
    return id.startswith("H")


STUDENT = tuple(bar.id for bar in GROWTH_BARS if bar.trials[0].data in TEACHERS)
"""The presets of `memdsl run teacher-student`."""
HYBRID = tuple(bar.id for bar in GROWTH_BARS if _is_hybrid(bar.id))
"""The presets of `memdsl run hybrid`."""
CLASSIFY = tuple(bar.id for bar in GROWTH_BARS if bar.id not in STUDENT + HYBRID)
"""The presets of `memdsl run classify`."""


def _chosen(preset: str | None, presets: tuple[str, ...], data: str, names: Iterable[str]) -> Runs:
    """The learners by name, or those of a preset; or `SettingError`."""
    if preset is not None:
        return runs_of_bar(preset, [bar for bar in GROWTH_BARS if bar.id in presets], learner)
    return {
        data: {name: learner(data, name) for name in names_of(names, LEARNERS[data], aside=ASIDE)}
    }
