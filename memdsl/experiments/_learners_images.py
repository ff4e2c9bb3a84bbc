"""Growing nets of images: convolutions that are written by the error signals of their patches."""

import json
import math
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
from jaxtyping import Array, Float

import memdsl as md

from ._learn import Course, Problem
from ._learners import AbstractLearner
from ._learners_growing import nothing


class OfImage(eqx.Module):
    """A net of square images, which is given their rows one after the other."""

    net: Any
    side: int = eqx.field(static=True)

    def __call__(self, x: Float[Array, " pixel"]) -> Float[Array, " label"]:
        return self.net(x.reshape(1, self.side, self.side))


@dataclass(frozen=True)
class ConvolutionLearner(AbstractLearner):
    r"""Growing convolutions under a growing layer that is solved: no optimiser trains anything.

    A convolution begins with random filters W and answers $W p + f(p)$ to a patch p. With the patches
    and the error signals g of a step it descends by steps of a length of their own,

    $$s \leftarrow 0.9\, s - \sum_b (p_b \cdot \,)\, g_b, \qquad
      f \leftarrow f + \gamma\, s\, (s^\top s)^{-1/2},$$

    where $\gamma$ falls to a hundredth by equal steps. After each is a ReLU. The last layer is the
    regression on the directions h of what they give, of every row that was seen and is not forgotten,

    $$C = \arg\min_C \sum_i \alpha^{T - t_i} \lVert C^\top h_i - v_i \rVert^2
          + \lambda \lVert C \rVert^2, \qquad v_i = y_i - B \frac{\partial L}{\partial y_i},$$

    with the step $t_i$ of T and B rows in a batch.
    """

    gain: float
    """$\\gamma$ at the first step."""
    channels: tuple[int, ...] = (16, 32, 32)
    """Of every convolution; each halves the sides of the image."""
    window: int = 5
    strength: float = 0.1
    """$\\lambda$"""
    kept: float = 0.98
    """$\\alpha$"""
    grows: bool = True
    """Whether convolutions grow; otherwise they stay as they were drawn: the control."""

    def spec(self, problem: Problem, course: Course) -> md.AbstractLayer:
        """The net, of images of one channel; their pixels are scaled to about unit size."""
        steps = course.epochs * course.steps(len(problem.train_inputs))
        gain = md.Schedule(
            "linear_schedule",
            init_value=self.gain,
            end_value=self.gain / 100,
            transition_steps=steps,
        )
        write = md.Descent(md.Inner(), orthogonalise=True, momentum=0.9, gain=gain)
        net = md.Scale(problem.width**0.5)
        for channels in self.channels:
            drawn = md.Conv(channels, self.window, stride=2, bias=False, trainable=False)
            layer = md.Grown(drawn, md.Memory(md.Dot(), write)) if self.grows else drawn
            net = net >> layer >> md.Relu()
        solved = md.Ridge(self.strength, rate=float(course.batch))
        last = md.Memory(md.Dot().pullback(md.L2Norm()), solved, md.Decay(self.kept))
        return net >> md.Flatten() >> md.Grown(nothing(problem.outputs), last)

    def model(self, problem: Problem, course: Course, seed: int) -> Any:
        side = math.isqrt(problem.width)
        dims = md.Dims(model=1, height=side, width=side)
        return OfImage(md.build(self.spec(problem, course), dims, key=jax.random.key(seed)), side)

    def optimiser(self, problem: Problem, course: Course) -> None:
        return None

    def described(self, problem: Problem, course: Course) -> Any:
        return json.loads(md.to_json(self.spec(problem, course)))
