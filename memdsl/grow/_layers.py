"""The growing layers of a model, and which of its numbers a gradient trains."""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from ..nn._blocks import Dense
from ..nn._grown import GrownLayer, map_states, states_of
from ..nn._images import Conv
from ..spec._facts import one_pair
from ..spec._number import Knob, leaves
from ..spec._slots import slots
from ..state import BufferState, function_of, MatrixState
from ._recorded import Recorded


def growing(model: Any) -> list[GrownLayer]:
    """Every growing layer of a model, in the order of its tree; one over another counts twice."""
    return [layer for layer in tapped(model) if isinstance(layer, GrownLayer)]


def tapped(model: Any) -> list[GrownLayer | Recorded]:
    """Every layer with a place for a sink: those that grow, and those that are recorded."""
    found = []
    for layer in jax.tree.leaves(model, is_leaf=lambda x: isinstance(x, GrownLayer | Recorded)):
        if isinstance(layer, GrownLayer):
            found += [layer, *tapped(layer.base)]
        elif isinstance(layer, Recorded):
            found.append(layer)
    return found


def with_sinks(model: Any, sinks: Sequence[Any]) -> Any:
    """The model with a sink, or `None`, in each of its layers that have a place for one."""
    return eqx.tree_at(
        lambda m: [layer.sink for layer in tapped(m)],
        model,
        list(sinks),
        is_leaf=lambda x: x is None,
    )


def depth(layer: GrownLayer) -> int:
    """How many axes of equal layers are stacked before the layer's own (one inside a `Repeat`)."""
    return layer.count.ndim


def stacked(layer: GrownLayer | Recorded) -> tuple[int, ...]:
    """The axes of equal layers that are stacked before the layer's own."""
    return layer.count.shape if isinstance(layer, GrownLayer) else ()


def stores(model: Any) -> list[Any]:
    """What every growing layer holds, one state for every memory that its own is made of."""
    return [
        state for layer in growing(model) for _, _, state in states_of(layer.memory, layer.state)
    ]


def counted(model: Any) -> dict[str, Array]:
    """How many `atoms` buffers hold; and, where masses can be below 0, how many pairs were `guarded`."""
    layers, found = growing(model), {}
    held = [(m, function_of(s)) for a in layers for _, m, s in states_of(a.memory, a.state)]
    buffers = [(memory, state) for memory, state in held if isinstance(state, BufferState)]
    signed = [s for memory, s in buffers if one_pair(memory.write).has_signed_masses()]
    if buffers:
        found["atoms"] = sum(jnp.sum(state.valid) for _, state in buffers)
    if signed:
        found["guarded"] = sum(jnp.sum(state.counts.guarded) for state in signed)
    return found


def trained(model: Any) -> Any:
    """The model with True at every number that a gradient trains and False elsewhere."""
    return jax.tree.map(_trained, model, is_leaf=_has_a_say)


def parameters(model: Any) -> Any:
    """The model with `None` in the place of everything that a gradient does not train.

    What is not trained: what memories have stored (but the keys, values and masses of layers with
    `trainable=True`, see `md.grow.slotwise`), `Knob`s, bases with `trainable=False`, and all that is
    no floating number.
    Give it to an optax optimiser: `optimiser.init(md.grow.parameters(model))`.

    **Arguments:**

    - `model`: any pytree, with growing layers in it.

    **Returns:** a pytree of the same structure as the gradients of `md.grow.backward`.

    ??? example

        ```python
        >>> import jax
        >>> import memdsl as md
        >>> atoms = md.Memory(md.RBF(scale=1.0), md.Hebb(md.Knob(0.5)), capacity=md.Budget(100))
        >>> net = md.Grown(md.Dense(3), atoms)
        >>> model = md.build(net, md.Dims(model=2), key=jax.random.key(0))
        >>> [x.shape for x in jax.tree.leaves(md.grow.parameters(model))]
        [(3, 2), (3,)]

        ```
    """
    return eqx.filter(model, trained(model))


def _has_a_say(node: Any) -> bool:
    return isinstance(node, GrownLayer | Dense | Conv)


def _trained(node: Any) -> Any:
    match node:
        case GrownLayer():
            marks = jax.tree.map(eqx.is_inexact_array, node)
            return eqx.tree_at(
                lambda layer: (layer.base, layer.state, layer.numbers),
                marks,
                (trained(node.base), _of_states(node), _of_numbers(node)),
            )
        case Dense() | Conv():
            learns = node.spec.trainable
            return jax.tree.map(lambda x: learns and eqx.is_inexact_array(x), node)
        case _:
            return eqx.is_inexact_array(node)


def _of_states(layer: GrownLayer) -> Any:
    if not layer.spec.trainable:
        return jax.tree.map(lambda _: False, layer.state)
    return map_states(layer.memory, layer.state, lambda _, state: _of_state(state))


def _of_state(state: BufferState | MatrixState) -> BufferState | MatrixState:
    marks: Any = jax.tree.map(lambda _: False, state)
    if isinstance(state, BufferState):
        marks = eqx.tree_at(lambda state: (state.keys, state.values), marks, (True, True))
        if state.masses is None:
            return marks
        return eqx.tree_at(lambda state: state.masses, marks, True)
    return eqx.tree_at(lambda state: state.matrix, marks, True)


def _of_numbers(layer: GrownLayer) -> dict[str, tuple[Any, ...]]:
    numbers = {slot.path: leaves(slot.number) for slot in slots(layer.memory)}
    return {
        path: tuple(
            jax.tree.map(lambda x, knob=isinstance(leaf, Knob): not knob, value)
            for leaf, value in zip(numbers[path], values, strict=True)
        )
        for path, values in layer.numbers.items()
    }
