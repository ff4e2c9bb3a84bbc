"""Random features: kernels of infinite rank, estimated by inner products."""

import functools
import math
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np

from ._base import choice, plain_float, whole
from ._feature_base import AbstractFeature


SPECTRA = ("rbf", "laplace", "matern32", "matern52", "exp")
_FREEDOM = {"laplace": 1, "matern32": 3, "matern52": 5}


class RandomFourier(AbstractFeature):
    """Random features whose inner product estimates a kernel.

    For `"rbf"`, `"laplace"` and `"matern…"`: `sqrt(1 / n) [cos W x, sin W x]`, with rows of W from
    the kernel's spectral density (normal, or multivariate t with 1, 3 or 5 degrees of freedom). For
    `"exp"`, the kernel `exp(k . q / scale^2)`: the positive features
    `exp(W x - |x|^2 / 2) / sqrt(n)`. W is drawn from `seed` by NumPy, and never trained.
    `kernel.random_features(n)` writes this.

    **Arguments:**

    - `count`: the number n of random directions.
    - `spectrum`: `"rbf"`, `"laplace"`, `"matern32"`, `"matern52"` or `"exp"`.
    - `scale`: the length scale of the kernel.
    - `seed`: of the random directions.

    **Raises:** `SpecError` where an argument is out of range.

    ??? example

        ```python
        >>> import jax.numpy as jnp
        >>> import memdsl as md
        >>> k, q = jnp.array([0.3, -0.2]), jnp.array([0.1, 0.4])
        >>> kernel = md.RBF(scale=0.5)
        >>> round(float(kernel(k, q)), 2), round(float(kernel.random_features(4096)(k, q)), 2)
        (0.45, 0.44)

        ```

    Source: Rahimi and Recht 2007; for `"exp"`, Choromanski et al. 2021, without their orthogonal
    directions.
    """

    count: int = whole(at_least=1)
    spectrum: str = choice(*SPECTRA, default="rbf")
    scale: float = plain_float(above=0.0, default=1.0)
    seed: int = whole(at_least=0, default=0)
    positional: ClassVar[int] = 1

    def __call__(self, x: Any) -> Any:
        (d,) = x.shape
        directions = jnp.asarray(_directions(self.count, d, self.spectrum, self.seed), x.dtype)
        x = x / self.scale
        z = directions @ x
        if self.spectrum == "exp":
            return jnp.exp(z - jnp.sum(x * x) / 2) / math.sqrt(self.count)
        return jnp.concatenate([jnp.cos(z), jnp.sin(z)]) / math.sqrt(self.count)

    def size(self, in_size: int) -> int:
        return self.count if self.spectrum == "exp" else 2 * self.count

    def is_nonnegative(self) -> bool:
        return self.spectrum == "exp"

    def is_unit(self) -> bool:
        return self.spectrum != "exp"


@functools.cache
def _directions(count: int, d: int, spectrum: str, seed: int) -> np.ndarray:
    generator = np.random.default_rng(seed)
    normal = generator.standard_normal((count, d))
    if spectrum in _FREEDOM:
        freedom = _FREEDOM[spectrum]
        normal /= np.sqrt(generator.chisquare(freedom, (count, 1)) / freedom)
    return normal
