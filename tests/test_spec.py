"""Specs: they print as code, compare by value, and know facts about themselves."""

import dataclasses
import math
import zlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings

import memdsl as md
from memdsl.spec._base import children, rebuild, Spec
from memdsl.spec._feature import Identity
from memdsl.spec._gate import Arrival, Composed
from memdsl.spec._number import interval, Log, log_of, value_of
from memdsl.spec._slots import default_value, evaluate, ground, peel, resolve, slots

from .specs import gates, Lorentzian, NAMES, specs
from .test_json import WRITTEN


MANY = settings(max_examples=100)
dot, rbf = md.Dot(), md.RBF()
linear, kernel_lms = md.Memory(dot), md.Memory(rbf, md.Delta(0.5))
rate = md.FromInput("sigmoid")


def evaluated(code: str) -> Any:
    return eval(code, dict(NAMES))


@MANY
@given(specs)
def test_printed_code_makes_the_spec(spec: Spec):
    again = evaluated(repr(spec))
    assert again == spec
    assert (hash(again), repr(again)) == (hash(spec), repr(spec))


@pytest.mark.parametrize("name", WRITTEN)
def test_printed_code_makes_what_is_used(name: str):
    assert evaluated(repr(WRITTEN[name])) == WRITTEN[name]


@pytest.mark.parametrize(
    "code",
    [
        "2.0 * RBF()",
        "RBF() * 2.0",
        "2.0 * RBF() * 3.0",
        "2.0 * (3.0 * RBF())",
        "Constant(2.0) * 3.0",
        "Dot() + RBF() + Constant(0.5)",
        "Dot() + (RBF() + Constant(0.5))",
        "Dot() * (RBF() + Dot())",
        "(Dot() + RBF()) * Dot()",
        "(Knob(1.0) + 2.0) * Dot()",
        "Knob(1.0) * Learned(2.0) * Dot()",
        "Dot() * (Knob(1.0) * Learned(2.0))",
        "Exp(InverseRoot() * Dot() + Constant())",
        "(Dot() + RBF()).pullback(Silu() >> L2Norm())",
        "(2.0 * Dot()).pullback(Silu())",
        "Dot().pullback(Relu()).pullback(Silu())",
        "Silu() >> L2Norm() >> Relu()",
        "Silu() >> (L2Norm() >> Relu())",
        "Delta(rate=0.5).times(2)",
        "Decay(0.9) @ Reset() @ Novelty(0.1)",
        'Novelty(float("inf"))',
        'Novelty(-float("inf"))',
        "Memory(Dot()) + Memory(RBF()) + Memory(Dot())",
        "Memory(Dot()) + (Memory(RBF()) + Memory(Dot()))",
        "Memory(Dot()) >> Memory(RBF()) >> L2Norm()",
        "Memory(Dot()) >> (Memory(RBF()) >> L2Norm())",
        "Memory(Dot()) >> (Silu() >> L2Norm())",
        "Memory(Dot()) + Memory(RBF()) >> Memory(Dot())",
        "Memory(Dot()) + (Memory(RBF()) >> Memory(Dot()))",
        "0.5 * Memory(Dot())",
        "-0.5 * (0.5 * Memory(Dot()))",
        "0.5 * (Memory(Dot()) + Memory(RBF()))",
        "0.5 * Memory(Dot()) + Memory(RBF())",
        "(Learned(1.0) + 0.5) * Memory(Dot())",
        "(0.5 * Memory(Dot())).boost(Memory(RBF()))",
        "Memory(Dot()).boost(0.5 * Memory(RBF()))",
        "Memory(Dot()).transpose()",
        "Memory(Dot()).transpose() + Memory(RBF())",
        "every(2, Memory(Dot()) + Memory(RBF()))",
        "Network(Descent(), widths=(8,))",
        'Network(Descent(), widths=(8, 8), gate=Decay(FromInput("sigmoid")))',
        'Linear(8, weight=Weight(rows=8, start="identity"))',
        'Schedule("linear_schedule", end_value=0.1, init_value=0.5, transition_steps=100)',
        "Layer(Memory(Dot()), heads=2) >> Residual(Norm() >> Mlp(2.0)) >> Map(Relu())",
    ],
)
def test_code_is_printed_as_it_was_written(code: str):
    assert repr(evaluated(code)) == code


@pytest.mark.parametrize(
    ("written", "printed"),
    [
        ("Dot() / 8.0", "Dot() * 0.125"),
        ("RBF(scale=1.0)", "RBF()"),
        ("RBF(scale=1)", "RBF(scale=1)"),
        ("Memory(kernel=Dot(), write=Hebb())", "Memory(Dot())"),
        ("Memory(Dot()) + Zero()", "Memory(Dot())"),
        ("Zero() + Memory(Dot())", "Memory(Dot())"),
        ("sum([Memory(Dot()), Memory(RBF())])", "Memory(Dot()) + Memory(RBF())"),
        ("sum([Dot(), RBF()])", "Dot() + RBF()"),
        ("Memory(Dot()) * 0.5", "0.5 * Memory(Dot())"),
        ("Memory(Dot()).transpose().transpose()", "Memory(Dot())"),
        ("Linear(8)", "Linear(8)"),
        ("Linear(8).replace(width=4)", "Linear(4)"),
        ("Linear(8, Weight(rows=3))", "Linear(8)"),
        ("Exp(Dot()).random_features(4)", 'Dot().pullback(RandomFourier(4, spectrum="exp"))'),
        (
            "(2.0 * RBF(scale=0.5)).pullback(Silu()).random_features(4, seed=1)",
            "(2.0 * Dot().pullback(RandomFourier(4, scale=0.5, seed=1))).pullback(Silu())",
        ),
    ],
)
def test_what_is_the_same_is_printed_the_same(written: str, printed: str):
    assert repr(evaluated(written)) == printed
    assert evaluated(written) == evaluated(printed)


def test_equal_specs_are_one_key():
    assert md.RBF(scale=0.5) == md.RBF(scale=0.5) != md.RBF(scale=0.25)
    assert md.RBF(scale=1) == md.RBF(scale=1.0)
    assert md.RBF() != md.Laplace()
    assert md.Memory(dot) != md.Memory(dot, md.Delta())
    table = {linear: "linear", kernel_lms: "lms"}
    assert table[md.Memory(md.Dot())] == "linear"
    assert len({linear, md.Memory(md.Dot()), kernel_lms}) == 2


def test_a_spec_is_a_static_argument():
    traces = []

    def double(kernel: md.AbstractKernel, k: jax.Array) -> jax.Array:
        traces.append(kernel)
        return 2 * kernel(k, k)

    run = jax.jit(double, static_argnums=0)
    assert float(run(md.Dot(), jnp.ones(3))) == float(run(md.Dot(), jnp.ones(3))) == 6
    assert traces == [dot]


@pytest.mark.parametrize("spec", [rbf, linear, md.Decay(0.9) @ md.Reset(), rate])
def test_specs_do_not_change(spec: Any):
    name = dataclasses.fields(spec)[0].name
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(spec, name, None)
    with pytest.raises(dataclasses.FrozenInstanceError):
        delattr(spec, name)


def test_replace_makes_another_and_checks_it():
    decayed = linear.replace(gate=md.Decay(0.9), capacity=md.Window(4))
    assert (decayed.gate, decayed.capacity, linear.gate) == (md.Decay(0.9), md.Window(4), md.Keep())
    assert linear.replace() == linear
    with pytest.raises(md.SpecError, match=r"Window\.size"):
        decayed.capacity.replace(size=0)
    with pytest.raises(md.SpecError, match="needs a matrix"):
        decayed.replace(gate=md.DiagonalDecay(0.9))


def test_interfaces_are_not_values():
    for cls in (md.AbstractKernel, md.AbstractFeature, md.AbstractWrite, md.AbstractLoss):
        with pytest.raises(TypeError, match="abstract"):
            cls()  # pyright: ignore[reportAbstractUsage]


def test_numbers_of_numpy_are_floats():
    assert repr(md.RBF(scale=np.float64(0.5))) == "RBF(scale=0.5)"
    assert repr(np.float64(2.0) * md.Dot()) == "2.0 * Dot()"
    assert repr(md.Knob(np.float64(2.0))) == "Knob(2.0)"


GATES = {
    "Keep() @ Keep()": "Keep()",
    "Always() @ Always()": "Keep()",
    "Keep() @ Decay(0.5)": "Decay(0.5)",
    "Decay(0.5) @ Always()": "Decay(0.5)",
    "Decay(0.5) @ Decay(0.5)": "Decay(0.25)",
    "Decay(0.5) @ Decay(Knob(0.5))": "Decay(0.5 * Knob(0.5))",
    "Decay(0.5) @ ValueDecay(0.5) @ Decay(0.5)": "Decay(0.25) @ ValueDecay(0.5)",
    "DiagonalDecay(0.5) @ Reset() @ DiagonalDecay(0.5)": "DiagonalDecay(0.25) @ Reset()",
    "Reset() @ Reset()": "Reset()",
    "Novelty(0.1) @ Decay(0.5)": "Decay(0.5) @ Novelty(0.1)",
    "Novelty(0.1) @ Reset() @ Novelty(0.1)": "Reset() @ Novelty(0.1)",
    "Novelty(0.1) @ Novelty(0.2)": "Novelty(0.1) @ Novelty(0.2)",
    "SoftThreshold(0.5) @ SoftThreshold(0.5)": "SoftThreshold(1.0)",
    "SoftThreshold(0.5) @ SoftThreshold(Knob(0.5))": "SoftThreshold(0.5 + Knob(0.5))",
    # a threshold does not commute with a decay
    "Decay(0.5) @ SoftThreshold(0.1) @ Decay(0.5)": "Decay(0.5) @ SoftThreshold(0.1) @ Decay(0.5)",
    "(Decay(0.5) @ Novelty(0.1)) @ (Decay(0.5) @ Reset())": "Decay(0.25) @ Reset() @ Novelty(0.1)",
}


@pytest.mark.parametrize("written", GATES)
def test_gates_have_a_normal_form(written: str):
    assert repr(evaluated(written)) == GATES[written]


@MANY
@given(gates, gates, gates)
def test_gates_are_a_monoid(a: Any, b: Any, c: Any):
    assert md.Keep() @ a == a @ md.Keep() == (md.Keep() if a == md.Always() else a)
    assert _shape((a @ b) @ c) == _shape(a @ (b @ c))


def _shape(gate: Any) -> Any:
    """A gate with its numbers worked out: merged decays are multiplied in one order or another."""
    if isinstance(gate, Composed):
        return tuple(map(_shape, gate.gates))
    numbers = [v for _, v in children(gate) if isinstance(v, Spec | int | float)]
    return type(gate), [f"{evaluate(number, _some_value, False):.9g}" for number in numbers]


def _some_value(leaf: Any) -> float:
    return leaf if isinstance(leaf, int | float) else (zlib.crc32(repr(leaf).encode()) % 97) / 98


FACTS = {  # rank on keys of 4 numbers, non-negative, bounded, kernel(k, k)
    "Dot()": (4, False, False, None),
    "Constant(0.5)": (1, True, True, 0.5),
    "Constant(Knob(0.5))": (1, True, True, None),
    "Polynomial(2)": (15, True, False, None),
    "Polynomial(3)": (35, False, False, None),
    "RBF()": (math.inf, True, True, 1.0),
    "Laplace()": (math.inf, True, True, 1.0),
    "Exp(Dot())": (math.inf, True, False, None),
    "Exp(Constant(0.0))": (math.inf, True, True, 1.0),
    "Exp(Constant(800.0))": (math.inf, True, True, math.inf),
    "Lorentzian()": (math.inf, True, False, None),
    "Dot() + Constant(0.5)": (5, False, False, None),
    "Dot() * Dot()": (16, False, False, None),
    "0.5 * RBF() + Constant(0.25)": (math.inf, True, True, 0.75),
    "Dot() * RBF()": (math.inf, False, False, None),
    "Dot().pullback(EluPlusOne())": (4, True, False, None),
    "Dot().pullback(L2Norm())": (4, False, True, 1.0),
    "Dot().pullback(Relu() >> L2Norm())": (4, True, True, 1.0),
    "Dot().pullback(L2Norm() >> Relu())": (4, True, False, None),
    "Dot().pullback(Silu()).pullback(Relu())": (4, True, False, None),
    "Dot().pullback(Taylor())": (15, True, False, None),
    "Dot().pullback(Dpfp(2))": (16, True, False, None),
    "Dot().pullback(Linear(6))": (6, False, False, None),
    "Dot().pullback(Hedgehog())": (8, True, False, None),
    "Polynomial(3).pullback(EluPlusOne())": (35, True, False, None),
    "Polynomial(2, 0.5).pullback(L2Norm())": (15, True, True, 2.25),
    "(2.0 * Dot() + Constant(1.0)).pullback(Relu() >> L2Norm())": (5, True, True, 3.0),
    "Exp(Dot() * 0.5).pullback(L2Norm())": (math.inf, True, True, math.exp(0.5)),
    "RBF().random_features(8)": (16, False, True, 1.0),
    "Exp(Dot()).random_features(8)": (8, True, False, None),
    "RBF().random_features(8).pullback(Linear(2))": (16, False, True, 1.0),
}


@pytest.mark.parametrize("code", FACTS)
def test_facts_of_kernels(code: str):
    kernel = evaluated(code)
    rank, nonnegative, bounded, value = FACTS[code]
    assert (md.rank(kernel, 4), md.is_finite(kernel)) == (rank, rank < math.inf)
    assert (md.is_nonnegative(kernel), md.is_bounded(kernel)) == (nonnegative, bounded)
    assert kernel.value_at_itself() == (value if value is None else pytest.approx(value))


DEGREES = {
    "Hebb()": 0,
    "Delta()": 1,
    "Delta(implicit=True, normalise=0.1)": 1,
    "Descent(Inner())": 0,
    "Descent(Inner(), steps=3)": 0,
    "Descent()": 1,
    "Descent(steps=2)": math.inf,
    "Descent(Huber(1.0))": math.inf,
    "Descent(momentum=0.9)": math.inf,
    "Descent(window=2)": math.inf,
    "Ridge()": math.inf,
    "Reweight()": math.inf,
    "Delta().times(2)": 1,
    "Hebb().times(2)": 0,
}


@pytest.mark.parametrize("code", DEGREES)
def test_degrees_of_writes(code: str):
    assert md.degree(evaluated(code)) == DEGREES[code]


def test_where_numbers_can_be():
    assert interval(2.0) == interval(md.Knob(2.0)) == interval(md.Learned(2.0)) == (2.0, 2.0)
    assert interval(md.FromInput("sigmoid", scale=2.0)) == (0.0, 2.0)
    assert interval(-1.0 * md.FromInput("softplus")) == (-math.inf, 0.0)
    assert interval(0.0 * md.FromInput("identity")) == (0.0, 0.0)
    assert interval(md.FromInput("tanh") + 1.0) == (0.0, 2.0)
    assert interval(md.InverseRoot() * md.FromInput("tanh")) == (-1.0, 1.0)
    assert interval(md.Schedule("constant_schedule", value=9.0) + 1.0) is None
    assert md.Decay(0.5 * (md.FromInput("tanh") + 1.0)).decay.left == 0.5
    assert md.Surprise(math.inf).threshold == math.inf


def names(spec: Spec) -> dict[str, str]:
    return {slot.path: slot.name for slot in slots(spec)}


def test_slots_list_what_is_not_plain():
    memory = md.Memory(
        md.RBF(scale=md.Learned(1.0, per="layer")).pullback(md.Linear(8)),
        md.Delta(rate, write_gate=md.FromInput("sigmoid", per="value_channel")),
        md.Decay(md.Knob(0.9)),
    )
    weight, *rest = sorted(slots(memory), key=lambda slot: slot.path != "kernel.feature.weight")
    assert (weight.per, weight.axes, weight.time) == ("matrix", ("features", "in"), False)
    assert [(slot.path, slot.name, slot.per, slot.axes, slot.log, slot.time) for slot in rest] == [
        ("kernel.kernel.scale", "scale", "layer", (), False, False),
        ("write.rate", "rate", "head", ("time",), False, True),
        ("write.write_gate", "write_gate", "value_channel", ("time", "value"), False, True),
        ("gate.decay", "log_decay", "layer", (), True, False),
    ]
    assert rest[-1].meaning == "decay"
    assert slots(linear) == ()


def test_signals_have_the_shortest_names_that_are_unique():
    gated = md.Memory(dot, md.Delta(rate), md.Decay(rate))
    assert names(gated) == {"write.rate": "rate", "gate.decay": "log_decay"}
    assert names(gated + gated.replace(write=md.Hebb(0.5))) == {
        "first.write.rate": "rate",
        "first.gate.decay": "first.gate.log_decay",
        "second.gate.decay": "second.gate.log_decay",
    }
    assert (
        names((gated + gated).boost(gated))["first.second.write.rate"] == "first.second.write.rate"
    )
    both = md.Memory(dot, gate=md.Decay(rate) @ md.ValueDecay(rate))
    assert list(names(both).values()) == ["0.log_decay", "1.log_decay"]
    assert len(set(names(gated >> gated >> gated).values())) == 6


def test_resolving_fixes_sizes():
    root = md.InverseRoot("key")
    softmax = md.Memory(md.Exp(root * dot), read=md.Normalised(scale=root * 2.0 + root))
    fixed = resolve(softmax, {"key": 16, "value": 4})
    assert fixed == md.Memory(md.Exp(0.25 * dot), read=md.Normalised(scale=0.75))
    traced = resolve(md.Evaluate(scale=root * md.Learned(1.0)), {"key": 4})
    assert traced == md.Evaluate(scale=0.5 * md.Learned(1.0))
    assert resolve(linear, {}) is linear


def test_grounding_puts_values_in_their_places():
    memory = md.Memory(md.RBF(scale=md.Knob(1.0)), md.Delta(rate), md.Decay(rate) @ md.Reset())
    half = Log(jnp.log(jnp.asarray(0.5)))
    found = ground(
        memory, {"kernel.scale": jnp.asarray(2.0), "write.rate": 0.5, "gate.gates.0.decay": half}
    )
    assert float(found.kernel.scale) == 2.0
    assert (found.write.rate, found.write.recall) == (0.5, "decayed")
    assert found.gate.gates[0].decay is half and found.gate.gates[1] == md.Reset()
    assert memory.kernel.scale == md.Knob(1.0)
    assert float(found.kernel(jnp.zeros(2), jnp.ones(2))) == pytest.approx(math.exp(-0.25))
    assert (float(value_of(half)), float(log_of(half))) == (0.5, pytest.approx(math.log(0.5)))
    assert (log_of(0.0), log_of(1), value_of(3.0)) == (-math.inf, 0.0, 3.0)
    with pytest.raises(TypeError):
        hash(found)


def test_numbers_have_values_to_start_from():
    knob = slots(md.RBF(scale=0.5 * md.Knob(4.0) + md.Learned(1.0)))[0]
    assert float(default_value(knob, jnp.float32)) == 3.0
    decay = slots(md.Decay(md.Knob(0.5) * md.Learned(0.5)))[0]
    assert float(default_value(decay, jnp.float32).log) == pytest.approx(math.log(0.25))
    assert default_value(slots(md.Decay(rate))[0], jnp.float32) is None
    assert default_value(slots(md.Memory(dot, initial=md.Learned()))[0], jnp.float32) is None
    total = evaluate(rate + 2.0 * md.Knob(1.0), {rate: 1.0, 2.0: 2.0, md.Knob(1.0): 3.0}.get, False)
    assert total == 7.0


def test_peeling_maps_keys_once():
    memory = md.Memory(dot.pullback(md.Relu()).pullback(md.Silu()), md.Delta(0.5))
    peeled, feature = peel(memory)
    assert (peeled, feature) == (md.Memory(dot, md.Delta(0.5)), md.Silu() >> md.Relu())
    assert peel(linear) == (linear, Identity())
    k, q = jnp.asarray([1.0, -2.0]), jnp.asarray([0.5, 3.0])
    assert float(memory.kernel(k, q)) == float(peeled.kernel(feature(k), feature(q)))


def test_rebuilding_checks_nothing_and_changes_nothing_else():
    assert rebuild(md.RBF(), {}) is not None
    assert rebuild(md.RBF(), {"scale": -1.0}).scale == -1.0
    gate = rebuild(md.Decay(0.5) @ md.Reset(), {"gates.0": md.Decay(0.25)})
    assert gate == md.Decay(0.25) @ md.Reset()


@pytest.mark.parametrize("scale", [0.5, md.Learned(0.5, squash="exp")])
def test_a_users_kernel_is_like_any_other(scale: Any):
    """Symmetric, stored, printed, learned, normalised and run: from ten lines of its own."""
    kernel = Lorentzian(scale=scale)
    memory = md.Memory(kernel, md.Delta(0.5), md.Decay(0.9), md.Budget(4, md.Smallest()))
    assert md.from_json(md.to_json(memory)) == memory == evaluated(repr(memory))
    assert names(memory) == ({} if scale == 0.5 else {"kernel.scale": "scale"})
    assert md.Memory(kernel, read=md.Normalised()).read.needs_mass()
    assert (md.is_finite(kernel), md.is_bounded(kernel)) == (False, False)
    keys = jnp.asarray(np.random.default_rng(0).standard_normal((6, 2)))
    values = jnp.sin(keys)
    plain = Lorentzian(scale=0.5)
    expected = [[float(plain(k, q)) for q in keys[:2]] for k in keys]
    np.testing.assert_allclose(plain.pairs(keys, keys[:2]), expected, rtol=1e-12)
    np.testing.assert_allclose(plain.log_pairs(keys, keys[:2]), np.log(expected), rtol=1e-12)
    np.testing.assert_allclose(plain.diagonal(keys), np.ones(6), rtol=1e-12)
    _, answers = md.run(memory, md.empty(memory, 2, 2, dtype=jnp.float64), keys, values, keys)
    np.testing.assert_allclose(answers, md.denote(memory, keys, values, keys), rtol=1e-9)


def test_a_users_admission_is_like_any_other():
    class Close(md.AbstractAdmission):
        limit: md.Number = 1.0

        def admits(self, arrival: Arrival) -> Any:
            return arrival.distance < self.limit

    gate = md.Decay(0.9) @ Close(2.0)
    assert repr(gate) == "Decay(0.9) @ Close(limit=2.0)"
    assert bool(Close(2.0).admits(Arrival(1.0, 0.0, 0.0)))
    assert names(md.Memory(rbf, gate=Close(md.Knob(1.0)))) == {"gate.limit": "limit"}
