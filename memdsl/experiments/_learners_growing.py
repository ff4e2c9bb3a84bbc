"""Growing nets: what nothing but their pairs trains."""

import json
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

import memdsl as md

from ._learn import Course, Problem
from ._learners import AbstractLearner, HIDDEN


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
            return md.Grown(nothing(problem.outputs), first)
        layer: md.AbstractLayer = md.Residual(md.Grown(nothing(problem.width), first))
        if not self.residual:
            drawn = md.Dense(HIDDEN, bias=False, trainable=False, gain=problem.width**0.5)
            layer = md.Grown(drawn, first)
        if self.relu:
            layer = layer >> md.Relu()
        directions = _directions(layer, problem, seed)
        kernel = md.RBF.median(directions, self.bandwidths[1]).pullback(md.L2Norm())
        return layer >> md.Grown(nothing(problem.outputs), self._memory(kernel, 1, room))

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


def nothing(outputs: int) -> md.Dense:
    """The zero function, which is not trained."""
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
