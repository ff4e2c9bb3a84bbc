"""The rules of growing layers: which memories a gradient can write, and which make one together."""

from typing import Any

from .._errors import SpecError
from ._base import code
from ._computed import Computed
from ._facts import descends, has_nonlinear_retention, is_solved, moves_keys
from ._gate import admissions, Surprise
from ._loss import Inner
from ._memory import Added, Boosted, Memory
from ._number import FromInput, leaves
from ._read import Evaluate
from ._slots import slots
from ._write import Descent, Hebb, Reweight, Ridge


def check_grown(spec: Any) -> None:
    """Raises `SpecError` for a layer that cannot grow."""
    found = _leaves(spec, spec.memory, boosts=False)
    for memory, boosts in found:
        _check_memory(memory)
        if boosts:
            _check_boost(memory)
        if spec.trainable and (is_solved(memory) or descends(memory)):
            raise SpecError(
                "The atoms of this memory are no parameters: their coefficients follow from each other.",
                where=memory,
                at="write",
                why="An optimiser would move them away from what was solved for, or remembered.",
                instead="Hebb(...) or Reweight(...) for trainable atoms; or trainable=False.",
            )


def _leaves(spec: Any, memory: Any, *, boosts: bool) -> list[tuple[Memory, bool]]:
    """`(memory, whether it boosts another)` of the memories that the layer's is made of."""
    if isinstance(memory, Memory):
        return [(memory, boosts)]
    if not isinstance(memory, Added | Boosted):
        raise SpecError(
            f"A layer does not grow by a {type(memory).__name__}.",
            where=spec,
            at="memory",
            why="Only where answers add is the error signal of the layer that of every memory in it.",
            instead="Memory(RBF(...), Hebb(rate=...), capacity=Budget(n)), and a + b or a.boost(b) of "
            "such memories.",
        )
    first = _leaves(spec, memory.first, boosts=boosts)
    return first + _leaves(spec, memory.second, boosts=boosts or isinstance(memory, Boosted))


def _check_boost(memory: Memory) -> None:
    plain = isinstance(memory.write, Hebb | Ridge | Descent) and not descends(memory)
    if plain and memory.read == Evaluate():
        return
    raise SpecError(
        "What boosts another memory makes up for the rest of a move of the answers.",
        where=memory,
        at="write" if not plain else "read",
        why="Its answers must move by its rate times what it is written with.",
        instead="Hebb(rate=...) or Ridge(...), read with Evaluate().",
    )


def _check_memory(memory: Memory) -> None:
    """Raises `SpecError` for a memory that cannot be written with a gradient."""
    write = memory.write
    if not isinstance(write, Hebb | Reweight | Ridge | Descent):
        raise SpecError(
            f"{type(write).__name__} cannot grow a layer.",
            where=memory,
            at="write",
            why="The error signal is the gradient of the loss already: it is written as it is.",
            instead="Hebb(rate=...), Descent(Inner(), ...), Ridge(...), or Reweight(...) under a "
            "normalised read.",
        )
    none_wanted = None if isinstance(write, Reweight) else Inner()
    if isinstance(write, Reweight | Descent) and write.loss != none_wanted:
        raise SpecError(
            "What a layer is written with is a gradient already.",
            where=memory,
            at="write",
            why=f"{write.loss!r} would make a gradient of it once more.",
            instead="Reweight(...) without a loss."
            if none_wanted is None
            else "Descent(Inner(), ...), which descends along what it is given.",
        )
    for name in ("steps", "window", "minibatch") if isinstance(write, Descent) else ():
        if getattr(write, name) > 1:
            raise SpecError(
                f"A growing layer takes one step a batch, and Descent has {name}={getattr(write, name)}.",
                where=memory,
                at="write",
                why="The gradients of a batch are of the function before it, all at once.",
                instead=f"{name}=1; a larger batch, or a larger rate.",
            )
    if moves_keys(memory):
        raise SpecError(
            "The keys of a growing layer are its inputs, and stay where they are.",
            where=memory,
            at="gate",
            instead="Decay(...).",
        )
    if memory.read.is_before() or memory.initial is not None:
        raise SpecError(
            "A growing layer is read as it stands, and starts from its base.",
            where=memory,
            at="read" if memory.read.is_before() else "initial",
            instead="a plain read, and the base for what there is at the start.",
        )
    if has_nonlinear_retention(memory):
        raise SpecError(
            f"A growing layer does not know {memory.gate!r}.",
            where=memory,
            at="gate",
            why="It is written once a batch, and a retention acts on a matrix once a token.",
            instead="Decay(...), which is weight decay.",
        )
    if any(isinstance(gate, Surprise) for gate in admissions(memory.gate)):
        raise SpecError(
            "Surprise measures v - f(k), and what a layer is written with is a gradient.",
            where=memory,
            at="gate",
            instead="Novelty(...) or Coherence(...), which look at keys.",
        )
    for slot in slots(memory):
        if any(isinstance(leaf, FromInput | Computed) for leaf in leaves(slot.number)):
            raise SpecError(
                f"A growing layer has no token to read {code(slot.name)} off.",
                where=memory,
                at=slot.path.split(".")[0],
                instead="a float, Knob(x) or Schedule(...).",
            )
