"""The oracle against numbers from outside, and what it says of a call that it cannot answer."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import memdsl as md

from ..helpers import close, COMPOSITES, inputs, law, random, some_of, TIME


GOLDEN = Path(__file__).parent.parent / "golden"
PREFIX = 12
ROOT = md.Evaluate(scale=md.InverseRoot("key"))
CHANNELS = md.FromInput("sigmoid", per="key_channel")
GATE = md.Decay(md.FromInput("sigmoid"))
RATE = md.FromInput("sigmoid")


def golden(name: str, head: int = 0) -> tuple[dict[str, Any], dict[str, Any]]:
    """`(inputs, outputs)` of one batch entry and one head, over the first tokens."""
    found, shapes = {}, {}
    with np.load(GOLDEN / f"{name}.npz") as file:
        for key in file.files:
            if not key.startswith(("cot_", "grad_", "attr_")):
                found[key] = file[key].astype(np.float64)
                shapes[key] = found[key].shape
    time = shapes["q" if "q" in shapes else "r"][1]
    cut = {}
    for key, array in found.items():
        heads = shapes[key][2] if len(shapes[key]) > 2 else 0
        if len(shapes[key]) > 2 and shapes[key][1] % time == 0 and shapes[key][1] >= time:
            each = shapes[key][1] // time
            cut[key] = array[0, : PREFIX * each, head % heads]
        elif key.startswith(("initial", "out_state", "out_z")):
            heads_first = array[0, 0] if key.endswith("_z") else array[0]  # z has a time axis of 1
            cut[key] = heads_first[head % len(heads_first)]
        else:
            cut[key] = array[head]
    out = {k: v for k, v in cut.items() if k.startswith("out_")}
    return {k: jnp.asarray(v) for k, v in cut.items() if k not in out}, out


def matrix(write: Any, gate: Any = GATE, read: Any = ROOT) -> Any:
    return md.Memory(md.Dot(), write, gate, read=read, initial=md.Learned())


@pytest.mark.parametrize("head", [0, 1])
@pytest.mark.parametrize(
    ("name", "memory", "signals"),
    [
        ("simple_gla", matrix(md.Hebb()), {"log_decay": "g"}),
        ("gla", matrix(md.Hebb(), md.DiagonalDecay(CHANNELS)), {"log_decay": "gk"}),
        ("delta_rule", matrix(md.Delta(RATE), md.Keep()), {"rate": "beta"}),
        ("gated_delta_rule", matrix(md.Delta(RATE)), {"rate": "beta", "log_decay": "g"}),
        (
            "gated_delta_rule_stress",
            matrix(md.Delta(RATE)),
            {"rate": "beta", "log_decay": "g"},
        ),
        (
            "kda",
            matrix(md.Delta(RATE), md.DiagonalDecay(CHANNELS)),
            {"rate": "beta", "log_decay": "g"},
        ),
        (
            "comba",
            matrix(md.Delta(RATE, recall="previous", erase="own")),
            {"rate": "beta", "log_decay": "g", "erase_keys": "p"},
        ),
        (
            "comba_decayed_read",
            matrix(md.Delta(RATE, erase="own")),
            {"rate": "beta", "log_decay": "g", "erase_keys": "p"},
        ),
        (
            "gdn2",
            matrix(
                md.Delta(
                    erase_gate=CHANNELS, write_gate=md.FromInput("sigmoid", per="value_channel")
                ),
                md.DiagonalDecay(CHANNELS),
            ),
            {"log_decay": "g", "erase_gate": "b", "write_gate": "w"},
        ),
        (
            "delta_product",
            matrix(md.Delta(RATE).times(2), md.Keep(), md.Evaluate()),
            {"rate": "beta"},
        ),
        (
            "gated_delta_product",
            matrix(md.Delta(RATE).times(2), GATE, md.Evaluate()),
            {"rate": "beta", "log_decay": "g"},
        ),
    ],
)
def test_matrix_memories_agree_with_golden_data(
    name: str, memory: Any, signals: dict[str, str], head: int
):
    given, out = golden(name, head if "stress" not in name else 0)
    chosen = {signal: given[key] for signal, key in signals.items()}
    answers = md.denote(
        memory, given["k"], given["v"], given["q"], initial=given["initial_state"], **chosen
    )
    close(answers, out["out_o"])


def test_diagonal_plus_rank_one_agrees_with_golden_data():
    """`S <- diag(d) S + b (a' S) + k v'`: what is recalled at -a is taken away at b."""
    write = md.Delta(1.0, recall="previous", erase="own", remove="own")
    for name in ("dplr", "iplr"):
        given, out = golden(name)
        gate = md.DiagonalDecay(CHANNELS) if name == "dplr" else md.Keep()
        decay = {"log_decay": given["gk"]} if name == "dplr" else {}
        keys = {"erase_keys": -given["a"], "remove_keys": given["b"]}
        memory, start = matrix(write, gate), {"initial": given["initial_state"]}
        close(
            md.denote(memory, given["k"], given["v"], given["q"], **start, **keys, **decay),
            out["out_o"],
        )
    given, out = golden("rwkv7")
    keys = {"erase_keys": given["kk"], "remove_keys": given["kk"] * given["a"]}
    memory = matrix(write, md.DiagonalDecay(CHANNELS), md.Evaluate())
    answers = md.denote(
        memory, given["k"], given["v"], given["r"],
        initial=given["initial_state"], log_decay=given["w"], **keys,
    )  # fmt: skip
    close(answers, out["out_o"])


def test_rwkv6_agrees_with_golden_data():
    """The read is before the write, with a bonus for the token's own pair."""
    given, out = golden("rwkv6")
    bonus = md.Before(ROOT, bonus=md.Learned(per="key_channel"))
    answers = md.denote(
        matrix(md.Hebb(), md.DiagonalDecay(CHANNELS), bonus), given["k"], given["v"], given["q"],
        initial=given["initial_state"], log_decay=given["w"], bonus=given["u"],
    )  # fmt: skip
    close(answers, out["out_o"])


def test_oja_agrees_with_golden_data():
    """Keys and values swap roles, and the matrix is read from the other side."""
    for name in ("oja", "gated_oja"):
        given, out = golden(name)
        gate = md.DiagonalDecay(CHANNELS) if name == "gated_oja" else md.Keep()
        decay = {"log_decay": given["g"]} if name == "gated_oja" else {}
        memory = md.Memory(md.Dot(), md.Delta(RATE), gate, initial=md.Learned()).transpose()
        answers = md.denote(
            memory, given["k"], given["v"], given["q"],
            initial=given["initial_state"].T, rate=given["beta"], **decay,
        )  # fmt: skip
        close(answers, out["out_o"] * 8**0.5)


def test_mesa_net_agrees_with_golden_data():
    """Its start, `G_0 = sum w u u'` and `H_0 = sum w u y'`, is written first, as pairs."""
    given, out = golden("mesa_net")
    weights, axes = np.linalg.eigh(np.asarray(given["initial_kk"]))
    assert weights.min() > 1e-6
    targets = (axes.T @ np.asarray(given["initial_kv"])) / weights[:, None]
    zeros = jnp.zeros(len(weights))
    memory = md.Memory(md.Dot(), md.Ridge(md.Learned(1.0, per="key_channel"), RATE), GATE)
    answers = md.denote(
        memory,
        jnp.concatenate([jnp.asarray(axes.T), given["k"]]),
        jnp.concatenate([jnp.asarray(targets), given["v"]]),
        jnp.concatenate([jnp.asarray(axes.T), given["q"]]),
        strength=given["lamb"],
        rate=jnp.concatenate([jnp.asarray(weights), given["beta"]]),
        log_decay=jnp.concatenate([zeros, given["g"]]),
    )
    close(answers[len(weights) :], out["out_o"])


def test_normalised_linear_attention_agrees_with_golden_data():
    """Its start is written first: `z_0 = sum k` and `S_0 = sum k v'` over scaled unit keys."""
    given, out = golden("linear_attn_normalized")
    mass, start = given["initial_z"], given["initial_state"]
    memory = md.Memory(
        md.Dot().pullback(md.Relu()),
        read=md.Normalised(scale=md.InverseRoot("key"), prior=1e-10),
    )
    answers = md.denote(
        memory,
        jnp.concatenate([jnp.diag(mass), given["k"]]),
        jnp.concatenate([start / mass[:, None], given["v"]]),
        jnp.concatenate([jnp.diag(mass), given["q"]]),
    )
    close(answers[len(mass) :], out["out_o"])


@pytest.mark.parametrize("head", [0, 3])
def test_softmax_attention_agrees_with_golden_data(head: int):
    kernel = md.Exp(md.InverseRoot("key") * md.Dot())
    softmax = md.Memory(kernel, read=md.Normalised())
    window, sink = md.Window(8), md.Normalised(prior=md.Learned(1.0, squash="exp"))
    for name, memory in (
        ("softmax_attn", softmax),
        ("softmax_attn_window", softmax.replace(capacity=window)),
        ("softmax_attn_sink", softmax.replace(capacity=window, read=sink)),
        ("forgetting_attn", softmax.replace(gate=GATE)),
    ):
        queries, out = golden(name, head)
        pairs, _ = golden(name, head // 2)  # two heads of queries share one of keys
        signals = {"log_decay": queries["g"]} if "g" in queries else {}
        if "sink_bias" in queries:
            signals["prior"] = jnp.exp(queries["sink_bias"])
        close(md.denote(memory, pairs["k"], pairs["v"], queries["q"], **signals), out["out_o"])


@pytest.mark.parametrize("name", some_of(COMPOSITES, 3))
@law
def test_gradients_are_those_of_the_values(name: str, seed: int):
    """Against differences along one direction, through every input and signal."""
    memory = COMPOSITES[name]
    made = inputs(memory, seed, time=4)
    cotangent = random(seed, *md.denote(memory, **made).shape)
    along = {n: random(i, *a.shape) for i, (n, a) in enumerate(sorted(made.items()))}

    def loss(made: dict[str, Any]) -> Any:
        return jnp.sum(cotangent * md.denote(memory, **made))

    gradient = jax.grad(loss)(made)
    slope = sum(float(jnp.sum(gradient[n] * along[n])) for n in made)
    steps = [{n: a + h * along[n] for n, a in made.items()} for h in (1e-6, -1e-6)]
    difference = float(loss(steps[0]) - loss(steps[1])) / 2e-6
    np.testing.assert_allclose(slope, difference, rtol=1e-5, atol=1e-6)


def test_what_is_missing_or_unknown_is_named():
    memory = md.Memory(md.Dot(), md.Delta(RATE, erase="own"), GATE)
    keys, values = random(0, TIME, 3), random(1, TIME, 2)
    rows = jnp.zeros(TIME)
    with pytest.raises(md.SpecError, match="needs erase_keys"):
        md.denote(memory, keys, values, keys, rate=rows, log_decay=rows)
    with pytest.raises(md.SpecError, match="'rate' is missing"):
        md.denote(memory, keys, values, keys, erase_keys=keys, log_decay=rows)
    with pytest.raises(md.SpecError, match="called 'beta'") as caught:
        md.denote(memory, keys, values, keys, erase_keys=keys, beta=rows)
    assert "rate, log_decay" in str(caught.value)
    with pytest.raises(md.SpecError, match="must have 6 rows"):
        md.denote(memory, keys, values, keys, erase_keys=keys, rate=rows[:2], log_decay=rows)
    with pytest.raises(md.SpecError, match="takes no erase_keys"):
        md.denote(md.Memory(md.Dot()), keys, values, keys, erase_keys=keys)
    with pytest.raises(md.SpecError, match="needs starts"):
        md.denote(md.Memory(md.Dot(), gate=md.Reset()), keys, values, keys)
    with pytest.raises(md.SpecError, match="no single key"):
        md.denote(md.Memory(md.Dot(), md.Hebb().times(2)), keys, values)


class Own(md.AbstractMemory):
    """A memory of a user that nobody knows the meaning of."""


def test_what_is_not_defined_is_refused():
    with pytest.raises(md.SpecError, match="does not define Own"):
        md.denote(Own(), random(0, 3, 3), random(1, 3, 2))


def test_sequences_of_no_and_of_one_token():
    for memory in COMPOSITES.values():
        one = inputs(memory, 0, time=1)
        assert md.denote(memory, **one).shape[0] == 1
        streams = ("keys", "values", "queries", "erase_keys", "remove_keys")
        none = {n: a[:0] if n in streams else a for n, a in one.items()}
        time_signals = {s.name for s in md.signals(memory) if s.time}
        none = {n: a[:0] if n in time_signals else a for n, a in none.items()}
        assert md.denote(memory, **none).shape[0] == 0
