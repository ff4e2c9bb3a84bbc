"""Memories made of memories, token by token."""

from typing import Any

import jax
import jax.numpy as jnp

from ..spec._memory import (
    AbstractMemory,
    Added,
    Averaged,
    Boosted,
    Chained,
    Every,
    Level,
    Mapped,
    Memory,
    Network,
    Rewired,
    Scaled,
    Transposed,
    Zero,
)
from ..spec._streams import (
    AbstractStream,
    Answer,
    Key,
    MappedStream,
    Own,
    Query,
    StreamProduct,
    StreamSum,
    Value,
)
from ._function import undefined
from ._leaf import leaf
from ._signals import grounded, inside, Numbers
from ._stream import Answers, every, levels, Stream


def answers_of(memory: AbstractMemory, numbers: Numbers, stream: Stream) -> Answers:
    tokens = range(len(stream.mask))

    def of(name: str, stream: Stream) -> Answers:
        return answers_of(getattr(memory, name), inside(numbers, name), stream)

    if isinstance(memory, Memory | Network):
        return leaf(memory, numbers, stream, is_backwards=False)
    if isinstance(memory, Transposed) and isinstance(memory.memory, Memory):
        swapped = stream.put(keys=stream.values, values=stream.keys)
        return leaf(memory.memory, inside(numbers, "memory"), swapped, is_backwards=True)
    if isinstance(memory, Zero):
        same = (stream.queries, stream.asks)
        return stream.each(lambda t, _: jnp.zeros_like(stream.values[t][0]), same)
    if isinstance(memory, Added):
        return stream.each(lambda t, a, b: a + b, of("first", stream), of("second", stream))
    if isinstance(memory, Scaled):
        factors = {t: grounded(memory, numbers, t).factor for t in stream.there()}
        return stream.each(lambda t, answer: factors[t] * answer, of("memory", stream))
    if isinstance(memory, Mapped):
        features = {t: grounded(memory, numbers, t).feature for t in stream.there()}
        return stream.each(lambda t, answer: features[t](answer), of("memory", stream))
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
        return stream.each(lambda t, a, b: a + b, (answers, asked), second)
    if isinstance(memory, Every):
        return of("memory", stream.put(writes=every(memory.count, stream)))
    if isinstance(memory, Level):
        answers, asked = [None for _ in tokens], [[] for _ in tokens]
        for t in stream.there():
            closed = [level != memory.number for level in levels(stream, t)]
            of_level = of("memory", stream.put(closed=closed))
            answers[t], asked[t] = of_level[0][t], of_level[1][t]
        return answers, asked
    if isinstance(memory, Averaged):
        return _averaged(memory, numbers, stream)
    if isinstance(memory, Rewired):
        return of("memory", _rewired(memory, numbers, stream))
    raise undefined(memory)


def _averaged(memory: Averaged, numbers: Numbers, stream: Stream) -> Answers:
    """For the reader of every token: the memory of pairs whose logits were made shares."""
    is_of_keys = memory.over == "key"
    answers: list[Any] = [None for _ in stream.mask]
    asked: list[list[Any]] = [[] for _ in stream.mask]
    rows = stream.keys if is_of_keys else stream.values
    is_early = stream.forecasts or (
        isinstance(memory.memory, Memory) and memory.memory.read.is_before()
    )

    def of(reader: int, includes: bool) -> Answers:
        known = [t for t in stream.there() if t < reader or (t == reader and includes)]
        begin = max([t for t in stream.there() if t <= reader and stream.starts[t]], default=0)
        known = [t for t in known if t >= begin and stream.writes[t] and not stream.closed[t]]
        shares = list(rows)
        if known:
            logits = jnp.stack([rows[t][0] for t in known])
            weights = jax.nn.softmax(logits, axis=0)
            for t, weight in zip(known, weights, strict=True):
                shares[t] = [weight]
        changed = {"keys" if is_of_keys else "values": shares}
        return answers_of(memory.memory, inside(numbers, "memory"), stream.put(**changed))

    for t in stream.there():
        if stream.asks[t] or is_early:
            before = of(t, False)
            answers[t], asked[t] = before[0][t], before[1][t]
        if not is_early:
            answers[t] = of(t, True)[0][t]
    return answers, asked


def _rewired(memory: Rewired, numbers: Numbers, stream: Stream) -> Stream:
    """The stream that the memory within sees."""
    if memory.own is not None:
        own = {t: jnp.atleast_1d(grounded(memory, numbers, t).own) for t in stream.there()}
        stream = stream.put(own=[own.get(t) for t in range(len(stream.mask))])
    written = stream.put(forecasts=False, asks=[[]] * len(stream.mask))
    changes: dict[str, Any] = {}
    for name, spec in memory.streams().items():
        if name == "query":
            changes["queries"], changes["asks"] = _stream(spec, inside(numbers, name), stream)
            continue
        rows, _ = _stream(spec, inside(numbers, name), written)
        plural = {"key": "keys", "value": "values"}.get(name, f"{name}_keys")
        changes[plural] = [[row] for row in rows]
    return stream.put(**changes)


def _stream(spec: AbstractStream, numbers: Numbers, stream: Stream) -> Answers:
    """A stream at every token, and what it is where the memory is asked before the token is written."""

    def token(rows: list[Any]) -> Answers:
        return stream.each(lambda t, _: rows[t], (stream.queries, stream.asks))

    def of(name: str) -> Answers:
        return _stream(getattr(spec, name), inside(numbers, name), stream)

    match spec:
        case Key():
            return token([row[0] for row in stream.keys])
        case Value():
            return token([row[0] for row in stream.values])
        case Query():
            return stream.queries, stream.asks
        case Own():
            return token(stream.own)
        case Answer():
            return answers_of(spec.memory, inside(numbers, "memory"), stream)
        case MappedStream():
            features = {t: grounded(spec, numbers, t).feature for t in stream.there()}
            return stream.each(lambda t, row: features[t](row), of("stream"))
        case StreamProduct():
            return stream.each(lambda t, a, b: a * b, of("left"), of("right"))
        case StreamSum():
            return stream.each(lambda t, a, b: a + b, of("left"), of("right"))
        case _:
            raise undefined(spec)
