"""Memories that descend a loss after a layer norm, token by token and in minibatches."""

from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array

import memdsl as md

from ._case import Case, Outputs, PER_HEAD
from ._function import Function
from ._run import Runner


NORM = md.LayerNorm(md.Weight(vector=True, start="ones"), md.Weight(vector=True, start="zeros"))


class TitansNormed(md.AbstractLoss):
    """`Squared().after(norm)`, with the gradient that the file's origin has in its place: its first term
    is multiplied by the size, where it should be divided by the deviation."""

    norm: Any = NORM

    def gradient(self, prediction: Array, target: Array) -> Array:
        normed, deviation = standardised(prediction, self.norm.epsilon)
        error = self.norm.weight * (self.norm.weight * normed + self.norm.bias - target)
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
        TitansNormed(NORM.replace(epsilon=c.eps)), PER_HEAD, momentum=PER_HEAD, recall="previous",
        minibatch=c.chunk_size,
    )  # fmt: skip
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

    loss = md.Squared().after(NORM.replace(epsilon=c.eps))
    # what a minibatch has moved so far is multiplied by the rate of the token that reads it
    write = md.Descent(loss, rate=1.0, gain=PER_HEAD, minibatch=c.mini_batch_size)
    initial = Function(jnp.concatenate([x.initial_state, x.initial_bias], -2))
    z, final = run(
        md.Memory(md.Dot(), write), with_one(x.k), x.v - x.k, with_one(c.scale * x.q),
        initial=initial, gain=x.eta[..., 0], constants={"weight": x.w, "bias": x.b},
    )  # fmt: skip
    matrix = final.matrix
    state, bias = matrix[..., :-1, :], matrix[..., -1:, :]
    return {"o": answered(z, x, c), "state": state, "state_bias": bias}


CASES: dict[str, Case] = {
    "titans_linear_cs1": titans,
    "titans_linear_cs8": titans,
    "ttt_linear_mb1": ttt,
    "ttt_linear_mb16": ttt,
}
NOTES: dict[str, str] = {
    name: "the gradient is the origin's own, written as a loss: it is not that of the norm"
    for name in ("titans_linear_cs1", "titans_linear_cs8")
}
