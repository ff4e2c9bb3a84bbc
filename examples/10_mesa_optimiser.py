"""An optimiser that comes out of a memory trains a plain Equinox network: a few epochs of digits."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.datasets import load_digits

import memdsl as md


images, labels = load_digits(return_X_y=True)  # the first half trains, the second half tests
images, labels = jnp.asarray(images / 16, jnp.float32), jnp.asarray(labels)
batches = np.random.default_rng(0).permutation(898)[:875].reshape(-1, 25)
model = md.optim.capture(eqx.nn.MLP(64, 10, 64, 2, key=jax.random.key(0)), images)
ridge = md.Memory(md.Dot(), md.Ridge(1.0), md.Decay(0.95))
mesa = md.optim.dual(ridge, 0.3, ridge="relative", average=True)


def cross_entropy(logits, labels):
    return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, labels))


@eqx.filter_jit
def step(optimiser, model, state, x, y):
    _, gradients, grams = md.optim.backward(cross_entropy, model, x, y)
    weights = eqx.filter(model, eqx.is_inexact_array)
    updates, state = optimiser.update(gradients, state, weights, grams=grams)
    return eqx.apply_updates(model, updates), state


for name, optimiser in {"AdamW": optax.chain(optax.adamw(1e-2)), "mesa": mesa}.items():
    trained, state = model, optimiser.init(eqx.filter(model, eqx.is_inexact_array))
    for epoch in range(1, 4):
        for rows in batches:
            trained, state = step(optimiser, trained, state, images[rows], labels[rows])
        right = jnp.mean(jnp.argmax(jax.vmap(trained)(images[898:]), 1) == labels[898:])
        print(f"{name:6} epoch {epoch}: {float(right):.3f} of the test images are right")
