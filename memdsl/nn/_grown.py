"""A layer with a memory that training writes: `y = base(x) + f(x)`."""

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._errors import SpecError
from ..plan import Dims, plan
from ..plan._prepare import KeyMap, prepare
from ..plan._states import empty_tree, state_dtype
from ..plan._tree import leaves, parts as parts_of
from ..spec._facts import decays, is_solved, needs_atoms, slots as slot_bound
from ..spec._gate import forgets, Reset
from ..spec._layer import Conv, Grown
from ..spec._memory import AbstractMemory, Memory
from ..spec._number import Learned, leaves as number_leaves
from ..spec._slots import ground, resolve, slots
from ..spec._streams import Sizes
from ..spec._write import Cholesky
from ..state import as_sum, read
from ..state._solved import unsolved
from ._base import AbstractModule
from ._blocks import AbstractPointwise
from ._images import patches
from ._numbers import evaluate_numbers, init_numbers
from ._tap import Nudge, Pairs, Probe, through, Uses


class GrownLayer(AbstractPointwise):
    """`y = base(x) + f(x)`, where `md.grow.write` grows f; see the spec, `md.Grown`.

    It acts on the last axis, so that a vector, a sequence or any stack of vectors will do; over a
    `Conv` it acts on every patch of an image. All rows of one call are pairs of their own.
    """

    spec: Grown = eqx.field(static=True)
    dims: Dims = eqx.field(static=True)
    """With `key` and `value`, the sizes of what the memory is asked and what it answers."""
    memory: AbstractMemory = eqx.field(static=True)
    """The memory of the spec, with sizes resolved."""
    base: AbstractModule
    state: Any
    """What the memory holds; of one that is made of memories, a tuple of what these hold."""
    numbers: dict[str, tuple[Any, ...]]
    sink: Pairs | Uses | Probe | Nudge | None = None
    """Where a backward pass puts the pairs; `None` except while one is made."""

    def apply(self, x: Array) -> Array:
        y, image = self.base(x), isinstance(self.spec.base, Conv)
        if isinstance(self.spec.base, Conv):
            y, x = jnp.moveaxis(y, 0, -1), patches(x, self.spec.base)
        y = y + self.recall(x).astype(y.dtype)
        y = through(y, x, self.sink)
        return jnp.moveaxis(y, -1, 0) if image else y

    def recall(self, x: Float[Array, "*row key"]) -> Float[Array, "*row value"]:
        """What the memory answers to every row: matrix products with all that is stored."""
        state = self.state if self.spec.trainable else jax.lax.stop_gradient(self.state)
        rows = x.reshape(-1, x.shape[-1]).astype(self.dtype)
        first, *rest = [part.answers(rows) for part in self.parts(state)]
        answers = functools.reduce(jnp.add, rest, first)
        return answers.reshape(*x.shape[:-1], answers.shape[-1])

    def parts(self, state: Any = None) -> list["Part"]:
        """The memories that the layer's is made of, ready to run; schedules are at the count of
        writes."""
        state = self.state if state is None else state
        steps = jnp.reshape(self.count, (1,)).astype(self.dtype)
        nothing = jnp.zeros((1, 0), self.dtype)
        constants, steady = evaluate_numbers(
            self.memory, self.numbers, nothing, 1, steps, self.dtype
        )
        values = {
            **jax.tree.map(lambda a: a[0], constants),
            **jax.tree.map(lambda a: a[0, 0], steady),
        }
        grounded = memories(ground(self.memory, values))
        return [
            Part(path, *prepare(grounded[path], representation(leaf)), held)
            for path, leaf, held in states_of(self.memory, state)
        ]

    @property
    def representation(self) -> str:
        """How the memory is kept, `"matrix"`; joined by `" + "` where it is made of several."""
        return " + ".join(map(representation, memories(self.memory).values()))

    @property
    def count(self) -> Array:
        """How often it was written."""
        return next(held.count for _, _, held in states_of(self.memory, self.state))

    @property
    def dtype(self) -> Any:
        """The dtype of the state: float32, or float64 where the parameters are."""
        return state_dtype(self.state)


class Part(NamedTuple):
    """A memory that is made of no others, in a growing layer."""

    path: str
    """Where it is in the layer's memory, `""` where it is all of it."""
    memory: Memory
    """Grounded, as its representation keeps it."""
    key_map: KeyMap
    """What makes keys of what the layer is given."""
    state: Any

    def answers(self, rows: Float[Array, "row key"]) -> Float[Array, "row value"]:
        """What it answers to rows that the layer is given."""
        memory, state = as_sum(self.memory, self.state)
        return jax.vmap(lambda q: read(memory, state, q))(self.key_map(rows))


def memories(memory: AbstractMemory) -> dict[str, Memory]:
    """The memories that one is made of, and that are made of none, by path."""
    return {path: leaf for path, leaf in leaves(memory) if isinstance(leaf, Memory)}


def states_of(memory: Any, state: Any, path: str = "") -> Iterator[tuple[str, Memory, Any]]:
    """`(path, memory, state)` of every memory that is made of no others."""
    if isinstance(memory, Memory):
        yield path.rstrip("."), memory, state
        return
    for (name, part), held in zip(parts_of(memory), state, strict=True):
        yield from states_of(part, held, f"{path}{name}.")


def map_states(memory: Any, state: Any, change: Callable[[Memory, Any], Any]) -> Any:
    """The state with `change(memory, state)` in the place of that of every such memory."""
    if isinstance(memory, Memory):
        return change(memory, state)
    pairs = zip(parts_of(memory), state, strict=True)
    return tuple(map_states(part, held, change) for (_, part), held in pairs)


def representation(memory: Memory) -> str:
    """How a growing layer keeps a memory: `"buffer"`, `"gram"` or `"matrix"`."""
    if needs_atoms(memory):
        return "buffer"
    return "gram" if is_solved(memory) else "matrix"


def grown_layer(
    spec: Grown,
    dims: Dims,
    base: AbstractModule,
    key_size: int,
    value_size: int,
    *,
    key: Array,
    dtype: Any = jnp.float32,
) -> GrownLayer:
    """A growing layer over a built base, with an empty memory.

    **Arguments:**

    - `spec`: the layer.
    - `dims`: the sizes of the model.
    - `base`: the module of `spec.base`.
    - `key_size`, `value_size`: the sizes of one key (a patch, for a `Conv`) and of one answer.
    - `key`: a `jax.random.key`, for trained features of the kernel.
    - `dtype`: of the state, float32 or float64.

    **Raises:** `SpecError` for a memory that cannot grow a layer.
    """
    sizes = {**dims.sizes(), "key": key_size, "value": value_size}
    memory = resolve(spec.memory, sizes)
    using = {}
    for path, leaf in memories(memory).items():
        _check(leaf)
        using[path] = f"{representation(leaf)} / recurrent"
    own = Dims(model=dims.model, key=key_size, value=value_size)
    chosen = plan(memory, own, using=using)  # an illegal memory is refused here
    given = Sizes(key_size, value_size, key_size)
    empty = empty_tree(memory, chosen, given, None, dtype)
    state = map_states(memory, empty, _to_grow)
    state = jax.tree.map(jnp.copy, state)  # no two counters in one buffer, so all can be donated
    numbers = init_numbers(memory, 1, 0, key_size, value_size, key)
    return GrownLayer(spec=spec, dims=own, memory=memory, base=base, state=state, numbers=numbers)


def _to_grow(memory: Memory, state: Any) -> Any:
    """An empty state as a growing layer keeps it: with the solution of what is solved."""
    if not is_solved(memory):
        return state
    write: Any = memory.write
    changing = any(slot.path.startswith(("kernel", "write.strength")) for slot in slots(memory))
    exact = isinstance(write.solver, Cholesky)
    return unsolved(state, keeps_factor=exact and not changing and not decays(memory))


def _check(memory: Memory) -> None:
    if needs_atoms(memory) and slot_bound(memory) == math.inf:
        raise SpecError(
            "A growing layer keeps its atoms in a buffer, and nothing bounds how many there are.",
            where=memory,
            at="capacity",
            why="One training step writes one atom an example.",
            instead="Budget(n), which md.grow.resize can make larger between epochs.",
        )
    if any(isinstance(gate, Reset) for gate in forgets(memory.gate)):
        raise SpecError(
            "A growing layer has no documents that start.",
            where=memory,
            at="gate",
            instead="a gate without Reset.",
        )
    for slot in slots(memory):
        if slot.path.split(".")[0] in ("write", "gate", "capacity") and any(
            isinstance(leaf, Learned) for leaf in number_leaves(slot.number)
        ):
            raise SpecError(
                f"{slot.number!r} would never be trained.",
                where=memory,
                at=slot.path.split(".")[0],
                why="A growing layer is written outside the loss, so no gradient reaches the numbers "
                "of its write.",
                instead="Knob(x) to sweep it, or Schedule(...).",
            )
