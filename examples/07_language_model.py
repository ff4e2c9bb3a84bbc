"""A language model of characters: a hybrid stack, trained on Python's own documentation, that writes.

A gated delta memory remembers what is old in a matrix, a sliding window what is recent in atoms. The
state that generation carries does not grow with what it has read. By default it learns for a minute;
`memdsl run lm` trains one for longer, beside n-grams.

    python examples/07_language_model.py --steps 300
"""

from dataclasses import dataclass
from math import log

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import tyro

import memdsl as md
from memdsl.experiments import python_documentation


@dataclass(frozen=True)
class Settings:
    """How long it learns, and what it writes."""

    steps: int = 60
    """Training steps, each on 16 windows of 96 characters."""
    prompt: str = "The :keyword:`for` statement "
    """What the model goes on from."""
    temperature: float = 0.6
    """0 takes the likeliest character, 1 draws as often as the model believes."""
    write: int = 160
    """How many characters."""


def block(memory: md.AbstractMemory) -> md.AbstractLayer:
    mixer = md.Layer(memory, heads=2, convolution=4, activation="silu", output_gate="silu")
    return md.Residual(md.Norm() >> mixer) >> md.Residual(md.Norm() >> md.Mlp(2))


def main(settings: Settings) -> None:
    text = python_documentation()
    pattern = block(md.zoo.gated_delta_net()) >> block(md.zoo.sliding_window())
    spec = md.Embed(len(text.alphabet)) >> md.Repeat(pattern, 2) >> md.Norm() >> md.Unembed()
    model = md.build(spec, md.Dims(model=64), key=jax.random.key(0))
    optimiser = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(5e-3, b2=0.98))
    state = optimiser.init(eqx.filter(model, eqx.is_inexact_array))

    def loss_of(model, windows):
        logits = jax.vmap(model)(windows[:, :-1])
        loss = optax.softmax_cross_entropy_with_integer_labels(logits, windows[:, 1:])
        return jnp.mean(loss)

    @eqx.filter_jit
    def step(model, state, windows):
        loss, gradient = eqx.filter_value_and_grad(loss_of)(model, windows)
        weights = eqx.filter(model, eqx.is_inexact_array)
        updates, state = optimiser.update(gradient, state, weights)
        return eqx.apply_updates(model, updates), state, loss

    rng, losses = np.random.default_rng(0), []
    for number in range(1, settings.steps + 1):
        starts = rng.integers(0, len(text.train) - 97, 16)
        windows = text.train[starts[:, None] + np.arange(97)]
        model, state, loss = step(model, state, jnp.asarray(windows))
        losses.append(float(loss) / log(2))
        if number % (settings.steps // 3 or 1) == 0:
            print(f"step {number:4}   {np.mean(losses[-20:]):.2f} bits a character of training")

    test = jnp.asarray(text.test[: 97 * 64].reshape(64, 97))
    bits = float(eqx.filter_jit(loss_of)(model, test)) / log(2)
    print(f"{bits:.2f} bits a character of a part of the last tenth of the text\n")

    prompt = jnp.asarray(text.encode(settings.prompt))
    print(settings.prompt, end="", flush=True)
    drawn = md.stream(
        model,
        prompt,
        steps=settings.write,
        key=jax.random.key(1),
        temperature=settings.temperature,
        top_k=20,
    )
    for token in drawn:
        print(text.alphabet[token], end="", flush=True)
    print()


if __name__ == "__main__":
    main(tyro.cli(Settings))
