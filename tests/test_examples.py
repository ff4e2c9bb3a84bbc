"""Every script in examples/ runs as it stands, and prints what it is there to show."""

import re
import runpy
from pathlib import Path

import matplotlib
import pytest


EXAMPLES = Path(__file__).parent.parent / "examples"
SHOWN = {
    "01_linear_attention_to_delta": r"kernel delta rule +0\.\d+ .*DiagonalDecay needs coordinates",
    "02_layers": r"steps: \d\.\de-0[5-9].*same spec True, same answers True.*hybrid",
    "03_kernel_filters": r"QKLMS .* 90 atoms.*kernel_filters\.png",
    "04_growing_digits": r"\n    1 .*\n    5 +0\.\d+ +0\.9[5-9]\d\d +898 ",
    "05_your_own_kernel": r"log cosh +mean error 0\.1.*chosen: +matrix / running sum",
    "06_every_memory": r"delta_net +0\.\d+.*picture: every_memory\.png",
    "07_language_model": r"bits a character of a part.*The :keyword:`for` statement .",
    "08_attribution": r"is the linear layer, but for \de-0[5-9].*add up.*attribution\.png",
    "09_learning_from_a_teacher": r"growing +0\.\d+ .* 0\.0\d\d +4096\n.*AdamW +0\.\d",
    "10_mesa_optimiser": r"AdamW +epoch 1: 0\.[67].*mesa +epoch 1: 0\.9.*mesa +epoch 3: 0\.9[3-9]",
}

FEW = {
    "06_every_memory": ["--memory", "delta_net", "softmax", "--steps", "4"],
    "07_language_model": ["--steps", "3", "--write", "5"],
}
"""Less of what takes long."""


def test_every_example_is_here():
    assert sorted(SHOWN) == sorted(file.stem for file in EXAMPLES.glob("*.py"))


@pytest.mark.usefixtures("ordinary_settings")
@pytest.mark.parametrize("name", sorted(SHOWN))
def test_example_runs(
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    matplotlib.use("Agg")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", [name, *FEW.get(name, [])])
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    assert re.search(SHOWN[name], capsys.readouterr().out, flags=re.DOTALL)
