"""Training what the bars of associative recall need, and judging them."""

import dataclasses
import json
from collections.abc import Iterator, Mapping
from concurrent.futures import as_completed, ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from time import perf_counter
from typing import Any, cast

import jax
from rich.table import Table

import memdsl as md

from ..nn._blocks import Sequence
from ._allocator import keep_freed_memory
from ._bars import Bar, BARS, Figures, KINDS, Trial
from ._data import MixedTask
from ._memories import Questions, recall_memory, weight_decayed
from ._report import Report, Row, SettingError, share, table
from ._sequence import train_recall


SETTLED = 0.9995
"""A run whose every accuracy has reached this is not trained on."""


@dataclass(frozen=True)
class ReproduceSettings:
    """Settings of the reproduction of the recall bars."""

    bars: tuple[str, ...] = ()
    """The bars to check, by id; all by default."""
    seed: int = 0
    """The first seed."""
    seeds: int = 3
    """How many seeds, each of which must clear every bar."""
    workers: int = 2
    """How many models are trained at a time, each in a process of its own."""

    def check(self) -> None:
        """Raises `SettingError` for a value that cannot be."""
        if min(self.seeds, self.workers) < 1 or self.seed < 0:
            raise SettingError("--seeds and --workers must be at least 1, --seed at least 0.")
        known = [bar.id for bar in BARS]
        for name in self.bars:
            if name not in known:
                raise SettingError(
                    f"--bars {name}: there is no such bar. Known: {', '.join(known)}."
                )

    @property
    def chosen(self) -> tuple[Bar, ...]:
        """The bars to check."""
        return tuple(bar for bar in BARS if not self.bars or bar.id in self.bars)

    @property
    def trials(self) -> tuple[Trial, ...]:
        """The trials that the bars need, each once, the longest first."""
        found = dict.fromkeys(trial for bar in self.chosen for trial in bar.trials)
        return tuple(sorted(found, key=lambda t: -(t.steps or KINDS[t.kind].steps)))


def trial_memory(trial: Trial) -> md.AbstractMemory:
    """The memory of a trial, its write rate starting where the trial says."""
    name = trial.memory
    memory = recall_memory("rbf_delta" if name == "rbf_delta_latest" else name, trial.bias)
    if name == "rbf_delta_latest":
        return cast(md.Memory, memory).replace(capacity=md.Budget(16))
    return memory


def trial_spec(trial: Trial) -> md.AbstractLayer:
    """The whole model of a trial."""
    kind = KINDS[trial.kind]
    mixer = md.Layer(
        trial_memory(trial),
        heads=kind.heads,
        key_size=kind.key_size,
        value_size=kind.value_size,
        convolution=4,
        activation="silu",
    )
    block: Any = md.Residual(md.Norm() >> mixer)
    if kind.has_mlp:
        block = block >> md.Residual(md.Norm() >> md.Mlp(2))
    return md.Embed(kind.vocabulary) >> block >> block >> md.Norm() >> md.Unembed(kind.vocabulary)


def run_trial(trial: Trial, seed: int) -> tuple[dict[str, float], float]:
    """Trains one model: its accuracies, and the seconds it took."""
    keep_freed_memory()
    start, kind = perf_counter(), KINDS[trial.kind]
    length = kind.task.test(1).tokens.shape[1]
    dims = md.Dims(model=64, time=length)
    network = md.build(trial_spec(trial), dims, key=jax.random.key(seed))
    model = Questions(cast(Sequence, network))
    further = {}
    if isinstance(kind.task, MixedTask):
        further = {str(task.keys): task.test() for task in kind.task.tasks}
    steps = trial.steps or kind.steps
    found: dict[str, float] = {}
    for at in train_recall(
        model,
        kind.task,
        decayed=weight_decayed(model),
        rate=kind.rate,
        steps=steps,
        batch=kind.batch,
        seed=seed,
        every=100,
        tests=further,
    ):
        found = {"": at.accuracy, **at.accuracies}
        if min(found.values()) >= SETTLED:
            break
    return found, perf_counter() - start


def run_reproduce(settings: ReproduceSettings, report: Report) -> None:
    """Trains every model that the bars need, and judges each bar as soon as its runs are there.

    A row is `{"name", "seed", "passes", "figures"}`, one a bar and seed.

    **Arguments:**

    - `settings`: see `ReproduceSettings`.
    - `report`: an entered `Report`.
    """
    seeds = range(settings.seed, settings.seed + settings.seeds)
    wanted = [(trial, seed) for trial in settings.trials for seed in seeds]
    figures: dict[tuple[Trial, int], Mapping[str, float]] = {}
    report.begin("models", len(wanted), "trained")
    for trial, seed, found, seconds in _trained(wanted, settings.workers):
        figures[trial, seed] = found
        point: Row = {"name": trial.name, "seed": seed, "accuracy": found[""], "seconds": seconds}
        point |= {f"accuracy at {name} pairs": x for name, x in found.items() if name}
        report.note(point, f"{trial.name}, seed {seed}: {share(found[''])}", len(figures))
        for bar in settings.chosen:
            if trial in bar.trials and all((t, seed) in figures for t in bar.trials):
                report.baseline(judged(bar, figures, seed))


def judged(bar: Bar, figures: Figures, seed: int) -> Row:
    """The row of a bar and a seed."""
    mine = [figures[trial, seed] for trial in bar.trials]
    passes = bool(bar.holds(lambda i: mine[i]))
    numbers = [dict(found) for found in mine]
    return {"name": bar.id, "seed": seed, "passes": passes, "figures": numbers}


def _trained(
    wanted: list[tuple[Trial, int]], workers: int
) -> Iterator[tuple[Trial, int, dict[str, float], float]]:
    if workers == 1:
        for trial, seed in wanted:
            yield trial, seed, *run_trial(trial, seed)
        return
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        jobs = {pool.submit(run_trial, trial, seed): (trial, seed) for trial, seed in wanted}
        try:
            for job in as_completed(jobs):
                yield *jobs[job], *job.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def reproduce_table(rows: list[Row]) -> Table:
    """A line a bar: id, statement, the figures of every seed, and whether all of them pass."""
    lines = []
    for bar in BARS:
        mine = sorted((row for row in rows if row["name"] == bar.id), key=lambda row: row["seed"])
        if not mine:
            continue
        shown = "\n".join(" ".join(_numbers(bar, row["figures"])) for row in mine)
        verdict = "pass" if all(row["passes"] for row in mine) else "fail"
        lines.append([bar.id, verdict, shown, bar.statement])
    result = table(
        "Associative recall", ["bar", "", "figures, a line a seed", "statement"], [lines]
    )
    for column in result.columns:
        column.justify, column.no_wrap = "left", False
    return result


def _numbers(bar: Bar, figures: list[dict[str, float]]) -> list[str]:
    if bar.id == "F1":
        places = ("16", "16", "24", "24")
        return [share(found[at], 3) for found, at in zip(figures, places, strict=True)]
    return [share(found[""], 3) for found in figures]


def reproduce_settings(settings: ReproduceSettings) -> dict[str, Any]:
    """The settings as JSON values, with the bars."""
    bars = {bar.id: bar.statement for bar in settings.chosen}
    return {**dataclasses.asdict(settings), "bars": bars, "settled": SETTLED}


def reproduce_specs(settings: ReproduceSettings) -> dict[str, Any]:
    """The spec of each model that is trained, as JSON values."""
    return {trial.name: json.loads(md.to_json(trial_spec(trial))) for trial in settings.trials}
