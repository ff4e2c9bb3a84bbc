"""What every test stands on: double precision, no silent promotion, reproducible keys."""

import zlib
from collections.abc import Callable, Iterator

import jax
import pytest
from hypothesis import settings
from jaxtyping import PRNGKeyArray


STRICT = {
    "jax_enable_x64": True,
    "jax_numpy_dtype_promotion": "strict",
    "jax_numpy_rank_promotion": "raise",
}
ORDINARY = {
    "jax_enable_x64": False,
    "jax_numpy_dtype_promotion": "standard",
    "jax_numpy_rank_promotion": "allow",
}

for _name, _value in STRICT.items():
    jax.config.update(_name, _value)

# Compiling is what an example costs, so the default takes few and always the same ones.
# pytest --hypothesis-profile=thorough looks further.
settings.register_profile("few", max_examples=8, deadline=None, derandomize=True, database=None)
settings.register_profile("thorough", max_examples=200, deadline=None, database=None)
settings.load_profile("few")


COMPILED = {"tests": 0}


@pytest.fixture(autouse=True)
def few_programs_at_once() -> Iterator[None]:
    """Lets go of compiled programs now and then: thousands of them in one process end in a crash of
    the compiler (seen with jaxlib 0.10.2 on a CPU)."""
    yield
    COMPILED["tests"] += 1
    if COMPILED["tests"] % 100 == 0:
        jax.clear_caches()


@pytest.fixture
def getkey(request: pytest.FixtureRequest) -> Callable[[], PRNGKeyArray]:
    """A function that returns a fresh key at each call: the same keys in every run of one test."""
    seed = jax.random.key(zlib.crc32(request.node.nodeid.encode()))
    calls = 0

    def get() -> PRNGKeyArray:
        nonlocal calls
        calls += 1
        return jax.random.fold_in(seed, calls)

    return get


@pytest.fixture
def ordinary_settings() -> Iterator[None]:
    """JAX as a person finds it, for what a person would run: documents and docstrings."""
    for name, value in ORDINARY.items():
        jax.config.update(name, value)
    yield
    for name, value in STRICT.items():
        jax.config.update(name, value)
