"""The optimiser that is the training dual of a memory, as an optax transformation."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from .._errors import SpecError
from .._types import at_least_single
from ..spec._memory import AbstractMemory
from ._capture import Captured
from ._gram import Gram
from ._projection import Projection
from ._rule import Options, Rule, rule_of
from ._step import fade_of, Kept, Now


class DualState(NamedTuple):
    """The state of `md.optim.dual`."""

    steps: Int[Array, ""]
    """How many there were."""
    seen: Float[Array, ""]
    """What all pairs weigh together, those of a step the rate of the write."""
    left: Float[Array, ""]
    """What is left of what was there at the start."""
    knobs: dict[str, tuple[Any, ...]]
    """The `Knob`s of the memory: change them, and nothing compiles anew."""
    matrices: dict[str, Kept]
    """What is remembered of every tensor that the memory trains, by its place."""
    base: Any
    """The state of the base optimiser."""


class Matrix(NamedTuple):
    """A tensor that the memory trains, and its bias."""

    projection: Projection
    weight: Array
    bias: Array | None

    def joined(self, tree: dict[str, Array]) -> Array:
        """`[W b]` of a tree like the parameters."""
        own = self.projection
        bias = None if own.bias is None else tree[own.bias]
        joined = own.joined(tree[own.weight], bias)
        return joined.astype(at_least_single(joined.dtype))


def dual(
    memory: AbstractMemory,
    rate: Any,
    *,
    base: optax.GradientTransformation | None = None,
    values: str | None = None,
    ridge: str = "constant",
    average: bool = False,
    refresh: int = 1,
    recursive: bool = False,
) -> optax.GradientTransformationExtraArgs:
    rule = rule_of(memory, Options(values, ridge, average, refresh, recursive))
    if not rule.step.needs_grams():
        return _of_all(rule, rate)
    of_rest = None if base is None else optax.with_extra_args_support(base)

    def init(params: Any) -> DualState:
        tree, matrices = _read(params)
        rest = _rest(eqx.filter(params, eqx.is_inexact_array), matrices)
        _check_base(of_rest, rest)
        state = _begin(rule, tree)
        start = rule.grounded(state.knobs, state.steps, state.seen.dtype)
        kept = {
            name: rule.step.begin(start, matrix.joined(tree), matrix.projection.lookup)
            for name, matrix in matrices.items()
        }
        return state._replace(matrices=kept, base=None if of_rest is None else of_rest.init(rest))

    def update(
        updates: Any, state: DualState, params: Any = None, *, grams: Any = None, **extra: Any
    ) -> tuple[Any, DualState]:
        gradients, matrices = _read(updates)
        weights = _leaves(_given(params))
        now, state = _advance(rule, rate, state)
        found = _grams(grams, matrices, rule)
        changed, kept = {}, {}
        for name, matrix in matrices.items():
            change, kept[name] = rule.step.step(
                now,
                state.matrices[name],
                matrix.joined(weights),
                matrix.joined(gradients),
                found[name],
            )
            own = matrix.projection
            changed[own.weight], bias = own.parted(change, matrix.weight, matrix.bias)
            if own.bias is not None:
                changed[own.bias] = bias
        steps = jax.tree_util.tree_map_with_path(lambda path, _: changed.get(_name(path)), updates)
        base_state = state.base
        if of_rest is not None:
            own = _rest(
                jax.tree_util.tree_map_with_path(lambda p, _: weights[_name(p)], updates), matrices
            )
            others, base_state = of_rest.update(_rest(updates, matrices), state.base, own, **extra)
            steps = eqx.combine(steps, others)
        return steps, state._replace(matrices=kept, base=base_state)

    return optax.GradientTransformationExtraArgs(init, update)  # pyright: ignore[reportArgumentType]


def _of_all(rule: Rule, rate: Any) -> optax.GradientTransformationExtraArgs:
    """The dual of a write that needs no Gram matrices: it trains every tensor, of any shape."""

    def init(params: Any) -> DualState:
        tree = _leaves(params)
        state = _begin(rule, tree)
        start = rule.grounded(state.knobs, state.steps, state.seen.dtype)
        kept = {name: rule.step.begin(start, leaf, False) for name, leaf in tree.items()}
        return state._replace(matrices=kept)

    def update(
        updates: Any, state: DualState, params: Any = None, **extra: Any
    ) -> tuple[Any, DualState]:
        gradients = _leaves(updates)
        forgets = fade_of(rule.memory) != 1
        weights = _leaves(_given(params)) if forgets else gradients
        now, state = _advance(rule, rate, state)
        changed, kept = {}, {}
        for name, gradient in gradients.items():
            changed[name], kept[name] = rule.step.step(
                now, state.matrices[name], weights[name], gradient, None
            )
        steps = jax.tree_util.tree_map_with_path(lambda path, _: changed[_name(path)], updates)
        return steps, state._replace(matrices=kept)

    return optax.GradientTransformationExtraArgs(init, update)  # pyright: ignore[reportArgumentType]


def _begin(rule: Rule, tree: dict[str, Array]) -> DualState:
    wide = [at_least_single(leaf.dtype) for leaf in tree.values()]
    dtype = max(wide, key=lambda dtype: jnp.finfo(dtype).bits, default=jnp.float32)
    none = jnp.zeros((), jnp.int32)
    return DualState(none, jnp.zeros((), dtype), jnp.ones((), dtype), rule.knobs(), {}, None)


def _advance(rule: Rule, rate: Any, state: DualState) -> tuple[Now, DualState]:
    """The numbers of this step, and the state with the scalars after it."""
    dtype = state.seen.dtype
    memory = rule.grounded(state.knobs, state.steps, dtype)
    fade = jnp.asarray(fade_of(memory), dtype)
    weight = jnp.asarray(getattr(memory.write, "rate", 1.0), dtype)
    seen, left = fade * state.seen + weight, fade * state.left
    eta = rate(state.steps) if callable(rate) else rate
    now = Now(memory, eta, state.steps, seen, left)
    return now, state._replace(steps=optax.safe_increment(state.steps), seen=seen, left=left)


def _read(tree: Any) -> tuple[dict[str, Array], dict[str, Matrix]]:
    """The tensors of a tree by their places, and those of them that the memory trains."""
    leaves = _leaves(tree)
    nodes = jax.tree_util.tree_flatten_with_path(tree, is_leaf=_is_captured)[0]
    captured = [(path, node) for path, node in nodes if _is_captured(node)]
    if not captured:
        raise SpecError(
            "The dual of this memory trains a captured model, and there is none.",
            why="It must know which tensors are linear layers, and what they are given.",
            instead="captured = md.optim.capture(model, inputs), in the place of the model.",
        )
    found = {}
    for path, node in captured:
        prefix = _name(path) + ".model"
        for projection in node.projections:
            own = projection.within(prefix)
            if own.weight not in leaves:
                continue  # it is not trained
            if own.bias not in leaves:
                own = own.without_bias()
            bias = None if own.bias is None else leaves[own.bias]
            found[own.weight] = Matrix(own, leaves[own.weight], bias)
    return leaves, found


def _rest(tree: Any, matrices: dict[str, Matrix]) -> Any:
    """A tree without what the memory trains."""
    known = {p for m in matrices.values() for p in (m.projection.weight, m.projection.bias)}
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: None if _name(path) in known else leaf, tree
    )


def _grams(grams: Any, matrices: dict[str, Matrix], rule: Rule) -> dict[str, Gram]:
    """The Gram matrix of every tensor that the memory trains."""
    nodes = jax.tree_util.tree_flatten_with_path(grams, is_leaf=lambda x: isinstance(x, Gram))[0]
    known = {_name(path): node for path, node in nodes if isinstance(node, Gram)}
    missing = [matrix.projection for name, matrix in matrices.items() if name not in known]
    if missing:
        raise SpecError(
            "The dual was given no Gram matrices."
            if not known
            else f"The dual was given no Gram matrix of {missing[0].weight}.",
            why=None if not known else "It was not used as it was when the model was captured.",
            instead="optimiser.update(gradients, state, parameters, grams=grams), with what "
            "md.optim.backward or md.optim.with_grams gave.",
        )
    found = {}
    for name, matrix in matrices.items():
        gram, size = known[name], matrix.projection.size(matrix.weight.shape)
        more = gram.size > size and matrix.bias is None
        found[name] = gram.without_bias() if more else gram
        if rule.options.recursive and gram.rows is None and not matrix.projection.lookup:
            raise SpecError(
                "An inverse is carried on by the rows of a batch, and their products were given.",
                instead="md.optim.capture(model, inputs, rows=True).",
            )
    return found


def _check_base(base: Any, rest: Any) -> None:
    left = [_name(path) for path, _ in jax.tree_util.tree_flatten_with_path(rest)[0]]
    if base is None and left:
        more = f" and {len(left) - 1} more" if len(left) > 1 else ""
        raise SpecError(
            f"{left[0]}{more} is no linear layer, and nothing trains it.",
            why="The dual trains matrices, by what they are given.",
            instead="base=optax.adamw(1e-3), say.",
        )


def _given(params: Any) -> Any:
    if params is None:
        raise SpecError(
            "The dual must be given the parameters.",
            instead="optimiser.update(gradients, state, parameters, grams=grams).",
        )
    return params


def _is_captured(node: Any) -> bool:
    return isinstance(node, Captured)


def _leaves(tree: Any) -> dict[str, Array]:
    return {
        _name(path): leaf
        for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]
        if eqx.is_inexact_array(leaf)
    }


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path)
