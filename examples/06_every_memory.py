"""Every memory of the zoo on associative recall: one table, one picture.

A model with one block of each memory is shown pairs `key value key value …` and is then asked for the
keys. By default each learns a small task, ten seconds each, most of them for compiling, and `atlas`
longer; 400 steps on the task of the papers, half a minute each, tell more:

    python examples/06_every_memory.py --steps 400 --keys 16 --vocabulary 512 --time 64 --batch 32
"""

from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import jax
import matplotlib.pyplot as plt
import tyro

import memdsl as md
from memdsl.experiments import Questions, RecallTask, train_recall, weight_decayed


@dataclass(frozen=True)
class Settings:
    """How much each memory gets to learn."""

    memory: tuple[str, ...] = ()
    """Names that `memdsl list` shows; all by default."""
    steps: int = 60
    """Training steps."""
    keys: int = 4
    """Pairs in a sequence."""
    vocabulary: int = 32
    """Token identities."""
    time: int = 24
    """Tokens in a sequence."""
    batch: int = 32
    """Sequences in a step."""
    picture: Path = Path("every_memory.png")
    """Where the picture goes."""


def learn(name: str, task: RecallTask, settings: Settings) -> tuple[float, float]:
    """Accuracy at the questions after training, and seconds."""
    memory = md.zoo.catalogue()[name]()
    mixer = md.Layer(memory, heads=1, convolution=4, activation="silu")
    block = md.Residual(md.Norm() >> mixer)
    spec = md.Embed(task.vocabulary) >> block >> md.Norm() >> md.Unembed(task.vocabulary)
    start = perf_counter()
    dims = md.Dims(model=32, time=task.time)
    model = Questions(md.build(spec, dims, key=jax.random.key(0)))
    checkpoints = train_recall(
        model,
        task,
        decayed=weight_decayed(model),
        rate=0.01,
        steps=settings.steps,
        batch=settings.batch,
        seed=0,
        every=settings.steps,
    )
    return list(checkpoints)[-1].accuracy, perf_counter() - start


def main(settings: Settings) -> None:
    task = RecallTask(settings.keys, vocabulary=settings.vocabulary, time=settings.time)
    found = {}
    print(f"{'memory':28}accuracy   seconds")
    for name in settings.memory or md.zoo.catalogue():
        found[name] = learn(name, task, settings)
        jax.clear_caches()  # each is a program of its own
        print(f"{name:28}{found[name][0]:8.3f}{found[name][1]:10.1f}", flush=True)

    order = sorted(found, key=lambda name: found[name][0])
    figure, ax = plt.subplots(figsize=(8, 1 + 0.22 * len(order)), layout="constrained")
    ax.barh(order, [found[name][0] for name in order])
    ax.axvline(task.chance, color="0.5", linestyle="--", linewidth=1)
    ax.set_xlabel(f"accuracy after {settings.steps} steps (dashed: guessing among the values)")
    ax.tick_params(labelsize=8)
    figure.savefig(settings.picture, dpi=120)
    print(f"picture: {settings.picture}")


if __name__ == "__main__":
    main(tyro.cli(Settings))
