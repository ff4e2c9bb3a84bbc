"""How far a growing layer may step: the largest eigenvalue of what a write does to the loss."""

import math
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from .._errors import SpecError
from .._types import checked
from ..nn._tap import Nudge, Pairs
from ._backward import backward
from ._layers import growing, with_sinks
from ._tangent import has_tangent, rate_of, Tangent, tangent


class RateWarning(UserWarning):
    """A growing layer steps farther than is stable."""


class Rates(NamedTuple):
    """The rates of growing layers, in the order of `md.grow.growing`: see `md.grow.suggest_rate`.

    An entry is `None` where nothing is known: for a layer that was not used, for one whose write is
    no step down a slope by its rate (`Hebb` under a read that divides, `Descent` with a momentum, a
    gain or orthogonal steps), and for one of several memories.
    """

    rate: tuple[float | None, ...]
    """The suggestion: a rate for each layer, so that no step of all of them overshoots."""
    bound: tuple[float | None, ...]
    """The rate below which steps of the layer alone are stable."""
    chosen: tuple[float, ...]
    """The rate that the layer has; of stacked layers and of several memories, the largest."""
    together: float
    """The largest eigenvalue of a step of all layers at their chosen rates, over 2: stable below 1."""

    def check(self) -> Self:
        """Warns (`RateWarning`) of every layer whose rate is beyond its bound, or of all together.

        **Returns:** the rates.

        ??? example

            ```python
            >>> import warnings
            >>> import memdsl as md
            >>> rates = md.grow.Rates(rate=(1.5,), bound=(3.0,), chosen=(6.0,), together=2.0)
            >>> with warnings.catch_warnings(record=True) as caught:
            ...     warnings.simplefilter("always")
            ...     _ = rates.check()
            >>> print(caught[0].message)
            Growing layer 1 of 1 has the rate 6, and its steps are stable below 3 only. No step overshoots
            at 1.5.

            ```
        """
        beyond = False
        for index, (rate, bound, chosen) in enumerate(
            zip(self.rate, self.bound, self.chosen, strict=True)
        ):
            if rate is not None and bound is not None and chosen > bound:
                beyond = True
                warnings.warn(
                    f"Growing layer {index + 1} of {len(self.rate)} has the rate {chosen:.4g}, and its "
                    f"steps are stable below {bound:.4g} only. No step overshoots at {rate:.4g}.",
                    RateWarning,
                    stacklevel=2,
                )
        if not beyond and self.together > 1:
            shown = ", ".join("–" if rate is None else f"{rate:.4g}" for rate in self.rate)
            warnings.warn(
                f"Every growing layer steps within its own bound, but all at once they step "
                f"{self.together:.3g} times too far. No step overshoots at {shown}.",
                RateWarning,
                stacklevel=2,
            )
        return self


@checked
def suggest_rate(
    loss: Callable[..., Array],
    model: Callable[[Any], Any],
    *batch: PyTree[Array | np.ndarray],
    curvature: float | None = None,
    tolerance: float = 1e-3,
    iterations: int = 100,
) -> Rates:
    r"""How far every growing layer may step, from one batch.

    $$\eta_\ell < \frac{2}{\lambda_{\max}(T_\ell H_\ell)}, \qquad
      T_\ell = \bigl(\kappa(x_{\ell i}, x_{\ell j})\bigr)_{ij}$$

    $H_\ell$ is the curvature of the loss as a function of what layer $\ell$ answers to the batch
    (Gauss–Newton: the net linearised, the loss not), and T what a write does to these answers.
    Under a mean squared error of B examples the bound of a last layer is $2 B / \lambda_{\max}(K)$,
    for half the square. For `Reweight` T is its tangent kernel,
    $\kappa (\sigma^2 I + s s^\top) / (D D^\top)$; for `Ridge` it is $C (C + \lambda)^{-1}$, with C
    what the stored pairs leave open of $\kappa$, so that its rates are those of single answers.

    All layers write at once, so the suggested rates share the room: at `rate` the largest
    eigenvalue of a step of all of them is 1, half of what is stable, where nothing overshoots.

    **Arguments:**

    - `loss`, `model`, `batch`: as of `md.grow.backward`; the first batch of training will do.
    - `curvature`: a bound on the second derivatives of the loss with respect to the predictions,
        with the 1/B of a mean in it; by default they are taken at the model's own predictions. A
        cross-entropy is curved by at most 1 / (2 B), and by less at the first step.
    - `tolerance`, `iterations`: when the power iteration stops: at a relative change below the one,
        or after the other. It finds eigenvalues from below, so bounds are too large by so much.

    **Returns:** `Rates`, with `.rate`, `.bound`, `.chosen` and `.check()`.

    **Raises:** `SpecError` where nothing grows, and as `md.grow.backward`.

    ??? example

        ```python
        >>> import jax
        >>> import jax.numpy as jnp
        >>> import memdsl as md
        >>> atoms = md.Memory(md.RBF(scale=0.1), md.Hebb(rate=1.0), capacity=md.Budget(100))
        >>> net = md.Grown(md.Dense(1, start="zeros"), atoms)
        >>> model = md.build(net, md.Dims(model=1), key=jax.random.key(0))
        >>> inputs, targets = jnp.array([[0.0], [1.0], [2.0]]), jnp.ones((3, 1))
        >>> def half_square(y, targets):
        ...     return 0.5 * jnp.mean(jnp.sum((y - targets) ** 2, axis=-1))
        >>> rates = md.grow.suggest_rate(half_square, model, inputs, targets)
        >>> print(f"{rates.rate[0]:.3f} {rates.bound[0]:.3f} {rates.chosen[0]:.3f}")  # far keys: 2 B
        3.000 6.000 1.000

        ```

    The condition of kernel least mean squares (Liu et al. 2008) for a batch and any loss; the sharing
    among layers is not from there.
    """
    layers = growing(model)
    if not layers:
        raise SpecError(
            "The model has no growing layers.", instead="optax, for the rates of its weights."
        )
    pairs, tangents, chosen = _seen(loss, model, batch)
    known = [index for index, own in enumerate(tangents) if own is not None]

    def largest(weights: dict[int, float]) -> float:
        scales = jnp.asarray([weights.get(index, 0.0) for index in range(len(layers))])
        room = (curvature, tolerance, iterations)
        return float(_largest(loss, model, batch, pairs, tangents, scales, *room))

    eigenvalues = {index: largest({index: 1.0}) for index in known}
    curved = {index: 1 / value for index, value in eigenvalues.items() if value > 0}
    joint = largest(curved) if len(curved) > 1 else 1.0
    rates = {index: curved[index] / joint if index in curved else math.inf for index in known}
    bounds = {index: 2 * curved.get(index, math.inf) for index in known}
    taken = {index: float(jnp.max(rate)) for index, rate in enumerate(chosen)}
    step = {index: taken[index] for index in known}
    one_by_one = [step[index] * value for index, value in eigenvalues.items()]
    together = largest(step) if len(known) > 1 else sum(one_by_one)

    def each(values: dict[int, float]) -> tuple[float | None, ...]:
        return tuple(values.get(index) for index in range(len(layers)))

    return Rates(each(rates), each(bounds), tuple(taken.values()), together / 2)


@eqx.filter_jit
def _seen(loss: Any, model: Any, batch: Any) -> tuple[Any, Any, Any]:
    """The pairs of a batch, what a write of them does in every layer, and the layers' rates."""
    _, _, pairs = backward(loss, model, *batch)
    tangents, rates = [], []
    for layer, pair in zip(growing(model), pairs, strict=True):
        tells = has_tangent(layer)
        tangents.append(tangent(layer, pair.key) if tells and pair is not None else None)
        rates.append(rate_of(layer))
    return pairs, tuple(tangents), tuple(rates)


@eqx.filter_jit
def _largest(
    loss: Any,
    model: Any,
    batch: tuple[Any, ...],
    pairs: tuple[Pairs | None, ...],
    tangents: tuple[Tangent | None, ...],
    scales: Array,
    curvature: float | None,
    tolerance: float,
    iterations: int,
) -> Array:
    """The largest eigenvalue of `scales T H`, by power iteration: a Rayleigh quotient, from below."""
    inputs, *rest = batch
    nothing = tuple(
        None if pair is None or own is None else jnp.zeros_like(pair.cotangent)
        for pair, own in zip(pairs, tangents, strict=True)
    )

    def answer(shifts: Any) -> Any:
        def one(own: Any, x: Any) -> Any:
            sinks = [None if shift is None else Nudge(shift) for shift in own]
            return with_sinks(model, sinks)(x)

        return jax.vmap(one)(shifts, inputs)

    predictions, push = jax.linearize(answer, nothing)
    pull = jax.linear_transpose(push, nothing)
    slope = jax.grad(lambda predictions: loss(predictions, *rest))

    def curved(v: Any) -> Any:
        moved = push(v)
        if curvature is None:
            moved = jax.jvp(slope, (predictions,), (moved,))[1]
        else:
            moved = jax.tree.map(lambda x: x * jnp.asarray(curvature, x.dtype), moved)
        return pull(moved)[0]

    def written(w: Any) -> Any:
        return tuple(
            None if own is None else scales[index].astype(w[index].dtype) * own(w[index])
            for index, own in enumerate(tangents)
        )

    def again(carry: Any) -> Any:
        v, value, _, turn = carry
        w = curved(v)
        t = written(w)
        size = _inner(v, w)
        found = jnp.where(size > 0, _inner(w, t) / jnp.where(size > 0, size, 1), 0)
        return _unit(t), found, value, turn + 1

    def goes_on(carry: Any) -> Array:
        _, value, before, turn = carry
        return (turn < iterations) & (jnp.abs(value - before) > tolerance * jnp.abs(value))

    leaves, structure = jax.tree.flatten(nothing)
    keys = jax.random.split(jax.random.key(0), len(leaves))
    noise = [jax.random.normal(k, x.shape, x.dtype) for k, x in zip(keys, leaves, strict=True)]
    start = again((_unit(written(jax.tree.unflatten(structure, noise))), 0.0, 0.0, 0))
    return jax.lax.while_loop(goes_on, again, (*start[:2], jnp.full_like(start[1], jnp.inf), 1))[1]


def _inner(v: Any, w: Any) -> Array:
    products = jax.tree.map(lambda a, b: jnp.sum(a * b), v, w)
    return jnp.sum(jnp.stack([x.astype(jnp.result_type(float)) for x in jax.tree.leaves(products)]))


def _unit(v: Any) -> Any:
    size = jnp.sqrt(_inner(v, v))
    factor = jnp.where(size > 0, 1 / jnp.where(size > 0, size, 1), 0)
    return jax.tree.map(lambda x: x * factor.astype(x.dtype), v)
