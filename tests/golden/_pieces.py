"""What stands around a memory: features, decays read off the input, convolutions and norms."""

from functools import partial
from types import SimpleNamespace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

import memdsl as md
from memdsl.nn._convolution import convolve
from memdsl.nn._numbers import evaluate_numbers
from memdsl.spec._slots import ground

from ._case import Case, Outputs
from ._run import Runner


class SignedDpfp(md.AbstractFeature):
    """`Dpfp`, but the second half of r is -relu(x), as in the file's origin."""

    order: int

    def __call__(self, x: Array) -> Array:
        half = jax.nn.relu(x)
        r = jnp.concatenate([half, -half])
        return jnp.concatenate([r * jnp.roll(r, j) for j in range(1, self.order + 1)])


class Affine(md.AbstractFeature):
    """`W x + b`."""

    weight: Any = md.Weight()
    bias: Any = md.Weight(vector=True)

    def __call__(self, x: Array) -> Array:
        return self.weight @ x + self.bias


def feature_maps(x: SimpleNamespace, c: SimpleNamespace, run: Runner) -> Outputs:
    size = x.x.shape[-1]

    def over(feature: md.AbstractFeature, **weights: Array) -> Array:
        function = ground(feature, {name.replace("__", "."): w for name, w in weights.items()})
        return jax.vmap(jax.vmap(jax.vmap(function)))(x.x)

    one, two = partial(over, weight=x.W1, bias=x.b1), partial(over, weight=x.W2, bias=x.b2)
    return {
        "hedgehog": one(md.Hedgehog()),
        "t2r": over(md.Linear(size) >> md.Relu(), first__weight=x.W1),
        "dpfp_nu4": over(SignedDpfp(4)),
        "hadamard": one(Affine()) * two(Affine()),
        "taylor": over(md.Taylor()),
        "rebased": _rebased(x, size),
    }


def _rebased(x: SimpleNamespace, size: int) -> Array:
    """The features of a square of the dot product, on vectors that were normed."""
    centred = x.x - jnp.mean(x.x, -1, keepdims=True)
    normed = centred * jax.lax.rsqrt(jnp.mean(centred**2, -1, keepdims=True) + 1e-5)
    kernel = md.Polynomial(2, offset=0.0).pullback(md.Scale(size**-0.25))
    z = normed * _like(x.gamma, normed) + _like(x.beta, normed)
    features = jax.vmap(jax.vmap(jax.vmap(kernel.features)))(z)
    # squares first, then the products, as the file has them; those with the offset are 0
    rows, columns = np.triu_indices(size + 1)
    square = np.flatnonzero((rows == columns) & (rows < size))
    product = np.flatnonzero((rows < columns) & (columns < size))
    return features[..., np.concatenate([square, product])]


def _like(array: Array, wanted: Array) -> Array:
    return jnp.broadcast_to(array, wanted.shape)


def gates(x: SimpleNamespace, c: SimpleNamespace, run: Runner) -> Outputs:
    """The decay that `FromInput("dt")` reads off an input, its projection being the identity."""
    heads = len(x.A_log)

    def read_off(gate: md.AbstractGate, a: Array, bias: Array) -> Array:
        memory = md.Memory(md.Dot(), md.Hebb(), gate)
        flat = a.reshape(*a.shape[:2], -1)
        parameters = {"gate.decay": (((jnp.eye(len(bias), dtype=a.dtype),), bias, x.A_log),)}

        def one(row: Array) -> Array:
            steps = jnp.arange(len(row))
            numbers = evaluate_numbers(memory, parameters, row, heads, steps, a.dtype)[1]
            return jnp.moveaxis(numbers["gate.decay"].log, 0, 1)

        return jax.vmap(one)(flat)

    per_key = md.DiagonalDecay(md.FromInput("dt", per="key_channel"))
    bias = x.dt_bias_kda.reshape(heads, -1)
    scaled = jnp.exp(x.A_log)[None, None, :, None] * (x.a_kda + bias[None, None])
    return {
        "g_kda": read_off(per_key, x.a_kda, x.dt_bias_kda),
        "g_kda_lb": c.lower_bound * jax.nn.sigmoid(scaled),
        "g_gdn": read_off(md.Decay(md.FromInput("dt")), x.a_gdn, x.dt_bias_gdn),
    }


def modules(x: SimpleNamespace, c: SimpleNamespace, run: Runner) -> Outputs:
    zero = jnp.zeros_like(x.x[0, :1])
    shift = jnp.broadcast_to(jnp.asarray([1.0, -1.0], zero.dtype), (x.x.shape[-1], 2))
    shifted, _ = jax.vmap(lambda row: convolve(row, shift, zero))(x.x)
    tail = jnp.swapaxes(x.conv_state, 1, 2)
    convolved, tail = jax.vmap(lambda row, t: convolve(row, x.conv_weight, t))(x.x, tail)
    norm = md.build(md.Norm(epsilon=c.eps), md.Dims(model=x.x.shape[-1]), key=jax.random.key(0))
    norm = eqx.tree_at(lambda n: n.gain, norm, x.norm_weight)
    gate = jax.nn.silu(x.gate)
    return {
        "token_shift_delta": shifted,
        "conv": jax.nn.silu(convolved + _like(x.conv_bias, convolved)),
        "conv_state": jnp.swapaxes(tail, 1, 2),
        "rmsnorm_gated_after": jax.vmap(norm)(x.x) * gate,
        "rmsnorm_gated_before": jax.vmap(norm)(x.x * gate),
        "rwkv7_k": x.k * (1 + (x.a - 1) * _like(x.k_a, x.a)),
        "rwkv7_out": (x.o + _own_pair(x, run).reshape(x.o.shape)) * x.gate,
    }


def _own_pair(x: SimpleNamespace, run: Runner) -> Array:
    """`((r_k kh) . r) v`: all that a memory with a bonus answers if every token is a new start."""
    read = md.Before(bonus=md.Learned(per="key_channel"))
    memory = md.Memory(md.Dot(), md.Hebb(), md.Reset(), read=read)
    starts = jnp.ones(x.v.shape[:3], bool)
    return run(memory, x.kh, x.v, x.rr, constants={"bonus": x.r_k}, starts=starts)[0]


CASES: dict[str, Case] = {"feature_maps": feature_maps, "gates": gates, "modules": modules}
NOTES = {
    "feature_maps": "dpfp_nu4 by a feature of its own (second half -relu(x), ours relu(-x)), "
    "and hadamard",
    "gates": "g_kda_lb, which is bounded below, is no number of the algebra and is written out",
    "modules": "rwkv7_k is written out",
}
