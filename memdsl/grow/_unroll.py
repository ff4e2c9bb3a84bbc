"""The dual form of a linear layer: its weights as what its training examples made of them."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.core import Tracer
from jaxtyping import Array, Float, Int

from .._errors import SpecError
from .._types import checked
from ..nn._blocks import Dense
from ..nn._tap import Pairs
from ._backward import backward
from ._coordinates import advance, check, Places, places_of, probe, scalars, starts_of, Step
from ._layers import growing, parameters
from ._recorded import recorded
from ._steps import extended, History, Steps, whole


_HIGHEST = jax.lax.Precision.HIGHEST
Where = Callable[[Any], Any]


class Record(eqx.Module):
    r"""A model in training, with all that one of its linear layers was ever told.

    $$W_T = c_T W_0 + \sum_{t \le T} a_{T,t} \sum_b (-g_{tb})\, x_{tb}^\top, \qquad
      W_T\, q = c_T W_0\, q + \sum_{t \le T} a_{T,t} \sum_b (-g_{tb})\, (x_{tb} \cdot q)$$

    x is what the layer was given and g the derivative of the loss with respect to what it answered, of
    example b in step t. Made by `md.grow.unroll`; `record(q)` is the second equation, with the bias,
    for `q` of shape `[..., key]`. A record is immutable, and keeps every pair: a read takes
    O(pairs · (key + value)).

    ??? example

        ```python
        >>> import equinox as eqx
        >>> import jax
        >>> import jax.numpy as jnp
        >>> import memdsl as md
        >>> import optax
        >>> record = md.grow.unroll(eqx.nn.Linear(2, 1, key=jax.random.key(0)), optax.sgd(0.5))
        >>> record, loss = record.step(lambda y, _: jnp.sum(y), jnp.eye(2), None, ids=[8, 9])
        >>> print(record.pairs().key[1], record.pairs().cotangent[1], record.ids())
        [0. 1.] [1.] [8 9]
        >>> change = record.model.weight - record.start[0]
        >>> print(change.round(3), record.values()[:, 0])
        [[-0.5 -0.5]] [-0.5 -0.5]

        ```
    """

    model: Any
    """The model as it is now, with weights: what training with the optimiser alone would give."""
    state: Any
    """The optimiser's state."""
    start: tuple[Array, ...]
    """W at the start, and the bias where there is one."""
    optimiser: Any = eqx.field(static=True)
    where: Where = eqx.field(static=True)
    places: Places = eqx.field(static=True)
    began: tuple[np.ndarray, ...]
    history: History = ()
    answers_with: tuple[int, ...] = eqx.field(static=True, default=())
    seen: int = eqx.field(static=True, default=0)
    """How many examples there were, repeated ones included."""

    def step(
        self, loss: Callable[..., Array], *batch: Any, ids: Any = None
    ) -> tuple["Record", Array]:
        """One step of training: `md.grow.backward`, the optimiser, and a note of the pairs.

        Compiled when it is first called, and anew for another loss or another shape of the batch.

        **Arguments:**

        - `loss`: `loss(predictions, *labels)`, a scalar.
        - `batch`: the inputs, and whatever else the loss takes.
        - `ids`: which examples these are, whole numbers; by default they are numbered as they come.

        **Returns:** `(record, loss)`.

        **Raises:** `SpecError` where the layer's gradient is not that of its pairs, or the optimiser's
        step not a sum of gradients: both are compared with what was recorded, at every step.
        """
        given = jax.tree.leaves(batch)
        if any(isinstance(leaf, Tracer) for leaf in given):
            raise SpecError(
                "A step of a record cannot be inside jit, vmap or scan.",
                why="The record is longer after it; what is compiled is inside the step.",
                instead="a Python loop: record, loss = record.step(loss, inputs, labels).",
            )
        value, step, pairs, apart, model = _step(
            self.optimiser, self.where, self.places, loss, self.model, self.state, batch
        )
        if np.isfinite(value):
            _check_gradient(apart)
            check(step, self.state, self.places)
        count = len(given[0])
        names = self.seen + np.arange(count) if ids is None else np.asarray(ids)
        if names.shape != (count,) or not np.issubdtype(names.dtype, np.integer):
            raise SpecError(
                f"There are {count} examples, and the ids are {names.dtype} of shape {names.shape}.",
                instead="ids=rows, where the batch is inputs[rows], labels[rows].",
            )
        matrices = tuple(np.asarray(matrix, np.float64)[None] for matrix in step.matrices)
        rows = len(pairs.key)
        own = np.repeat(names, rows // count).astype(np.int64)
        note = Steps(pairs.key, pairs.cotangent, own, np.array([rows]), matrices)
        history, seen = extended(self.history, note), self.seen + count
        return self.put(model=model, state=step.state, history=history, seen=seen), value

    def coefficients(self, of: str = "weight") -> tuple[float, Float[np.ndarray, " step"]]:
        """`(c, a)`: the factor of the start, and that of the pairs of every step, in float64.

        **Arguments:**

        - `of`: `"weight"` or `"bias"`, which may differ: weight decay is often of weights only.
        """
        index = {"weight": 0, "bias": 1}[of]
        which = (self.answers_with or tuple(len(own) for own in self.places))[index]
        own = [steps.matrices[index] for steps in self.history]
        base, found = scalars(self.began[index], [matrix for part in own for matrix in part], which)
        return base, -found

    def pairs(self) -> Pairs:
        """The pairs of all steps, one row a use of the layer."""
        steps = self.steps()
        return Pairs(steps.keys, steps.cotangents)

    def ids(self) -> Int[np.ndarray, " row"]:
        """Whose pairs they are, row by row."""
        return self.steps().ids

    def values(self, of: str = "weight") -> Float[Array, "row value"]:
        """`-a g`: what every pair is worth in the layer as it is now."""
        steps, (_, scalars) = self.steps(), self.coefficients(of)
        by_row = jnp.asarray(np.repeat(-scalars, steps.rows), steps.cotangents.dtype)
        return by_row[:, None] * steps.cotangents

    def steps(self) -> Steps:
        """All that was recorded."""
        weight = self.start[0]
        none = [jnp.zeros((0, size), weight.dtype) for size in weight.shape[::-1]]
        nothing = np.zeros(0, np.int64)
        matrices = tuple(np.zeros((0, len(s) + 1, len(s) + 2)) for s in self.began)
        return whole(self.history, Steps(none[0], none[1], nothing, nothing, matrices))

    def weight(self) -> Float[Array, "value key"]:
        """W, by the sum; up to rounding it is the weight of `record.model`."""
        base, _ = self.coefficients()
        made = jnp.matmul(self.values().T, self.pairs().key, precision=_HIGHEST)
        return jnp.asarray(base, made.dtype) * self.start[0] + made

    def bias(self) -> Float[Array, " value"] | None:
        """The bias, by the sum: its pairs have the key 1."""
        if len(self.start) == 1:
            return None
        base, _ = self.coefficients("bias")
        made = jnp.sum(self.values("bias"), axis=0)
        return jnp.asarray(base, made.dtype) * self.start[1] + made

    def __call__(self, x: Float[Array, "*row key"]) -> Float[Array, "*row value"]:
        base, _ = self.coefficients()
        similar = jnp.matmul(x, self.pairs().key.T, precision=_HIGHEST)
        y = jnp.matmul(similar, self.values(), precision=_HIGHEST)
        y = y + jnp.asarray(base, y.dtype) * jnp.matmul(x, self.start[0].T, precision=_HIGHEST)
        bias = self.bias()
        return y if bias is None else y + jnp.broadcast_to(bias, y.shape)

    def of(self, select: Callable[[Any], Any]) -> "Record":
        """The same record of another tensor that the optimiser keeps, such as an average of weights.

        **Arguments:**

        - `select`: from the optimiser's state, a tree that is like the parameters, as
            `lambda state: state[1].average`.

        **Returns:** a record whose `coefficients`, `weight`, `bias` and answers are of that tensor.
        """
        leaves, tree = jax.tree.flatten(self.state)
        layer = self.where(select(jax.tree.unflatten(tree, range(len(leaves)))))
        chosen = [layer.weight, *([] if layer.bias is None else [layer.bias])]
        for own, place in zip(self.places, chosen, strict=True):
            if place not in own:
                raise SpecError(
                    "What was selected is not among what the optimiser keeps for the layer.",
                    instead="record.of(lambda state: …) of a tree like the parameters.",
                )
        found = tuple(own.index(i) for own, i in zip(self.places, chosen, strict=True))
        return self.put(answers_with=found)

    def put(self, **changes: Any) -> "Record":
        """A copy with some fields changed."""
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return Record(**{**fields, **changes})


@checked
def unroll(
    model: Any, optimiser: optax.GradientTransformation, where: Where | None = None
) -> Record:
    r"""A record of how an optimiser trains a linear layer: every example, and its weight in the layer.

    $$W_T = c_T W_0 + \sum_{t \le T} a_{T,t} \sum_b (-g_{tb})\, x_{tb}^\top$$

    exactly, whatever else is in the model and however it is trained: x `[key]` is what the layer was
    given, g `[value]` the derivative of the loss with respect to what it answered. The scalars are
    found by the optimiser's own code, which is run on a few coordinates more. So it may be any
    optimiser that adds up gradients: plain, with momentum, with weight decay, schedules, clipping by
    norm, averages of weights.

    **Arguments:**

    - `model`: a callable pytree; all of its `md.grow.parameters` are trained.
    - `optimiser`: an optax transformation.
    - `where`: the layer, as `lambda model: model.layers[2]`: an `md.Dense` or an `equinox.nn.Linear`;
        by default the model itself.

    **Returns:** a `Record` with nothing in it yet; `record.step(loss, inputs, labels)` trains.

    **Raises:** `SpecError` for an optimiser whose steps are no sums of gradients (Adam, Muon: found
    by trying it on random gradients), and for a layer that is not linear, not trained, or one of a
    stack.

    ??? example

        ```python
        >>> import jax.numpy as jnp
        >>> import jax
        >>> import memdsl as md
        >>> import optax
        >>> model = md.build(md.Dense(1), md.Dims(model=2), key=jax.random.key(0))
        >>> record = md.grow.unroll(model, optax.sgd(0.1, momentum=0.5))
        >>> inputs, targets = jnp.array([[0.0, 1.0], [2.0, 3.0]]), jnp.array([[1.0], [4.0]])
        >>> def square(y, targets):
        ...     return jnp.mean(jnp.sum((y - targets) ** 2, axis=-1))
        >>> for _ in range(3):
        ...     record, loss = record.step(square, inputs, targets, ids=[0, 1])
        >>> start, steps = record.coefficients()
        >>> print(start, steps.round(4))  # momentum: the first gradient was used three times
        1.0 [0.175 0.15  0.1  ]
        >>> bool(jnp.allclose(record.weight(), record.model.weight, atol=1e-6))
        True
        >>> bool(jnp.allclose(record(inputs), record.model(inputs), atol=1e-5))
        True

        ```

    Irie, Csordás and Schmidhuber (2022), "The dual form of neural networks revisited", for plain
    gradient descent; other optimisers, and their scalars, are ours.
    """
    where = where or (lambda model: model)
    layer = _layer(model, where)
    params = parameters(model)
    if where(params).weight is None:
        raise SpecError(
            "The layer is not trained, so that there is nothing to record.",
            where=repr(layer),
            instead="md.Dense(size), without trainable=False.",
        )
    places = places_of(optimiser, params, _pick(where))
    probe(optimiser, params, _pick(where), places)
    return Record(
        model=model,
        state=optimiser.init(params),
        start=tuple(_pick(where)(params)),
        optimiser=optimiser,
        where=where,
        places=places,
        began=starts_of(optimiser, params, _pick(where), places),
    )


def _layer(model: Any, where: Where) -> Dense | eqx.nn.Linear:
    if growing(model):
        raise SpecError(
            "A model with growing layers is not unrolled.",
            why="Its layers keep their pairs already, and its steps also write memories.",
            instead="md.grow.attribute(model, x), which asks a growing layer.",
        )
    layer = where(model)
    if not isinstance(layer, Dense | eqx.nn.Linear):
        raise SpecError(
            f"unroll records a linear layer, and got a {type(layer).__name__}.",
            instead="where=lambda model: …, which selects an md.Dense or an equinox.nn.Linear.",
        )
    weight = layer.weight
    if weight.ndim != 2 or jnp.finfo(weight.dtype).bits < 32:
        raise SpecError(
            f"The weight of the layer is {weight.dtype} of shape {weight.shape}.",
            why="A record is of one matrix, in float32 or float64.",
            instead="a layer of its own, not one of a Repeat, in float32.",
        )
    return layer


def _pick(where: Where) -> Callable[[Any], list[Any]]:
    def tensors(tree: Any) -> list[Any]:
        layer = where(tree)
        return [layer.weight] if layer.bias is None else [layer.weight, layer.bias]

    return tensors


@eqx.filter_jit
def _step(
    optimiser: Any, where: Where, places: Places, loss: Any, model: Any, state: Any, batch: Any
) -> tuple[Array, Step, Pairs, Array, Any]:
    tapped = eqx.tree_at(where, model, recorded(where(model)))
    value, gradients, (pairs,) = backward(loss, tapped, *batch)
    gradients = eqx.tree_at(where, gradients, where(gradients).layer)
    pick = _pick(where)
    slope = pick(gradients)[0]
    if pairs is None:
        pairs = Pairs(*(jnp.zeros((0, size), slope.dtype) for size in slope.shape[::-1]))
    pairs = Pairs(*(rows.reshape(-1, rows.shape[-1]).astype(slope.dtype) for rows in pairs))
    made = jnp.matmul(pairs.cotangent.T, pairs.key, precision=_HIGHEST)
    size = jnp.max(jnp.abs(slope))
    apart = jnp.max(jnp.abs(made - slope)) / jnp.where(size == 0, 1, size)
    step = advance(optimiser, parameters(model), gradients, state, pick, places, value)
    return value, step, pairs, apart, eqx.apply_updates(model, step.updates)


def _check_gradient(apart: Array) -> None:
    if not apart <= float(jnp.finfo(apart.dtype).eps) ** 0.4:
        raise SpecError(
            "The gradient of the layer's weight is not the one of its pairs.",
            why=f"They differ by {float(apart):.1e} of the largest entry: the weight is used elsewhere "
            "too, outside of the layer's call.",
            instead="a layer with a weight of its own.",
        )
