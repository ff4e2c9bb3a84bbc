"""What learns in the growth experiments: growing nets, and perceptrons under an optimiser."""

import abc
import json
from dataclasses import dataclass
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, PRNGKeyArray

import memdsl as md

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
    size. Biases are under Adam where the optimiser is Muon, at a tenth of the rate.
    """

    name: Literal["sgd", "adamw", "muon"]
    rate: float
    momentum: float = 0.0
    """Of SGD."""
    decay: float = 0.0
    """Weight decay, of AdamW and Muon."""
    hidden: int = HIDDEN
    activation: Activation = "relu"

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
        match self.name:
            case "sgd":
                return optax.sgd(self.rate, momentum=self.momentum or None)
            case "adamw":
                return optax.adamw(self.rate, weight_decay=self.decay)
            case "muon":
                return optax.contrib.muon(
                    self.rate,
                    weight_decay=self.decay,
                    adam_learning_rate=0.1 * self.rate,
                )

    def described(self, problem: Problem, course: Course) -> Any:
        made = f"{problem.width} inputs times {problem.width**0.5:.4g}, {self.hidden} {self.activation}, "
        return f"{made}{problem.outputs} outputs"


Rule = Literal["rbf", "frozen", "damped", "clip", "gauge", "naive"]
"""What a pair becomes: an atom of a plain expansion, or of a weighted softmax under a rule."""


@dataclass(frozen=True)
class GrowthLearner(AbstractLearner):
    r"""A net of growing layers: nothing in it is trained but by the pairs that are written.

    One layer, which starts as the zero function,

    $$f(x) = \sum_i \exp\left(-\tfrac{\lVert x_i - x\rVert^2}{2\sigma^2}\right) c_i, \qquad
      c_i \leftarrow c_i - \eta \, \frac{\partial L}{\partial f(x_i)}$$

    or two: f over a random linear map to 64 numbers that stays as it was drawn, and another of the
    direction of what that gives. A row seen again is added to its own atom in the first layer, which
    is exact, so that it never holds more atoms than there are rows. What the second is given is never
    twice the same: it keeps every pair.

    With another rule the sum is divided by that of the masses: see `md.Reweight`, of which each is a
    `negative`, scale free, but for `naive`, which is `md.grow.naive_insertion`.
    """

    rates: tuple[float, ...]
    """$\\eta$ of every layer."""
    bandwidths: tuple[float, ...]
    """$\\sigma$ of every layer, as a share of the median distance of two of its inputs."""
    rule: Rule = "rbf"
    prior: float = 1.0
    """Mass of the prior of a softmax, whose value is 0."""
    planted: int = 0
    """Atoms of no value at random inputs, before anything is learned; their mass is 1 in all."""
    margin: float = 0.01
    """Of the rule gauge."""
    relu: bool = False
    """Whether there is a ReLU between two layers."""
    residual: bool = False
    """Whether the first of two layers adds to its input, and not to a random map of it: the net then
    starts as one layer, and learns in which space to compare."""

    def __post_init__(self):
        if len(self.rates) != len(self.bandwidths) or len(self.rates) not in (1, 2):
            raise ValueError("One rate and one bandwidth for each of one or two layers.")

    def spec(self, problem: Problem, course: Course, seed: int) -> md.AbstractLayer:
        """The net; the seed is that of the linear map, which decides the width of the second kernel."""
        rows = len(problem.train_inputs)
        kernel: Any = md.RBF.median(problem.train_inputs, self.bandwidths[0])
        room = md.Budget(course.atoms(rows) + self.planted)
        first = self._memory(kernel, 0, room)
        if course.merges(rows):
            distinct = md.Budget(rows, merge=md.AddToNearest())
            first = first.replace(gate=md.Novelty(0.0), capacity=distinct)
        if len(self.rates) == 1:
            return md.Grown(_nothing(problem.outputs), first)
        layer: md.AbstractLayer = md.Residual(md.Grown(_nothing(problem.width), first))
        if not self.residual:
            drawn = md.Dense(HIDDEN, bias=False, trainable=False, gain=problem.width**0.5)
            layer = md.Grown(drawn, first)
        if self.relu:
            layer = layer >> md.Relu()
        directions = _directions(layer, problem, seed)
        kernel = md.RBF.median(directions, self.bandwidths[1]).pullback(md.L2Norm())
        return layer >> md.Grown(_nothing(problem.outputs), self._memory(kernel, 1, room))

    def _memory(self, kernel: md.AbstractKernel, layer: int, room: md.Budget) -> md.Memory:
        rate = self.rates[layer]
        if self.rule == "naive":
            return md.grow.naive_insertion(kernel, rate, room)
        if self.rule == "rbf":
            return md.Memory(kernel, md.Hebb(rate), capacity=room)
        write = md.Reweight(rate, negative=self.rule, margin=self.margin, scale_free=True)
        return md.Memory(kernel, write, capacity=room, read=md.Normalised(prior=self.prior))

    def model(self, problem: Problem, course: Course, seed: int) -> Any:
        spec = self.spec(problem, course, seed)
        model = md.build(spec, md.Dims(model=problem.width), key=jax.random.key(seed))
        if not self.planted:
            return model
        key = jax.random.fold_in(jax.random.key(seed), self.planted)
        return md.grow.plant(model, problem.train_inputs, self.planted, key=key)

    def optimiser(self, problem: Problem, course: Course) -> None:
        return None

    def described(self, problem: Problem, course: Course) -> Any:
        return json.loads(md.to_json(self.spec(problem, course, 0)))


@dataclass(frozen=True)
class StableLearner(AbstractLearner):
    """One growing RBF layer whose rate is a share of what is stable, by `md.grow.suggest_rate`.

    The bound is 2 over the largest eigenvalue that a step has, in the mean of the first batches.
    """

    bandwidth: float
    share: float = 0.8
    batches: int = 8

    def growth(self, problem: Problem, course: Course) -> GrowthLearner:
        """The layer with its rate."""
        untried = GrowthLearner((1.0,), (self.bandwidth,))
        model = untried.model(problem, course, 0)
        orders = next(course.orders(len(problem.train_inputs), 0))[: self.batches]
        bounds = [
            md.grow.suggest_rate(
                problem.loss, model, problem.train_inputs[rows], problem.train_targets[rows]
            ).bound[0]
            for rows in orders
        ]
        inverse = float(np.mean([1 / bound for bound in bounds if bound is not None]))
        return GrowthLearner((self.share / inverse,), (self.bandwidth,))

    def model(self, problem: Problem, course: Course, seed: int) -> Any:
        return self.growth(problem, course).model(problem, course, seed)

    def optimiser(self, problem: Problem, course: Course) -> None:
        return None

    def described(self, problem: Problem, course: Course) -> Any:
        return self.growth(problem, course).described(problem, course)


@dataclass(frozen=True)
class HybridLearner(AbstractLearner):
    r"""A growing RBF layer whose atoms Adam trains: what is far from all keys becomes an atom.

    A row becomes an atom where no key is as near as $\tau$, with the value that a `GrowthLearner`
    would give it; keys and values of atoms are parameters, each with moments of its own. Adam's
    rates fall by equal steps an epoch, to a tenth in the last of ten.
    """

    threshold: float
    """$\\tau$, as a share of the median distance of two rows."""
    rate: float
    bandwidth: float
    value_rate: float
    """Of Adam, for the values of atoms."""
    key_rate: float
    """Of Adam, for the keys of atoms."""
    room: int = 1024
    """The most atoms; of more, the oldest would leave."""
    falls: bool = True
    """Whether Adam's rates fall."""
    centres: int = 0
    """With a number, so many atoms at random rows and none that grows: the control."""

    def spec(self, problem: Problem, course: Course) -> md.Grown:
        """The layer."""
        inputs = problem.train_inputs
        kernel: Any = md.RBF.median(inputs, self.bandwidth)
        far = kernel.scale * self.threshold / self.bandwidth
        gate = md.Never() if self.centres else md.Novelty(far)
        memory = md.Memory(kernel, md.Hebb(self.rate), gate, md.Budget(self.centres or self.room))
        return md.Grown(_nothing(problem.outputs), memory, trainable=True)

    def model(self, problem: Problem, course: Course, seed: int) -> Any:
        key = jax.random.key(seed)
        layer = md.build(self.spec(problem, course), md.Dims(model=problem.width), key=key)
        if not self.centres:
            return layer
        return md.grow.plant(layer, problem.train_inputs, self.centres, key=key)

    def optimiser(self, problem: Problem, course: Course) -> optax.GradientTransformation:
        parts: dict[Any, optax.GradientTransformation] = {
            "keys": optax.adam(self.key_rate),
            "values": optax.adam(self.value_rate),
        }
        atoms = md.grow.slotwise(optax.multi_transform(parts, _names), weights=optax.set_to_zero())
        if not self.falls:
            return atoms
        steps = course.steps(len(problem.train_inputs))

        def share(count: Any) -> Any:
            return 1 - (count // steps) / course.epochs

        return optax.chain(atoms, optax.scale_by_schedule(share))

    def described(self, problem: Problem, course: Course) -> Any:
        return json.loads(md.to_json(self.spec(problem, course)))


def _names(tree: Any) -> Any:
    """The name of every field of a tree that is a named tuple."""
    return jax.tree_util.tree_map_with_path(lambda path, _: path[-1].name, tree)


def _nothing(outputs: int) -> md.Dense:
    return md.Dense(outputs, bias=False, start="zeros", trainable=False)


def _directions(layer: md.AbstractLayer, problem: Problem, seed: int) -> np.ndarray:
    """What a layer after this one is asked before anything has grown, of unit norm."""
    net: Any = md.build(
        layer >> md.Dense(1), md.Dims(model=problem.width), key=jax.random.key(seed)
    )
    hidden = jnp.asarray(problem.train_inputs)
    for before in net.layers[:-1]:
        hidden = jax.vmap(before)(hidden)
    hidden = np.asarray(hidden)
    return hidden / np.linalg.norm(hidden, axis=1, keepdims=True)
