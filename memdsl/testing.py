"""The laws, for people who add a kernel, a capacity, a write or an execution of their own."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .oracle import denote
from .plan import Dims, empty, plan, Rule, RULES, run
from .plan._signals import signal_shape
from .spec._facts import own_keys, pairs_per_token
from .spec._kernel import AbstractKernel
from .spec._memory import Leaf
from .spec._slots import slots


def check_kernel(
    kernel: AbstractKernel, key_size: int = 3, *, seed: int = 0, tolerance: float = 1e-5
) -> None:
    """Raises `AssertionError` where a kernel breaks a law: symmetry, a positive semidefinite Gram
    matrix, agreement of `pairs`, `log_pairs`, `diagonal` and `features` with the kernel itself, and
    of what it declares with its values.

    ??? example

        ```python
        >>> import memdsl as md
        >>> from memdsl.testing import check_kernel
        >>> check_kernel(md.RBF(scale=0.5) * 2.0 + md.Constant(1.0))

        ```
    """
    keys = jnp.asarray(np.random.default_rng(seed).normal(size=(7, key_size)))
    gram = jax.vmap(lambda k: jax.vmap(lambda q: kernel(k, q))(keys))(keys)
    scale = float(jnp.max(jnp.abs(gram)))

    def close(name: str, found: Any, wanted: Any) -> None:
        worst = float(jnp.max(jnp.abs(found - wanted)))
        _require(worst <= tolerance * (1 + scale), f"{kernel!r}: {name} is off by {worst:.2g}")

    close("symmetry", gram, gram.T)
    close("pairs", kernel.pairs(keys, keys), gram)
    close("diagonal", kernel.diagonal(keys), jnp.diag(gram))
    lowest = float(jnp.min(jnp.linalg.eigvalsh(gram)))
    _require(lowest >= -tolerance * (1 + scale), f"{kernel!r}: an eigenvalue is {lowest:.2g}")
    if kernel.is_nonnegative():
        _require(bool(jnp.all(gram >= 0)), f"{kernel!r} says nonnegative, and is not")
    if kernel.is_exponential():
        close("log_pairs", jnp.exp(kernel.log_pairs(keys, keys)), gram)
    own = kernel.value_at_itself()
    if own is not None:
        close("value_at_itself", jnp.diag(gram), jnp.full(len(keys), own))
    if kernel.is_finite():
        features = jax.vmap(kernel.features)(keys)
        _require(
            features.shape[1] == kernel.rank(key_size), f"{kernel!r}: rank and features differ"
        )
        close("features", features @ features.T, gram)


def check_memory(
    memory: Leaf,
    key_size: int = 3,
    value_size: int = 2,
    time: int = 6,
    *,
    seed: int = 0,
    tolerance: float = 1e-4,
    rules: tuple[Rule, ...] = RULES,
) -> tuple[str, ...]:
    """Raises `AssertionError` where a legal plan of a memory differs from what it means, as a whole
    sequence or split in two.

    **Returns:** the names of the plans that were checked.

    ??? example

        ```python
        >>> import memdsl as md
        >>> from memdsl.testing import check_memory
        >>> check_memory(md.Memory(md.RBF(), md.Delta(0.5), capacity=md.Budget(3)))
        ('buffer / recurrent',)

        ```
    """
    arrays = example(memory, key_size, value_size, time, seed)
    keys, values, queries = (arrays.pop(name) for name in ("keys", "values", "queries"))
    meant = denote(memory, keys, values, queries, **arrays)
    dims = Dims(key=key_size, value=value_size, time=time)
    checked = []
    for rule, _ in plan(memory, dims, rules=rules).choices[0].legal:
        chosen = {"using": rule.name, "rules": rules}
        state = empty(memory, key_size, value_size, capacity=time, **chosen)
        _, out = run(memory, state, keys, values, queries, **chosen, **arrays)
        worst = float(jnp.max(jnp.abs(out - meant), initial=0))
        scale = 1 + float(jnp.max(jnp.abs(meant), initial=0))
        _require(worst <= tolerance * scale, f"{rule.name} differs from the oracle by {worst:.2g}")
        checked.append(rule.name)
    return tuple(checked)


def example(memory: Leaf, key_size: int, value_size: int, time: int, seed: int) -> dict[str, Any]:
    """Random `keys`, `values`, `queries` and every signal that a memory takes, by name."""
    draw = np.random.default_rng(seed)
    pairs = pairs_per_token(memory.write)
    rows = time * pairs
    arrays = {
        "keys": draw.normal(size=(rows, key_size)),
        "values": draw.normal(size=(rows, value_size)),
        "queries": draw.normal(size=(time, key_size)),
    }
    for name in own_keys(memory):
        arrays[name] = draw.normal(size=(rows, key_size)) / key_size
    whole = ("matrix", "state", "parameters", "key_channel", "value_channel")
    for slot in slots(memory):
        if not slot.time and slot.per not in whole:
            continue
        own_rows = rows if slot.path.startswith("write.") else time
        shape = signal_shape(memory, slot, key_size, value_size, own_rows)
        value = draw.uniform(0.1, 0.9, size=shape)
        arrays[slot.name] = np.log(value) if slot.log else value
    return {name: jnp.asarray(array) for name, array in arrays.items()}


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise AssertionError(otherwise)
