"""Files that are whole at every moment."""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A file to write that takes the place of `path` when the block has come to its end.

    It is beside its place, and on the disk, before it is moved: whoever reads, and whatever crashes,
    sees the old file or the new one. An error in the block leaves the old one.

    **Arguments:**

    - `path`: the file; its folder must exist.
    """
    target = Path(path)
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


def sweep(path: str | os.PathLike[str]) -> None:
    """Removes what a process that was killed while it wrote `path` has left beside it."""
    target = Path(path)
    for left in target.parent.glob(f".{target.name}.*"):
        left.unlink(missing_ok=True)
