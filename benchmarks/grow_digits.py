"""What the writes of a growing layer come to on handwritten digits: the figures of docs/growing.md.

Every write grows one layer over zeros on scikit-learn's digits. Its settings are the best of a grid on
the training half alone: two cuts keep a quarter of its 898 rows for validation, the last quarter (other
writers than the rest, as in the real test) and a random one, and the setting with the best mean of
both is taken, one for a single pass and one for five. Then it is grown on the whole half, with three
orders of its rows, and tested.

    python benchmarks/grow_digits.py [-v] [name ...]
"""

import sys
from collections.abc import Callable, Iterator
from itertools import product
from time import perf_counter
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import memdsl as md
from memdsl.experiments import cross_entropy, digits


BATCH, EPOCHS, SEEDS = 25, 5, 3


class Data(NamedTuple):
    """Rows to grow on, and rows to be asked about."""

    inputs: jax.Array
    labels: jax.Array
    test_inputs: jax.Array
    test_labels: jax.Array


Settings = dict[str, float]
"""By the path of a number in the memory; a `scale` is in medians of the distance of two rows."""
KNOB = md.Knob(1.0)
WIDTHS = (0.15, 0.2, 0.3, 0.4, 0.5)


def merged(rows: int, write: md.AbstractWrite) -> md.Memory:
    """One atom an example, whose visits are added up."""
    room = md.Budget(rows, merge=md.AddToNearest())
    return md.Memory(md.RBF(scale=KNOB), write, md.Novelty(0.0), room)


def kept(rows: int, write: md.AbstractWrite, scale: Any = KNOB) -> md.Memory:
    """One atom a visit."""
    return md.Memory(md.RBF(scale=scale), write, capacity=md.Budget(EPOCHS * rows))


def ridge(rows: int, fixed: Settings) -> md.AbstractMemory:
    """Kernel and strength are fixed, so that its factor is kept from write to write."""
    write = md.Ridge(fixed["write.strength"], rate=KNOB)
    return kept(rows, write, fixed["kernel.scale"])


HEBB, MUON = md.Hebb(KNOB), md.Descent(md.Inner(), orthogonalise=True, gain=KNOB)
PAIR = {
    "second.write.rate": (50, 100, 200),
    "second.kernel.scale": (0.2, 0.3),
    "first.write.rate": (5, 20, 80),
    "first.kernel.scale": (0.5, 0.8),
}
Make = Callable[[int, Settings], md.AbstractMemory]
GRIDS: dict[str, tuple[Make, dict[str, tuple[float, ...]]]] = {
    "Hebb": (
        lambda n, _: merged(n, HEBB),
        {"write.rate": (25, 50, 100, 200, 400, 800), "kernel.scale": WIDTHS},
    ),
    "Ridge": (
        ridge,
        {
            "write.rate": (25, 100, 400),
            "kernel.scale": (0.3, 0.5, 0.8),
            "write.strength": (0.03, 0.3, 3.0),
        },
    ),
    "wide + narrow": (lambda n, _: merged(n, HEBB) + merged(n, HEBB), PAIR),
    "wide.boost(narrow)": (lambda n, _: merged(n, HEBB).boost(merged(n, HEBB)), PAIR),
    "Muon": (
        lambda n, _: merged(n, MUON),
        {"write.gain": (0.3, 1.0, 3.0, 10.0), "kernel.scale": WIDTHS},
    ),
    "momentum": (
        lambda n, _: kept(n, md.Descent(md.Inner(), rate=KNOB, momentum=0.9)),
        {"write.rate": (2.5, 5, 10, 20, 40), "kernel.scale": WIDTHS},
    ),
    "Muon, momentum": (
        lambda n, _: kept(n, MUON.replace(momentum=0.9)),
        {"write.gain": (0.03, 0.1, 0.3, 1.0), "kernel.scale": (0.3, 0.5)},
    ),
}


def curve(make: Make, settings: Settings, data: Data, seed: int) -> list[float]:
    """The accuracy after every pass."""
    rows, width = data.inputs.shape
    median = float(md.RBF.median(np.asarray(data.inputs), most=rows).scale)
    values = {p: v * median if p.endswith("scale") else v for p, v in settings.items()}
    base = md.Dense(10, bias=False, start="zeros", trainable=False)
    spec = md.Grown(base, make(rows, values))
    model = md.build(spec, md.Dims(model=width), key=jax.random.key(seed))
    turned = {path: (jnp.asarray([values[path]]),) for path in model.numbers}
    model = eqx.tree_at(lambda m: m.numbers, model, turned)
    rng, found = np.random.default_rng(seed), []
    for _ in range(EPOCHS):
        order = rng.permutation(rows)
        model, hits = epoch(model, data, jnp.asarray(order[: rows // BATCH * BATCH]))
        found.append(float(hits))
    return found


@eqx.filter_jit
def epoch(model: Any, data: Data, order: jax.Array) -> tuple[Any, jax.Array]:
    """The layer after one pass, and the share of rows that it then knows."""

    def step(model: Any, rows: jax.Array) -> tuple[Any, None]:
        given = data.inputs[rows], data.labels[rows]
        _, _, pairs = md.grow.backward(cross_entropy, model, *given)
        return md.grow.write(model, pairs), None

    model, _ = jax.lax.scan(step, model, order.reshape(-1, BATCH))
    said = jnp.argmax(jax.vmap(model)(data.test_inputs), axis=1)
    return model, jnp.mean(said == data.test_labels)


def cuts(data: Data) -> Iterator[Data]:
    """The training half, with a quarter of it to be asked about."""
    rows = len(data.inputs)
    share = rows * 3 // 4
    for order in (np.arange(rows), np.random.default_rng(0).permutation(rows)):
        own, other = order[:share], order[share:]
        yield Data(data.inputs[own], data.labels[own], data.inputs[other], data.labels[other])


def compare(names: list[str]) -> None:
    """Prints, for one pass and for five, the best settings of every write and what they come to."""
    data = Data(*map(jnp.asarray, digits()))
    for name in names:
        make, grid = GRIDS[name]
        tried = [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]
        scores = []
        for settings in tried:
            curves = [curve(make, settings, cut, seed=0) for cut in cuts(data)]
            scores.append(np.mean(curves, axis=0))
            if "-v" in sys.argv:
                print(f"{name:18} {scores[-1].round(4)} {settings}", flush=True)
        for passes in (1, EPOCHS):
            best = int(np.argmax([score[passes - 1] for score in scores]))
            start, seeds = perf_counter(), range(1, SEEDS + 1)
            found = [curve(make, tried[best], data, seed)[passes - 1] for seed in seeds]
            seconds = (perf_counter() - start) / (SEEDS * EPOCHS)
            reached = f"{100 * np.mean(found):.1f} ± {100 * np.std(found):.1f}"
            kept = f"validation {100 * scores[best][passes - 1]:.1f}"
            print(f"{name:18} {passes} {reached}  {kept}  {seconds:.1f} s a pass  {tried[best]}")
        jax.clear_caches()


if __name__ == "__main__":
    compare([name for name in sys.argv[1:] if name != "-v"] or list(GRIDS))
