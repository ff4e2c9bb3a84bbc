"""`denote`: what a memory means."""

import dataclasses
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .._errors import SpecError
from .._types import checked
from ..spec._memory import (
    AbstractMemory,
    Added,
    Boosted,
    Chained,
    Every,
    Leaf,
    Level,
    Mapped,
    Memory,
    Network,
    Scaled,
    Transposed,
    Zero,
)
from ..spec._slots import peel, resolve
from ._capacity import used
from ._function import faded, Function, undefined
from ._parameters import is_point
from ._signals import check_streams, defined, given, grounded, inside, Numbers
from ._token import all_written, asked_at, begun, Pair


@checked
def denote(
    memory: AbstractMemory,
    keys: Float[Array, "pairs key"],
    values: Float[Array, "pairs value"],
    queries: Float[Array, "time key"] | None = None,
    *,
    mask: Bool[Array, " time"] | None = None,
    starts: Bool[Array, " time"] | None = None,
    erase_keys: Float[Array, "pairs erase"] | None = None,
    remove_keys: Float[Array, "pairs remove"] | None = None,
    **signals: Any,
) -> Float[Array, "time answer"]:
    """What a memory answers to every token, by its definition: atom by atom, in plain Python.

    The state is a function $f = (N, D) = \\sum_i w_i \\, \\kappa(k_i, \\cdot) (c_i, m_i)$, kept as the
    list of its atoms. A token does, in this order,

    $$f \\leftarrow f_0 \\text{ at a start}; \\quad f \\leftarrow \\alpha f; \\quad
    (c, m) = \\mathrm{write}(v, f(k)); \\quad f \\leftarrow f + \\kappa(k, \\cdot)(c, m); \\quad
    y = \\mathrm{read}(f, q)$$

    It is slow (every token visits every atom) and it is what every execution is compared with, so it
    shares no code with any. Gradients flow through it outside `jax.jit`. It decides these points:

    - *Recall* is unscaled, over all atoms, and a prior counts as mass: N / (D + prior).
    - *Before*, and a forecast, see the function after the start of a document and before this
      token's decay. A forecast has no bonus, and a token that is not written lets nothing through. Of
      several pairs it is the first that is let through; beside `TopK` it takes nobody's place.
    - A weight of exactly 0 (a decay of 0) ends an atom; a decay multiplies both value and mass.
    - *Admission* compares with the atoms before the pair (of several a token: one after the other);
      the surprise is |v - f(k)| of the f that the write recalls from. Keys are compared after the
      feature of `.pullback`.
    - *Eviction* happens before a new atom enters, from a function that has already faded and been
      recalled; `LeaveOneOut` lets the new atom in first. For `Ridge` the coefficient of an atom is
      what the solved problem gives it, and `LeaveOneOut` takes the inverse of that problem.
    - `Random` draws, at the t-th pair written since the last start (t from 0), one
      `jax.random.uniform(fold_in(key(seed), t), (size,), float32)` for the slots, the lowest goes;
      with `reservoir` the new atom enters where `uniform(fold_in(fold_in(key(seed), t), 1), (),
      float32) (t + 1) < size`, and is merged where it does not.
    - `LeastUsed` is told of every query once the token is written, even if it was answered before:
      the share of each stored atom in sum |w kernel|, whether or not `TopK` lets it answer.
    - Momentum is a second coefficient of every atom: it leaves and merges with its atom. What is
      added to an atom later (a merge, momentum, a window) takes its weight into its coefficient
      first: its weight is 1 again, for `TopK`, `LeastUsed` and `Delta(on="atoms")`.
    - `Delta(remove="own")` writes two atoms, (k, 1 mass) and then (remove key, 0 mass); its step is
      that of k.
    - `Reweight(negative="damped")` is `exact` here: damping is one factor for a batch of pairs, and a
      token writes one pair.
    - `Every(n, memory)` counts tokens that are not masked, from the last start on, and so does `Level`:
      the pairs of other levels are not written, and the memory fades all the same. A token that is not
      written reads at the place of the latest one that was.
    - Where atoms do not say it, the state is a point in a space of numbers: the matrix under a
      retention or of an orthogonalised step, the parameters of a `Network`; and, of a minibatch or a
      gain on a kernel without finite features, a coefficient for every pair.
    - A retention that is a mirror (`LqNorm`, `Simplex`) is between the stored matrix, on which decays
      and steps act, and the one that answers and errs. `SoftThreshold` acts once a token is written,
      after its last pair; what a minibatch has moved stays, and the rest of the matrix gives way.
    - A minibatch counts the tokens that are written, from the last start on. Its errors are of the
      function after the last token of the one before; with `recall="decayed"`, faded since.
    - A masked token is the identity on the state, a start included, and its answer is 0.

    **Arguments:**

    - `memory`: what to denote.
    - `keys`, `values`: `[time, key]`, `[time, value]`; `[time * n, …]` where a token writes n pairs.
    - `queries`: `[time, key]`; `None` forecasts: the key is asked before its token is written.
    - `mask`: False at tokens that are not there.
    - `starts`: True at the first token of every document.
    - `erase_keys`, `remove_keys`: for writes with keys of their own; shaped as the keys.
    - `signals`: the numbers of the memory by name, `log_decay=`, `rate=`, `initial=` `[features,
      value]`, …; those of every token have a row a token (in a write: a pair).

    **Returns:** the answers, `[time, answer]`, in the dtype of the inputs.

    **Raises:** `SpecError` for signals that are missing or unknown.

    ??? example

        ```python
        >>> import jax.numpy as jnp
        >>> import memdsl as md
        >>> kernel_lms = md.Memory(md.RBF(scale=1.0), md.Delta(rate=0.5))
        >>> keys, values = jnp.array([[0.0], [1.0], [0.0]]), jnp.array([[1.0], [0.0], [1.0]])
        >>> md.denote(kernel_lms, keys, values)[:, 0]
        Array([0.        , 0.30326533, 0.40803015], dtype=float32)

        ```
    """
    pairs = defined(memory)
    streams = {"starts": starts, "erase_keys": erase_keys, "remove_keys": remove_keys}
    check_streams(memory, streams)
    if queries is None and pairs > 1:
        raise SpecError(
            f"A token of {pairs} pairs has no single key to forecast at.", instead="queries=…."
        )
    time, key_size, value_size = len(keys) // pairs, keys.shape[1], values.shape[1]
    if time * pairs != len(keys) or (queries is not None and len(queries) != time):
        raise SpecError(
            f"{len(keys)} keys are not {pairs} a token.",
            instead=f"{pairs} keys and values a token, and one query.",
        )
    resolved = resolve(memory, {"key": key_size, "value": value_size})
    there = [True] * time if mask is None else [bool(flag) for flag in mask]
    numbers = given(resolved, signals, keys.dtype, there, pairs)

    def grouped(rows: Any) -> list[list[Any]]:
        if rows is None:
            return [[None] * pairs] * time
        return [[rows[t * pairs + j] for j in range(pairs)] for t in range(time)]

    stream = Stream(
        keys=grouped(keys),
        values=grouped(values),
        queries=list(keys if queries is None else queries),
        asks=[[]] * time,
        mask=there,
        starts=[False] * time if starts is None else [bool(flag) for flag in starts],
        writes=[True] * time,
        closed=[False] * time,
        erase_keys=grouped(erase_keys),
        remove_keys=grouped(remove_keys),
        forecasts=queries is None,
    )
    answers, _ = _answers(resolved, numbers, stream)
    size = _answer_size(resolved, key_size, value_size)
    blank = jnp.zeros((size,), values.dtype)
    rows = [blank if answer is None else answer for answer in answers]
    return jnp.stack(rows) if rows else jnp.zeros((0, size), values.dtype)


@dataclasses.dataclass(frozen=True)
class Stream:
    """Tokens. `keys`, `values`, `erase_keys` and `remove_keys` hold the pairs of every token.

    `asks` are keys at which the memory is asked before the token is written, beside its query.
    `forecasts`: the query itself is answered before the token is written. `writes` is False where a
    token only reads, `closed` True where the memory fades and no pair is written.
    """

    keys: list[list[Any]]
    values: list[list[Any]]
    queries: list[Any]
    asks: list[list[Any]]
    mask: list[bool]
    starts: list[bool]
    writes: list[bool]
    closed: list[bool]
    erase_keys: list[list[Any]]
    remove_keys: list[list[Any]]
    forecasts: bool

    def put(self, **changes: Any) -> "Stream":
        """The stream with some of it changed."""
        return dataclasses.replace(self, **changes)

    def there(self) -> list[int]:
        """The tokens that are not masked."""
        return [t for t, is_there in enumerate(self.mask) if is_there]

    def pairs(self, token: int) -> list[tuple[Any, Any, Any, Any]]:
        """The pairs of a token: key, value, erase key and remove key."""
        rows = (self.keys, self.values, self.erase_keys, self.remove_keys)
        return list(zip(*(row[token] for row in rows), strict=True))


Answers = tuple[list[Any], list[list[Any]]]
"""The answer of every token to its query, and its answers to `asks`; `None`, `[]` where masked."""


def _answers(memory: AbstractMemory, numbers: Numbers, stream: Stream) -> Answers:
    tokens = range(len(stream.mask))

    def of(name: str, stream: Stream) -> Answers:
        return _answers(getattr(memory, name), inside(numbers, name), stream)

    def each(change: Any, *many: Answers) -> Answers:
        """`change(token, answer, …)` of every answer there is."""
        answers: list[Any] = [None for _ in tokens]
        asked: list[list[Any]] = [[] for _ in tokens]
        for t in stream.there():
            answers[t] = change(t, *(a[0][t] for a in many))
            asked[t] = [change(t, *some) for some in zip(*(a[1][t] for a in many), strict=True)]
        return answers, asked

    if isinstance(memory, Memory | Network):
        return _leaf(memory, numbers, stream, is_backwards=False)
    if isinstance(memory, Transposed) and isinstance(memory.memory, Memory):
        swapped = stream.put(keys=stream.values, values=stream.keys)
        return _leaf(memory.memory, inside(numbers, "memory"), swapped, is_backwards=True)
    if isinstance(memory, Zero):
        same = (stream.queries, stream.asks)
        return each(lambda t, _: jnp.zeros_like(stream.values[t][0]), same)
    if isinstance(memory, Added):
        return each(lambda t, a, b: a + b, of("first", stream), of("second", stream))
    if isinstance(memory, Scaled):
        factors = {t: grounded(memory, numbers, t).factor for t in stream.there()}
        return each(lambda t, answer: factors[t] * answer, of("memory", stream))
    if isinstance(memory, Mapped):
        features = {t: grounded(memory, numbers, t).feature for t in stream.there()}
        return each(lambda t, answer: features[t](answer), of("memory", stream))
    if isinstance(memory, Chained):
        answers, asked = of("first", stream)
        return of("second", stream.put(queries=answers, asks=asked))
    if isinstance(memory, Boosted):
        more = [a + k for a, k in zip(stream.asks, stream.keys, strict=True)]
        answers, recalled = of("first", stream.put(asks=more))
        errors, asked = list(stream.values), [[] for _ in tokens]
        for t in stream.there():
            cut = len(stream.asks[t])
            asked[t], at_keys = recalled[t][:cut], recalled[t][cut:]
            errors[t] = [v - a for v, a in zip(stream.values[t], at_keys, strict=True)]
        second = of("second", stream.put(values=errors))
        return each(lambda t, a, b: a + b, (answers, asked), second)
    if isinstance(memory, Every):
        return of("memory", stream.put(writes=_every(memory.count, stream)))
    if isinstance(memory, Level):
        answers, asked = [None for _ in tokens], [[] for _ in tokens]
        for t in stream.there():
            closed = [level != memory.number for level in _levels(stream, t)]
            of_level = of("memory", stream.put(closed=closed))
            answers[t], asked[t] = of_level[0][t], of_level[1][t]
        return answers, asked
    raise undefined(memory)


def _every(count: int, stream: Stream) -> list[bool]:
    """Which tokens are written: the last of every `count`, counted from the last start."""
    writes, seen = [False for _ in stream.mask], 0
    for t in stream.there():
        seen = 0 if stream.starts[t] else seen
        if stream.writes[t]:
            seen += 1
            writes[t] = seen % count == 0
    return writes


def _levels(stream: Stream, reader: int) -> list[int | None]:
    """The age level of every token for the reader, and `None` of those that it has none of."""
    places: dict[int, int] = {}
    for t in stream.there():
        places = {} if stream.starts[t] else places
        if stream.writes[t]:
            places[t] = len(places)
        if t == reader:
            here = places.get(t, len(places) - 1)
            levels = {s: (here ^ place).bit_length() for s, place in places.items()}
            return [levels.get(s) for s in range(len(stream.mask))]
    raise ValueError(f"there is no token {reader}")


def _leaf(memory: Leaf, numbers: Numbers, stream: Stream, *, is_backwards: bool) -> Answers:
    """One memory, token by token."""
    answers: list[Any] = [None for _ in stream.mask]
    asked: list[list[Any]] = [[] for _ in stream.mask]
    function: Any = None
    for t in stream.there():
        here, feature = peel(grounded(memory, numbers, t))

        def mapped(query: Any, feature: Any = feature) -> Any:
            return query if is_backwards or query is None else feature(query)

        def paired(token: int, feature: Any = feature) -> list[Pair]:
            return [
                Pair(feature(k), v, *(None if x is None else feature(x) for x in (e, r)))
                for k, v, e, r in stream.pairs(token)
            ]

        pairs = paired(t)
        if function is None or stream.starts[t]:
            rest = [t, *(u for u in stream.there() if u > t and stream.writes[u])]
            keys = [paired(u)[0].key for u in rest if stream.writes[u]] if is_point(here) else []
            function = begun(here, pairs[0], keys)
        query, is_early = mapped(stream.queries[t]), stream.forecasts or here.read.is_before()
        size = len(pairs[0].value)

        def ask(query: Any, function: Any, own: Any = None, here: Any = here, n: int = size) -> Any:
            return asked_at(here, function, query, n, is_backwards=is_backwards, own=own)

        asked[t] = [ask(mapped(key), function) for key in stream.asks[t]]
        if is_early:
            enters = stream.writes[t] and not stream.closed[t] and not stream.forecasts
            answers[t] = ask(query, function, pairs[0] if enters else None)
        if stream.closed[t] and stream.writes[t]:
            function = faded(here, function, pairs[0].erase_key)
        elif stream.writes[t]:
            own = [peel(grounded(memory, numbers, t, j))[0] for j in range(len(pairs))]
            function = all_written(own, pairs, function)
        if not is_early:
            answers[t] = ask(query, function)
        if isinstance(function, Function):
            function = used(here, function, query)
    return answers, asked


def _answer_size(memory: AbstractMemory, key_size: int, value_size: int) -> int:
    """How many numbers an answer has."""
    if isinstance(memory, Transposed):
        return peel(memory.memory)[1].size(value_size)
    if isinstance(memory, Mapped):
        return memory.feature.size(_answer_size(memory.memory, key_size, value_size))
    if isinstance(memory, Scaled | Every | Level):
        return _answer_size(memory.memory, key_size, value_size)
    if isinstance(memory, Added | Boosted):
        return _answer_size(memory.first, key_size, value_size)
    if isinstance(memory, Chained):
        middle = _answer_size(memory.first, key_size, value_size)
        return _answer_size(memory.second, middle, value_size)
    return value_size
