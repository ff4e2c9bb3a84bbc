"""Memories compute what other software computed: values, final states and gradients.

The whole table, every legal plan in both precisions, is `python -m tests.golden`, or `-m slow` here.
"""

import re
from pathlib import Path

import jax.numpy as jnp
import pytest

from .golden._file import load, names
from .golden._table import CASES, compare, legal_plans, measure, NOTES, REASONS, TOLERANCE
from .helpers import some_of


FOLDER = Path(__file__).parent / "golden"


LAYERS = [name for name in CASES if name.startswith("layer_")]
OPERATORS = [name for name in CASES if name not in LAYERS]


@pytest.mark.parametrize("name", [*sorted(OPERATORS), *some_of(LAYERS, 3)])
def test_file(name: str):
    row = measure(name, every=False)
    assert row.verdict == "pass", row


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(CASES))
def test_every_plan_of_a_file(name: str):
    row = measure(name)
    assert row.verdict == "pass", row


def test_every_file_has_its_case():
    assert sorted([*CASES, *REASONS]) == names()
    assert set(NOTES) <= set(CASES)
    assert [measure(name).verdict for name in REASONS] == ["reason"] * len(REASONS)


def test_every_file_is_explained():
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    headings = re.findall(r"^### (\w+)$", text, flags=re.MULTILINE)
    assert sorted(headings) == names()


@pytest.mark.parametrize(
    ("case", "name"), [("comba", "comba_decayed_read"), ("gla_stress", "gla"), ("oja", "gated_oja")]
)
def test_another_memory_than_the_files_is_seen(case: str, name: str):
    golden = load(name)
    if case == "gla_stress":  # the right memory on wrong data
        golden = golden._replace(inputs={**golden.inputs, "gk": golden.inputs["gk"] * 1.0001})
    plan = legal_plans(golden, CASES[case])[0]
    errors = compare(golden, CASES[case], plan, jnp.float64)
    assert min(errors) > 1000 * TOLERANCE["float64"]
