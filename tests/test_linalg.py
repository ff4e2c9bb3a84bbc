"""Factors and solves against NumPy, by their gradients, and never so many at a time that jaxlib waits."""

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

import memdsl as md
from memdsl._linalg import (
    cholesky,
    eigh,
    solve_by,
    solve_lower,
    solve_positive,
)
from tests.helpers import close


ROOT = Path(__file__).parent.parent
SHAPES = [(3, 4, 40, 40), (7, 16, 16), (5, 5), (0, 3, 3), (2, 70, 70)]


def positive(*shape: int) -> jax.Array:
    root = jax.random.normal(jax.random.key(0), shape)
    return root @ jnp.swapaxes(root, -1, -2) + jnp.broadcast_to(
        shape[-1] * jnp.eye(shape[-1]), shape
    )


@pytest.mark.parametrize("shape", SHAPES)
def test_stacks_are_what_numpy_says(shape):
    matrix, right = positive(*shape), jax.random.normal(jax.random.key(1), (*shape[:-1], 3))
    lower = np.linalg.cholesky(matrix)
    close(cholesky(matrix), lower, 1e-13)
    close(solve_lower(lower, right), np.linalg.solve(lower, right), 1e-12)
    flipped = np.swapaxes(lower, -1, -2)
    close(solve_lower(lower, right, transposed=True), np.linalg.solve(flipped, right), 1e-12)
    for found in (solve_positive(matrix, right), solve_by(lower, right)):
        close(found, np.linalg.solve(matrix, right), 1e-12)
    values, vectors = eigh(matrix)
    close(values, np.linalg.eigvalsh(matrix), 1e-12)
    close((vectors * values[..., None, :]) @ jnp.swapaxes(vectors, -1, -2), matrix, 1e-12)


def test_vmap_inside_vmap_is_the_stack():
    matrix, right = positive(3, 4, 20, 20), jax.random.normal(jax.random.key(1), (3, 20, 2))
    both = jax.vmap(jax.vmap(solve_positive, in_axes=(0, None)))(matrix, right)
    close(both, np.linalg.solve(matrix, np.broadcast_to(right[:, None], (3, 4, 20, 2))), 1e-12)


@pytest.mark.parametrize(
    "function",
    [
        lambda matrix, right: cholesky(matrix) @ right,
        lambda matrix, right: solve_lower(matrix, right),
        lambda matrix, right: solve_lower(matrix, right, transposed=True),
        lambda matrix, right: solve_positive(matrix + jnp.swapaxes(matrix, -1, -2), right),
    ],
)
def test_gradients_of_the_first_and_second_order(function):
    matrix, right = positive(2, 4, 4), jax.random.normal(jax.random.key(1), (2, 4, 3))
    check_grads(function, (matrix, right), order=2, modes=["fwd", "rev"])
    single = jax.grad(lambda m, r: jnp.sum(jnp.sin(jax.vmap(function)(m, r))), (0, 1))(
        matrix, right
    )
    stack = jax.grad(lambda m, r: jnp.sum(jnp.sin(function(m, r))), (0, 1))(matrix, right)
    for one, other in zip(single, stack, strict=True):
        close(one, other, 1e-12)


def test_no_call_of_lapack_is_shared_out_among_threads():
    """Two at a time wait for each other for ever where there are two cores, as this layer did."""
    memory = md.Memory(md.Dot(), md.Ridge(0.5), read=md.Evaluate())
    layer = md.build(
        md.Layer(memory, heads=2, key_size=32), md.Dims(model=16), key=jax.random.key(0)
    )

    def loss(layer, x):
        return jnp.sum(jax.vmap(layer)(x))

    given = (layer, jnp.ones((16, 32, 16)))
    program = jax.jit(jax.grad(loss)).lower(*given).compile().as_text()
    calls = re.findall(r"= \(?f\d+\[([\d,]+)\].*custom_call_target=\"lapack_.(\w+?)_ffi\"", program)
    assert any(name == "potrf" for _, name in calls)
    for shape, _ in calls:
        *batch, rows, columns = map(int, shape.split(","))
        assert np.prod(batch) == 1 or np.prod(batch) * rows * rows * columns < 200_000


def test_nothing_else_asks_lapack():
    """But the oracle, which solves one small problem at a time, and what looks at eigenvalues alone."""
    asks = re.compile(r"(jnp|jax\.scipy|jax\.lax)\.linalg\.(?!norm|eigvalsh)")
    apart = {ROOT / "memdsl" / "_linalg.py", *(ROOT / "memdsl" / "oracle").iterdir()}
    for file in (ROOT / "memdsl").rglob("*.py"):
        assert file in apart or not asks.search(file.read_text(encoding="utf-8")), file
