"""The command line: `memdsl run`, `memdsl list`, `memdsl explain`."""

import dataclasses
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import tyro
from rich.console import Console
from rich.table import Table

import memdsl as md

from ._errors import SpecError
from .experiments import (
    ClassifySettings,
    digits_table,
    DigitsSettings,
    draw_digits,
    draw_growth,
    draw_hybrid,
    draw_language,
    draw_optimisers,
    draw_recall,
    draw_reproduce,
    growth_settings,
    growth_specs,
    growth_table,
    HybridSettings,
    keep_freed_memory,
    language_settings,
    language_specs,
    language_table,
    LanguageSettings,
    new_folder,
    optimisers_table,
    OptimiserSettings,
    OutputError,
    RECALL_MEMORIES,
    recall_settings,
    recall_specs,
    recall_table,
    RecallSettings,
    Report,
    reproduce_settings,
    reproduce_specs,
    reproduce_table,
    ReproduceSettings,
    Row,
    run_growth,
    run_language,
    run_recall,
    run_reproduce,
    SettingError,
    suggestion,
    TeacherSettings,
)
from .listing import listing


MISUSE = 2
"""The exit status of a wrong option, name or value."""
INTERRUPTED = 130
"""The exit status after Ctrl-C."""

Settings = tyro.conf.OmitArgPrefixes


@dataclass(frozen=True)
class RunDigits:
    """Train one growing layer and two perceptrons on digits, and compare them epoch by epoch.

    The first half of scikit-learn's digits trains, the second half tests, unshuffled. The growing
    layer has no weights: each training row becomes an atom of an RBF memory, which the backward
    pass writes. The perceptrons are trained by SGD and by AdamW.
    """

    settings: Settings[DigitsSettings] = dataclasses.field(default_factory=DigitsSettings)
    out: Path | None = None
    """Folder for the results; by default runs/digits-<date>-<time>."""


@dataclass(frozen=True)
class RunClassify:
    """Train growing layers and perceptrons on images or signals, and compare them epoch by epoch."""

    settings: Settings[ClassifySettings] = dataclasses.field(default_factory=ClassifySettings)
    out: Path | None = None
    """Folder for the results; by default runs/classify-<data>-<date>-<time>."""


@dataclass(frozen=True)
class RunTeacher:
    """Train growing layers and perceptrons on what a random network answers, every row seen once."""

    settings: Settings[TeacherSettings] = dataclasses.field(default_factory=TeacherSettings)
    out: Path | None = None
    """Folder for the results; by default runs/teacher-student-<teacher>-<date>-<time>."""


@dataclass(frozen=True)
class RunHybrid:
    """Grow layers whose few atoms Adam trains, and compare them with one that keeps every row."""

    settings: Settings[HybridSettings] = dataclasses.field(default_factory=HybridSettings)
    out: Path | None = None
    """Folder for the results; by default runs/hybrid-<data>-<date>-<time>."""


@dataclass(frozen=True)
class RunOptimisers:
    """Train one network by optimisers side by side: those of optax, and duals of memories."""

    settings: Settings[OptimiserSettings] = dataclasses.field(default_factory=OptimiserSettings)
    out: Path | None = None
    """Folder for the results; by default runs/optimisers-<data>-<date>-<time>."""


@dataclass(frozen=True)
class RunRecall:
    """Train two-layer sequence models, one memory each, on multi-query associative recall."""

    settings: Settings[RecallSettings] = dataclasses.field(default_factory=RecallSettings)
    out: Path | None = None
    """Folder for the results; by default runs/recall-<task>-<date>-<time>."""


@dataclass(frozen=True)
class RunLanguage:
    """Train language models of characters, one memory each, on the documentation of Python."""

    settings: Settings[LanguageSettings] = dataclasses.field(default_factory=LanguageSettings)
    out: Path | None = None
    """Folder for the results; by default runs/lm-<date>-<time>."""


@dataclass(frozen=True)
class Run:
    """Run an experiment: a table on the screen; numbers, curves and specs in a folder."""

    experiment: (
        Annotated[RunDigits, tyro.conf.subcommand("digits")]
        | Annotated[RunClassify, tyro.conf.subcommand("classify")]
        | Annotated[RunTeacher, tyro.conf.subcommand("teacher-student")]
        | Annotated[RunHybrid, tyro.conf.subcommand("hybrid")]
        | Annotated[RunOptimisers, tyro.conf.subcommand("optimisers")]
        | Annotated[RunRecall, tyro.conf.subcommand("recall")]
        | Annotated[RunLanguage, tyro.conf.subcommand("lm")]
    )


@dataclass(frozen=True)
class Reproduce:
    """Check findings against fixed bars: a line a bar, with the figures of every seed.

    Every model that a bar needs is trained, which takes a while; the exit status is 0 only if every
    seed clears every bar.
    """

    settings: Settings[ReproduceSettings]
    out: Path | None = None
    """Folder for the results; by default runs/reproduce-<which>-<date>-<time>."""


@dataclass(frozen=True)
class List:
    """List the memories that have a name: their parts, the size of their state, what can run them."""


@dataclass(frozen=True)
class Explain:
    """Say what a memory means, which plan runs it here, and which plans were rejected and why."""

    name: tyro.conf.Positional[str]
    """A name that `memdsl list` shows."""
    model: int = 512
    """Width of the layer around the memory."""
    heads: int = 8
    """Heads of the layer."""
    time: int = 4096
    """Tokens in a sequence."""


Command = (
    Annotated[Run, tyro.conf.subcommand("run")]
    | Annotated[Reproduce, tyro.conf.subcommand("reproduce")]
    | Annotated[List, tyro.conf.subcommand("list")]
    | Annotated[Explain, tyro.conf.subcommand("explain")]
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line.

    **Arguments:**

    - `arguments`: the words after `memdsl`; by default those of the process.

    **Returns:**

    The exit status: 0, or 2 after a message about a wrong value or name, or 130 after Ctrl-C.

    **Raises:**

    `SystemExit` for `--help` (status 0) and for options that do not exist or cannot be read
    (status 2).
    """
    command: Any = tyro.cli(
        Command,  # pyright: ignore[reportArgumentType]
        prog="memdsl",
        description="Kernel memories: sequence layers, and layers that grow.",
        args=sys.argv[1:] if arguments is None else arguments,
        config=(tyro.conf.OmitSubcommandPrefixes, tyro.conf.OmitArgPrefixes),
    )
    try:
        status = _obey(command)
        sys.stdout.flush()  # so that a pipe that nobody reads any more is found out here
        return status
    except (SettingError, OutputError, SpecError) as error:
        print(f"memdsl: {error}", file=sys.stderr)
        return MISUSE
    except BrokenPipeError:  # whoever read, as head does, has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:  # before or after a run; _run says more
        print("Interrupted.", file=sys.stderr)
        return INTERRUPTED


def _obey(command: Any) -> int:
    match command:
        case Run(chosen):
            return _run(chosen.settings, chosen.out)[0]
        case Reproduce():
            return _reproduce(command)
        case List():
            return _list()
        case _:
            return _explain(command)


class Experiment(NamedTuple):
    """How the settings of a type are run: every function takes settings, but the last two."""

    name: str
    described: Callable[[Any], dict[str, Any]]
    specs: Callable[[Any], dict[str, Any]]
    run: Callable[[Any, Report], None]
    draw: Any
    table: Callable[[list[Row]], Table]


_GROWTH = (growth_settings, growth_specs, run_growth)

EXPERIMENTS: dict[type, Experiment] = {
    DigitsSettings: Experiment("digits", *_GROWTH, draw_digits, digits_table),
    ClassifySettings: Experiment("classify", *_GROWTH, draw_growth, growth_table),
    TeacherSettings: Experiment("teacher-student", *_GROWTH, draw_growth, growth_table),
    HybridSettings: Experiment("hybrid", *_GROWTH, draw_hybrid, growth_table),
    OptimiserSettings: Experiment("optimisers", *_GROWTH, draw_optimisers, optimisers_table),
    RecallSettings: Experiment(
        "recall", recall_settings, recall_specs, run_recall, draw_recall, recall_table
    ),
    LanguageSettings: Experiment(
        "lm", language_settings, language_specs, run_language, draw_language, language_table
    ),
    ReproduceSettings: Experiment(
        "reproduce",
        reproduce_settings,
        reproduce_specs,
        run_reproduce,
        draw_reproduce,
        reproduce_table,
    ),
}


def _run(settings: Any, out: Path | None) -> tuple[int, list[Row]]:
    """Runs an experiment and prints what came of it: the exit status, and the rows.

    Ctrl-C leaves the results so far, and is an exit status.
    """
    settings.check()
    keep_freed_memory()
    experiment = EXPERIMENTS[type(settings)]
    task = f"-{settings.task}" if hasattr(settings, "task") else ""
    report = Report(
        experiment.name,
        new_folder(f"{experiment.name}{task}", out),
        settings=experiment.described(settings),
        specs=experiment.specs(settings),
        draw=experiment.draw,
        console=Console(stderr=True),
    )
    status = 0
    try:
        with report:
            experiment.run(settings, report)
    except KeyboardInterrupt:
        status = INTERRUPTED
    if report.rows:
        Console().print(experiment.table(report.rows))
    if status:
        print(f"Interrupted. The results so far are in {report.folder}", file=sys.stderr)
    else:
        print(f"Results: {report.folder}")
    return status, report.rows


def _reproduce(chosen: Reproduce) -> int:
    """Runs what the bars need; the status is 0 only if every one of them is cleared."""
    status, rows = _run(chosen.settings, chosen.out)
    return status or int(not all(row["passes"] for row in rows))


def _list() -> int:
    """Prints the catalogue."""
    console = Console()
    width = max(console.width, 100) if console.is_terminal else 100
    print(listing(RECALL_MEMORIES, width))
    print(
        "\nstate: numbers of one head's state, of the smallest plan, for keys and values of 64 and 4096"
        "\ntokens. token: read off every token; learned: trained."
        "\nmemdsl explain NAME says what a memory means and how it runs here."
        "\nmemdsl run recall --memory NAME trains it; all stands for those marked with *."
    )
    return 0


def _explain(chosen: Explain) -> int:
    """Prints the page of one memory at the sizes that were asked for."""
    known = md.zoo.catalogue()
    if chosen.name not in known:
        raise SettingError(f"there is no memory {chosen.name}. {suggestion(chosen.name, known)}")
    for size in ("model", "heads", "time"):
        if getattr(chosen, size) < 1:
            raise SettingError(f"--{size} must be at least 1, not {getattr(chosen, size)}.")
    if chosen.model % chosen.heads:
        raise SettingError(f"--heads {chosen.heads} must divide --model {chosen.model}.")
    size = chosen.model // chosen.heads
    dims = md.Dims(chosen.model, key=size, value=size, heads=chosen.heads, time=chosen.time)
    print(md.explain(known[chosen.name](), dims, name=chosen.name.replace("_", " ")))
    return 0


if __name__ == "__main__":
    sys.exit(main())
