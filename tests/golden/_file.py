"""A file of golden data, read into what it holds: inputs, outputs, cotangents, gradients, constants."""

from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np


FOLDER = Path(__file__).parent


class Golden(NamedTuple):
    """One operator: arrays by name, as the README of this folder describes them."""

    name: str
    inputs: dict[str, np.ndarray]
    outputs: dict[str, np.ndarray]
    cotangents: dict[str, np.ndarray]
    gradients: dict[str, np.ndarray]
    constants: SimpleNamespace


def names() -> list[str]:
    """Every operator file of this folder, without its ending."""
    return sorted(path.stem for path in FOLDER.glob("*.npz"))


def load(name: str) -> Golden:
    """The file called `name`.npz."""
    with np.load(FOLDER / f"{name}.npz") as file:
        arrays = {key: file[key] for key in file.files}
    parts: dict[str, dict[str, np.ndarray]] = {p: {} for p in ("out", "cot", "grad", "attr", "in")}
    for key, array in arrays.items():
        head, _, tail = key.partition("_")
        named = head in ("out", "cot", "grad", "attr")
        parts[head if named else "in"][tail if named else key] = array
    constants = {key: array.item() for key, array in parts["attr"].items()}
    return Golden(
        name, parts["in"], parts["out"], parts["cot"], parts["grad"], SimpleNamespace(**constants)
    )
