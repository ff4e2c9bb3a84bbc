"""The optimiser that is the training dual of a memory, as an optax transformation."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from .._errors import SpecError
from .._types import at_least_single, checked
from ._gram import Gram
from ._matrices import every, grams_of, linear, name_of, tensors, Trained, without
from ._rule import Options, Rule, rule_of
from ._step import fade_of, Kept, Now


class DualState(NamedTuple):
    """The state of `md.optim.dual`: arrays in dictionaries, by the places of tensors."""

    steps: Int[Array, ""]
    """How many there were."""
    seen: Float[Array, ""]
    """What all pairs weigh together, those of a step as much as the rate of the write."""
    left: Float[Array, ""]
    """What is left of what there was at the start."""
    knobs: dict[str, tuple[Any, ...]]
    """The `Knob`s of the memory: change them, and nothing compiles anew."""
    kept: dict[str, Kept]
    """What is remembered of every tensor that the memory trains."""
    base: Any
    """The state of the base optimiser."""


@checked
def dual(
    memory: Any,
    rate: Any,
    *,
    base: optax.GradientTransformation | None = None,
    values: str | None = None,
    ridge: str = "constant",
    average: bool = False,
    refresh: Any = 1,
    recursive: bool = False,
) -> optax.GradientTransformationExtraArgs:
    r"""The optimiser that comes out when a weight matrix is read as a memory that training writes.

    A step of training writes a batch of pairs. The key x `[in]` is what a layer is given; the value v
    `[out]` is its step, minus `rate` times the derivative of the loss with respect to its answer. With
    G the gradient and S̄ the mean of $x x^\top$, which `md.optim.capture` hands out:

    | memory | what a step does |
    |---|---|
    | `Hebb()` | $W - \eta G$: gradient descent |
    | `Descent(Inner(), momentum=μ)` | the same with momentum; Muon, if it is orthogonal |
    | `Delta(β)` | $W - \beta (W \bar S + \eta G)$: delta gradient descent |
    | `Delta(β, implicit=True)` | the same, of the error after the step |
    | `Descent(Squared(), momentum=μ)` | the same with momentum: delta momentum |
    | `Ridge(λ)` | $W - \eta G (R + \lambda I)^{-1}$, $R \leftarrow R + \bar S$: the mesa optimiser |

    A `Decay(γ)` is weight decay, $W \leftarrow \gamma W$, where pairs go straight into the matrix; of a
    `Ridge` it fades the pairs, $R \leftarrow \gamma R + \bar S$. Where a layer has a bias, W is $[W\ b]$
    and x ends with a 1. All is kept and computed in float32 at least.

    **Arguments:**

    - `memory`: an `md.Memory(md.Dot(), write, gate)`. Its numbers are floats, `Knob`s (which are in the
        state, to be swept without compiling anew) or `Schedule`s over the steps.
    - `rate`: η, a number, an array, or an optax schedule.
    - `base`: the optimiser of what has no Gram matrix, such as norms. Hebb's rule needs none: it trains
        every tensor.
    - `values`: what is written at x, the `"step"` alone or a `"target"`, $W x$ and the step. By default
        targets for `Ridge` and steps for all others. With targets the delta rule is gradient descent;
        with steps `Ridge` is dual averaging, preconditioned.
    - `ridge`: how a strength goes with pairs that fade. `"constant"`: it does not, so that weights
        decay, $W - (\eta G + (1 - \gamma)\lambda W) H^{-1}$. `"fading"`: it fades as they do.
        `"centred"`: it is about the weights as they are, and so are the pairs of the past: nothing
        decays. `"relative"`: the same, with λ in units of the mean eigenvalue of R.
    - `average`: R is the mean over pairs, and not their sum. `Ridge(1.0)` with `Decay(0.95)`,
        `ridge="relative"` and `average=True` is the variant to begin with.
    - `refresh`: after how many steps the Cholesky factor is made anew.
    - `recursive`: the inverse itself is kept, and changed by the rows of a batch (Woodbury), which is
        cheaper where there are fewer of them than inputs; with `capture(..., rows=True)`.

    **Returns:** an optax transformation whose updates are to be added. It takes the parameters of a
    captured model, and `update(gradients, state, parameters, grams=grams)`.

    **Raises:** `SpecError` for a memory that has no dual, and for options that have no meaning for it;
    in `init` where there is no captured model, or a tensor that nothing trains; in `update` where there
    are no Gram matrices.

    ??? example

        ```python
        >>> import equinox as eqx
        >>> import jax
        >>> import jax.numpy as jnp
        >>> import memdsl as md
        >>> x = jnp.array([[1.0, 0.0], [1.0, 0.1], [1.0, 0.2]])  # hardly independent
        >>> y = x @ jnp.array([[1.0], [5.0]])
        >>> def half_square(p, y):
        ...     return 0.5 * jnp.mean((p - y) ** 2)
        >>> def fit(memory, rate, **options):
        ...     layer = eqx.nn.Linear(2, 1, use_bias=False, key=jax.random.key(0))
        ...     captured = md.optim.capture(layer, x)
        ...     optimiser = md.optim.dual(memory, rate, **options)
        ...     state = optimiser.init(eqx.filter(captured, eqx.is_inexact_array))
        ...     @jax.jit
        ...     def step(captured, state):
        ...         loss, gradients, grams = md.optim.backward(half_square, captured, x, y)
        ...         updates, state = optimiser.update(gradients, state, captured, grams=grams)
        ...         return eqx.apply_updates(captured, updates), state, loss
        ...     for _ in range(10):
        ...         captured, state, loss = step(captured, state)
        ...     return f"{loss:.3f}"
        >>> fit(md.Memory(md.Dot(), md.Hebb()), 1.0)  # gradient descent
        '0.084'
        >>> mesa = md.Memory(md.Dot(), md.Ridge(1e-4), md.Decay(0.95))
        >>> fit(mesa, 0.9, ridge="relative", average=True)
        '0.000'

        ```

    From "Retrieval-Centric Deep Learning", section 4, equations 9 and 10; delta gradient descent from
    "Nested Learning" (2025). With a centred ridge and a running mean the mesa optimiser is FOOF (Benzing
    2022), with `Decay(0)` and a centred ridge a step of LocoProp (Amid et al. 2022).
    """
    rule = rule_of(memory, Options(values, ridge, average, refresh, recursive))
    of_rest = optax.with_extra_args_support(base or optax.identity())

    def read(tree: Any) -> tuple[list[Trained], Any]:
        """What the memory trains, and the tree without it."""
        trained = linear(tree) if rule.step.needs_matrices() else every(tree)
        return trained, without(tree, trained)

    def init(params: Any) -> DualState:
        params = eqx.filter(params, eqx.is_inexact_array)
        trained, rest = read(params)
        if base is None:
            _check_nothing_left(rest)
        known, state = tensors(params), _begin(rule, params)
        memory = rule.grounded(state.knobs, state.steps, state.seen.dtype)
        kept = {t.weight: rule.step.begin(memory, t.of(known), t.is_table) for t in trained}
        return state._replace(kept=kept, base=of_rest.init(rest))

    def update(
        updates: Any, state: DualState, params: Any = None, *, grams: Any = None, **extra: Any
    ) -> tuple[Any, DualState]:
        trained, rest = read(updates)
        gradients, weights = tensors(updates), _weights(rule, updates, params)
        now, after = _advance(rule, rate, state)
        sizes = {t.weight: t.of(gradients).shape[-1] for t in trained}
        given: dict[str, Gram] = {}
        if rule.step.needs_grams():
            given = grams_of(grams, trained, sizes)
            rule.check(given)
        changes, kept = {}, {}
        for one in trained:
            name, gram = one.weight, given.get(one.weight)
            own = state.kept[name], one.of(weights), one.of(gradients)
            change, kept[name] = rule.step.step(now, *own, gram)
            changes.update(one.parts(change, gradients))
        steps = jax.tree_util.tree_map_with_path(lambda p, _: changes.get(name_of(p)), updates)
        beside = jax.tree_util.tree_map_with_path(lambda p, _: weights.get(name_of(p)), rest)
        others, base_state = of_rest.update(rest, state.base, beside, **extra)
        return eqx.combine(steps, others), after._replace(kept=kept, base=base_state)

    return optax.GradientTransformationExtraArgs(init, update)  # pyright: ignore[reportArgumentType]


def _begin(rule: Rule, params: Any) -> DualState:
    wide = [at_least_single(leaf.dtype) for leaf in jax.tree.leaves(params)]
    dtype = max(wide, key=lambda dtype: jnp.finfo(dtype).bits, default=jnp.float32)
    none = jnp.zeros((), jnp.int32)
    return DualState(none, jnp.zeros((), dtype), jnp.ones((), dtype), rule.knobs(), {}, None)


def _advance(rule: Rule, rate: Any, state: DualState) -> tuple[Now, DualState]:
    """The numbers of this step, and the state with the scalars after it."""
    dtype = state.seen.dtype
    memory = rule.grounded(state.knobs, state.steps, dtype)
    fade, weight = jnp.asarray(fade_of(memory), dtype), jnp.asarray(rule.weight(memory), dtype)
    seen, left = fade * state.seen + weight, fade * state.left
    step = rate(state.steps) if callable(rate) else rate
    now = Now(memory, step, state.steps, seen, left)
    return now, state._replace(steps=optax.safe_increment(state.steps), seen=seen, left=left)


def _weights(rule: Rule, updates: Any, params: Any) -> dict[str, Array]:
    """The parameters by their places; gradients stand in for them where they do not matter."""
    if params is not None:
        return tensors(params)
    if rule.needs_weights():
        raise SpecError(
            "The dual must be given the parameters.",
            instead="optimiser.update(gradients, state, parameters, grams=grams).",
        )
    return tensors(updates)


def _check_nothing_left(rest: Any) -> None:
    left = list(tensors(rest))
    if left:
        more = f" (and {len(left) - 1} more)" if len(left) > 1 else ""
        raise SpecError(
            f"{left[0]}{more} is no linear layer, and nothing trains it.",
            why="The memory trains matrices, by what they are given.",
            instead="base=optax.adamw(1e-3), say.",
        )
