"""Which optimiser is the dual of a memory, and which memories have none."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from .._errors import SpecError
from ..nn._numbers import evaluate_numbers, init_numbers
from ..spec._base import code, described
from ..spec._capacity import All
from ..spec._gate import Decay, Keep
from ..spec._kernel import Dot
from ..spec._loss import Inner, Squared
from ..spec._memory import Memory
from ..spec._number import Knob, leaves, Schedule
from ..spec._read import Evaluate
from ..spec._slots import ground, slots
from ..spec._write import Cholesky, Delta, Descent, GaussSeidel, Hebb, Ridge
from ._gram import Gram
from ._solved import Solved
from ._step import AbstractStep, Explicit, Implicit


RIDGES = ("constant", "fading", "centred", "relative")
VALUES = ("step", "target")
_GROWN = "md.Grown(layer, memory), a layer that grows by the memory itself."


@dataclasses.dataclass(frozen=True)
class Options:
    """What a memory does not say of its dual."""

    values: str | None = None
    ridge: str = "constant"
    average: bool = False
    refresh: Any = 1
    recursive: bool = False


@dataclasses.dataclass(frozen=True)
class Rule:
    """The dual of a memory: its step, and the numbers of the step."""

    memory: Memory
    step: AbstractStep
    options: Options

    def knobs(self) -> dict[str, tuple[Any, ...]]:
        """The knobs of the memory, as arrays."""
        return init_numbers(self.memory, 1, 0, 1, 1, jax.random.key(0))

    def grounded(self, knobs: dict[str, tuple[Any, ...]], count: Array, dtype: Any) -> Memory:
        """The memory with its numbers after so many steps."""
        if not slots(self.memory):
            return self.memory
        steps = jnp.reshape(count, (1,)).astype(dtype)
        nothing = jnp.zeros((1, 0), dtype)
        constants, steady = evaluate_numbers(self.memory, knobs, nothing, 1, steps, dtype)
        values = {
            **jax.tree.map(lambda a: a[0], constants),
            **jax.tree.map(lambda a: a[0, 0], steady),
        }
        return ground(self.memory, values)

    def weight(self, memory: Memory) -> Any:
        """What the pairs of a step weigh, given the grounded memory."""
        return getattr(memory.write, "rate", 1.0)

    def needs_weights(self) -> bool:
        """Whether a step depends on the weights as they are."""
        return self.step.needs_grams() or not isinstance(self.memory.gate, Keep)

    def check(self, grams: dict[str, Gram]) -> None:
        """Refuses products of inputs where the inputs themselves are needed."""
        if self.options.recursive and any(g.rows is None and g.is_square for g in grams.values()):
            raise SpecError(
                "An inverse is carried on by the rows of a batch, and their products were given.",
                instead="md.optim.capture(model, inputs, rows=True).",
            )


def rule_of(memory: Any, options: Options) -> Rule:
    """The dual of a memory, or a `SpecError` that says why there is none."""
    if not isinstance(memory, Memory):
        raise SpecError(
            f"dual takes one Memory, and this is {described(memory)}.",
            why="A weight matrix is the function of one memory.",
            instead="md.Memory(md.Dot(), md.Ridge(1e-3)).",
        )
    _check_parts(memory)
    _check_numbers(memory)
    _check_options(memory, options)
    return Rule(memory, _step(memory, options), options)


def _check_parts(memory: Memory) -> None:
    if not isinstance(memory.kernel, Dot):
        raise SpecError(
            "A weight matrix is a memory with the kernel Dot().",
            where=memory,
            at="kernel",
            why="It is asked with the input itself; with another kernel there are atoms to keep.",
            instead=_GROWN,
        )
    gate = memory.gate
    if not isinstance(gate, Keep | Decay):
        raise SpecError(
            "The dual of a memory forgets by a Decay, or not at all.",
            where=memory,
            at="gate",
            why="Pairs dissolve in the matrix: none can be kept out, moved, or fade by itself.",
            instead="Keep() or Decay(0.95); or " + _GROWN,
        )
    if not isinstance(memory.capacity, All):
        raise SpecError(
            "The dual of a memory has no bound on its pairs.",
            where=memory,
            at="capacity",
            why="Pairs dissolve in the matrix, so that none can be evicted.",
            instead="All(), with a Decay to forget; or " + _GROWN,
        )
    if memory.read != Evaluate():
        raise SpecError(
            "A linear layer answers with the function itself.",
            where=memory,
            at="read",
            instead="Evaluate().",
        )
    if memory.initial is not None:
        raise SpecError(
            "The dual of a memory starts at the weights of the model.",
            where=memory,
            at="initial",
            instead="no initial.",
        )


def _check_numbers(memory: Memory) -> None:
    for slot in slots(memory):
        wrong = [
            leaf
            for leaf in leaves(slot.number)
            if not isinstance(leaf, Knob | Schedule | int | float) or slot.per != "layer"
        ]
        if wrong:
            raise SpecError(
                f"{slot.number!r} has no value in an optimiser.",
                where=memory,
                at=slot.path.split(".")[0],
                why="A training step has one number for all weights, and none of its own input.",
                instead="a float, Knob(x) to sweep it, or Schedule(...) over the steps.",
            )


def _check_options(memory: Memory, options: Options) -> None:
    if options.values not in (None, *VALUES):
        raise _refused("values", options.values, VALUES)
    if options.ridge not in RIDGES:
        raise _refused("ridge", options.ridge, RIDGES)
    if isinstance(options.refresh, bool) or not isinstance(options.refresh, int):
        raise SpecError(
            f"refresh must be a whole number, and it is {described(options.refresh)}.",
            instead='1, 2, …; with optax.inject_hyperparams also static_args="refresh".',
        )
    if options.refresh < 1:
        raise SpecError(f"refresh must be at least 1, and it is {options.refresh}.", instead="1.")
    if not isinstance(memory.write, Ridge):
        asked = [
            f.name for f in dataclasses.fields(Options)[1:] if getattr(options, f.name) != f.default
        ]
        if asked:
            raise SpecError(
                f"{asked[0]} is a way to solve a ridge problem, and this memory solves none.",
                where=memory,
                at="write",
                instead=f"Ridge(strength), or no {asked[0]}.",
            )
        return
    _check_ridge(memory, options)


def _check_ridge(memory: Memory, options: Options) -> None:
    centred = options.ridge in ("centred", "relative")
    keeps = isinstance(memory.gate, Keep)
    write: Any = memory.write
    if isinstance(write.solver, GaussSeidel):
        raise SpecError(
            "The dual of a memory keeps no pairs to sweep over.",
            where=memory,
            at="write",
            instead="Ridge(strength), or solver=ConjugateGradient().",
        )
    if options.average and options.ridge == "fading":
        raise SpecError(
            "A ridge that fades with the pairs has nothing to average.",
            why="Sums and means of pairs have the same minimiser then.",
            instead='average=False; or ridge="constant", "centred" or "relative".',
        )
    if options.values == "step" and centred:
        raise SpecError(
            f"A {options.ridge} ridge goes with values that are targets.",
            why="It is about the weights as they are, and a step alone is about 0.",
            instead='values="target"; or ridge="constant" or "fading".',
        )
    if options.recursive and (
        centred or options.average or not (keeps or options.ridge == "fading")
    ):
        raise SpecError(
            "An inverse is carried on only where the ridge fades as the pairs do.",
            where=memory,
            at="gate",
            why="The rows of a batch change an inverse by as many ranks; a ridge that is put back, or "
            "measured anew, changes all of it.",
            instead='ridge="fading", or the gate Keep(); or recursive=False.',
        )
    if options.recursive and options.refresh > 1:
        raise SpecError("An inverse that is carried on is not refreshed.", instead="refresh=1.")
    if options.recursive and not isinstance(write.solver, Cholesky):
        raise SpecError(
            "An inverse that is carried on is not solved for.",
            where=memory,
            at="write",
            instead="recursive=False, or Ridge(strength) without a solver.",
        )
    if options.refresh > 1 and not isinstance(write.solver, Cholesky):
        raise SpecError("refresh is how often a Cholesky factor is made.", instead="refresh=1.")


def _step(memory: Memory, options: Options) -> AbstractStep:
    write = memory.write
    match write:
        case Ridge():
            target = options.values != "step"
            return Solved(
                options.ridge,
                options.average,
                target,
                options.refresh,
                options.recursive,
                write.solver,
            )
        case Hebb():
            return Explicit(False, False, _target(memory, options))
        case Delta():
            odd = [
                f
                for f in ("erase", "remove", "erase_gate", "write_gate", "on", "normalise")
                if getattr(write, f) != getattr(Delta(), f)
            ]
            if odd:
                raise _no_dual(memory, odd[0])
            target = _target(memory, options)
            if write.implicit:
                return Implicit(target)
            return Explicit(True, write.reads_before_decay(), target)
        case Descent(loss=Inner() | Squared(), steps=1, window=1, minibatch=1):
            return Explicit(
                isinstance(write.loss, Squared),
                write.reads_before_decay(),
                _target(memory, options),
                write.momentum is not None,
                write.orthogonalise,
            )
        case Descent():
            names = ("loss", "steps", "window", "minibatch")
            good = (
                isinstance(write.loss, Inner | Squared),
                *(getattr(write, n) == 1 for n in names[1:]),
            )
            raise _no_dual(memory, names[good.index(False)])
        case _:
            raise _no_dual(memory, None)


def _target(memory: Memory, options: Options) -> bool:
    additive = isinstance(memory.write, Hebb) or getattr(memory.write, "loss", None) == Inner()
    if options.values == "target" and additive:
        raise SpecError(
            "A write that takes nothing away cannot be given targets.",
            where=memory,
            at="write",
            why="It would add its own answer to itself at every step.",
            instead='values="step"; or Delta() or Ridge().',
        )
    return options.values == "target"


def _no_dual(memory: Memory, part: str | None) -> SpecError:
    name = type(memory.write).__name__
    return SpecError(
        f"{memory.write!r} has no dual."
        if part is None
        else f"A {name} with {part}={getattr(memory.write, part)!r} has no dual.",
        where=memory,
        at="write",
        why="A training step is one write of a batch, of which only the gradient and the second "
        "moments of the inputs are known.",
        instead="Hebb(), Delta(), Descent(Inner()), Descent(Squared()) or Ridge().",
    )


def _refused(name: str, value: Any, choices: tuple[str, ...]) -> SpecError:
    listed = ", ".join(code(choice) for choice in choices)
    return SpecError(f"{name} cannot be {code(value)}.", instead=f"one of {listed}.")
