"""A lowering rule: a value that says when an execution is legal, what it costs, and how it runs."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

from jaxtyping import Array

from ..run._inputs import Inputs
from ..spec._memory import Leaf, Network
from ..state import AbstractState
from ._dims import Dims


class Requirement(NamedTuple):
    """What a rule needs of a memory, and what to tell the user where it is missing or there."""

    holds: Callable[[Any], bool]
    otherwise: str
    because: str = ""
    """The reason for the rule, where it is worth saying."""


class Cost(NamedTuple):
    """A coarse estimate for one head and one sequence; it only ranks plans."""

    flops: float
    """Multiplications and additions of one pass."""
    floats: float
    """Numbers that are written to memory in one pass."""
    steps: int
    """How many dependent steps there are."""

    def seconds(self, machine: "Machine", heads: int = 1) -> float:
        """The time of one of several heads, if computing, storing and stepping did not overlap.

        A step is taken for all heads together.
        """
        work = self.flops / machine.flops + self.floats / machine.floats
        return work + self.steps * machine.step / heads


class Machine(NamedTuple):
    """What the cost model knows about a machine (per second; seconds a step)."""

    flops: float
    floats: float
    step: float


Run = Callable[[Any, AbstractState, Inputs], tuple[AbstractState, Array]]


@dataclasses.dataclass(frozen=True)
class Rule:
    """One execution of one representation.

    **Arguments:**

    - `representation`: `"matrix"`, `"gram"`, `"buffer"` or `"network"`: which state it keeps. Every
        execution of a representation starts from and leaves the same kind of state.
    - `execution`: `"recurrent"`, `"chunkwise (32)"`, …
    - `requires`: the requirements; all must hold.
    - `cost`: `(memory, dims, training) -> Cost`.
    - `run`: `(prepared memory, state, inputs) -> (state, answers)`.
    - `note`: one line on what it is good for, printed by `explain`.

    Pass your own as `rules=md.RULES + (mine,)`.
    """

    representation: str
    execution: str
    requires: tuple[Requirement, ...]
    cost: Callable[[Any, Dims, bool], Cost]
    run: Run
    note: str = ""

    @property
    def name(self) -> str:
        """`"matrix / recurrent"`, as `using=` takes it."""
        return f"{self.representation} / {self.execution}"

    def objections(self, memory: Leaf) -> tuple[str, ...]:
        """Why the rule cannot run a memory; empty where it can."""
        is_network = isinstance(memory, Network)
        if is_network != (self.representation == "network"):
            return (f"the function is {'a' if is_network else 'no'} network",)
        return tuple(need.otherwise for need in self.requires if not need.holds(memory))

    def because(self) -> str:
        """Why the rule can run the memories that it can, in words."""
        return ", ".join(need.because for need in self.requires if need.because)
