"""The baseline that does not work: error signals as the values of a plain softmax attention."""

from typing import Any

from .._types import checked
from ..spec._capacity import AbstractCapacity
from ..spec._kernel import AbstractKernel
from ..spec._memory import Memory
from ..spec._read import Normalised
from ..spec._write import Hebb


@checked
def naive_insertion(kernel: AbstractKernel, rate: Any, capacity: AbstractCapacity) -> Memory:
    r"""A memory in which every pair becomes an atom of mass 1 and value $-\mathrm{rate}\, g$.

    $$f(q) = \frac{\sum_i \kappa(k_i, q)\, (-\mathrm{rate}\, g_i)}{\sum_i \kappa(k_i, q)}$$

    and 0 where nothing is stored: what is right for a linear layer, put into a softmax. A baseline and
    nothing else, for two reasons. A new atom divides what was answered at its key by
    $1 + \kappa(k, k) / \sum_i \kappa(k_i, k)$, whatever the rate, so that no step is small. And an
    average of corrections does not add up: at one repeated input with the target y it comes to rest at
    $y\, \mathrm{rate} / (1 + \mathrm{rate})$. `Reweight` is the gradient of the same read.

    **Arguments:**

    - `kernel`: `Exp(Dot())` makes it a softmax.
    - `rate`: the step.
    - `capacity`: where the atoms are kept, such as `Budget(1000)`.

    **Returns:** an ordinary `Memory`.

    ??? example

        ```python
        >>> import jax
        >>> import jax.numpy as jnp
        >>> import memdsl as md
        >>> naive = md.grow.naive_insertion(md.Exp(md.Dot()), 0.1, md.Budget(100))
        >>> naive
        Memory(Exp(Dot()), write=Hebb(rate=0.1), capacity=Budget(100), read=Normalised())
        >>> net = md.Grown(md.Dense(1, start="zeros"), naive)
        >>> model = md.build(net, md.Dims(model=1), key=jax.random.key(0))
        >>> x, target = jnp.ones((1, 1)), jnp.ones((1, 1))
        >>> for _ in range(60):
        ...     _, _, pairs = md.grow.backward(lambda y, t: jnp.sum((y - t) ** 2) / 2, model, x, target)
        ...     model = md.grow.write(model, pairs)
        >>> print(f"{model(x[0])[0]:.3f}")  # the target is 1, and it stays 1 / 11
        0.091

        ```

    Irie, Csordás and Schmidhuber (2022), "The dual form of neural networks revisited", for the pairs.
    """
    return Memory(kernel, Hebb(rate), capacity=capacity, read=Normalised())
