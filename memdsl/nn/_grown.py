"""A layer with a memory that training writes: `y = base(x) + f(x)`."""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._errors import SpecError
from ..plan import Dims, plan
from ..plan._prepare import kept_size, KeyMap, prepare
from ..spec._facts import needs_atoms, slots as slot_bound
from ..spec._gate import forgets, Reset
from ..spec._layer import Conv, Grown
from ..spec._memory import Memory
from ..spec._number import Learned, leaves
from ..spec._slots import ground, resolve, slots
from ..state import BufferState, empty_state, MatrixState, read
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
    memory: Memory = eqx.field(static=True)
    """The memory of the spec, with sizes resolved."""
    base: AbstractModule
    state: BufferState | MatrixState
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
        memory, key_map = self.grounded()
        rows = x.reshape(-1, x.shape[-1]).astype(self.dtype)
        answers = jax.vmap(lambda q: read(memory, state, q))(key_map(rows))
        return answers.reshape(*x.shape[:-1], answers.shape[-1])

    def grounded(self) -> tuple[Memory, KeyMap]:
        """The memory with the values of its numbers, as its representation keeps it, and the map of
        keys that goes with it. Schedules are at the count of writes."""
        steps = jnp.reshape(self.state.count, (1,)).astype(self.dtype)
        nothing = jnp.zeros((1, 0), self.dtype)
        constants, steady = evaluate_numbers(
            self.memory, self.numbers, nothing, 1, steps, self.dtype
        )
        values = {
            **jax.tree.map(lambda a: a[0], constants),
            **jax.tree.map(lambda a: a[0, 0], steady),
        }
        return prepare(ground(self.memory, values), self.representation)

    @property
    def representation(self) -> str:
        """`"buffer"` or `"matrix"`."""
        return "buffer" if isinstance(self.state, BufferState) else "matrix"

    @property
    def dtype(self) -> Any:
        """The dtype of the state: float32, or float64 where the parameters are."""
        state = self.state
        return state.values.dtype if isinstance(state, BufferState) else state.matrix.dtype


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
    _check(memory)
    representation = "buffer" if needs_atoms(memory) else "matrix"
    own = Dims(model=dims.model, key=key_size, value=value_size)
    plan(memory, own, using=f"{representation} / recurrent")  # an illegal memory is refused here
    prepared, _ = prepare(memory, representation)
    size = kept_size(memory, key_size, representation)
    state: Any = empty_state(prepared, representation, size, value_size, dtype=dtype)
    state = jax.tree.map(jnp.copy, state)  # no two counters in one buffer, so all can be donated
    numbers = init_numbers(memory, 1, 0, key_size, value_size, key)
    return GrownLayer(spec=spec, dims=own, memory=memory, base=base, state=state, numbers=numbers)


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
            isinstance(leaf, Learned) for leaf in leaves(slot.number)
        ):
            raise SpecError(
                f"{slot.number!r} would never be trained.",
                where=memory,
                at=slot.path.split(".")[0],
                why="A growing layer is written outside the loss, so no gradient reaches the numbers "
                "of its write.",
                instead="Knob(x) to sweep it, or Schedule(...).",
            )
