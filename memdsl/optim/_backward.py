"""What the linear layers of a captured model are given, beside its loss and its gradients."""

import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
from jaxtyping import Array, PyTree

from .._errors import SpecError
from .._types import at_least_single, checked
from ..grow._layers import trained
from ._capture import Captured, over_examples
from ._gram import counts_of, Gram, gram_of
from ._origin import Origin
from ._uses import Use
from ._watch import AbstractWatcher, watched


@checked
def with_grams(function: Callable[..., Any]) -> Callable[..., tuple[Any, Captured]]:
    """A function of a model, that also returns what the model's linear layers were given.

    It is for one's own losses and loops; the Gram matrices are an auxiliary output:
    `eqx.filter_value_and_grad(md.optim.with_grams(loss), has_aux=True)(captured, x, y)`. It works under
    `jit`, `vmap` and `scan`; where a batch is sharded under `jit`, they are of all of it. Those of parts
    of a batch add up: `jax.tree.map(jnp.add, grams, more)`, or `jax.lax.psum` in a `shard_map`.

    **Arguments:**

    - `function`: `function(model, *args)`; it is given the model itself, and applies it in any way.

    **Returns:** a function of `(captured, *args)` that returns `(function(model, *args), grams)`; the
    second is like the parameters, with a `Gram` for every linear layer and `None` elsewhere.

    ??? example

        ```python
        >>> import equinox as eqx
        >>> import jax
        >>> import jax.numpy as jnp
        >>> import memdsl as md
        >>> layer = eqx.nn.Linear(2, 3, use_bias=False, key=jax.random.key(0))
        >>> x = jnp.array([[1.0, 0.0], [1.0, 2.0]])
        >>> captured = md.optim.capture(layer, x)
        >>> def loss(model, x):
        ...     return jnp.mean(jax.vmap(model)(x) ** 2)
        >>> value, grams = md.optim.with_grams(loss)(captured, x)
        >>> print(grams.model.weight.mean)
        [[1. 1.]
         [1. 2.]]

        ```
    """

    def both(captured: Captured, *args: Any, **kwargs: Any) -> tuple[Any, Captured]:
        check_captured(captured)
        measuring = _Measurer(captured)

        def applied(model: Any, *args: Any) -> Any:
            return function(model, *args, **kwargs)

        out, found = watched(applied, measuring, captured.model, *args)
        return out, _mirrored(captured, found)

    return both


@checked
def backward(
    loss: Callable[..., Array], captured: Any, *batch: PyTree[Array]
) -> tuple[Array, Any, Captured]:
    """The loss of a batch, its gradients, and what the linear layers were given.

    As `md.grow.backward`: the model is given one example at a time, under `jax.vmap`, and the loss all
    predictions.

    **Arguments:**

    - `loss`: `loss(predictions, *labels)`, a scalar.
    - `captured`: of `md.optim.capture`.
    - `batch`: the inputs, and whatever else the loss takes; the first axis is the batch's.

    **Returns:** `(loss, gradients, grams)`, for `optimiser.update(gradients, state, captured,
    grams=grams)`.

    **Raises:** `SpecError` for a model that is not captured.

    ??? example

        ```python
        >>> import equinox as eqx
        >>> import jax
        >>> import jax.numpy as jnp
        >>> import memdsl as md
        >>> layer = eqx.nn.Linear(2, 1, key=jax.random.key(0))
        >>> x, y = jnp.array([[1.0, 0.0], [1.0, 2.0]]), jnp.zeros((2, 1))
        >>> captured = md.optim.capture(layer, x)
        >>> loss, gradients, grams = md.optim.backward(lambda p, y: jnp.sum(p - y), captured, x, y)
        >>> print(gradients.model.weight, gradients.model.bias)
        [[2. 2.]] [2.]
        >>> print(grams.model.weight.mean)  # of (x, 1)
        [[1. 1. 1.]
         [1. 2. 1.]
         [1. 1. 1.]]

        ```
    """
    check_captured(captured)
    inputs, *rest = batch
    learning, fixed = eqx.partition(captured, trained(captured))

    def of_batch(model: Any, inputs: Any, *rest: Any) -> Array:
        return loss(over_examples(model, inputs), *rest)

    def total(learning: Captured) -> tuple[Array, Captured]:
        return with_grams(of_batch)(eqx.combine(learning, fixed), inputs, *rest)

    (value, grams), gradients = jax.value_and_grad(total, has_aux=True)(learning)
    return value, gradients, grams


def check_captured(captured: Any) -> None:
    """Refuses a model that is not captured."""
    if not isinstance(captured, Captured):
        raise SpecError(
            f"This is a {type(captured).__name__}, and no captured model.",
            instead="captured = md.optim.capture(model, inputs), which is trained in its place.",
        )


def _mirrored(captured: Captured, found: dict[str, Gram]) -> Captured:
    """A tree like the parameters, with a Gram matrix where there is one and `None` elsewhere."""

    def gram(path: Any, leaf: Any) -> Gram | None:
        return found.get(jax.tree_util.keystr(path))

    model = jax.tree_util.tree_map_with_path(gram, captured.model)
    return Captured(model, captured.projections, captured.rows)


class _Measurer(AbstractWatcher):
    """Makes Gram matrices of the uses that were captured."""

    def __init__(self, captured: Captured) -> None:
        self.known = {projection.weight: projection for projection in captured.projections}
        self.rows = captured.rows
        leaves = jax.tree_util.tree_flatten_with_path(captured.model)[0]
        self.leaves = {jax.tree_util.keystr(path): leaf for path, leaf in leaves}

    def use(self, use: Use, operand: Any) -> Gram | None:
        wanted = self.known.get(use.projection.weight)
        if wanted is None or dataclasses.replace(wanted, bias=None) != use.projection:
            return None
        inputs = use.inputs(operand)
        if not wanted.lookup:
            return gram_of(inputs, wanted.bias is not None, self.rows)
        table = self.leaves[wanted.weight]
        return counts_of(inputs, table.shape[wanted.inputs[0]], at_least_single(table.dtype))

    def add(self, answer: Origin, vector: Origin) -> None:
        pass
