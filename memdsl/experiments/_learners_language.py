"""A small language model as a problem and a learner, for optimisers to be compared on."""

import json
import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int

import memdsl as md

from ._language import language_spec, LanguageSettings, tested_windows
from ._learn import Course, cross_entropy, Problem
from ._learners import GradientLearner
from ._optimisers import optimiser_of
from ._text import python_documentation, Text


MEMORY = "gated_delta_net"
SIZES = LanguageSettings(width=64, blocks=2, heads=2, time=64)
"""Of the model and of its windows."""


def language(seed: int, rows: int, text: Text | None = None) -> Problem:
    """Windows of the documentation of Python, each seen once, and its last tenth to be tested on.

    **Arguments:**

    - `seed`: of where the windows begin.
    - `rows`: how many windows train.
    - `text`: another text than this one.

    **Returns:** a `Problem`: of characters `[time]` the next ones, by cross-entropy; its test is in bits
    a character, each with at least one window of context.
    """
    text, time = text or python_documentation(), SIZES.time
    starts = np.random.default_rng(seed).integers(0, len(text.train) - time, rows)
    train = text.train[starts[:, None] + np.arange(time + 1)]
    test = tested_windows(text, time)
    return Problem(
        train[:, :-1],
        train[:, 1:],
        test[:, :-1],
        test[:, 1:],
        len(text.alphabet),
        cross_entropy,
        "test_bits",
        partial(_bits, len(text.test)),
    )


def _bits(
    count: int, logits: Float[Array, "row both letter"], labels: Int[Array, "row both"]
) -> Float[Array, ""]:
    """Of the first so many characters of the second halves of windows."""
    half = labels.shape[1] // 2
    later, wanted = logits[:, half:].reshape(-1, logits.shape[-1]), labels[:, half:].reshape(-1)
    return cross_entropy(later[:count], wanted[:count]) / math.log(2)


@dataclass(frozen=True)
class LanguageLearner(GradientLearner):
    """A language model whose matrices are trained by an optimiser.

    Muon and duals train what is a matrix in the blocks, and AdamW of `base` the rest: embeddings, gains,
    convolutions. Gradients are clipped to global norm 1; rates rise over the first tenth of the
    steps, and fall by a cosine.
    """

    base: float = 0.0
    """The rate of AdamW for the rest."""

    def model(self, problem: Problem, course: Course, seed: int) -> Any:
        dims = md.Dims(model=SIZES.width, time=problem.test_inputs.shape[1])
        model = md.build(self._spec(problem), dims, key=jax.random.key(seed))
        return md.optim.capture(model, jnp.asarray(problem.train_inputs[:1]))

    def optimiser(self, problem: Problem, course: Course) -> optax.GradientTransformation:
        steps = course.all_steps(len(problem.train_inputs))
        rate = partial(_risen, self.rate, steps)
        if self.name in ("sgd", "adamw"):
            inner = optimiser_of(self.name, rate, self.numbers)
        else:
            matrices = partial(jax.tree.map, _as_matrix)
            inner = optax.partition(
                {
                    True: optimiser_of(self.name, rate, self.numbers, matrices),
                    False: optax.adamw(partial(_risen, self.base, steps), weight_decay=0.1),
                },
                _inside_blocks,
            )
        return optax.chain(optax.clip_by_global_norm(1.0), inner)

    def described(self, problem: Problem, course: Course) -> Any:
        return json.loads(md.to_json(self._spec(problem)))

    def _spec(self, problem: Problem) -> md.AbstractLayer:
        return language_spec(MEMORY, SIZES, problem.outputs)


def _risen(rate: Any, steps: int, step: Any) -> Any:
    """A rate after a warm-up over a tenth of the steps, and a cosine to 0."""
    return rate * optax.warmup_cosine_decay_schedule(0.0, 1.0, max(1, steps // 10), steps)(step)


def _inside_blocks(params: md.optim.Captured) -> Any:
    """Whether a tensor is a matrix of equal layers that are stacked."""
    stacked = {f".model{one.weight}" for one in params.projections if one.stack}

    def inside(path: Any, leaf: Array) -> bool:
        return jax.tree_util.keystr(path) in stacked

    return jax.tree_util.tree_map_with_path(inside, params)


def _as_matrix(leaf: Array) -> Any:
    """How Muon is told of a tensor `[block, out, in]`."""
    return optax.contrib.MuonDimensionNumbers(-1, -2)
