"""One ordinary backward pass that gives the loss, the gradients, and the pairs to grow by."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from .._errors import SpecError
from ..nn._grown import GrownLayer
from ..nn._tap import Pairs, Probe, Shapes, Uses
from ._layers import stacked, tapped, trained, with_sinks
from ._recorded import Recorded
from ._shard import cut


def backward(
    loss: Callable[..., Array], model: Callable[[Any], Any], *batch: PyTree[Array]
) -> tuple[Array, Any, tuple[Pairs | None, ...]]:
    r"""The loss of a batch, its gradients, and the pairs by which every growing layer grows.

    $$L = \mathrm{loss}(\mathrm{model}(x_1), \dots, \mathrm{model}(x_B);\ \mathrm{labels}), \qquad
      (x_{\ell b},\ g_{\ell b} = \partial L / \partial y_{\ell b})$$

    The model is given one example at a time, under `jax.vmap`; the loss is given all predictions. So
    g includes the 1/B of a mean. Nothing is written: see `md.grow.write`.

    **Arguments:**

    - `loss`: `loss(predictions, *labels)`, a scalar, such as the mean cross-entropy of the batch.
    - `model`: any callable pytree with growing layers in it, `model(example)`.
    - `batch`: the inputs, and whatever else the loss takes; the first axis of the inputs is the
        batch's.

    **Returns:** `(loss, gradients, pairs)`: the gradients have the structure of
    `md.grow.parameters(model)`; there are `Pairs` for every growing layer, in the order of the
    model's tree, and `None` for one that was not used.

    **Raises:** `SpecError` where a growing layer is applied more than once to an example: its pairs
    would be added up. Found while tracing, once a compilation.

    ??? example

        ```python
        >>> import jax
        >>> import jax.numpy as jnp
        >>> import memdsl as md
        >>> atoms = md.Memory(md.RBF(scale=1.0), md.Hebb(rate=0.5), capacity=md.Budget(100))
        >>> net = md.Grown(md.Dense(1, start="zeros"), atoms)
        >>> model = md.build(net, md.Dims(model=2), key=jax.random.key(0))
        >>> inputs, targets = jnp.array([[0.0, 1.0], [2.0, 3.0]]), jnp.array([[1.0], [4.0]])
        >>> def half_square(y, targets):
        ...     return 0.5 * jnp.mean(jnp.sum((y - targets) ** 2, axis=-1))
        >>> loss, gradients, pairs = md.grow.backward(half_square, model, inputs, targets)
        >>> print(loss, pairs[0].cotangent[:, 0])
        4.25 [-0.5 -2. ]
        >>> model = md.grow.write(model, pairs)
        >>> print(jax.vmap(model)(inputs)[:, 0].round(3))
        [0.268 1.005]

        ```

    From "Retrieval-Centric Deep Learning", section 3.1. There the pairs are told in words; here they
    are the cotangents of inputs that change nothing, so that no layer is mutated.
    """
    inputs, *rest = batch
    examples = jax.tree.leaves(inputs)
    if not examples:
        raise SpecError(
            "backward was given no inputs.", instead="backward(loss, model, inputs, …)."
        )
    size = len(examples[0])
    one = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), inputs)
    sinks = sinks_for(model, one, size)
    learning, fixed = eqx.partition(model, trained(model))

    def total(learning: Any, sinks: Any) -> Array:
        model = eqx.combine(learning, fixed)
        predictions = jax.vmap(lambda own, x: with_sinks(model, own)(x))(sinks, inputs)
        return loss(predictions, *rest)

    value, (gradients, pairs) = jax.value_and_grad(total, argnums=(0, 1))(learning, sinks)
    return value, gradients, pairs


def sinks_for(model: Any, example: Any, size: int) -> tuple[Pairs | None, ...]:
    """A sink for every layer that takes one, batched over `size` examples."""
    layers = tapped(model)
    model = cut(model, None)  # what is found here is the same on any devices
    seen = _shapes(model, example)
    traced = [index for index, shapes in enumerate(seen) if shapes]
    counts = _uses(model, example, traced) if traced else {}
    for index, count in counts.items():
        if count > 1 or len(seen[index]) > 1:
            _refuse(layers[index], max(count, len(seen[index])))
    return tuple(
        _sink(layer, seen[index], size) if counts.get(index) else None
        for index, layer in enumerate(layers)
    )


def _shapes(model: Any, example: Any) -> list[set[Any]]:
    """What goes through every tapped layer for one example."""
    probes = [Probe(Shapes()) for _ in tapped(model)]
    eqx.filter_eval_shape(lambda m, x: m(x), with_sinks(model, probes), example)
    return [probe.shapes.seen for probe in probes]


def _sink(layer: GrownLayer | Recorded, shapes: set[Any], size: int) -> Pairs:
    ((key, key_type, value, value_type),) = shapes
    lead = (size, *stacked(layer))
    return Pairs(jnp.zeros((*lead, *key), key_type), jnp.zeros((*lead, *value), value_type))


def _uses(model: Any, example: Any, traced: list[int]) -> dict[int, int]:
    """How often each of the traced layers is applied to one example, exactly.

    Counted by a backward pass whose cotangents are ones: they depend on no value, so all else is
    left out when it is compiled.
    """
    shapes = [stacked(layer) for layer in tapped(model)]
    abstract = eqx.filter_eval_shape(lambda m, x: (m, x), model, example)

    def counts() -> dict[int, Array]:
        concrete, x = jax.tree.map(_zeros, abstract)

        def total(uses: dict[int, Uses]) -> Array:
            y = with_sinks(concrete, [uses.get(i) for i in range(len(shapes))])(x)
            found = [jnp.sum(leaf) for leaf in jax.tree.leaves(y) if eqx.is_inexact_array(leaf)]
            return sum((leaf.astype(jnp.float32) for leaf in found), jnp.zeros((), jnp.float32))

        return jax.grad(total)({i: Uses(jnp.zeros(shapes[i], jnp.float32)) for i in traced})

    with jax.ensure_compile_time_eval():
        found = jax.jit(counts)()
        return {index: int(jnp.max(uses.times)) for index, uses in found.items()}


def _zeros(leaf: Any) -> Any:
    if not isinstance(leaf, jax.ShapeDtypeStruct):
        return leaf
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return jax.random.split(jax.random.key(0), leaf.shape)
    return jnp.zeros(leaf.shape, leaf.dtype)


def _refuse(layer: GrownLayer | Recorded, count: int) -> None:
    grows = isinstance(layer, GrownLayer)
    raise SpecError(
        f"A {'growing' if grows else 'recorded'} layer is applied {count} times to one example.",
        where=layer.spec if grows else repr(layer.layer),
        why="Every use makes a pair, and the pairs of all of them would be added up into one.",
        instead="two growing layers, Repeat(layer, n) for n of them, or one call on all the rows: "
        "a growing layer acts on the last axis of what it is given."
        if grows
        else "two layers with weights of their own, or a Dense called once on all the rows: under a "
        "jax.vmap inside the model, as of an equinox.nn.Linear over a sequence, they are many uses.",
    )
