"""The house: imports go down only, files stay small, and importing memdsl changes nothing."""

import ast
import dataclasses
import importlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import jax
import numpy as np
import pytest


ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "memdsl"
FILES = sorted(PACKAGE.rglob("*.py"))
LONGEST = 350

LEVELS: tuple[tuple[str, ...], ...] = (
    ("_errors", "_files", "_linalg", "_types"),
    ("spec",),
    ("oracle", "state"),
    ("run",),
    ("plan",),
    ("nn", "grow", "optim"),
    ("io", "cite", "zoo", "testing"),
    ("explain", "listing"),
    ("experiments", "cli"),
)
LEVEL = {part: level for level, parts in enumerate(LEVELS) for part in parts}
# Two parts of one level may not know each other, with these exceptions: (who imports, what).
NEIGHBOURS = {
    ("grow", "nn"),
    ("optim", "nn"),
    ("optim", "grow"),
    ("io", "zoo"),
    ("cli", "experiments"),
}
# The oracle stands apart, so that it cannot share a bug with what is compared with it.
APART_FROM_THE_ORACLE = {"state", "run", "plan", "nn", "grow", "optim"}
ROOT_MODULE = "__init__"


def name_of(file: Path) -> str:
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def part_of(module: str) -> str:
    """`memdsl.spec._kernel` is of the part `spec`; `memdsl` itself is the root module."""
    names = module.split(".")
    return names[1] if len(names) > 1 else ROOT_MODULE


def is_module(name: str) -> bool:
    path = ROOT.joinpath(*name.split("."))
    return path.is_dir() or path.with_suffix(".py").exists()


def imported_by(source: str, module: str, is_package: bool) -> Iterator[tuple[int, str]]:
    """`(line, memdsl module)` of every import, also those in functions and for type checking."""
    package = module.split(".") if is_package else module.split(".")[:-1]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *filter(None, [node.module])])
            inside = [f"{base}.{alias.name}" for alias in node.names]
            names = [name if is_module(name) else base for name in inside]
        else:
            continue
        yield from ((node.lineno, name) for name in names if name.split(".")[0] == "memdsl")


def why_refused(importer: str, imported: str) -> str | None:
    """The reason why the part `importer` may not import the part `imported`, if there is one."""
    if importer in (ROOT_MODULE, imported):
        return None
    if imported == ROOT_MODULE:
        return None if LEVEL[importer] == len(LEVELS) - 1 else "the root module stands above it"
    if importer == "oracle" and imported not in ("_errors", "_types", "spec"):
        return "the oracle imports only the specs"
    if imported == "oracle" and importer in APART_FROM_THE_ORACLE:
        return "what is compared with the oracle may not use it"
    if (importer, imported) in NEIGHBOURS:
        return None
    if LEVEL[imported] >= LEVEL[importer]:
        return "imports go down only"
    return None


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_imports_go_down_only(file: Path):
    module = name_of(file)
    part = part_of(module)
    assert part == ROOT_MODULE or part in LEVEL, f"{part} has no level: give it one in LEVELS"
    source = file.read_text(encoding="utf-8")
    refused = [
        f"{file.relative_to(ROOT)}:{line} imports {imported}: {why}"
        for line, imported in imported_by(source, module, file.name == "__init__.py")
        if (why := why_refused(part, part_of(imported)))
    ]
    assert not refused, "\n".join(refused)


@pytest.mark.parametrize(
    ("module", "line", "found"),
    [
        ("memdsl.spec._kernel", "from .._errors import SpecError", "memdsl._errors"),
        ("memdsl.spec._kernel", "from ..plan import plan", "memdsl.plan"),
        ("memdsl.spec._kernel", "import memdsl.spec", "memdsl.spec"),
        ("memdsl.spec._kernel", "def f():\n    from memdsl import spec", "memdsl.spec"),
        ("memdsl.spec._kernel", "from .. import no_such_name", "memdsl"),
    ],
)
def test_the_reader_of_imports_resolves_names(module: str, line: str, found: str):
    assert [name for _, name in imported_by(line, module, is_package=False)] == [found]


@pytest.mark.parametrize(
    ("importer", "imported"),
    [("run", "plan"), ("spec", "state"), ("oracle", "state"), ("run", "oracle"), ("nn", "grow")],
)
def test_upward_imports_are_refused(importer: str, imported: str):
    assert why_refused(importer, imported)


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_files_stay_small(file: Path):
    lines = len(file.read_text(encoding="utf-8").splitlines())
    assert lines <= LONGEST, f"{file.relative_to(ROOT)} has {lines} lines: cut it at its joints"


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_no_array_is_a_default_or_static(file: Path):
    """A static array works once and fails at the second call; a default array is shared."""
    module = importlib.import_module(name_of(file))
    for cls in vars(module).values():
        if not (isinstance(cls, type) and dataclasses.is_dataclass(cls)):
            continue
        for field in dataclasses.fields(cls):
            where = f"{cls.__qualname__}.{field.name}"
            assert not isinstance(field.default, jax.Array | np.ndarray | np.generic), where
            if field.metadata.get("static", False):
                assert "Array" not in str(field.type), f"{where} is static and holds an array"


def test_importing_memdsl_changes_nothing_else():
    """No import hook, no setting of JAX, and nothing that only the command line needs."""
    script = """
import json, sys
import jax
before = dict(jax.config.values)
import memdsl
hooks = [getattr(h, "__module__", None) or type(h).__module__ for h in sys.path_hooks]
finders = [f.__module__ if isinstance(f, type) else type(f).__module__ for f in sys.meta_path]
print(json.dumps({
    "hooks": hooks + finders,
    "settings": [name for name, value in jax.config.values.items() if value != before.get(name)],
    "modules": [m for m in ("matplotlib", "sklearn", "tyro") if m in sys.modules],
}))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    found = json.loads(done.stdout)
    checkers = {"beartype", "jaxtyping", "memdsl", "typeguard"}
    assert not [name for name in found["hooks"] if name.split(".")[0] in checkers]
    assert found["settings"] == []
    assert found["modules"] == []
