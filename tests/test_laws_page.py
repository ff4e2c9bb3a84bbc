"""The page of the laws names every test of a law, and none that does not exist."""

import ast
import re
from pathlib import Path


ROOT = Path(__file__).parent.parent
LAWS = ROOT / "tests" / "laws"
NOT_LAWS = {"test_oracle"}  # it holds the definition itself to data from outside


def laws_of(file: Path) -> list[str]:
    found = ast.parse(file.read_text(encoding="utf-8")).body
    names = [node.name for node in found if isinstance(node, ast.FunctionDef)]
    return [f"tests.laws.{file.stem}.{name}" for name in names if name.startswith("test_")]


def test_every_law_has_its_test_and_every_test_its_law():
    page = (ROOT / "docs" / "laws.md").read_text(encoding="utf-8")
    linked = re.findall(r"\[`(test_\w+)`\]\[([\w.]+)\]", page)
    assert all(target.endswith(f".{name}") for name, target in linked)
    files = [file for file in sorted(LAWS.glob("test_*.py")) if file.stem not in NOT_LAWS]
    there = [name for file in files for name in laws_of(file)]
    assert sorted(target for _, target in linked) == sorted(there)


def test_every_file_that_the_page_names_is_there():
    page = (ROOT / "docs" / "laws.md").read_text(encoding="utf-8")
    named = re.findall(r"`(tests/[\w/]+\.py)`", page)
    assert named
    assert not [name for name in named if not (ROOT / name).exists()]
