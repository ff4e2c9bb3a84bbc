"""Training what the bars of a suite need, and judging them."""

import dataclasses
import os
from collections.abc import Iterator
from concurrent.futures import as_completed, ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from tempfile import TemporaryDirectory
from typing import Any, Literal

import jax
import tyro
from rich.table import Table

from ._dual_trials import DUALS
from ._growth_trials import GROWTH
from ._judge import Bar, Found, judged, judged_by_means, Suite
from ._recall_trials import RECALL
from ._report import Report, Row, SettingError, share, table


SUITES: dict[str, Suite] = {"recall": RECALL, "growth": GROWTH, "duals": DUALS}


@dataclass(frozen=True)
class ReproduceSettings:
    """Settings of the reproduction of some bars."""

    which: tyro.conf.Positional[Literal["recall", "growth", "duals"]]
    """What the bars are about."""
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
        known = [bar.id for bar in self.suite.bars]
        for name in self.bars:
            if name not in known:
                raise SettingError(
                    f"--bars {name}: there is no such bar. Known: {', '.join(known)}."
                )
        for trial in self.trials:
            self.suite.needs(trial)

    @property
    def task(self) -> str:
        """What the folder of results is called after."""
        return self.which

    @property
    def suite(self) -> Suite:
        """The bars there are, and how their trials are run."""
        return SUITES[self.which]

    @property
    def chosen(self) -> tuple[Bar, ...]:
        """The bars to check."""
        return tuple(bar for bar in self.suite.bars if not self.bars or bar.id in self.bars)

    @property
    def trials(self) -> tuple[Any, ...]:
        """The trials that the bars need, each once, the longest first."""
        found = dict.fromkeys(trial for bar in self.chosen for trial in bar.trials)
        return tuple(sorted(found, key=lambda trial: -self.suite.cost(trial)))


def run_reproduce(settings: ReproduceSettings, report: Report) -> None:
    """Trains every model that the bars need, and judges each bar as soon as its runs are there.

    A row is `{"bars", "name", "seed", "passes", "figures"}`, one a bar and seed, and one with the seed
    `"mean"` for what a bar says of means.

    **Arguments:**

    - `settings`: see `ReproduceSettings`.
    - `report`: an entered `Report`.
    """
    suite, seeds = settings.suite, range(settings.seed, settings.seed + settings.seeds)
    wanted = [(trial, seed) for seed in seeds for trial in settings.trials]
    figures: dict[tuple[Any, int], Found] = {}
    report.begin("models", len(wanted), "trained")
    for trial, seed, found, seconds in _trained(suite, wanted, settings.workers):
        figures[trial, seed] = found
        last = found[""]
        point: Row = {"name": trial.name, "seed": seed, suite.measure: last, "seconds": seconds}
        point |= {f"{suite.measure} at {name}": x for name, x in found.items() if name}
        shown = "–" if last is None else share(last)
        report.note(point, f"{trial.name}, seed {seed}: {shown}", len(figures))
        for bar in settings.chosen:
            if trial not in bar.trials:
                continue
            if bar.holds and all((own, seed) in figures for own in bar.trials):
                report.baseline({"bars": settings.which, **judged(bar, figures, seed)})
            if bar.mean_holds and all((t, s) in figures for t in bar.trials for s in seeds):
                row = judged_by_means(bar, figures, seeds)
                report.baseline({"bars": settings.which, **row})


def _trained(
    suite: Suite, wanted: list[tuple[Any, int]], workers: int
) -> Iterator[tuple[Any, int, Found, float]]:
    if workers == 1:
        for trial, seed in wanted:
            yield trial, seed, *suite.run(trial, seed)
        return
    context = get_context("spawn")
    shares: Any = context.Queue()
    for index in range(workers):
        shares.put(_cores(index, workers))
    with (
        TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        ProcessPoolExecutor(workers, context, _begin_worker, (folder, shares)) as pool,
    ):
        jobs = {pool.submit(suite.run, trial, seed): (trial, seed) for trial, seed in wanted}
        try:
            for job in as_completed(jobs):
                yield *jobs[job], *job.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _cores(index: int, workers: int) -> set[int]:
    """The cores of a worker: no two share one, where there are enough."""
    if not hasattr(os, "sched_getaffinity"):  # macOS and Windows
        return set()
    cores = sorted(os.sched_getaffinity(0))
    return set(cores[index::workers] if len(cores) >= workers else cores)


def _begin_worker(folder: str, shares: Any) -> None:
    """Gives a process its cores, since threads of two that share one wait for each other most of the
    time, and keeps what it compiles for the others and for the next seed of the same trial."""
    cores = shares.get()
    if cores:
        os.sched_setaffinity(0, cores)
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        jax.config.update("jax_compilation_cache_dir", folder)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)


def reproduce_table(rows: list[Row]) -> Table:
    """A line a bar: id, statement, the figures of every seed, and whether all of them pass."""
    suite, lines = SUITES[rows[0]["bars"]], []
    for bar in suite.bars:
        mine = [row for row in rows if row["name"] == bar.id]
        if not mine:
            continue
        mine.sort(key=lambda row: (isinstance(row["seed"], str), row["seed"]))
        shown = "\n".join(_line(bar, row) for row in mine)
        verdict = "pass" if all(row["passes"] for row in mine) else "fail"
        lines.append([bar.id, verdict, shown, bar.statement])
    heads = ["bar", "", "figures, a line a seed", "statement"]
    result = table(suite.title, heads, [lines])
    for column in result.columns:
        column.justify, column.no_wrap = "left", False
    return result


def _line(bar: Bar, row: Row) -> str:
    """The figures of a row; counts, such as of atoms, as whole numbers."""
    numbers = bar.figures(lambda index: row["figures"][index])
    shown = ["–" if x is None else share(x, 3) if x < 2 else f"{x:.0f}" for x in numbers]
    return " ".join([*shown, "(mean)"] if isinstance(row["seed"], str) else shown)


def reproduce_settings(settings: ReproduceSettings) -> dict[str, Any]:
    """The settings as JSON values, with the bars."""
    bars = {bar.id: bar.statement for bar in settings.chosen}
    return {**dataclasses.asdict(settings), "bars": bars, **settings.suite.facts}


def reproduce_specs(settings: ReproduceSettings) -> dict[str, Any]:
    """The spec of each model that is trained, as JSON values."""
    return {trial.name: settings.suite.spec(trial) for trial in settings.trials}
