"""What is stored beside the arrays of a built layer, so that it can be built again."""

import dataclasses
import json
import os
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from .._errors import SpecError
from ..plan import Dims
from ..spec._json import from_json, to_json
from ._base import AbstractModule
from ._build import build


VERSION = 1


def described(layer: Any) -> dict[str, Any]:
    """The spec, the sizes and the dtype of a layer, as JSON has them."""
    if not isinstance(layer, AbstractModule):
        raise SpecError(
            f"Only what build made can be saved, and this is a {type(layer).__name__}.",
            instead="equinox.tree_serialise_leaves for a module of your own.",
        )
    return {
        "memdsl": VERSION,
        "spec": json.loads(to_json(layer.spec)),
        "dims": {k: v for k, v in dataclasses.asdict(layer.dims).items() if v is not None},
        "dtype": _dtype(layer),
    }


def skeleton(
    description: Any, path: str | os.PathLike[str], types: tuple[type, ...] = ()
) -> AbstractModule:
    """The layer of a description, with shapes and dtypes in the place of arrays.

    **Arguments:**

    - `description`: what `described` gave.
    - `path`: where it was found, for messages.
    - `types`: spec classes of a user's own that it names.
    """
    wanted = {"memdsl", "spec", "dims", "dtype"}
    found = set(description) if isinstance(description, dict) else set()
    if not wanted <= found:
        raise SpecError(
            f"{os.fspath(path)} describes no layer: it lacks {', '.join(sorted(wanted - found))}.",
            instead="what md.save or md.grow.Checkpoints wrote.",
        )
    if description["memdsl"] > VERSION:
        raise SpecError(
            f"{os.fspath(path)} is of version {description['memdsl']}, and this memdsl reads "
            f"{VERSION}.",
            instead="a newer memdsl.",
        )
    spec = from_json(json.dumps(description["spec"]), types=types)
    dims, dtype = Dims(**description["dims"]), jnp.dtype(description["dtype"])
    return eqx.filter_eval_shape(build, spec, dims, key=jax.random.key(0), dtype=dtype)


def _dtype(layer: AbstractModule) -> str:
    """The dtype of the parameters."""
    arrays = [x for x in jax.tree.leaves(layer) if eqx.is_inexact_array(x)]
    widths = {str(x.dtype): x.dtype.itemsize for x in arrays}
    return min(widths, key=lambda name: widths[name]) if widths else "float32"
