"""Numbered checkpoints in a folder, by orbax: every process writes what its devices hold."""

import os
from typing import Any

import equinox as eqx
import jax

from .._errors import SpecError


class Folder:
    """Steps, each of them whole or not there, that are written while the program goes on.

    A step is a JSON object and the arrays of trees by name. Its directory has its number when all of
    it is on the disk, and not before.
    """

    def __init__(self, path: str | os.PathLike[str], keep: int | None):
        self.path = os.path.abspath(path)
        self._orbax = _orbax()
        options = self._orbax.CheckpointManagerOptions(
            max_to_keep=keep, cleanup_tmp_directories=True
        )
        self._manager = self._orbax.CheckpointManager(self.path, options=options)

    @property
    def steps(self) -> tuple[int, ...]:
        """The steps that are whole."""
        return tuple(sorted(self._manager.all_steps()))

    def save(self, step: int, header: dict[str, Any], trees: dict[str, Any]) -> None:
        """Begins to write a step; what is saved may be overwritten as soon as this returns."""
        args, shapes = self._orbax.args, {}
        items = {"header": args.JsonSave({**header, "arrays": shapes})}
        for name, tree in trees.items():
            arrays = _named(tree)
            shapes[name] = {key: _shape(x) for key, x in arrays.items()}
            if arrays:
                items[name] = args.StandardSave(arrays)
        self._manager.save(step, args=args.Composite(**items))

    def header(self, step: int) -> dict[str, Any]:
        """The JSON object of a step."""
        args = self._orbax.args
        return self._manager.restore(step, args=args.Composite(header=args.JsonRestore()))["header"]

    def load(self, step: int, name: str, like: Any) -> Any:
        """A tree of a step, each array where the one in `like` is, on whatever devices that be."""
        wanted, args = _named(like), self._orbax.args
        here = {key: _shape(x) for key, x in wanted.items()}
        there = self.header(step)["arrays"].get(name, {})
        if here != there:
            other = sorted(k for k in here.keys() | there.keys() if here.get(k) != there.get(k))
            raise SpecError(
                f"Step {step} of {self.path} holds other arrays as its {name}.",
                where="; ".join(
                    f"{key}: {there.get(key, 'not')} there, {here.get(key, 'not')} here"
                    for key in other[:4]
                ),
                instead=f"a {name} of the same sizes as the one that was saved.",
            )
        if not wanted:
            return like
        slots = {
            key: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding)
            for key, x in wanted.items()
        }
        restored = self._manager.restore(
            step, args=args.Composite(**{name: args.StandardRestore(slots)})
        )
        found = iter(restored[name][key] for key in wanted)
        return jax.tree.map(lambda x: next(found) if _is_array(x) else x, like)

    def wait(self) -> None:
        """Returns when all that was saved is on the disk."""
        self._manager.wait_until_finished()

    def close(self) -> None:
        """Waits, and lets go of the folder."""
        self._manager.close()


def _orbax() -> Any:
    try:
        import orbax.checkpoint
    except ImportError as error:
        raise SpecError(
            "The checkpoints of models on many devices are written by orbax, which is not installed.",
            instead='pip install orbax-checkpoint, or the extra "scale" of memdsl-jax.',
        ) from error
    return orbax.checkpoint


def _is_array(x: Any) -> bool:
    return eqx.is_array(x) or isinstance(x, jax.ShapeDtypeStruct)


def _named(tree: Any) -> dict[str, Any]:
    """The arrays of a tree by their paths in it."""
    return {
        jax.tree_util.keystr(path, simple=True, separator="."): x
        for path, x in jax.tree_util.tree_leaves_with_path(tree)
        if _is_array(x)
    }


def _shape(x: Any) -> str:
    return f"{x.dtype}{list(x.shape)}"
