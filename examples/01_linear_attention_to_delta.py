"""From linear attention to the delta rule, and on to a kernel without features, one word at a time.

A stream names six keys again and again, each time with a new value. What a memory is worth shows in
what it answers at the end: the latest value of every key, or a blur of all of them?

    python examples/01_linear_attention_to_delta.py
"""

import jax
import jax.numpy as jnp

import memdsl as md


def stream(key, names=6, rounds=4, size=8):
    """Six unit keys, each written four times; the last value counts."""
    one, two = jax.random.split(key)
    keys = jax.random.normal(one, (names, size))
    keys = keys / jnp.linalg.norm(keys, axis=-1, keepdims=True)
    values = jax.random.normal(two, (rounds, names, size))
    return keys, jnp.tile(keys, (rounds, 1)), values.reshape(-1, size), values[-1]


names, keys, values, latest = stream(jax.random.key(0))
TIME, SIZE = keys.shape

# A memory is five words: kernel, write, gate, capacity, read. What is not said has a default.
linear_attention = md.Memory(md.Dot().pullback(md.EluPlusOne()), md.Hebb(), read=md.Normalised())

# Hebb adds what it is given. Delta first asks what the memory already says, and adds the difference.
delta_rule = md.Memory(md.Dot(), md.Delta(rate=1.0))

# The same sentence with another kernel. RBF has no finite features, so its atoms are kept.
kernel_delta = delta_rule.replace(kernel=md.RBF(scale=0.5))

memories = {
    "linear attention": linear_attention,
    "delta rule": delta_rule,
    "softmax attention": md.Memory(md.Exp(4.0 * md.Dot()), md.Hebb(), read=md.Normalised()),
    "kernel delta rule": kernel_delta,
}

sizes = md.Dims(key=SIZE, value=SIZE, time=TIME)
print("error of what is recalled (1 would be the error of answering 0), and how it ran\n")
for name, memory in memories.items():
    state = md.empty(memory, SIZE, SIZE, capacity=TIME)
    state, answers = md.run(memory, state, keys, values, keys)
    recalled = md.evaluate(memory, state, names)
    error = jnp.mean((recalled - latest) ** 2) / jnp.mean(latest**2)
    print(f"  {name:20}{error:6.3f}   {md.plan(memory, sizes).name}")

# Whatever the plan, the answers are those of the definition: every atom kept, in slow plain Python.
meant = md.denote(delta_rule, keys, values, keys)
print("\nplans of the delta rule, and how far their answers are from the definition\n")
for name in ("matrix / recurrent", "matrix / chunkwise (16)", "buffer / chunkwise (32)"):
    state = md.empty(delta_rule, SIZE, SIZE, capacity=TIME, using=name)
    _, answers = md.run(delta_rule, state, keys, values, keys, using=name)
    print(f"  {name:25}{jnp.max(jnp.abs(answers - meant)):.1e}")

# A page says what the memory means, how it will run at a size, and why not otherwise.
print(
    "\n" + md.explain(delta_rule, md.Dims(key=64, value=64, heads=8, time=4096), name="delta rule")
)

# What has no meaning is refused before any array exists, with what to write instead.
try:
    kernel_delta.replace(gate=md.DiagonalDecay(0.9))
except md.SpecError as error:
    print(f"\n{error}")
