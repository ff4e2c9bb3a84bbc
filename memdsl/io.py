"""Saving a built layer in one file, loading it with nothing else at hand, and reading the weights
of published layers."""

import inspect
import json
import os
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array
from safetensors import SafetensorError
from safetensors.flax import load_file

from ._errors import SpecError
from ._files import replacing
from .nn import AbstractModule, build
from .nn._names import parameter_names, with_parameters
from .nn._saved import described, skeleton
from .plan import Dims
from .spec._layer import Tied
from .zoo import layers as published


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
    header = json.dumps(described(layer)).encode()
    with replacing(path) as file:
        file.write(header + b"\n")
        eqx.tree_serialise_leaves(file, layer)


def load(path: str | os.PathLike[str], *, types: tuple[type, ...] = ()) -> AbstractModule:
    """The layer that `save` wrote, built from the file alone.

    **Arguments:**

    - `path`: the file.
    - `types`: spec classes of your own that the file names.

    **Raises:** `SpecError` where the file is not one of ours, is newer, or names an unknown type.
    """
    with open(path, "rb") as file:
        description = _header(file.readline(), path)
        return eqx.tree_deserialise_leaves(file, skeleton(description, path, types))


def load_published(
    name: str,
    path: str | os.PathLike[str],
    *,
    prefix: str = "",
    dims: Dims | None = None,
    dtype: Any = jnp.float32,
    **options: Any,
) -> AbstractModule:
    """A published layer with the weights of a safetensors file, found there by their names.

    Every tensor of the file is a parameter of the layer and the other way round, but for what
    `prefix` leaves out. Shapes must agree, axes of length 1 and heads kept apart or together aside.

    **Arguments:**

    - `name`: of a function of `md.zoo.layers`.
    - `path`: the file.
    - `prefix`: only tensors whose names begin with it are read, without it.
    - `dims`: the sizes; by default the width of the input is `options["model"]`. A layer of `rwkv7`
        after the first takes twice that.
    - `dtype`: of the parameters.
    - `**options`: what the function takes: sizes, and what else the layer was trained with.

    **Returns:** the module.

    **Raises:** `SpecError` for an unknown name of a layer, for what is no safetensors file, and where
    tensors are unknown, missing, or of other shapes, listing what the file and the layer have.

    ??? example

        ```python
        >>> import jax, jax.numpy as jnp, tempfile, pathlib
        >>> import memdsl as md
        >>> from safetensors.flax import save_file
        >>> names = ("q_proj", "k_proj", "v_proj", "o_proj")
        >>> tensors = {f"{name}.weight": jnp.eye(8) for name in names}
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder) / "layer.safetensors"
        ...     save_file(tensors | {"norm.weight": jnp.ones(4)}, path)
        ...     layer = md.load_published("linear_attention", path, model=8, heads=2)
        >>> layer(jnp.ones((5, 8))).shape
        (5, 8)

        ```
    """
    known = published.catalogue()
    if name not in known:
        raise SpecError(
            f"There is no published layer {name!r}.", instead=f"one of {', '.join(known)}."
        )
    spec = _spec(known[name], options)
    module = build(
        spec, dims or Dims(model=options.get("model")), key=jax.random.key(0), dtype=dtype
    )
    found = _tensors(path).items()
    tensors = {n.removeprefix(prefix): array for n, array in found if n.startswith(prefix)}
    names = parameter_names(module)
    named = zip(names, jax.tree.leaves(module), strict=True)
    arrays = {n: array for n, array in named if n is not None}
    _compare(name, os.fspath(path), prefix, tensors, arrays)
    chosen = [None if n is None else tensors[n].reshape(arrays[n].shape) for n in names]
    return with_parameters(module, [None if a is None else a.astype(dtype) for a in chosen])


def _spec(function: Callable[..., Tied], options: dict[str, Any]) -> Tied:
    signature = inspect.signature(function)
    try:
        signature.bind(**options)
    except TypeError as error:
        raise SpecError(
            f"{function.__name__} cannot be made: {error}.",
            instead=f"what md.zoo.layers.{function.__name__}{signature} takes.",
        ) from error
    return function(**options)


def _tensors(path: str | os.PathLike[str]) -> dict[str, Array]:
    try:
        return load_file(path)
    except SafetensorError as error:
        raise SpecError(
            f"{os.fspath(path)} is no safetensors file: {error}.",
            instead="a file that safetensors wrote; md.load for one of md.save.",
        ) from error


def _compare(
    layer: str, path: str, prefix: str, tensors: dict[str, Array], own: dict[str, Array]
) -> None:
    """Raises `SpecError` where a file and a layer do not hold the same tensors."""
    missing, unknown = sorted(own.keys() - tensors.keys()), sorted(tensors.keys() - own.keys())
    other = sorted(n for n in own.keys() & tensors.keys() if not _agree(own[n], tensors[n]))
    if not (missing or unknown or other):
        return
    lines = []
    if missing:
        lines.append(f"the file lacks {', '.join(_shown(n, own[n]) for n in missing)}")
    if unknown:
        lines.append(f"the layer has no {', '.join(_shown(n, tensors[n]) for n in unknown)}")
    for n in other:
        lines.append(f"{_shown(n, own[n])} of the layer is {_shown('', tensors[n])} in the file")
    beginning = f" that begin with {prefix!r}" if prefix else ""
    raise SpecError(
        f"The tensors of {path}{beginning} are not those of {layer}: {'; '.join(lines)}.",
        why=f"The layer has {', '.join(_shown(n, own[n]) for n in sorted(own))}. "
        f"The file has {', '.join(_shown(n, tensors[n]) for n in sorted(tensors)) or 'none'}.",
        instead="prefix=... if the names in the file have more in front, and the sizes and options "
        "that the layer was trained with.",
    )


def _shown(name: str, array: Array) -> str:
    return f"{name} {tuple(array.shape)}".strip()


def _agree(ours: Array, theirs: Array) -> bool:
    """Whether two shapes are one, where neighbouring axes may be merged in one of them."""
    shapes = [[size for size in array.shape if size != 1] for array in (ours, theirs)]
    longer, shorter = sorted(shapes, key=len, reverse=True)
    for size in shorter:
        product = 1
        while longer and product < size:
            product *= longer.pop(0)
        if product != size:
            return False
    return not longer


def _header(line: bytes, path: Any) -> Any:
    try:
        return json.loads(line)
    except ValueError as error:
        raise SpecError(
            f"{os.fspath(path)} does not begin with a line of JSON.",
            why="md.save writes the spec and the sizes there.",
            instead="a file that md.save wrote.",
        ) from error
