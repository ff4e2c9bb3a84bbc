"""The literature of a spec: BibTeX of every piece of it.

A rule names references and says of a spec whether they are due. The references themselves are in
`references.bib`; a rule of your own brings its BibTeX along: `cite(spec, rules=(*RULES, mine))`.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from importlib import resources
from typing import Any, NamedTuple

from .spec._base import children, Spec
from .spec._capacity import (
    AddToNearest,
    Budget,
    LeastUsed,
    LeaveOneOut,
    Oldest,
    Pairwise,
    Project,
    Random,
    Smallest,
    Window,
)
from .spec._facts import is_finite, one_pair
from .spec._feature import Dpfp, EluPlusOne, Hedgehog, Preconditioner, RandomFourier, Taylor
from .spec._gate import (
    AbstractRetention,
    Coherence,
    Decay,
    DiagonalDecay,
    forgets,
    Novelty,
    Surprise,
)
from .spec._kernel import Exp, Product, Pullback
from .spec._layer import Grown
from .spec._loss import Huber, Power, ValueShift
from .spec._memory import Averaged, Chained, Memory, Network, Rewired, Transposed
from .spec._number import leaves, Source
from .spec._read import Before, LocalLinear, Normalised
from .spec._read_blocks import TopBlocks
from .spec._streams import Own
from .spec._write import ConjugateGradient, Delta, Descent, Hebb, Repeated, Reweight, Ridge


class Rule(NamedTuple):
    """References, and the specs that they are due for.

    **Arguments:**

    - `references`: keys of `references.bib`, or whole BibTeX entries.
    - `due`: whether a spec, on its own, asks for them.
    """

    references: tuple[str, ...]
    due: Callable[[Any], bool]


RULES: list[Rule] = []
"""What `cite` goes by; append to it, or pass `rules=`."""


def _rule(*references: str) -> Callable[[Callable[[Any], bool]], Callable[[Any], bool]]:
    def add(due: Callable[[Any], bool]) -> Callable[[Any], bool]:
        RULES.append(Rule(references, due))
        return due

    return add


def _is(kind: Any, **fields: Any) -> Callable[[Any], bool]:
    """Whether a spec is of a type, with these values in its fields."""

    def due(spec: Any) -> bool:
        return isinstance(spec, kind) and all(getattr(spec, n) == v for n, v in fields.items())

    return due


def _memory(write: Any, *, finite: bool | None = None, **fields: Any) -> Callable[[Any], bool]:
    """Whether a spec is a memory with such a write (its fields given), on such a kernel."""

    def due(spec: Any) -> bool:
        if not isinstance(spec, Memory) or not _is(write, **fields)(one_pair(spec.write)):
            return False
        return finite is None or is_finite(spec.kernel) == finite

    return due


def _fades(memory: Memory, kind: Any, of_token: bool | None = None) -> bool:
    """Whether a memory has a decay of a kind, and one that does or does not change with tokens."""
    decays: Any = [gate for gate in forgets(memory.gate) if isinstance(gate, kind)]
    changing = [
        any(isinstance(leaf, Source) and leaf.time for leaf in leaves(gate.decay))
        for gate in decays
    ]
    return bool(decays) if of_token is None else of_token in changing


def _is_softmax(spec: Any) -> bool:
    """Whether a spec is a memory that is a softmax attention."""
    if not isinstance(spec, Memory) or not isinstance(spec.read.core(), Normalised):
        return False
    kernel = spec.kernel
    while isinstance(kernel, Pullback | Product):
        kernel = kernel.kernel if isinstance(kernel, Pullback) else kernel.left
    return isinstance(kernel, Exp) and isinstance(spec.write, Hebb)


def _has_slots(spec: Any) -> bool:
    """Whether a spec is a chain of two memories, the second written at vectors of its own."""
    if not isinstance(spec, Rewired) or not isinstance(spec.memory, Chained):
        return False
    second = spec.memory.second
    return isinstance(second, Rewired) and second.key == Own()


_linear, _delta = _memory(Hebb, finite=True), _memory(Delta, finite=True)
_kernel_delta = _memory(Delta, finite=False)

# Attention
RULES.append(Rule(("vaswani2017attention",), _is_softmax))
_rule("press2022alibi")(lambda s: _is_softmax(s) and _fades(s, Decay, of_token=False))
_rule("lin2025forgetting")(lambda s: _is_softmax(s) and _fades(s, Decay, of_token=True))
_rule("beltagy2020longformer")(lambda s: _is_softmax(s) and isinstance(s.capacity, Window))
_rule("zuo2025local")(_is(LocalLinear))
_rule("yuan2025native")(_is(TopBlocks))
_rule("xiao2024streamingllm")(lambda s: isinstance(s, Window | Oldest) and s.sinks > 0)

# Additive matrices
_rule("katharopoulos2020transformers")(_linear)
_rule("sun2023retentive")(lambda s: _linear(s) and _fades(s, Decay, of_token=False))
_rule("dao2024mamba2")(lambda s: _linear(s) and _fades(s, Decay, of_token=True))
_rule("yang2024gla")(lambda s: _linear(s) and _fades(s, DiagonalDecay))
_rule("qin2024lightnet")(_is(Averaged, over="key"))
_rule("peng2022abc")(lambda s: _has_slots(s) and isinstance(s.memory.second.memory, Averaged))
_rule("zhang2024gsa")(lambda s: _has_slots(s) and isinstance(s.memory.second.memory, Memory))
_rule("peng2024rwkv6")(lambda s: isinstance(s, Before) and s.bonus is not None)

# The delta rule
_rule("schlag2021linear", "yang2024parallelizing")(_delta)
_rule("yang2024gated")(lambda s: _delta(s) and _fades(s, Decay))
_rule("kimi2025linear")(lambda s: _delta(s) and _fades(s, DiagonalDecay))
_rule("tumma2026preconditioned")(_is(Preconditioner))
_rule("hu2025comba")(_memory(Delta, recall="previous", erase="own", remove="key"))
_rule("peng2025rwkv7")(_memory(Delta, recall="previous", erase="own", remove="own"))
_rule("liu2024longhorn")(_is(Delta, implicit=True))
_rule("siems2025deltaproduct")(lambda s: isinstance(s, Repeated) and isinstance(s.write, Delta))
_rule("irie2022neural")(_is(Transposed))

# Kernel adaptive filters
_rule("liu2008klms")(_kernel_delta)
_rule("kivinen2004norma")(lambda s: _kernel_delta(s) and _fades(s, Decay))
_rule("richard2009online")(lambda s: _is(Coherence)(s) or _is(Delta, on="atoms")(s))
_rule("platt1991resource")(_is(Surprise))
_rule("chen2012qklms")(_is(AddToNearest))
_rule("orabona2008projectron")(_is(Project))
_rule("wang2012breaking")(_is(Pairwise))
_rule("rzepka2012fixed")(_is(Smallest))
_rule("cavallanti2007tracking")(_is(Random, reservoir=False))
_rule("vitter1985random")(_is(Random, reservoir=True))
_rule("zhang2023h2o", "oren2024tova")(_is(LeastUsed))

# Solved memories
_rule("vonoswald2025mesanet")(
    lambda s: _memory(Ridge, finite=True)(s) or isinstance(s, ConjugateGradient)
)
_rule("engel2004krls")(_memory(Ridge, finite=False))
_rule("vanvaerenbergh2006sliding")(lambda s: _memory(Ridge)(s) and isinstance(s.capacity, Window))
_rule("vanvaerenbergh2010fixed")(
    lambda s: isinstance(s, Budget) and isinstance(s.evict, LeaveOneOut)
)

# Other losses, retentions and algorithms
_rule("behrouz2025titans")(lambda s: isinstance(s, Descent) and s.momentum is not None)
_rule("behrouz2025atlas")(lambda s: isinstance(s, Descent) and (s.window > 1 or s.orthogonalise))
_rule("jordan2024muon")(_is(Descent, orthogonalise=True))
_rule("behrouz2025miras")(_is(Power | Huber | ValueShift | AbstractRetention))
_rule("behrouz2025nested")(_is(Chained))
_rule("sun2024ttt")(
    lambda s: isinstance(s, Network) or (isinstance(s, Descent) and s.minibatch > 1)
)

# Growing layers
_rule("irie2022dual")(_is(Grown))
_rule("schlegel2026retrieval")(_is(Grown | Reweight | Novelty))

# Features
_rule("katharopoulos2020transformers")(_is(EluPlusOne))
_rule("schlag2021linear")(_is(Dpfp))
_rule("arora2024based")(_is(Taylor))
_rule("zhang2024hedgehog")(_is(Hedgehog))
_rule("rahimi2007random")(lambda s: isinstance(s, RandomFourier) and s.spectrum != "exp")
_rule("choromanski2021performers")(_is(RandomFourier, spectrum="exp"))


def cite(spec: Spec, rules: Iterable[Rule] | None = None) -> str:
    """The BibTeX entries of every piece of a spec, each once.

    They name where a piece was first published, or is best known from; that a combination has a name
    of its own is found out where there is a rule for it.

    **Arguments:**

    - `spec`: a memory, a layer, or a part of one.
    - `rules`: what to go by; `RULES` by default.

    **Returns:** the entries, in the order of the rules, an empty line between them; `""` for none.

    **Raises:** `KeyError` for a rule with an unknown key.

    ??? example

        ```python
        >>> import memdsl as md
        >>> print(md.cite(md.zoo.klms()))
        @article{liu2008klms,
          title = {The Kernel Least-Mean-Square Algorithm},
          author = {Liu, Weifeng and Pokharel, Puskal P. and Pr{\\'i}ncipe, Jos{\\'e} C.},
          journal = {IEEE Transactions on Signal Processing},
          volume = {56},
          number = {2},
          pages = {543--554},
          year = {2008},
        }

        ```
    """
    pieces = list(_pieces(spec))
    due = [rule for rule in (RULES if rules is None else rules) if any(map(rule.due, pieces))]
    known = references()
    found = [r if r.startswith("@") else known[r] for rule in due for r in rule.references]
    return "\n\n".join(dict.fromkeys(found))


def references() -> dict[str, str]:
    """Every entry of `references.bib` by its key."""
    file = resources.files(__name__.rpartition(".")[0]).joinpath("references.bib")
    text = file.read_text(encoding="utf-8")
    entries = re.split(r"\n\n(?=@)", text.strip())
    return {entry[entry.index("{") + 1 : entry.index(",")]: entry for entry in entries}


def _pieces(spec: Any) -> Iterator[Any]:
    """A spec and all the specs in it."""
    yield spec
    for _, value in children(spec):
        if isinstance(value, Spec):
            yield from _pieces(value)
