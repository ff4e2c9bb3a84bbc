"""Drawing from a language model: the prompt in one piece, then token by token."""

import itertools
import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import memdsl as md

from .helpers import some_of


PROMPT = jnp.array([3, 1, 4, 1, 5])


def block(memory: md.AbstractMemory, **kind: int) -> md.AbstractLayer:
    return md.Residual(md.Norm() >> md.Layer(memory, heads=2, **kind))


def language_model(*memories: md.AbstractMemory) -> md.AbstractModule:
    """A hybrid stack over 11 tokens, of sharp opinions."""
    spec = md.Embed(11)
    for memory in memories:
        spec = spec >> block(memory, convolution=3)
    model = md.build(spec >> md.Norm() >> md.Unembed(), md.Dims(model=8), key=jax.random.key(0))
    return eqx.tree_at(lambda m: m.layers[-1].weight, model, replace_fn=lambda w: 4 * w)


MODELS = {
    "delta_net": (md.zoo.delta_net(),),
    "hybrid": (md.zoo.gated_delta_net(), md.zoo.softmax(), md.zoo.sliding_window()),
    "ridge": (md.zoo.mesa_net(), md.zoo.rbf_delta()),
}


@pytest.mark.parametrize("name", some_of(MODELS, 3))
def test_the_likeliest_tokens_are_those_of_the_whole_sequence(name: str):
    model = language_model(*MODELS[name])
    drawn = md.generate(model, PROMPT, 6, key=jax.random.key(0), temperature=0.0)
    likeliest = jnp.argmax(
        model(jnp.concatenate([PROMPT, drawn[:-1].astype(PROMPT.dtype)])), axis=-1
    )
    assert likeliest[len(PROMPT) - 1 :].tolist() == drawn.tolist()


def test_a_stream_is_what_is_generated():
    model = language_model(*MODELS["hybrid"])
    kind = dict(key=jax.random.key(2), temperature=0.8, top_k=5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a donated state is used, or there is a warning
        streamed = list(md.stream(model, PROMPT, steps=7, **kind))
    assert streamed == list(map(int, md.generate(model, PROMPT, 7, **kind)))


def test_a_stream_of_a_memory_of_constant_size_goes_on_for_ever():
    model = language_model(*MODELS["delta_net"])
    tokens = itertools.islice(md.stream(model, PROMPT, key=jax.random.key(2)), 40)
    assert len(list(tokens)) == 40


def test_draws_have_the_probabilities_of_the_model():
    """Of 4000 draws each token's share is within four standard deviations of its probability."""
    model = language_model(*MODELS["delta_net"])
    keys = jax.random.split(jax.random.key(3), 4000)
    for temperature in (1.0, 0.5):
        expected = np.asarray(jax.nn.softmax(model(PROMPT)[-1] / temperature))
        draw = lambda key: md.generate(model, PROMPT, 1, key=key, temperature=temperature)  # noqa: E731,B023
        counts = np.bincount(np.asarray(jax.vmap(draw)(keys))[:, 0], minlength=11)
        deviation = np.sqrt(4000 * expected * (1 - expected))
        assert np.all(np.abs(counts - 4000 * expected) <= 4 * deviation + 1)


def test_top_k_draws_among_the_likeliest_alone():
    model = language_model(*MODELS["delta_net"])
    best = set(np.argsort(np.asarray(model(PROMPT)[-1]))[-3:].tolist())
    keys = jax.random.split(jax.random.key(4), 200)
    draw = lambda key: md.generate(model, PROMPT, 1, key=key, temperature=2.0, top_k=3)  # noqa: E731
    assert set(np.asarray(jax.vmap(draw)(keys))[:, 0].tolist()) == best


def test_a_batch_is_each_prompt_alone():
    model = language_model(*MODELS["hybrid"])
    prompts, keys = jnp.stack([PROMPT, PROMPT[::-1]]), jax.random.split(jax.random.key(5), 2)
    both = jax.vmap(lambda prompt, key: md.generate(model, prompt, 4, key=key))(prompts, keys)
    for row, prompt, key in zip(both, prompts, keys, strict=True):
        assert row.tolist() == md.generate(model, prompt, 4, key=key).tolist()


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (dict(prompt=PROMPT[:0], steps=3), "An empty prompt has nothing to go on from."),
        (dict(prompt=PROMPT, steps=0), "0 steps draw nothing."),
        (dict(prompt=PROMPT, steps=3, top_k=0), "top_k=0 leaves no token to draw."),
    ],
)
def test_what_draws_nothing_is_refused(kind: dict, message: str):
    with pytest.raises(md.SpecError, match=message):
        md.generate(language_model(*MODELS["delta_net"]), key=jax.random.key(0), **kind)
