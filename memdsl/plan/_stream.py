"""One sequence on its way through a memory, and the memories it is made of."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from ..run._inputs import Inputs
from ..run._shares import running_shares
from ..spec._facts import pairs_per_token
from ..spec._memory import (
    AbstractMemory,
    Added,
    Averaged,
    Boosted,
    Chained,
    Every,
    Leaf,
    Level,
    Mapped,
    Memory,
    Network,
    Rewired,
    Scaled,
    Transposed,
    Zero,
)
from ..spec._number import Log
from ..spec._read import Backwards
from ..spec._slots import ground
from ..state import AbstractState
from ._plan import Plan
from ._prepare import prepare
from ._tree import forecasting, part_at, parts
from ._wiring import evaluate_stream


@dataclasses.dataclass(frozen=True)
class Stream:
    """One sequence on its way through a memory, before any feature is taken."""

    keys: Array
    values: Array
    queries: Array
    erase_keys: Array | None
    remove_keys: Array | None
    starts: Array | None
    active: Array | None
    constants: Mapping[str, Any]
    tokens: Mapping[str, Any]
    fresh: bool = False
    there: Array | None = None
    closed: Array | None = None
    """True where the memory fades, and no pair is written."""
    own: Array | None = None
    """What `Own()` stands for."""

    def put(self, **changes: Any) -> "Stream":
        """A copy with some fields changed."""
        return dataclasses.replace(self, **changes)

    def under(self, name: str) -> "Stream":
        """The stream for a part of the memory: paths lose their first name."""
        cut = f"{name}."

        def inside(values: Mapping[str, Any]) -> dict[str, Any]:
            return {p.removeprefix(cut): v for p, v in values.items() if p.startswith(cut)}

        return self.put(constants=inside(self.constants), tokens=inside(self.tokens))


def run_tree(
    memory: AbstractMemory, chosen: Plan, state: Any, stream: Stream, path: str = ""
) -> tuple[Any, Array]:
    """`(state, answers)` of a memory and the memories it is made of."""

    def part(name: str, inner_state: Any, inner: Stream, spec: Any = None) -> tuple[Any, Array]:
        spec = part_at(memory, name) if spec is None else spec
        return run_tree(spec, chosen, inner_state, inner.under(name), f"{path}{name}.")

    match memory:
        case Memory() | Network():
            return run_leaf(memory, chosen, state, stream, path.rstrip("."))
        case Zero():
            return state, jnp.zeros_like(stream.values, shape=(len(stream.queries), 1))
        case Added():
            first, a = part("first", state[0], stream)
            second, b = part("second", state[1], stream)
            return (first, second), a + b
        case Chained():
            first, asked = part("first", state[0], stream)
            second, out = part("second", state[1], stream.put(queries=asked))
            return (first, second), out
        case Boosted():
            early = forecasting(ground(memory.first, stream.under("first").constants))
            _, known = part("first", state[0], stream.put(queries=stream.keys), early)
            first, a = part("first", state[0], stream)
            second, b = part("second", state[1], stream.put(values=stream.values - known))
            return (first, second), a + b
        case Scaled():
            inner, out = part("memory", state[0], stream)
            factor = stream.tokens.get("factor", stream.constants.get("factor", memory.factor))
            factor = jnp.asarray(factor, out.dtype)
            per_token = "factor" in stream.tokens and factor.ndim == 1
            return (inner,), (
                factor[:, None] if per_token else jnp.broadcast_to(factor, out.shape)
            ) * out
        case Mapped():
            inner, out = part("memory", state[0], stream)
            values = stream.under("feature").constants
            return (inner,), jax.vmap(ground(memory.feature, values))(out)
        case Transposed():
            swapped = stream.put(keys=stream.values, values=stream.keys)
            inner, out = part("memory", state[0], swapped)
            return (inner,), out
        case Every():
            phase, inner_state = state
            phases, last = _phases(stream, phase, memory.count)
            writes = phases == memory.count - 1
            active = writes if stream.active is None else writes & stream.active
            inner, out = part("memory", inner_state, stream.put(active=active))
            return (last, inner), out
        case Level():
            place, inner_state = state
            places, last = _phases(stream, place)
            begins, closed, reads = _blocks(memory.number, places, stream.active)
            starts = begins if stream.starts is None else begins | stream.starts
            inner, out = part("memory", inner_state, stream.put(starts=starts, closed=closed))
            return (last, inner), jnp.where(reads[:, None], out, 0)
        case Averaged():
            last, inner_state = state
            is_of_keys = memory.over == "key"
            logits = stream.keys if is_of_keys else stream.values
            last, log_share, log_decay = running_shares(logits, last, stream.starts, stream.active)
            shares = jnp.exp(log_share)
            inner = stream.put(keys=shares) if is_of_keys else stream.put(values=shares)
            tokens = {**stream.tokens, "memory.gate.decay": Log(log_decay)}
            inner_state, out = part("memory", inner_state, inner.put(tokens=tokens))
            return (last, inner_state), out
        case Rewired():
            states = dict(zip((path for path, _ in parts(memory)), state, strict=True))

            def answer(name: str) -> Array:
                states[name], out = part(name, states[name], stream)
                return out

            if memory.own is not None:
                stream = stream.put(own=_own(memory.own, stream))
            given = {
                name: evaluate_stream(spec, name, stream, answer)
                for name, spec in memory.streams().items()
            }
            inner = stream.put(**{_FIELDS[name]: rows for name, rows in given.items()})
            states["memory"], out = part("memory", states["memory"], inner)
            return tuple(states.values()), out
        case _:
            raise TypeError(f"no execution for {type(memory).__name__}")


def _own(number: Any, stream: Stream) -> Array:
    """The vector of every token that `of(own=...)` brings."""
    time = len(stream.queries)
    value = stream.tokens.get("own", stream.constants.get("own", number))
    value = jnp.asarray(value, stream.keys.dtype)
    if "own" in stream.tokens:
        return value.reshape(time, -1)
    return jnp.broadcast_to(value.reshape(1, -1), (time, value.size))


_FIELDS = {
    "key": "keys",
    "value": "values",
    "query": "queries",
    "erase": "erase_keys",
    "remove": "remove_keys",
}


def _blocks(level: int, places: Array, active: Array | None) -> tuple[Array, Array, Array]:
    """Of the tokens at these places: which begin two blocks of a level, which are of the second, whose
    pairs are not written, and which read it; those that are not active read as the one before."""
    half = 1 << max(level - 1, 0)
    closed = (places // half) % 2 == 1
    begins = places % (1 << level) == 0
    if active is None:
        return begins, closed & (level > 0), closed | (level == 0)
    reader = jnp.where(active, places, places - 1)
    return begins & active, closed & (level > 0), ((reader // half) % 2 == 1) | (level == 0)


def _phases(stream: Stream, phase: Array, count: int | None = None) -> tuple[Array, Array]:
    """Each token's place in its group of `count` (of all), and the place of the next one."""
    time = len(stream.queries)
    active = jnp.ones(time, bool) if stream.active is None else stream.active
    starts = jnp.zeros(time, bool) if stream.starts is None else stream.starts

    def body(place: Array, token: tuple[Array, Array]) -> tuple[Array, Array]:
        start, counts = token
        place = jnp.where(start, 0, place)
        following = place + 1 if count is None else (place + 1) % count
        return jnp.where(counts, following, place), place

    last, places = jax.lax.scan(body, phase, (starts, active))
    return places, last


def run_leaf(
    memory: Leaf, chosen: Plan, state: AbstractState, stream: Stream, path: str
) -> tuple[AbstractState, Array]:
    """`(state, answers)` of one memory, by the rule that was chosen for it."""
    rule = chosen.rule(path)
    grounded, key_map = prepare(ground(memory, stream.constants), rule.representation)

    def mapped(keys: Array | None) -> Array | None:
        return None if keys is None else key_map(keys)

    # what an inactive token holds, NaN included, must not reach the feature's gradient either
    inputs = Inputs(
        stream.keys,
        stream.values,
        stream.queries,
        stream.erase_keys,
        stream.remove_keys,
        stream.starts,
        stream.active,
        stream.tokens,
        pairs_per_token(memory.write),
        stream.fresh,
        stream.there,
        stream.closed,
    ).cleaned()
    inputs = inputs.put(
        keys=mapped(inputs.keys),
        queries=key_map(inputs.queries) if asks_at_keys(memory) else inputs.queries,
        erase_keys=mapped(inputs.erase_keys),
        remove_keys=mapped(inputs.remove_keys),
    )
    return rule.run(grounded, state, inputs)


def asks_at_keys(memory: Leaf) -> bool:
    """Whether queries live in the space of keys (those of a transposed memory do not)."""
    return not isinstance(memory.read, Backwards)
