"""Which multiples of which tensors an optimiser's step is made of, found by its own code.

Under a tensor are put a few numbers more: what the optimiser keeps for it (s_1 … s_m), the tensor
itself and its gradient get one coordinate each, which is a tiny unit there and 0 elsewhere. If an
update is `Σ a_j s_j + a W + b G`, with scalars that may depend on all there is, then that is what it
does to the coordinates too, and they hold the scalars after it. The unit is a power of two, so that no
digit is lost, and so small that its square adds nothing to a norm.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float

from .._errors import SpecError


Pick = Callable[[Any], list[Any]]
"""The tensors that are followed, of a tree like the parameters."""
Places = tuple[tuple[int, ...], ...]
"""For each of them, which leaves of the optimiser's state are tensors like it."""


class Step(NamedTuple):
    """What one call of the optimiser did."""

    updates: Any
    state: Any
    matrices: list[Float[Array, "new old"]]
    """For each tensor followed: (s_1 … s_m, update) as multiples of (s_1 … s_m, W, G)."""
    errors: list[Float[Array, " new"]]
    """By how much the tensors differ from these sums, relative to the largest of their terms; in the
    narrowest dtype that was used."""


def places_of(optimiser: optax.GradientTransformation, params: Any, pick: Pick) -> Places:
    """Which leaves of the optimiser's state are tensors like the ones that are followed."""
    leaves = jax.tree.leaves(jax.eval_shape(optimiser.init, params))
    found = []
    for index, tensor in enumerate(pick(params)):
        row = jnp.zeros((1, *tensor.shape[1:]), tensor.dtype)
        longer = eqx.tree_at(lambda p, i=index: pick(p)[i], params, jnp.concatenate([tensor, row]))
        others = jax.tree.leaves(jax.eval_shape(optimiser.init, longer))
        own = [i for i, pair in enumerate(zip(leaves, others, strict=True)) if _differ(*pair)]
        for i in own:
            shape, dtype = leaves[i].shape, leaves[i].dtype
            if shape != tensor.shape or not jnp.issubdtype(dtype, jnp.floating):
                refuse(f"what it keeps for a tensor of shape {tensor.shape}: {dtype} of {shape}")
            if jnp.finfo(dtype).bits < 32:
                raise SpecError(
                    f"The optimiser keeps {dtype}.",
                    why="Its rounding is larger than what many examples add.",
                    instead="an optimiser that accumulates in float32.",
                )
        found.append(tuple(own))
    return tuple(found)


def starts_of(
    optimiser: optax.GradientTransformation, params: Any, pick: Pick, places: Places
) -> tuple[np.ndarray, ...]:
    """For each tensor followed: what the optimiser keeps at its start, as multiples of the tensor."""
    tensors = pick(params)
    leaves = jax.tree.leaves(jax.eval_shape(optimiser.init, params))
    units = [_unit([t, *(leaves[i] for i in own)]) for t, own in zip(tensors, places, strict=True)]
    long = [_longer(t, jnp.full(1, unit, t.dtype)) for t, unit in zip(tensors, units, strict=True)]
    state = jax.tree.leaves(optimiser.init(eqx.tree_at(pick, params, long)))
    found = []
    for tensor, own, unit in zip(tensors, places, units, strict=True):
        parts = [_cut(state[i], len(tensor), 1) for i in own]
        scalars = [float(block[0]) / unit for _, block in parts]
        for (kept, _), scalar in zip(parts, scalars, strict=True):
            if not np.allclose(kept, scalar * tensor, rtol=1e-5, atol=0):
                refuse("what it keeps at its start")
        found.append(np.asarray(scalars, np.float64))
    return tuple(found)


def advance(
    optimiser: optax.GradientTransformation,
    params: Any,
    gradients: Any,
    state: Any,
    pick: Pick,
    places: Places,
    value: Array,
) -> Step:
    """One call of the optimiser, and what it did to the coordinates."""
    leaves, tree = jax.tree.flatten(state)
    olds = [
        [*(leaves[i] for i in own), tensor, gradient]
        for own, tensor, gradient in zip(places, pick(params), pick(gradients), strict=True)
    ]
    long = [
        [_longer(old, row) for old, row in zip(tensors, _units(tensors), strict=True)]
        for tensors in olds
    ]
    for own, tensors in zip(places, long, strict=True):
        for place, tensor in zip(own, tensors, strict=False):
            leaves[place] = tensor
    updates, after = optax.with_extra_args_support(optimiser).update(
        eqx.tree_at(pick, gradients, [tensors[-1] for tensors in long]),
        jax.tree.unflatten(tree, leaves),
        eqx.tree_at(pick, params, [tensors[-2] for tensors in long]),
        value=value,
    )
    left, tree = jax.tree.flatten(after)
    matrices, errors, moved = [], [], []
    for own, tensors, update in zip(places, olds, pick(updates), strict=True):
        rows, count, unit = len(tensors[-2]), len(tensors), _unit(tensors)
        parts = [_cut(new, rows, count) for new in [*(left[i] for i in own), update]]
        for place, (new, _) in zip(own, parts, strict=False):
            left[place] = new
        matrix = jnp.stack([block.astype(update.dtype) / unit for _, block in parts])
        apart = [_error(new, row, tensors) for (new, _), row in zip(parts, matrix, strict=True)]
        errors.append(jnp.stack(apart).astype(_narrowest(tensors)))
        matrices.append(matrix)
        moved.append(parts[-1][0])
    updates = eqx.tree_at(pick, updates, moved)
    return Step(updates, jax.tree.unflatten(tree, left), matrices, errors)


def scalars(
    start: np.ndarray, matrices: Sequence[np.ndarray], which: int
) -> tuple[float, Float[np.ndarray, " step"]]:
    """A tensor at the end, as a multiple of W at the start and one of the gradient of every step.

    **Arguments:**

    - `start`: of `starts_of`.
    - `matrices`: of every step, in order.
    - `which`: of (s_1 … s_m, W).
    """
    count = len(start) + 1  # s_1 … s_m, and W
    wanted, found = np.eye(count)[which], np.zeros(len(matrices))
    for step in reversed(range(len(matrices))):
        before = wanted @ matrices[step]
        before[count - 1] += wanted[-1]  # the new W is the old one and its update
        found[step], wanted = before[count], before[:count]
    return float(wanted @ np.append(start, 1.0)), found


def check(step: Step, before: Any, places: Places) -> None:
    """Refuses an optimiser whose step was not the sum that its coordinates say."""
    for own, errors in zip(places, step.errors, strict=True):
        limit = float(jnp.finfo(errors.dtype).eps) ** 0.6
        for place, error in zip([*own, None], np.asarray(errors), strict=True):
            if not error <= limit:
                refuse(
                    "its update" if place is None else f"what it keeps at {_path(before, place)}"
                )


def probe(optimiser: optax.GradientTransformation, params: Any, pick: Pick, places: Places) -> None:
    """Refuses an optimiser that is not linear with scalar factors, by three steps on random gradients
    of growing size."""

    @jax.jit
    def one(params: Any, state: Any, key: Array, size: Array) -> tuple[Any, Step, list[Array]]:
        gradients = _random(params, key, size)
        step = advance(optimiser, params, gradients, state, pick, places, size)
        plain = optax.with_extra_args_support(optimiser).update
        updates, _ = plain(gradients, state, params, value=size)
        pairs = zip(pick(updates), pick(step.updates), strict=True)
        apart = [_relative(jnp.abs(a - b), jnp.max(jnp.abs(a))) for a, b in pairs]
        return eqx.apply_updates(params, step.updates), step, apart

    state = optimiser.init(params)
    for key, size in zip(jax.random.split(jax.random.key(0), 3), (1e-3, 1.0, 1e3), strict=True):
        params, step, apart = one(params, state, key, jnp.asarray(size))
        check(step, state, places)
        if any(not float(error) <= float(jnp.finfo(error.dtype).eps) ** 0.6 for error in apart):
            refuse("its update, which depends on how many numbers a tensor has")
        state = step.state


def refuse(part: str) -> None:
    raise SpecError(
        "The optimiser's steps are not gradients times one number each.",
        where=f"found at {part}",
        why="An example's weight in a layer is one number only if the optimiser does the same to all "
        "numbers of a tensor. Where it scales each by its own history, as Adam, RMSProp, Adafactor "
        "and Lion do, or by a matrix, as Muon does, one step on two examples can change a weight of "
        "any rank, and no weights of these examples give that.",
        instead="optax.sgd(rate, momentum, nesterov), with schedules, optax.add_decayed_weights, "
        "optax.clip_by_global_norm, optax.lars and the like; or a growing layer, md.Grown, over a "
        "network that Adam trains.",
    )


def _differ(a: Any, b: Any) -> bool:
    return a.shape != b.shape


def _narrowest(tensors: Sequence[Any]) -> Any:
    return min((t.dtype for t in tensors), key=lambda dtype: jnp.finfo(dtype).bits)


def _unit(tensors: Sequence[Any]) -> float:
    return 2.0 ** (-530 if jnp.finfo(_narrowest(tensors)).maxexp > 128 else -70)


def _units(tensors: Sequence[Array]) -> list[Array]:
    rows = _unit(tensors) * np.eye(len(tensors))
    return [jnp.asarray(row, t.dtype) for row, t in zip(rows, tensors, strict=True)]


def _longer(tensor: Array, block: Array) -> Array:
    """The tensor with more numbers after it, in rows that are filled up with zeros."""
    width = int(np.prod(tensor.shape[1:]))
    block = jnp.pad(block, (0, -len(block) % width))
    return jnp.concatenate([tensor, block.reshape(-1, *tensor.shape[1:])])


def _cut(tensor: Array, rows: int, count: int) -> tuple[Array, Array]:
    return tensor[:rows], tensor[rows:].reshape(-1)[:count]


def _error(found: Array, multiples: Array, tensors: Sequence[Array]) -> Array:
    terms = [m * t.astype(m.dtype) for m, t in zip(multiples, tensors, strict=True)]
    size = jnp.max(jnp.stack([jnp.max(jnp.abs(term)) for term in terms]))
    return _relative(jnp.abs(sum(terms, -found.astype(multiples.dtype))), size)


def _relative(differences: Array, size: Array) -> Array:
    """The largest difference, relative to `size` or, where that is nothing, to itself."""
    worst = jnp.max(differences)
    return jnp.where(worst == 0, 0, worst / jnp.where(size == 0, worst, size))


def _random(params: Any, key: Array, size: Array) -> Any:
    leaves, tree = jax.tree.flatten(params)
    keys = jax.random.split(key, len(leaves))
    drawn = [
        size.astype(x.dtype) * jax.random.normal(k, x.shape, x.dtype)
        for k, x in zip(keys, leaves, strict=True)
    ]
    return jax.tree.unflatten(tree, drawn)


def _path(state: Any, place: int) -> str:
    path, _ = jax.tree_util.tree_flatten_with_path(state)[0][place]
    return "state" + jax.tree_util.keystr(path)
