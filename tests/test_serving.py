"""Layers as they are served: packed documents, padding, pieces of any size, batches, donated states.

Every law is of a layer as a whole: its memory, its convolution, its token shift, what computes its
numbers. One program a layer answers for most of them, since compiling is what these tests cost.
"""

import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import memdsl as md
from memdsl.state import BufferState

from .helpers import close, some_of
from .test_published import make as make_published, SMALL, width


MODEL, TIME = 8, 6
WINDOW = md.zoo.softmax().replace(capacity=md.Window(3, sinks=1))
BUDGET = md.zoo.rbf_delta().replace(
    gate=md.Novelty(0.3), capacity=md.Budget(4, md.Smallest(), md.AddToNearest())
)


def block(memory: md.AbstractMemory, **kind: Any) -> md.AbstractLayer:
    return md.Residual(md.Norm() >> md.Layer(memory, heads=2, **kind))


SPECS: dict[str, md.AbstractLayer] = {
    "shift": md.Residual(md.Shift()) >> md.ShortConvolution(3, bias=True) >> md.Rotary(4),
    "delta": md.Layer(
        md.zoo.gated_delta_net(), heads=2, convolution=3, activation="silu", output_gate="silu"
    ),
    "budget": md.Layer(BUDGET, heads=2, convolution=3),
    "network": md.Layer(md.zoo.ttt_linear(), heads=2, convolution=2),
    "side by side": md.Layer(WINDOW + md.zoo.gated_delta_net(), heads=2, convolution=3),
    "hybrid": block(md.zoo.delta_net(), convolution=3)
    >> md.Repeat(block(WINDOW, convolution=2) >> md.Residual(md.Norm() >> md.Mlp(2)), 2),
}
PUBLISHED = ("gated_delta_product", "gated_slot_attention", "mamba2", "path_attention", "rwkv7")
LAYERS = (*SPECS, *PUBLISHED)
FEW = [
    name if name in ("shift", "hybrid", "mamba2", "rwkv7")
    else pytest.param(name, marks=pytest.mark.slow)
    for name in LAYERS
]  # fmt: skip
"""For what is long to compile."""
CONSTANT = ("shift", "delta", "budget", "network", "side by side", "mamba2", "rwkv7")
"""The layers whose state is of one size, however many tokens come."""
SEGMENTS = jnp.array([1, 1, 1, 1, 2, 3])  # one longer than the convolutions, and one of one token
fast = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})


def make(name: str, dtype: Any = jnp.float64) -> Any:
    if name in SMALL:
        return make_published(name, dtype=dtype)
    dims = md.Dims(model=MODEL, time=2 * TIME)
    return md.build(SPECS[name], dims, key=jax.random.key(0), dtype=dtype)


def sequence(name: str, seed: int = 1, dtype: Any = jnp.float64) -> Any:
    size = width(name) if name in SMALL else MODEL
    return jax.random.normal(jax.random.key(seed), (TIME, size), dtype)


def kinds(state: Any) -> Any:
    """Structure, shapes and dtypes."""
    return jax.tree.map(lambda a: (a.shape, str(a.dtype)), state)


def equal(state: Any, other: Any) -> None:
    """To the last bit."""
    assert kinds(state) == kinds(other)
    for a, b in zip(jax.tree.leaves(state), jax.tree.leaves(other), strict=True):
        np.testing.assert_array_equal(a, b)


def in_pieces(layer: Any, x: Any, starts: Any, mask: Any, size: int) -> Any:
    """Pieces of a size: a scan, which takes nothing but states that stay of one kind."""
    rows = [a.reshape(-1, size, *a.shape[1:]) for a in (x, starts, mask)]

    def one(state: Any, row: Any) -> Any:
        piece, begins, there = row
        return layer.prefill(piece, state, starts=begins, mask=there)

    state, y = jax.lax.scan(one, layer.init(), rows)
    return state, y.reshape(-1, y.shape[-1])


def alive(state: Any) -> Any:
    """The state with zeros in the slots of buffers that hold nothing, whatever was there before."""

    def of(part: Any) -> Any:
        if not isinstance(part, BufferState):
            return part
        empty = jnp.isneginf(part.log_weight)

        def clear(array: Any) -> Any:
            if array.shape[: empty.ndim] != empty.shape:
                return array
            rows = empty.reshape(*empty.shape, *[1] * (array.ndim - empty.ndim))
            return jnp.where(rows, jnp.zeros_like(array), array)

        return jax.tree.map(clear, part)

    return jax.tree.map(of, state, is_leaf=lambda part: isinstance(part, BufferState))


@pytest.mark.parametrize("name", FEW)
def test_prefill_in_pieces_of_any_size_is_one_pass(name: str):
    """With documents and padding: the answers, the state that is left, and its structure."""
    layer, x = make(name), sequence(name)
    arrays, rest = eqx.partition(layer, eqx.is_array)

    @fast
    def ways(arrays: Any, x: Any, starts: Any, mask: Any) -> Any:
        layer = eqx.combine(arrays, rest)
        whole = layer(x, starts=starts, mask=mask)
        pieces = [in_pieces(layer, x, starts, mask, size) for size in (TIME, 1, 2)]
        return whole, [(alive(state), y) for state, y in pieces]

    everywhere = jnp.ones(TIME, bool)
    for mask in (everywhere, everywhere.at[jnp.array([0, 4])].set(False)):
        starts = md.starts_of(SEGMENTS, mask=mask)
        whole, pieces = ways(arrays, x, starts, mask)
        state, _ = pieces[0]
        assert kinds(state) == kinds(layer.init())
        for after, y in pieces:
            close(y, whole)
            assert kinds(after) == kinds(state)
            for a, b in zip(jax.tree.leaves(after), jax.tree.leaves(state), strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("name", FEW)
def test_nothing_leaks_from_document_to_document(name: str):
    """Packed documents are as they are alone, and all gradients across a border are exactly 0."""
    arrays, rest = eqx.partition(make(name), eqx.is_array)
    starts = md.starts_of(SEGMENTS)
    documents = [np.flatnonzero(number == SEGMENTS) for number in (1, 2, 3)]

    @fast
    def run(arrays: Any, x: Any, cotangents: Any) -> Any:
        layer = eqx.combine(arrays, rest)
        y, back = jax.vjp(lambda x: layer(x, starts=starts), x)
        alone = [layer(x[rows[0] : rows[-1] + 1]) for rows in documents]
        return y, jnp.concatenate(alone), jax.vmap(back)(cotangents)[0]

    x = sequence(name)
    of = jnp.stack([(number == SEGMENTS).astype(x.dtype) for number in (1, 2, 3)])
    cotangents = of[:, :, None] * jax.random.normal(jax.random.key(2), (1, TIME, MODEL), x.dtype)
    y, alone, slopes = run(arrays, x, cotangents)
    close(y, alone)
    for rows, slope in zip(documents, slopes, strict=True):
        inside = np.isin(np.arange(TIME), rows)
        assert not np.any(slope[~inside])
        assert np.all(np.isfinite(slope)) and np.any(slope[inside])


@pytest.mark.parametrize("name", some_of(LAYERS, 3))
def test_padding_is_the_identity_on_the_state(name: str):
    """To the last bit, whatever it holds and wherever documents are said to begin in it."""
    arrays, rest = eqx.partition(make(name), eqx.is_array)
    nothing = jnp.full_like(sequence(name), jnp.nan)

    def piece(arrays: Any, state: Any, x: Any, starts: Any, mask: Any) -> Any:
        return eqx.combine(arrays, rest).prefill(x, state, starts=starts, mask=mask)

    run = fast(piece)
    everywhere, nowhere = jnp.ones(TIME, bool), jnp.zeros(TIME, bool)
    fresh = eqx.combine(arrays, rest).init(2 * TIME)
    left, y = run(arrays, fresh, nothing, everywhere, nowhere)
    assert np.all(np.isfinite(y))
    equal(left, fresh)
    state, y = run(arrays, left, sequence(name), nowhere, everywhere)
    _, wanted = run(arrays, fresh, sequence(name), nowhere, everywhere)
    np.testing.assert_array_equal(y, wanted)
    after, _ = run(arrays, state, nothing, everywhere, nowhere)
    equal(after, state)


@pytest.mark.parametrize("name", some_of(LAYERS, 3))
def test_a_batch_is_served_as_each_alone_and_donates_its_state(name: str):
    """The state of a batch is one array a leaf; stepping makes room for the new one in the old."""
    arrays, rest = eqx.partition(make(name), eqx.is_array)

    def step(arrays: Any, states: Any, tokens: Any) -> Any:
        return jax.vmap(eqx.combine(arrays, rest).step)(states, tokens)

    layer = eqx.combine(arrays, rest)
    serve = functools.partial(fast, donate_argnums=1)(step)
    tokens = jnp.stack([sequence(name, 1), sequence(name, 2)], axis=1)[:3]
    states = jax.tree.map(lambda a: jnp.stack([a, a]), layer.init())
    kind, answers = kinds(states), []
    for row in tokens:
        before = states
        states, y = serve(arrays, states, row)
        assert all(leaf.is_deleted() for leaf in jax.tree.leaves(before))
        assert kinds(states) == kind
        answers.append(y)
    whole = fast(lambda arrays, x: jax.vmap(eqx.combine(arrays, rest))(x))
    close(jnp.stack(answers, axis=1), whole(arrays, jnp.swapaxes(tokens, 0, 1)))


@pytest.mark.parametrize("name", CONSTANT)
def test_states_of_one_size_are_so_however_long_the_sequence(name: str):
    layer = make(name)
    assert kinds(layer.init(400)) == kinds(layer.init(4000))


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16], ids=["single", "half"])
@pytest.mark.parametrize("name", some_of(LAYERS, 3))
def test_states_are_single_under_half_precision(name: str, dtype: Any):
    """From every path, whether the parameters are float32 or bfloat16."""
    layer = make(name, dtype)
    x = sequence(name, dtype=jnp.bfloat16)

    def paths(x: Any) -> Any:
        state, y = layer.prefill(x)
        return state, layer.step(state, x[0])[0], layer.run(x, state, None, None)[0], layer(x), y

    *states, whole, y = jax.eval_shape(paths, x)
    assert y.dtype == whole.dtype == jnp.bfloat16 and whole.shape == y.shape == (TIME, MODEL)
    for state in states:
        assert kinds(state) == kinds(layer.init())
    floats = [a.dtype for a in jax.tree.leaves(states) if jnp.issubdtype(a.dtype, jnp.floating)]
    assert set(floats) == {jnp.dtype(jnp.float32)}


def test_starts_of_documents_that_are_numbered():
    def starts(ids: list[int], **kind: Any) -> list[int]:
        return md.starts_of(jnp.array(ids, int), **kind).astype(int).tolist()

    assert starts([7, 7, 3, 3, 7]) == [1, 0, 1, 0, 1]
    assert starts([]) == []
    assert starts([5, 5], previous=5) == [0, 0] and starts([5], previous=4) == [1]
    there = jnp.array([False, True, False, True, True, False, True])
    assert starts([9, 1, 0, 1, 2, 2, 2], mask=there) == [0, 1, 0, 0, 1, 0, 0]
    assert starts([0, 1, 1], mask=jnp.array([False, True, True]), previous=1) == [0, 0, 0]
    both = jax.vmap(md.starts_of)(jnp.array([[1, 1, 2], [1, 2, 2]]))
    assert both.astype(int).tolist() == [[1, 0, 1], [1, 1, 0]]


@pytest.mark.parametrize("cut", range(TIME + 1))
def test_starts_of_a_piece_go_on_from_the_piece_before(cut: int):
    whole = md.starts_of(SEGMENTS)
    previous = None if cut == 0 else SEGMENTS[cut - 1]
    pieces = md.starts_of(SEGMENTS[:cut]), md.starts_of(SEGMENTS[cut:], previous=previous)
    assert jnp.concatenate(pieces).tolist() == whole.tolist()
