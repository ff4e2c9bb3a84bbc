"""Plans: which rule is kept, which are refused and why, and that nothing is traced twice."""

import jax
import jax.numpy as jnp
import pytest

import memdsl as md
from memdsl import zoo


DIMS = md.Dims(key=64, value=64, heads=8, time=4096)


def legal(memory):
    return {rule.name for rule, _ in md.plan(memory, DIMS).choices[0].legal}


def reasons(memory):
    return {rule.name: why for rule, why in md.plan(memory, DIMS).choices[0].rejected}


def test_the_table_of_legal_plans():
    chunks = {"matrix / chunkwise (16)", "matrix / chunkwise (32)", "matrix / chunkwise (64)"}
    kernels = {"buffer / chunkwise (32)", "buffer / chunkwise (64)"}
    delta = {"matrix / recurrent", "buffer / recurrent"} | chunks | kernels
    assert legal(zoo.delta_net()) == delta
    assert legal(zoo.gated_delta_net()) == delta
    assert legal(zoo.kimi_delta_attention()) == {"matrix / recurrent"} | chunks
    assert legal(zoo.linear_attention_identity()) == {
        "matrix / recurrent", "matrix / associative", "buffer / recurrent", "buffer / parallel",
    } | chunks  # fmt: skip
    assert legal(zoo.softmax()) == {
        "buffer / recurrent", "buffer / parallel", "buffer / attention",
    }  # fmt: skip
    assert legal(zoo.sliding_window()) == {
        "buffer / recurrent", "buffer / banded", "buffer / attention",
    }  # fmt: skip
    assert legal(zoo.mesa_net()) == {
        "gram / recurrent", "gram / chunkwise (32)", "buffer / recurrent",
    }  # fmt: skip
    assert "buffer / all-prefix" in legal(zoo.mesa_net_ungated())
    assert legal(zoo.rbf_delta()) == {"buffer / recurrent"} | kernels
    assert legal(zoo.qklms()) == {"buffer / recurrent"}
    assert legal(zoo.oja_net()) == {"matrix / recurrent"}


def test_every_rejection_has_its_reason():
    why = reasons(zoo.gated_delta_net())
    assert why["matrix / associative"] == (
        "needs an additive write: this one reads what it writes",
    )
    assert why["gram / recurrent"] == ("only Ridge keeps a Gram matrix",)
    assert reasons(zoo.softmax())["matrix / recurrent"][0] == (
        "the kernel has infinitely many features"
    )
    assert all(
        reasons(make()) for name, make in zoo.catalogue().items() if name != "ada_transformer"
    )


def test_using_names_a_rule_or_says_what_is_wrong():
    memory = zoo.gated_delta_net()
    assert md.plan(memory, DIMS, using="matrix / recurrent").name == "matrix / recurrent"
    with pytest.raises(md.SpecError) as caught:
        md.plan(memory, DIMS, using="matrix / associative")
    assert "'matrix / associative' cannot run this memory." in str(caught.value)
    assert "Needs an additive write: this one reads what it writes." in str(caught.value)
    with pytest.raises(md.SpecError, match="No rule is called 'matrx'"):
        md.plan(memory, DIMS, using="matrx")
    hybrid = zoo.sliding_window() + memory
    both = md.plan(hybrid, DIMS, using={"first": "buffer / banded", "second": "matrix / recurrent"})
    assert both.name == "buffer / banded + matrix / recurrent"
    with pytest.raises(md.SpecError, match="using names no leaf 'third'"):
        md.plan(hybrid, DIMS, using={"third": "buffer / banded"})


def test_a_rule_of_ones_own():
    calls = []

    def mine(memory, state, inputs):
        calls.append(inputs.time)
        return md.RULES[0].run(memory, state, inputs)

    rule = md.Rule("matrix", "mine", md.RULES[0].requires, lambda *_: md.Cost(0, 0, 0), mine)
    chosen = md.plan(zoo.delta_net(), DIMS, rules=(*md.RULES, rule))
    assert chosen.name == "matrix / mine"


def test_a_chain_is_asked_at_keys_of_its_second_memory():
    chain = zoo.ada_transformer()
    with pytest.raises(md.SpecError, match="has keys of 3 numbers, and is asked at one of 2"):
        md.plan(chain, md.Dims(key=3, value=2))
    with pytest.raises(md.SpecError, match="has keys of 2 numbers, and is asked at one of 3"):
        md.empty(zoo.softmax() >> md.Linear(3) >> zoo.delta_net(), 2, 2)
    mapped = zoo.softmax() >> md.Linear(3) >> zoo.delta_net()
    assert md.plan(mapped, md.Dims(key=3, value=2)).choices


def test_explain_is_the_page_of_a_plan():
    page = md.explain(zoo.gated_delta_net(), name="gated delta rule")
    for line in (
        "Memory  gated delta rule",
        "meaning    f ← α f;   f ← f + κ(k,·) β (v − f(k));   y = c f(q)",
        "64 features, κ(k,k) = 1",
        "key 64, value 64, heads 8, time 4096",
        "8 × (64 × 64) float32   128 KiB a sequence, constant in time",
        "because  the kernel has finitely many features, the write is affine in what it recalls",
        "needs an additive write: this one reads what it writes",
        'rate = FromInput("sigmoid")             read off the token, per head',
        # four projections of 512 × 512, β of 8 × 512 + 8, α of the same with 8 more, a norm of 64
        "1 056 856 parameters   key, query, value, norm, output, rate, log_decay",
        "cite       schlag2021linear, yang2024parallelizing, yang2024gated",
    ):
        assert line in page
    assert "growing with time" in md.explain(zoo.softmax())
    assert "part first" in md.explain(zoo.ada_transformer())
    for make in zoo.catalogue().values():
        assert md.explain(make()).startswith("Memory  ")


def test_measure_times_every_legal_plan():
    memory = md.Memory(md.Dot(), md.Delta(0.5))
    found = md.measure(memory, md.Dims(key=4, value=4, time=8), repeats=1)
    chosen = md.plan(memory, md.Dims(key=4, value=4, time=8))
    assert {m.name for m in found} == {rule.name for rule, _ in chosen.choices[0].legal}
    assert all(m.forward > 0 and m.backward > 0 for m in found)


def counted(memory, **options):
    """A jitted run that counts its traces."""
    traces = []

    @jax.jit
    def go(state, keys, values, knob):
        traces.append(1)
        return md.run(memory, state, keys, values, keys, **options, **knob)

    return go, traces


def test_sweeping_a_knob_and_filling_a_buffer_never_retraces():
    memory = md.Memory(
        md.RBF(scale=md.Knob(1.0)), md.Delta(md.Knob(0.5)), md.Novelty(0.1), md.Budget(5)
    )
    go, traces = counted(memory)
    state = md.empty(memory, 2, 1)
    keys = jax.random.normal(jax.random.key(0), (3, 2), jnp.float32)
    values = keys[:, :1]
    for scale, rate in ((1.0, 0.5), (0.3, 0.5), (2.0, 0.9)):
        knob = {"scale": jnp.float32(scale), "rate": jnp.float32(rate)}
        state, _ = go(state, keys + scale, values, knob)
    assert int(state.counts.admitted) > 5
    assert len(traces) == 1


def test_a_plain_float_is_static_and_a_knob_is_the_same_number():
    keys = jax.random.normal(jax.random.key(0), (4, 2), jnp.float32)
    outs = []
    for scale in (0.7, md.Knob(0.7)):
        memory = md.Memory(md.RBF(scale=scale), md.Delta(0.5))
        state = md.empty(memory, 2, 2, capacity=4)
        outs.append(md.run(memory, state, keys, keys, keys)[1])
    assert jnp.allclose(*outs, atol=1e-6)


def test_signals_are_checked_before_anything_runs():
    memory = zoo.gated_delta_net()
    state = md.empty(memory, 4, 4)
    keys = jnp.ones((3, 4), jnp.float32)
    rate, decay = jnp.ones(3, jnp.float32), jnp.zeros(3, jnp.float32)
    with pytest.raises(md.SpecError, match="The signal 'log_decay' is missing"):
        md.run(memory, state, keys, keys, keys, rate=rate)
    with pytest.raises(md.SpecError, match="has no signal 'beta'"):
        md.run(memory, state, keys, keys, keys, beta=rate)
    with pytest.raises(md.SpecError, match=r"'rate' has shape \(2,\), and \(time=3\) is expected"):
        md.run(memory, state, keys, keys, keys, rate=rate[:2], log_decay=decay)
    with pytest.raises(md.SpecError, match="3 keys and 2 queries"):
        md.run(memory, state, keys, keys, keys[:2], rate=rate, log_decay=decay)
    with pytest.raises(md.SpecError, match="The state has 1 parts, and the memory 2"):
        md.run(memory + memory, state, keys, keys, keys)


def test_a_wrong_shape_is_a_type_error_that_names_the_argument():
    """The canary of the type checker: it must be on at the public boundary."""
    memory = md.Memory(md.Dot(), md.Delta(0.5))
    state = md.empty(memory, 4, 4)
    with pytest.raises(Exception, match="values") as caught:
        md.run(memory, state, jnp.ones((3, 4), jnp.float32), jnp.ones(3, jnp.float32))
    assert "TypeCheckError" in type(caught.value).__name__


def test_a_buffer_without_a_bound_asks_for_one():
    with pytest.raises(md.SpecError, match="keeps every atom"):
        md.empty(zoo.softmax(), 4, 4)


def test_a_memory_whose_reads_leave_traces_is_not_boosted():
    used = md.Memory(md.RBF(), md.Delta(0.5), capacity=md.Budget(3, md.LeastUsed()))
    with pytest.raises(md.SpecError, match="evicts what is least used cannot be boosted"):
        md.plan(used.boost(zoo.klms()), DIMS)


def test_a_network_says_how_it_runs():
    page = md.explain(md.zoo.titans_mlp(), md.Dims(key=8, value=8, heads=2, time=64))
    assert "s ← μ s − β ∂Squared(f₀(k), v)/∂θ;   θ ← θ + s, f₀ of 16 tokens" in page
    assert "a network 8 → 64 → 8" in page and "the function is a network" in page
    names = [r.name for r, _ in md.plan(md.zoo.ttt_mlp(), md.Dims(key=8, value=8)).choices[0].legal]
    assert sorted(names) == ["network / minibatch", "network / recurrent"]
    with pytest.raises(md.SpecError, match="no minibatch has one function of its own"):
        md.plan(md.Network(md.Descent()), md.Dims(key=8, value=8), using="network / minibatch")
    with pytest.raises(md.SpecError, match="retention stands between"):
        md.plan(md.zoo.memora(), md.Dims(key=8, value=8), using="matrix / chunkwise (16)")
