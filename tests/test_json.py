"""Specs are data: text and back, strictly, with nothing imported and nothing run on the way."""

import builtins
import copy
import json
import math
import sys
from typing import Any

import jax.numpy as jnp
import pytest
from hypothesis import given, settings, strategies as st

import memdsl as md
from memdsl.spec._base import Spec
from memdsl.spec._json import _every_class, _is_interface, _is_ours
from memdsl.spec._slots import ground, slots

from .helpers import COMPOSITES, LISTS
from .specs import Lorentzian, specs


MANY = settings(max_examples=100)
WRITTEN = {
    **{f"zoo {name}": make() for name, make in md.zoo.catalogue().items()},
    **COMPOSITES,
    **{f"{sort} {name}": spec for sort, some in LISTS.items() for name, spec in some.items()},
}


def spec_text(**fields: Any) -> str:
    """The text of a spec with these fields."""
    return json.dumps({"memdsl": 1, "spec": fields})


@MANY
@given(specs)
def test_there_and_back(spec: Spec):
    text = md.to_json(spec)
    back = md.from_json(text)
    assert back == spec
    assert (hash(back), repr(back), md.to_json(back)) == (hash(spec), repr(spec), text)


@pytest.mark.parametrize("name", WRITTEN)
def test_there_and_back_for_what_is_used(name: str):
    assert md.from_json(md.to_json(WRITTEN[name])) == WRITTEN[name]


def test_the_text_itself():
    memory = md.Memory(
        md.RBF(scale=md.Learned(0.5)), md.Delta(rate=0.2), capacity=md.Budget(8, md.Smallest())
    )
    assert json.loads(md.to_json(memory)) == {
        "memdsl": 1,
        "spec": {
            "type": "Memory",
            "kernel": {"type": "RBF", "scale": {"type": "Learned", "start": 0.5}},
            "write": {"type": "Delta", "rate": 0.2},
            "capacity": {"type": "Budget", "size": 8, "evict": {"type": "Smallest"}},
        },
    }
    schedule = md.Schedule("exponential_decay", init_value=1, transition_steps=2, decay_rate=0.5)
    assert json.loads(md.to_json(schedule))["spec"] == {
        "type": "Schedule",
        "name": "exponential_decay",
        "arguments": {"decay_rate": 0.5, "init_value": 1, "transition_steps": 2},
    }


def test_indent_is_for_the_eye():
    assert md.to_json(md.Dot(), indent=1).splitlines()[1] == ' "memdsl": 1,'
    assert md.from_json(md.to_json(md.Dot(), indent=1)) == md.Dot()


@MANY
@given(st.floats(allow_nan=False, allow_infinity=False), st.integers(1, 2**70))
def test_numbers_keep_value_and_kind(number: float, count: int):
    window = md.from_json(
        md.to_json(md.Knob(number) * md.Memory(md.Dot(), capacity=md.Window(count)))
    )
    found = window.factor.value
    assert (found, math.copysign(1, found)) == (number, math.copysign(1, number))
    assert window.memory.capacity.size == count


@pytest.mark.parametrize("threshold", [math.inf, -math.inf])
def test_infinite_numbers_are_portable(threshold: float):
    def refuse(name: str) -> Any:
        raise AssertionError(f"{name} is no JSON")

    text = md.to_json(md.Novelty(threshold))
    json.loads(text, parse_constant=refuse)
    assert md.from_json(text) == md.Novelty(threshold)


def test_a_whole_number_may_stand_for_a_float():
    assert md.from_json(spec_text(type="Decay", decay=1)) == md.Decay(1.0)


@given(specs.filter(slots))
def test_a_grounded_spec_is_not_written(spec: Spec):
    first = slots(spec)[0]
    with pytest.raises(md.SpecError, match="writes no arrays") as raised:
        md.to_json(ground(spec, {first.path: jnp.ones(())}))
    where = str(raised.value.where)
    steps = where.removeprefix("$.spec.").replace("[", ".").replace("]", "")
    assert steps == first.path


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 9) | st.floats() | st.sampled_from(["RBF", "own"]),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from(["type", "float", "scale", "gates"]), inner, max_size=2)
    ),
    max_leaves=3,
)


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every `(container, key)` of a parsed text."""
    found: list[tuple[Any, Any]] = []
    keys = (
        value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    )
    for key in keys:
        found += [(value, key), *places(value[key])]
    return found


@MANY
@given(specs, st.data())
def test_a_damaged_text_is_a_spec_error_or_a_spec(spec: Spec, data: st.DataObject):
    """Nothing but a `SpecError` comes out of a text, wherever it was damaged."""
    whole = json.loads(md.to_json(spec))
    container, key = data.draw(st.sampled_from(places(whole)))
    damage = data.draw(st.sampled_from(["replace", "remove", "add", "rename"]))
    if damage == "replace" or isinstance(container, list):
        container[key] = data.draw(ANYTHING)
    elif damage == "rename":
        container[f"{key}_"] = container.pop(key)
    elif damage == "remove":
        del container[key]
    else:
        container["more"] = data.draw(ANYTHING)
    try:
        back = md.from_json(json.dumps(whole))
    except md.SpecError as error:
        assert str(error)
    else:
        assert md.from_json(md.to_json(back)) == back


@MANY
@given(st.text(max_size=30) | ANYTHING.map(json.dumps))
def test_any_text_is_answered(text: str):
    with pytest.raises(md.SpecError):
        md.from_json(text)


MALICIOUS = [
    "os.system",
    "__import__",
    "builtins.eval",
    "eval",
    "object",
    "type",
    "Spec",
    "Source",
    "_Pair",
    "AbstractKernel",
    "memdsl.spec._kernel.RBF",
    "RBF.__init__",
    "RBF ",
    "rbf",
    "",
    None,
    1,
    ["RBF"],
    {"type": "RBF"},
]


@pytest.mark.parametrize("name", MALICIOUS, ids=repr)
def test_a_type_is_nothing_but_the_name_of_a_spec(name: Any):
    for text in (spec_text(type=name), spec_text(type="Memory", kernel={"type": name})):
        with pytest.raises(md.SpecError, match="There is no spec of the type"):
            md.from_json(text)


@pytest.mark.parametrize("field", ["__class__", "__init__", "__check__", "replace", "positional"])
def test_a_field_is_nothing_but_a_field(field: str):
    with pytest.raises(md.SpecError, match="has no field") as raised:
        md.from_json(spec_text(type="RBF", scale=1.0, **{field: "os.system"}))
    assert raised.value.where == f"$.spec.{field}"


@pytest.mark.parametrize("name", ["inject_hyperparams", "join_schedules", "jnp", "__doc__"])
def test_a_schedule_is_nothing_but_a_schedule(name: str):
    with pytest.raises(md.SpecError, match="Schedule knows no"):
        md.from_json(spec_text(type="Schedule", name=name, arguments={}))


def test_reading_imports_nothing(monkeypatch: pytest.MonkeyPatch):
    asked: list[str] = []
    original = builtins.__import__

    def watched(name: str, scope: Any = None, *args: Any) -> Any:
        asked.append(name if not (args and args[-1]) else f"{(scope or {})['__package__']}.{name}")
        return original(name, scope, *args)

    texts = [md.to_json(spec) for spec in WRITTEN.values()]
    before = set(sys.modules)
    monkeypatch.setattr(builtins, "__import__", watched)
    for text in texts:
        md.from_json(text)
    for name in MALICIOUS:
        with pytest.raises(md.SpecError):
            md.from_json(spec_text(type=name))
    monkeypatch.undo()
    assert set(sys.modules) == before
    outside = {name for name in asked if not name.startswith("memdsl.spec")}
    assert outside <= {"inspect", "optax", "json"}


def test_a_users_class_is_found_by_its_name():
    memory = md.Memory(2.0 * Lorentzian(scale=md.Learned(0.5)), read=md.Normalised())
    assert md.from_json(md.to_json(memory)) == memory


def feature(name: str, place: str, factor: float) -> Any:
    """A class of a user's features, as if it had been defined in some module."""

    class Made(md.AbstractFeature):
        power: float = 1.0

        def __call__(self, x):
            return factor * x

    Made.__name__, Made.__qualname__, Made.__module__ = name, name, place
    return Made


def test_of_two_classes_of_one_name_the_user_names_one():
    first, second = feature("Stretched", "one", 1.0), feature("Stretched", "two", 2.0)
    text = md.to_json(second(3.0))
    with pytest.raises(md.SpecError, match=r"one\.Stretched and two\.Stretched") as raised:
        md.from_json(text)
    assert raised.value.where == "$.spec.type"
    assert md.from_json(text, types=(second,)) == second(3.0)
    assert md.from_json(text, types=[first]) == first(3.0)


def test_a_class_that_was_defined_anew_is_taken_as_it_is_now():
    old, new = feature("Anew", "notebook", 1.0), feature("Anew", "notebook", 2.0)
    assert type(md.from_json(md.to_json(old(3.0)))) is new


def test_a_class_with_the_name_of_ours_cannot_be_taken_for_it():
    mine = feature("Silu", "mine", 1.0)
    assert md.from_json(md.to_json(md.Silu())) == md.Silu()
    with pytest.raises(md.SpecError, match="Silu is the name of a class of memdsl"):
        md.to_json(md.Dot().pullback(mine()))
    assert md.from_json(spec_text(type="Silu", power=2.0), types=(mine,)) == mine(2.0)


def test_our_own_names_are_unique():
    ours = [c.__name__ for c in _every_class(Spec) if _is_ours(c) and not _is_interface(c)]
    assert len(set(ours)) == len(set(map(id, filter(_is_ours, _concrete()))))
    assert {"Memory", "Layer", "RBF", "Sequence", "NumberSum"} <= set(ours)


def _concrete() -> set[type]:
    return {cls for cls in _every_class(Spec) if not _is_interface(cls)}


def test_the_text_of_a_spec_is_not_changed_by_reading_it():
    whole = {"memdsl": 1, "spec": {"type": "RBF", "scale": 2.0}}
    kept = copy.deepcopy(whole)
    assert md.from_json(json.dumps(whole)) == md.RBF(scale=2.0)
    assert whole == kept
