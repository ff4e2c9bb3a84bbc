"""What a `Descent` that remembers, or that makes its steps orthogonal, makes of a batch."""

from typing import Any

import jax.numpy as jnp
from jax.lax import Precision
from jaxtyping import Array, Float

from .._linalg import eigh
from ..spec._memory import Memory
from ..state import BufferState, DescentState, fade
from ..state._descent import apart, joined, unweighted
from ..state._usage import observe
from ._fold import plain_atoms, put


def descend(
    memory: Memory,
    state: DescentState,
    keys: Float[Array, "batch key"],
    errors: Float[Array, "batch value"],
) -> DescentState:
    r"""One step on a batch, as `Descent` says, where a batch takes the place of a window of pairs.

    $$s \leftarrow \mu s - \eta \sum_b \kappa(x_b, \cdot)\, g_b, \qquad
      f \leftarrow \alpha f + \gamma s \ \text{ or }\
      \alpha f + \gamma\, s\, (s^\top s)^{-1/2}$$

    With momentum μ the function s is kept on the atoms of f, and its orthogonal factor takes a product
    with the kernel matrix of all of them; without, s is the batch alone.

    **Arguments:**

    - `memory`: the memory, grounded, as its representation keeps it.
    - `state`: what it holds.
    - `keys`, `errors`: as of `fold`.
    """
    rule: Any = memory.write
    steps = -jnp.broadcast_to(jnp.asarray(rule.rate, errors.dtype), errors.shape) * errors
    gain = jnp.asarray(rule.gain, errors.dtype)
    parts = {name: unweighted(part) for name, part in state.parts().items()}
    function: Any = unweighted(fade(memory, observe(memory, parts["function"], keys)))
    if rule.momentum is None:
        if rule.orthogonalise:
            steps = orthogonal_factor(steps, memory.kernel.pairs(keys, keys))
        return state.put(put(memory, function, plain_atoms(keys, gain * steps, errors)))
    momentum = parts["momentum"]
    fading = jnp.asarray(rule.momentum, errors.dtype)
    momentum = momentum.with_numbers(fading * momentum.numbers())
    whole = joined({"function": function, "momentum": momentum})
    both = jnp.concatenate([jnp.zeros_like(steps), steps], axis=-1)
    whole = put(memory, whole, plain_atoms(keys, both, errors), steps.shape[-1])
    function, momentum = apart(whole, state.names).values()
    direction = _direction(memory, momentum) if rule.orthogonalise else momentum.numbers()
    function = function.with_numbers(function.numbers() + gain * direction)
    return state.put(joined({"function": function, "momentum": momentum}))


def _direction(memory: Memory, step: Any) -> Array:
    """The orthogonal factor of a function that is kept in a state, in its coordinates."""
    if not isinstance(step, BufferState):
        return orthogonal_factor(step.numbers())
    keys, values, _ = step.safe()
    return orthogonal_factor(values, memory.kernel.pairs(keys, keys))


def orthogonal_factor(
    coefficients: Float[Array, "rows value"], gram: Float[Array, "rows rows"] | None = None
) -> Float[Array, "rows value"]:
    r"""The orthogonal factor of a function $s = \sum_i \kappa(k_i, \cdot)\, u_i$, in coefficients.

    $$U (U^\top K U)^{-1/2}$$

    Of a matrix (no Gram matrix: K = I) it is the polar factor, $M (M^\top M)^{-1/2}$. Directions of the
    value that s does not move, up to rounding, are not moved: the root is one of the pseudo-inverse.

    **Arguments:**

    - `coefficients`: U.
    - `gram`: K.

    **Returns:** the coefficients of a function t on the same keys, with $\langle t_a, t_b\rangle =
    \delta_{ab}$ where s has full rank.

    ??? example

        ```python
        >>> import jax.numpy as jnp
        >>> from memdsl.grow._descend import orthogonal_factor
        >>> print(orthogonal_factor(jnp.array([[3.0, 0.0], [0.0, -2.0], [0.0, 0.0]])))
        [[ 1.  0.]
         [ 0. -1.]
         [ 0.  0.]]

        ```
    """
    size = jnp.max(jnp.abs(coefficients))
    u = coefficients / jnp.where(size > 0, size, 1)  # so that no square vanishes
    image = u if gram is None else jnp.matmul(gram, u, precision=Precision.HIGHEST)
    values, vectors = eigh(jnp.matmul(u.T, image, precision=Precision.HIGHEST))
    floor = len(values) * jnp.finfo(values.dtype).eps * jnp.max(values)
    root = jnp.where(values > floor, 1 / jnp.sqrt(jnp.where(values > floor, values, 1)), 0)
    turned = jnp.matmul(u, vectors * root[None, :], precision=Precision.HIGHEST)
    return jnp.matmul(turned, vectors.T, precision=Precision.HIGHEST)
