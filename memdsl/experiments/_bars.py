"""The bars of associative recall: what each is about, and the runs it needs."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ._data import MixedTask, RECALL_TASKS, RecallTask
from ._judge import Bar
from ._mad import ContextTask, MemoriseTask


PAIRS = (4, 8, 16, 24)
FIGURE = MixedTask(tuple(RecallTask(keys=keys, time=96) for keys in PAIRS))


@dataclass(frozen=True)
class Kind:
    """A task with the model and the training that go with it."""

    task: Any
    vocabulary: int
    steps: int
    rate: float = 0.01
    batch: int = 32
    heads: int = 2
    key_size: int | None = None
    value_size: int | None = None
    has_mlp: bool = False


KINDS: dict[str, Kind] = {
    "mqar": Kind(RECALL_TASKS["mqar"], 512, 400),
    "rewrites": Kind(RECALL_TASKS["rewrites"], 512, 400),
    "figure": Kind(FIGURE, 512, 500, batch=24, heads=1, key_size=16, value_size=64),
    "in_context": Kind(ContextTask(), 16, 300, rate=3e-3, has_mlp=True),
    "noisy": Kind(ContextTask(noise=0.2, noises=16), 32, 300, rate=3e-3, has_mlp=True),
    "memorise": Kind(MemoriseTask(), 2048, 600, rate=3e-3, has_mlp=True),
}


@dataclass(frozen=True)
class Trial:
    """One model to train: a kind of task, a memory, and what differs from the kind."""

    kind: str
    memory: str
    steps: int | None = None
    bias: float = -2.0
    """Where the write rate starts, before the sigmoid."""

    @property
    def name(self) -> str:
        """What the trial is called in tables."""
        steps = "" if self.steps is None else f", {self.steps} steps, bias {self.bias:g}"
        return f"{self.kind}: {self.memory}{steps}"


def _each(kind: str, *memories: str) -> tuple[Trial, ...]:
    return tuple(Trial(kind, memory) for memory in memories)


def _all(bar: Callable[[float], bool], count: int) -> Any:
    return lambda at: all(bar(at(i)[""]) for i in range(count))


BARS: tuple[Bar, ...] = (
    Bar(
        "A1",
        "mqar: softmax, RBF-delta, mesa at least .98",
        _each("mqar", "softmax", "rbf_delta", "mesa_net_ungated"),
        _all(lambda x: x >= 0.98, 3),
    ),
    Bar(
        "A2",
        "mqar: DeltaNet at least .97",
        _each("mqar", "delta_net"),
        _all(lambda x: x >= 0.97, 1),
    ),
    Bar(
        "A3",
        "mqar: elu+1 linear attention at most .92, and .06 under DeltaNet",
        _each("mqar", "linear_attention", "delta_net"),
        lambda at: at(0)[""] <= 0.92 and at(1)[""] - at(0)[""] >= 0.06,
    ),
    Bar(
        "A4",
        "mqar: a window of 16 and RBF-delta over the latest 16 at most .10",
        _each("mqar", "sliding_window", "rbf_delta_latest"),
        _all(lambda x: x <= 0.10, 2),
    ),
    Bar(
        "O1",
        "rewrites: RBF-delta at least .99",
        _each("rewrites", "rbf_delta"),
        _all(lambda x: x >= 0.99, 1),
    ),
    Bar(
        "O2",
        "rewrites: DeltaNet at least .94",
        _each("rewrites", "delta_net"),
        _all(lambda x: x >= 0.94, 1),
    ),
    Bar(
        "O3",
        "rewrites: identity linear at most .85 and .15 under DeltaNet, elu+1 at most .70",
        _each("rewrites", "linear_attention_identity", "linear_attention", "delta_net"),
        lambda at: at(0)[""] <= 0.85 and at(1)[""] <= 0.70 and at(2)[""] - at(0)[""] >= 0.15,
    ),
    Bar(
        "O4",
        "rewrites: ungated mesa at most .88, and .08 under DeltaNet",
        _each("rewrites", "mesa_net_ungated", "delta_net"),
        lambda at: at(0)[""] <= 0.88 and at(1)[""] - at(0)[""] >= 0.08,
    ),
    Bar(
        "O5",
        "rewrites: softmax at least .95",
        _each("rewrites", "softmax"),
        _all(lambda x: x >= 0.95, 1),
    ),
    Bar(
        "O6",
        "rewrites: Gated DeltaNet at least .95 in 700 steps, best of two starts of its rate",
        (
            Trial("rewrites", "gated_delta_net", 700, 0.0),
            Trial("rewrites", "gated_delta_net", 700, -2.0),
        ),
        lambda at: max(at(0)[""], at(1)[""]) >= 0.95,
    ),
    Bar(
        "F1",
        "recall against pairs: at 16 mesa at least .93 and .05 over identity linear; at 24 DeltaNet "
        ".2 over elu+1",
        _each(
            "figure",
            "mesa_net_ungated",
            "linear_attention_identity",
            "delta_net",
            "linear_attention",
        ),
        lambda at: (
            at(0)["16"] >= 0.93
            and at(0)["16"] - at(1)["16"] >= 0.05
            and at(2)["24"] - at(3)["24"] >= 0.2
        ),
    ),
    Bar(
        "M1",
        "MAD in context and noisy: DeltaNet, mesa, RBF-delta, softmax at least .99",
        tuple(
            trial
            for kind in ("in_context", "noisy")
            for trial in _each(kind, "delta_net", "mesa_net_ungated", "rbf_delta", "softmax")
        ),
        _all(lambda x: x >= 0.99, 8),
    ),
    Bar(
        "M2",
        "MAD memorisation of 2048: softmax .3 over DeltaNet, Gated DeltaNet .2 over it",
        _each("memorise", "softmax", "delta_net", "gated_delta_net"),
        lambda at: at(0)[""] - at(1)[""] >= 0.3 and at(2)[""] - at(1)[""] >= 0.2,
    ),
)
