"""Features of keys that have nothing to train and nothing random."""

import math
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from ._base import plain_float, whole
from ._feature_base import (
    AbstractFeature as AbstractFeature,
    one_feature as one_feature,
    Then as Then,
)
from ._feature_pointwise import (
    Exponential as Exponential,
    Grouped as Grouped,
    LogSigmoid as LogSigmoid,
    Only as Only,
    Sigmoid as Sigmoid,
    Slice as Slice,
    Softplus as Softplus,
    Spread as Spread,
    Tanh as Tanh,
    Total as Total,
    Wide as Wide,
)
from ._feature_random import RandomFourier as RandomFourier
from ._feature_trained import (
    Hedgehog as Hedgehog,
    LayerNorm as LayerNorm,
    Linear as Linear,
    Preconditioner as Preconditioner,
    Weight as Weight,
)


class Identity(AbstractFeature):
    """`x` itself: the unit of `>>` in meaning.

    ??? example

        ```python
        >>> import jax.numpy as jnp
        >>> import memdsl as md
        >>> md.Identity()(jnp.array([1.0, -2.0]))
        Array([ 1., -2.], dtype=float32)

        ```
    """

    keeps_sign: ClassVar[bool] = True

    def __call__(self, x: Any) -> Any:
        return x


class EluPlusOne(AbstractFeature):
    """`elu(x) + 1`, positive everywhere: x + 1 above 0, exp(x) below.

    ??? example

        ```python
        >>> import jax.numpy as jnp
        >>> import memdsl as md
        >>> [round(float(x), 4) for x in md.EluPlusOne()(jnp.array([2.0, -1.0]))]
        [3.0, 0.3679]

        ```

    Source: Katharopoulos et al. 2020, equation 7.
    """

    nonnegative: ClassVar[bool] = True

    def __call__(self, x: Any) -> Any:
        return jax.nn.elu(x) + 1


class Relu(AbstractFeature):
    """`max(x, 0)`.

    ??? example

        ```python
        >>> import jax.numpy as jnp
        >>> import memdsl as md
        >>> md.Relu()(jnp.array([2.0, -1.0]))
        Array([2., 0.], dtype=float32)

        ```
    """

    nonnegative: ClassVar[bool] = True

    def __call__(self, x: Any) -> Any:
        return jax.nn.relu(x)


class Silu(AbstractFeature):
    """`x sigmoid(x)`.

    ??? example

        ```python
        >>> import jax.numpy as jnp
        >>> import memdsl as md
        >>> [round(float(x), 4) for x in md.Silu()(jnp.array([2.0, -1.0]))]
        [1.7616, -0.2689]

        ```
    """

    keeps_sign: ClassVar[bool] = True

    def __call__(self, x: Any) -> Any:
        return jax.nn.silu(x)


class Scale(AbstractFeature):
    """`factor * x`, for a positive plain factor.

    **Raises:** `SpecError` where the factor is not a plain positive number.

    ??? example

        ```python
        >>> import jax.numpy as jnp
        >>> import memdsl as md
        >>> md.Scale(0.5)(jnp.array([2.0, -1.0]))
        Array([ 1. , -0.5], dtype=float32)

        ```
    """

    factor: float = plain_float(above=0.0, default=1.0)
    positional: ClassVar[int] = 1
    keeps_sign: ClassVar[bool] = True

    def __call__(self, x: Any) -> Any:
        return self.factor * x


class Softmax(AbstractFeature):
    """`softmax(x)`: positive, with sum 1.

    ??? example

        ```python
        >>> import jax.numpy as jnp
        >>> import memdsl as md
        >>> [round(float(x), 4) for x in md.Softmax()(jnp.log(jnp.array([1.0, 3.0])))]
        [0.25, 0.75]

        ```
    """

    nonnegative: ClassVar[bool] = True

    def __call__(self, x: Any) -> Any:
        return jax.nn.softmax(x)


class L2Norm(AbstractFeature):
    """`x / sqrt(sum x^2 + epsilon)`: after it, `kernel(k, k)` of `Dot` is 1 up to epsilon.

    **Arguments:**

    - `epsilon`: at least 0; inside the root.

    ??? example

        ```python
        >>> import jax.numpy as jnp
        >>> import memdsl as md
        >>> [round(float(x), 4) for x in md.L2Norm()(jnp.array([3.0, 4.0]))]
        [0.6, 0.8]

        ```

    Source: the keys of the delta rule, Yang et al. 2024 ("Parallelizing Linear Transformers").
    """

    epsilon: float = plain_float(at_least=0.0, default=1e-6)
    keeps_sign: ClassVar[bool] = True

    def __call__(self, x: Any) -> Any:
        return x * jax.lax.rsqrt(jnp.sum(x * x) + self.epsilon)

    def is_unit(self) -> bool:
        return True


class SumNorm(AbstractFeature):
    """`x / (sum x + epsilon)`, for features that are at least 0.

    **Arguments:**

    - `epsilon`: at least 0; keeps a key of zeros from dividing by 0.

    ??? example

        ```python
        >>> import jax.numpy as jnp
        >>> import memdsl as md
        >>> [round(float(x), 4) for x in md.SumNorm()(jnp.array([1.0, 3.0]))]
        [0.25, 0.75]

        ```

    Source: the sum normalisation of Schlag et al. 2021.
    """

    epsilon: float = plain_float(at_least=0.0, default=1e-4)
    keeps_sign: ClassVar[bool] = True

    def __call__(self, x: Any) -> Any:
        return x / (jnp.sum(x) + self.epsilon)


class Taylor(AbstractFeature):
    """The exponential to second order: `phi(q) . phi(k) = 1 + s + s^2 / 2`, `s = q . k / √size`.

    ??? example

        ```python
        >>> import memdsl as md
        >>> md.Taylor().size(16)  # 1 + 16 + 16 * 17 / 2
        153
        >>> md.is_nonnegative(md.Dot().pullback(md.Taylor()))  # 1 + s + s^2 / 2 is at least 1 / 2
        True

        ```

    Source: Arora et al. 2024 (Based), whose features repeat the products x_i x_j and x_j x_i.
    """

    def __call__(self, x: Any) -> Any:
        (n,) = x.shape
        x = x / n**0.25
        rows, columns = np.triu_indices(n, 1)
        one = jnp.ones((1,), x.dtype)
        return jnp.concatenate([one, x, x * x / math.sqrt(2), x[rows] * x[columns]])

    def size(self, in_size: int) -> int:
        return 1 + in_size + in_size * (in_size + 1) // 2

    def dot_is_nonnegative(self) -> bool:
        return True  # 1 + s + s^2 / 2 is at least 1 / 2


class Dpfp(AbstractFeature):
    """Deterministic parameter-free projection: products of rolled halves.

    `r = [relu x, relu(-x)]`, then `concatenate_j r * roll(r, j)`, j = 1 … order.

    **Arguments:**

    - `order`: how many rolls.

    ??? example

        ```python
        >>> import jax.numpy as jnp
        >>> import memdsl as md
        >>> md.Dpfp(1)(jnp.array([2.0, -3.0]))
        Array([6., 0., 0., 0.], dtype=float32)

        ```

    Source: Schlag et al. 2021, with their nu as the order.
    """

    order: int = whole(at_least=1, default=3)
    positional: ClassVar[int] = 1
    nonnegative: ClassVar[bool] = True

    def __call__(self, x: Any) -> Any:
        r = jnp.concatenate([jax.nn.relu(x), jax.nn.relu(-x)])
        return jnp.concatenate([r * jnp.roll(r, j) for j in range(1, self.order + 1)])

    def size(self, in_size: int) -> int:
        return 2 * in_size * self.order
