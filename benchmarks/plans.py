"""Every legal plan timed here, beside the one that the planner chose: is its cost model right?

    python benchmarks/plans.py --time 64 512 2048

Float32, compiled, one sequence of several heads. `chosen / best` is what the choice costs.
"""

import dataclasses
import statistics
import sys
from typing import Literal

import jax
import tyro
from rich.console import Console
from rich.table import Table

import memdsl as md


@dataclasses.dataclass(frozen=True)
class Settings:
    """What is timed."""

    memory: tuple[str, ...] = (
        "linear_attention",
        "mamba2",
        "gla",
        "gated_delta_net",
        "kimi_delta_attention",
        "delta_product",
        "mesa_net_ungated",
        "softmax",
        "sliding_window",
        "rbf_delta",
        "rbf_ridge",
    )
    time: tuple[int, ...] = (64, 512, 2048)
    size: int = 64
    heads: int = 4
    repeats: int = 3
    longest: float = 30.0
    """Plans that the model puts above this many seconds are left out."""


def chosen(memory: md.AbstractMemory, dims: md.Dims, purpose: Literal["train", "serve"]) -> str:
    """The name of the plan that the planner takes."""
    return md.plan(memory, dims, purpose=purpose).name


def main(settings: Settings) -> None:
    """Times and prints, a table a length."""
    console = Console(width=None if sys.stdout.isatty() else 120)
    console.print(md.machine())
    regrets: dict[str, list[float]] = {"serve": [], "train": []}
    for length in settings.time:
        dims = md.Dims(key=settings.size, value=settings.size, heads=settings.heads, time=length)
        table = Table(title=f"{length} tokens, milliseconds", show_lines=False)
        for column in ("memory", "plan", "serve", "train", "chosen for", "chosen / best"):
            table.add_column(column)
        for name in settings.memory:
            memory = md.zoo.catalogue()[name]()
            rules = tuple(
                rule
                for rule, seconds in md.plan(memory, dims).choices[0].legal
                if settings.heads * seconds < settings.longest
            )
            found = md.measure(memory, dims, repeats=settings.repeats, rules=rules)
            jax.clear_caches()
            times = {
                "serve": {m.name: m.forward for m in found},
                "train": {m.name: m.backward for m in found},
            }
            picks = {purpose: chosen(memory, dims, purpose) for purpose in ("serve", "train")}
            for purpose, pick in picks.items():
                if pick in times[purpose]:
                    regrets[purpose].append(times[purpose][pick] / min(times[purpose].values()))
            for measured in found:
                purposes = [p for p, pick in picks.items() if pick == measured.name]
                cost = [f"{times[p][measured.name] / min(times[p].values()):.2f}" for p in purposes]
                table.add_row(
                    name,
                    measured.name,
                    f"{1e3 * measured.forward:.2f}",
                    f"{1e3 * measured.backward:.2f}",
                    ", ".join(purposes),
                    ", ".join(cost),
                )
        console.print(table)
    for purpose, found_regrets in regrets.items():
        console.print(
            f"{purpose}: chosen / best, median {statistics.median(found_regrets):.2f}, "
            f"worst {max(found_regrets):.2f}"
        )


if __name__ == "__main__":
    main(tyro.cli(Settings))
