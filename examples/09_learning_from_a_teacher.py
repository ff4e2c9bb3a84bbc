"""A growing layer learns from every example once, and says itself how far it may step.

A random network answers 4096 random inputs. A layer that grows an RBF memory and a perceptron under
AdamW each see every one of them once, in the same batches; both are tested as they go. Then the same
memory with a few atoms, which Adam trains.

    python examples/09_learning_from_a_teacher.py
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

import memdsl as md


ROWS, TESTS, BATCH, STRETCH = 4096, 1000, 32, 1024

# A teacher: 16 numbers on the unit sphere, 32 hidden units, 4 answers of unit variance.
keys = jax.random.split(jax.random.key(0), 4)
inputs = jax.random.normal(keys[0], (ROWS + TESTS, 16))
inputs = inputs / jnp.linalg.norm(inputs, axis=1, keepdims=True)
first, bias = jax.random.normal(keys[1], (16, 32)), 0.5 * jax.random.normal(keys[2], (32,))
answers = jnp.tanh(inputs @ first + bias) @ jax.random.normal(keys[3], (32, 4))
answers = (answers - answers.mean(0)) / answers.std(0)


def half_square(predictions, targets):
    return 0.5 * jnp.mean(jnp.sum((predictions - targets) ** 2, axis=-1))


# How wide: .4 of the median distance of two inputs. How far: .8 of what is stable, by the first batch.
atoms = md.Memory(md.RBF.median(inputs[:256], 0.4), md.Hebb(1.0), capacity=md.Budget(ROWS))
nothing = md.Dense(4, start="zeros", trainable=False)
model = md.build(md.Grown(nothing, atoms), md.Dims(model=16), key=jax.random.key(1))
rates = md.grow.suggest_rate(half_square, model, inputs[:BATCH], answers[:BATCH])
rate = 0.8 * rates.bound[0]
print(f"stable below a rate of {rates.bound[0]:.1f}, taken {rate:.1f}")

# Far inputs become atoms, and near ones train the atoms that there are.
few = atoms.replace(write=md.Hebb(rate), gate=md.Novelty(1.0), capacity=md.Budget(200))
perceptron = md.Dense(64, gain=32**0.5) >> md.Relu() >> md.Dense(4)
LEARNERS = {
    "growing": (md.Grown(nothing, atoms.replace(write=md.Hebb(rate))), optax.sgd(0.0)),
    "few atoms, Adam": (md.Grown(nothing, few, trainable=True), optax.adam(0.005)),
    "perceptron, AdamW": (perceptron, optax.adamw(0.01, weight_decay=0.1)),
}


@eqx.filter_jit
def learn(model, moments, optimiser, batches):
    """One pass over some batches: the optimiser trains, and what grows is written."""
    arrays, static = eqx.partition(model, eqx.is_array)

    def step(carry, batch):
        arrays, moments = carry
        model = eqx.combine(arrays, static)
        loss, gradients, pairs = md.grow.backward(half_square, model, *batch)
        parameters = md.grow.parameters(model)
        updates, moments = optimiser.update(gradients, moments, parameters, model=model)
        model = md.grow.write(eqx.apply_updates(model, updates), pairs)
        return (eqx.filter(model, eqx.is_array), moments), loss

    (arrays, moments), _ = jax.lax.scan(step, (arrays, moments), batches)
    return eqx.combine(arrays, static), moments


@eqx.filter_jit
def error(model):
    return jnp.mean((jax.vmap(model)(inputs[ROWS:]) - answers[ROWS:]) ** 2)


print(
    f"{'error after':18}", *(f"{rows:6}" for rows in range(STRETCH, ROWS + 1, STRETCH)), "  atoms"
)
for name, (spec, optimiser) in LEARNERS.items():
    model = md.build(spec, md.Dims(model=16), key=jax.random.key(2))
    optimiser = md.grow.slotwise(optimiser)
    moments, reached = optimiser.init(md.grow.parameters(model)), []
    for start in range(0, ROWS, STRETCH):
        rows = slice(start, start + STRETCH)
        batches = inputs[rows].reshape(-1, BATCH, 16), answers[rows].reshape(-1, BATCH, 4)
        model, moments = learn(model, moments, optimiser, batches)
        reached.append(error(model))
    held = [int(layer.state.valid.sum()) for layer in md.grow.growing(model)]
    print(f"{name:18}", *(f"{x:6.3f}" for x in reached), *(f"{count:7}" for count in held))
