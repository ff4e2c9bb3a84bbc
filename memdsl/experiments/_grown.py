"""The growing layer of the digits run: no weights, one RBF memory that the backward pass writes."""

from collections.abc import Iterator
from typing import cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import memdsl as md

from ..state import BufferState
from ._classify import accuracy, cross_entropy, Epoch, minibatches
from ._data import Classification


def layer_spec(data: Classification, *, rate: float, bandwidth: float) -> md.AbstractLayer:
    r"""One growing layer from pixels to logits, which starts as the zero function.

    $$f(x) = \sum_i \exp\left(-\tfrac{\lVert x_i - x\rVert^2}{2\sigma^2}\right) c_i, \qquad
      c_i \leftarrow c_i - \eta \, \frac{\partial L}{\partial f(x_i)}$$

    with $\sigma$ = `bandwidth` times the median distance of the training rows, $\eta$ = `rate`, and
    L the mean loss of a batch. A row seen again is added to its own atom, which is exact, so the
    memory never holds more atoms than there are different training rows.

    **Arguments:**

    - `data`: its training rows give the width and the room.
    - `rate`: $\eta$.
    - `bandwidth`: $\sigma$, as a share of the median distance.
    """
    memory = md.Memory(
        md.RBF.median(data.train_inputs, bandwidth, most=len(data.train_inputs)),
        md.Hebb(rate=rate),
        gate=md.Novelty(0.0),
        capacity=md.Budget(len(data.train_inputs), merge=md.AddToNearest()),
    )
    labels = int(data.train_labels.max()) + 1
    nothing = md.Dense(labels, bias=False, start="zeros", trainable=False)
    return md.Grown(nothing, memory)


def _atoms(model: md.AbstractModule) -> int:
    (layer,) = md.grow.growing(model)
    return int(jnp.sum(cast(BufferState, layer.state).valid))


@eqx.filter_jit
def _step(model, inputs, labels):
    loss, _, pairs = md.grow.backward(cross_entropy, model, inputs, labels)
    return md.grow.write(model, pairs), loss


def grown_rbf(
    data: Classification, *, rate: float, bandwidth: float, epochs: int, batch: int, seed: int
) -> Iterator[Epoch]:
    """Grows the layer of `layer_spec` by minibatch cross-entropy.

    There is nothing to initialise and no optimiser: each step makes one backward pass, and writes
    the pairs (row, error signal) of its batch into the memory.

    **Arguments:**

    - `data`: rows to train and to test on.
    - `rate`, `bandwidth`: see `layer_spec`.
    - `epochs`: passes over the training rows, each in a new order.
    - `batch`: rows in a step.
    - `seed`: of the orders.

    **Returns:**

    An iterator that trains one epoch for each item it is asked for.
    """
    spec = layer_spec(data, rate=rate, bandwidth=bandwidth)
    width = data.train_inputs.shape[1]
    model = md.build(spec, md.Dims(model=width), key=jax.random.key(seed))
    inputs, labels, test_inputs, test_labels = map(jnp.asarray, data)

    rng = np.random.default_rng(seed)
    for _ in range(epochs):
        losses = []
        for rows in minibatches(rng, len(inputs), batch):
            model, loss = _step(model, inputs[rows], labels[rows])
            losses.append(loss)
        yield Epoch(
            accuracy(model, test_inputs, test_labels),
            float(np.mean(jax.device_get(losses))),
            _atoms(model),
        )
