"""Which training images made this prediction: a linear layer and a memory, each asked exactly.

A linear layer that was trained by gradient descent is a memory of its training examples: its weights
are sums over them. `md.grow.unroll` keeps that sum, whatever the optimiser adds to plain steps, and
`md.grow.attribute` says what every image adds to an answer. A kernel memory keeps its atoms anyway.

    python examples/08_attribution.py [where the picture goes]
"""

import sys
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.datasets import load_digits

import memdsl as md


EPOCHS, BATCH = 4, 25

# The first half trains and the second half tests: other writers, as the data set is in their order.
pictures, shown = load_digits().images, load_digits().target
images = pictures.reshape(-1, 64) / 16
images = images - images[:898].mean(0)
images = jnp.asarray(images / np.linalg.norm(images, axis=1, keepdims=True), jnp.float32)
labels = jnp.asarray(shown)
test_images, test_labels = images[898:], labels[898:]


def cross_entropy(logits, labels):
    return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, labels))


def batches():
    shuffle = np.random.default_rng(0)
    for _ in range(EPOCHS):
        yield from shuffle.permutation(898)[: 898 // BATCH * BATCH].reshape(-1, BATCH)


def show(name, found, answer, digit):
    """The five images that add most to the answer for a digit, and whether all of them add up."""
    found = found.examples()  # an image was seen once an epoch: its visits, added up
    print(f"\n{name}: {digit} has the logit {float(answer[digit]):.4f}")
    print("image   shows   weight   adds")
    best = found.top(5, output=digit)
    parts = np.asarray(best.contributions[:, digit])
    for example, weight, part in zip(best.ids, np.asarray(best.weights), parts, strict=True):
        print(f"{example:5}{shown[example]:8}{weight:9.3f}{part:7.3f}")
    others = f"{len(found.ids) - 5} others and the start"
    print(f"{others} add {float(best.rest[digit]):.3f}")
    error = float(jnp.max(jnp.abs(found.answer - answer)))
    print(f"all of them add up to what the layer answers, but for {error:.0e}")


# Clipping, momentum, weight decay and a schedule: each example still has one weight in the layer.
optimiser = optax.chain(
    optax.clip_by_global_norm(1.0),
    optax.add_decayed_weights(1e-3),
    optax.sgd(optax.cosine_decay_schedule(2.0, EPOCHS * (898 // BATCH)), momentum=0.9),
)
linear = md.build(md.Dense(10), md.Dims(model=64), key=jax.random.key(0))
record = md.grow.unroll(linear, optimiser)
for rows in batches():
    record, loss = record.step(cross_entropy, images[rows], labels[rows], ids=rows)

atoms = md.Memory(md.RBF(scale=0.43), md.Hebb(rate=100.0), capacity=md.Budget(EPOCHS * 898))
memory = md.build(
    md.Grown(md.Dense(10, start="zeros", trainable=False), atoms),
    md.Dims(model=64),
    key=jax.random.key(0),
)


@eqx.filter_jit
def grow(memory, rows):
    _, _, pairs = md.grow.backward(cross_entropy, memory, images[rows], labels[rows])
    return md.grow.write(memory, pairs)


for rows in batches():
    memory = grow(memory, rows)
born = np.concatenate(list(batches()))  # which image every atom is of: they are born in this order

start, steps = record.coefficients()
print(f"the start counts {start:.3f}; the first step {steps[0]:.3f}, the last {steps[-1]:.2e}")
dual = jnp.max(jnp.abs(record(test_images) - record.model(test_images)))
print(f"attention over {len(record.ids())} pairs is the linear layer, but for {float(dual):.0e}")
for name, model in (("linear layer", record.model), ("memory", memory)):
    right = jnp.mean(jnp.argmax(jax.vmap(model)(test_images), 1) == test_labels)
    print(f"{name}: {float(right):.3f} of the test images are right")

wrong = jnp.flatnonzero(jnp.argmax(record.model(test_images), 1) != test_labels)
row = int(wrong[0])  # the first that the linear layer gets wrong: why does it?
image = test_images[row]
digit = int(jnp.argmax(record.model(image)))
print(f"\ntest image {row} shows {int(test_labels[row])}, and the linear layer says {digit}")
found = md.grow.attribute(record, image)
show("linear layer", found, record.model(image), digit)
remembered = md.grow.attribute(memory, image, ids=born)
show("memory", remembered, memory(image), int(jnp.argmax(memory(image))))

path = Path(sys.argv[1] if len(sys.argv) > 1 else "attribution.png")
found.plot(pictures, output=digit).savefig(path, dpi=120)
print(f"\nthe images that made the linear layer's answer are in {path}")
