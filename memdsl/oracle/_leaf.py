"""One memory, token by token."""

from typing import Any

from ..spec._memory import Leaf
from ..spec._slots import peel
from ._capacity import used
from ._function import faded, Function
from ._parameters import is_point
from ._signals import grounded, Numbers
from ._stream import Answers, Stream
from ._token import all_written, asked_at, begun, Pair


def leaf(memory: Leaf, numbers: Numbers, stream: Stream, *, is_backwards: bool) -> Answers:
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
