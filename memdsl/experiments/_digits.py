"""The main job: one growing layer against a perceptron, on scikit-learn's digits."""

from dataclasses import dataclass

import numpy as np
from rich.table import Table

from ._curves import check_course, check_positive, curves_table
from ._learn import Course, Problem
from ._learners import AbstractLearner, GradientLearner
from ._learners_growing import GrowthLearner
from ._recipes import problem
from ._report import Row, SettingError
from ._runs import Runs


@dataclass(frozen=True)
class DigitsSettings:
    """Settings of the digits run.

    The step and the width of the growing layer, and the batch, are those of small trials that were
    tuned on a part of the training half. The perceptrons' rates, momentum and weight decay are the
    best of a grid by accuracy on rows held out from the training half, averaged over ten epochs,
    five seeds and two cuts (`benchmarks/tune_perceptrons.py`; where two SGD rates tied, the one that is
    better after one epoch). No setting was chosen by looking at the test half.
    """

    epochs: int = 10
    """Passes over the 898 training rows."""
    batch: int = 25
    """Rows in a step."""
    seed: int = 0
    """The first seed; it decides the order of the rows and the perceptrons' initial weights."""
    seeds: int = 1
    """How many seeds to run: seed, seed + 1, ..."""
    rate: float = 100.0
    """Step of the growing layer: an atom's value is minus this times the gradient of the mean
    loss, so that batch 25 makes it 4 for a row."""
    bandwidth: float = 0.3
    """Width of the growing layer's RBF kernel, as a share of the median distance between rows."""
    hidden: int = 64
    """Hidden width of the perceptrons."""
    sgd_rate: float = 0.56
    """Learning rate of the perceptron trained by SGD."""
    sgd_momentum: float = 0.0
    """Momentum of the perceptron trained by SGD."""
    adamw_rate: float = 0.018
    """Learning rate of the perceptron trained by AdamW."""
    adamw_decay: float = 0.1
    """Weight decay of the perceptron trained by AdamW."""

    def check(self) -> None:
        """Raises `SettingError` for a value that cannot be."""
        if self.hidden < 1:
            raise SettingError(f"--hidden must be at least 1, not {self.hidden}.")
        check_course(self, rows=898)
        check_positive(self, "rate", "bandwidth", "sgd_rate", "adamw_rate")
        if not 0 <= self.sgd_momentum < 1:
            raise SettingError(f"--sgd-momentum must be in [0, 1), not {self.sgd_momentum}.")
        if not (np.isfinite(self.adamw_decay) and self.adamw_decay >= 0):
            raise SettingError(f"--adamw-decay must be 0 or more, not {self.adamw_decay}.")

    @property
    def runs(self) -> Runs:
        """What is trained, on what."""
        learners: dict[str, AbstractLearner] = {
            "grown rbf": GrowthLearner((self.rate,), (self.bandwidth,)),
            "mlp sgd": GradientLearner(
                "sgd", self.sgd_rate, momentum=self.sgd_momentum, hidden=(self.hidden,)
            ),
            "mlp adamw": GradientLearner(
                "adamw", self.adamw_rate, decay=self.adamw_decay, hidden=(self.hidden,)
            ),
        }
        return {"digits": learners}

    def course(self, data: str) -> Course:
        """How long it is trained."""
        return Course(self.epochs, self.batch)

    def problem(self, data: str, seed: int) -> Problem:
        """The rows and the test."""
        return problem(data, seed)


def digits_table(rows: list[Row]) -> Table:
    """Test accuracy after each epoch, seconds, atoms: a line a row, then means over seeds."""
    return curves_table("Digits: test accuracy after each epoch", rows, "test_accuracy")
