"""Which training examples made an answer, and how much of it each."""

from collections.abc import Callable
from typing import Any, TYPE_CHECKING

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float, Int

from .._errors import SpecError
from .._types import checked
from ..nn._grown import GrownLayer, memories, representation
from ..spec._gate import admissions
from ..spec._layer import Conv
from ..state import as_sum, read
from ._given import given
from ._layers import depth, growing
from ._recorded import recorded
from ._shard import on_host
from ._unroll import Record


if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Attribution(eqx.Module):
    r"""An answer as a sum over training examples: `rest + Σ contributions`, exactly.

    Made by `md.grow.attribute`, one row an atom; `examples` makes it one row an example, `top` leaves
    the largest rows. What is left out of the rows is in `rest`, so that the sum stays the answer.

    ??? example

        ```python
        >>> import jax
        >>> import jax.numpy as jnp
        >>> import memdsl as md
        >>> import optax
        >>> spec = md.Dense(1, start="zeros", bias=False)
        >>> model = md.build(spec, md.Dims(model=1), key=jax.random.key(0))
        >>> record = md.grow.unroll(model, optax.sgd(0.1))
        >>> x = jnp.array([[1.0], [2.0]])
        >>> for _ in range(2):
        ...     record, _ = record.step(lambda y, t: jnp.sum((y - t) ** 2) / 2, x, x, ids=[0, 1])
        >>> found = md.grow.attribute(record, jnp.array([3.0])).examples()
        >>> for example, part in zip(found.ids, found.contributions):
        ...     print(f"example {example} adds {part[0]:.2f} to {found.answer[0]:.2f}")
        example 0 adds 0.45 to 2.25
        example 1 adds 1.80 to 2.25

        ```
    """

    ids: Int[np.ndarray, " row"]
    """Whose rows they are."""
    weights: Float[Array, " row"]
    """By how much the query is like the row's key, with all that the read does to it."""
    contributions: Float[Array, "row value"]
    """Weight times coefficient: what the row adds to the answer."""
    rest: Float[Array, " value"]
    """What is not of these rows: of the start, the base, the bias at the start."""

    @property
    def answer(self) -> Float[Array, " value"]:
        """What the layer answers."""
        return self.rest + jnp.sum(self.contributions, axis=0)

    def examples(self) -> "Attribution":
        """One row an example: rows of one id are added up, weights and contributions."""
        ids, place = np.unique(self.ids, return_inverse=True)

        def summed(rows: Array) -> Array:
            found = np.zeros((len(ids), *rows.shape[1:]), rows.dtype)
            np.add.at(found, place, np.asarray(rows))
            return jnp.asarray(found)

        return Attribution(ids, summed(self.weights), summed(self.contributions), self.rest)

    def top(self, count: int = 10, *, output: int | None = None) -> "Attribution":
        """The rows that contribute most, the largest first; the others are added to `rest`.

        **Arguments:**

        - `count`: how many rows.
        - `output`: to which output; by default to all, by the norm.
        """
        parts = np.asarray(self.contributions)
        size = np.linalg.norm(parts, axis=1) if output is None else np.abs(parts[:, output])
        order = np.argsort(-size, kind="stable")
        best, others = order[:count], np.sort(order[count:])
        rest = self.rest + jnp.asarray(np.sum(parts[others], axis=0))
        weights = jnp.asarray(np.asarray(self.weights)[best])
        return Attribution(self.ids[best], weights, jnp.asarray(parts[best]), rest)

    def plot(self, images: Any = None, *, count: int = 8, output: int | None = None) -> "Figure":
        """A picture of the examples that contribute most.

        **Arguments:**

        - `images`: the training images, `[example, height, width]` or with colours last, by id; drawn
            above the bars.
        - `count`: how many examples.
        - `output`: to which output; by default to the largest.

        **Returns:** a matplotlib figure that needs no display: `figure.savefig("examples.png")`.
        """
        from ._picture import draw

        output = int(jnp.argmax(self.answer)) if output is None else output
        return draw(self.examples().top(count, output=output), images, output)


@checked
def attribute(
    model: Any,
    x: Any,
    where: Callable[[Any], Any] | None = None,
    *,
    ids: Any = None,
) -> Attribution:
    r"""Which training examples made this answer, and with what weight: exactly, not an estimate.

    $$y = \mathrm{rest} + \sum_i w_i(x)\, c_i, \qquad
      w_i = a_i\, (x_i \cdot x) \ \text{ of a record}, \qquad
      w_i = \frac{\partial f_v(x)}{\partial c_{iv}} \ \text{ of a memory}$$

    with y `[value]` what the layer answers. Of a record, $c_i = -g_i$ is minus the derivative of the
    loss in the step that recorded the pair, and a bias adds its own factor to $w_i$. Of a growing
    layer, $c_i$ is the coefficient of a stored atom, and $w_i$ its kernel value times its decay, under
    a normalised read over the sum of them all: a read is linear in the coefficients, and the same for
    every v, so that the derivative of the read itself is the weight.

    An atom is known by its birth, the number of atoms before it, which is the number of its example
    where every example became an atom (no admission gate). With `AddToNearest`, an atom stands for
    all that was added to it. Of a sum of memories, or one that boosts another, the rows are the atoms
    of all.

    **Arguments:**

    - `model`: a `Record` of `md.grow.unroll`, or a model with a growing layer.
    - `x`: one example, as the model is given it; what reaches the layer is found on the way.
    - `where`: the growing layer, where the model has more than one.
    - `ids`: whole numbers by birth: the example of every atom that a growing layer has admitted.

    **Returns:** an `Attribution`.

    **Raises:** `SpecError` for a layer whose atoms are dissolved in a matrix, and for one that answers
    with more than one row.

    ??? example

        ```python
        >>> import jax
        >>> import jax.numpy as jnp
        >>> import memdsl as md
        >>> atoms = md.Memory(md.RBF(), md.Hebb(rate=1.0), capacity=md.Budget(10))
        >>> net = md.Grown(md.Dense(1, start="zeros"), atoms)
        >>> model = md.build(net, md.Dims(model=1), key=jax.random.key(0))
        >>> x = jnp.array([[0.5], [2.0], [5.0]])
        >>> _, _, pairs = md.grow.backward(lambda y, t: jnp.sum((y - t) ** 2) / 2, model, x, x)
        >>> model = md.grow.write(model, pairs)
        >>> found = md.grow.attribute(model, jnp.array([1.5]))
        >>> for example, weight, part in zip(found.ids, found.weights, found.contributions):
        ...     print(f"example {example}: weight {weight:.3f}, adds {part[0]:.3f}")
        example 0: weight 0.607, adds 0.303
        example 1: weight 0.882, adds 1.765
        example 2: weight 0.002, adds 0.011
        >>> print(found.top(1).ids, bool(jnp.allclose(found.answer, model(jnp.array([1.5])))))
        [1] True

        ```

    Irie, Csordás and Schmidhuber (2022), "The dual form of neural networks revisited", for linear
    layers; a memory of atoms is its own attribution.
    """
    if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves((model, x))):
        raise SpecError(
            "An attribution cannot be made inside jit or vmap.",
            why="Its rows are the atoms that there are, so that their number is not known there.",
            instead="a Python loop over examples.",
        )
    if isinstance(model, Record):
        if where is not None or ids is not None:
            raise SpecError(
                "A record knows its layer and its examples.",
                instead="attribute(record, x), and record.step(…, ids=…).",
            )
        return _of_record(model, x)
    layer = _layer(model, where)
    query = x if layer is model else _given(model, layer, x)
    return _of_atoms(layer, _one_row(jnp.asarray(query)), ids)


def _of_record(record: Record, x: Any) -> Attribution:
    tapped = eqx.tree_at(record.where, record.model, recorded(record.where(record.model)))
    query = _one_row(_given(tapped, record.where(tapped), x))
    steps = record.steps()

    def rows(scalars: np.ndarray) -> Array:
        return jnp.asarray(np.repeat(scalars, steps.rows), query.dtype)

    base, scalars = record.coefficients()
    similar = jnp.matmul(steps.keys, query, precision=jax.lax.Precision.HIGHEST)
    weights = rows(scalars) * similar
    start = jnp.matmul(record.start[0], query, precision=jax.lax.Precision.HIGHEST)
    rest = jnp.asarray(base, query.dtype) * start
    if len(record.start) > 1:
        base, scalars = record.coefficients("bias")
        weights = weights + rows(scalars)
        rest = rest + jnp.asarray(base, query.dtype) * record.start[1]
    return Attribution(steps.ids, weights, -weights[:, None] * steps.cotangents, rest)


def _of_atoms(layer: GrownLayer, query: Array, ids: Any) -> Attribution:
    _check_atoms(layer, ids)
    found, rest = _recalled(layer, query)
    held = [_held(*map(on_host, slots)) for slots in found]
    births, weights, parts = map(np.concatenate, zip(*held, strict=True))
    if ids is not None:
        ids = np.asarray(ids)
        if ids.ndim != 1 or len(ids) <= births.max(initial=-1):
            raise SpecError(
                f"There are ids of shape {ids.shape}, and atoms up to number {births.max()}.",
                instead="one id for every atom that was admitted, in the order of their births.",
            )
        births = ids[births]
    return Attribution(births, jnp.asarray(weights), jnp.asarray(parts), jnp.asarray(on_host(rest)))


def _held(valid: np.ndarray, *arrays: np.ndarray) -> list[np.ndarray]:
    """The rows of the slots that hold an atom."""
    there = np.flatnonzero(valid)
    return [rows[there] for rows in arrays]


def _check_atoms(layer: GrownLayer, ids: Any) -> None:
    found = memories(layer.memory).values()
    dissolved = [leaf for leaf in found if representation(leaf) != "buffer"]
    if dissolved:
        raise SpecError(
            "The layer keeps a matrix, in which its atoms have dissolved.",
            where=dissolved[0],
            at="capacity",
            instead="capacity=Budget(n), which keeps them; or md.grow.unroll of a linear layer.",
        )
    gated = [leaf for leaf in found if admissions(leaf.gate)]
    if ids is not None and len(found) > 1 and gated:
        raise SpecError(
            "The memories of this layer let in different pairs, and number their atoms each for itself.",
            where=gated[0],
            at="gate",
            instead="no ids: the number of an atom among those of its memory.",
        )


@eqx.filter_jit
def _recalled(layer: GrownLayer, query: Array) -> tuple[list[tuple[Array, ...]], Array]:
    """`(valid, birth, weight, contribution)` of all slots of every memory, and the base's answer."""
    row, found = query[None].astype(layer.dtype), []
    for part in layer.parts():
        memory, function = as_sum(part.memory, part.state)
        state: Any = function
        inner = part.key_map(row)[0]
        _, values, _ = state.safe()

        def first(values: Array, memory: Any = memory, state: Any = state, q: Any = inner) -> Array:
            return read(memory, state.put(values=values), q)[0]

        weights = jax.grad(first)(values)[:, 0]
        found.append((state.valid, state.birth, weights, weights[:, None] * values))
    return found, layer.base(query)


def _layer(model: Any, where: Callable[[Any], Any] | None) -> GrownLayer:
    layers = growing(model)
    if where is None and len(layers) != 1:
        raise SpecError(
            f"The model has {len(layers)} growing layers.",
            instead="where=lambda model: …, which selects one; or a record of md.grow.unroll.",
        )
    layer = layers[0] if where is None else where(model)
    if not isinstance(layer, GrownLayer):
        raise SpecError(
            f"attribute asks a growing layer, and got a {type(layer).__name__}.",
            instead="a layer of md.grow.growing(model); for a linear one, a record of md.grow.unroll.",
        )
    if depth(layer) or isinstance(layer.spec.base, Conv):
        raise SpecError(
            "The layer is one of a stack, or one over the patches of an image.",
            where=layer.spec,
            why="It has no single answer to one example.",
            instead="a layer of its own over a Dense.",
        )
    return layer


def _given(model: Any, layer: Any, x: Any) -> Array:
    """What a tapped layer of the model is given, when the model is given `x`."""
    return given(model, layer, jax.tree.map(lambda a: jnp.asarray(a)[None], x))[0]


def _one_row(x: Array) -> Array:
    if x.size != x.shape[-1]:
        raise SpecError(
            f"The layer is given {x.size // x.shape[-1]} rows for one example, and answers to each.",
            instead="attribute(layer, row), with the growing layer itself; or a model of one vector.",
        )
    return x.reshape(-1)
