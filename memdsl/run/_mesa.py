"""Ridge regression with a constant ridge and decays, for every token, a block of tokens at a time."""

from collections.abc import Callable
from typing import Literal, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .._linalg import cholesky, solve_by
from ._atoms import blocks, finite, in_blocks, keep, left, spoil, spoilt, tokens
from ._reads import flat


Solver: TypeAlias = Literal["cholesky", "cg"]


def mesa_chunkwise(
    queries: Float[Array, "time key"],
    keys: Float[Array, "time key"],
    values: Float[Array, "time value"],
    *,
    strength: Float[Array, " key"] | Float[Array, ""] | float,
    rate: Float[Array, " time"],
    log_decay: Float[Array, " time"] | None = None,
    initial: tuple[Float[Array, "key key"], Float[Array, "key value"]] | None = None,
    starts: Bool[Array, " time"] | None = None,
    mask: Bool[Array, " time"] | None = None,
    read_before: bool = False,
    chunk: int = 32,
    solver: Solver = "cholesky",
    steps: int = 30,
    rtol: float = 0.0,
    atol: float = 0.0,
) -> tuple[Float[Array, "time value"], tuple[Float[Array, "key key"], Float[Array, "key value"]]]:
    r"""Answers every query with the ridge regression on the decayed pairs up to its token.

    $$H_t = α_t H_{t-1} + β_t k_t k_t^\top, \qquad B_t = α_t B_{t-1} + β_t k_t v_t^\top,
      \qquad o_t = B_t^\top (H_t + Λ)^{-1} q_t$$

    Λ stands outside the decay. Neither $H_t$ nor $B_t$ of the tokens inside a block is kept: with
    $Γ_{ti} = α_{i+1} ⋯ α_t$ and $Z = \mathrm{tril}(Γ)\, \mathrm{diag}(β)$, all rows of a block at
    once are

    $$X (H + Λ) = e^{b} ⊙ (X H_0) + (Z ⊙ X K^\top) K + X Λ, \qquad
      O = e^{b} ⊙ (X B_0) + (Z ⊙ X K^\top) V.$$

    The gradient is that of the linear systems, by one more solve with the same solver: it is exact
    as far as the solver is, and no step of it is kept.

    **Arguments:**

    - `queries`, `keys`, `values`: the sequence.
    - `strength`: the diagonal of Λ > 0, or one number for all of it.
    - `rate`: β ≥ 0.
    - `log_decay`: log α ≤ 0, and −inf forgets everything. Nothing is forgotten without it.
    - `initial`: H and B from before the run; zeros without it.
    - `starts`: where a new sequence begins, from zeros.
    - `mask`: false where a token changes nothing, whatever it holds. Its query is answered.
    - `read_before`: answers before the token decays or writes anything.
    - `chunk`: tokens a block.
    - `solver`: `"cholesky"` is exact and forms H of every token of a block; `"cg"` never forms it.
    - `steps`: the most steps of conjugate gradients; as many as there are keys' channels are exact.
    - `rtol`, `atol`: a row is done when its residual is below `atol + rtol |q|`.

    **Returns:** answers `[time, value]`, and H and B after the last token; in float32, or float64
    if an input is.

    **Raises:** nothing.

    ```python
    >>> import jax.numpy as jnp
    >>> from memdsl.run._mesa import mesa_chunkwise
    >>> keys, values = jnp.ones((3, 1)), jnp.array([[2.0], [2.0], [2.0]])
    >>> outputs, (gram, moment) = mesa_chunkwise(keys, keys, values, strength=1.0, rate=jnp.ones(3))
    >>> print(outputs[:, 0].round(4), gram, moment)
    [1.     1.3333 1.5   ] [[3.]] [[6.]]

    ```

    **Source:** MesaNet (von Oswald et al., 2506.05233), whose conjugate gradients these are, from
    the same first guess q / (diag H + Λ). It differentiates by hand what is implicit here.
    """
    length, size = keys.shape[0], max(1, min(chunk, keys.shape[0]))
    sequence = tokens(keys, values, queries, log_decay, starts, mask, (rate,))
    dtype = sequence.keys.dtype
    ridge = jnp.broadcast_to(jnp.asarray(strength, dtype), keys.shape[1:])
    if initial is None:
        shapes = (keys.shape[1], keys.shape[1]), (keys.shape[1], values.shape[1])
        initial = jnp.zeros(shapes[0], dtype), jnp.zeros(shapes[1], dtype)
    sound = finite(*(jnp.ravel(array)[None] for array in initial))[0]
    start = keep(sound, initial[0].astype(dtype)), keep(sound, initial[1].astype(dtype))
    run = in_blocks(sequence, size)
    rates = blocks(keep(sequence.mask & ~sequence.sick, rate.astype(dtype)), size)
    decays = run.log_decay, run.starts, run.mask
    met = jax.vmap(lambda *d: left(*d, previous=read_before, strict=False))(*decays)

    def step(state: tuple[Array, Array], block: tuple) -> tuple[tuple[Array, Array], Array]:
        key, value, query, rate, met = block
        gram, moment = state
        row, within = jnp.exp(met.row), jnp.exp(met.within) * rate[None, :]
        x = _rows(gram, key, ridge, row, within, query, solver, steps, rtol, atol)
        out = row[:, None] * (x @ moment) + (within * (x @ key.T)) @ value
        kept, last = jnp.exp(met.total), (jnp.exp(met.tail) * rate)[:, None] * key
        return (kept * gram + last.T @ key, kept * moment + last.T @ value), out

    along = run.keys, run.values, run.queries, rates, met
    (gram, moment), outputs = jax.lax.scan(jax.checkpoint(step), start, along)
    unknown = spoilt(sequence, ~sound, read_before) | sequence.unclear
    lost = jnp.concatenate([~sound[None], spoilt(sequence, ~sound)])[-1]
    return spoil(unknown, flat(outputs)[:length]), (spoil(lost, gram), spoil(lost, moment))


def ridge_answer(
    gram: Float[Array, "key key"],
    moment: Float[Array, "key value"],
    strength: Float[Array, " key"] | Float[Array, ""] | float,
    query: Float[Array, " key"],
    *,
    solver: Solver = "cholesky",
    steps: int = 30,
    rtol: float = 0.0,
    atol: float = 0.0,
) -> Float[Array, " value"]:
    r"""Answers one query from H and B as they are.

    $$o = B^\top (H + Λ)^{-1} q$$

    **Arguments:** as in `mesa_chunkwise`.

    **Returns:** the answer `[value]`.

    **Raises:** nothing.

    ```python
    >>> import jax.numpy as jnp
    >>> from memdsl.run._mesa import ridge_answer
    >>> print(ridge_answer(jnp.eye(2), jnp.eye(2), 1.0, jnp.array([2.0, 4.0])).round(4))
    [1. 2.]

    ```
    """
    dtype = gram.dtype
    ridge = jnp.broadcast_to(jnp.asarray(strength, dtype), query.shape)
    none, one = jnp.zeros((1, query.shape[0]), dtype), jnp.ones(1, dtype)
    x = _rows(
        gram, none, ridge, one, jnp.zeros((1, 1), dtype), query[None], solver, steps, rtol, atol
    )
    return x[0] @ moment


def _rows(
    gram: Array,
    key: Array,
    ridge: Array,
    row: Array,
    within: Array,
    query: Array,
    solver: Solver,
    steps: int,
    rtol: float,
    atol: float,
) -> Array:
    """Solves `x_t (row_t H_0 + Σ_i within_ti k_i k_i^T + Λ) = q_t` for every row t."""

    def product(x: Array) -> Array:
        return row[:, None] * (x @ gram.T) + (within * (x @ key.T)) @ key + x * ridge[None, :]

    def factored(_, right: Array) -> Array:
        outer = (key[:, :, None] * key[:, None, :]).reshape(len(key), -1)
        full = (within @ outer).reshape(len(row), *gram.shape)
        full += row[:, None, None] * gram[None] + jnp.diag(ridge)[None]
        return solve_by(cholesky(full), right[..., None])[..., 0]

    def iterated(_, right: Array) -> Array:
        diagonal = row[:, None] * jnp.diag(gram)[None] + within @ key**2
        inverse = 1 / (diagonal + ridge[None, :])
        return conjugate_gradients(product, right, inverse, steps, rtol, atol)

    solve = factored if solver == "cholesky" else iterated
    return jax.lax.custom_linear_solve(product, query, solve, symmetric=True)


def conjugate_gradients(
    product: Callable[[Array], Array],
    right: Array,
    inverse: Array,
    steps: int,
    rtol: float,
    atol: float,
) -> Array:
    """At most `steps` steps for every row of `right` by itself, from `inverse * right`.

    A row whose residual is small enough, or zero, stays as it is. lineax has this method, but not
    for this use: its solve is differentiated by solves that raise when they reach `max_steps`, and
    it answers NaN where `p·Hp < 200 eps n r·r`, which a ridge of 1e-3 reaches in float32.
    """
    scale = jnp.max(jnp.abs(right), axis=1, keepdims=True)
    scale = jnp.where(scale > 0, scale, 1)
    right = right / scale
    enough = (atol / scale[:, 0] + rtol * jnp.linalg.norm(right, axis=1)) ** 2

    def going(state: tuple[Array, ...]) -> Array:
        count, _, _, _, square = state
        return (count < steps) & jnp.any(square > enough)

    def step(state: tuple[Array, ...]) -> tuple[Array, ...]:
        count, x, residual, direction, square = state
        along = product(direction)
        curvature = jnp.sum(direction * along, axis=1)
        go = (square > enough) & (curvature > 0)
        length = jnp.where(go, square / jnp.where(go, curvature, 1), 0)[:, None]
        x, residual = x + length * direction, residual - length * along
        after = jnp.where(go, jnp.sum(residual**2, axis=1), square)
        turn = jnp.where(go, after / jnp.where(go, square, 1), 0)[:, None]
        return count + 1, x, residual, residual + turn * direction, after

    guess = inverse * right
    residual = right - product(guess)
    start = jnp.zeros((), int), guess, residual, residual, jnp.sum(residual**2, axis=1)
    return scale * jax.lax.while_loop(going, step, start)[1]
