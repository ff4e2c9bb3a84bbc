"""What a run leaves on disk: whole files at every moment, also after an error or Ctrl-C."""

import csv
import json
import os

import matplotlib
import matplotlib.image
import numpy as np
import pytest
from rich.console import Console

from memdsl.experiments import (
    digits_table,
    draw_digits,
    draw_recall,
    growth_table,
    new_folder,
    OutputError,
    recall_table,
    Report,
    share,
    suggestion,
    write_atomically,
)


def digits_rows(names=("grown rbf", "mlp sgd"), seeds=(0, 1), epochs=3):
    rows, history = [], []
    for seed in seeds:
        for height, name in enumerate(names):
            curve = [0.5 + 0.1 * height + 0.03 * e + 0.01 * seed for e in range(epochs)]
            atoms = 875 if name == "grown rbf" else None
            rows.append(
                {"name": name, "seed": seed, "test_accuracy": curve, "seconds": 1.0, "atoms": atoms}
            )
            history += [
                {"name": name, "seed": seed, "epoch": e + 1, "test_accuracy": a, "train_loss": 0.1}
                for e, a in enumerate(curve)
            ]
    return rows, history


def open_report(folder, draw=draw_digits, **others):
    return Report(
        "digits", folder, settings={"epochs": 3}, specs={"grown rbf": "RBF"}, draw=draw, **others
    )


def read(folder):
    return json.loads((folder / "summary.json").read_text())


def test_a_finished_run_leaves_summary_history_spec_and_picture(tmp_path):
    rows, history = digits_rows(seeds=(0,), names=("grown rbf",))
    with open_report(tmp_path) as report:
        for number, point in enumerate(history, 1):
            row = {**rows[0], "test_accuracy": rows[0]["test_accuracy"][:number]}
            report.record(row, point, "", number)
            now = read(tmp_path)
            assert now["rows"] == [row] and now["complete"] is False
    done = read(tmp_path)
    assert done["complete"] is True and done["rows"] == rows
    assert done["settings"] == {"epochs": 3} and "jax" in done["versions"]
    assert json.loads((tmp_path / "spec.json").read_text()) == {"grown rbf": "RBF"}
    with open(tmp_path / "history.csv", newline="") as file:
        lines = list(csv.DictReader(file))
    assert [line["test_accuracy"] for line in lines] == [str(p["test_accuracy"]) for p in history]
    names = sorted(os.listdir(tmp_path))
    assert names == ["history.csv", "learning_curves.png", "spec.json", "summary.json"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
def test_an_interrupted_run_leaves_its_results_so_far(tmp_path, error):
    rows, history = digits_rows(seeds=(0,), names=("grown rbf",))
    with pytest.raises(error), open_report(tmp_path) as report:
        report.record(rows[0], history[0], "", 1)
        raise error
    left = read(tmp_path)
    assert left["complete"] is False and left["rows"] == rows
    assert (tmp_path / "learning_curves.png").stat().st_size > 5000


def test_a_run_stopped_before_its_first_result_still_leaves_whole_files(tmp_path):
    with pytest.raises(KeyboardInterrupt), open_report(tmp_path):
        raise KeyboardInterrupt
    assert read(tmp_path)["rows"] == []
    assert not (tmp_path / "learning_curves.png").exists()


@pytest.mark.parametrize("stage", ["write", "replace"])
def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, stage):
    path = tmp_path / "summary.json"
    write_atomically(path, "old")

    def fail(*arguments):
        raise OSError("no space left on device")

    if stage == "write":
        real = os.fdopen

        def failing(handle, mode):
            file = real(handle, mode)
            file.write(b"ne")  # half of it
            return Broken(file)

        class Broken:
            def __init__(self, file):
                self.file = file

            def __enter__(self):
                return self

            def __exit__(self, *error):
                self.file.close()

            write = fail

        monkeypatch.setattr(os, "fdopen", failing)
    else:
        monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="no space"):
        write_atomically(path, "new")
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["summary.json"]


def test_a_row_of_the_same_name_and_seed_replaces_the_last_one(tmp_path):
    rows, history = digits_rows(names=("a", "b"))
    with open_report(tmp_path) as report:
        for row in rows:
            report.record({**row, "test_accuracy": []}, history[0], "", 0)
        for row in reversed(rows):
            report.record(row, history[0], "", 0)
    assert read(tmp_path)["rows"] == rows


def test_folders_of_runs_are_new_and_one_with_results_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folders = [new_folder("digits", None) for _ in range(3)]
    assert len(set(folders)) == 3
    assert all(f.parent.name == "runs" and f.name.startswith("digits-20") for f in folders)
    chosen = new_folder("digits", tmp_path / "deep" / "here")
    assert new_folder("digits", chosen) == chosen  # still without results
    write_atomically(chosen / "summary.json", "{}")
    with pytest.raises(OutputError, match="already holds a run"):
        new_folder("digits", chosen)
    with pytest.raises(OutputError, match="cannot make this folder"):
        new_folder("digits", chosen / "summary.json" / "below")


def colours(path, palette):
    """How many pixels of a picture have each colour of a palette."""
    pixels = matplotlib.image.imread(path)[..., :3]
    return [int(np.sum(np.all(abs(pixels - c) < 0.02, axis=-1))) for c in palette]


@pytest.mark.parametrize("count", [1, 3])
def test_the_digits_picture_shows_a_curve_for_each_name(tmp_path, count):
    names = ("a", "b", "c")[:count]
    draw_digits(tmp_path / "curves.png", *digits_rows(names=names))
    seen = colours(tmp_path / "curves.png", matplotlib.colormaps["tab10"].colors[:4])
    assert all(n > 200 for n in seen[:count]) and not any(seen[count:])


def test_the_recall_picture_and_table_show_every_memory_best_first(tmp_path):
    names = [f"memory_{i}" for i in range(12)]
    rows = [
        {
            "name": name,
            "task": "mqar",
            "seed": seed,
            "accuracy": 0.05 * i + 0.01 * seed,
            "state_size": 2048,
            "seconds": 20.0 + i,
        }
        for i, name in enumerate(names)
        for seed in (0, 1)
    ]
    history = [{**row, "step": step} for row in rows for step in (200, 400)]
    draw_recall(tmp_path / "recall.png", rows, history)
    seen = colours(tmp_path / "recall.png", matplotlib.colormaps["tab20"].colors)
    assert all(n > 200 for n in seen[:12]) and not any(seen[16:])  # 14 and 15 are grey, as text
    shown = text_of(recall_table(rows))
    first_column = [line.split()[0] for line in shown.splitlines()[3:]]
    assert first_column == [name for name in reversed(names) for _ in (0, 1)]


def text_of(table, width=80):
    console = Console(width=width, file=open(os.devnull, "w"), record=True)  # noqa: SIM115
    with console.file:
        console.print(table)
    return console.export_text()


def test_ten_epochs_and_the_means_over_seeds_fit_into_eighty_columns():
    rows, _ = digits_rows(names=("grown rbf", "mlp sgd", "mlp adamw"), epochs=10)
    lines = [line.rstrip() for line in text_of(digits_table(rows)).splitlines()]
    assert "…" not in "".join(lines) and max(map(len, lines)) <= 80
    assert lines[1].split() == ["name", "seed", *map(str, range(1, 11)), "seconds", "atoms"]
    first = ["grown", "rbf", "0", *(share(0.5 + 0.03 * e, 3) for e in range(10)), "1.0", "875"]
    assert lines[3].split() == first
    assert lines[-3].split()[:4] == ["grown", "rbf", "all", ".505"]


def test_a_table_of_an_interrupted_run_has_gaps_not_errors():
    rows, _ = digits_rows(names=("a", "b"), seeds=(0,), epochs=4)
    rows[1]["test_accuracy"] = [0.25]
    assert text_of(digits_table(rows)).splitlines()[-1].split() == ["b", "0", ".250", "1.0"]


def test_accuracies_print_without_a_leading_zero():
    assert [share(x) for x in (0.95394, 1.0, 0.0)] == [".9539", "1.0000", ".0000"]


def test_suggestions_forgive_case_and_hyphens():
    known = ["delta_net", "gated_delta_net", "softmax"]
    assert suggestion("Delta-Net", known) == "Did you mean delta_net or gated_delta_net?"
    assert suggestion("zzz", known) == "Known names: delta_net, gated_delta_net, softmax."


def test_what_diverged_is_short_in_a_table():
    row = {"name": "beyond", "seed": 0, "test_error": [0.5, 1.5e17, None], "seconds": 1, "atoms": 3}
    shown = text_of(growth_table([row])).splitlines()
    assert shown[3].split() == ["beyond", "0", ".500", "1.5e+17", "–", "1.0", "3"]
