"""A model, and its batches, on a mesh of devices."""

import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jax.core import Tracer
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec, Sharding
from jaxtyping import Array, PyTree

from .._errors import SpecError
from .._types import checked
from ..state import BufferState
from ..state._shards import Shards


_WHOLE = PartitionSpec()


@checked
def shard(model: Any, mesh: Mesh, *, atoms: str = "atoms") -> Any:
    r"""The same model on many devices: the atoms of its growing layers in equal parts, the rest whole.

    $$f(q) = \sum_{\mathrm{devices}} \sum_{i \ \mathrm{of\ the\ device}}
      w_i\, \kappa(k_i, q)\, (c_i, m_i)$$

    Every device holds some of the slots of each buffer. A read is a read of these and one sum (of a
    kernel that is an exponential, a maximum and a sum); each device writes the slots that it holds.
    What is computed is the same, up to the order of sums. `backward`, `write`, `fit`, `resize`,
    `slotwise`, `attribute` and `suggest_rate` take the model as any other, and keep it where it is.

    **Arguments:**

    - `model`: any pytree with growing layers in it.
    - `mesh`: of devices, of one process or of many; all its other axes hold the same atoms. Its axis
        types do not matter, but those of a mesh that `jax.set_mesh` has set must not be explicit.
    - `atoms`: the axis along which slots are cut.

    **Returns:** the model. Of many processes, each gives the same model.

    **Raises:** `SpecError` for an axis that the mesh has not, for a buffer whose slots cannot be cut
    into equal parts, with the next number that can, and where an explicit mesh is set.

    ??? example

        ```python
        >>> import jax
        >>> import memdsl as md
        >>> atoms = md.Memory(md.RBF(scale=1.0), md.Hebb(rate=0.5), capacity=md.Budget(100))
        >>> model = md.build(md.Grown(md.Dense(3), atoms), md.Dims(model=2), key=jax.random.key(0))
        >>> mesh = jax.make_mesh((1, 1), ("atoms", "data"))  # of eight devices: (4, 2)
        >>> there = md.grow.shard(model, mesh)
        >>> x = jax.numpy.ones(2)
        >>> print(bool(jax.numpy.array_equal(there(x), model(x))), there.state.shards.count)
        True 1

        ```
    """
    shards = shards_of(mesh, atoms)
    model = cut(model, shards)
    where = placement(model, shards)
    return jax.tree.map(lambda x, at: put(x, at) if eqx.is_array(x) else x, model, where)


@checked
def shard_batch(
    batch: PyTree[Array | np.ndarray], mesh: Mesh, *, data: str = "data"
) -> PyTree[Array]:
    """Arrays with an example a row, on many devices: their rows in equal parts.

    For a step of one's own, its batch; for `md.grow.fit`, all the data: every batch is then cut as
    the data are.

    **Arguments:**

    - `batch`: an array, or any pytree of them. Of many processes, each gives all rows.
    - `mesh`: the mesh of the model.
    - `data`: the axis along which rows are cut.

    **Raises:** `SpecError` for an axis that the mesh has not, and for rows that cannot be cut into
    equal parts.

    ??? example

        ```python
        >>> import jax
        >>> import jax.numpy as jnp
        >>> import memdsl as md
        >>> mesh = jax.make_mesh((1, 1), ("atoms", "data"))
        >>> md.grow.shard_batch(jnp.zeros((6, 2)), mesh).sharding.spec[0]
        'data'

        ```
    """
    place = NamedSharding(_mesh(mesh, data), PartitionSpec(data))
    for x in jax.tree.leaves(batch):
        check_rows(len(x), place)
    return jax.tree.map(lambda x: put(x, place), batch)


def check_rows(rows: int, place: Any) -> None:
    """Raises `SpecError` where so many rows cannot lie where arrays of examples do."""
    axis = place.spec[0] if isinstance(place, NamedSharding) and len(place.spec) else None
    names = () if axis is None else (axis,) if isinstance(axis, str) else axis
    parts = math.prod(place.mesh.shape[name] for name in names)
    if rows % parts:
        raise SpecError(
            f"{rows} rows cannot be cut into {parts} equal parts.",
            why=f"They lie along the axis {axis!r} of a mesh, with as many on each device.",
            instead=f"{rows - rows % parts or parts} rows, or a mesh with another number of places.",
        )


def shards_of(mesh: Mesh, axis: str) -> Shards:
    """Slots along an axis of a mesh, whatever its axis types."""
    return Shards(_mesh(mesh, axis), axis)


def cut(model: Any, shards: Shards | None) -> Any:
    """A model whose buffers say that they are in these shards, or in none; no array is moved."""

    def one(node: Any) -> Any:
        if not _is_buffer(node):
            return node
        if shards is not None:
            shards.check(node.log_weight.shape[-1])
        return node.put(shards=shards)

    return jax.tree.map(one, model, is_leaf=_is_buffer)


def placement(model: Any, shards: Shards) -> Any:
    """Where every leaf of a model in shards lies."""
    return jax.tree.map(
        lambda node: node.placement() if _is_buffer(node) else shards.whole,
        model,
        is_leaf=_is_buffer,
    )


def put(x: Any, where: Sharding) -> Array:
    """An array where it belongs, also where that is on devices of other processes."""
    if where.is_fully_addressable or not getattr(x, "is_fully_addressable", True):
        return jax.device_put(x, where)
    own = np.asarray(x)
    return jax.make_array_from_callback(own.shape, where, lambda part: own[part])


def home(model: Any) -> NamedSharding | None:
    """What is whole on all devices that a model lies on; `None` where it was not put on a mesh."""
    for x in jax.tree.leaves(model):
        placed = isinstance(x, jax.Array) and not isinstance(x, Tracer)
        if placed and isinstance(x.sharding, NamedSharding):
            mesh: Any = x.sharding.mesh
            return NamedSharding(Mesh(mesh.devices, mesh.axis_names), _WHOLE)
    return None


def beside(tree: Any, place: NamedSharding | None) -> Any:
    """A tree whose arrays are on the devices of `place`: those that were not are whole on each."""
    if place is None:
        return tree

    def brought(x: Any) -> Any:
        there = isinstance(x, jax.Array) and x.sharding.device_set == place.device_set
        return x if there or not eqx.is_array(x) else put(x, place)

    return jax.tree.map(brought, tree)


def places(tree: Any) -> list[Sharding | None]:
    """Where the leaves of a tree lie, for `kept`."""
    return [x.sharding if isinstance(x, jax.Array) else None for x in jax.tree.leaves(tree)]


def moved(tree: Any, places: list[Sharding | None]) -> Any:
    """A tree whose arrays lie on a mesh where those of another tree do."""
    return _at(tree, places, put)


def kept(tree: Any, places: list[Sharding | None]) -> Any:
    """The same inside jit."""
    return _at(tree, places, jax.lax.with_sharding_constraint)


def _at(tree: Any, places: list[Sharding | None], move: Callable[[Any, Sharding], Any]) -> Any:
    leaves, structure = jax.tree.flatten(tree)
    turns = zip(leaves, places, strict=True)
    found = [move(x, place) if isinstance(place, NamedSharding) else x for x, place in turns]
    return jax.tree.unflatten(structure, found)


def on_host(x: Any) -> np.ndarray:
    """An array, whole in the memory of this process."""
    if getattr(x, "is_fully_addressable", True) or x.is_fully_replicated:
        return np.asarray(x)
    return np.asarray(multihost_utils.process_allgather(x, tiled=True))


def _is_buffer(node: Any) -> bool:
    return isinstance(node, BufferState)


def _mesh(mesh: Mesh, axis: str) -> Mesh:
    """The mesh, whose arrays have no shardings in their types: XLA places what is between."""
    if axis not in mesh.axis_names:
        raise SpecError(
            f"The mesh has no axis {axis!r}.",
            where=f"its axes are {', '.join(map(repr, mesh.axis_names))}",
            instead='jax.make_mesh((4, 2), ("atoms", "data")), for eight devices.',
        )
    if AxisType.Explicit in jax.sharding.get_abstract_mesh().axis_types:
        raise SpecError(
            "The mesh that jax.set_mesh has set has explicit axes.",
            why="What is between the parts of a growing layer lies where the compiler puts it.",
            instead="no mesh that is set, or one with axis_types=(AxisType.Auto, AxisType.Auto).",
        )
    return Mesh(mesh.devices, mesh.axis_names)
