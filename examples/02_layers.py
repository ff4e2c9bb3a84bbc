"""Layers: a memory with projections and heads, whole or token by token, saved, and in a stack.

python examples/02_layers.py
"""

import tempfile
from functools import partial
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp

import memdsl as md


# One head's memory. What stands as FromInput is read off every token, by weights that are trained.
memory = md.Memory(
    md.Dot().pullback(md.Silu() >> md.L2Norm()),
    md.Delta(rate=md.FromInput("sigmoid")),
    md.Decay(md.FromInput("sigmoid", bias=4.0)),
)

# A layer says how the memory sits in a network; sizes come only when it is built.
spec = md.Layer(memory, heads=2, convolution=4, output_gate="silu")
layer = md.build(spec, md.Dims(model=32), key=jax.random.key(0))

# A whole sequence is what training sees; token by token is what generation sees. They are one thing.
x = jax.random.normal(jax.random.key(1), (12, 32))
whole = layer(x)
state, some = layer.prefill(x[:8])
step = eqx.filter_jit(layer.step)
for token in x[8:]:
    state, y = step(state, token)
    some = jnp.concatenate([some, y[None]])
print(f"whole against prefill and steps: {jnp.max(jnp.abs(whole - some)):.1e}")

# A file is one line of JSON (the spec and the sizes) and the arrays: loading needs nothing else.
with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "layer.memdsl"
    md.save(path, layer)
    again = md.load(path)
print(
    f"saved and loaded: same spec {again.spec == spec}, same answers {jnp.all(again(x) == whole)}"
)


# Layers are joined with >>. This stack is a hybrid: a matrix for what is old, a window for the rest.
def block(memory):
    mixed = md.Residual(md.Norm() >> md.Layer(memory, heads=2, convolution=4))
    return mixed >> md.Residual(md.Norm() >> md.Mlp(2))


softmax = md.Memory(md.Exp(md.InverseRoot("key") * md.Dot()), read=md.Normalised())
window = softmax.replace(capacity=md.Window(16, sinks=2))


def language_model(*memories):
    pattern = block(memories[0])
    for other in memories[1:]:
        pattern = pattern >> block(other)
    spec = md.Embed(64) >> md.Repeat(pattern, 4) >> md.Norm() >> md.Unembed()
    return md.build(spec, md.Dims(model=32), key=jax.random.key(2))


# Four times the pattern is one scan, so that it takes as long to compile as one.
model = language_model(memory, window)
tokens = jax.random.randint(jax.random.key(3), (24,), 0, 64)
logits = model(tokens)
size = sum(x.size for x in jax.tree.leaves(eqx.filter(model, eqx.is_array)))
print(f"\na hybrid of {size} parameters maps {tokens.shape} tokens to logits {logits.shape}")

# What it has to keep while it generates does not grow with what it has read.
print("\nkilobytes of state after    64   1024   16384 tokens")
for name, stack in {"hybrid": model, "softmax attention": language_model(softmax)}.items():
    states = [jax.eval_shape(partial(stack.init, length)) for length in (64, 1024, 16384)]
    kilobytes = [sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(s)) / 1e3 for s in states]
    print(f"  {name:20}" + "".join(f"{k:8.0f}" for k in kilobytes))
