"""Published layers: their specs, with the parameters of the files in them by name."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

import memdsl as md
from memdsl.nn._names import parameter_names, with_parameters

from ._case import Case, Outputs
from ._run import Runner


L = md.zoo.layers
Constants = SimpleNamespace
LAYERS: dict[str, Callable[[Constants], md.Tied]] = {
    "linear_attn": lambda c: L.linear_attention(c.hidden_size, c.num_heads),
    "retnet": lambda c: L.retnet(c.hidden_size, c.num_heads, c.expand_v),
    "gla": lambda c: L.gla(c.hidden_size, c.num_heads, c.expand_k, gate_rank=c.gate_low_rank_dim),
    "simple_gla": lambda c: L.simple_gla(c.hidden_size, c.num_heads),
    "hgrn": lambda c: L.hgrn(c.hidden_size, lower_bound=0.5),
    "hgrn2": lambda c: L.hgrn2(c.hidden_size, c.expand_ratio, lower_bound=0.5),
    "gsa": lambda c: L.gated_slot_attention(c.hidden_size, c.num_heads, c.num_slots),
    "forgetting_attn": lambda c: L.forgetting_attention(c.hidden_size, c.num_heads),
    "path_attn": lambda c: L.path_attention(
        c.hidden_size, c.num_heads, qk_norm=c.use_qk_norm, forget=c.use_forget_gate
    ),
    "delta_net": lambda c: L.delta_net(c.hidden_size, c.num_heads),
    "gated_deltanet": lambda c: L.gated_delta_net(
        c.hidden_size, c.num_heads, c.head_dim, c.expand_v
    ),
    "kda": lambda c: L.kimi_delta_attention(c.hidden_size, c.num_heads, c.head_dim),
    "gdn2": lambda c: L.gated_delta_net2(c.hidden_size, c.num_heads, c.head_dim),
    "gated_deltaproduct": lambda c: L.gated_delta_product(
        c.hidden_size, c.num_heads, c.head_dim, c.expand_v, c.num_householder, c.allow_neg_eigval
    ),
    "comba": lambda c: L.comba(c.hidden_size, c.num_heads, c.head_dim, c.expand_v),
    "mesa_net": lambda c: L.mesa_net(c.hidden_size, c.num_heads, c.head_dim),
    "mamba": lambda c: L.mamba(c.hidden_size, c.intermediate_size, c.state_size, c.dt_rank),
    "mamba2": lambda c: L.mamba2(c.hidden_size, c.head_dim, c.state_size),
    "rwkv6": lambda c: L.rwkv6(
        c.hidden_size, c.num_heads, rank=c.proj_low_rank_dim, gate_rank=c.gate_low_rank_dim
    ),
    "rwkv7": lambda c: L.rwkv7(
        c.hidden_size,
        c.head_dim,
        (c.decay_low_rank_dim, c.a_low_rank_dim, c.v_low_rank_dim, c.gate_low_rank_dim),
        c.layer_idx,
        c.num_hidden_layers,
    ),
}


def parameters(x: SimpleNamespace) -> dict[str, Any]:
    """The parameters of a file, by the names that they were published with."""
    found = {name.removeprefix("p."): a for name, a in vars(x).items() if name.startswith("p.")}
    bound = getattr(x, "lower_bound", None)
    return found if bound is None else found | {"lower_bound": bound}


def given(x: SimpleNamespace) -> Array:
    """The input of a layer: x, and beside it what else the file has."""
    first = getattr(x, "v_first", None)
    return x.x if first is None else jnp.concatenate([x.x, first], axis=-1)


def layer_of(name: str, x: SimpleNamespace, c: Constants, dtype: Any) -> md.AbstractModule:
    """The layer of a file, with its parameters."""
    dims = md.Dims(model=given(x).shape[-1])
    layer = md.build(LAYERS[name](c), dims, key=jax.random.key(0), dtype=dtype)
    names, arrays, own = parameter_names(layer), jax.tree.leaves(layer), parameters(x)
    if set(own) != set(names) - {None}:
        raise KeyError(f"{name} has {sorted(own)}, the layer {sorted(set(names) - {None})}")
    filled = [
        None if n is None else own[n].reshape(a.shape) for n, a in zip(names, arrays, strict=True)
    ]
    return with_parameters(layer, filled)


def _case(name: str) -> Case:
    def case(x: SimpleNamespace, c: SimpleNamespace, run: Runner) -> Outputs:
        return {"o": jax.vmap(layer_of(name, x, c, run.dtype))(given(x))}

    return case


CASES: dict[str, Case] = {f"layer_{name}": _case(name) for name in LAYERS}
REASONS: dict[str, str] = {}
NOTES = {
    "layer_hgrn": "lambda is given, and trained here as a vector of the layer",
    "layer_hgrn2": "lambda is given, and trained here as a vector of the layer",
    "layer_rwkv7": "the values of the first layer come in beside x",
}
