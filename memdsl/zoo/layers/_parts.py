"""What published layers have in common."""

import math

from ...spec._computed import Computed
from ...spec._feature import (
    Exponential,
    Grouped,
    Identity,
    L2Norm,
    Sigmoid,
    Silu,
    Softplus,
    Spread,
    Wide,
)
from ...spec._layer import Dense, Named, Norm, ShortConvolution, Uniform, Vector
from ...spec._layer_base import AbstractLayer, Map


X = Map(Identity())
"""The input itself."""
EPSILON = 1e-5
"""The epsilon of their norms."""


def linear(
    name: str, size: int, *, bias: bool = False, start: str = "uniform", gain: float = 1.0
) -> Named:
    """A projection; by default with the uniform start of PyTorch's linear maps."""
    return Named(name, Dense(size, bias=bias, start=start, gain=gain))


def low_rank(name: str, rank: int, size: int, *, bias: bool = False) -> AbstractLayer:
    """Two projections with nothing between them."""
    return linear(f"{name}.0", rank) >> linear(f"{name}.1", size, bias=bias)


def convolved(name: str, size: int, *, start: str = "uniform", gain: float = 1.0) -> AbstractLayer:
    """A projection, a short convolution and a silu: the streams of the delta family."""
    convolution = Named(f"{name}_conv1d", ShortConvolution(4))
    return linear(f"{name}_proj", size, start=start, gain=gain) >> convolution >> Silu()


def unit(layer: AbstractLayer, heads: int) -> AbstractLayer:
    """Every head at length 1."""
    return layer >> Grouped(L2Norm(), heads)


def head_norm(name: str, heads: int) -> Named:
    """Root-mean-square norm of every head, with one gain for all of them."""
    return Named(name, Norm(epsilon=EPSILON, groups=heads, shared_gain=True))


def step_size(rate: AbstractLayer, size: int) -> AbstractLayer:
    """`softplus(rate + dt_bias)`, which starts log-uniform in `[0.001, 0.1]` where the rate is 0."""
    start = Uniform(1e-3, 0.1, through="softplus", log=True)
    return (rate + Named("dt_bias", Vector(size, start=start))) >> Softplus()


def log_decay(step: AbstractLayer, heads: int, size: int = 1, low: float = 0.0) -> AbstractLayer:
    """`-exp(A_log) step`, with one A_log a head; `exp(A_log)` starts uniform in `[low, 16]`."""
    a = Named("A_log", Vector(heads, start=Uniform(low, 16.0, through="exp"))) >> Exponential()
    return -1.0 * (a >> Spread(size) if size > 1 else a) * step


def dt_gate(rate: AbstractLayer, heads: int) -> Computed:
    """Mamba's gate, one a head: a decay of `exp(-exp(A_log) softplus(rate + dt_bias))`."""
    return Computed(log_decay(step_size(rate, heads), heads), log=True)


def sigmoid(layer: AbstractLayer, per: str = "head", scale: float = 1.0) -> Computed:
    """A number between 0 and `scale`."""
    squashed = layer >> Wide() >> Sigmoid()
    return Computed(squashed if scale == 1 else scale * squashed, per=per)


def zigzag(size: int, head_size: int) -> list[float]:
    """From -1 to 1 along every head, flat in the middle: `z |z|`."""
    middle = (head_size - 1) / 2
    line = [((n % head_size) - middle) / middle if middle else 0.0 for n in range(size)]
    return [z * abs(z) for z in line]


def ramp(size: int) -> list[float]:
    """From -1/2 to 1/2."""
    return [n / max(size - 1, 1) - 0.5 for n in range(size)]


ROOT_E = math.exp(-0.5)
