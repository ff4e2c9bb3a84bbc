"""A training on the disk: whole at every moment, whenever the program is killed."""

import contextlib
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
from ._folder import Folder
from ._history import History
from ._shard import moved, on_host, places


VERSION = 2
CHECKPOINT, STEPS, CURVES = "checkpoint", "checkpoints", "history.csv"


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
    arrays = [on_host(x) for x in jax.tree.leaves(data)]
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


class Keeper:
    """Where a training is saved: in one file, that is replaced when the next one is whole; a model
    that lies on a mesh, by the steps of a folder, to which every process writes.

    It goes on from whichever is further, on the devices where the training begins now. The history is
    beside it as CSV.
    """

    def __init__(self, folder: Path, marks: dict[str, Any], on_mesh: bool):
        folder.mkdir(parents=True, exist_ok=True)
        steps = folder / STEPS
        self._file, self._curves = folder / CHECKPOINT, folder / CURVES
        self._marks, self._on_mesh = marks, on_mesh
        self._folder = Folder(steps, keep=2) if on_mesh or steps.exists() else None

    def restore(self, begun: Training) -> Training:
        """The training that was saved, where it is of the same data, shapes and settings."""
        found = [begun]
        if _is_first():
            sweep(self._file)
            sweep(self._curves)
        if self._file.exists():
            found.append(restore(self._file, begun, self._marks))
        if self._folder is not None and self._folder.steps:
            found.append(self._newest(self._folder, begun))
        training = max(found, key=lambda training: (training.epoch, training.position))
        self._draw(training)
        return training

    def store(self, training: Training) -> None:
        """Saves a training; on a mesh it may still be written when this returns."""
        if self._on_mesh and self._folder is not None:
            step = training.epoch * len(training.losses) + training.position
            trees = {"training": _arrays(training)}
            self._folder.save(step, _header(training, self._marks), trees)
        else:
            store(self._file, training, self._marks)
        self._draw(training)

    def _newest(self, folder: Folder, begun: Training) -> Training:
        step = folder.steps[-1]
        header = folder.header(step)
        _check(header, self._marks, Path(folder.path))
        return _trained(header, folder.load(step, "training", _arrays(begun)))

    def _draw(self, training: Training) -> None:
        if _is_first():
            History(training.rows).save(self._curves)

    def close(self) -> None:
        """Returns when all is on the disk."""
        if self._folder is not None:
            self._folder.close()


def _is_first() -> bool:
    """Whether this is the process that writes what is written once."""
    return jax.process_index() == 0


def store(path: Path, training: Training, marks: dict[str, Any]) -> None:
    """Writes a training: one line of JSON, then its arrays."""
    with replacing(path) as file:
        file.write(json.dumps(_header(training, marks)).encode() + b"\n")
        eqx.tree_serialise_leaves(file, _arrays(training))


def restore(path: Path, begun: Training, marks: dict[str, Any]) -> Training:
    """The training that `store` wrote, its arrays where those of `begun` are."""
    with open(path, "rb") as file:
        header: Any = None
        with contextlib.suppress(ValueError):
            header = json.loads(file.readline())
        _check(header, marks, path)
        arrays = eqx.tree_deserialise_leaves(file, _arrays(begun))
    return _trained(header, moved(arrays, places(_arrays(begun))))


def _arrays(training: Training) -> tuple[Any, ...]:
    return training.model, training.moments, training.best


def _header(training: Training, marks: dict[str, Any]) -> dict[str, Any]:
    return {
        "memdsl_fit": VERSION,
        "fit": marks,
        "epoch": training.epoch,
        "position": training.position,
        "losses": training.losses.tolist(),
        "rows": training.rows,
    }


def _trained(header: dict[str, Any], arrays: tuple[Any, ...]) -> Training:
    model, moments, best = arrays
    losses = np.asarray(header["losses"], np.float64)
    place = header["epoch"], header["position"]
    return Training(model, moments, best, losses, *place, header["rows"])


def _check(header: Any, marks: dict[str, Any], path: Path) -> None:
    if not isinstance(header, dict) or header.get("memdsl_fit") != VERSION:
        raise SpecError(
            f"{os.fspath(path)} is no checkpoint of this version of md.grow.fit.",
            instead="another folder.",
        )
    there = header["fit"]
    other = sorted(k for k in there.keys() | marks.keys() if there.get(k) != marks.get(k))
    if other:
        raise SpecError(
            f"{os.fspath(path)} is of another training: {', '.join(other)} differ.",
            where="; ".join(f"{n}: {there.get(n)} there, {marks.get(n)} here" for n in other),
            why="A training goes on exactly as it began, or not at all.",
            instead="another folder, or the data, model and settings of that training.",
        )
