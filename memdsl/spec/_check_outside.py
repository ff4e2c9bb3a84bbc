"""The rules of what is not a `Memory` itself: transposed memories, networks, growing layers."""

from .._errors import SpecError
from ._capacity import All
from ._facts import (
    descends,
    has_nonlinear_retention,
    is_additive,
    is_solved,
    moves_keys,
    needed_keys,
    needs_atoms,
    pairs_per_token,
    writes_of,
)
from ._gate import admissions, Decay, Keep, parts, Reset
from ._kernel import Dot, Pullback
from ._memory import Averaged, Level, Memory, Network, Rewired, Transposed
from ._number import axis_of
from ._read import bonus_of, LocalLinear
from ._write import Descent, Hebb


def check_transposed(spec: Transposed) -> None:
    """Raises `SpecError` where a memory cannot be read from the side of its values."""
    inner = spec.memory
    if not isinstance(inner, Memory):
        raise SpecError(
            f"transpose is of one Memory, not of {inner!r}.",
            where=inner,
            why="Only a matrix can be read from both sides.",
            instead="the parts transposed, then combined.",
        )
    kernel = inner.kernel
    while isinstance(kernel, Pullback):
        kernel = kernel.kernel
    if not isinstance(kernel, Dot):
        raise SpecError(
            "transpose needs a memory that is a matrix of keys and values.",
            where=inner,
            at="kernel",
            why="Only a linear map can be read from both sides.",
            instead="Dot() or Dot().pullback(...).",
        )
    if moves_keys(inner):
        raise SpecError(
            "transpose swaps keys and values, and a gate that moves keys has no side to move.",
            where=inner,
            at="gate",
            instead="DiagonalDecay(...), which fades the features of what was the value.",
        )
    if is_solved(inner) or needs_atoms(inner):
        at = "write" if is_solved(inner) else "gate" if admissions(inner.gate) else "capacity"
        of_atoms = inner.read.top() is not None or isinstance(inner.read.core(), LocalLinear)
        at = "read" if of_atoms else at
        raise SpecError(
            "transpose needs a memory that is a matrix.",
            where=inner,
            at=at,
            why="A solved memory, and one that keeps atoms, has no matrix to read from both sides.",
            instead="All(), no admission gate, a plain read, and a write that is not solved.",
        )
    if inner.read.needs_mass():
        raise SpecError(
            "transpose needs a read that does not divide.",
            where=inner,
            at="read",
            why="The mass is a function of the keys, and there is none of the values.",
            instead="Evaluate().",
        )


def check_level(spec: Level) -> None:
    """Raises `SpecError` for a memory whose pairs cannot be told apart by their age."""
    inner = spec.memory
    if not isinstance(inner, Memory):
        raise SpecError(
            f"level is of one Memory, not of {inner!r}.",
            where=inner,
            instead="the levels of its parts, then combined.",
        )
    if not is_additive(inner) or descends(inner) or has_nonlinear_retention(inner):
        at = "gate" if is_additive(inner) and not descends(inner) else "write"
        raise SpecError(
            "level needs a memory whose pairs are added, each by itself.",
            where=inner,
            at=at,
            why="What a pair of another age has left in this one could not be taken away.",
            instead="Hebb(...) as the write, and a gate that fades or moves what is stored.",
        )
    if inner.initial is not None:
        raise SpecError(
            "A level holds pairs, and a learned initial state is none.",
            where=inner,
            at="initial",
            instead="no initial; add a memory that has one with +.",
        )
    if admissions(inner.gate) or not isinstance(inner.capacity, All):
        raise SpecError(
            "A level is a bound on the age of atoms already.",
            where=inner,
            at="gate" if admissions(inner.gate) else "capacity",
            instead="All(), and no admission gate.",
        )


def check_rewired(spec: Rewired) -> None:
    """Raises `SpecError` for streams that nobody takes, and for several pairs a token."""
    several = [write for write in writes_of(spec) if pairs_per_token(write) > 1]
    if several:
        raise SpecError(
            f"of(...) is of a memory that writes one pair a token, and {several[0]!r} is of more.",
            where=spec,
            at="memory",
            instead="Delta(...), say, and of(...) without times(...).",
        )
    for name in ("erase", "remove"):
        if getattr(spec, name) is not None and f"{name}_keys" not in needed_keys(spec.memory):
            raise SpecError(
                f"The memory takes no {name} keys.",
                where=spec,
                at=name,
                instead=f'Delta({name}="own"), or no {name}=.',
            )
    if spec.own is not None and not spec.uses_own():
        raise SpecError(
            "No stream is Own(), so that own is given for nothing.",
            where=spec,
            at="own",
            instead="key=Own(), say.",
        )
    if spec.own_size is not None and not axis_of(spec.own).endswith("channel"):
        raise SpecError(
            "own_size is how many channels own has, and it is one number.",
            where=spec,
            at="own_size",
            instead='own=FromInput("identity", per="key_channel"), say.',
        )


def check_averaged(spec: Averaged) -> None:
    """Raises `SpecError` for a memory whose channels are no running means."""
    inner = spec.memory
    if not isinstance(inner, Memory):
        raise SpecError(
            f"averaged is of one Memory, not of {inner!r}.",
            where=inner,
            instead="the parts averaged, then combined.",
        )
    if not isinstance(inner.kernel, Dot) or not isinstance(inner.write, Hebb):
        at = "write" if isinstance(inner.kernel, Dot) else "kernel"
        raise SpecError(
            "averaged is of a linear memory that adds its pairs.",
            where=inner,
            at=at,
            why="Each channel of the key, or the value, is the logit of a weight, and a running mean "
            "is a sum that fades.",
            instead="Memory(Dot(), Hebb()), and a feature of the logits by of(key=Key() >> …).",
        )
    if not isinstance(inner.gate, Keep | Reset):
        raise SpecError(
            "A running mean fades by itself.",
            where=inner,
            at="gate",
            why="What is new has its share, and what is old keeps the rest.",
            instead="Keep() or Reset().",
        )
    if inner.read.needs_mass() or inner.read.top() is not None or bonus_of(inner.read) is not None:
        raise SpecError(
            "A running mean is read as it is: its weights have the sum 1 already.",
            where=inner,
            at="read",
            instead="Evaluate(...) or Before().",
        )
    if inner.initial is not None or not isinstance(inner.capacity, All):
        raise SpecError(
            "A running mean is of all pairs so far, and of nothing else.",
            where=inner,
            at="initial" if inner.initial is not None else "capacity",
            instead="All(), and no initial state.",
        )


def check_network(spec: Network) -> None:
    """Raises `SpecError` for parts of a network that speak of atoms or of a matrix."""
    if not isinstance(spec.write, Descent):
        raise SpecError(
            f"A network is trained by Descent, not by {spec.write!r}.",
            where=spec,
            at="write",
            why="It has no coefficient at a key: what moves is its parameters, along a gradient.",
            instead="Descent(rate=...); Descent(Inner()) for Hebb, Descent(Squared()) for Delta.",
        )
    strange = [gate for gate in parts(spec.gate) if not isinstance(gate, Decay | Reset)]
    if strange:
        raise SpecError(
            f"A network knows nothing of {strange[0]!r}.",
            where=spec,
            at="gate",
            why="It has neither atoms nor channels of keys; its parameters fade together.",
            instead="Decay(...), Reset() or Keep().",
        )
    if spec.write.orthogonalise and spec.bias:
        raise SpecError(
            "An orthogonalised step is of matrices, and a bias is none.",
            where=spec,
            at="write",
            instead="bias=False; or orthogonalise=False.",
        )
    if bonus_of(spec.read) is not None:
        raise SpecError(
            "A bonus weighs the channels of a key against a query, and a network has no kernel.",
            where=spec,
            at="read",
            instead="Before(...) without a bonus.",
        )
    if spec.initial is not None and spec.initial.per.endswith("channel"):
        raise SpecError(
            "A learned initial network is all its parameters, not one number per channel.",
            where=spec,
            at="initial",
            instead='Learned(), one network a head; or Learned(per="layer").',
        )
    if spec.read.needs_mass() or spec.read.top() is not None:
        raise SpecError(
            "A network answers with its output.",
            where=spec,
            at="read",
            why="It has neither a mass to divide by nor atoms to choose from.",
            instead="Evaluate() or Before().",
        )
