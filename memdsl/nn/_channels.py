"""How many channels the parts of a memory have, which numbers and features are one of."""

from collections.abc import Iterator

from ..plan._tree import parts
from ..spec._facts import pairs_per_token
from ..spec._feature import AbstractFeature, Then
from ..spec._kernel import AbstractKernel, Pullback
from ..spec._loss import After
from ..spec._memory import AbstractMemory, Mapped, Memory, Network, Transposed
from ..spec._slots import key_channels


def channels(
    memory: AbstractMemory, key_size: int, value_size: int, prefix: str = ""
) -> Iterator[tuple[str, tuple[int, int, int]]]:
    """`(path, (key channels, value channels, pairs a token))` of every leaf."""
    if isinstance(memory, Memory):
        wide = key_channels(memory, key_size)
        yield prefix, (wide, value_size, pairs_per_token(memory.write))
    if isinstance(memory, Network):
        yield prefix, (key_size, value_size, 1)
    if isinstance(memory, Transposed):
        key_size, value_size = value_size, key_size
    for name, part in parts(memory):
        yield from channels(part, key_size, value_size, f"{prefix}{name}.")


def feature_sizes(
    memory: AbstractMemory, key_size: int, value_size: int, prefix: str = ""
) -> Iterator[tuple[str, int]]:
    """`(path of a feature, the size of what it is given)`."""

    def inside(feature: AbstractFeature, size: int, path: str) -> Iterator[tuple[str, int]]:
        yield path, size
        if isinstance(feature, Then):
            yield from inside(feature.first, size, f"{path}.first")
            yield from inside(feature.second, feature.first.size(size), f"{path}.second")

    def kernels(kernel: AbstractKernel, size: int, path: str) -> Iterator[tuple[str, int]]:
        if isinstance(kernel, Pullback):
            yield from inside(kernel.feature, size, f"{path}.feature")
            size = kernel.feature.size(size)
        for name in ("kernel", "inner", "left", "right"):
            part = vars(kernel).get(name)
            if isinstance(part, AbstractKernel):
                yield from kernels(part, size, f"{path}.{name}")

    if isinstance(memory, Memory):
        yield from kernels(memory.kernel, key_size, f"{prefix}kernel")
        read, at = vars(memory).get("read"), f"{prefix}read"
        while read is not None:
            by = vars(read).get("by")
            if isinstance(by, AbstractKernel):
                yield from kernels(by, key_size, f"{at}.by")
            read, at = vars(read).get("read"), f"{at}.read"
    if isinstance(memory, Network):
        yield from inside(memory.before, key_size, f"{prefix}before")
        yield from inside(memory.after, value_size, f"{prefix}after")
    loss = vars(vars(memory).get("write", memory)).get("loss")
    path = f"{prefix}write.loss"
    while isinstance(loss, After):
        yield from inside(loss.feature, value_size, f"{path}.feature")
        loss, path = loss.loss, f"{path}.loss"
    if isinstance(memory, Mapped):
        yield from inside(memory.feature, value_size, f"{prefix}feature")
    if isinstance(memory, Transposed):
        key_size, value_size = value_size, key_size
    for name, part in parts(memory):
        yield from feature_sizes(part, key_size, value_size, f"{prefix}{name}.")
