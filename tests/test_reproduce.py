"""The bars of recall: the laws of their tasks, and how figures are judged."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from memdsl.cli import main
from memdsl.experiments import (
    BARS,
    ContextTask,
    judged,
    KINDS,
    MemoriseTask,
    MixedTask,
    RecallTask,
    ReproduceSettings,
    run_trial,
    Trial,
    trial_spec,
)
from memdsl.experiments._judge import Suite
from memdsl.experiments._reproduce import _trained


pytestmark = pytest.mark.usefixtures("ordinary_settings")


@pytest.mark.parametrize(
    "task", [ContextTask(), ContextTask(noise=0.3, noises=16)], ids=["", "noisy"]
)
def test_a_key_keeps_its_value_and_only_keys_seen_before_are_asked_for(task: ContextTask):
    batch = task.test(64)
    for tokens, labels in zip(batch.tokens, batch.labels, strict=True):
        value_of: dict[int, int] = {}
        for place in range(0, task.time, 2):
            key, value = map(int, tokens[place : place + 2])
            if key >= task.vocabulary:  # noise comes in pairs, and is never asked for
                assert value >= task.vocabulary and labels[place] == labels[place + 1] == -1
                continue
            assert key < task.vocabulary // 2 <= value < task.vocabulary
            assert labels[place] == value_of.get(key, -1) and labels[place + 1] == -1
            assert value_of.setdefault(key, value) == value
        assert labels[-2] == tokens[-1]  # the probe is of a key that was shown before


def test_training_in_context_asks_for_every_next_token():
    task = ContextTask(pool=10)
    batch = task.sample(task.training(0), 4)
    np.testing.assert_array_equal(batch.labels[:, :-1], batch.tokens[:, 1:])
    assert np.all(batch.labels[:, -1] == -1)


def test_noise_has_its_share():
    tokens = ContextTask(noise=0.25, noises=16).test(400).tokens[:, :-2:2]
    assert np.mean(tokens >= 16) == pytest.approx(0.25 * 30 / 31, abs=0.01)  # one pair is kept


def test_what_is_memorised_is_one_map():
    task = MemoriseTask(vocabulary=64, pool=20)
    value_of: dict[int, int] = {}
    for batch in (task.sample(task.training(1), 50), task.test(50)):
        assert np.all(batch.tokens[:, 1::2] == 63)
        for key, value in zip(batch.tokens[:, ::2].flat, batch.labels.flat, strict=True):
            assert key < 31 <= value < 63 and value_of.setdefault(int(key), int(value)) == value


def test_a_mix_has_equal_shares_and_pads_its_questions():
    tasks = tuple(RecallTask(keys=keys, time=24, vocabulary=64) for keys in (2, 4))
    batch = MixedTask(tasks).test(8)
    assert batch.tokens.shape == (8, 24) and batch.labels.shape == (8, 4)
    assert (batch.labels >= 0).sum(axis=1).tolist() == [2] * 4 + [4] * 4


def test_every_bar_has_an_id_and_specs():
    assert [bar.id for bar in BARS] == "A1 A2 A3 A4 O1 O2 O3 O4 O5 O6 F1 M1 M2".split()  # noqa: SIM905
    for trial in ReproduceSettings("recall").trials:
        assert trial_spec(trial) and KINDS[trial.kind]


def test_bars_are_judged_by_their_figures():
    """Figures of the trials that the bars come from, and the same a little worse."""
    bar = next(bar for bar in BARS if bar.id == "O3")
    good = ({"": 0.718}, {"": 0.557}, {"": 0.986})
    figures = {(trial, 0): found for trial, found in zip(bar.trials, good, strict=True)}
    assert judged(bar, figures, 0)["passes"]
    for worse in (({"": 0.86}, *good[1:]), (*good[:2], {"": 0.86})):
        figures = {(trial, 0): found for trial, found in zip(bar.trials, worse, strict=True)}
        assert not judged(bar, figures, 0)["passes"]
    figure = next(bar for bar in BARS if bar.id == "F1")
    at = lambda x, y: {"": 0.0, "16": x, "24": y}  # noqa: E731
    seen = (at(0.968, 0.871), at(0.820, 0.660), at(0.841, 0.698), at(0.501, 0.354))
    figures = {(trial, 1): found for trial, found in zip(figure.trials, seen, strict=True)}
    assert judged(figure, figures, 1)["passes"]


def test_a_trial_gives_an_accuracy_a_test(monkeypatch: pytest.MonkeyPatch):
    tasks = tuple(RecallTask(keys=keys, time=24, vocabulary=64) for keys in (2, 4))
    small = KINDS["figure"].__class__(
        MixedTask(tasks), 64, 2, batch=4, heads=1, key_size=8, value_size=8
    )
    monkeypatch.setitem(KINDS, "figure", small)
    found, seconds = run_trial(Trial("figure", "delta_net"), 0)
    assert set(found) == {"", "2", "4"} and all(0 <= x <= 1 for x in found.values())
    assert seconds > 0


def test_the_command_judges_and_its_status_says_so(
    tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch
):
    small = RecallTask(keys=2, time=16, vocabulary=64)
    monkeypatch.setitem(KINDS, "rewrites", KINDS["rewrites"].__class__(small, 64, 2, batch=4))
    out = tmp_path / "bars"
    words = ["reproduce", "recall", "--bars", "O2", "--seeds", "2", "--workers", "1"]
    assert main([*words, "--out", str(out)]) == 1  # two steps teach nothing
    assert "fail" in capsys.readouterr().out
    summary = json.loads((out / "summary.json").read_text())
    assert [(r["name"], r["seed"], r["passes"]) for r in summary["rows"]] == [
        ("O2", 0, False),
        ("O2", 1, False),
    ]
    assert (out / "learning_curves.png").exists()
    assert main(["reproduce", "recall", "--bars", "Z9"]) == 2
    assert "there is no such bar" in capsys.readouterr().err


def where(trial: int, seed: int) -> tuple[dict[str, float | None], float]:
    """Instead of a training: the first core that the process may use, and how many."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [0]
    return {"": float(trial + seed), "core": cores[0], "cores": len(cores)}, 0.0


def test_two_workers_train_on_cores_of_their_own():
    def none(_: Any) -> Any:
        return None

    suite = Suite("where", "core", (), where, none, lambda _: 0.0)
    wanted = [(trial, seed) for seed in range(2) for trial in range(4)]
    found = [(trial, seed, figures) for trial, seed, figures, _ in _trained(suite, wanted, 2)]
    assert sorted((trial, seed) for trial, seed, _ in found) == sorted(wanted)
    assert all(figures[""] == trial + seed for trial, seed, figures in found)
    if hasattr(os, "sched_getaffinity") and len(os.sched_getaffinity(0)) == 2:
        assert all(figures["cores"] == 1 for *_, figures in found)
