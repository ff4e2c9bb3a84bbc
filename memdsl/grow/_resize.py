"""More room, or less, between epochs."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jaxtyping import Array

from .._errors import SpecError
from ..nn._base import AbstractModule
from ..nn._blocks import Repeat, Residual, Sequence
from ..nn._grown import GrownLayer, map_states
from ..plan._tree import parts
from ..spec._capacity import Budget
from ..spec._facts import slots
from ..spec._memory import Memory
from ..state import BufferState, DescentState, SolvedState


def resize(model: Any, size: int) -> Any:
    """The same model, with room for `size` atoms in every growing layer that has a `Budget`.

    Nothing else changes: every layer answers as before. The budget in the specs changes too, so that
    the next call compiles anew; doubling therefore costs one compilation a doubling. Layers that keep
    a matrix, or a `Window`, stay as they are: a window's size is its meaning.

    **Arguments:**

    - `model`: any pytree with growing layers in it.
    - `size`: how many atoms each of them may keep.

    **Returns:** the model.

    **Raises:** `SpecError` for a size that is no larger than the pinned atoms, or too small for what
    a layer holds: atoms are evicted by writes, not by a resize.

    ??? example

        ```python
        >>> import jax
        >>> import memdsl as md
        >>> atoms = md.Memory(md.RBF(scale=1.0), md.Hebb(rate=0.5), capacity=md.Budget(100))
        >>> model = md.build(md.Grown(md.Dense(3), atoms), md.Dims(model=2), key=jax.random.key(0))
        >>> model = md.grow.resize(model, 200)
        >>> model.state.keys.shape, model.spec.memory.capacity
        ((200, 2), Budget(200))

        ```
    """
    return jax.tree.map(
        lambda node: _module(node, size) if isinstance(node, AbstractModule) else node,
        model,
        is_leaf=lambda node: isinstance(node, AbstractModule),
    )


def _module(module: Any, size: int) -> Any:
    """A module with its parts resized, and the spec that goes with them."""
    match module:
        case GrownLayer():
            return _layer(module, size)
        case Sequence():
            layers = tuple(_module(layer, size) for layer in module.layers)
            return Sequence(
                spec=rebuild_with(module.spec, layers=tuple(layer.spec for layer in layers)),
                dims=module.dims,
                layers=layers,
            )
        case Residual():
            layer = _module(module.layer, size)
            spec = rebuild_with(module.spec, layer=layer.spec)
            return Residual(spec=spec, dims=module.dims, layer=layer)
        case Repeat():
            layer = _module(module.stacked, size)
            spec = rebuild_with(module.spec, layer=layer.spec)
            return Repeat(spec=spec, dims=module.dims, stacked=layer)
        case _:
            return module


def rebuild_with(spec: Any, **changes: Any) -> Any:
    """`spec.replace`, with nothing new where nothing changes."""
    same = all(getattr(spec, name) == value for name, value in changes.items())
    return spec if same else spec.replace(**changes)


def _layer(layer: GrownLayer, size: int) -> GrownLayer:
    base = _module(layer.base, size)
    spec = rebuild_with(layer.spec, base=base.spec, memory=_resized(layer.spec.memory, size))
    memory = _resized(layer.memory, size)
    state = map_states(memory, layer.state, _fit)
    return _with(layer, base=base, spec=spec, memory=memory, state=state)


def _resized(memory: Any, size: int) -> Any:
    """The memory, with room for so many atoms in every budget."""
    if not isinstance(memory, Memory):
        return rebuild_with(memory, **{name: _resized(m, size) for name, m in parts(memory)})
    if not isinstance(memory.capacity, Budget):
        return memory
    return memory.replace(capacity=memory.capacity.replace(size=size))


def _with(layer: GrownLayer, **changes: Any) -> GrownLayer:
    fields = {name: getattr(layer, name) for name in layer.__dataclass_fields__}
    return GrownLayer(**{**fields, **changes})


def _fit(memory: Memory, state: Any) -> Any:
    """The state with as many slots as its memory now needs."""
    if not isinstance(memory.capacity, Budget):
        return state
    if isinstance(state, DescentState):
        return state.put(_fit(memory, state.function))
    held: Any = state.problem if isinstance(state, SolvedState) else state
    change = _change(memory, held)
    if change is None:
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
    if isinstance(state.log_weight, Tracer):
        raise SpecError(
            "A buffer cannot be made smaller inside jit.",
            why="Whether the atoms fit is not known while tracing.",
            instead="md.grow.resize between calls of the compiled step.",
        )
    held = int(jnp.max(jnp.sum(state.valid, axis=-1)))
    if held > int(memory.capacity.slots()):
        raise SpecError(
            f"{held} atoms do not fit into {int(memory.capacity.slots())} slots.",
            where=memory,
            at="capacity",
            why="A resize never forgets anything.",
            instead=f"at least {held}; or a Budget of that size from the start, which evicts.",
        )
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
