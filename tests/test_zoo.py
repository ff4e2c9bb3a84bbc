"""The memories of the zoo are those of the golden files, wherever there is a file of one."""

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

import memdsl as md
from tests.golden._case import Case, operator
from tests.golden._file import load
from tests.golden._table import compare, legal_plans


def of(name: str, **streams: str) -> Case:
    return operator(lambda _: md.zoo.catalogue()[name](), **streams)


def hgrn(x, c, run):
    # the file has (1 - f) v for its values
    values, log_decay = x.x[:, :, None], x.g[:, :, None]
    one = jnp.ones_like(values[..., :1])
    rate = -jnp.expm1(log_decay)
    answers, state = run(md.zoo.hgrn(), one, values / rate, one, initial=None, rate=rate)
    # the state that the file starts from fades as the answers say
    faded = jnp.exp(jnp.cumsum(x.g, axis=1)) * x.initial_state[:, None]
    final = state.matrix[:, 0, 0] + faded[:, -1]
    return {"o": answers[:, :, 0] + faded, "state": final}


def hgrn2(x, c, run):
    lower = x.lower_bound[None, None]
    f = lower + (1 - lower) * jax.nn.sigmoid(x.f)
    case = of("hgrn2", log_decay="log_f", keys="let_go", queries="asked")
    x.log_f, x.let_go, x.asked = jnp.log(f), 1 - f, jax.nn.silu(x.q)
    return case(x, c, run)


CASES: dict[str, tuple[str, Case]] = {
    "linear_attention_identity": ("linear_attn", of("linear_attention_identity")),
    "simple_gla": ("simple_gla", of("simple_gla", log_decay="g")),
    "gla": ("gla", of("gla", log_decay="gk")),
    "hgrn": ("hgrn", hgrn),
    "hgrn2": ("hgrn2", hgrn2),
    "iplr": ("iplr", of("iplr", erase_keys="a", remove_keys="-b")),
    "dplr": ("dplr", of("dplr", erase_keys="a", remove_keys="-b", log_decay="gk")),
    "based": ("based", of("based")),
    "softmax": ("softmax_attn", of("softmax")),
    "forgetting_attention": ("forgetting_attn", of("forgetting_attention", log_decay="g")),
}


@pytest.mark.parametrize("name", CASES)
def test_a_memory_of_the_zoo_is_the_published_one(name: str):
    file, case = CASES[name]
    golden = load(file)
    plan = legal_plans(golden, case)[0]
    assert compare(golden, case, plan, jnp.float64).worst < 1e-9


DESCENTS = [
    name for name, made in md.zoo.catalogue().items() if made.__module__.endswith("_descents")
]


@pytest.mark.parametrize("name", DESCENTS)
def test_a_descent_of_the_zoo_starts_with_steps_that_it_can_take(name: str):
    """Its answers and gradients are finite in a layer as it is built, in single precision: a memory
    that steps too far for its loss overflows within a few tokens."""
    spec = md.Layer(md.zoo.catalogue()[name](), heads=1, convolution=4, activation="silu")
    layer = md.build(spec, md.Dims(model=32, time=24), key=jax.random.key(0), dtype=jnp.float32)
    x = jax.random.normal(jax.random.key(1), (32, 24, 32), jnp.float32)

    @eqx.filter_jit
    @eqx.filter_value_and_grad
    def total(layer, x):
        return jnp.mean(jax.vmap(layer)(x) ** 2)

    value, gradient = total(layer, x)
    assert jnp.isfinite(value) and value < 100
    assert all(bool(jnp.isfinite(g).all()) for g in jax.tree.leaves(gradient))
