"""Random specs: Hypothesis strategies over everything that can be written down."""

from typing import Any

import jax.numpy as jnp
from hypothesis import strategies as st

import memdsl as md
from memdsl.spec._feature import Identity


class Lorentzian(md.AbstractKernel):
    """A kernel that a user has written, registered nowhere: `1 / (1 + |k - q|^2 / scale^2)`."""

    scale: md.Number = 1.0
    nonnegative = True

    def __call__(self, k, q):
        return 1 / (1 + jnp.sum((k - q) ** 2) / self.scale**2)


NAMES: dict[str, Any] = {**vars(md), "Identity": Identity, "Lorentzian": Lorentzian}
"""What `eval(repr(spec))` needs: the public names, and what the tests define themselves."""

# In nearly every range of a number: positive, at most 1, and so a decay as well.
plain = st.floats(0.05, 0.95)
counts = st.integers(1, 9)


def _one_of(*strategies: Any) -> st.SearchStrategy[Any]:
    """As `st.one_of`, under a short name: Hypothesis writes strategies out in full, deeply nested."""

    @st.composite
    def drawn(draw: Any) -> Any:
        return draw(st.one_of(*strategies))

    return drawn()


def _choices(*names: str | None) -> st.SearchStrategy[Any]:
    return st.sampled_from(names)


_leaves = _one_of(
    plain,
    st.builds(md.Knob, plain),
    st.builds(
        md.Learned,
        plain,
        per=_choices("layer", "head"),
        squash=_choices("identity", "exp", "softplus", "sigmoid"),
    ),
    st.builds(md.InverseRoot, _choices("key", "value", "model")),
)
_sources = _leaves.filter(lambda number: not isinstance(number, float))
# A product of numbers between 0 and 1 stays there.
static = _one_of(_leaves, st.builds(lambda a, b: a * b, _sources, _leaves))
unbounded = _one_of(static, st.builds(lambda a, b: a + b, _leaves, _sources))


def _of_token(*squashes: str, temperature: Any = st.just(1.0)) -> st.SearchStrategy[Any]:
    return st.builds(
        md.FromInput,
        _choices(*squashes),
        bias=st.floats(-4, 4),
        per=_choices("layer", "head"),
        temperature=temperature,
        scale=plain,
        rank=st.none() | counts,
    )


schedules = st.builds(lambda value: md.Schedule("constant_schedule", value=value), plain)
rates = _one_of(unbounded, schedules, _of_token("sigmoid", "softplus", "tanh", "identity"))
_fading = _one_of(static, schedules, _of_token("sigmoid", "dt", temperature=st.floats(1, 16)))
weights = st.builds(md.Weight, start=_choices("orthogonal", "identity", "zeros", "ones"))

_features = _one_of(
    st.sampled_from([Identity(), md.EluPlusOne(), md.Relu(), md.Silu(), md.Softmax()]),
    st.sampled_from([md.L2Norm(), md.SumNorm(1e-3), md.Taylor(), md.Hedgehog(), md.Dpfp(2)]),
    st.builds(md.Scale, plain),
    st.builds(md.L2Norm, plain),
    st.builds(md.Linear, counts),
    st.builds(md.Linear, counts, weights),
    st.builds(md.LayerNorm, st.none() | weights, epsilon=plain, residual=st.booleans()),
    st.builds(
        md.RandomFourier,
        counts,
        _choices("rbf", "laplace", "matern32", "matern52", "exp"),
        plain,
        st.integers(0, 9),
    ),
)
features = _one_of(
    st.recursive(
        _features, lambda inner: st.builds(lambda a, b: a >> b, inner, inner), max_leaves=3
    )
)

_kernels = _one_of(
    st.just(md.Dot()),
    st.builds(md.Constant, static),
    st.builds(md.Polynomial, counts, static),
    st.builds(md.RBF, static),
    st.builds(md.Laplace, static),
    st.builds(md.Matern32, static),
    st.builds(md.Matern52, static),
    st.builds(md.RationalQuadratic, static, static),
    st.builds(Lorentzian, static),
)
kernels = _one_of(
    st.recursive(
        _kernels,
        lambda inner: _one_of(
            st.builds(md.Exp, inner),
            st.builds(lambda a, b: a + b, inner, inner),
            st.builds(lambda a, b: a * b, inner, inner),
            st.builds(lambda c, a: c * a, static, inner),
            st.builds(lambda a, c: a * c, inner, static),
            st.builds(lambda a, c: a / c, inner, plain),
            st.builds(lambda a, f: a.pullback(f), inner, features),
        ),
        max_leaves=4,
    )
)

losses = _one_of(
    st.sampled_from([md.Inner(), md.Squared(), md.Hinge(), md.CrossEntropy()]),
    st.builds(md.Power, st.floats(1.1, 4)),
    st.builds(md.Huber, plain, _choices("coordinate", "norm", "switch")),
    st.builds(md.ValueShift, plain),
    st.builds(lambda loss, feature: loss.after(feature), st.just(md.Squared()), features),
)
solvers = _one_of(
    st.just(md.Cholesky()),
    st.builds(md.ConjugateGradient, counts, plain),
    st.builds(md.GaussSeidel, counts),
)
_writes = _one_of(
    st.builds(md.Hebb, rates),
    st.builds(md.Delta, rates, _choices("decayed", "previous"), normalise=st.none() | plain),
    st.builds(md.Delta, rates, implicit=st.booleans()),
    st.builds(md.Delta, rates, erase=_choices("key", "own"), remove=_choices("key", "own")),
    st.builds(md.Delta, rates, erase_gate=st.none() | rates, write_gate=st.none() | rates),
    st.builds(md.Delta, rates, on=_choices("key", "atoms")),
    st.builds(md.Descent, losses, rates, counts),
    st.builds(md.Descent, losses, rates, st.just(1), counts, st.none() | static, st.booleans()),
    st.builds(md.Descent, losses, rates, minibatch=counts, gain=rates),
    st.builds(md.Ridge, static, static, solvers),
    st.builds(
        md.Reweight,
        static,
        static,
        _choices("frozen", "damped", "clip", "gauge", "centred", "exact"),
        plain,
        st.none() | losses,
        st.booleans(),
        plain,
    ),
)


def _times(write: Any, count: int) -> Any:
    try:
        return write.times(count)
    except md.SpecError:
        return write


writes = _one_of(_writes, st.builds(_times, _writes, counts))

_gates = _one_of(
    st.sampled_from([md.Keep(), md.Reset(), md.Always(), md.Never()]),
    st.builds(md.Decay, _fading),
    st.builds(md.DiagonalDecay, _fading),
    st.builds(md.KeyDecay, _fading),
    st.builds(md.Householder, st.floats(0.0, 2.0)),
    st.builds(md.ValueDecay, _fading),
    st.builds(md.SoftThreshold, static),
    st.builds(md.LqNorm, st.floats(1.1, 4), _choices("exact", "miras")),
    st.builds(md.Simplex, _fading, plain, _choices("features", "values")),
    st.builds(md.Novelty, _one_of(static, st.sampled_from([float("inf"), -float("inf"), -1.0]))),
    st.builds(md.Coherence, static),
    st.builds(md.Surprise, static),
)
gates = _one_of(
    st.recursive(_gates, lambda inner: st.builds(lambda a, b: a @ b, inner, inner), max_leaves=5)
)

evictions = _one_of(
    st.just(md.Smallest()),
    st.builds(md.Oldest, st.integers(0, 3)),
    st.builds(md.LeastUsed, static),
    st.builds(md.LeaveOneOut, static),
    st.builds(md.Random, st.integers(0, 9), st.booleans()),
)
merges = _one_of(
    st.sampled_from([md.Drop(), md.AddToNearest(), md.Pairwise()]), st.builds(md.Project, plain)
)
capacities = _one_of(
    st.just(md.All()),
    st.builds(md.Window, counts, st.integers(0, 3)),
    st.builds(md.Budget, st.integers(4, 99), evictions, merges),
)
_reads = _one_of(
    st.builds(md.Evaluate, static),
    st.builds(md.Normalised, static, static),
    st.builds(md.LocalLinear, static),
)
_few = _one_of(
    _reads,
    st.builds(md.TopK, counts, _reads, by=st.none() | kernels),
    st.builds(md.TopBlocks, st.integers(3, 9), counts, _reads, st.integers(1, 3)),
)
reads = _one_of(
    _few,
    st.builds(md.Before, _few),
    st.builds(md.Before, _few, static),
)


def _memory(kernel: Any, order: Any, **parts: Any) -> md.Memory:
    """A memory with as many of the parts as have a meaning together, taken in some order."""
    memory = md.Memory(kernel)
    for name in order:
        try:
            memory = memory.replace(**{name: parts[name]})
        except md.SpecError:
            continue
    return memory


_parts = ("write", "gate", "capacity", "read", "initial")
leaf_memories = st.builds(
    _memory,
    kernels,
    st.permutations(_parts),
    write=writes,
    gate=gates,
    capacity=capacities,
    read=reads,
    initial=st.none() | st.builds(md.Learned, plain),
)
networks = st.builds(
    md.Network,
    st.builds(md.Descent, losses, rates, momentum=st.none() | static),
    st.lists(counts, max_size=3).map(tuple),
    _one_of(st.just(md.Keep()), st.builds(md.Decay, _fading)),
    activation=_choices("gelu", "silu", "relu", "tanh"),
    bias=st.booleans(),
    before=features,
    residual=st.booleans(),
    initial=st.none() | st.builds(md.Learned, plain),
    seed=st.integers(0, 9),
)


def _transposed(memory: Any) -> Any:
    try:
        return memory.transpose()
    except md.SpecError:
        return memory


def _level(number: int, memory: Any) -> Any:
    try:
        return md.level(number, memory)
    except md.SpecError:
        return memory


_linear = st.builds(lambda rate: md.Memory(md.Dot(), md.Hebb(rate)), rates)
_streams = _one_of(
    st.sampled_from([md.Key(), md.Value(), md.Query()]), st.builds(md.Answer, leaf_memories)
)
streams = st.recursive(
    _streams,
    lambda inner: _one_of(
        st.builds(lambda a, b: a * b, inner, inner),
        st.builds(lambda a, b: a + b, inner, inner),
        st.builds(lambda a, f: a >> f, inner, features),
    ),
    max_leaves=3,
)


def _rewired(memory: md.AbstractMemory, stream: md.AbstractStream) -> md.AbstractMemory:
    """A memory that sees another key, and a vector of its own, where it writes one pair a token."""
    own = md.FromInput("tanh", per="key_channel")
    try:
        return memory.of(key=stream * md.Own(), own=own, own_size=3)
    except md.SpecError:
        return memory


memories = _one_of(
    st.recursive(
        _one_of(leaf_memories, leaf_memories, st.just(md.Zero()), networks),
        lambda inner: _one_of(
            st.builds(lambda a, b: a + b, inner, inner),
            st.builds(lambda c, a: c * a, rates, inner),
            st.builds(lambda a, b: a >> b, inner, inner),
            st.builds(lambda a, f: a >> f, inner, features),
            st.builds(lambda a, b: a.boost(b), inner, inner),
            st.builds(_transposed, inner),
            st.builds(md.every, counts, inner),
            st.builds(_level, counts, inner),
            st.builds(_rewired, inner, streams),
            st.builds(md.Averaged, _linear, _choices("key", "value")),
        ),
        max_leaves=4,
    )
)

_layers = _one_of(
    st.builds(md.Layer, memories, counts, convolution=st.integers(0, 4)),
    st.builds(md.Dense, st.none() | counts, st.booleans()),
    st.builds(md.Mlp, plain),
    st.builds(md.Grown, st.builds(md.Dense, counts), st.builds(md.Memory, kernels)),
    st.sampled_from([md.Norm(), md.Flatten(), md.Embed(9), md.Unembed()]),
)
layers = _one_of(
    st.recursive(
        _layers,
        lambda inner: _one_of(
            st.builds(lambda a, b: a >> b, inner, inner),
            st.builds(lambda a, f: a >> f, inner, features),
            st.builds(md.Residual, inner),
            st.builds(md.Repeat, inner, counts),
        ),
        max_leaves=3,
    )
)

specs: st.SearchStrategy[Any] = _one_of(
    rates, features, kernels, losses, writes, gates, capacities, reads, memories, layers
).filter(lambda spec: not isinstance(spec, float))
"""Any spec, of any sort."""
