"""The chunk form beside a plain scan of the same recurrence, in one run: medians, and their ratio.

    python benchmarks/chunkwise.py --time 4096 --heads 4 --size 64

Float32, one sequence. `forward` is the answers; `training` is them and every gradient.
"""

import dataclasses
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import tyro
from rich.console import Console
from rich.table import Table

import memdsl as md
from memdsl.run._chunkwise import canonical_chunkwise


@dataclasses.dataclass(frozen=True)
class Settings:
    """What is timed."""

    time: int = 4096
    heads: int = 4
    size: int = 64
    chunks: tuple[int, ...] = (16, 32, 64)
    repeats: int = 5


CASES = ("linear attention", "scalar decay", "decay per channel", "gated delta rule", "kimi delta")


def arrays(case: str, settings: Settings) -> dict[str, jax.Array]:
    """Unit keys and queries, values, and what the case adds, each with a leading axis of heads."""
    shape = (settings.heads, settings.time, settings.size)
    draws = [jax.random.normal(jax.random.key(i), shape) for i in range(4)]
    q, k = (x / jnp.linalg.norm(x, axis=-1, keepdims=True) for x in draws[:2])
    found = {"queries": q, "keys": k, "values": draws[2]}
    wide = case in ("decay per channel", "kimi delta")
    decay = -0.05 * jax.nn.softplus(draws[3] if wide else draws[3][..., 0])
    if case != "linear attention":
        found["log_decay"] = decay
    if case in ("gated delta rule", "kimi delta"):
        factor = jnp.exp(decay if wide else decay[..., None])
        found["erase"] = -0.5 * factor * k
    return found


def scan(
    queries: jax.Array,
    keys: jax.Array,
    values: jax.Array,
    log_decay: jax.Array | None = None,
    erase: jax.Array | None = None,
) -> jax.Array:
    """The recurrence as it is written, one token at a time."""
    decay = jnp.zeros((len(keys), 1)) if log_decay is None else log_decay.reshape(len(keys), -1)
    asked = jnp.zeros_like(keys) if erase is None else erase

    def step(state: jax.Array, token: Any) -> tuple[jax.Array, jax.Array]:
        q, k, v, d, a = token
        recalled = 0 if erase is None else a @ state
        state = jnp.exp(d)[:, None] * state + k[:, None] * (v + recalled)[None, :]
        return state, q @ state

    start = jnp.zeros((keys.shape[1], values.shape[1]))
    return jax.lax.scan(step, start, (queries, keys, values, decay, asked))[1]


def chunkwise(chunk: int) -> Callable[..., jax.Array]:
    """The chunk form."""

    def run(queries: jax.Array, keys: jax.Array, values: jax.Array, **rest: jax.Array) -> jax.Array:
        start = jnp.zeros((keys.shape[1], values.shape[1]))
        out, _ = canonical_chunkwise(queries, keys, values, start, chunk=chunk, **rest)
        return out

    return run


def seconds(function: Callable[..., Any], inputs: Any, repeats: int) -> float:
    """The median of a few calls, compiled before."""
    compiled = jax.jit(function)
    jax.block_until_ready(compiled(inputs))
    taken = []
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(compiled(inputs))
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


def main(settings: Settings) -> None:
    """Prints the table."""
    table = Table(
        "case", "form", "forward ms", "training ms", "scan / form, training", "difference"
    )
    forms = {"scan": scan, **{f"chunks of {c}": chunkwise(c) for c in settings.chunks}}
    for case in CASES:
        inputs = arrays(case, settings)
        reference, slowest = None, 0.0
        for name, form in forms.items():

            def forward(x: dict[str, jax.Array], form: Any = form) -> jax.Array:
                return jax.vmap(lambda y: form(**y))(x)

            def training(x: dict[str, jax.Array], forward: Any = forward) -> Any:
                return jax.value_and_grad(lambda y: jnp.sum(forward(y) ** 2))(x)

            out = jax.jit(forward)(inputs)
            reference = out if reference is None else reference
            off = float(jnp.max(jnp.abs(out - reference)))
            alone = seconds(forward, inputs, settings.repeats)
            both = seconds(training, inputs, settings.repeats)
            slowest = both if name == "scan" else slowest
            ratio = f"{slowest / both:.1f}"
            table.add_row(
                case, name, f"{alone * 1e3:.1f}", f"{both * 1e3:.1f}", ratio, f"{off:.0e}"
            )
    console = Console()
    console.print(table)
    console.print(f"{md.machine()}; {dataclasses.asdict(settings)}")


if __name__ == "__main__":
    main(tyro.cli(Settings, description=__doc__))
