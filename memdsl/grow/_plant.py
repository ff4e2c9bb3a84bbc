"""Atoms before the first step: a growing layer that starts from random keys of the data."""

import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, PRNGKeyArray, PyTree

from .._errors import SpecError
from .._types import checked
from ..nn._grown import GrownLayer
from ..spec._facts import descends, is_solved
from ..spec._memory import Memory
from ..state import BufferState
from ._cells import cells_of
from ._fold import Atoms, scatter
from ._given import given, place_of
from ._greedy import taking
from ._layers import growing, stacked, tapped


VALUES = ("zeros", "normal")


@checked
def plant(
    model: Any,
    inputs: PyTree[Array | np.ndarray],
    count: int,
    *,
    key: PRNGKeyArray,
    mass: float = 1.0,
    values: str = "zeros",
    where: Callable[[Any], Any] | None = None,
) -> Any:
    r"""The model with `count` atoms put into every growing layer, before it is trained.

    $$f \leftarrow f + \sum_{i \le n} \kappa(k_i, \cdot)\, (c_i, \tfrac{1}{n} \mathrm{mass}), \qquad
      c_i = 0 \ \text{ or } \ c_i \sim \mathcal{N}(0, \tfrac{1}{n} I)$$

    The keys are what the layer is given for `inputs` drawn at random, no row twice; layers are planted
    one after the other, in the order of `md.grow.growing`, so that the keys of each are of the model
    in which those before it have their atoms. Under a read that divides, atoms of mass and no value
    are the prior where the data is. Atoms with values make a layer on a base of zeros answer something,
    and pass a signal on. They are like any other atoms afterwards: pairs merge into them, and a full
    budget may evict them. No gate is asked, and `Schedule`s do not move on.

    **Arguments:**

    - `model`: any callable pytree with growing layers in it, `model(example)`.
    - `inputs`: examples, one a row.
    - `count`: how many atoms a layer gets.
    - `key`: a `jax.random.key`.
    - `mass`: of all of them together; of layers that keep masses.
    - `values`: `"zeros"` or `"normal"`.
    - `where`: the growing layer, or a list of them; by default all.

    **Returns:** the model, with new states in its growing layers.

    **Raises:** `SpecError` for a layer that keeps a matrix or has no room, and for fewer inputs than
    atoms.

    ??? example

        ```python
        >>> import jax
        >>> import jax.numpy as jnp
        >>> import memdsl as md
        >>> write, read = md.Reweight(0.5, negative="clip", scale_free=True), md.Normalised(prior=1.0)
        >>> atoms = md.Memory(md.RBF(), write, capacity=md.Budget(50), read=read)
        >>> net = md.Grown(md.Dense(1), atoms)
        >>> model = md.build(net, md.Dims(model=2), key=jax.random.key(0))
        >>> inputs = jax.random.normal(jax.random.key(1), (30, 2))
        >>> planted = md.grow.plant(model, inputs, 20, key=jax.random.key(2))
        >>> print(planted.state.counts.admitted, planted.state.masses[:20].sum().round(4))
        20 1.0
        >>> bool(jnp.allclose(jax.vmap(planted)(inputs), jax.vmap(model)(inputs)))
        True

        ```

    "Retrieval-Centric Deep Learning" (2026) starts from a density over keys; these are samples of it.
    """
    _check(model, inputs, count, mass, values)
    chosen = growing(model) if where is None else where(model)
    layers = list(chosen) if isinstance(chosen, list | tuple) else [chosen]
    for layer in layers:
        _check_layer(model, layer, count)
    at_layers = [place_of(model, layer) for layer in layers]
    for turn, at in enumerate(at_layers):
        for number, index in enumerate(np.ndindex(*stacked(tapped(model)[at]))):
            own = jax.random.fold_in(jax.random.fold_in(key, turn), number)
            model = _planted(model, at, index, inputs, count, own, mass, values)
    return model


def _planted(
    model: Any,
    at: int,
    index: tuple[int, ...],
    inputs: Any,
    count: int,
    key: Array,
    mass: float,
    values: str,
) -> Any:
    """The model with atoms in one layer: of a stack, in the one at `index`."""
    whole: Any = tapped(model)[at]
    arrays, static = eqx.partition(whole, eqx.is_array)
    layer: GrownLayer = eqx.combine(jax.tree.map(lambda x: x[index], arrays), static)
    of_inputs, of_rows, of_values = jax.random.split(key, 3)
    (part,) = layer.parts()
    memory, state = part.memory, part.state
    rows = part.key_map(_rows(model, whole, index, inputs, count, of_inputs).astype(layer.dtype))
    if len(rows) < count:
        raise SpecError(
            f"{count} atoms are to be planted, and the inputs give the layer {len(rows)} keys.",
            instead="more inputs, or fewer atoms.",
        )
    keys = jax.random.permutation(of_rows, rows)[:count]
    shape, blank = (count, state.values.shape[-1]), jnp.zeros(count, layer.dtype)
    drawn = jnp.zeros(shape, layer.dtype)
    if values == "normal":
        drawn = jax.random.normal(of_values, shape, layer.dtype) / math.sqrt(count)
    atoms = Atoms(keys, drawn, jnp.full_like(blank, mass / count), blank, blank)
    cells = cells_of(memory, state, atoms, None)
    planted = scatter(memory, state, atoms, taking(state, cells.slots), cells)
    whole_state = jax.tree.map(lambda old, new: old.at[index].set(new), whole.state, planted)

    def state_of(model: Any) -> Any:
        layer: Any = tapped(model)[at]
        return layer.state

    return eqx.tree_at(state_of, model, whole_state)


def _rows(
    model: Any, layer: Any, index: tuple[int, ...], inputs: Any, count: int, key: Array
) -> Array:
    """What the layer is given for so many of the inputs, or all if they are fewer."""
    size = len(jax.tree.leaves(inputs)[0])
    some = jax.random.permutation(key, size)[:count]
    keys = given(model, layer, jax.tree.map(lambda x: jnp.asarray(x)[some], inputs))
    keys = keys[(slice(None), *index)]
    return keys.reshape(-1, keys.shape[-1])


def _check(model: Any, inputs: Any, count: int, mass: float, values: str) -> None:
    if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves((model, inputs))):
        raise SpecError(
            "plant does not work inside jit or vmap.",
            why="Whether there is room for the atoms is not known there.",
            instead="md.grow.plant before the compiled step.",
        )
    if len({len(x) for x in jax.tree.leaves(inputs)}) != 1:
        raise SpecError(
            "The inputs of plant are arrays with one row an example.", instead="inputs=x."
        )
    for name, value, is_good, must in (
        ("count", count, count >= 1, "a whole number of at least 1"),
        ("mass", mass, 0 <= mass < math.inf, "a finite number of at least 0"),
        ("values", values, values in VALUES, '"zeros" or "normal"'),
    ):
        if not is_good:
            raise SpecError(f"plant got {name}={value!r}.", instead=f"{must}.")


def _check_layer(model: Any, layer: Any, count: int) -> None:
    if not isinstance(layer, GrownLayer) or not any(other is layer for other in growing(model)):
        raise SpecError(
            f"Atoms are planted in the growing layers of the model, and got a {type(layer).__name__}.",
            instead="where=lambda model: …, which selects some of md.grow.growing(model).",
        )
    state, memory = layer.state, layer.memory
    if not isinstance(memory, Memory) or is_solved(memory) or descends(memory):
        raise SpecError(
            "Atoms are planted in one memory whose atoms are added up, and in nothing else.",
            where=layer.spec,
            at="memory",
            why="What is solved, remembered or boosted beside them would not know of them.",
            instead="Hebb(...) or Reweight(...) in one Memory; or a base that starts at random.",
        )
    if not isinstance(state, BufferState):
        raise SpecError(
            "The layer keeps a matrix, in which there are no atoms.",
            where=memory,
            at="capacity",
            instead="capacity=Budget(n), which keeps them; or a base that starts at random.",
        )
    held = int(jnp.max(jnp.sum(state.valid, axis=-1)))
    room = int(memory.capacity.slots()) - held
    if count > room:
        raise SpecError(
            f"{count} atoms are to be planted, and there is room for {room}.",
            where=memory,
            at="capacity",
            instead=f"Budget({held + count}) or more, of which training takes its own part.",
        )
