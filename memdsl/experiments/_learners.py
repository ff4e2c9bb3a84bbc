"""What learns in the growth experiments, and the perceptrons among it."""

import abc
from dataclasses import dataclass
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from ._learn import Course, Problem


Activation = Literal["relu", "tanh"]

HIDDEN = 64
"""The width between two layers, of growing nets and of perceptrons."""


class Perceptron(eqx.Module):
    r"""One hidden layer: $y = W_2^\top a(W_1^\top x + b_1) + b_2$, with a ReLU or a tanh for a.

    $W_1 \sim \mathcal N(0, 2/d)$, $W_2 \sim \mathcal N(0, 1/h)$, biases 0. It takes one row; batch
    it with `jax.vmap`.
    """

    first: Float[Array, "input hidden"]
    first_bias: Float[Array, " hidden"]
    second: Float[Array, "hidden label"]
    second_bias: Float[Array, " label"]
    scale: float = eqx.field(static=True)
    """Times x, before anything else."""
    activation: Activation = eqx.field(static=True)

    def __init__(
        self,
        inputs: int,
        hidden: int,
        labels: int,
        *,
        key: PRNGKeyArray,
        scale: float = 1.0,
        activation: Activation = "relu",
    ):
        one, two = jax.random.split(key)
        self.first = jax.random.normal(one, (inputs, hidden), jnp.float32) * (2 / inputs) ** 0.5
        self.first_bias = jnp.zeros(hidden, jnp.float32)
        self.second = jax.random.normal(two, (hidden, labels), jnp.float32) / hidden**0.5
        self.second_bias = jnp.zeros(labels, jnp.float32)
        self.scale = scale
        self.activation = activation

    def __call__(self, x: Float[Array, " input"]) -> Float[Array, " label"]:
        activation = jax.nn.relu if self.activation == "relu" else jnp.tanh
        hidden = activation(self.scale * x @ self.first + self.first_bias)
        return hidden @ self.second + self.second_bias


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
    r"""A perceptron with one hidden layer, trained by an optimiser.

    Its inputs are the rows times $\sqrt d$, so that a row of unit norm has entries of about unit
    size. Biases are under Adam where the optimiser is Muon.
    """

    name: Literal["sgd", "adamw", "muon"]
    rate: float
    momentum: float = 0.0
    """Of SGD."""
    decay: float = 0.0
    """Weight decay, of AdamW and Muon."""
    hidden: int = HIDDEN
    activation: Activation = "relu"
    biases: float = 0.1
    """Rate of the biases under Muon, as a share of that of the weights."""
    falls: bool = False
    """Whether the rate falls to 0 by equal steps, the last at the end."""

    def model(self, problem: Problem, course: Course, seed: int) -> Any:
        return Perceptron(
            problem.width,
            self.hidden,
            problem.outputs,
            key=jax.random.key(seed),
            scale=problem.width**0.5,
            activation=self.activation,
        )

    def optimiser(self, problem: Problem, course: Course) -> optax.GradientTransformation:
        steps = course.epochs * course.steps(len(problem.train_inputs))

        def rate(most: float) -> Any:
            return optax.linear_schedule(most, 0.0, steps) if self.falls else most

        match self.name:
            case "sgd":
                return optax.sgd(rate(self.rate), momentum=self.momentum or None)
            case "adamw":
                return optax.adamw(rate(self.rate), weight_decay=self.decay)
            case "muon":
                return optax.contrib.muon(
                    rate(self.rate),
                    weight_decay=self.decay,
                    adam_learning_rate=rate(self.biases * self.rate),
                )

    def described(self, problem: Problem, course: Course) -> Any:
        made = f"{problem.width} inputs times {problem.width**0.5:.4g}, {self.hidden} {self.activation}, "
        return f"{made}{problem.outputs} outputs"
