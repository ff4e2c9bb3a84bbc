"""Checkpoints of a model that lies on many devices."""

import os
from typing import Any, Self

import jax
from jax.sharding import Mesh, SingleDeviceSharding

from .._errors import SpecError
from ..nn._base import AbstractModule
from ..nn._saved import described, skeleton
from ._folder import Folder
from ._shard import cut, placement, shards_of


class Checkpoints:
    """Checkpoints of a model, and of what is trained with it, in a folder.

    `save` returns when it has a copy, and writes while the training goes on; every process writes
    what its devices hold. A step is whole or not there: what a process that was killed has half
    written is no step. With the arrays there are the spec and the sizes, so that `load` needs nothing
    else: it puts the model on whatever mesh it is given, or on one device.

    **Arguments:**

    - `folder`: made if need be; of many processes, one that all of them see.
    - `keep`: how many steps are kept, the newest; `None` for all.

    **Raises:** `SpecError` where orbax is not installed, which the extra `scale` brings.

    ??? example

        ```python
        >>> import jax, tempfile
        >>> import memdsl as md
        >>> atoms = md.Memory(md.RBF(scale=1.0), md.Hebb(rate=0.5), capacity=md.Budget(100))
        >>> model = md.build(md.Grown(md.Dense(3), atoms), md.Dims(model=2), key=jax.random.key(0))
        >>> mesh = jax.make_mesh((1, 1), ("atoms", "data"))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with md.grow.Checkpoints(folder) as checkpoints:
        ...         checkpoints.save(10, model)
        ...         checkpoints.wait()
        ...         again = checkpoints.load(mesh=mesh)
        ...         print(checkpoints.steps, again.spec.memory.capacity, again.state.shards.axis)
        (10,) Budget(100) atoms

        ```
    """

    def __init__(self, folder: str | os.PathLike[str], *, keep: int | None = 3):
        self._folder = Folder(folder, keep)

    @property
    def steps(self) -> tuple[int, ...]:
        """The numbers of the checkpoints that are whole, in order."""
        return self._folder.steps

    def save(self, step: int, model: AbstractModule, moments: Any = None) -> None:
        """Begins to write a checkpoint; the arrays may be overwritten as soon as this returns.

        **Arguments:**

        - `step`: its number, above those that there are.
        - `model`: what `md.build` made, with what has grown.
        - `moments`: any tree of arrays, such as the state of an optimiser.
        """
        latest = max(self.steps, default=-1)
        if step <= latest:
            raise SpecError(
                f"Step {step} is not after step {latest}, which is there already.",
                instead=f"a step from {latest + 1}, or another folder.",
            )
        trees = {"model": model, "moments": moments}
        self._folder.save(step, {"layer": described(model)}, trees)

    def load(
        self,
        step: int | None = None,
        *,
        mesh: Mesh | None = None,
        atoms: str = "atoms",
        types: tuple[type, ...] = (),
    ) -> Any:
        """The model of a checkpoint.

        **Arguments:**

        - `step`: which; by default the newest.
        - `mesh`: where to put it, as `md.grow.shard` does; by default on one device.
        - `atoms`: the axis of the mesh along which slots are cut.
        - `types`: spec classes of your own that its spec names.

        **Raises:** `SpecError` for a step that there is not, and as `md.grow.shard`.
        """
        step = self._step(step)
        model = skeleton(self._folder.header(step)["layer"], self._folder.path, types)
        if mesh is None:
            alone = SingleDeviceSharding(jax.local_devices()[0])
            where = jax.tree.map(lambda _: alone, model)
        else:
            model = cut(model, shards_of(mesh, atoms))
            where = placement(model, shards_of(mesh, atoms))
        return self._folder.load(step, "model", jax.tree.map(_there, model, where))

    def load_moments(self, like: Any, step: int | None = None) -> Any:
        """What was saved beside the model.

        **Arguments:**

        - `like`: a tree of the same shapes, such as `optimiser.init(md.grow.parameters(model))`;
            each array is put where the one in it lies.
        - `step`: which; by default the newest.

        **Raises:** `SpecError` where other arrays were saved.
        """
        return self._folder.load(self._step(step), "moments", like)

    def wait(self) -> None:
        """Returns when all that was saved is on the disk."""
        self._folder.wait()

    def close(self) -> None:
        """Waits, and lets go of the folder."""
        self._folder.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def _step(self, step: int | None) -> int:
        steps = self.steps
        if not steps:
            raise SpecError(
                f"There is no checkpoint in {self._folder.path}.",
                instead="a folder in which one was saved, and written to its end: see wait().",
            )
        if step is not None and step not in steps:
            raise SpecError(
                f"There is no step {step} in {self._folder.path}.",
                instead=f"one of {', '.join(map(str, steps))}.",
            )
        return steps[-1] if step is None else step


def _there(x: Any, where: Any) -> Any:
    if not isinstance(x, jax.ShapeDtypeStruct):
        return x
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where)
