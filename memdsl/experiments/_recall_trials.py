"""Training what the bars of associative recall need."""

import json
from time import perf_counter
from typing import Any, cast

import jax

import memdsl as md

from ..nn._blocks import Sequence
from ._allocator import keep_freed_memory
from ._bars import BARS, KINDS, Trial
from ._data import MixedTask
from ._judge import Suite
from ._memories import Questions, recall_memory, weight_decayed
from ._sequence import train_recall


SETTLED = 0.9995
"""A run whose every accuracy has reached this is not trained on."""


def trial_memory(trial: Trial) -> md.AbstractMemory:
    """The memory of a trial, its write rate starting where the trial says."""
    name = trial.memory
    memory = recall_memory("rbf_delta" if name == "rbf_delta_latest" else name, trial.bias)
    if name == "rbf_delta_latest":
        return cast(md.Memory, memory).replace(capacity=md.Budget(16))
    return memory


def trial_spec(trial: Trial) -> md.AbstractLayer:
    """The whole model of a trial."""
    kind = KINDS[trial.kind]
    mixer = md.Layer(
        trial_memory(trial),
        heads=kind.heads,
        key_size=kind.key_size,
        value_size=kind.value_size,
        convolution=4,
        activation="silu",
    )
    block: Any = md.Residual(md.Norm() >> mixer)
    if kind.has_mlp:
        block = block >> md.Residual(md.Norm() >> md.Mlp(2))
    return md.Embed(kind.vocabulary) >> block >> block >> md.Norm() >> md.Unembed(kind.vocabulary)


def run_trial(trial: Trial, seed: int) -> tuple[dict[str, float | None], float]:
    """Trains one model: its accuracies, and the seconds it took."""
    keep_freed_memory()
    start, kind = perf_counter(), KINDS[trial.kind]
    length = kind.task.test(1).tokens.shape[1]
    dims = md.Dims(model=64, time=length)
    network = md.build(trial_spec(trial), dims, key=jax.random.key(seed))
    model = Questions(cast(Sequence, network))
    further = {}
    if isinstance(kind.task, MixedTask):
        further = {str(task.keys): task.test() for task in kind.task.tasks}
    steps = trial.steps or kind.steps
    found: dict[str, float | None] = {}
    for at in train_recall(
        model,
        kind.task,
        decayed=weight_decayed(model),
        rate=kind.rate,
        steps=steps,
        batch=kind.batch,
        seed=seed,
        every=100,
        tests=further,
        enough=SETTLED,
    ):
        found = {"": at.accuracy, **at.accuracies}
    return found, perf_counter() - start


RECALL = Suite(
    title="Associative recall",
    measure="accuracy",
    bars=BARS,
    run=run_trial,
    spec=lambda trial: json.loads(md.to_json(trial_spec(trial))),
    cost=lambda trial: trial.steps or KINDS[trial.kind].steps,
    facts={"settled": SETTLED},
)
