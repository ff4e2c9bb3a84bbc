"""Two-layer sequence models with one memory each, on multi-query associative recall."""

import dataclasses
import json
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np
from rich.table import Table

import memdsl as md

from ._data import RECALL_TASKS, RecallName
from ._memories import RECALL_MEMORIES, recall_model, recall_spec, state_size, weight_decayed
from ._report import Report, Row, SettingError, share, suggestion, table
from ._sequence import train_recall


@dataclass(frozen=True)
class RecallSettings:
    """Settings of the recall run.

    The recipe is that of small trials, chosen on seed 0: two blocks x + mixer(norm(x)) of width 64
    and two heads; queries, keys and values pass a causal convolution of width 4 and a SiLU; no
    position embedding; an RMS norm a head; a separate unembedding, read at the questions alone.
    """

    task: RecallName = "mqar"
    """mqar: 16 pairs, then the 16 keys are asked for. rewrites: 8 keys, each written twice, and the
    last value counts. 512 tokens, length 64, 512 fixed test sequences."""
    memory: tuple[str, ...] = ("all",)
    """One or several names that memdsl list shows, or all: the ten it marks, which take about half a
    minute each."""
    seed: int = 0
    """The first seed; it decides the initial weights and the training sequences."""
    seeds: int = 1
    """How many seeds to run: seed, seed + 1, ..."""
    steps: int = 400
    """Training steps, each on fresh sequences."""
    batch: int = 32
    """Sequences in a step."""
    rate: float = 0.01
    """Highest learning rate, after a warm-up over a tenth of the steps."""
    every: int = 50
    """Steps between tests, the points of the learning curves."""

    def check(self) -> None:
        """Raises `SettingError` for a value that cannot be."""
        for name in ("seeds", "steps", "batch", "every"):
            if getattr(self, name) < 1:
                raise SettingError(f"--{name} must be at least 1, not {getattr(self, name)}.")
        if not (np.isfinite(self.rate) and self.rate > 0):
            raise SettingError(f"--rate must be a positive finite number, not {self.rate}.")
        if self.seed < 0:
            raise SettingError(f"--seed must be 0 or more, not {self.seed}.")
        if not self.memory:
            raise SettingError("--memory needs at least one name, or all.")
        for name in self.memory:
            known = ["all", *md.zoo.catalogue()]
            if name not in known:
                near = suggestion(name, known)
                raise SettingError(f"--memory {name}: there is no such memory here. {near}")

    @property
    def names(self) -> list[str]:
        """The memories to train, each once, `all` spelled out."""
        chosen = [m for n in self.memory for m in (RECALL_MEMORIES if n == "all" else [n])]
        return list(dict.fromkeys(chosen))


def recall_specs(settings: RecallSettings) -> dict[str, Any]:
    """The spec of each model that is trained, as JSON values."""
    task = RECALL_TASKS[settings.task]
    return {name: json.loads(md.to_json(recall_spec(name, task))) for name in settings.names}


def recall_settings(settings: RecallSettings) -> dict[str, Any]:
    """The settings as JSON values, with those of the task."""
    task = RECALL_TASKS[settings.task]
    return {
        **dataclasses.asdict(settings),
        "memory": settings.names,
        "sequences": dataclasses.asdict(task),
        "chance": task.chance,
    }


def run_recall(settings: RecallSettings, report: Report) -> None:
    """Trains a model a memory and seed, and records each test in the report.

    A row is `{"name", "task", "seed", "accuracy", "state_size", "seconds"}`. The accuracy is over
    all questions of the test sequences; the state is the number of floats that the memory of one
    layer holds for one sequence (convolution tails not counted); the seconds are wall-clock, with
    compilation and tests.

    **Arguments:**

    - `settings`: see `RecallSettings`.
    - `report`: an entered `Report`.
    """
    task = RECALL_TASKS[settings.task]
    for seed in range(settings.seed, settings.seed + settings.seeds):
        for name in settings.names:
            report.begin(f"{name}, seed {seed}", settings.steps, "steps")
            start = perf_counter()
            model, size = recall_model(name, task, seed=seed), state_size(name, task.time)
            checkpoints = train_recall(
                model,
                task,
                decayed=weight_decayed(model),
                rate=settings.rate,
                steps=settings.steps,
                batch=settings.batch,
                seed=seed,
                every=settings.every,
                advance=report.advance,
            )
            for at in checkpoints:
                seconds = round(perf_counter() - start, 3)
                row: Row = {
                    "name": name,
                    "task": settings.task,
                    "seed": seed,
                    "accuracy": at.accuracy,
                    "state_size": size,
                    "seconds": seconds,
                }
                point: Row = {
                    "name": name,
                    "seed": seed,
                    "step": at.step,
                    "train_loss": at.train_loss,
                    "accuracy": at.accuracy,
                    "seconds": seconds,
                }
                report.record(row, point, f"accuracy {share(at.accuracy)}", at.step)


def recall_table(rows: list[Row]) -> Table:
    """Accuracy, state size and seconds, the most accurate memory first."""
    names = dict.fromkeys(row["name"] for row in rows)
    mean = {n: np.mean([r["accuracy"] for r in rows if r["name"] == n]) for n in names}
    ordered = sorted(rows, key=lambda row: (-mean[row["name"]], row["name"], row["seed"]))
    lines = [
        [
            row["name"],
            str(row["seed"]),
            share(row["accuracy"]),
            str(row["state_size"]),
            f"{row['seconds']:.1f}",
        ]
        for row in ordered
    ]
    task = rows[0]["task"] if rows else ""
    columns = ["memory", "seed", "accuracy", "state size", "seconds"]
    return table(f"Associative recall, {task}", columns, [lines])
