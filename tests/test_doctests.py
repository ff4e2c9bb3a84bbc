"""Every example in a docstring of memdsl runs, alone, and prints what it says."""

import ast
import doctest
from collections.abc import Iterator
from pathlib import Path

import pytest


ROOT = Path(__file__).parent.parent
FLAGS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
NAMED = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def documented(node: ast.AST, name: str) -> Iterator[tuple[str, int, str]]:
    """`(name, line, docstring)` of a module, its classes and its functions, read from the source.

    Read and not imported, because the standard finder passes over decorated functions in silence.
    """
    if isinstance(node, (ast.Module, *NAMED)):
        text = ast.get_docstring(node, clean=False)
        if text:
            yield name, node.body[0].lineno - 1, text
    for child in ast.iter_child_nodes(node):
        inner = f"{name}.{child.name}" if isinstance(child, NAMED) else name
        yield from documented(child, inner)


def examples() -> list[doctest.DocTest]:
    parser, found = doctest.DocTestParser(), []
    for file in sorted((ROOT / "memdsl").rglob("*.py")):
        module = ".".join(file.relative_to(ROOT).with_suffix("").parts)
        tree = ast.parse(file.read_text(encoding="utf-8"))
        for name, line, text in documented(tree, module):
            example = parser.get_doctest(text, {}, name, str(file), line)
            if example.examples:
                found.append(example)
    return found


def unfenced(docstring: str) -> list[str]:
    """The lines of examples outside a fence: on the API pages they would be quotations."""
    lines, fenced = [], False
    for line in map(str.strip, docstring.splitlines()):
        if line.startswith("```"):
            fenced = not fenced
        elif line.startswith(">>>") and not fenced:
            lines.append(line)
    return lines


@pytest.mark.usefixtures("ordinary_settings")
@pytest.mark.parametrize("example", examples(), ids=lambda example: example.name)
def test_example(example: doctest.DocTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    report: list[str] = []
    runner = doctest.DocTestRunner(optionflags=FLAGS)
    failed, tried = runner.run(example, out=report.append)
    assert tried
    assert not failed, "".join(report)


@pytest.mark.parametrize("example", examples(), ids=lambda example: example.name)
def test_example_is_fenced(example: doctest.DocTest):
    assert example.docstring is not None
    assert unfenced(example.docstring) == []


def test_unfenced_examples_are_seen():
    assert unfenced("```python\n>>> 1\n1\n\n```\n>>> 2") == [">>> 2"]


def test_decorated_functions_are_found():
    source = '@wrapped\ndef f():\n    """Adds.\n\n    >>> 1 + 1\n    3\n    """\n'
    ((name, line, text),) = documented(ast.parse(source), "m")
    example = doctest.DocTestParser().get_doctest(text, {}, name, "m.py", line)
    outcome = doctest.DocTestRunner(verbose=False).run(example, out=lambda _: None)
    assert (name, line, outcome.failed) == ("m.f", 2, 1)
