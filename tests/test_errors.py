"""Every static mistake is answered in whole: what, where, why, and what to write instead.

The messages are in `tests/errors/*.txt`, each under the line of code that it answers, as a user sees
them.
"""

import ast
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import Primitive

import memdsl as md
from memdsl.spec._number import Log
from memdsl.spec._read import Backwards
from memdsl.spec._slots import ground, resolve

from .specs import Lorentzian


FOLDER = Path(__file__).parent / "errors"
SPECS = Path(md.__file__).parent / "spec"


class Neither(md.AbstractGate):
    """A gate of a user that neither forgets nor admits."""


class Leaning(md.AbstractKernel):
    """A kernel of a user that does not say that it is never negative."""

    def __call__(self, k, q):
        return 2 * k @ q


class Holder(md.AbstractFeature):
    """A feature of a user with a field that has no check of its own."""

    held: Any = None

    def __call__(self, x):
        return x


class Odd(md.AbstractFeature):
    """A feature of a user that cannot be made from its fields."""

    held: Any = 1

    def __init__(self):
        object.__setattr__(self, "held", 1)

    def __call__(self, x):
        return x


class Twin(md.AbstractFeature):
    """A feature of a user; there is another of that name."""

    def __call__(self, x):
        return x


class Elsewhere:
    """A namespace with names that are taken."""

    class Twin(md.AbstractFeature):
        """Another twin."""

        def __call__(self, x):
            return -x

    class RBF(Lorentzian):
        """A kernel of a user with the name of one of ours."""


array, scalar = jnp.ones(3), jnp.ones(())
grounded = ground(md.RBF(scale=md.Knob(1.0)), {"scale": scalar})
faded = ground(md.Memory(md.Dot(), gate=md.Decay(md.Knob(0.9))), {"gate.decay": Log(scalar)})
dot = md.Memory(md.Dot())
NAMES = {
    **{
        cls.__name__: cls
        for cls in (Backwards, Elsewhere, Holder, Leaning, Lorentzian, Neither, Odd)
    },
    **{"md": md, "np": np, "jnp": jnp, "resolve": resolve, "dot": dot},
    **{"array": array, "scalar": scalar, "grounded": grounded, "faded": faded},
}
"""What the lines of code of the gallery know."""


@dataclass(frozen=True)
class Case:
    """A line of code and the whole message that answers it."""

    file: str
    code: str
    message: str


def read(file: Path) -> Iterator[Case]:
    """The cases of a file: each a line after `>>> `, and what follows until the next."""
    _, *parts = ("\n" + file.read_text(encoding="utf-8")).split("\n>>> ")
    for part in parts:
        code, _, message = part.partition("\n")
        yield Case(file.stem, code, message.strip("\n"))


CASES = [case for file in sorted(FOLDER.glob("*.txt")) for case in read(file)]


def answer(code: str) -> md.SpecError:
    """The error that a line of code raises."""
    with pytest.raises(md.SpecError) as raised:
        eval(code, dict(NAMES))
    return raised.value


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.file}: {case.code[:60]}")
def test_the_whole_message(case: Case):
    assert str(answer(case.code)) == case.message


def test_the_gallery_is_large():
    assert len(CASES) >= 100
    files = {"json", "layers", "memories", "numbers", "optimisers", "parts"}
    assert {case.file for case in CASES} == files
    assert len({case.code for case in CASES}) == len(CASES)


def raises(file: Path) -> Iterator[tuple[str, int, int]]:
    """`(file name, first line, last line)` of every statement that raises a `SpecError`."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            called = node.exc.func
            if isinstance(called, ast.Name) and called.id in ("SpecError", "refuse"):
                yield file.name, node.lineno, node.end_lineno or node.lineno


def places(error: BaseException | None) -> Iterator[tuple[str, int]]:
    """`(file name, line)` of every frame of an error and of those it came from."""
    while error is not None:
        for frame in traceback.extract_tb(error.__traceback__):
            if Path(frame.filename).parent == SPECS:
                yield Path(frame.filename).name, frame.lineno or 0
        error = error.__cause__ or error.__context__


def test_every_error_of_the_specs_is_in_the_gallery():
    """A new check needs a new message here: nothing is raised that nobody has read."""
    seen = {place for case in CASES for place in places(answer(case.code))}
    statements = [found for file in sorted(SPECS.glob("*.py")) for found in raises(file)]
    assert len(statements) > 80
    missing = [
        f"{name}:{first}"
        for name, first, last in statements
        if not any((name, line) in seen for line in range(first, last + 1))
    ]
    assert not missing


def test_a_message_has_its_four_parts():
    error = answer("md.Memory(md.RBF(), gate=md.DiagonalDecay(0.9))")
    assert isinstance(error, ValueError)
    assert error.what == "DiagonalDecay needs coordinates, and RBF() has none."
    assert error.where.kernel == md.RBF()
    assert error.at == "gate"
    assert error.why == "A diagonal gate scales each feature of a key; RBF() has infinitely many."
    assert error.instead is not None and error.instead.startswith("Decay(...)")


def test_the_parts_that_are_missing_leave_no_trace():
    assert str(md.SpecError("What.")) == "What."
    assert str(md.SpecError("What.", instead="this.")) == "What.\n\n  Instead: this."
    assert str(md.SpecError("What.", where="$.spec")) == "What.\n\n──▶   $.spec"


def test_a_long_reason_is_wrapped_and_a_long_spec_drawn_over_lines():
    memory = md.Memory(
        md.Dot().pullback(md.Silu() >> md.L2Norm()), md.Delta(rate=md.FromInput("sigmoid"))
    )
    error = md.SpecError("What.", where=memory.replace(gate=md.Decay(0.9)), why="word " * 40)
    lines = str(error).splitlines()
    assert lines[:4] == [
        "What.",
        "",
        "──▶   Memory(",
        "          Dot().pullback(Silu() >> L2Norm()),",
    ]
    assert max(map(len, lines)) == 96
    assert " ".join(lines).count("word") == 40


@pytest.fixture
def no_arrays(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Makes JAX refuse to compute anything at all."""

    def refuse(self: Primitive, *args: Any, **kwargs: Any) -> Any:
        raise AssertionError(f"{self} was computed")

    monkeypatch.setattr(Primitive, "bind", refuse)
    before = len(jax.live_arrays())
    with jax.transfer_guard("disallow_explicit"), jax.disable_jit():
        yield
    assert len(jax.live_arrays()) <= before


@pytest.mark.usefixtures("no_arrays")
@pytest.mark.parametrize("make", ["jnp.ones(3)", "jnp.asarray(1.0)", "jnp.exp(2.0)", "array + 1"])
def test_making_an_array_would_be_noticed(make: str):
    with pytest.raises(Exception, match=r"computed|[Dd]isallowed"):
        eval(make, dict(NAMES))


@pytest.mark.usefixtures("no_arrays")
def test_mistakes_are_found_before_any_array_exists():
    for case in CASES:
        answer(case.code)


@pytest.mark.usefixtures("no_arrays")
def test_specs_are_made_printed_and_stored_without_arrays():
    memory = md.Memory(
        (md.Exp(md.Learned(0.5) * md.Dot()) + 2.0 * Lorentzian()).pullback(md.Linear(8)),
        md.Delta(md.FromInput("sigmoid") * md.Schedule("constant_schedule", value=0.5)),
        md.Novelty(0.1) @ md.Decay(md.FromInput("dt")),
        md.Budget(16, md.LeaveOneOut(), md.Project()),
    )
    whole = memory + 0.5 * md.Memory(md.RBF().random_features(8), md.Ridge()) >> md.L2Norm()
    assert md.from_json(md.to_json(whole)) == whole
    assert hash(whole.replace()) == hash(whole)
    assert md.is_nonnegative(memory.kernel) and not md.is_finite(memory.kernel)
    assert md.rank(md.Polynomial(2), 8) == 45
