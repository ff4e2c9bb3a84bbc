"""How the settings of the optimisers' experiment were chosen: a random search, on training rows.

Every optimiser has the same number of random settings on a problem. Of images, three cuts of the
training rows keep a fifth for validation; of a teacher, six teachers that no run uses, and of text, the
last tenth of what trains. A setting's score is what it comes to at the end, on average.

    python benchmarks/tune_optimisers.py mnist5k adamw mesa
    python benchmarks/tune_optimisers.py lm --settings 12
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import tyro

from memdsl.experiments import (
    begin,
    Course,
    GradientLearner,
    language,
    optimiser_course,
    optimiser_problem,
    OPTIMISERS,
    Problem,
    python_documentation,
    Text,
    train,
)


SEED = 99
RANGES: dict[str, dict[str, tuple[float, float]]] = {
    "sgd": {"rate": (0.01, 1.0)},
    "adamw": {"rate": (1e-3, 0.05), "decay": (1e-3, 0.3)},
    "muon": {"rate": (3e-3, 0.3), "decay": (1e-3, 0.3)},
    "mesa": {"rate": (0.01, 3.0), "ridge": (1e-3, 10.0), "fade": (0.01, 0.1)},
    "mesa-momentum": {"rate": (3e-3, 0.3), "ridge": (1e-3, 10.0), "fade": (0.01, 0.1)},
    "mesa-adam": {"rate": (1e-3, 0.05), "ridge": (1e-3, 10.0), "fade": (0.01, 0.1)},
    "mesa-muon": {"rate": (3e-3, 0.3), "ridge": (1e-3, 10.0), "fade": (0.01, 0.1)},
    "mesa-cumulative": {"rate": (0.3, 100.0), "ridge": (0.01, 30.0)},
    "delta": {"rate": (0.01, 1.0), "ridge": (1e-5, 1e-1)},
}
"""Between what every number is drawn, evenly in its logarithm; of `fade`, 1 minus it."""


@dataclass(frozen=True)
class Settings:
    """Settings of the search."""

    data: tyro.conf.Positional[str]
    """A problem of `memdsl run optimisers`."""
    names: tyro.conf.Positional[tuple[str, ...]] = ()
    """Optimisers; all by default."""
    settings: int = 32
    """How many settings each of them has."""


def problems(data: str) -> Iterator[Problem]:
    """Rows to train and to validate on."""
    if data == "lm":
        text = python_documentation()
        cut = len(text.train) * 9 // 10
        held_out = Text(text.alphabet, text.train[:cut], text.train[cut:])
        rows = len(optimiser_problem(data, SEED).train_inputs)
        yield language(SEED, rows, held_out)
    elif data.startswith("teacher"):
        yield from (optimiser_problem(data, SEED - number) for number in range(6))
    else:
        task = optimiser_problem(data, SEED)
        rows = len(task.train_inputs)
        for part in np.array_split(np.random.default_rng(SEED).permutation(rows), 5)[:3]:
            rest = np.setdiff1d(np.arange(rows), part)
            inputs, targets = task.train_inputs, task.train_targets
            cut = inputs[rest], targets[rest], inputs[part], targets[part]
            yield Problem(*cut, *task[4:])


def drawn(name: str, count: int) -> dict[str, jax.Array]:
    """Random settings."""
    rng, found = np.random.default_rng(SEED), {}
    for number, (low, high) in RANGES[name].items():
        values = np.exp(rng.uniform(np.log(low), np.log(high), count))
        found[number] = jnp.asarray(1 - values if number == "fade" else values, jnp.float32)
    return found


def reached(
    task: Problem, path: Course, one: GradientLearner, numbers: dict[str, jax.Array]
) -> tuple[jax.Array, jax.Array]:
    """The score on validation rows and the loss of training rows, of many settings."""
    orders = np.concatenate(list(path.orders(len(task.train_inputs), SEED)))
    rows = jnp.asarray(task.train_inputs), jnp.asarray(task.train_targets)

    def judged(model: Any, inputs: Any, targets: Any) -> Any:
        predictions = jax.lax.map(model, inputs, batch_size=250)
        return task.score(predictions, targets), task.loss(predictions, targets)

    def trial(numbers: dict[str, jax.Array]) -> tuple[jax.Array, jax.Array]:
        given = {n: x for n, x in numbers.items() if one.name == "delta" or n in ("rate", "decay")}
        own: Any = replace(one, **given)
        model = own.model(task, path, SEED)
        optimiser, moments = begin(model, own.optimiser(task, path))
        if one.name.startswith("mesa"):  # a spec holds no arrays, and the state its knobs
            knobs = {"write.strength": (numbers["ridge"],)}
            knobs |= {"gate.decay": (numbers["fade"],)} if "fade" in numbers else {}
            moments = optax.tree.set(moments, knobs=knobs)
        model, _, _ = train(task.loss, model, optimiser, moments, rows, jnp.asarray(orders))
        score, _ = judged(model, task.test_inputs, task.test_targets)
        return score, judged(model, rows[0][:4000], rows[1][:4000])[1]

    return jax.jit(lambda numbers: jax.lax.map(trial, numbers))(numbers)


def search(data: str, name: str, count: int) -> None:
    """Prints the five best settings."""
    numbers, path, one = drawn(name, count), optimiser_course(data, 1), OPTIMISERS[data][name]
    found = [reached(task, path, one, numbers) for task in problems(data)]
    scores, losses = (np.mean([np.asarray(f[i]) for f in found], axis=0) for i in range(2))
    upward = optimiser_problem(data, SEED).measure == "test_accuracy"
    order = np.argsort(np.nan_to_num(-scores if upward else scores, nan=np.inf))
    for best in order[:5]:
        shown = "  ".join(f"{n} {float(x[best]):.4g}" for n, x in numbers.items())
        line = f"{data} {name:16} score {scores[best]:.4f}  loss {losses[best]:.4f}  {shown}"
        print(line, flush=True)


if __name__ == "__main__":
    settings = tyro.cli(Settings, description=__doc__)
    for name in settings.names or RANGES:
        search(settings.data, name, settings.settings)
