"""Growing and training together: atoms that Adam trains, a memory beside a perceptron, or as its end."""

import json
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import optax
from jaxtyping import Array, Float

import memdsl as md

from ._learn import Course, Problem
from ._learners import AbstractLearner, GradientLearner
from ._learners_growing import nothing


@dataclass(frozen=True)
class HybridLearner(AbstractLearner):
    r"""A growing RBF layer whose atoms Adam trains: what is far from all keys becomes an atom.

    A row becomes an atom where no key is as near as $\tau$, with the value that a `GrowthLearner`
    would give it; keys and values of atoms are parameters, each with moments of its own. Adam's
    rates fall by equal steps an epoch, to a tenth in the last of ten.

    Or it grows and merges: in the first epoch every row becomes an atom, and where there is no room
    the atom of the smallest value and another become one, at the least change of f (`md.Pairwise`).
    Later rows come with a value of 0, and are each other's successors in one place.
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
    merged: int = 0
    """With a number, so many atoms, which the rows of the first epoch are merged into."""

    def spec(self, problem: Problem, course: Course) -> md.Grown:
        """The layer."""
        inputs = problem.train_inputs
        kernel: Any = md.RBF.median(inputs, self.bandwidth)
        far = kernel.scale * self.threshold / self.bandwidth
        gate = md.Never() if self.centres else md.Novelty(far)
        memory = md.Memory(kernel, md.Hebb(self.rate), gate, md.Budget(self.centres or self.room))
        if self.merged:
            room = md.Budget(self.merged, evict=md.Smallest(), merge=md.Pairwise())
            write = md.Hebb(_stopped(self.rate, course.steps(len(inputs))))
            memory = md.Memory(kernel, write, capacity=room)
        return md.Grown(nothing(problem.outputs), memory, trainable=True)

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


def _stopped(rate: float, steps: int) -> md.Schedule:
    """A rate for so many writes, and then 0."""
    return md.Schedule(
        "linear_schedule",
        init_value=rate,
        end_value=0.0,
        transition_steps=1,
        transition_begin=steps - 1,
    )


def _names(tree: Any) -> Any:
    """The name of every field of a tree that is a named tuple."""
    return jax.tree_util.tree_map_with_path(lambda path, _: path[-1].name, tree)


class Beside(eqx.Module):
    """The sum of what two models answer."""

    first: Any
    second: Any

    def __call__(self, x: Float[Array, " input"]) -> Float[Array, " label"]:
        return self.first(x) + self.second(x)


@dataclass(frozen=True)
class FadingLearner(AbstractLearner):
    r"""A perceptron, and beside it a growing RBF layer that fades.

    $$y = \mathrm{net}(x) + f(x), \qquad
      f \leftarrow \alpha f - \eta \sum_b \kappa(x_b, \cdot)\, \frac{\partial L}{\partial y_b}$$

    Both learn from the same errors: what is new is answered by the memory at once, and as it fades the
    weights have to know it. The room is of the last rows only, so that a step costs the same however
    many rows were seen.
    """

    perceptron: GradientLearner
    rate: float
    bandwidth: float
    kept: float
    """$\\alpha$, what a step leaves of the memory."""
    room: int = 2048
    """The most atoms; of more, the oldest leave."""

    def spec(self, problem: Problem) -> md.Grown:
        """The layer beside the perceptron."""
        kernel: Any = md.RBF.median(problem.train_inputs, self.bandwidth)
        fades, room = md.Decay(self.kept), md.Budget(self.room)
        memory = md.Memory(kernel, md.Hebb(self.rate), fades, room)
        return md.Grown(nothing(problem.outputs), memory)

    def model(self, problem: Problem, course: Course, seed: int) -> Any:
        net = self.perceptron.model(problem, course, seed)
        dims = md.Dims(model=problem.width)
        return Beside(net, md.build(self.spec(problem), dims, key=jax.random.key(seed)))

    def optimiser(self, problem: Problem, course: Course) -> optax.GradientTransformation:
        return self.perceptron.optimiser(problem, course)

    def described(self, problem: Problem, course: Course) -> Any:
        return {
            "net": self.perceptron.described(problem, course),
            "beside": json.loads(md.to_json(self.spec(problem))),
        }


@dataclass(frozen=True)
class SolvedLearner(AbstractLearner):
    r"""A perceptron whose last layer grows and is solved, while an optimiser trains the first.

    $$y = C^\top a(W x + b), \qquad
      C = \arg\min_C \sum_i \alpha^{T - t_i} \lVert C^\top h_i - v_i \rVert^2
          + \lambda \lVert C \rVert^2, \qquad v_i = y_i - B \frac{\partial L}{\partial y_i}$$

    with the features h of a row as they were in the step $t_i$ that it was seen in, of T, and B rows in
    a batch: of half a mean squared error, v is what the row is to be answered. So the first layer is
    always trained under the best last one that there is. It forgets, since the features move.
    """

    perceptron: GradientLearner
    """Whose hidden layers and optimiser it is."""
    strength: float
    """$\\lambda$"""
    kept: float
    """$\\alpha$, what a step leaves of what is solved."""

    def spec(self, problem: Problem, course: Course) -> md.AbstractLayer:
        """The net."""
        net = self.perceptron
        activation = md.Relu() if net.activation == "relu" else md.Tanh()
        write, fades = md.Ridge(self.strength, rate=float(course.batch)), md.Decay(self.kept)
        last = md.Grown(nothing(problem.outputs), md.Memory(md.Dot(), write, fades))
        hidden: Any = md.Scale(problem.width**0.5)
        for width in net.hidden:
            hidden = hidden >> md.Dense(width) >> activation
        return hidden >> last

    def model(self, problem: Problem, course: Course, seed: int) -> Any:
        dims = md.Dims(model=problem.width)
        return md.build(self.spec(problem, course), dims, key=jax.random.key(seed))

    def optimiser(self, problem: Problem, course: Course) -> optax.GradientTransformation:
        return self.perceptron.optimiser(problem, course)

    def described(self, problem: Problem, course: Course) -> Any:
        return json.loads(md.to_json(self.spec(problem, course)))
