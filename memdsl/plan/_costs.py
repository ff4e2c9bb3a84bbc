"""Coarse costs: enough to rank plans, from sizes alone. `measure` is the arbiter.

Each function is `(memory, dims, training) -> Cost` for one head. Floating-point operations are of
matrix products unless said otherwise; `floats` counts what goes through memory.
"""

from collections.abc import Callable
from typing import Any

import jax

from ..spec._facts import degree, has_nonlinear_retention, is_solved, one_pair
from ..spec._gate import DiagonalDecay, forgets
from ..spec._memory import Leaf, Memory, Network
from ..spec._read import LocalLinear
from ..spec._write import Descent
from ._dims import Dims
from ._rule import Cost


CostOf = Callable[[Any, Dims, bool], Cost]


def sizes(m: Memory, dims: Dims) -> tuple[int, int, int]:
    """`(time, features or key size, value size)`, with guesses for what is unknown."""
    key, value = dims.key or 64, dims.value or 64
    features = m.kernel.rank(key)
    return dims.time or 1024, int(features) if features < 1e9 else key, value


def matrix_recurrent(m: Memory, dims: Dims, training: bool) -> Cost:
    """A few passes over the matrix a token; training keeps every one of them."""
    time, r, v = sizes(m, dims)
    passes = 2 if degree(m.write) == 0 else 4
    stored = 8 if training else 0
    return Cost((4 if training else 1) * 2 * passes * time * r * v, stored * time * r * v, time)


def matrix_chunkwise(chunk: int) -> CostOf:
    """Products with the chunk and the matrix, and a triangular inverse for a delta."""

    def cost(m: Memory, dims: Dims, training: bool) -> Cost:
        time, r, v = sizes(m, dims)
        affine = degree(m.write) > 0
        diagonal = any(isinstance(g, DiagonalDecay) for g in forgets(m.gate))
        one = 2 * chunk * (r + v) + 6 * r * v
        one += (4 * chunk * (r + v) + 4 * chunk * chunk) if affine else 0
        one += 6 * chunk * r if diagonal else 0
        floats = ((4 if affine else 2) * (r + v + chunk) + r * v / chunk) * time
        many = 4 if training else 1
        return Cost(many * one * time, many * floats, many * -(-time // chunk))

    return cost


def matrix_associative(m: Memory, dims: Dims, training: bool) -> Cost:
    """Every prefix's matrix, several times over."""
    time, r, v = sizes(m, dims)
    return Cost(8 * time * r * v, (24 if training else 8) * time * r * v, 8)


def parameters(m: Leaf, dims: Dims) -> int:
    """How many numbers the function has: of a network, or of a matrix."""
    if isinstance(m, Network):
        return m.count(dims.key or 64, dims.value or 64)
    _, r, v = sizes(m, dims)
    return r * v


def network_recurrent(m: Network, dims: Dims, training: bool) -> Cost:
    """Three passes over the parameters a pair, one a read; training keeps them at every token."""
    time, size, write = dims.time or 1024, parameters(m, dims), one_pair(m.write)
    pairs = write.window * write.steps if isinstance(write, Descent) else 1
    stored = 8 if training else 0
    flops = (4 if training else 1) * 2 * (3 * pairs + 2) * time * size
    return Cost(flops, stored * time * size, 4 * time)


def matrix_minibatch(m: Memory, dims: Dims, training: bool) -> Cost:
    """Products with the minibatch and the matrix; the matrix of every token where it is not linear."""
    time, r, v = sizes(m, dims)
    chunk, many = _minibatch(m), 4 if training else 1
    one, floats = 4 * chunk * (r + v) + 6 * r * v, 4 * (r + v) + r * v / chunk
    if has_nonlinear_retention(m) or _is_orthogonal(m):
        one, floats = one + 4 * chunk * r * v, floats + 4 * r * v
    return Cost(many * one * time, many * floats * time, many * (-(-time // chunk) + chunk))


def network_minibatch(m: Network, dims: Dims, training: bool) -> Cost:
    """As many products as token by token, of whole minibatches; the parameters of every token."""
    one = network_recurrent(m, dims, training)
    time, size, chunk = dims.time or 1024, parameters(m, dims), _minibatch(m)
    floats = (6 if training else 3) * time * size
    return Cost(one.flops + 2 * chunk * time * size, floats, 4 * (-(-time // chunk) + chunk))


def _minibatch(m: Leaf) -> int:
    write = one_pair(m.write)
    return write.minibatch if isinstance(write, Descent) else 1


def gram_recurrent(m: Memory, dims: Dims, training: bool) -> Cost:
    """A Cholesky factor a token."""
    time, r, v = sizes(m, dims)
    one = 2 * r**3 + 8 * r * (r + v)
    many = 3 if training else 1
    return Cost(many * time * one, many * time * r * (r + v), 8 * many * time)


def gram_chunkwise(chunk: int) -> CostOf:
    """The same factors, batched."""

    def cost(m: Memory, dims: Dims, training: bool) -> Cost:
        time, r, v = sizes(m, dims)
        one = 2 * r**3 + 8 * r * (r + v)
        many = 3 if training else 1
        floats = many * time * r * (r + v) / 2
        return Cost(many * time * one, floats, many * -(-time // chunk))

    return cost


def _slots(m: Memory, time: int) -> float:
    return min(m.capacity.slots(), time)


def _fit(m: Memory, n: float, k: int) -> float:
    """What a local linear read of n atoms does besides: a covariance and its Cholesky factor."""
    return 2 * n * k * k + k**3 / 3 if isinstance(m.read.core(), LocalLinear) else 0.0


def buffer_recurrent(m: Memory, dims: Dims, training: bool) -> Cost:
    """A pass over the buffer a token."""
    time, k, v = sizes(m, dims)
    n = _slots(m, time)
    one = 6 * n * (k + v) + (2 * n**3 if is_solved(m) else 0) + _fit(m, n, k)
    one += 2 * n * n * (k + v) if _is_orthogonal(m) else 0
    floats = (8 if training else 2) * time * n * (k + v)
    return Cost((3 if training else 1) * time * one, floats, 4 * time)


def _is_orthogonal(m: Memory) -> bool:
    return isinstance(m.write, Descent) and m.write.orthogonalise


def buffer_parallel(m: Memory, dims: Dims, training: bool) -> Cost:
    """The square of the time."""
    time, k, v = sizes(m, dims)
    many = 4 if training else 1
    flops = 2 * time * time * (k + v) + time * _fit(m, time, k)
    return Cost(many * flops, many * 3 * time * time, many * -(-time // 128))


def buffer_attention(m: Memory, dims: Dims, training: bool) -> Cost:
    """The square of the time, in one piece: fused on a GPU; on a CPU it is written out, four times."""
    time, k, v = sizes(m, dims)
    many = 3 if training else 1
    passes = 12 if jax.default_backend() == "cpu" else 1
    return Cost(many * 2 * time * time * (k + v), many * passes * time * time, many)


def buffer_banded(m: Memory, dims: Dims, training: bool) -> Cost:
    """Time by twice the window."""
    time, k, v = sizes(m, dims)
    n = _slots(m, time)
    block = max(n, 64)
    many = 4 if training else 1
    pairs = time * min(n + block, time)
    flops = 2 * pairs * (k + v) + time * _fit(m, pairs / max(time, 1), k)
    return Cost(many * flops, many * 3 * pairs, many * -(-time // int(block)))


def buffer_chunkwise(chunk: int) -> CostOf:
    """The square of the time, twice (once in a single chunk), and a triangular solve a chunk."""

    def cost(m: Memory, dims: Dims, training: bool) -> Cost:
        time, k, v = sizes(m, dims)
        many = 4 if training else 1
        passes = 2 if time <= chunk else 4
        flops = passes * time * time * (k + v) + 2 * time * chunk * v
        return Cost(many * flops, many * passes * time * time, 4 * many * -(-time // chunk))

    return cost


def buffer_all_prefix(m: Memory, dims: Dims, training: bool) -> Cost:
    """One Cholesky factor of the time, and two triangular solves, which are slow for their size."""
    time, k, v = sizes(m, dims)
    many = 3 if training else 1
    flops = 6 * time**3 + 2 * time * time * (k + v)
    return Cost(many * flops, many * 6 * time * time, many)
