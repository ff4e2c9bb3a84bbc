"""What the laws are tested over: lists of every sort, memories, and inputs for any memory.

Coverage grows by adding a line to a list. `covering()` makes memories in which every two entries of
two lists meet, where the specs allow it; `products()` makes every memory there is.
"""

import itertools
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import memdsl as md
from memdsl.plan._channels import feature_sizes
from memdsl.plan._tree import parts as parts_of
from memdsl.spec._facts import needed_keys, pairs_per_token
from memdsl.spec._feature import Weight
from memdsl.spec._gate import forgets
from memdsl.spec._memory import Rewired
from memdsl.spec._number import leaves as number_leaves
from memdsl.spec._rewired import sizes_of
from memdsl.spec._slots import key_channels, peel, slots
from memdsl.spec._streams import Sizes


KEY, VALUE, TIME = 3, 2, 6


def law(test: Any) -> Any:
    """A test over a few seeds: a quarter of what the profile says, since every one runs the oracle."""
    examples = max(settings.default.max_examples // 4, 2)
    return settings(max_examples=examples)(given(seed=st.integers(0, 2**31 - 1))(test))


def some_of(names: Iterable[str], every: int) -> list[Any]:
    """The names in order, of each `every` the first by default and the others marked slow: compiling is
    what tests cost, and `-m slow` runs the rest."""
    return [
        pytest.param(name, marks=[pytest.mark.slow] if index % every else [], id=name)
        for index, name in enumerate(sorted(names))
    ]


from_input = md.FromInput("sigmoid")

FEATURES: dict[str, Any] = {
    "identity": md.spec._feature.Identity(),
    "elu": md.EluPlusOne(),
    "relu": md.Relu(),
    "silu_l2": md.Silu() >> md.L2Norm(),
    "softmax": md.Softmax(),
    "sum": md.Relu() >> md.SumNorm(),
    "scale": md.Scale(0.5),
    "taylor": md.Taylor(),
    "dpfp": md.Dpfp(2),
    "fourier": md.RandomFourier(4),
    "positive_fourier": md.RandomFourier(4, spectrum="exp", scale=2.0),
    "matern_fourier": md.RandomFourier(4, spectrum="matern52"),
    "elu_sum": md.EluPlusOne() >> md.SumNorm(),
    "layer_norm": md.LayerNorm(epsilon=0.1, residual=True),
}
TRAINED_FEATURES: dict[str, Any] = {"linear": md.Linear(4), "hedgehog": md.Hedgehog()}

KERNELS: dict[str, Any] = {
    "dot": md.Dot(),
    "constant": md.Constant(0.7),
    "polynomial": md.Polynomial(2, offset=0.5),
    "cubic": md.Polynomial(3),
    "rbf": md.RBF(scale=1.5),
    "laplace": md.Laplace(scale=2.0),
    "matern32": md.Matern32(),
    "matern52": md.Matern52(scale=1.3),
    "rational": md.RationalQuadratic(scale=1.2, mixture=0.8),
    "softmax": md.Exp(0.5 * md.Dot()),
    "sum": md.Dot() + md.Constant(0.5),
    "product": md.Dot() * md.RBF(scale=2.0),
    "exp_sum": md.Exp(0.3 * md.Dot()) + md.RBF(),
    "elu": md.Dot().pullback(md.EluPlusOne()),
    "delta_net": md.Dot().pullback(md.Silu() >> md.L2Norm()),
    "taylor": md.Dot().pullback(md.Taylor()),
    "squared": md.Polynomial(2, offset=1.0).pullback(md.L2Norm()),
    "rbf_after": md.RBF().pullback(md.Scale(0.5)),
    "twice": md.Dot().pullback(md.Relu()).pullback(md.Silu()),
    "divided": md.Polynomial(2) / 2.0,
}
TRACED_KERNELS: dict[str, Any] = {
    "knob": md.RBF(scale=md.Knob(1.2)),
    "learned": md.Exp(md.Learned(0.4, squash="softplus") * md.Dot()),
    "root": md.Exp(md.InverseRoot("key") * md.Dot()),
    "hedgehog": md.Dot().pullback(md.Hedgehog()),
    "linear": md.Dot().pullback(md.Linear(4)),
}

WRITES: dict[str, Any] = {
    "hebb": md.Hebb(),
    "hebb_rate": md.Hebb(from_input),
    "delta": md.Delta(0.5),
    "delta_rate": md.Delta(from_input),
    "channels": md.Delta(md.FromInput("sigmoid", per="value_channel")),
    "previous": md.Delta(0.6, recall="previous"),
    "implicit": md.Delta(0.7, implicit=True),
    "normalised": md.Delta(0.8, normalise=0.1),
    "erase": md.Delta(0.5, erase="own"),
    "remove": md.Delta(0.5, erase="own", remove="own", recall="previous"),
    "gates": md.Delta(
        erase_gate=md.FromInput("sigmoid", per="key_channel"),
        write_gate=md.FromInput("sigmoid", per="value_channel"),
    ),
    "on_atoms": md.Delta(0.4, on="atoms", normalise=0.1),
    "squared": md.Descent(md.Squared(), rate=0.3),
    "steps": md.Descent(md.Squared(), rate=0.2, steps=3),
    "power": md.Descent(md.Power(3.0), rate=0.1),
    "huber": md.Descent(md.Huber(0.5), rate=from_input),
    "huber_norm": md.Descent(md.Huber(0.5, by="norm"), rate=0.4, recall="previous"),
    "hinge": md.Descent(md.Hinge(), rate=0.3),
    "entropy": md.Descent(md.CrossEntropy(), rate=0.3),
    "momentum": md.Descent(md.Squared(), rate=0.2, momentum=0.6),
    "titans": md.Descent(rate=from_input, momentum=md.FromInput("sigmoid"), recall="previous"),
    "window": md.Descent(md.Squared(), rate=0.2, window=3),
    "omega": md.Descent(md.Huber(1.0), rate=from_input, window=2, momentum=0.5),
    "minibatch": md.Descent(
        rate=from_input, momentum=0.5, minibatch=3, gain=md.FromInput("softplus")
    ),
    "orthogonal": md.Descent(rate=from_input, momentum=0.6, orthogonalise=True, gain=0.3),
    "ridge": md.Ridge(0.8),
    "ridge_rate": md.Ridge(md.Learned(0.5, squash="softplus"), rate=from_input),
    "mesa": md.Ridge(md.Learned(0.5, per="key_channel"), rate=from_input),
    "gauss_seidel": md.Ridge(0.8, solver=md.GaussSeidel(2)),
    "gradients": md.Ridge(0.8, solver=md.ConjugateGradient(steps=60)),
    "frozen": md.Reweight(0.5),
    "exact": md.Reweight(0.3, spread=1.3, negative="exact"),
    "damped": md.Reweight(0.3, negative="damped"),
    "clip": md.Reweight(0.3, negative="clip"),
    "gauge": md.Reweight(from_input, negative="gauge"),
    "centred": md.Reweight(0.3, negative="centred", margin=0.1),
    "of_squared": md.Reweight(0.4, negative="clip", loss=md.Squared(), scale_free=True),
    "product": md.Delta(from_input).times(2),
    "twice": md.Hebb().times(2),
}

GATES: dict[str, Any] = {
    "keep": md.Keep(),
    "decay": md.Decay(0.8),
    "input": md.Decay(md.FromInput("sigmoid", bias=2.0)),
    "knob": md.Decay(md.Knob(0.9)),
    "diagonal": md.DiagonalDecay(md.FromInput("sigmoid", per="key_channel")),
    "of_values": md.ValueDecay(md.FromInput("sigmoid", per="value_channel")),
    "both": md.Decay(0.9) @ md.ValueDecay(0.7) @ md.DiagonalDecay(0.8),
    "key_decay": md.KeyDecay(md.FromInput("sigmoid", per="key_channel")),
    "householder": md.Decay(0.9) @ md.Householder(0.6) @ md.KeyDecay(0.8),
    "reset": md.Reset() @ md.Decay(0.7),
    "soft": md.Decay(0.9) @ md.SoftThreshold(0.02),
    "mirror": md.LqNorm(3.0) @ md.Decay(from_input),
    "simplex": md.Simplex(md.FromInput("sigmoid", bias=2.0)),
    "novelty": md.Novelty(0.9),
    "coherence": md.Coherence(0.8) @ md.Decay(0.9),
    "surprise": md.Surprise(0.8),
    "never": md.Never(),
}

CAPACITIES: dict[str, Any] = {
    "all": md.All(),
    "window": md.Window(3),
    "sinks": md.Window(2, sinks=1),
    "oldest": md.Budget(3),
    "pinned": md.Budget(3, md.Oldest(sinks=1), md.AddToNearest()),
    "smallest": md.Budget(3, md.Smallest(), md.Project(1e-3)),
    "pairwise": md.Budget(3, md.Smallest(), md.Pairwise()),
    "least_used": md.Budget(3, md.LeastUsed(0.5)),
    "leave_one_out": md.Budget(3, md.LeaveOneOut(0.1), md.AddToNearest()),
    "random": md.Budget(3, md.Random(seed=1)),
    "reservoir": md.Budget(3, md.Random(seed=2, reservoir=True), md.AddToNearest()),
}

READS: dict[str, Any] = {
    "evaluate": md.Evaluate(),
    "scaled": md.Evaluate(scale=md.InverseRoot("key")),
    "normalised": md.Normalised(),
    "prior": md.Normalised(scale=0.5, prior=1.0),
    "learned_prior": md.Normalised(prior=md.Learned(0.7, squash="exp")),
    "local": md.LocalLinear(0.5),
    "local_learned": md.Before(md.LocalLinear(md.Learned(0.3, squash="softplus"))),
    "local_nearest": md.TopK(4, md.LocalLinear(2.0)),
    "before": md.Before(),
    "before_mean": md.Before(md.Normalised(prior=0.5)),
    "bonus": md.Before(md.Evaluate(0.5), bonus=md.Learned(per="key_channel")),
    "own": md.Before(md.Normalised(prior=0.2), bonus=md.Learned(0.7, squash="exp")),
    "own_nearest": md.Before(md.TopK(2), bonus=0.6),
    "nearest": md.TopK(2),
    "nearest_by": md.TopK(2, by=md.Dot().pullback(md.Slice(1, 3))),
    "nearest_sum": md.TopK(2, md.Evaluate()),
    "blocks": md.TopBlocks(2, 2, first=0, latest=1),
    "blocks_sum": md.Before(md.TopBlocks(2, 1, md.Evaluate(0.5), latest=1)),
    "blocks_group": md.TopBlocks(2, 2, md.LocalLinear(0.5), group=3, first=0, latest=1),
    "blocks_own": md.Before(md.TopBlocks(2, 2, first=0, latest=1), bonus=0.6),
}

_ones = md.Weight(vector=True, start="ones")
_dot = md.Memory(md.Dot(), md.Delta(0.4), md.Decay(0.9))
_rbf = md.Memory(md.RBF(scale=1.5), md.Delta(0.5))
_softmax = md.Memory(md.Exp(md.InverseRoot("key") * md.Dot()), read=md.Normalised())

_soft = md.Memory(md.Dot(), md.Hebb(from_input), md.Decay(from_input))
_unit = md.Key() >> md.L2Norm()
_mean = md.Memory(md.Constant(), capacity=md.Window(3), read=md.Normalised()).of(value=md.Key())
_squares = md.Memory(md.Constant(), md.Hebb(from_input), md.Decay(0.8)).of(value=_unit * _unit)
_per_value = md.FromInput("sigmoid", per="value_channel")
_own = md.Memory(md.RBF(), read=md.Before(md.Normalised(prior=0.2), bonus=0.5))

COMPOSITES: dict[str, Any] = {
    "initial": _dot.replace(initial=md.Learned()),
    "initial_diagonal": md.Memory(
        md.Dot().pullback(md.Dpfp(2)),
        md.Delta(from_input),
        md.DiagonalDecay(md.FromInput("sigmoid", per="key_channel")),
        initial=md.Learned(),
    ),
    "initial_momentum": md.Memory(
        md.Dot(), md.Descent(rate=0.2, momentum=0.5), md.Decay(0.9), initial=md.Learned()
    ),
    "schedule": md.Memory(
        md.Dot(),
        md.Delta(
            md.Schedule("linear_schedule", init_value=0.8, end_value=0.1, transition_steps=4)
        ),
    ),
    "indexed": _softmax.replace(
        kernel=md.Exp(md.Dot()).pullback(md.Slice(0, 2)),
        gate=md.Decay(0.8),
        read=md.TopK(3, md.Normalised(prior=0.3), by=md.RBF(md.Learned(0.5)).pullback(md.Linear(2))),
    ),
    "indexed_local": md.Memory(
        md.RBF(scale=1.5).pullback(md.Slice(0, 2)),
        read=md.TopK(4, md.LocalLinear(0.4), by=md.Dot().pullback(md.Slice(1, 3))),
    ),
    "level_local": md.level(2, _softmax.replace(read=md.LocalLinear(0.7))) + _dot,
    "every_local": md.every(2, md.Memory(md.Polynomial(2), read=md.LocalLinear(0.7))),
    "grouped": _softmax.replace(
        kernel=md.Exp(md.Learned(0.7) * md.Dot()).pullback(md.Slice(0, 1)),
        gate=md.Decay(from_input),
        read=md.TopBlocks(2, 2, md.Normalised(prior=0.3), group=3, first=0, latest=1),
    ),
    "level_blocks": md.level(2, _softmax.replace(read=md.TopBlocks(2, 1, first=0, latest=1))),
    "wall": _softmax.replace(gate=md.KeyDecay(md.FromInput("sigmoid", per="key_channel"))),
    "path": _softmax.replace(gate=md.Householder(from_input) @ md.Decay(0.9)),
    "initial_householder": _dot.replace(initial=md.Learned(), gate=md.Householder(from_input)),
    "levels": from_input * md.level(2, _soft),
    "level_mean": md.level(2, _softmax.replace(gate=md.Decay(0.9))) + md.level(3, _own),
    "every_level": md.every(2, md.level(1, _softmax.replace(gate=md.Decay(0.9)))),
    "zero": md.Zero() + _dot,
    "hybrid": _softmax.replace(capacity=md.Window(3)) + _dot,
    "scaled": 0.5 * _dot + md.FromInput("sigmoid", per="value_channel") * _rbf,
    "mapped": _dot >> md.Silu() >> md.L2Norm(),
    "chained": _rbf >> md.Linear(KEY) >> md.Memory(md.RBF(), md.Hebb(0.3)),
    "boosted": _dot.boost(_rbf),
    "boosted_mean": _softmax.boost(md.Memory(md.Dot(), md.Descent(md.Huber(0.3), rate=0.5))),
    "oja": md.Memory(md.Dot().pullback(md.L2Norm()), md.Delta(from_input)).transpose(),
    "gated_oja": md.Memory(
        md.Dot(), md.Delta(0.5), md.DiagonalDecay(md.FromInput("sigmoid", per="key_channel"))
    ).transpose(),
    "every": md.every(2, _dot),
    "every_bonus": md.every(2, _softmax.replace(read=md.Before(md.Normalised(), bonus=0.7))),
    "oja_bonus": _dot.replace(read=md.Before(bonus=0.5)).transpose(),
    "boosted_bonus": _dot.replace(read=md.Before(bonus=0.5)).boost(_rbf),
    "every_sum": md.every(3, _rbf + _dot.replace(read=md.Before())),
    "nested": md.every(2, md.every(2, _softmax)) + 0.5 * _rbf,
    "boosted_every": _dot.boost(md.every(2, _rbf)),
    "used": md.Memory(md.RBF(), md.Delta(0.5), capacity=md.Budget(3, md.LeastUsed(0.9))) + _dot,
    "klms": md.Memory(
        md.RBF(scale=1.0), md.Delta(0.5), md.Novelty(1.2), md.Budget(3, merge=md.AddToNearest())
    ),
    "klms_project": md.Memory(
        md.Laplace(), md.Delta(0.5), md.Novelty(1.2) @ md.Decay(0.8),
        md.Budget(3, md.Smallest(), md.Project()),
    ),
    "weighted_softmax": md.Memory(
        md.Exp(0.5 * md.Dot()), md.Reweight(0.5, negative="clip"), md.Decay(0.9),
        md.Budget(3, md.Smallest()), md.Normalised(prior=1.0),
    ),
    "network": md.Network(
        md.Descent(md.Huber(0.5).after(md.LayerNorm(_ones, epsilon=0.1)), from_input, minibatch=2),
        (3,), md.Decay(from_input), before=md.L2Norm(), after=md.LayerNorm(_ones, _ones),
    ),
    "boosted_network": _dot.boost(
        md.Network(
            md.Descent(rate=from_input, window=2, momentum=0.5), initial=md.Learned()
        )
    ),
    "every_minibatch": md.every(
        2, md.Memory(md.Dot(), md.Descent(rate=0.3, minibatch=2)).transpose()
    ),
    "preconditioned": md.Memory(md.Dot(), md.Delta(0.5, erase="own"), md.Decay(0.9)).of(
        key=_unit * (md.Answer(_squares) >> md.Preconditioner(md.Learned(0.3))),
        erase=_unit, query=md.Query() >> md.Linear(KEY),
    ),
    "slots": (
        md.Memory(md.Dot(), gate=md.ValueDecay(_per_value)).of(value=md.Own())
        >> md.Softmax()
        >> _softmax.of(key=md.Own())
    ).of(own=md.FromInput("tanh", per="key_channel"), own_size=4),
    "averaged": (
        md.Memory(md.Dot(), md.Hebb(from_input)).averaged("value").of(value=md.Own())
        >> md.Memory(md.Dot()).averaged("key").of(key=md.Own())
    ).of(own=md.FromInput("softplus", per="value_channel")),
    "nsa": md.zoo.nsa(2, 3, 2),
    "averaged_before": md.Memory(md.Dot(), read=md.Before()).averaged("key"),
    "boosted_rewired": _softmax.of(query=md.Query() + md.Answer(_mean)).boost(_rbf),
    "every_rewired": md.every(2, _softmax).of(key=md.Answer(_mean)) + md.every(
        2, _dot.of(key=md.Key() * md.Own(), own=md.Learned(0.5))
    ),
    "ada": _softmax >> md.Linear(KEY) >> md.Memory(md.Dot(), initial=md.Learned()),
}  # fmt: skip


def memory(**parts: Any) -> Any:
    """The memory, or `None` where its parts have no meaning together."""
    try:
        return md.Memory(**parts)
    except md.SpecError:
        return None


LISTS: dict[str, dict[str, Any]] = {
    "kernel": {**KERNELS, **TRACED_KERNELS},
    "write": WRITES,
    "gate": GATES,
    "capacity": CAPACITIES,
    "read": READS,
}


def products() -> Iterator[tuple[str, Any]]:
    """Every memory that the lists make."""
    for names in itertools.product(*LISTS.values()):
        parts = {sort: LISTS[sort][n] for sort, n in zip(LISTS, names, strict=True)}
        made = memory(**parts)
        if made is not None:
            yield "-".join(names), made


def covering(meetings: int | None = None) -> dict[str, Any]:
    """Few memories in which every two entries of two lists meet, where the specs allow it.

    With `meetings`, every entry is only asked to be in so many memories.
    """
    sorts, generator = list(LISTS), np.random.default_rng(0)

    def what_meets(names: list[str]) -> set[Any]:
        if meetings is None:
            return {((i, names[i]), (j, names[j])) for j in range(len(sorts)) for i in range(j)}
        return set(enumerate(names))

    missing = Counter[Any]()
    for i, j in itertools.combinations(range(len(sorts)), 2):
        for a, b in itertools.product(LISTS[sorts[i]], LISTS[sorts[j]]):
            if meetings is None:
                missing[(i, a), (j, b)] = 1
            else:
                missing[i, a], missing[j, b] = meetings, meetings
    found: dict[str, Any] = {}
    for wanted in sorted(missing):
        while missing[wanted] > 0:
            best: tuple[int, Any, Any] = (0, None, None)
            for _ in range(40):
                names = [str(generator.choice(list(LISTS[sort]))) for sort in sorts]
                for i, name in [wanted] if meetings else wanted:
                    names[i] = name
                made = memory(**{s: LISTS[s][n] for s, n in zip(sorts, names, strict=True)})
                new = sum(missing[met] > 0 for met in what_meets(names))
                if made is not None and "-".join(names) not in found and new > best[0]:
                    best = (new, names, made)
            if best[1] is None:
                break  # no memory has this
            found["-".join(best[1])] = best[2]
            missing.subtract(what_meets(best[1]))
    return found


def _sized(spec: Any, sizes: Sizes, prefix: str = "") -> Iterator[tuple[str, Any, Sizes]]:
    """`(prefix, memory, sizes of what it is given)` of every part of a memory."""
    yield prefix, spec, sizes
    for name, part in parts_of(spec):
        yield from _sized(part, sizes_of(spec, name, sizes), f"{prefix}{name}.")


def inputs(
    spec: Any, seed: int, time: int = TIME, key: int = KEY, value: int = VALUE
) -> dict[str, Any]:
    """Random `keys`, `values`, `queries`, further streams and signals for any memory."""
    generator = np.random.default_rng([seed, zlib.crc32(repr(spec).encode())])

    def normal(*shape: int) -> jax.Array:
        return jnp.asarray(generator.standard_normal(shape))

    parts = list(_sized(spec, Sizes(key, value, key)))
    inside = dict(feature_sizes(spec, key, value))
    leaves = [leaf for _, leaf, _ in parts if isinstance(leaf, md.Memory | md.Network)]
    pairs = max((pairs_per_token(leaf.write) for leaf in leaves), default=1)
    made = {
        "keys": normal(time * pairs, key),
        "values": normal(time * pairs, value),
        "queries": normal(time, key),
    }
    for name in sorted(needed_keys(spec)):
        made[name] = normal(time * pairs, key)
    for leaf in leaves:
        if any(isinstance(gate, md.Reset) for gate in forgets(leaf.gate)):
            made["starts"] = jnp.asarray(generator.random(time) < 0.3)
    for slot in slots(spec):
        if all(isinstance(leaf, md.InverseRoot) for leaf in number_leaves(slot.number)):
            continue
        if any(isinstance(leaf, md.Schedule) for leaf in number_leaves(slot.number)):
            continue
        _, part, given = max(
            (p for p in parts if slot.path.startswith(p[0])), key=lambda p: len(p[0])
        )
        k, v = given.key or 0, given.value or 0
        sizes = {"key": k, "value": v, "in": inside.get(slot.path.rpartition(".")[0], k)}
        if isinstance(part, Rewired):
            sizes["key"] = sizes["value"] = sizes_of(part, "own", given).own or 0
        if isinstance(part, md.Memory):
            peeled, feature = peel(part)
            sizes["key"] = feature.size(k)
            sizes["features"] = int(min(peeled.kernel.rank(sizes["key"]), 1000))
            if ".strength" in slot.path or "gate." in slot.path:
                sizes["key"] = key_channels(part, k)
        if isinstance(part, md.Network):
            sizes["parameters"] = part.count(k, v)
        if isinstance(slot.number, Weight):
            rows = sizes["in"] if slot.number.rows is None else slot.number.rows
            made[slot.name] = normal(*((rows,) if slot.number.vector else (rows, sizes["in"])))
            continue
        rows = pairs if slot.path.split(".")[-2:-1] == ["write"] else 1
        shape = tuple(time * rows if axis == "time" else sizes[axis] for axis in slot.axes)
        if slot.path.endswith("initial"):
            made[slot.name] = normal(*shape)
        elif slot.log:
            made[slot.name] = jnp.asarray(-generator.uniform(0, 1, shape))
        else:
            made[slot.name] = jnp.asarray(generator.uniform(0.2, 0.9, shape))
    return made


def close(a: Any, b: Any, tolerance: float = 1e-9) -> None:
    """Asserts that two arrays agree, relative to their size."""
    a, b = np.asarray(a), np.asarray(b)
    assert a.shape == b.shape, (a.shape, b.shape)
    assert np.all(np.isfinite(a)) and np.all(np.isfinite(b))
    np.testing.assert_allclose(
        a, b, rtol=tolerance, atol=tolerance * (1 + np.abs(b).max(initial=0))
    )


def random(seed: int, *shape: int) -> jax.Array:
    """A random array."""
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape))
