"""What learns in the growth experiments, and the perceptrons among it."""

import abc
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PRNGKeyArray

import memdsl as md

from ._learn import Course, Problem
from ._optimisers import Baseline, DualName, is_dual, Numbers, optimiser_of, Rate


Activation = Literal["relu", "tanh"]

HIDDEN = 64
"""The width between two layers, of growing nets and of perceptrons."""


class Perceptron(eqx.Module):
    r"""$x_{i+1} = a(W_i^\top x_i + b_i)$, the last layer without a; a is a ReLU or a tanh.

    $W_i \sim \mathcal N(0, 2/d)$ of d inputs, the last $\mathcal N(0, 1/d)$, biases 0. It takes one row;
    batch it with `jax.vmap`.
    """

    weights: tuple[Float[Array, "input output"], ...]
    biases: tuple[Float[Array, " output"], ...]
    scale: float = eqx.field(static=True)
    """Times x, before anything else."""
    activation: Activation = eqx.field(static=True)

    def __init__(
        self,
        inputs: int,
        hidden: Sequence[int],
        labels: int,
        *,
        key: PRNGKeyArray,
        scale: float = 1.0,
        activation: Activation = "relu",
    ):
        sizes = list(pairwise((inputs, *hidden, labels)))
        keys = jax.random.split(key, len(sizes))
        spreads = [(2 / size[0]) ** 0.5 for size in sizes[:-1]] + [sizes[-1][0] ** -0.5]
        self.weights = tuple(
            spread * jax.random.normal(key, size, jnp.float32)
            for key, size, spread in zip(keys, sizes, spreads, strict=True)
        )
        self.biases = tuple(jnp.zeros(size[1], jnp.float32) for size in sizes)
        self.scale = scale
        self.activation = activation

    def __call__(self, x: Float[Array, " input"]) -> Float[Array, " label"]:
        activation = jax.nn.relu if self.activation == "relu" else jnp.tanh
        *below, last = zip(self.weights, self.biases, strict=True)
        x = self.scale * x
        for weight, bias in below:
            x = activation(x @ weight + bias)
        return x @ last[0] + last[1]


class AbstractLearner(abc.ABC):
    """Something that learns a problem: a model, the optimiser of what a gradient trains, its settings."""

    @abc.abstractmethod
    def model(self, problem: Problem, course: Course, seed: int) -> Any:
        """The model before anything is learned."""

    @abc.abstractmethod
    def optimiser(self, problem: Problem, course: Course) -> optax.GradientTransformation | None:
        """Of the model's parameters; `None` where nothing but atoms is learned."""

    @abc.abstractmethod
    def described(self, problem: Problem, course: Course) -> Any:
        """The model as JSON values: a spec, or words."""


@dataclass(frozen=True)
class GradientLearner(AbstractLearner):
    r"""A perceptron, trained by an optimiser: see `optimiser_of`."""

    name: Baseline | DualName
    rate: float
    momentum: float = 0.0
    decay: float = 0.0
    fade: float = 0.0
    ridge: float = 0.0
    hidden: tuple[int, ...] = (HIDDEN,)
    activation: Activation = "relu"
    biases: float = 0.1
    scaled: bool = True
    r"""Whether inputs are the rows times $\sqrt d$, so that a row of unit norm has entries of about unit
    size."""
    falls: bool = False
    """Whether the rate falls linearly to 0 over the course."""

    def model(self, problem: Problem, course: Course, seed: int) -> Any:
        model = Perceptron(
            problem.width,
            self.hidden,
            problem.outputs,
            key=jax.random.key(seed),
            scale=self._scale(problem),
            activation=self.activation,
        )
        return self.captured(model, problem)

    def captured(self, model: Any, problem: Problem) -> Any:
        """The model, ready to say what its layers are given where the optimiser has to know."""
        example = jnp.asarray(problem.train_inputs[:1])
        return md.optim.capture(model, example) if is_dual(self.name) else model

    def optimiser(self, problem: Problem, course: Course) -> optax.GradientTransformation:
        return optimiser_of(self.name, self.schedule(problem, course), self.numbers)

    @property
    def numbers(self) -> Numbers:
        """What the optimiser is set to, beside its rate."""
        return Numbers(self.momentum, self.decay, self.fade, self.ridge, self.biases)

    def schedule(self, problem: Problem, course: Course) -> Rate:
        """The rate, or what it is after so many steps."""
        if not self.falls:
            return self.rate
        return optax.linear_schedule(self.rate, 0.0, course.all_steps(len(problem.train_inputs)))

    def described(self, problem: Problem, course: Course) -> Any:
        scale = self._scale(problem)
        times = "" if scale == 1 else f" times {scale:.4g}"
        layers = ", ".join(f"{width} {self.activation}" for width in self.hidden)
        return f"{problem.width} inputs{times}, {layers}, {problem.outputs} outputs"

    def _scale(self, problem: Problem) -> float:
        return problem.width**0.5 if self.scaled else 1.0
