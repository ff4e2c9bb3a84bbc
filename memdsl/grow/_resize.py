"""More room, or less, between epochs."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.core import Tracer
from jaxtyping import Array

from .._errors import SpecError
from ..nn._base import AbstractModule
from ..nn._blocks import Repeat, Residual, Sequence
from ..nn._grown import GrownLayer, map_states, Part, states_of
from ..plan._tree import parts
from ..spec._base import rebuild
from ..spec._capacity import AbstractMerge, Budget, Drop
from ..spec._facts import slots
from ..spec._memory import Memory
from ..state import BufferState, DescentState, SolvedState
from ..state._merge import merged
from ..state._slots import evicted
from ..state._solved import solved_anew
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
    base, size = _module(layer.base, room), room.size
    wanted = _resized(layer.spec.memory, size, _replaced)
    spec = rebuild_with(layer.spec, base=base.spec, memory=wanted)
    memory = _resized(layer.memory, size, _anew)
    state = map_states(memory, _few(layer, room), _fit)
    return _with(layer, base=base, spec=spec, memory=memory, state=state)


def _replaced(memory: Any, **changes: Any) -> Any:
    """A memory that is checked like one that is written."""
    return memory.replace(**changes)


def _anew(memory: Any, **changes: Any) -> Any:
    """A memory as a layer holds it, grounded, which is checked no more."""
    return rebuild(memory, changes)


def _resized(memory: Any, size: int, change: Callable[..., Any]) -> Any:
    """The memory, with room for so many atoms in every budget."""
    if not isinstance(memory, Memory):
        inner = {name: _resized(part, size, change) for name, part in parts(memory)}
        same = all(getattr(memory, name) == part for name, part in inner.items())
        return memory if same else change(memory, **inner)
    if not isinstance(memory.capacity, Budget):
        return memory
    return change(memory, capacity=memory.capacity.replace(size=size))


def _with(layer: GrownLayer, **changes: Any) -> GrownLayer:
    fields = {name: getattr(layer, name) for name in layer.__dataclass_fields__}
    return GrownLayer(**{**fields, **changes})


def _buffer_of(state: Any) -> BufferState | None:
    """The buffer in which a state keeps its atoms, if it has any."""
    match state:
        case DescentState():
            return _buffer_of(state.function)
        case SolvedState():
            return _buffer_of(state.problem)
        case BufferState():
            return state
        case _:
            return None


def _few(layer: GrownLayer, room: _Room) -> Any:
    """What the layer's memories hold, where each has no more atoms than there is room for."""
    merges = {}
    for path, memory, state in states_of(layer.memory, layer.state):
        buffer = _buffer_of(state)
        if buffer is None or not isinstance(memory.capacity, Budget):
            continue
        if int(slots(_resized(memory, room.size, _anew))) >= buffer.log_weight.shape[-1]:
            continue
        if isinstance(buffer.log_weight, Tracer):
            raise SpecError(
                "A buffer cannot be made smaller inside jit.",
                why="Whether the atoms fit is not known while tracing.",
                instead="md.grow.resize between calls of the compiled step.",
            )
        held = int(jnp.max(jnp.sum(buffer.valid, axis=-1)))
        if held > room.size:
            merges[path] = _merge(memory, room, held)
    return _shrunk(layer, room.size, merges) if merges else layer.state


def _merge(memory: Any, room: _Room, held: int) -> AbstractMerge:
    """How the atoms that must go are merged."""
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
def _shrunk(layer: GrownLayer, size: int, merges: Mapping[str, AbstractMerge]) -> Any:
    """What the layer's memories hold, with at most `size` atoms in those that have a merge here."""
    if depth(layer):
        arrays, static = eqx.partition(layer, eqx.is_array)
        return jax.lax.map(lambda own: _shrunk(eqx.combine(own, static), size, merges), arrays)
    found = iter(layer.parts())

    def fewer(_: Memory, state: Any) -> Any:
        part = next(found)
        return _fewer(part, state, size, merges[part.path]) if part.path in merges else state

    return map_states(layer.memory, layer.state, fewer)


def _fewer(part: Part, state: Any, size: int, merge: AbstractMerge) -> Any:
    memory = part.memory
    if isinstance(state, DescentState):
        whole: Any = state.function
        columns = whole.numbers().shape[-1] // len(state.names)
        return state.put(_one_by_one(memory, whole, size, merge, columns))
    if isinstance(state, SolvedState):
        problem = _one_by_one(memory, state.problem, size, merge)
        return solved_anew(memory, problem, keeps_factor=state.factor is not None)
    return _one_by_one(memory, state, size, merge)


def _one_by_one(
    memory: Any, state: Any, size: int, merge: AbstractMerge, columns: int | None = None
) -> Any:
    """The buffer without the atoms that are too many, one after the other."""
    now = jnp.asarray(True)

    def too_many(state: BufferState) -> Array:
        return jnp.sum(state.valid) > size

    def without_one(state: BufferState) -> BufferState:
        state, gone, _ = evicted(memory, state, memory.capacity.evict, now, columns)
        return (
            state if isinstance(merge, Drop) else merged(memory, state, merge, gone, now, columns)
        )

    return jax.lax.while_loop(too_many, without_one, state)


def _fit(memory: Memory, state: Any) -> Any:
    """The state with as many slots as its memory now needs."""
    if not isinstance(memory.capacity, Budget):
        return state
    if isinstance(state, DescentState):
        return state.put(_fit(memory, state.function))
    held = _buffer_of(state)
    change = None if held is None else _change(memory, held)
    if held is None or change is None:
        return state
    fitted = held.over_slots(change).settled()
    if not isinstance(state, SolvedState):
        return fitted
    factor = state.factor
    if factor is not None:
        factor = change(change(factor, -2, 0), -1, 0)
        diagonal = jnp.broadcast_to(jnp.eye(factor.shape[-1], dtype=bool), factor.shape)
        factor = jnp.where(diagonal & (factor == 0), 1, factor)  # of slots that are new, and empty
    return SolvedState(fitted, change(state.solution, -2, 0), factor)


def _change(memory: Memory, state: BufferState) -> Callable[[Array, int, float], Array] | None:
    """What is to be done to every array that has slots: `change(array, axis, value of an empty slot)`."""
    new, old = int(slots(memory)), state.log_weight.shape[-1]
    if new == old:
        return None
    if state.shards is not None:
        state.shards.check(new)
    if new > old:
        return lambda x, axis, fill: _longer(x, new - old, fill, axis)
    # atoms to the front, in the order of their slots
    front = jnp.argsort(~state.valid, axis=-1, stable=True)[..., :new]

    def shorter(x: Array, axis: int, _: float) -> Array:
        index = front if x.ndim == front.ndim else jnp.expand_dims(front, -3 - axis)
        return jnp.take_along_axis(x, index, axis=axis)

    return shorter


def _longer(x: Array, more: int, fill: float, axis: int) -> Array:
    width = [(0, 0)] * x.ndim
    width[axis] = (0, more)
    return jnp.pad(x, width, constant_values=fill)
