"""Features: maps of keys, composed with `>>`."""

import functools
import math
from abc import abstractmethod
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from .._errors import SpecError
from ._base import Spec, choice, plain_float, sort, whole
from ._number import Number, Source


class Weight(Source):
    """A trained matrix of a feature: `rows x in_size`, or a vector of `rows` where `vector`."""

    rows: int | None = None
    vector: bool = False
    start: str = choice("orthogonal", "identity", "zeros", "ones", default="orthogonal")


class AbstractFeature(Spec):
    """A map of one key, `[in_size] -> [size(in_size)]`."""

    nonnegative: ClassVar[bool] = False
    """Whether every output is at least 0."""

    @abstractmethod
    def __call__(self, x: Any) -> Any:
        """The features of one key."""

    def size(self, in_size: int) -> int:
        """How many features a key of `in_size` numbers has."""
        return in_size

    def is_unit(self) -> bool:
        """Whether every output has Euclidean norm 1."""
        return False

    def is_nonnegative(self) -> bool:
        """Whether every output is at least 0."""
        return self.nonnegative

    def dot_is_nonnegative(self) -> bool:
        """Whether the inner product of two outputs is at least 0."""
        return self.is_nonnegative()

    def __rshift__(self, other: "AbstractFeature") -> "Then":
        if not isinstance(other, AbstractFeature):
            return NotImplemented
        return Then(self, other)


class Then(AbstractFeature):
    """`first >> second`: the second of the first."""

    first: AbstractFeature = sort(AbstractFeature)
    second: AbstractFeature = sort(AbstractFeature)

    def __call__(self, x: Any) -> Any:
        return self.second(self.first(x))

    def size(self, in_size: int) -> int:
        return self.second.size(self.first.size(in_size))

    def is_unit(self) -> bool:
        return self.second.is_unit()

    def is_nonnegative(self) -> bool:
        keeps = isinstance(self.second, L2Norm | SumNorm | Scale)
        return self.second.is_nonnegative() or (keeps and self.first.is_nonnegative())

    def dot_is_nonnegative(self) -> bool:
        return self.second.dot_is_nonnegative() or self.is_nonnegative()

    def __repr__(self) -> str:
        return f"{self.first!r} >> {self.second!r}"


class Identity(AbstractFeature):
    """x itself."""

    def __call__(self, x: Any) -> Any:
        return x


class EluPlusOne(AbstractFeature):
    """`elu(x) + 1`, positive (Katharopoulos et al. 2020)."""

    nonnegative: ClassVar[bool] = True

    def __call__(self, x: Any) -> Any:
        return jax.nn.elu(x) + 1


class Relu(AbstractFeature):
    """`max(x, 0)`."""

    nonnegative: ClassVar[bool] = True

    def __call__(self, x: Any) -> Any:
        return jax.nn.relu(x)


class Silu(AbstractFeature):
    """`x sigmoid(x)`."""

    def __call__(self, x: Any) -> Any:
        return jax.nn.silu(x)


class Scale(AbstractFeature):
    """`factor * x`, for a positive constant factor."""

    factor: float = plain_float(above=0.0, default=1.0)
    positional: ClassVar[int] = 1

    def __call__(self, x: Any) -> Any:
        return self.factor * x


class Softmax(AbstractFeature):
    """`softmax(x)`."""

    nonnegative: ClassVar[bool] = True

    def __call__(self, x: Any) -> Any:
        return jax.nn.softmax(x)


class L2Norm(AbstractFeature):
    """`x / sqrt(sum x^2 + epsilon)`."""

    epsilon: float = plain_float(default=1e-6)

    def __call__(self, x: Any) -> Any:
        return x * jax.lax.rsqrt(jnp.sum(x * x) + self.epsilon)

    def is_unit(self) -> bool:
        return True


class SumNorm(AbstractFeature):
    """`x / (sum x + epsilon)`."""

    epsilon: float = plain_float(default=1e-4)

    def __call__(self, x: Any) -> Any:
        return x / (jnp.sum(x) + self.epsilon)


class Taylor(AbstractFeature):
    """`phi(q) . phi(k) = 1 + s + s^2 / 2` with `s = q . k / sqrt(size)` (Based)."""

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
    """Deterministic parameter-free projection (Schlag et al. 2021): products of rolled halves.

    `r = [relu x, relu(-x)]`, then `concatenate_j r * roll(r, j)`, j = 1 … order.
    """

    order: int = whole(at_least=1, default=3)
    positional: ClassVar[int] = 1
    nonnegative: ClassVar[bool] = True

    def __call__(self, x: Any) -> Any:
        r = jnp.concatenate([jax.nn.relu(x), jax.nn.relu(-x)])
        return jnp.concatenate([r * jnp.roll(r, j) for j in range(1, self.order + 1)])

    def size(self, in_size: int) -> int:
        return 2 * in_size * self.order


class Linear(AbstractFeature):
    """`W x`, with a trained W of `size` rows (one a head)."""

    width: int = whole(at_least=1)
    weight: Number = None
    positional: ClassVar[int] = 1

    def __check__(self) -> None:
        if self.weight is None:
            object.__setattr__(self, "weight", Weight(rows=self.width))

    def __call__(self, x: Any) -> Any:
        return self.weight @ x

    def size(self, in_size: int) -> int:
        return self.width

    def shown(self, at: str | None = None) -> list[tuple[str, str]]:
        return [("width", repr(self.width))]


class Hedgehog(AbstractFeature):
    """`softmax([2 y, -2 y])` of a trained `y = W x + b` (Zhang et al. 2024)."""

    weight: Number = Weight(start="identity")
    bias: Number = Weight(vector=True, start="zeros")
    nonnegative: ClassVar[bool] = True

    def __call__(self, x: Any) -> Any:
        y = self.weight @ x + self.bias
        return jax.nn.softmax(jnp.concatenate([2 * y, -2 * y]))

    def size(self, in_size: int) -> int:
        return 2 * in_size


SPECTRA = ("rbf", "matern32", "matern52", "exp")


class RandomFourier(AbstractFeature):
    """Random features whose inner product estimates a kernel (Rahimi and Recht 2007).

    For `"rbf"` and `"matern…"`: `sqrt(1 / n) [cos W x, sin W x]`, with rows of W from the kernel's
    spectral density. For `"exp"` (`exp(k . q / scale^2)`): the positive features of Choromanski et
    al. 2021, `exp(W x - |x|^2 / 2) / sqrt(n)`. W is drawn from `seed` by NumPy and never trained.

    **Arguments:**

    - `count`: the number n of random directions.
    - `spectrum`: `"rbf"`, `"matern32"`, `"matern52"` or `"exp"`.
    - `scale`: the length scale of the kernel.
    - `seed`: of the random directions.
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
    if spectrum.startswith("matern"):
        freedom = {"matern32": 3, "matern52": 5}[spectrum]
        normal /= np.sqrt(generator.chisquare(freedom, (count, 1)) / freedom)
    return normal


def one_feature(value: Any) -> AbstractFeature:
    """`value`, or a readable error where it is no feature."""
    if isinstance(value, AbstractFeature):
        return value
    raise SpecError(
        f"pullback takes a feature, and got {value!r}.",
        instead="a feature such as Silu() >> L2Norm().",
    )
