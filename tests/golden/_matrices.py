"""Memories that are matrices, and the ridge problem."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp

import memdsl as md

from ._case import Case, operator, Outputs, PER_HEAD, PER_KEY, PER_VALUE
from ._function import Function
from ._run import Runner


def scaled(c: SimpleNamespace) -> md.Evaluate:
    return md.Evaluate(scale=c.scale)


def linear_attn(c: SimpleNamespace) -> md.Memory:
    return md.Memory(md.Dot(), md.Hebb(), read=scaled(c))


def simple_gla(c: SimpleNamespace) -> md.Memory:
    return linear_attn(c).replace(gate=md.Decay(PER_HEAD))


def gla(c: SimpleNamespace) -> md.Memory:
    return linear_attn(c).replace(gate=md.DiagonalDecay(PER_KEY))


def delta_rule(c: SimpleNamespace) -> md.Memory:
    return md.Memory(md.Dot(), md.Delta(PER_HEAD), read=scaled(c))


def gated_delta_rule(c: SimpleNamespace) -> md.Memory:
    return delta_rule(c).replace(gate=md.Decay(PER_HEAD))


def kda(c: SimpleNamespace) -> md.Memory:
    return delta_rule(c).replace(gate=md.DiagonalDecay(PER_KEY))


def comba(c: SimpleNamespace) -> md.Memory:
    return gated_delta_rule(c).replace(write=md.Delta(PER_HEAD, recall="previous", erase="own"))


def comba_decayed_read(c: SimpleNamespace) -> md.Memory:
    return gated_delta_rule(c).replace(write=md.Delta(PER_HEAD, erase="own"))


def gdn2(c: SimpleNamespace) -> md.Memory:
    return kda(c).replace(write=md.Delta(1.0, erase_gate=PER_KEY, write_gate=PER_VALUE))


def iplr(c: SimpleNamespace) -> md.Memory:
    return linear_attn(c).replace(write=md.Delta(1.0, recall="previous", erase="own", remove="own"))


def dplr(c: SimpleNamespace) -> md.Memory:
    return iplr(c).replace(gate=md.DiagonalDecay(PER_KEY))


def delta_product(c: SimpleNamespace) -> md.Memory:
    return delta_rule(c).replace(write=md.Delta(PER_HEAD).times(c.num_householder))


def gated_delta_product(c: SimpleNamespace) -> md.Memory:
    return delta_product(c).replace(gate=md.Decay(PER_HEAD))


def oja(c: SimpleNamespace) -> md.AbstractMemory:
    return delta_rule(c).transpose()


def gated_oja(c: SimpleNamespace) -> md.AbstractMemory:
    # the channels that fade are those of the file's values, which the transposed memory has as keys
    return kda(c).transpose()


def rwkv6(x: SimpleNamespace, c: SimpleNamespace, run: Runner) -> Outputs:
    bonus = md.Learned(0.0, per="key_channel")
    memory = gla(c).replace(read=md.Before(scaled(c), bonus=bonus))
    answers, final = run(
        memory, x.k, x.v, x.q,
        initial=Function(x.initial_state), log_decay=x.w, constants={"bonus": x.u},
    )  # fmt: skip
    return {"o": answers, "state": final.matrix}


def rwkv7(x: SimpleNamespace, c: SimpleNamespace, run: Runner) -> Outputs:
    answers, final = run(
        dplr(c), x.k, x.v, x.r,
        initial=Function(x.initial_state), log_decay=x.w, erase_keys=x.kk, remove_keys=x.a * x.kk,
    )  # fmt: skip
    return {"o": answers, "state": final.matrix}


def retention(x: SimpleNamespace, c: SimpleNamespace, run: Runner) -> Outputs:
    memory = linear_attn(c).replace(gate=md.Decay(md.Learned(0.9)))
    heads = jnp.arange(x.k.shape[2], dtype=x.k.dtype)
    gamma = 1 - 2 ** (-5 - heads)
    answers, final = run(memory, x.k, x.v, x.q, constants={"log_decay": jnp.log(gamma)})
    return {"o": answers, "state": final.matrix}


def linear_attn_normalized(x: SimpleNamespace, c: SimpleNamespace, run: Runner) -> Outputs:
    # the keys of the file are positive, which the memory must know before it divides by a mass
    memory = md.Memory(
        md.Dot().pullback(md.Relu()), md.Hebb(), read=md.Normalised(scale=c.scale, prior=c.eps)
    )
    initial = Function(x.initial_state, x.initial_z[:, 0])
    answers, final = run(memory, x.k, x.v, x.q, initial=initial)
    assert final.mass is not None
    return {"o": answers, "state": final.matrix, "z": final.mass[:, None]}


def log_linear_attn(x: SimpleNamespace, c: SimpleNamespace, run: Runner) -> Outputs:
    # each level on its own, so that each of its plans is tried: their sum is what + makes of them
    memory = md.Memory(md.Dot(), md.Hebb(), md.Decay(PER_HEAD))
    answers = []
    for number in range(c.num_levels):
        one, factor = PER_HEAD * md.level(number, memory), x.level_scales[..., number]
        answers.append(run(one, x.k, x.v, x.q, log_decay=x.g, factor=factor)[0])
    return {"o": sum(answers[1:], answers[0])}


def hgrn2(x: SimpleNamespace, c: SimpleNamespace, run: Runner) -> Outputs:
    lower = x.lower_bound[None, None]
    decay = lower + (1 - lower) * jax.nn.sigmoid(x.f)
    answers, final = run(
        gla(c), 1 - decay, x.v, jax.nn.silu(x.q),
        initial=Function(x.initial_state), log_decay=jnp.log(decay),
    )  # fmt: skip
    return {"o": answers, "state": final.matrix}


def hgrn(x: SimpleNamespace, c: SimpleNamespace, run: Runner) -> Outputs:
    memory = md.Memory(md.Dot(), md.Hebb(), md.ValueDecay(PER_VALUE))
    one_key = jnp.ones_like(x.x[..., :1])[:, :, None]
    answers, final = run(
        memory, one_key, x.x[:, :, None], one_key,
        initial=Function(x.initial_state[:, None, None]), log_decay=x.g[:, :, None],
    )  # fmt: skip
    return {"o": answers[:, :, 0], "state": final.matrix[:, 0, 0]}


def mesa_net(x: SimpleNamespace, c: SimpleNamespace, run: Runner) -> Outputs:
    strength = md.Learned(1.0, per="key_channel")
    memory = md.Memory(md.Dot(), md.Ridge(strength, rate=PER_HEAD), md.Decay(PER_HEAD))
    answers, final = run(
        memory, x.k, x.v, x.q,
        initial=Function(x.initial_kv, gram=x.initial_kk),
        log_decay=x.g, rate=x.beta, constants={"strength": x.lamb},
    )  # fmt: skip
    assert final.gram is not None
    return {"o": answers, "state_kk": final.gram, "state_kv": final.matrix}


CASES: dict[str, Case] = {
    "linear_attn": operator(linear_attn),
    "linear_attn_normalized": linear_attn_normalized,
    "retention": retention,
    "simple_gla": operator(simple_gla, log_decay="g"),
    "gla": operator(gla, log_decay="gk"),
    "gla_stress": operator(gla, log_decay="gk"),
    "log_linear_attn": log_linear_attn,
    "rwkv6": rwkv6,
    "hgrn": hgrn,
    "hgrn2": hgrn2,
    "delta_rule": operator(delta_rule, rate="beta"),
    "delta_rule_stress": operator(delta_rule, rate="beta"),
    "gated_delta_rule": operator(gated_delta_rule, log_decay="g", rate="beta"),
    "gated_delta_rule_stress": operator(gated_delta_rule, log_decay="g", rate="beta"),
    "kda": operator(kda, log_decay="g", rate="beta"),
    "kda_gva": operator(kda, log_decay="g", rate="beta"),
    "kda_stress": operator(kda, log_decay="g", rate="beta"),
    "comba": operator(comba, erase_keys="p", log_decay="g", rate="beta"),
    "comba_decayed_read": operator(comba_decayed_read, erase_keys="p", log_decay="g", rate="beta"),
    "gdn2": operator(gdn2, log_decay="g", erase_gate="b", write_gate="w"),
    "iplr": operator(iplr, erase_keys="a", remove_keys="-b"),
    "dplr": operator(dplr, erase_keys="a", remove_keys="-b", log_decay="gk"),
    "rwkv7": rwkv7,
    "delta_product": operator(delta_product, rate="beta"),
    "gated_delta_product": operator(gated_delta_product, log_decay="g", rate="beta"),
    "oja": operator(oja, rate="beta"),
    "gated_oja": operator(gated_oja, log_decay="g", rate="beta"),
    "mesa_net": mesa_net,
}
NOTES = {
    "mesa_net": "in float32 a buffer's gradient of initial_kk, of condition 1e4, is left out",
}
