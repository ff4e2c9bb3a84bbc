"""The gated delta rule in the function space of any kernel, a block of tokens at a time."""

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ._atoms import (
    at_block_starts,
    Atoms,
    atoms,
    blocks,
    in_blocks,
    keep,
    Left,
    left,
    Pairs,
    spoil,
    spoilt,
    tokens,
)
from ._reads import answers, earlier, flat, here, over_blocks_in_turn, stored_answers
from ._triangular import unit_lower_inverse


class KernelDelta(NamedTuple):
    """What `kernel_delta` returns: the answers, and the atoms as they are at the end of the run."""

    outputs: Float[Array, "time value"] | None
    coefficients: Float[Array, "time value"]
    log_weight: Float[Array, " time"]
    stored_log_weight: Float[Array, " atoms"]


def kernel_delta(
    pairs: Pairs,
    keys: Float[Array, "time key"],
    values: Float[Array, "time value"],
    queries: Float[Array, "time key"] | None = None,
    *,
    rate: Float[Array, " time"],
    log_decay: Float[Array, " time"] | None = None,
    recall: Literal["decayed", "previous"] = "decayed",
    implicit: bool = False,
    stored: Atoms | tuple[Array, Array, Array] | None = None,
    starts: Bool[Array, " time"] | None = None,
    mask: Bool[Array, " time"] | None = None,
    read_before: bool = False,
    chunk: int = 64,
) -> KernelDelta:
    r"""Runs the gated delta rule on kept atoms, exactly, by one triangular solve a block.

    $$f_t = α_t f_{t-1} + κ(k_t, ·) u_t, \qquad u_t = β_t (v_t - α_t f_{t-1}(k_t)),
      \qquad o_t = f_t(q_t)$$

    The coefficients of a block of tokens solve one unit lower triangular system,

    $$(I + \mathrm{diag}(β)\, \mathrm{tril}(Γ ⊙ K, -1))\, U
      = \mathrm{diag}(β) (V - e^{b} ⊙ f_\mathrm{old}(K)),$$

    with $Γ_{ti} = α_{i+1} ⋯ α_t$, $b$ the log decay since the block began and $f_\mathrm{old}$
    every atom from before it. Nothing is approximated, and κ need not be positive semidefinite. The
    gradient is that of the linear system, by one transposed solve: memory is linear in time.

    **Arguments:**

    - `pairs`: the kernel, `(keys [n, key], queries [m, key]) -> [n, m]`. It may close over
        parameters; gradients reach them.
    - `keys`, `values`, `queries`: the sequence. Without queries nothing is read.
    - `rate`: β.
    - `log_decay`: log α ≤ 0, and −inf forgets everything. Nothing is forgotten without it.
    - `recall`: what the error is measured against: the `"decayed"` function $α_t f_{t-1}$ as above,
        or the `"previous"` one, $f_{t-1}$.
    - `implicit`: takes $β / (1 + β κ(k, k))$ for β, the minimiser of
        $\frac12 |f(k) - v|^2 + \frac{1}{2β} \|f - α f_{t-1}\|^2$.
    - `stored`: keys `[n, key]`, coefficients `[n, value]` and log weights `[n]` of the atoms from
        before the run. Where the log weight is −inf the slot is free and what it holds is not felt.
    - `starts`: where a new sequence begins; every atom from before it is gone.
    - `mask`: false where a token changes nothing, whatever it holds. Its query is answered.
    - `read_before`: answers from $f_{t-1}$, before token t decays or writes anything.
    - `chunk`: tokens a block.

    **Returns:** answers `[time, value]`, coefficients `[time, value]`, and the log weights at the
    end of the run, of its own atoms `[time]` and of the stored ones `[n]`: the log of
    $α_{i+1} ⋯ α_T$, and −inf where the atom is gone. All in float32, or float64 if an input is.

    **Raises:** nothing.

    ```python
    >>> import jax.numpy as jnp
    >>> from memdsl.run._kernel_delta import kernel_delta
    >>> gauss = lambda k, q: jnp.exp(-jnp.sum((k[:, None] - q[None, :]) ** 2, axis=-1))
    >>> keys, values = jnp.array([[0.0], [1.0], [0.0]]), jnp.array([[1.0], [2.0], [5.0]])
    >>> print(kernel_delta(gauss, keys, values, keys, rate=jnp.ones(3)).outputs)
    [[1.]
     [2.]
     [5.]]

    ```

    **Source:** in kernel space the rule is kernel LMS (Liu, Pokharel and Príncipe 2008), with decay
    NORMA (Kivinen, Smola and Williamson 2004). The triangular form of a block is that of Yang et
    al., 2406.06484, who have it for the linear kernel; here it is any kernel, with decays.
    """
    length, size = keys.shape[0], max(1, min(chunk, keys.shape[0]))
    asked = jnp.zeros_like(keys) if queries is None else queries
    sequence = tokens(keys, values, asked, log_decay, starts, mask, (rate,))
    dtype = sequence.keys.dtype
    old = atoms(stored, keys.shape[1], values.shape[1], dtype)
    rate = keep(sequence.mask & ~sequence.sick, rate.astype(dtype))
    if implicit:
        rate = rate / (1 + rate * jax.vmap(lambda k: pairs(k[None], k[None])[0, 0])(sequence.keys))

    run = in_blocks(sequence, size)
    decays = run.log_decay, run.starts, run.mask
    met = jax.vmap(lambda *d: left(*d, previous=recall == "previous", strict=True))(*decays)
    weights, end = at_block_starts(old.log_weight, met.tail, met.total)
    n = old.log_weight.shape[0]
    old_weights, new_weights = weights[:, :n], weights[:, n:]

    system = _System(pairs, run.keys, blocks(rate, size), met, new_weights)
    error = run.values - stored_answers(pairs, old, run.keys, met.row, old_weights)
    found = jax.lax.custom_linear_solve(
        system.residual, system.rate[..., None] * error, system.solve, system.transposed_solve
    )

    outputs = None
    if queries is not None:
        heard = jax.vmap(lambda *d: left(*d, previous=read_before, strict=False))(*decays)
        outputs = stored_answers(pairs, old, run.queries, heard.row, old_weights)
        outputs += answers(pairs, run.keys, found, run.queries, heard, new_weights)
        unknown = spoilt(sequence, jnp.any(old.sick), read_before) | sequence.unclear
        outputs = spoil(unknown, flat(outputs)[:length])
    coefficients = spoil(spoilt(sequence, jnp.any(old.sick)), flat(found)[:length])
    return KernelDelta(outputs, coefficients, end[n : n + length], end[:n])


class _System(NamedTuple):
    """`(I + diag(β) tril(Γ ⊙ K, −1)) U = E`, where U and E are `[blocks, size, value]`.

    The matrix is never there: its rows are made again, a block at a time, where they are needed.
    """

    pairs: Pairs
    keys: Float[Array, "blocks size key"]
    rate: Float[Array, "blocks size"]
    met: Left
    weights: Float[Array, "blocks time"]

    def residual(self, found: Array) -> Array:
        """The left side for given coefficients."""
        pairs, keys, rate, met, weights = self
        return found + rate[..., None] * answers(pairs, keys, found, keys, met, weights)

    def solve(self, _, error: Array) -> Array:
        """Forward substitution over the blocks, carrying what is found so far."""
        pairs, keys, *along = self
        size = error.shape[1]

        def step(found: Array, block: tuple) -> tuple[Array, None]:
            index, error, key, rate, met, weight = block
            matrix = rate[:, None] * here(pairs, key, key, met.within)
            if len(keys) > 1:
                recalled = earlier(pairs, flat(keys), key, weight) @ found
                error = error - (rate * jnp.exp(met.row))[:, None] * recalled
            solved = unit_lower_inverse(-matrix) @ error
            return jax.lax.dynamic_update_slice_in_dim(found, solved, index * size, 0), None

        blocks = (jnp.arange(len(keys)), error, keys, *along)
        found, _ = over_blocks_in_turn(step, jnp.zeros_like(flat(error)), blocks)
        return found.reshape(error.shape)

    def transposed_solve(self, _, error: Array) -> Array:
        """The same from the last block to the first, carrying what later blocks ask of earlier."""
        pairs, keys, *along = self
        size = error.shape[1]

        def step(asked: Array, block: tuple) -> tuple[Array, Array]:
            index, error, key, rate, met, weight = block
            matrix = rate[:, None] * here(pairs, key, key, met.within)
            error = error - jax.lax.dynamic_slice_in_dim(asked, index * size, size, 0)
            solved = unit_lower_inverse(-matrix).T @ error
            if len(keys) > 1:
                asking = (rate * jnp.exp(met.row))[:, None] * solved
                asked = asked + earlier(pairs, flat(keys), key, weight).T @ asking
            return asked, solved

        blocks = (jnp.arange(len(keys)), error, keys, *along)
        return over_blocks_in_turn(step, jnp.zeros_like(flat(error)), blocks, reverse=True)[1]
