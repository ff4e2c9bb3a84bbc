"""More room, or less, between epochs."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.core import Tracer
from jaxtyping import Array

from .._errors import SpecError
from ..nn._base import AbstractModule
from ..nn._blocks import Repeat, Residual, Sequence
from ..nn._grown import GrownLayer
from ..spec._base import rebuild
from ..spec._capacity import AbstractMerge, Budget, Drop
from ..spec._facts import slots
from ..spec._memory import Memory
from ..state import BufferState
from ..state._merge import merged
from ..state._slots import evicted
from ._layers import depth


class _Room(NamedTuple):
    """How many atoms a layer may keep, and what becomes of those that must go."""

    size: int
    merge: AbstractMerge | None


def resize(model: Any, size: int, *, merge: AbstractMerge | None = None) -> Any:
    """The same model, with room for `size` atoms in every growing layer that has a `Budget`.

    Where the atoms fit, nothing else changes: every layer answers as before. Where they do not, a
    layer evicts by the eviction of its own budget, one atom after the other, and merges each into
    those that stay by its own merge; `state.counts` go on. A layer whose merge is `Drop` would lose
    what they know, so this has to be said: `merge=md.Drop()`, or another merge to keep what it can.

    The budget in the specs changes too, so that the next call compiles anew; doubling therefore costs
    one compilation a doubling. Layers that keep a matrix, or a `Window`, stay as they are: a window's
    size is its meaning.

    **Arguments:**

    - `model`: any pytree with growing layers in it.
    - `size`: how many atoms each of them may keep.
    - `merge`: what becomes of atoms that must go, now and in every layer; `None` for the merge of
        each layer's budget.

    **Returns:** the model.

    **Raises:** `SpecError` for a size that is no larger than the pinned atoms; where atoms would be
    dropped and nobody said so; for a merge that the memory of a layer could not have; and for fewer
    slots inside `jit`.

    ??? example

        ```python
        >>> import jax
        >>> import jax.numpy as jnp
        >>> import memdsl as md
        >>> atoms = md.Memory(md.RBF(scale=1.0), md.Hebb(rate=0.5), capacity=md.Budget(100))
        >>> model = md.build(md.Grown(md.Dense(3), atoms), md.Dims(model=2), key=jax.random.key(0))
        >>> model = md.grow.resize(model, 200)
        >>> model.state.keys.shape, model.spec.memory.capacity
        ((200, 2), Budget(200))
        >>> pairs = md.grow.Pairs(key=jnp.ones((8, 2)), cotangent=jnp.ones((8, 3)))
        >>> model = md.grow.write(model, (pairs,))
        >>> model = md.grow.resize(model, 2, merge=md.Pairwise())  # 8 atoms into 2
        >>> model.state.counts.evicted, model.state.values[:, 0]
        (Array(6, dtype=int32), Array([-3.5, -0.5], dtype=float32))

        ```
    """
    room = _Room(size, merge)
    return jax.tree.map(
        lambda node: _module(node, room) if isinstance(node, AbstractModule) else node,
        model,
        is_leaf=lambda node: isinstance(node, AbstractModule),
    )


def _module(module: Any, room: _Room) -> Any:
    """A module with its parts resized, and the spec that goes with them."""
    match module:
        case GrownLayer():
            return _layer(module, room)
        case Sequence():
            layers = tuple(_module(layer, room) for layer in module.layers)
            return Sequence(
                spec=rebuild_with(module.spec, layers=tuple(layer.spec for layer in layers)),
                dims=module.dims,
                layers=layers,
            )
        case Residual():
            layer = _module(module.layer, room)
            spec = rebuild_with(module.spec, layer=layer.spec)
            return Residual(spec=spec, dims=module.dims, layer=layer)
        case Repeat():
            layer = _module(module.stacked, room)
            spec = rebuild_with(module.spec, layer=layer.spec)
            return Repeat(spec=spec, dims=module.dims, stacked=layer)
        case _:
            return module


def rebuild_with(spec: Any, **changes: Any) -> Any:
    """`spec.replace`, with nothing new where nothing changes."""
    same = all(getattr(spec, name) == value for name, value in changes.items())
    return spec if same else spec.replace(**changes)


def _layer(layer: GrownLayer, room: _Room) -> GrownLayer:
    base = _module(layer.base, room)
    capacity, state = layer.memory.capacity, layer.state
    spec = rebuild_with(layer.spec, base=base.spec)
    if not isinstance(capacity, Budget) or not isinstance(state, BufferState):
        return _with(layer, base=base, spec=spec)
    spec = spec.replace(memory=_resized(spec.memory, room.size))
    memory = rebuild(layer.memory, {"capacity": capacity.replace(size=room.size)})
    return _with(layer, base=base, spec=spec, memory=memory, state=_fit(layer, memory, room))


def _resized(memory: Any, size: int) -> Any:
    return memory.replace(capacity=memory.capacity.replace(size=size))


def _with(layer: GrownLayer, **changes: Any) -> GrownLayer:
    fields = {name: getattr(layer, name) for name in layer.__dataclass_fields__}
    return GrownLayer(**{**fields, **changes})


def _fit(layer: GrownLayer, memory: Memory, room: _Room) -> BufferState:
    """The buffer of a layer with as many slots as its memory now needs."""
    state: Any = layer.state
    new, old = int(slots(memory)), state.log_weight.shape[-1]
    if new == old:
        return state
    if state.shards is not None:
        state.shards.check(new)
    if new > old:
        return state.over_slots(lambda x, axis, fill: _longer(x, new - old, fill, axis)).settled()
    if isinstance(state.log_weight, Tracer):
        raise SpecError(
            "A buffer cannot be made smaller inside jit.",
            why="Whether the atoms fit is not known while tracing.",
            instead="md.grow.resize between calls of the compiled step.",
        )
    held = int(jnp.max(jnp.sum(state.valid, axis=-1)))
    if held > room.size:
        state = _shrunk(layer, room.size, _merge(layer, room, held))
    # atoms to the front, in the order of their slots
    front = jnp.argsort(~state.valid, axis=-1, stable=True)[..., :new]

    def shorter(x: Array, axis: int, _: float) -> Array:
        index = front if x.ndim == front.ndim else front[..., None]
        return jnp.take_along_axis(x, index, axis=axis)

    return state.over_slots(shorter).settled()


def _merge(layer: GrownLayer, room: _Room, held: int) -> AbstractMerge:
    """How the atoms that must go are merged."""
    memory: Any = layer.spec.memory
    if room.merge is not None:
        capacity = memory.capacity.replace(size=room.size, merge=room.merge)
        return memory.replace(capacity=capacity).capacity.merge  # refuses what it cannot have
    if isinstance(memory.capacity.merge, Drop):
        raise SpecError(
            f"{held} atoms do not fit into {room.size} slots, and the merge of the layer is Drop().",
            where=memory,
            at="capacity",
            why="What the others know would be lost, and nobody has asked for that.",
            instead=f"resize(model, {room.size}, merge=md.Pairwise()) to keep what can be kept; "
            f"merge=md.Drop() to lose it; or a size of at least {held}.",
        )
    return memory.capacity.merge


@eqx.filter_jit
def _shrunk(layer: GrownLayer, size: int, merge: AbstractMerge) -> BufferState:
    """The buffer of a layer with at most `size` atoms in it, and as many slots as before."""
    if depth(layer):
        arrays, static = eqx.partition(layer, eqx.is_array)
        return jax.lax.map(lambda own: _shrunk(eqx.combine(own, static), size, merge), arrays)
    memory, _ = layer.grounded()
    capacity: Any = memory.capacity
    state: Any = layer.state
    now = jnp.asarray(True)

    def too_many(state: BufferState) -> Array:
        return jnp.sum(state.valid) > size

    def without_one(state: BufferState) -> BufferState:
        state, gone, _ = evicted(memory, state, capacity.evict, now)
        return state if isinstance(merge, Drop) else merged(memory, state, merge, gone, now)

    return jax.lax.while_loop(too_many, without_one, state)


def _longer(x: Array, more: int, fill: float, axis: int) -> Array:
    width = [(0, 0)] * x.ndim
    width[axis] = (0, more)
    return jnp.pad(x, width, constant_values=fill)
