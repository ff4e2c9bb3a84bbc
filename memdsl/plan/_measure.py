"""Timing every legal plan on the machine at hand."""

import os
import platform
import statistics
import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ..spec._facts import own_keys, pairs_per_token
from ..spec._memory import Leaf
from ..spec._slots import slots
from ._dims import Dims
from ._plan import plan
from ._rule import Rule
from ._rules import RULES
from ._run import run
from ._signals import signal_shape
from ._states import empty


class Measured(NamedTuple):
    """One plan and the median seconds of a call for all heads, compiled."""

    name: str
    forward: float
    backward: float
    """Forward and backward together."""


def machine() -> str:
    """The machine in words: backend, processor, cores, versions."""
    device = jax.devices()[0]
    name = device.device_kind if device.platform != "cpu" else _processor()
    return f"{device.platform}, {name}, {os.cpu_count()} cores, jax {jax.__version__}"


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            found = [line.split(":")[1].strip() for line in file if line.startswith("model name")]
        return found[0] if found else platform.processor()
    except OSError:
        return platform.processor() or platform.machine()


def measure(
    memory: Leaf, dims: Dims, *, repeats: int = 5, rules: tuple[Rule, ...] = RULES
) -> tuple[Measured, ...]:
    """The time of every legal plan of a memory here: forward, and forward with backward.

    **Arguments:**

    - `memory`: one memory.
    - `dims`: its sizes; `key`, `value` and `time` must be known.
    - `repeats`: how often each plan is timed; the median counts.
    - `rules`: the rules to choose from.

    **Returns:** one `Measured` a legal plan, fastest training first.
    """
    key, value = dims.need("key", "plans are timed at it"), dims.need("value", "likewise")
    length = dims.need("time", "plans are timed at it")
    chosen = plan(memory, dims, rules=rules)
    found = []
    for rule, _ in chosen.choices[0].legal:
        function, arguments = _call(memory, dims, rule.name, rules, key, value, length)
        forward = jax.jit(function)

        def loss(*arrays: Any, function: Any = function) -> Any:
            return jnp.sum(function(*arrays) ** 2)

        backward = jax.jit(jax.grad(loss, argnums=tuple(range(len(arguments)))))
        found.append(
            Measured(
                rule.name,
                _seconds(forward, arguments, repeats),
                _seconds(backward, arguments, repeats),
            )
        )
    return tuple(sorted(found, key=lambda m: m.backward))


def _seconds(function: Any, arguments: Any, repeats: int) -> float:
    jax.block_until_ready(function(*arguments))
    taken = []
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(function(*arguments))
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


def _call(
    memory: Leaf,
    dims: Dims,
    using: str,
    rules: tuple[Rule, ...],
    key: int,
    value: int,
    length: int,
) -> tuple[Any, tuple[Any, ...]]:
    """A function of keys, values, queries and signals over heads, and arrays to call it with."""
    pairs, random = pairs_per_token(memory.write), jax.random.key(0)
    shapes: list[tuple[int, ...]] = [(length * pairs, key), (length * pairs, value), (length, key)]
    streams = own_keys(memory)
    shapes += [(length * pairs, key)] * len(streams)
    known = [s for s in slots(memory) if s.time or s.per in ("matrix", "state", "parameters")]
    for slot in known:
        rows = length * (pairs if slot.path.startswith("write.") else 1)
        shapes.append(signal_shape(memory, slot, key, value, rows))
    arrays = []
    for index, shape in enumerate(shapes):
        array = jax.random.normal(jax.random.fold_in(random, index), (dims.heads, *shape))
        number = index - len(shapes) + len(known)
        if number >= 0:  # numbers between 0 and 1, decays as their logarithm
            array = jax.nn.sigmoid(array)
            array = -0.1 * array if known[number].log else array
        elif index != 1:
            array = array / jnp.linalg.norm(array, axis=-1, keepdims=True)
        arrays.append(array)
    state = empty(memory, key, value, capacity=length, using=using, rules=rules)

    def one(keys: Any, values: Any, queries: Any, *rest: Any) -> Any:
        named = dict(zip(streams, rest, strict=False))
        numbers = {s.name: x for s, x in zip(known, rest[len(streams) :], strict=True)}
        given = {**named, **numbers}
        return run(memory, state, keys, values, queries, using=using, rules=rules, **given)[1]

    return jax.vmap(one), tuple(arrays)
