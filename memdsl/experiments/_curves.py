"""Learners side by side: running them, and the table of what they reached."""

from collections.abc import Callable, Iterable, Mapping
from time import perf_counter
from typing import Any

import numpy as np
from rich.table import Table

import memdsl as md

from ._learn import Course, learn, Problem
from ._learners import AbstractLearner
from ._report import Report, Row, SettingError, share, table


def run_learners(
    problem_of: Callable[[int], Problem],
    learners: Mapping[str, AbstractLearner],
    course: Course,
    seeds: Iterable[int],
    report: Report,
) -> None:
    """Trains every learner with every seed, and records each test in the report.

    A row is `{"name", "seed", measure: [one an epoch], "seconds", "atoms", "train_loss", "step_ms"}`,
    where the measure is the problem's; its seconds are wall-clock, with compilation and tests, the
    milliseconds of a step are without; its atoms are the occupied slots of all that grows, `None` for a
    perceptron. Where every row is seen once there is a number a test, and `"samples"` has the rows
    seen. A point of the history also has the epoch, the step, the rows seen, and the seconds of the
    steps alone.

    **Arguments:**

    - `problem_of`: the problem of a seed.
    - `learners`: by the name of their rows.
    - `course`: how long they learn.
    - `seeds`: of the orders of rows, and of all that is drawn.
    - `report`: an entered `Report`.
    """
    for seed in seeds:
        problem = problem_of(seed)
        rows = len(problem.train_inputs)
        epoch_of = course.steps(rows) * course.batch
        for name, learner in learners.items():
            report.begin(f"{name}, seed {seed}", course.epochs, "epochs")
            start = perf_counter()
            model = learner.model(problem, course, seed)
            check_rates(problem, model, course, seed)
            optimiser = learner.optimiser(problem, course)
            found: list[float | None] = []
            seen: list[int] = []
            orders, looks_back = course.orders(rows, seed), course.looks_back
            for at in learn(problem, model, optimiser, orders, looks_back=looks_back):
                whole, part = divmod(at.samples, epoch_of)
                score, loss = _finite(at.score), _finite(at.train_loss)
                step = at.samples // course.batch
                if part == 0 or not course.shuffled:
                    found.append(score)
                    seen.append(at.samples)
                seconds = round(perf_counter() - start, 3)
                row: Row = {
                    "name": name,
                    "seed": seed,
                    problem.measure: list(found),
                    "seconds": seconds,
                    "atoms": at.atoms,
                    "train_loss": loss,
                    "step_ms": round(1000 * at.seconds / step, 3),
                }
                if not course.shuffled:  # every row is seen once
                    row["samples"] = list(seen)
                point: Row = {
                    "name": name,
                    "seed": seed,
                    "epoch": whole if part == 0 else round(at.samples / epoch_of, 4),
                    "samples": at.samples,
                    "train_loss": loss,
                    problem.measure: score,
                    "seconds": seconds,
                    "atoms": at.atoms,
                    "evicted": at.evicted,
                    "step": step,
                    "step_seconds": round(at.seconds, 4),
                }
                news = f"{problem.measure.replace('_', ' ')} {shown(score)}"
                report.record(row, point, news, whole)


def check_rates(problem: Problem, model: Any, course: Course, seed: int) -> None:
    """Warns (`md.grow.RateWarning`) where a growing layer steps too far, by the first batch.

    Only under a squared loss, whose curvature is the same wherever the answers are. That of a
    cross-entropy fades as the answers become right, and steps several times beyond its bound at the
    first batch are the best ones.
    """
    if not problem.is_square or not md.grow.growing(model):
        return
    rows = next(course.orders(len(problem.train_inputs), seed))[0]
    batch = problem.train_inputs[rows], problem.train_targets[rows]
    md.grow.suggest_rate(problem.loss, model, *batch).check()


def check_course(settings: object, rows: int) -> None:
    """Raises `SettingError` where a run could not be that long, or so often."""
    for name in ("epochs", "batch", "seeds", "tests"):
        value = getattr(settings, name, 1)
        if value < 1:
            raise SettingError(f"--{name} must be at least 1, not {value}.")
    batch, seed = getattr(settings, "batch", 1), getattr(settings, "seed", 0)
    if batch > rows:
        raise SettingError(f"--batch is {batch}, and there are only {rows} training rows.")
    if seed < 0:
        raise SettingError(f"--seed must be 0 or more, not {seed}.")


def check_positive(settings: object, *names: str) -> None:
    """Raises `SettingError` where one of these is no positive finite number."""
    for name in names:
        value = getattr(settings, name)
        if not (np.isfinite(value) and value > 0):
            option = name.replace("_", "-")
            raise SettingError(f"--{option} must be a positive finite number, not {value}.")


def curves_table(title: str, rows: list[Row], measure: str) -> Table:
    """What was reached at each test, seconds, atoms: a line a row, then means over seeds.

    **Arguments:**

    - `title`: printed above.
    - `rows`: of `run_learners`.
    - `measure`: the key of the list in a row; over its numbers are those of epochs, or rows seen.
    """
    count = max((len(row[measure]) for row in rows), default=0)
    at = list(range(1, count + 1))
    if count > 10:
        at = sorted({1, 2, 5, *np.linspace(10, count, 7).astype(int).tolist()})

    def line(name: str, seed: str, same: list[Row]) -> list[str]:
        curves = [row[measure] for row in same]
        reached = min(map(len, curves))
        scores = [_mean([c[e - 1] for c in curves]) for e in at if e <= reached]
        scores += [""] * (len(at) - len(scores))
        seconds = float(np.mean([row["seconds"] for row in same]))
        kept = [row["atoms"] for row in same if row["atoms"] is not None]
        atoms = f"{np.mean(kept):.0f}" if kept else ""
        return [name, seed, *scores, f"{seconds:.1f}", atoms]

    sections = [[line(row["name"], str(row["seed"]), [row]) for row in rows]]
    if len({row["seed"] for row in rows}) > 1:
        names = dict.fromkeys(row["name"] for row in rows)
        sections.append([line(n, "all", [r for r in rows if r["name"] == n]) for n in names])
    longest = max(rows, key=lambda row: len(row[measure]), default={})
    over = [str(longest["samples"][e - 1] if "samples" in longest else e) for e in at]
    return table(title, ["name", "seed", *over, "seconds", "atoms"], sections)


def shown(score: float | None, digits: int = 4) -> str:
    """A score as it is printed; that of a run that came to no number as a dash."""
    return "–" if score is None else share(score, digits)


def _finite(number: float) -> float | None:
    return number if np.isfinite(number) else None


def _mean(scores: list[float | None]) -> str:
    numbers = [score for score in scores if score is not None]
    return shown(float(np.mean(numbers)) if len(numbers) == len(scores) else None, 3)
