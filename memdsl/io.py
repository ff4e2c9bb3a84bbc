"""Saving a built layer in one file, and loading it with nothing else at hand."""

import contextlib
import dataclasses
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from ._errors import SpecError
from .nn import AbstractModule, build
from .plan import Dims
from .spec._json import from_json, to_json


VERSION = 1


def save(path: str | os.PathLike[str], layer: AbstractModule) -> None:
    """Writes a layer to a file: one line of JSON (spec, sizes, dtype), then its arrays.

    The file is written beside its place and moved there when it is whole: a crash leaves the old one.

    **Arguments:**

    - `path`: the file.
    - `layer`: what `md.build` made, trained or not, with what has grown.

    **Raises:** `SpecError` where `layer` was not made by `md.build`.

    ??? example

        ```python
        >>> import jax, tempfile, pathlib
        >>> import memdsl as md
        >>> layer = md.build(md.Layer(md.zoo.delta_net()), md.Dims(model=8), key=jax.random.key(0))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder) / "layer.memdsl"
        ...     md.save(path, layer)
        ...     again = md.load(path)
        >>> bool(jax.numpy.all(again.output == layer.output))
        True

        ```
    """
    if not isinstance(layer, AbstractModule):
        raise SpecError(
            f"save takes what build made, and got {type(layer).__name__}.",
            instead="equinox.tree_serialise_leaves for a module of your own.",
        )
    header = {
        "memdsl": VERSION,
        "spec": json.loads(to_json(layer.spec)),
        "dims": {k: v for k, v in dataclasses.asdict(layer.dims).items() if v is not None},
        "dtype": _dtype(layer),
    }
    target = Path(path)
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(json.dumps(header).encode() + b"\n")
            eqx.tree_serialise_leaves(file, layer)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


def load(path: str | os.PathLike[str], *, types: tuple[type, ...] = ()) -> AbstractModule:
    """The layer that `save` wrote, built from the file alone.

    **Arguments:**

    - `path`: the file.
    - `types`: spec classes of your own that the file names.

    **Raises:** `SpecError` where the file is not one of ours, is newer, or names an unknown type.
    """
    with open(path, "rb") as file:
        header = _header(file.readline(), path)
        spec = from_json(json.dumps(header["spec"]), types=types)
        dims = Dims(**header["dims"])
        skeleton = eqx.filter_eval_shape(
            build, spec, dims, key=jax.random.key(0), dtype=jnp.dtype(header["dtype"])
        )
        return eqx.tree_deserialise_leaves(file, skeleton)


def _header(line: bytes, path: Any) -> dict[str, Any]:
    try:
        header = json.loads(line)
    except ValueError as error:
        raise SpecError(
            f"{os.fspath(path)} does not begin with a line of JSON.",
            why="md.save writes the spec and the sizes there.",
            instead="a file that md.save wrote.",
        ) from error
    wanted = {"memdsl", "spec", "dims", "dtype"}
    if not isinstance(header, dict) or not wanted <= set(header):
        missing = sorted(wanted - set(header)) if isinstance(header, dict) else sorted(wanted)
        raise SpecError(
            f"The first line of {os.fspath(path)} lacks {', '.join(missing)}.",
            instead="a file that md.save wrote.",
        )
    if header["memdsl"] > VERSION:
        raise SpecError(
            f"{os.fspath(path)} is of version {header['memdsl']}, and this memdsl reads {VERSION}.",
            instead="a newer memdsl.",
        )
    return header


def _dtype(layer: AbstractModule) -> str:
    """The dtype of the parameters."""
    arrays = [x for x in jax.tree.leaves(layer) if eqx.is_inexact_array(x)]
    widths = {str(x.dtype): x.dtype.itemsize for x in arrays}
    return min(widths, key=lambda name: widths[name]) if widths else "float32"
