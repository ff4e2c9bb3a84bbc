"""The pictures of a run: learning curves, accuracy a memory, bits a character."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TYPE_CHECKING

import numpy as np

from ._report import Row, share, write_atomically


if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


_FAR = 10.0
"""An error above this is off the picture, as of what diverges; who answers the mean has the error 1."""


def _figure(columns: int, width: float, height: float) -> tuple["Figure", list["Axes"]]:
    """A figure that needs no display and touches no global state of matplotlib."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, columns, squeeze=False)[0].tolist()
    for ax in axes:
        ax.spines[["top", "right"]].set_visible(False)
        ax.grid(True, color="0.9", linewidth=0.8)
        ax.set_axisbelow(True)
    return figure, axes


def _save(figure: "Figure", path: Path) -> None:
    out = io.BytesIO()
    figure.savefig(out, format="png")
    write_atomically(path, out.getvalue())


def _curves(
    ax: "Axes", names: Sequence[str], history: Sequence[Row], x: str, y: str
) -> dict[str, Any]:
    """One line a name, the mean over seeds, in a band from the worst seed to the best."""
    from matplotlib import colormaps

    palette = colormaps["tab10" if len(names) <= 10 else "tab20"].colors  # pyright: ignore[reportAttributeAccessIssue]
    colours = {name: palette[i % len(palette)] for i, name in enumerate(names)}
    for name in names:
        points = [p for p in history if p["name"] == name]
        at = sorted({p[x] for p in points})
        values = [[_number(p[y]) for p in points if p[x] == t] for t in at]
        mean = [float(np.mean(v)) for v in values]
        ax.plot(at, mean, color=colours[name], label=name, linewidth=1.8, marker="o", markersize=3)
        if max(map(len, values)) > 1:
            low, high = [min(v) for v in values], [max(v) for v in values]
            ax.fill_between(at, low, high, color=colours[name], alpha=0.15, linewidth=0)
    return colours


def _name(figure: "Figure", ax: "Axes") -> None:
    """The names of the curves of one of the axes, beside them all."""
    lines, names = ax.get_legend_handles_labels()
    figure.legend(lines, names, loc="outside right center", frameon=False, fontsize=8)


def _number(y: float | None) -> float:
    return float("nan") if y is None else y


def draw_digits(path: Path, rows: Sequence[Row], history: Sequence[Row]) -> None:
    """Draws test accuracy against epochs, one curve a learner."""
    names = list(dict.fromkeys(point["name"] for point in history))
    figure, (ax,) = _figure(1, 7, 4.5)
    _curves(ax, names, history, "epoch", "test_accuracy")
    ax.set_xlabel("epochs (passes over the 898 training rows)")
    ax.set_ylabel("accuracy on the 899 test rows")
    ax.set_xticks(range(1, max(p["epoch"] for p in history) + 1))
    ax.set_title(f"Digits: a growing layer and a perceptron{_band(rows)}", fontsize=11)
    ax.legend(loc="lower right", frameon=False)
    _save(figure, path)


def _band(rows: Sequence[Row]) -> str:
    """What is drawn of several seeds."""
    seeds = len({row["seed"] for row in rows})
    return f", mean of {seeds} seeds (band: worst to best)" if seeds > 1 else ""


def draw_growth(path: Path, rows: Sequence[Row], history: Sequence[Row]) -> None:
    """Draws what was reached against the rows seen, and against epochs if there are several."""
    names = list(dict.fromkeys(point["name"] for point in history))
    measure = "test_error" if "test_error" in history[0] else "test_accuracy"
    whole = [point for point in history if isinstance(point["epoch"], int)]
    epochs = max((point["epoch"] for point in whole), default=0)
    figure, axes = _figure(2 if epochs > 1 else 1, 12 if epochs > 1 else 7, 4.8)
    early = [point for point in history if point["epoch"] <= 1]
    _curves(axes[0], names, early, "samples", measure)
    axes[0].set_xscale("log")
    axes[0].set_xlabel("training rows seen" + (", in the first epoch" if epochs > 1 else ""))
    axes[0].set_ylabel(measure.replace("_", " "))
    if measure == "test_error" and any(point[measure] for point in early):
        axes[0].set_yscale("log")
        axes[0].set_ylim(top=min(axes[0].get_ylim()[1], _FAR))
    if epochs > 1:
        _curves(axes[1], names, whole, "epoch", measure)
        axes[1].set_xlabel("epochs")
    _name(figure, axes[-1])
    figure.suptitle(f"Growing layers and perceptrons{_band(rows)}", fontsize=11)
    _save(figure, path)


def draw_hybrid(path: Path, rows: Sequence[Row], history: Sequence[Row]) -> None:
    """Draws accuracy against epochs, and at the end against the number of atoms."""
    names = list(dict.fromkeys(point["name"] for point in history))
    figure, (left, right) = _figure(2, 12, 4.8)
    whole = [point for point in history if isinstance(point["epoch"], int)]
    colours = _curves(left, names, whole, "epoch", "test_accuracy")
    left.set_xlabel("epochs")
    left.set_ylabel("test accuracy")
    _name(figure, left)
    for row in rows:
        if row["test_accuracy"]:
            right.plot(row["atoms"], row["test_accuracy"][-1], "o", color=colours[row["name"]])
    right.set_xscale("log")
    right.set_xlabel("atoms, a dot a seed")
    right.set_ylabel("test accuracy at the end")
    figure.suptitle(f"Atoms that are trained{_band(rows)}", fontsize=11)
    _save(figure, path)


def draw_optimisers(path: Path, rows: Sequence[Row], history: Sequence[Row]) -> None:
    """Draws training loss against steps and against the seconds that they took, and the tests."""
    names = list(dict.fromkeys(point["name"] for point in history))
    measure = next(name for name in history[0] if name.startswith("test_"))
    taken: dict[Any, list[float]] = {}
    for point in history:
        taken.setdefault((point["name"], point["step"]), []).append(point["step_seconds"])
    mean = {place: float(np.mean(seconds)) for place, seconds in taken.items()}
    timed = [{**point, "step_seconds": mean[point["name"], point["step"]]} for point in history]
    figure, axes = _figure(3, 15, 4.8)
    shown = (("step", "train_loss"), ("step_seconds", "train_loss"), ("step", measure))
    for ax, (x, y) in zip(axes, shown, strict=True):
        _curves(ax, names, timed, x, y)
        ax.set_xscale("log")
        if measure != "test_accuracy" or y != measure:
            ax.set_yscale("log")
        ax.set_xlabel("steps" if x == "step" else "seconds in steps, without compilation and tests")
        ax.set_ylabel("training loss" if y == "train_loss" else measure.replace("_", " "))
    _name(figure, axes[-1])
    figure.suptitle(f"Optimisers and duals of memories{_band(rows)}", fontsize=11)
    _save(figure, path)


def draw_recall(path: Path, rows: Sequence[Row], history: Sequence[Row]) -> None:
    """Draws accuracy against training steps, and the last accuracy with state size and seconds."""
    names = list(dict.fromkeys(point["name"] for point in history))
    last = {n: [r["accuracy"] for r in rows if r["name"] == n] for n in names}
    order = sorted(names, key=lambda n: float(np.mean(last[n])))
    figure, (left, right) = _figure(2, 12, 1.8 + max(3.2, 0.34 * len(names)))
    colours = _curves(left, names, history, "step", "accuracy")
    left.set_xlabel("training steps")
    left.set_ylabel("accuracy at the questions of 512 test sequences")
    left.set_ylim(-0.02, 1.02)
    left.legend(frameon=False, fontsize=8)
    left.set_title("While training", fontsize=11)

    right.barh(order, [float(np.mean(last[n])) for n in order], color=[colours[n] for n in order])
    for y, name in enumerate(order):
        mine = [r for r in rows if r["name"] == name]
        right.plot(last[name], [y] * len(mine), "k.", markersize=4)
        seconds = float(np.mean([r["seconds"] for r in mine]))
        accuracy, state = share(float(np.mean(last[name]))), mine[0]["state_size"]
        text = f"{accuracy}   {state} floats   {seconds:.0f} s"
        right.text(1.02, y, text, va="center", fontsize=8)
    right.set_xlim(0, 1.5)
    right.set_xticks([0, 0.25, 0.5, 0.75, 1])
    right.set_xlabel("accuracy (dots: seeds), state a layer and sequence, seconds a run")
    right.set_title("At the last test", fontsize=11)
    figure.suptitle(f"Associative recall: {rows[0]['task']}")
    _save(figure, path)


def draw_language(path: Path, rows: Sequence[Row], history: Sequence[Row]) -> None:
    """Draws bits a character against training steps, with those of n-grams as lines."""
    names = list(dict.fromkeys(point["name"] for point in history))
    figure, (ax,) = _figure(1, 7, 4.5)
    _curves(ax, names, history, "step", "bits")
    for row in rows:
        if row["name"] not in names:
            ax.axhline(row["bits"], color="0.45", linewidth=1, linestyle="--")
            ax.text(0, row["bits"], f" {row['name']}", va="bottom", fontsize=8, color="0.35")
    ax.set_xlim(left=0)
    ax.set_xlabel("training steps")
    ax.set_ylabel("bits a character of the last tenth of the text")
    ax.set_title("Characters of the Python documentation", fontsize=11)
    ax.legend(frameon=False)
    _save(figure, path)


def draw_reproduce(path: Path, rows: Sequence[Row], history: Sequence[Row]) -> None:
    """Draws the figure of every model that was trained, a dot a seed."""
    measure = "accuracy" if "accuracy" in history[0] else "score"
    names = sorted({point["name"] for point in history})
    figure, (ax,) = _figure(1, 8, 1.2 + 0.24 * len(names))
    for y, name in enumerate(names):
        found = [_number(point[measure]) for point in history if point["name"] == name]
        ax.plot(found, [y] * len(found), "o", markersize=4, color="tab:blue", alpha=0.7)
    ax.set_yticks(range(len(names)), names, fontsize=8)
    ax.invert_yaxis()
    largest = max((point[measure] for point in history if point[measure]), default=1)
    ax.set_xlim(-0.02, max(1.02, 1.05 * largest))
    ax.set_xlabel("accuracy (of students, error; of steps, a ratio) at the last test, a dot a seed")
    failed = sorted({row["name"] for row in rows if not row["passes"]})
    ax.set_title(f"Bars that fail: {', '.join(failed) or 'none'}", fontsize=11)
    _save(figure, path)
