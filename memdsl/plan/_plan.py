"""Choosing a rule for every leaf of a memory, and saying why."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import jax

from .._errors import SpecError
from ..spec._memory import AbstractMemory, Leaf
from ..spec._slots import resolve
from ..spec._streams import Sizes
from ._dims import Dims
from ._rule import Machine, Rule
from ._rules import RULES
from ._tree import check_chains, lower, sized_leaves


MACHINES = {
    "cpu": Machine(flops=2e10, floats=4e8, step=3e-6),
    "gpu": Machine(flops=2e13, floats=2e11, step=1e-5),
}
PURPOSES = ("train", "serve")
Using = str | Mapping[str, str] | None


@dataclasses.dataclass(frozen=True)
class Choice:
    """What was decided for one leaf: the rule kept, and every other one with its reason."""

    path: str
    memory: Leaf
    dims: Dims
    rule: Rule
    seconds: float
    legal: tuple[tuple[Rule, float], ...]
    rejected: tuple[tuple[Rule, tuple[str, ...]], ...]


@dataclasses.dataclass(frozen=True)
class Plan:
    """How a memory runs: one choice a leaf.

    **Arguments:**

    - `memory`: the memory, with sizes resolved.
    - `dims`: the sizes it was planned for.
    - `choices`: one a leaf, in order.
    """

    memory: AbstractMemory
    dims: Dims
    purpose: str
    choices: tuple[Choice, ...]

    def rule(self, path: str) -> Rule:
        """The rule of the leaf at a path."""
        return next(choice.rule for choice in self.choices if choice.path == path)

    @property
    def name(self) -> str:
        """The kept rules, `"matrix / recurrent"`, joined by `" + "` for several leaves."""
        return " + ".join(choice.rule.name for choice in self.choices)


def plan(
    memory: AbstractMemory,
    dims: Dims,
    *,
    using: Using = None,
    purpose: str = "train",
    representation: Mapping[str, str] | None = None,
    rules: tuple[Rule, ...] = RULES,
) -> Plan:
    """The plan of a memory: for every leaf the cheapest legal rule, or the one that `using` names.

    **Arguments:**

    - `memory`: the memory.
    - `dims`: its sizes; what is unknown is guessed for the cost and never for the meaning.
    - `using`: the name of a rule for every leaf, or a mapping from the path of a leaf to a name.
    - `purpose`: `"train"` (with a backward pass) or `"serve"`.
    - `representation`: by path, the state that is already there and must be kept.
    - `rules`: the rules to choose from.

    **Returns:** a `Plan`.

    **Raises:** `SpecError` where no rule is legal, or the named one is not.

    ??? example

        ```python
        >>> import memdsl as md
        >>> memory = md.Memory(md.RBF(0.5), md.Delta(0.2), capacity=md.Budget(64))
        >>> md.plan(memory, md.Dims(key=3, value=1, time=100)).name
        'buffer / recurrent'

        ```
    """
    if purpose not in PURPOSES:
        raise SpecError(f"No purpose {purpose!r}.", instead="'train' or 'serve'.")
    return _plan(
        resolve(lower(memory), dims.sizes()),
        dims,
        using if using is None or isinstance(using, str) else tuple(sorted(using.items())),
        purpose,
        tuple(sorted((representation or {}).items())),
        rules,
    )


@functools.lru_cache(maxsize=4096)
def _plan(
    memory: AbstractMemory, dims: Dims, using: Any, purpose: str, kept: Any, rules: tuple[Rule, ...]
) -> Plan:
    wanted = using if using is None or isinstance(using, str) else dict(using)
    sizes = Sizes(dims.key, dims.value, dims.key)
    check_chains(memory, sizes)
    found = sized_leaves(memory, sizes)
    if isinstance(wanted, dict):
        unknown = set(wanted) - {path for path, _, _ in found}
        if unknown:
            paths = ", ".join(repr(path) for path, _, _ in found)
            raise SpecError(f"using names no leaf {unknown.pop()!r}.", instead=f"one of {paths}.")
    choices = []
    for path, leaf, given in found:
        own = dataclasses.replace(dims, key=given.key, value=given.value)
        name = wanted.get(path) if isinstance(wanted, dict) else wanted
        choices.append(_choose(path, leaf, own, name, purpose, dict(kept).get(path), rules))
    return Plan(memory, dims, purpose, tuple(choices))


def _choose(
    path: str,
    leaf: Leaf,
    dims: Dims,
    using: str | None,
    purpose: str,
    kept: str | None,
    rules: tuple[Rule, ...],
) -> Choice:
    machine = MACHINES["cpu" if jax.default_backend() == "cpu" else "gpu"]
    legal, rejected = [], []
    for rule in rules:
        objections = rule.objections(leaf)
        if kept is not None and rule.representation != kept:
            objections = (f"the state that is there is a {kept}", *objections)
        if objections:
            rejected.append((rule, objections))
        else:
            legal.append(
                (rule, rule.cost(leaf, dims, purpose == "train").seconds(machine, dims.heads))
            )
    legal.sort(key=lambda pair: pair[1])
    if using is not None:
        legal_names = {rule.name: (rule, seconds) for rule, seconds in legal}
        if using not in legal_names:
            why = {rule.name: "; ".join(reasons) for rule, reasons in rejected}.get(using)
            raise SpecError(
                f"{using!r} cannot run this memory." if why else f"No rule is called {using!r}.",
                where=leaf,
                why=f"{why[0].upper()}{why[1:]}." if why else None,
                instead=f"one of {', '.join(repr(n) for n in legal_names)}." if legal else None,
            )
        chosen = legal_names[using]
    elif legal:
        chosen = legal[0]
    else:
        reasons = "; ".join(f"{rule.name}: {why[0]}" for rule, why in rejected)
        raise SpecError(
            "No rule can run this memory.",
            where=leaf,
            why=f"{reasons[0].upper()}{reasons[1:]}.",
            instead="a memory that one of the rules takes, or rules=md.RULES + (yours,).",
        )
    return Choice(path, leaf, dims, chosen[0], chosen[1], tuple(legal), tuple(rejected))
