"""How many channels the parts of a memory have, which numbers and features are one of."""

from collections.abc import Iterator

from ..spec._facts import pairs_per_token
from ..spec._feature import AbstractFeature, Then
from ..spec._kernel import AbstractKernel, Pullback
from ..spec._loss import After
from ..spec._memory import AbstractMemory, Mapped, Memory, Network, Rewired
from ..spec._rewired import answer_size, sizes_of
from ..spec._slots import key_channels
from ..spec._streams import inner_streams, MappedStream, Sizes
from ._tree import parts


def channels(
    memory: AbstractMemory, key_size: int, value_size: int
) -> Iterator[tuple[str, tuple[int, int, int]]]:
    """`(path, (key channels, value channels, pairs a token))` of every leaf, and every `of(own=...)`."""
    for prefix, part, sizes in _parts(memory, Sizes(key_size, value_size, key_size), ""):
        key, value = sizes.key or 0, sizes.value or 0
        if isinstance(part, Memory):
            yield prefix, (key_channels(part, key), value, pairs_per_token(part.write))
        if isinstance(part, Network):
            yield prefix, (key, value, 1)
        if isinstance(part, Rewired):
            own = sizes_of(part, "answers", sizes).own or 0
            yield prefix, (own, own, 1)


def _parts(
    memory: AbstractMemory, sizes: Sizes, prefix: str
) -> Iterator[tuple[str, AbstractMemory, Sizes]]:
    """`(path, part, sizes of what it is given)` of a memory and of all that it is made of."""
    yield prefix, memory, sizes
    for name, part in parts(memory):
        yield from _parts(part, sizes_of(memory, name, sizes), f"{prefix}{name}.")


def feature_sizes(
    memory: AbstractMemory, key_size: int, value_size: int
) -> Iterator[tuple[str, int]]:
    """`(path of a feature, the size of what it is given)`."""
    for prefix, part, sizes in _parts(memory, Sizes(key_size, value_size, key_size), ""):
        yield from _features(part, sizes, prefix)


def _features(memory: AbstractMemory, sizes: Sizes, prefix: str) -> Iterator[tuple[str, int]]:
    """Those of one part, without its own parts."""
    key_size, value_size = sizes.key or 0, sizes.value or 0

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
        size = answer_size(memory.memory, sizes) or 0
        yield from inside(memory.feature, size, f"{prefix}feature")
    if isinstance(memory, Rewired):
        given = sizes_of(memory, "answers", sizes)
        for name, stream in memory.streams().items():
            for path, part in inner_streams(stream, f"{prefix}{name}"):
                if isinstance(part, MappedStream):
                    yield from inside(part.feature, part.stream.size(given) or 0, f"{path}.feature")
