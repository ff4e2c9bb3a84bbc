"""Optimisers by name: those of optax, and duals of memories beside them."""

from typing import Any, get_args, Literal, NamedTuple

import optax

import memdsl as md


Baseline = Literal["sgd", "adamw", "muon"]
DualName = Literal["mesa", "mesa-momentum", "mesa-adam", "mesa-muon", "mesa-cumulative", "delta"]

Rate = Any
"""A number, or a schedule: a function of the number of steps before."""


class Numbers(NamedTuple):
    """What an optimiser is set to, beside its rate; each reads what it has."""

    momentum: float = 0.0
    """Of SGD, of `mesa-momentum` and of `delta`."""
    decay: float = 0.0
    """Weight decay, of AdamW and Muon."""
    fade: float = 0.0
    """What a step leaves of the inputs before it, of a mesa optimiser that forgets."""
    ridge: float = 0.0
    """The strength of the ridge of a mesa optimiser; of `delta`, the weight of what is recalled."""
    biases: float = 0.1
    """The rate of Adam for what is no matrix, as a share of that of Muon."""


def is_dual(name: str) -> bool:
    """Whether an optimiser has to know what linear layers are given."""
    return name in get_args(DualName)


def optimiser_of(
    name: str, rate: Rate, numbers: Numbers, matrices: Any = None
) -> optax.GradientTransformation:
    r"""An optimiser by its name.

    `"sgd"`, `"adamw"` and `"muon"` are those of optax. `"mesa"` is `Ridge` with `Decay`, its ridge in
    units of the running second moments of the inputs; in `"mesa-momentum"`, `"mesa-adam"` and
    `"mesa-muon"` momentum, Adam or Muon is given its steps in the place of gradients.
    `"mesa-cumulative"` is `Ridge` alone, of all inputs so far. `"delta"` is delta gradient descent with
    momentum, $M \leftarrow \mu M - \eta\,(G + \lambda W \bar S)$.

    **Arguments:**

    - `name`: of the optimiser.
    - `rate`: of its steps.
    - `numbers`: what else it is set to.
    - `matrices`: as `muon_weight_dimension_numbers` of optax; by default tensors with two axes, the
        first of them that of the inputs.
    """
    match name:
        case "sgd":
            return optax.sgd(rate, momentum=numbers.momentum or None)
        case "adamw":
            return optax.adamw(rate, weight_decay=numbers.decay)
        case "muon":
            return _muon(rate, numbers, matrices)
        case "mesa":
            return _mesa(rate, numbers)
        case "mesa-momentum":
            return optax.chain(_mesa(rate, numbers), optax.trace(numbers.momentum))
        case "mesa-adam":
            return optax.chain(_mesa(-1.0, numbers), optax.adam(rate))
        case "mesa-muon":
            return optax.chain(
                _mesa(-1.0, numbers), _muon(rate, numbers._replace(decay=0.0), matrices)
            )
        case "mesa-cumulative":
            return md.optim.dual(md.Memory(md.Dot(), md.Ridge(md.Knob(numbers.ridge))), rate)
        case "delta":
            return optax.chain(
                md.optim.dual(md.Memory(md.Dot(), md.Delta(1.0)), 1 / numbers.ridge),
                optax.trace(numbers.momentum),
                optax.scale(numbers.ridge),
                optax.scale_by_learning_rate(rate, flip_sign=False),
            )
        case _:
            raise ValueError(f"There is no optimiser {name}.")


def _mesa(rate: Rate, numbers: Numbers) -> optax.GradientTransformation:
    ridge, gate = md.Ridge(md.Knob(numbers.ridge)), md.Decay(md.Knob(numbers.fade))
    memory = md.Memory(md.Dot(), ridge, gate)
    return md.optim.dual(memory, rate, ridge="relative", average=True)


def _muon(rate: Rate, numbers: Numbers, matrices: Any) -> optax.GradientTransformation:
    """Muon, with Adam for what is no matrix."""

    def share(step: Any) -> Any:
        whole: Any = rate(step) if callable(rate) else rate
        return numbers.biases * whole

    return optax.contrib.muon(
        rate,
        weight_decay=numbers.decay,
        adam_learning_rate=share,
        muon_weight_dimension_numbers=matrices,
    )
