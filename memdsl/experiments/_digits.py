"""The main job: one growing layer against a perceptron, on scikit-learn's digits."""

import dataclasses
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np
import optax
from rich.table import Table

import memdsl as md

from ._classify import Epoch, train_perceptron
from ._data import Classification, digits
from ._grown import grown_rbf, layer_spec
from ._report import Report, Row, SettingError, share, table


@dataclass(frozen=True)
class DigitsSettings:
    """Settings of the digits run.

    The step and the width of the growing layer, and the batch, are those of small trials that were
    tuned on a part of the training half. The perceptrons' rates, momentum and weight decay are the
    best of a grid by accuracy on rows held out from the training half, averaged over ten epochs,
    five seeds and two cuts (`benchmarks/tune_digits.py`; where two SGD rates tied, the one that is
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
        for name in ("epochs", "batch", "seeds", "hidden"):
            if getattr(self, name) < 1:
                raise SettingError(f"--{name} must be at least 1, not {getattr(self, name)}.")
        if self.batch > 898:
            raise SettingError(f"--batch is {self.batch}, and there are only 898 training rows.")
        for name in ("rate", "bandwidth", "sgd_rate", "adamw_rate"):
            value = getattr(self, name)
            if not (np.isfinite(value) and value > 0):
                option = name.replace("_", "-")
                raise SettingError(f"--{option} must be a positive finite number, not {value}.")
        if not 0 <= self.sgd_momentum < 1:
            raise SettingError(f"--sgd-momentum must be in [0, 1), not {self.sgd_momentum}.")
        if not (np.isfinite(self.adamw_decay) and self.adamw_decay >= 0):
            raise SettingError(f"--adamw-decay must be 0 or more, not {self.adamw_decay}.")
        if self.seed < 0:
            raise SettingError(f"--seed must be 0 or more, not {self.seed}.")


Learner = Callable[[Classification, DigitsSettings, int], Iterator[Epoch]]


def _mlp_sgd(data: Classification, settings: DigitsSettings, seed: int) -> Iterator[Epoch]:
    optimiser = optax.sgd(settings.sgd_rate, momentum=settings.sgd_momentum or None)
    return _mlp(data, settings, seed, optimiser)


def _mlp_adamw(data: Classification, settings: DigitsSettings, seed: int) -> Iterator[Epoch]:
    optimiser = optax.adamw(settings.adamw_rate, weight_decay=settings.adamw_decay)
    return _mlp(data, settings, seed, optimiser)


def _mlp(
    data: Classification,
    settings: DigitsSettings,
    seed: int,
    optimiser: optax.GradientTransformation,
) -> Iterator[Epoch]:
    return train_perceptron(
        data,
        optimiser,
        hidden=settings.hidden,
        epochs=settings.epochs,
        batch=settings.batch,
        seed=seed,
    )


def _grown(data: Classification, settings: DigitsSettings, seed: int) -> Iterator[Epoch]:
    return grown_rbf(
        data,
        rate=settings.rate,
        bandwidth=settings.bandwidth,
        epochs=settings.epochs,
        batch=settings.batch,
        seed=seed,
    )


LEARNERS: dict[str, Learner] = {
    "grown rbf": _grown,
    "mlp sgd": _mlp_sgd,
    "mlp adamw": _mlp_adamw,
}


def digits_specs(settings: DigitsSettings) -> dict[str, Any]:
    """What is trained, by name: the spec of the growing layer, the perceptrons in words."""
    spec = layer_spec(digits(), rate=settings.rate, bandwidth=settings.bandwidth)
    perceptron = f"64 inputs times 8, {settings.hidden} ReLU, 10 logits"
    return {
        "grown rbf": json.loads(md.to_json(spec)),
        "mlp sgd": perceptron,
        "mlp adamw": perceptron,
    }


def run_digits(settings: DigitsSettings, report: Report) -> None:
    """Trains every learner with every seed, and records each epoch in the report.

    A row is `{"name", "seed", "test_accuracy": [one an epoch], "seconds", "atoms"}`; its seconds
    are wall-clock, with compilation and the tests after each epoch; its atoms are the occupied
    slots of the growing layer's memory, `None` for a perceptron.

    **Arguments:**

    - `settings`: see `DigitsSettings`.
    - `report`: an entered `Report`.
    """
    data = digits()
    for seed in range(settings.seed, settings.seed + settings.seeds):
        for name, learner in LEARNERS.items():
            report.begin(f"{name}, seed {seed}", settings.epochs, "epochs")
            start = perf_counter()
            accuracies: list[float] = []
            for number, epoch in enumerate(learner(data, settings, seed), 1):
                accuracies.append(epoch.test_accuracy)
                seconds = round(perf_counter() - start, 3)
                row: Row = {
                    "name": name,
                    "seed": seed,
                    "test_accuracy": list(accuracies),
                    "seconds": seconds,
                    "atoms": epoch.atoms,
                }
                point: Row = {
                    "name": name,
                    "seed": seed,
                    "epoch": number,
                    "train_loss": epoch.train_loss,
                    "test_accuracy": epoch.test_accuracy,
                    "seconds": seconds,
                    "atoms": epoch.atoms,
                }
                news = f"test accuracy {share(epoch.test_accuracy)}"
                report.record(row, point, news, number)


def digits_settings(settings: DigitsSettings) -> dict[str, Any]:
    """The settings as JSON values, with the facts about the data that go with them."""
    facts = {"data": "scikit-learn digits, first half trains, second half tests, unshuffled"}
    return {**dataclasses.asdict(settings), **facts}


def digits_table(rows: list[Row]) -> Table:
    """Test accuracy after each epoch, seconds, atoms: a line a row, then means over seeds."""
    epochs = max((len(row["test_accuracy"]) for row in rows), default=0)
    shown = list(range(1, epochs + 1))
    if epochs > 10:
        shown = sorted({1, 2, 5, *np.linspace(10, epochs, 7).astype(int).tolist()})

    def line(name: str, seed: str, same: list[Row]) -> list[str]:
        curves = [row["test_accuracy"] for row in same]
        reached = min(map(len, curves))
        means = [float(np.mean([c[e - 1] for c in curves])) for e in shown if e <= reached]
        scores = [share(mean, 3) for mean in means]
        scores += [""] * (len(shown) - len(scores))
        seconds = float(np.mean([row["seconds"] for row in same]))
        kept = [row["atoms"] for row in same if row["atoms"] is not None]
        atoms = f"{np.mean(kept):.0f}" if kept else ""
        return [name, seed, *scores, f"{seconds:.1f}", atoms]

    sections = [[line(row["name"], str(row["seed"]), [row]) for row in rows]]
    if len({row["seed"] for row in rows}) > 1:
        names = dict.fromkeys(row["name"] for row in rows)
        sections.append([line(n, "all", [r for r in rows if r["name"] == n]) for n in names])
    columns = ["name", "seed", *map(str, shown), "seconds", "atoms"]
    return table("Digits: test accuracy after each epoch", columns, sections)
