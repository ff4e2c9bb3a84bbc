"""What a run leaves: files that are whole at every moment, a live progress bar and a table."""

import csv
import difflib
import io
import json
import os
import platform
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from rich.box import Box
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table


_RULES = Box("    \n    \n ── \n    \n ── \n ── \n    \n    \n")

Row = dict[str, Any]
Draw = Callable[[Path, Sequence[Row], Sequence[Row]], None]


class OutputError(ValueError):
    """The folder for the results cannot be used."""


class SettingError(ValueError):
    """A setting of an experiment is out of range, or names something that does not exist."""


def write_atomically(path: Path, content: str | bytes) -> None:
    """Replaces a file in one step: a reader, or a crash, sees the old content or the new, whole.

    **Arguments:**

    - `path`: the file; its folder must exist.
    - `content`: text (written as UTF-8) or bytes.
    """
    data = content.encode() if isinstance(content, str) else content
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def new_folder(experiment: str, out: Path | None) -> Path:
    """Makes the folder of a run: `out`, or `runs/<experiment>-<date>-<time>` if it is `None`.

    **Raises:**

    `OutputError` if `out` already holds a run, or cannot be made.
    """
    if out is not None:
        if (out / "summary.json").exists():
            raise OutputError(
                f"--out {out}: this folder already holds a run (summary.json); name another one."
            )
        try:
            out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputError(f"--out {out}: cannot make this folder: {error.strerror}.") from None
        return out
    stem = f"{experiment}-{datetime.now():%Y%m%d-%H%M%S}"
    for number in range(1, 1000):
        folder = Path("runs") / (stem if number == 1 else f"{stem}-{number}")
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise OutputError(f"cannot make {folder}: {error.strerror}; use --out.") from None
        return folder
    raise OutputError(f"runs/{stem}: too many runs in this second.")


def versions() -> dict[str, str]:
    """The versions of everything that the numbers of a run may depend on."""
    import jax
    import numpy
    import optax

    return {
        "python": platform.python_version(),
        "jax": jax.__version__,
        "numpy": numpy.__version__,
        "optax": optax.__version__,
        "platform": f"{sys.platform} {platform.machine()} {jax.default_backend()}",
    }


class Report:
    """The results of one run so far, on disk after every `record`, and on the screen.

    Used as a context manager. However the block is left, by its end, by an error or by Ctrl-C, the
    folder then holds `summary.json`, `history.csv`, `spec.json` and `learning_curves.png` of what
    had been recorded, and `summary.json` says by `complete` whether the block came to its end.

    **Arguments:**

    - `experiment`: its name.
    - `folder`: an existing folder, as made by `new_folder`.
    - `settings`: everything the numbers depend on, as JSON values.
    - `specs`: the spec of each row by name, as JSON values.
    - `draw`: draws the learning curves, given a path, the rows and the history.
    - `console`: where the progress bar goes; `None` for no bar.
    """

    def __init__(
        self,
        experiment: str,
        folder: Path,
        *,
        settings: Mapping[str, Any],
        specs: Mapping[str, Any],
        draw: Draw,
        console: Console | None = None,
    ):
        self.folder = folder
        self.rows: list[Row] = []
        self.history: list[Row] = []
        self._head = {"experiment": experiment, "settings": dict(settings), "versions": versions()}
        self._specs = dict(specs)
        self._draw = draw
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[unit]}"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[news]}"),
            console=console,
            disable=console is None,
        )
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        write_atomically(self.folder / "spec.json", json.dumps(self._specs, indent=2) + "\n")
        self._save(complete=False)
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> Literal[False]:
        self._progress.stop()
        self._save(complete=kind is None)
        if self.history:
            self._draw(self.folder / "learning_curves.png", self.rows, self.history)
        return False

    def begin(self, title: str, total: int, unit: str) -> None:
        """Starts the progress bar of the next row."""
        self._task = self._progress.add_task(title, total=total, unit=unit, news="")

    def note(self, point: Row, news: str, done: int) -> None:
        """Notes one line of the history, and moves the bar on."""
        self.history.append(point)
        if self._task is not None:
            self._progress.update(self._task, completed=done, news=news)
        self._save(complete=False)

    def baseline(self, row: Row) -> None:
        """Notes a row that nothing is trained for."""
        self.rows.append(row)
        self._save(complete=False)

    def advance(self, done: int) -> None:
        """Moves the bar of the row on, to `done` units."""
        if self._task is not None:
            self._progress.update(self._task, completed=done)

    def record(self, row: Row, point: Row, news: str, done: int) -> None:
        """Notes where a row stands now, and saves everything.

        **Arguments:**

        - `row`: the row of the table; it replaces the last one of the same name and seed.
        - `point`: one line of the history.
        - `news`: a few words to show next to the bar.
        - `done`: how far the bar is.
        """
        known = [_identity(r) for r in self.rows]
        at = known.index(_identity(row)) if _identity(row) in known else len(known)
        self.rows[at : at + 1] = [row]
        self.history.append(point)
        if self._task is not None:
            self._progress.update(self._task, completed=done, news=news)
        self._save(complete=False)

    def _save(self, *, complete: bool) -> None:
        summary = {**self._head, "complete": complete, "rows": self.rows}
        text = json.dumps(summary, indent=2, allow_nan=False) + "\n"
        write_atomically(self.folder / "summary.json", text)
        write_atomically(self.folder / "history.csv", _csv(self.history))


def _identity(row: Row) -> tuple[Any, Any]:
    return row["name"], row["seed"]


def _csv(points: Sequence[Row]) -> str:
    columns = list(dict.fromkeys(column for point in points for column in point))
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(points)
    return out.getvalue()


def table(title: str, columns: Sequence[str], sections: Iterable[Sequence[Sequence[str]]]) -> Table:
    """A table for the terminal, narrow enough for ten epochs in eighty columns.

    **Arguments:**

    - `title`: printed above.
    - `columns`: their heads; the first column is text, the others are numbers.
    - `sections`: groups of lines, with a rule between groups.

    ??? example

        ```python
        >>> from rich.console import Console
        >>> from memdsl.experiments import table
        >>> lines = [["softmax", ".984"], ["delta_net", ".986"]]
        >>> Console(width=40).print(table("Scores", ["name", "accuracy"], [lines]))
        Scores
        name      accuracy
        ──────────────────
        softmax       .984
        delta_net     .986

        ```
    """
    result = Table(
        title=title, title_justify="left", box=_RULES, padding=0, show_edge=False, pad_edge=False
    )
    for number, column in enumerate(columns):
        result.add_column(column, justify="right" if number else "left", no_wrap=True)
    for lines in sections:
        for line in lines:
            result.add_row(*line)
        result.add_section()
    return result


def share(x: float, digits: int = 4) -> str:
    """An accuracy as it is printed here, `.9539` or `1.0000`; a number far above 1 as `3.1e+28`."""
    return f"{x:.1e}" if abs(x) >= 1000 else f"{x:.{digits}f}".removeprefix("0")


def suggestion(name: str, known: Iterable[str]) -> str:
    """What to try instead of a name that does not exist.

    ??? example

        ```python
        >>> from memdsl.experiments import suggestion
        >>> suggestion("delta-net", ["softmax", "delta_net"])
        'Did you mean delta_net?'
        >>> suggestion("x", ["softmax", "delta_net"])
        'Known names: delta_net, softmax.'

        ```
    """
    names = sorted(known)
    asked = name.lower().replace("-", "_")
    near = difflib.get_close_matches(asked, names, n=3, cutoff=0.6)
    if near:
        near.sort(key=lambda found: not found.startswith(asked))
        return f"Did you mean {' or '.join(near)}?"
    return f"Known names: {', '.join(names)}."
