"""The language-model run: its text, its yardsticks, and a small model that learns."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from memdsl.cli import main
from memdsl.experiments import LanguageSettings, ngram_bits, python_documentation, Text
from memdsl.experiments._language import _bits, _model, _surprise


pytestmark = pytest.mark.usefixtures("ordinary_settings")
SMALL = [
    "--steps",
    "4",
    "--every",
    "2",
    "--batch",
    "2",
    "--time",
    "16",
    "--width",
    "16",
    "--heads",
    "2",
    "--blocks",
    "1",
    "--sample",
    "5",
]


def test_a_hand_counted_bigram():
    """After `abab|ba`: p(b) = (2 + 2/3) / (4 + 2) of a unigram, and a bigram on top of it."""
    text = Text("abc", np.array([0, 1, 0, 1], np.int32), np.array([0], np.int32))
    unigram = (2 + 2 * (1 / 3)) / (4 + 2)  # p(a)
    assert ngram_bits(text, 1) == pytest.approx(-np.log2(unigram))
    bigram = (1 + 1 * unigram) / (1 + 1)  # after b came an a, once
    assert ngram_bits(text, 2) == pytest.approx(-np.log2(bigram))


@pytest.mark.parametrize(("order", "bits"), [(1, 4.67), (2, 3.34), (3, 2.47)])
def test_ngrams_of_the_documentation_are_as_measured_elsewhere(order: int, bits: float):
    """The text differs a little between versions of Python: figures of 3.11.7."""
    assert ngram_bits(python_documentation(), order) == pytest.approx(bits, abs=0.06)


def test_every_test_character_is_scored_once_with_its_context():
    """A model that knows the position it is at sees each character once, after `time` others."""
    time, rng = 8, np.random.default_rng(0)
    text = Text("abcd", rng.integers(0, 4, 50, np.int32), rng.integers(0, 4, 37, np.int32))
    seen = []

    def surprise(windows: jax.Array) -> jax.Array:
        seen.append(np.asarray(windows))
        return jnp.asarray(windows[:, time + 1 :], jnp.float32)  # the label itself as its surprise

    bits = _bits(surprise, text, time)
    assert bits == pytest.approx(float(text.test.mean()) / np.log(2))
    windows = np.concatenate(seen)
    np.testing.assert_array_equal(windows[0, : time + 1], text.train[-time - 1 :])


def test_surprise_is_the_cross_entropy_of_the_second_half():
    settings = LanguageSettings(width=16, heads=2, blocks=1, time=8)
    model = _model("gated_delta_net+sliding_window", settings, 7, 0)
    window = jnp.asarray(np.random.default_rng(1).integers(0, 7, (1, 17)))
    logits = jax.nn.log_softmax(model(window[0, :-1]))
    expected = -logits[jnp.arange(8, 16), window[0, 9:]]
    np.testing.assert_allclose(_surprise(model, window)[0], expected, rtol=1e-5)


def test_a_run_leaves_rows_beside_ngrams_and_a_sample(tmp_path: Path, capsys):
    out = tmp_path / "lm"
    names = ["delta_net", "gated_delta_net+sliding_window"]
    assert main(["run", "lm", "--memory", *names, *SMALL, "--out", str(out)]) == 0
    assert "bits a character" in capsys.readouterr().out
    summary = json.loads((out / "summary.json").read_text())
    assert summary["complete"]
    assert [row["name"] for row in summary["rows"]] == ["3-gram", "5-gram", *names]
    assert all(0 < row["bits"] < 8 for row in summary["rows"])
    assert (out / "samples.txt").read_text().count("# ") == 2
    assert (out / "learning_curves.png").stat().st_size > 5000


def test_a_memory_that_is_not_known_is_a_clear_error(capsys):
    assert main(["run", "lm", "--memory", "delta_net+delta_nett"]) == 2
    assert "there is no such memory here. Did you mean delta_net or " in capsys.readouterr().err
