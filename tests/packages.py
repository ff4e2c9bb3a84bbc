"""Packages that need not be installed."""

import sys
from types import ModuleType
from typing import Any

import pytest


def package(monkeypatch: pytest.MonkeyPatch, name: str, **functions: Any) -> None:
    """A package of that name whose module `data` has these functions."""
    parent, data = ModuleType(name), ModuleType(f"{name}.data")
    for function, does in functions.items():
        setattr(data, function, does)
    monkeypatch.setitem(sys.modules, name, parent)
    monkeypatch.setitem(sys.modules, f"{name}.data", data)
    monkeypatch.setattr("memdsl.experiments._classification.find_spec", lambda name: parent)
