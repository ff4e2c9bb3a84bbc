"""A training on the disk: one file, replaced when the next one is whole."""

import json
import os
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np

from .._errors import SpecError
from .._files import replacing, sweep


VERSION = 1


class Training(NamedTuple):
    """All that the rest of a training depends on, but what it is called with."""

    model: Any
    moments: Any
    best: Any
    """The model after the best epoch; `None` where no column says which one that is."""
    losses: np.ndarray
    """The losses of the epoch so far; the rest of it is not used."""
    epoch: int
    """How many epochs are done."""
    position: int
    """How many steps of the next epoch are done."""
    rows: list[dict[str, float]]


def fingerprint(data: Any, begun: Training, settings: dict[str, Any]) -> dict[str, Any]:
    """What must be the same for a training to go on: the data, the shapes, the settings."""
    arrays = [np.asarray(x) for x in jax.tree.leaves(data)]
    total = 0
    for array in arrays:
        total = zlib.crc32(array.tobytes(), total)
    shapes = [_shape(x) for x in jax.tree.leaves((begun.model, begun.moments, begun.best))]
    return {
        **settings,
        "data": [f"{array.dtype}{list(array.shape)}" for array in arrays] + [total],
        "arrays": f"{len(shapes)} leaves, {zlib.crc32(repr(shapes).encode())}",
    }


def _shape(leaf: Any) -> str:
    return f"{leaf.dtype}{list(leaf.shape)}" if eqx.is_array(leaf) else type(leaf).__name__


def store(path: Path, training: Training, marks: dict[str, Any]) -> None:
    """Writes a training: one line of JSON, then its arrays."""
    header = {
        "memdsl_fit": VERSION,
        "fit": marks,
        "epoch": training.epoch,
        "position": training.position,
        "rows": training.rows,
    }
    with replacing(path) as file:
        file.write(json.dumps(header).encode() + b"\n")
        eqx.tree_serialise_leaves(file, _leaves(training))


def restore(path: Path, begun: Training, marks: dict[str, Any]) -> Training:
    """The training that `store` wrote, where it is of the same data, shapes and settings."""
    sweep(path)
    if not path.exists():
        return begun
    with open(path, "rb") as file:
        header = _header(file.readline(), path)
        if header["fit"] != marks:
            other = sorted(
                name
                for name in header["fit"].keys() | marks.keys()
                if header["fit"].get(name) != marks.get(name)
            )
            raise SpecError(
                f"{os.fspath(path)} is of another training: {', '.join(other)} differ.",
                where="; ".join(
                    f"{n}: {header['fit'].get(n)} there, {marks.get(n)} here" for n in other
                ),
                why="A training goes on exactly as it began, or not at all.",
                instead="another folder, or the data, model and settings of that training.",
            )
        model, moments, best, losses = eqx.tree_deserialise_leaves(file, _leaves(begun))
    return Training(
        model, moments, best, losses, header["epoch"], header["position"], header["rows"]
    )


def _leaves(training: Training) -> tuple[Any, ...]:
    return training.model, training.moments, training.best, training.losses


def _header(line: bytes, path: Path) -> dict[str, Any]:
    try:
        header = json.loads(line)
    except ValueError:
        header = None
    if not isinstance(header, dict) or header.get("memdsl_fit") != VERSION:
        raise SpecError(
            f"{os.fspath(path)} is no checkpoint of this version of md.grow.fit.",
            instead="another folder.",
        )
    return header
