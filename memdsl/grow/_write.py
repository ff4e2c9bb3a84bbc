"""Growing: the pairs of a backward pass become what the memories of a model hold."""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from .._errors import SpecError
from ..nn._grown import GrownLayer
from ..nn._tap import Pairs
from ..plan._tree import map_leaves
from ._grow import grow
from ._layers import depth, growing


def write(model: Any, pairs: Sequence[Pairs | None]) -> Any:
    r"""The model after its growing layers have learned from one batch: functional gradient descent.

    $$f \leftarrow \alpha f - \eta \sum_b \kappa(x_b, \cdot)\, g_b$$

    once a call, in every layer, from the $g$ of `md.grow.backward`. It decays, lets pairs in, and
    makes room as the memory's gate and capacity say; all coefficients are of the function before the
    write. Pairs are let in one after the other, in the order of the batch (and, inside an example, of
    its rows): what the batch does is what its pairs would do one by one, after one decay. Where the
    write is `Hebb`, its value is $-g$; `Surprise` looks at the norm of $g$; `LeastUsed` counts the
    reads of the batch, before anything is written; a `Schedule` counts calls of `write`. `Ridge`
    solves for the targets $f(x_b) - \eta g_b$, `Descent` takes one step of its own on the batch, and
    `a.boost(b)` gives to b what a has left of its move.

    A pure function: jit-compile it (with the whole training step), and donate the model. Shapes never
    change, so it is traced once. A matrix takes one product, a buffer one scatter, however full it
    is; only a policy that has to choose a victim in a full buffer takes its pairs one by one.

    **Arguments:**

    - `model`: the model that `backward` was given (after its parameters were updated, or before).
    - `pairs`: what `backward` returned.

    **Returns:** the model, with new states in its growing layers.

    **Raises:** `SpecError` where the pairs are of another model.

    ??? example

        ```python
        >>> import jax
        >>> import jax.numpy as jnp
        >>> import memdsl as md
        >>> atoms = md.Memory(md.RBF(), md.Hebb(rate=2.0), md.Novelty(0.1), md.Budget(5))
        >>> net = md.Grown(md.Dense(1, start="zeros"), atoms)
        >>> model = md.build(net, md.Dims(model=1), key=jax.random.key(0))
        >>> x = jnp.array([[0.0], [0.01], [1.0]])
        >>> loss, _, pairs = md.grow.backward(lambda y, t: jnp.sum((y - t) ** 2), model, x, x)
        >>> model = md.grow.write(model, pairs)
        >>> counts = model.state.counts
        >>> print(counts.admitted, counts.dropped, jnp.abs(model.state.values[:, 0]))
        2 1 [0. 4. 0. 0. 0.]

        ```

    "Retrieval-Centric Deep Learning", section 3.1 and eq. 1; weight decay is Kivinen, Smola and
    Williamson (2004). Within-batch novelty is not defined there: it is greedy here.
    """
    layers = growing(model)
    if len(layers) != len(pairs):
        raise SpecError(
            f"The model has {len(layers)} growing layers, and there are pairs for {len(pairs)}.",
            instead="the pairs that md.grow.backward(loss, model, …) returned for this model.",
        )
    if not layers:
        return model
    states = [
        layer.state if pair is None else _written(layer, pair, depth(layer))
        for layer, pair in zip(layers, pairs, strict=True)
    ]
    return eqx.tree_at(lambda m: [layer.state for layer in growing(m)], model, states)


def _written(layer: GrownLayer, pairs: Pairs, stacked: int) -> Any:
    """The state of a layer after a batch; equal layers of a stack are taken one after the other."""
    if not stacked:

        def rows(array: Array) -> Array:
            return array.reshape(-1, array.shape[-1]).astype(layer.dtype)

        before = {part.path: part for part in layer.parts()}
        after = grow(layer.memory, before, rows(pairs.key), rows(pairs.cotangent))
        return map_leaves(layer.memory, lambda path, _: after[path].state)
    arrays, static = eqx.partition(layer, eqx.is_array)
    first = jax.tree.map(lambda x: jnp.moveaxis(x, 1, 0), pairs)

    def one(turn: tuple[Any, Pairs]) -> Any:
        own, pair = turn
        return _written(eqx.combine(own, static), pair, stacked - 1)

    return jax.lax.map(one, (arrays, first))
