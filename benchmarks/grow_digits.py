"""What the writes of a growing layer come to on handwritten digits: the figures of docs/growing.md.

Every write grows one layer over zeros on scikit-learn's digits. Its settings are the best of a grid on
the training half alone: two cuts keep a quarter of its 898 rows for validation, the last quarter (other
writers than the rest, as in the real test) and a random one, and a setting's score is its accuracy
after one pass and after five, averaged over both cuts. Then it is grown on the whole half, and tested.

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
WIDTHS = (0.2, 0.3, 0.4, 0.5)


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
        {"write.rate": (25, 50, 100, 200, 400), "kernel.scale": WIDTHS},
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
        {"write.gain": (0.1, 0.3, 1.0, 3.0), "kernel.scale": WIDTHS},
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
    """Prints the best settings of every write, and what they come to."""
    data = Data(*map(jnp.asarray, digits()))
    for name in names:
        make, grid = GRIDS[name]
        best, chosen = -1.0, {}
        for values in product(*grid.values()):
            settings = dict(zip(grid, values, strict=True))
            curves = [curve(make, settings, cut, seed=0) for cut in cuts(data)]
            score = float(np.mean([(c[0] + c[-1]) / 2 for c in curves]))
            if score > best:
                best, chosen = score, settings
            if "-v" in sys.argv:
                print(f"{name:18} {score:.4f} {settings}", flush=True)
        start = perf_counter()
        curves = np.array([curve(make, chosen, data, seed) for seed in range(1, SEEDS + 1)])
        seconds = (perf_counter() - start) / SEEDS
        first, last = (
            f"{100 * curves[:, e].mean():.1f} ± {100 * curves[:, e].std():.1f}" for e in (0, -1)
        )
        print(f"{name:18} {first}  {last}  {seconds:5.1f} s  {chosen}, validation {best:.4f}")
        jax.clear_caches()


if __name__ == "__main__":
    compare([name for name in sys.argv[1:] if name != "-v"] or list(GRIDS))
