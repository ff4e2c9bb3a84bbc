"""Memories that descend a loss of their own: a loss is one class with one method, written here."""

from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array

import memdsl as md

from ._case import Case, Outputs, PER_HEAD
from ._function import Function
from ._run import Runner


class Normed(md.AbstractLoss):
    """Squared error of the prediction after a layer norm with a weight and a bias."""

    weight: Any = md.Learned(1.0, per="value_channel")
    bias: Any = md.Learned(0.0, per="value_channel")
    epsilon: float = 1e-6

    def parts(self, prediction: Array, target: Array) -> tuple[Array, Array, Array]:
        """The error, the normed prediction, and the deviation that it was divided by."""
        normed, deviation = standardised(prediction, self.epsilon)
        return self.weight * (self.weight * normed + self.bias - target), normed, deviation

    def gradient(self, prediction: Array, target: Array) -> Array:
        error, normed, deviation = self.parts(prediction, target)
        return (error - jnp.mean(error) - normed * jnp.mean(error * normed)) / deviation


class TitansNormed(md.AbstractLoss):
    """As `Normed`, with the gradient that the file's origin uses in its place."""

    normed: Normed = Normed()

    def gradient(self, prediction: Array, target: Array) -> Array:
        error, normed, deviation = self.normed.parts(prediction, target)
        rest = jnp.mean(error) + normed * jnp.mean(error * normed)
        return len(error) * error - rest / deviation


def standardised(y: Array, epsilon: float) -> tuple[Array, Array]:
    """The layer norm of y without weight or bias, and the deviation that it is divided by."""
    centred = y - jnp.mean(y, -1, keepdims=True)
    deviation = jnp.sqrt(jnp.mean(centred**2, -1, keepdims=True) + epsilon)
    return centred / deviation, deviation


def answered(z: Array, x: SimpleNamespace, c: SimpleNamespace) -> Array:
    """What both layers make of what the memory answers."""
    return z + x.w[None, None] * standardised(z, c.eps)[0] + x.b[None, None]


def titans(x: SimpleNamespace, c: SimpleNamespace, run: Runner) -> Outputs:
    write = md.Descent(
        TitansNormed(Normed(epsilon=c.eps)), PER_HEAD, momentum=PER_HEAD, recall="previous"
    )
    z, final = run(
        md.Memory(md.Dot(), write, md.Decay(PER_HEAD)), x.k, x.v - x.k, x.q,
        initial=Function(x.initial_state), constants={"weight": x.w, "bias": x.b},
        rate=2 * x.theta[..., 0], momentum=x.eta[..., 0], log_decay=jnp.log1p(-x.alpha[..., 0]),
    )  # fmt: skip
    return {"o": answered(z, x, c), "state": final.matrix}


def ttt(x: SimpleNamespace, c: SimpleNamespace, run: Runner) -> Outputs:
    # a bias is the row of a key's last channel, which is always 1
    def with_one(keys: Array) -> Array:
        return jnp.concatenate([keys, jnp.ones_like(keys[..., :1])], -1)

    memory = md.Memory(md.Dot(), md.Descent(Normed(epsilon=c.eps), PER_HEAD))
    initial = Function(jnp.concatenate([x.initial_state, x.initial_bias], -2))
    z, final = run(
        memory, with_one(x.k), x.v - x.k, with_one(c.scale * x.q),
        initial=initial, rate=x.eta[..., 0], constants={"weight": x.w, "bias": x.b},
    )  # fmt: skip
    matrix = final.matrix
    state, bias = matrix[..., :-1, :], matrix[..., -1:, :]
    return {"o": answered(z, x, c), "state": state, "state_bias": bias}


CASES: dict[str, Case] = {"titans_linear_cs1": titans, "ttt_linear_mb1": ttt}
