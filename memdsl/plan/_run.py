"""Running a memory without a layer: arrays in, arrays out."""

import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .._errors import SpecError
from .._types import checked
from ..spec._facts import moves_keys, needed_keys, one_pair, own_keys, pairs_per_token
from ..spec._gate import forgets, Reset
from ..spec._memory import AbstractMemory, Memory, Network
from ..spec._number import Log
from ..spec._slots import ground, slots
from ..spec._write import Repeated
from ..state import read
from ._dims import Dims
from ._plan import plan, Using
from ._prepare import prepare
from ._rule import Rule
from ._rules import RULES
from ._signals import bind
from ._states import leaf_states, representation_of, state_dtype, with_room
from ._stream import run_tree, Stream
from ._tree import forecasting, leaves


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
    rules: tuple[Rule, ...] = RULES,
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
    - `rules`: the rules to choose from.
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
        >>> print(forecasts[:, 0].round(4))
        [0.     0.3033 0.408 ]

        ```
    """
    _check_streams(memory, keys, queries, starts, erase_keys, remove_keys)
    if queries is None:
        memory, queries = forecasting(memory), keys
    return _run(
        memory,
        state,
        dict(
            keys=keys,
            values=values,
            queries=queries,
            mask=mask,
            starts=starts,
            erase_keys=erase_keys,
            remove_keys=remove_keys,
            signals=signals,
        ),
        using if using is None or isinstance(using, str) else tuple(sorted(using.items())),
        purpose,
        rules,
    )


@functools.partial(jax.jit, static_argnums=(0, 3, 4, 5))
def _run(
    memory: AbstractMemory,
    state: Any,
    given: dict[str, Any],
    using: Any,
    purpose: str,
    rules: tuple[Rule, ...],
) -> tuple[Any, Array]:
    """Compiled as one, so that outside of any `jit` too it is one program, and not a thousand."""
    queries, mask = given["queries"], given["mask"]
    size = given["values"].shape[1]
    dims = Dims(key=given["keys"].shape[1], value=size, time=max(len(queries), 1))
    kept = {path: representation_of(leaf) for path, leaf in leaf_states(memory, state)}
    wanted = dict(using) if isinstance(using, tuple) else using
    chosen = plan(memory, dims, using=wanted, purpose=purpose, representation=kept, rules=rules)
    stream = make_stream(chosen.memory, state, **given)
    after, out = run_tree(chosen.memory, chosen, state, stream)
    out = with_room(memory, state, after, out)
    return after, out if mask is None else jnp.where(mask[:, None], out, 0)


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
    pairs = max((pairs_per_token(leaf.write) for _, leaf in leaves(memory)), default=1)
    seen = jnp.ones(len(queries), jnp.int32) if mask is None else mask.astype(jnp.int32)
    steps = count + jnp.cumsum(seen) - seen
    constants, tokens = bind(
        memory, signals, time=len(queries), pairs=pairs, steps=steps, dtype=dtype
    )

    def clean(array: Any) -> Any:
        """Zeros in all that padding brings, so that not even a gradient of it is NaN."""
        if array is None or mask is None:
            return array
        if isinstance(array, Log):
            return Log(clean(array.log))
        rows = jnp.repeat(mask, len(array) // max(len(mask), 1))
        return jnp.where(rows.reshape(-1, *[1] * (array.ndim - 1)), array, 0)

    def cast(array: Array | None) -> Any:
        return None if array is None else clean(array.astype(dtype))

    if any(path.endswith("initial") for path in constants):
        # a memory that was never written starts from what is learned, as at a document's start
        first = (steps == 0) & jnp.all(jnp.stack([leaf.count == 0 for _, leaf in found]))
        starts = first if starts is None else starts | first
    begins = starts if starts is None or mask is None else starts & mask
    tokens = {path: clean(value) for path, value in tokens.items()}
    return Stream(
        keys=cast(keys),
        values=cast(values),
        queries=cast(queries),
        erase_keys=cast(erase_keys),
        remove_keys=cast(remove_keys),
        starts=begins,
        active=mask,
        constants=constants,
        tokens=tokens,
        there=mask,
    )


def _check_streams(
    memory: AbstractMemory,
    keys: Array,
    queries: Array | None,
    starts: Array | None,
    erase_keys: Array | None,
    remove_keys: Array | None,
) -> None:
    given = {"erase_keys": erase_keys, "remove_keys": remove_keys}
    needed = needed_keys(memory)
    for _, leaf in leaves(memory):
        for name in own_keys(leaf):
            if given[name] is None and name in needed:
                raise SpecError(
                    f"The memory takes {name}, and got none.",
                    where=leaf if moves_keys(leaf) else one_pair(leaf.write),
                    at="gate" if moves_keys(leaf) else name.split("_")[0],
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
    over_time = {slot.name for slot in slots(memory) if slot.time}
    rows: dict[str, Any] = {
        name: jnp.asarray(value)[None] if name in over_time else value
        for name, value in signals.items()
    }
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
    if not isinstance(memory, Memory | Network):
        raise SpecError(
            f"evaluate reads one Memory or Network, not {type(memory).__name__}.",
            where=memory,
            instead="md.evaluate on its parts and their states.",
        )
    return _evaluate(memory, state, queries, signals)


@functools.partial(jax.jit, static_argnums=0)
def _evaluate(memory: AbstractMemory, state: Any, queries: Array, signals: dict[str, Any]) -> Array:
    dims = Dims(key=queries.shape[1])
    kept = representation_of(state)
    chosen = plan(memory, dims, representation={"": kept}, purpose="serve")
    dtype = state_dtype(state)
    steps = jnp.zeros((1,), jnp.int32)
    constants, _ = bind(
        _without_time(chosen.memory), signals, time=1, pairs=1, steps=steps, dtype=dtype
    )
    grounded, key_map = prepare(ground(chosen.memory, constants), kept)
    return jax.vmap(lambda q: read(grounded, state, q))(key_map(queries.astype(dtype)))


def _without_time(memory: Any) -> Any:
    """The memory with plain numbers where a signal would change from token to token."""
    return ground(memory, {slot.path: 1.0 for slot in slots(memory) if slot.time})
