"""What a growing layer costs against the number of its slots: reads, gradients, writes, and memory.

    python -m benchmarks growth --slots 1000 10000 100000 1000000

Float32, compiled. A read answers a batch of queries as training asks them, one under `vmap` each; beside
it is the formula in NumPy, which makes one array of all atoms times all queries. A gradient is of the
queries, answers included. Writes are of a donated model; half of their keys are new, and half lie where
an atom is. The memory is what the compiler sets aside besides what goes in and out. Leaves
`growth.csv` and `growth.png` in a folder.
"""

import csv
import dataclasses
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import tyro
from rich.console import Console
from rich.table import Table

import memdsl as md


@dataclasses.dataclass(frozen=True)
class Settings:
    """What is timed."""

    slots: tuple[int, ...] = (1_000, 10_000, 100_000, 1_000_000)
    full: tuple[float, ...] = (0.1, 1.0)
    """How much of the slots holds an atom."""
    queries: int = 64
    pairs: int = 64
    key: int = 64
    value: int = 10
    repeats: int = 5
    """Of so many calls the fastest counts."""
    clock: Literal["wall", "cpu"] = "wall"
    """`cpu`: processor seconds of all threads, for a machine that is busy with other things."""
    out: Path | None = None
    """The folder; `runs/growth-<date>-<time>` without it."""
    quick: bool = False
    """One small size, one call: whether it runs at all."""


CAPACITIES = {
    "ring": md.Budget(1),
    "smallest": md.Budget(1, md.Smallest()),
    "add to nearest": md.Budget(1, merge=md.AddToNearest()),
}
CASES = tuple(f"{kernel}, {capacity}" for kernel in ("RBF", "softmax") for capacity in CAPACITIES)
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


def memory(case: str, slots: int) -> md.Memory:
    """The memory of a case."""
    kernel, name = case.split(", ")
    capacity = CAPACITIES[name].replace(size=slots)
    gate = md.Keep() if isinstance(capacity.merge, md.Drop) else md.Novelty(1.0)
    if kernel == "RBF":
        return md.Memory(md.RBF(scale=8.0), md.Hebb(0.5), gate, capacity)
    read = md.Normalised(prior=1.0)
    return md.Memory(md.Exp(md.Dot() / 8.0), md.Reweight(0.5), gate, capacity, read)


def layer(case: str, slots: int, full: float, settings: Settings) -> Any:
    """A growing layer that holds random atoms."""
    spec = md.Grown(md.Dense(settings.value, start="zeros", trainable=False), memory(case, slots))
    model = md.build(spec, md.Dims(model=settings.key), key=jax.random.key(0))
    count, state = int(full * slots), model.state
    keys, values = (jax.random.normal(jax.random.key(i), (slots, n)) for i, n in
                    ((1, settings.key), (2, settings.value)))  # fmt: skip
    made = jnp.asarray(count, jnp.int32)
    counts = eqx.tree_at(lambda c: (c.attempted, c.admitted), state.counts, (made, made + 0))
    state = state.put(
        keys=keys,
        values=values,
        masses=None if state.masses is None else jnp.ones(slots),
        log_weight=jnp.where(jnp.arange(slots) < count, 0.0, -jnp.inf),
        birth=jnp.arange(slots, dtype=jnp.int32),
        usage=jnp.ones(slots),
        counts=counts,
    )
    return eqx.tree_at(lambda m: m.state, model, state)


def formula(case: str, keys: np.ndarray, values: np.ndarray, queries: np.ndarray) -> np.ndarray:
    """What the layer answers, in NumPy."""
    inner = queries @ keys.T
    if case.startswith("RBF"):
        squares = (queries**2).sum(1)[:, None] + (keys**2).sum(1)[None, :] - 2 * inner
        return np.exp(squares / -128) @ values
    logits = inner / 8
    peak = np.maximum(logits.max(axis=1, keepdims=True), 0)
    weights = np.exp(logits - peak)
    return weights @ values / (weights.sum(axis=1, keepdims=True) + np.exp(-peak))


def timed(call: Callable[[], Any], settings: Settings, before: Callable[[], Any] = tuple) -> float:
    """The milliseconds of the fastest of a few calls, each on what `before` makes."""
    clock, found = CLOCKS[settings.clock], []
    for _ in range(settings.repeats + 1):
        given = jax.block_until_ready(before())
        start = clock()
        jax.block_until_ready(call(*given))
        found.append(clock() - start)
    return 1e3 * min(found[1:])


def compiled(function: Callable[..., Any], *arguments: Any, **options: Any) -> tuple[Any, float]:
    """A compiled function, and the megabytes that it needs."""
    made = jax.jit(function, **options).lower(*arguments).compile()
    return made, made.memory_analysis().temp_size_in_bytes / 1e6


def measured(case: str, slots: int, full: float, settings: Settings) -> dict[str, Any]:
    """One row."""
    model = layer(case, slots, full, settings)
    arrays, rest = eqx.partition(model, eqx.is_array)
    queries = jax.random.normal(jax.random.key(3), (settings.queries, settings.key))

    def answers(queries: jax.Array, arrays: Any) -> jax.Array:
        return jax.vmap(eqx.combine(arrays, rest))(queries)

    def loss(queries: jax.Array, arrays: Any) -> jax.Array:
        return jnp.sum(answers(queries, arrays) ** 2)

    def write(arrays: Any, pairs: Any) -> Any:
        model = md.grow.write(eqx.combine(arrays, rest), (pairs,))
        return eqx.filter(model, eqx.is_array)

    half = settings.pairs // 2
    new = jax.random.normal(jax.random.key(4), (settings.pairs - half, settings.key))
    batch = jnp.concatenate([model.state.keys[:half] + 0.01, new])
    errors = jax.random.normal(jax.random.key(5), (settings.pairs, settings.value))
    pairs = md.grow.Pairs(batch, errors)
    read, read_memory = compiled(answers, queries, arrays)
    back, back_memory = compiled(jax.value_and_grad(loss), queries, arrays)
    grow, grow_memory = compiled(write, arrays, pairs, donate_argnums=0)
    count = int(full * slots)
    plain = [np.asarray(x) for x in (model.state.keys[:count], model.state.values[:count], queries)]
    expected = formula(case, *plain)
    np.testing.assert_allclose(read(queries, arrays), expected, rtol=1e-3, atol=1e-3)
    return {
        "memory": case,
        "slots": slots,
        "full": full,
        "state_mb": sum(x.nbytes for x in jax.tree.leaves(model.state)) / 1e6,
        "read_ms": timed(lambda: read(queries, arrays), settings),
        "numpy_ms": timed(lambda: formula(case, *plain), settings),
        "gradient_ms": timed(lambda: back(queries, arrays), settings),
        "write_ms": timed(
            lambda *own: grow(own[0], pairs), settings, lambda: (jax.tree.map(jnp.copy, arrays),)
        ),
        "read_temp_mb": read_memory,
        "gradient_temp_mb": back_memory,
        "write_temp_mb": grow_memory,
    }


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Milliseconds against slots, both in logarithms: of the fullest buffers whole lines, else dashed."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.2), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    lines = {"read": "read_ms", "its gradient": "gradient_ms", "NumPy": "numpy_ms"}
    shares = sorted({row["full"] for row in rows})

    def line(axes: Any, case: str, column: str, label: str, colour: str) -> None:
        for full in shares:
            chosen = [r for r in rows if r["memory"] == case and r["full"] == full]
            axes.loglog(
                [r["slots"] for r in chosen],
                [r[column] for r in chosen],
                color=colour,
                marker="o",
                markersize=3,
                linestyle="-" if full == shares[-1] else "--",
                label=label if full == shares[-1] else None,
            )

    for index, (label, column) in enumerate(lines.items()):
        line(left, CASES[0], column, label, f"C{index}")
    for index, case in enumerate(CASES):
        line(right, case, "write_ms", case, f"C{index}")
    dashed = ", ".join(f"{share:.0%}" for share in shares[:-1])
    fill = f" ({shares[-1]:.0%} full{f'; dashed: {dashed}' if dashed else ''})"
    for axes, title in ((left, "reads of the RBF layer"), (right, "writes")):
        axes.set(title=title + fill, xlabel="slots", ylabel="milliseconds")
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(True, color="0.9", linewidth=0.8)
        axes.legend(fontsize=7, frameon=False)
    figure.savefig(path)


def main(settings: Settings) -> None:
    """Measures, prints the table, and leaves the files."""
    if settings.quick:
        settings = dataclasses.replace(settings, slots=(200,), full=(0.5,), repeats=1)
    now = f"{datetime.now():%Y%m%d-%H%M%S}"
    folder = settings.out or Path("runs") / f"growth-{now}"
    folder.mkdir(parents=True, exist_ok=True)
    console = Console(width=None if Console().is_terminal else 140)
    sizes = (
        f"{settings.queries} queries, {settings.pairs} pairs, {settings.key} by {settings.value}"
    )
    console.print(f"{md.machine()}; {settings.clock} time; {sizes}")
    table = Table(
        "memory", "slots", "full", "state MB", "read ms", "NumPy ms", "NumPy / read", "gradient ms",
        "write ms", "temp MB: read", "gradient", "write",
    )  # fmt: skip
    rows: list[dict[str, Any]] = []
    for case in CASES:
        for slots in settings.slots:
            for full in settings.full:
                row = measured(case, slots, full, settings)
                rows.append(row)
                table.add_row(
                    case,
                    f"{slots:,}",
                    f"{full:.0%}",
                    f"{row['state_mb']:.1f}",
                    f"{row['read_ms']:.1f}",
                    f"{row['numpy_ms']:.1f}",
                    f"{row['numpy_ms'] / row['read_ms']:.1f}",
                    f"{row['gradient_ms']:.1f}",
                    f"{row['write_ms']:.1f}",
                    *(f"{row[f'{what}_temp_mb']:.1f}" for what in ("read", "gradient", "write")),
                )
                with (folder / "growth.csv").open("w", newline="", encoding="utf-8") as file:
                    writer = csv.DictWriter(file, list(row))
                    writer.writeheader()
                    writer.writerows(rows)
    console.print(table)
    draw(rows, folder / "growth.png")
    console.print(f"{folder}/growth.csv, {folder}/growth.png")


if __name__ == "__main__":
    main(tyro.cli(Settings, description=__doc__))
