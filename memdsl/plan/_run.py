"""Running a memory without a layer: arrays in, arrays out."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .._errors import SpecError
from .._types import checked
from ..run._inputs import Inputs
from ..spec._facts import one_pair, own_keys, pairs_per_token
from ..spec._gate import forgets, Reset
from ..spec._memory import (
    AbstractMemory,
    Added,
    Boosted,
    Chained,
    Every,
    Mapped,
    Memory,
    Scaled,
    Transposed,
    Zero,
)
from ..spec._read import Backwards
from ..spec._slots import ground, slots
from ..spec._write import Repeated
from ..state import AbstractState, BufferState, empty_state, GramState, read
from ._dims import Dims
from ._plan import Plan, plan, Using
from ._prepare import kept_size, prepare
from ._signals import bind
from ._tree import forecasting, leaves


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
        spec = getattr(memory, name) if spec is None else spec
        return run_tree(spec, chosen, inner_state, inner.under(name), f"{path}{name}.")

    match memory:
        case Memory():
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
        case _:
            raise TypeError(f"no execution for {type(memory).__name__}")


def _phases(stream: Stream, phase: Array, count: int) -> tuple[Array, Array]:
    """Each token's place in its group of `count`, and the place of the next one."""
    time = len(stream.queries)
    active = jnp.ones(time, bool) if stream.active is None else stream.active
    starts = jnp.zeros(time, bool) if stream.starts is None else stream.starts

    def body(place: Array, token: tuple[Array, Array]) -> tuple[Array, Array]:
        start, counts = token
        place = jnp.where(start, 0, place)
        return jnp.where(counts, (place + 1) % count, place), place

    last, places = jax.lax.scan(body, phase, (starts, active))
    return places, last


def run_leaf(
    memory: Memory, chosen: Plan, state: AbstractState, stream: Stream, path: str
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
    ).cleaned()
    inputs = inputs.put(
        keys=mapped(inputs.keys),
        queries=key_map(inputs.queries) if asks_at_keys(memory) else inputs.queries,
        erase_keys=mapped(inputs.erase_keys),
        remove_keys=mapped(inputs.remove_keys),
    )
    return rule.run(grounded, state, inputs)


def asks_at_keys(memory: Memory) -> bool:
    """Whether queries live in the space of keys (those of a transposed memory do not)."""
    return not isinstance(memory.read, Backwards)


@checked
def run(
    memory: AbstractMemory,
    state: Any,
    keys: Float[Array, "pairs key"],
    values: Float[Array, "pairs value"],
    queries: Float[Array, "time query"] | None = None,
    *,
    mask: Bool[Array, " time"] | None = None,
    starts: Bool[Array, " time"] | None = None,
    erase_keys: Float[Array, "pairs key"] | None = None,
    remove_keys: Float[Array, "pairs key"] | None = None,
    using: Using = None,
    purpose: str = "train",
    **signals: Any,
) -> tuple[Any, Float[Array, "time answer"]]:
    """Writes a sequence of pairs and answers a query at every token.

    Token by token: `f <- gate f`, `(c, m) = write(v, f(k))`, `f <- f + kernel(k, .) (c, m)`,
    `y = read(f, q)`. Which execution computes it is decided by the plan.

    **Arguments:**

    - `memory`: the memory; one head.
    - `state`: where it starts, from `md.empty` or an earlier run.
    - `keys`, `values`: one pair a token (`Repeated` writes: `n` pairs a token, laid out along time).
    - `queries`: one a token. Without them the memory forecasts: it answers at every key *before* the
        token is written.
    - `mask`: False for padding: the token is the identity on the state and its answer is 0.
    - `starts`: True where a new document begins: the state is cleared before the token.
    - `erase_keys`, `remove_keys`: for a `Delta` with keys of its own.
    - `using`: the name of a rule, or one by path of a leaf; by default the plan decides.
    - `purpose`: `"train"` or `"serve"`: what the plan is chosen for.
    - `signals`: the numbers of `md.signals(memory)`, by name.

    **Returns:** `(state, answers)`; answers are float32, or float64 where the state is.

    **Raises:** `SpecError` for a missing or unknown signal, or a plan that is not legal; a type error
    that names the argument for a wrong shape.

    ??? example

        ```python
        >>> import jax.numpy as jnp
        >>> import memdsl as md
        >>> klms = md.Memory(md.RBF(scale=1.0), md.Delta(rate=0.5))
        >>> state = md.empty(klms, key_size=1, value_size=1, capacity=3)
        >>> x = jnp.array([[0.0], [1.0], [0.0]])
        >>> y = jnp.array([[1.0], [0.0], [1.0]])
        >>> state, forecasts = md.run(klms, state, x, y)
        >>> forecasts[:, 0]
        Array([0.        , 0.3032653 , 0.40803012], dtype=float32)

        ```
    """
    _check_streams(memory, keys, queries, starts, erase_keys, remove_keys)
    if queries is None:
        memory, queries = forecasting(memory), keys
    dims = Dims(key=keys.shape[1], value=values.shape[1], time=max(len(queries), 1))
    kept = {path: representation_of(leaf) for path, leaf in leaf_states(memory, state)}
    chosen = plan(memory, dims, using=using, purpose=purpose, representation=kept)
    stream = make_stream(
        chosen.memory, state, keys, values, queries, mask, starts, erase_keys, remove_keys, signals
    )
    state, out = run_tree(chosen.memory, chosen, state, stream)
    return state, out if mask is None else jnp.where(mask[:, None], out, 0)


def make_stream(
    memory: AbstractMemory,
    state: Any,
    keys: Array,
    values: Array,
    queries: Array,
    mask: Array | None,
    starts: Array | None,
    erase_keys: Array | None,
    remove_keys: Array | None,
    signals: Mapping[str, Any],
) -> Stream:
    """The stream of a run, every array in the dtype of the state."""
    found = leaf_states(memory, state)
    dtype = state_dtype(found[0][1]) if found else values.dtype
    count = jnp.zeros((), jnp.int32) if not found else found[0][1].count
    pairs = max((pairs_per_token(leaf.write) for _, leaf, _ in leaves(memory)), default=1)
    seen = jnp.ones(len(queries), jnp.int32) if mask is None else mask.astype(jnp.int32)
    steps = count + jnp.cumsum(seen) - seen
    constants, tokens = bind(
        memory, signals, time=len(queries), pairs=pairs, steps=steps, dtype=dtype
    )

    def cast(array: Array | None) -> Any:
        return None if array is None else array.astype(dtype)

    begins = starts if starts is None or mask is None else starts & mask
    return Stream(
        cast(keys), cast(values), cast(queries), cast(erase_keys), cast(remove_keys),
        begins, mask, constants, tokens,
    )  # fmt: skip


def _check_streams(
    memory: AbstractMemory,
    keys: Array,
    queries: Array | None,
    starts: Array | None,
    erase_keys: Array | None,
    remove_keys: Array | None,
) -> None:
    given = {"erase_keys": erase_keys, "remove_keys": remove_keys}
    for _, leaf, _ in leaves(memory):
        for name in own_keys(leaf.write):
            if given[name] is None:
                raise SpecError(
                    f"The memory takes {name}, and got none.",
                    where=one_pair(leaf.write),
                    at=name.split("_")[0],
                    instead=f"{name}=..., an array like keys.",
                )
        if isinstance(leaf.write, Repeated):
            count = leaf.write.count
            if queries is None or len(keys) != count * len(queries):
                have = "no queries" if queries is None else f"{len(queries)} queries"
                raise SpecError(
                    f"{leaf.write!r} writes {count} pairs a token: {len(keys)} keys and {have}.",
                    instead=f"keys and values of length {count} * time, laid out along time.",
                )
        elif queries is not None and len(keys) != len(queries):
            raise SpecError(
                f"There are {len(keys)} keys and {len(queries)} queries.",
                instead="one query a token, or queries=None to forecast.",
            )

        if starts is None and any(isinstance(gate, Reset) for gate in forgets(leaf.gate)):
            raise SpecError(
                "The memory resets at document starts, and got no starts.",
                where=leaf,
                at="gate",
                instead="starts=..., True at the first token of every document.",
            )


def leaf_states(memory: AbstractMemory, state: Any) -> list[tuple[Any, ...]]:
    """`(path, state)` of every leaf, in order."""
    found = leaves(memory)
    states = jax.tree.leaves(state, is_leaf=lambda s: isinstance(s, AbstractState))
    states = [s for s in states if isinstance(s, AbstractState)]
    if len(states) != len(found):
        raise SpecError(
            f"The state has {len(states)} parts, and the memory {len(found)}.",
            where=memory,
            instead="a state from md.empty(memory, ...), or from a run of this memory.",
        )
    return [(path, s) for (path, _, _), s in zip(found, states, strict=True)]


def representation_of(state: Any) -> str:
    """`"matrix"`, `"gram"` or `"buffer"`."""
    inner = getattr(state, "function", state)
    if isinstance(inner, BufferState):
        return "buffer"
    return "gram" if isinstance(inner, GramState) else "matrix"


def state_dtype(state: AbstractState) -> Any:
    """The dtype of the numbers of a state."""
    return next(x.dtype for x in jax.tree.leaves(state) if jnp.issubdtype(x.dtype, jnp.floating))


def empty(
    memory: AbstractMemory,
    key_size: int,
    value_size: int,
    *,
    capacity: int | None = None,
    using: Using = None,
    purpose: str = "serve",
    dtype: Any = jnp.float32,
) -> Any:
    """The empty state of a memory: the function that is 0 everywhere.

    **Arguments:**

    - `memory`: the memory; one head.
    - `key_size`, `value_size`: the sizes of its keys and values.
    - `capacity`: the most atoms an `All()` buffer must hold.
    - `using`, `purpose`: which plan it is for; a matrix or a buffer comes of it.
    - `dtype`: float32, or float64.

    **Returns:** a state; a tuple of states for a memory made of memories.

    **Raises:** `SpecError` where an unbounded buffer is given no capacity.

    ??? example

        ```python
        >>> import memdsl as md
        >>> state = md.empty(md.Memory(md.Dot(), md.Delta(0.5)), key_size=4, value_size=2)
        >>> state.matrix.shape
        (4, 2)

        ```
    """
    dims = Dims(key=key_size, value=value_size, time=capacity)
    chosen = plan(memory, dims, using=using, purpose=purpose)
    return empty_tree(chosen.memory, chosen, key_size, value_size, capacity, dtype)


def empty_tree(
    memory: AbstractMemory,
    chosen: Plan,
    key_size: int,
    value_size: int,
    capacity: int | None,
    dtype: Any,
    path: str = "",
) -> Any:
    """The empty state of a memory under a plan."""

    def part(name: str, k: int, v: int) -> Any:
        inner = getattr(memory, name)
        return empty_tree(inner, chosen, k, v, capacity, dtype, f"{path}{name}.")

    match memory:
        case Memory():
            representation = chosen.rule(path.rstrip(".")).representation
            size = kept_size(memory, key_size, representation)
            prepared, _ = prepare(memory, representation)
            return empty_state(prepared, representation, size, value_size, capacity, dtype)
        case Zero():
            return ()
        case Added() | Chained() | Boosted():
            return part("first", key_size, value_size), part("second", key_size, value_size)
        case Every():
            return jnp.zeros((), jnp.int32), part("memory", key_size, value_size)
        case Transposed():
            return (part("memory", value_size, key_size),)
        case _:
            return (part("memory", key_size, value_size),)


@checked
def step(
    memory: AbstractMemory,
    state: Any,
    key: Float[Array, " key"],
    value: Float[Array, " value"],
    query: Float[Array, " query"] | None = None,
    **signals: Any,
) -> tuple[Any, Float[Array, " answer"]]:
    """One token of `run`: writes one pair, answers one query; signals have no time axis.

    **Returns:** `(state, answer)`.
    """
    rows = {name: jnp.asarray(value)[None] for name, value in signals.items()}
    queries = None if query is None else query[None]
    state, out = run(memory, state, key[None], value[None], queries, purpose="serve", **rows)
    return state, out[0]


@checked
def evaluate(
    memory: AbstractMemory, state: Any, queries: Float[Array, "count query"], **signals: Any
) -> Float[Array, "count answer"]:
    """What a memory answers to queries, as it stands: nothing is written.

    ??? example

        ```python
        >>> import jax.numpy as jnp
        >>> import memdsl as md
        >>> memory = md.Memory(md.RBF(scale=1.0), md.Delta(rate=1.0))
        >>> state = md.empty(memory, key_size=1, value_size=1, capacity=1)
        >>> state, _ = md.step(memory, state, jnp.array([0.0]), jnp.array([2.0]))
        >>> md.evaluate(memory, state, jnp.array([[0.0], [1.0]]))[:, 0]
        Array([2.       , 1.2130613], dtype=float32)

        ```
    """
    if not isinstance(memory, Memory):
        raise SpecError(
            f"evaluate reads one Memory, not {type(memory).__name__}.",
            where=memory,
            instead="md.evaluate on its parts and their states.",
        )
    dims = Dims(key=queries.shape[1])
    kept = representation_of(state)
    chosen = plan(memory, dims, representation={"": kept}, purpose="serve")
    dtype = state_dtype(state)
    steps = jnp.zeros((1,), jnp.int32)
    given = {name: value for name, value in signals.items()}
    constants, _ = bind(
        _without_time(chosen.memory), given, time=1, pairs=1, steps=steps, dtype=dtype
    )
    grounded, key_map = prepare(ground(chosen.memory, constants), kept)
    return jax.vmap(lambda q: read(grounded, state, q))(key_map(queries.astype(dtype)))


def _without_time(memory: Any) -> Any:
    """The memory with plain numbers where a signal would change from token to token."""
    return ground(memory, {slot.path: 1.0 for slot in slots(memory) if slot.time})
