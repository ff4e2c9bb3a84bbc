"""Minibatch training of a classifier, an epoch at a time: what the rows of the digits run share."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from ._data import Classification


class Epoch(NamedTuple):
    """What one pass over the training rows came to."""

    test_accuracy: float
    train_loss: float
    atoms: int | None = None


def cross_entropy(
    logits: Float[Array, "batch label"], labels: Int[Array, " batch"]
) -> Float[Array, ""]:
    r"""The mean cross-entropy of softmax predictions.

    $$-\frac1B \sum_b \log \mathrm{softmax}(z_b)_{\ell_b}$$

    with logits $z_b$ and label $\ell_b$ of row b.

    ??? example

        ```python
        >>> import jax.numpy as jnp
        >>> from memdsl.experiments import cross_entropy
        >>> print(cross_entropy(jnp.zeros((3, 2)), jnp.array([0, 1, 1])).round(4))
        0.6931

        ```
    """
    return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, labels))


class Perceptron(eqx.Module):
    r"""One hidden layer of ReLU: $y = W_2^\top \max(W_1^\top x + b_1, 0) + b_2$.

    $W_1 \sim \mathcal N(0, 2/d)$, $W_2 \sim \mathcal N(0, 1/h)$, biases 0. It takes one row; batch
    it with `jax.vmap`.
    """

    first: Float[Array, "input hidden"]
    first_bias: Float[Array, " hidden"]
    second: Float[Array, "hidden label"]
    second_bias: Float[Array, " label"]

    def __init__(self, inputs: int, hidden: int, labels: int, *, key: PRNGKeyArray):
        one, two = jax.random.split(key)
        self.first = jax.random.normal(one, (inputs, hidden), jnp.float32) * (2 / inputs) ** 0.5
        self.first_bias = jnp.zeros(hidden, jnp.float32)
        self.second = jax.random.normal(two, (hidden, labels), jnp.float32) / hidden**0.5
        self.second_bias = jnp.zeros(labels, jnp.float32)

    def __call__(self, x: Float[Array, " input"]) -> Float[Array, " label"]:
        return jax.nn.relu(x @ self.first + self.first_bias) @ self.second + self.second_bias


def minibatches(rng: np.random.Generator, rows: int, batch: int) -> Int[np.ndarray, "step batch"]:
    """Cuts shuffled row numbers into whole minibatches; rows left over wait for another epoch."""
    steps = rows // batch
    return rng.permutation(rows)[: steps * batch].reshape(steps, batch)


def accuracy(
    model: Callable, inputs: Float[Array, "row input"], labels: Int[Array, " row"]
) -> float:
    """The share of rows whose largest logit is the label's."""
    return int(_hits(model, inputs, labels)) / len(labels)


@eqx.filter_jit
def _hits(model: Callable, inputs: Array, labels: Array) -> Array:
    return jnp.sum(jnp.argmax(jax.vmap(model)(inputs), axis=1) == labels)


def train_perceptron(
    data: Classification,
    optimiser: optax.GradientTransformation,
    *,
    hidden: int,
    epochs: int,
    batch: int,
    seed: int,
) -> Iterator[Epoch]:
    r"""Trains a `Perceptron` by minibatch cross-entropy.

    Its inputs are the rows of `data` times $\sqrt d$, so that a row of unit norm has entries of
    about unit size.

    **Arguments:**

    - `data`: rows to train and to test on.
    - `optimiser`: any optax transformation.
    - `hidden`: the width of the hidden layer.
    - `epochs`: passes over the training rows, each in a new order.
    - `batch`: rows in a step.
    - `seed`: of the initial weights and of the orders.

    **Returns:**

    An iterator that trains one epoch for each item it is asked for.
    """
    scale = data.train_inputs.shape[1] ** 0.5
    train_inputs, test_inputs = (jnp.asarray(x * scale) for x in (data[0], data[2]))
    train_labels, test_labels = jnp.asarray(data.train_labels), jnp.asarray(data.test_labels)
    labels = int(data.train_labels.max()) + 1
    model = Perceptron(train_inputs.shape[1], hidden, labels, key=jax.random.key(seed))
    state = optimiser.init(eqx.filter(model, eqx.is_array))

    def loss_of(model, x, y):
        return cross_entropy(jax.vmap(model)(x), y)

    @eqx.filter_jit
    def epoch(model, state, order):
        weights, rest = eqx.partition(model, eqx.is_array)

        def step(carry, rows):
            weights, state = carry
            model = eqx.combine(weights, rest)
            loss, gradient = eqx.filter_value_and_grad(loss_of)(
                model, train_inputs[rows], train_labels[rows]
            )
            updates, state = optimiser.update(gradient, state, weights)
            return (eqx.apply_updates(weights, updates), state), loss

        (weights, state), losses = jax.lax.scan(step, (weights, state), order)
        return eqx.combine(weights, rest), state, jnp.mean(losses)

    rng = np.random.default_rng(seed)
    for _ in range(epochs):
        order = jnp.asarray(minibatches(rng, len(train_inputs), batch))
        model, state, loss = epoch(model, state, order)
        yield Epoch(accuracy(model, test_inputs, test_labels), float(loss))
