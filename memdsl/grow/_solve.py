"""What `Ridge` makes of a batch: a least-squares problem with targets that the layer sets itself."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..spec._memory import Memory
from ..state import as_sum, fade, SolvedState
from ..state._solved import solve_on
from ..state._usage import observe
from ..state._write import recall
from ._fold import plain_atoms, put


def solve(
    memory: Memory,
    state: SolvedState,
    keys: Float[Array, "batch key"],
    errors: Float[Array, "batch value"],
    moved: Float[Array, "batch value"] | None = None,
) -> SolvedState:
    r"""The minimiser on all stored pairs, where those of a batch have the targets $v = f(x) - \eta g$.

    $$f \leftarrow \arg\min_f \sum_i w_i \lVert f(x_i) - v_i\rVert^2 + \lambda \lVert f\rVert^2$$

    f on the right is the function before the write. Of one pair, where none has faded, it is

    $$f \leftarrow f - \eta\, g\, \frac{c(x, \cdot)}{\lambda + c(x, x)}, \qquad
      c(x, \cdot) = \kappa(x, \cdot) - \kappa(x, X) (K + \lambda)^{-1} \kappa(X, \cdot)$$

    **Arguments:**

    - `memory`, `state`: the memory, grounded, as its representation keeps it, and what it holds.
    - `keys`, `errors`, `moved`: as of `fold`.
    """
    write: Any = memory.write
    rate = jnp.broadcast_to(jnp.asarray(write.rate, errors.dtype), errors.shape)
    known, function = as_sum(memory, state)
    targets = jax.vmap(lambda key: recall(known, function, key).answer)(keys) - rate * errors
    targets = targets if moved is None else targets - moved
    faded = fade(memory, observe(memory, state.problem, keys))
    problem = put(memory, faded, plain_atoms(keys, targets, errors))
    return solve_on(memory, state, problem, len(keys))
