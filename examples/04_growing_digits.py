"""A layer that grows while it learns: handwritten digits in a few passes over 898 images.

The layer answers with a memory, and the memory is written by the backward pass: every image becomes
an atom, at the image, with minus the derivative of the loss there. No weight is trained.

    python examples/04_growing_digits.py
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.datasets import load_digits

import memdsl as md


EPOCHS, BATCH = 5, 25

# The first half trains and the second half tests: other writers, as the data set is in their order.
images, labels = load_digits(return_X_y=True)
images = images / 16 - (images[:898] / 16).mean(0)
images = jnp.asarray(images / np.linalg.norm(images, axis=1, keepdims=True), jnp.float32)
labels = jnp.asarray(labels)
test_images, test_labels = images[898:], labels[898:]

atoms = md.Memory(
    md.RBF(scale=0.43),  # 0.3 of the median distance of two images
    md.Hebb(rate=100.0),  # the mean over a batch is in the derivative, so 4 an image
    md.Novelty(0.0),  # an image that was seen before does not become a second atom …
    md.Budget(898, merge=md.AddToNearest()),  # … but adds to the one that is there
)
# Underneath is a linear layer of zeros that is not trained, so that all there is has been grown.
spec = md.Grown(md.Dense(10, start="zeros", trainable=False), atoms)
model = md.build(spec, md.Dims(model=64), key=jax.random.key(0))


def cross_entropy(logits, labels):
    return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, labels))


@eqx.filter_jit
def epoch(model, order):
    arrays, static = eqx.partition(model, eqx.is_array)

    def step(arrays, rows):
        model = eqx.combine(arrays, static)
        # One ordinary backward pass gives the loss, the gradients of weights, if there are any …
        loss, _, pairs = md.grow.backward(cross_entropy, model, images[rows], labels[rows])
        # … and a pair (input, derivative) an image: what the memory grows by.
        return eqx.filter(md.grow.write(model, pairs), eqx.is_array), loss

    arrays, losses = jax.lax.scan(step, arrays, order)
    return eqx.combine(arrays, static), jnp.mean(losses)


@eqx.filter_jit
def accuracy(model):
    return jnp.mean(jnp.argmax(jax.vmap(model)(test_images), axis=1) == test_labels)


print("epoch   loss while training   test accuracy   atoms   merged")
shuffle = np.random.default_rng(0)
for number in range(1, EPOCHS + 1):
    order = shuffle.permutation(898)[: 898 // BATCH * BATCH].reshape(-1, BATCH)
    model, loss = epoch(model, jnp.asarray(order))
    counts = model.state.counts
    row = f"{number:5}{loss:22.4f}{accuracy(model):16.4f}"
    print(f"{row}{counts.admitted:8}{counts.merged:9}")
