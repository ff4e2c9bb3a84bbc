"""Tokens on their way through the oracle, and what they are answered."""

import dataclasses
from typing import Any


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
    own: list[Any] = dataclasses.field(default_factory=list)

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

    def each(self, change: Any, *many: "Answers") -> "Answers":
        """`change(token, answer, …)` of every answer there is."""
        answers: list[Any] = [None for _ in self.mask]
        asked: list[list[Any]] = [[] for _ in self.mask]
        for t in self.there():
            answers[t] = change(t, *(a[0][t] for a in many))
            asked[t] = [change(t, *some) for some in zip(*(a[1][t] for a in many), strict=True)]
        return answers, asked


Answers = tuple[list[Any], list[list[Any]]]
"""The answer of every token to its query, and its answers to `asks`; `None`, `[]` where masked."""


def every(count: int, stream: Stream) -> list[bool]:
    """Which tokens are written: the last of every `count`, counted from the last start."""
    writes, seen = [False for _ in stream.mask], 0
    for t in stream.there():
        seen = 0 if stream.starts[t] else seen
        if stream.writes[t]:
            seen += 1
            writes[t] = seen % count == 0
    return writes


def levels(stream: Stream, reader: int) -> list[int | None]:
    """The age level of every token for the reader, and `None` of those that it has none of."""
    places: dict[int, int] = {}
    for t in stream.there():
        places = {} if stream.starts[t] else places
        if stream.writes[t]:
            places[t] = len(places)
        if t == reader:
            here = places.get(t, len(places) - 1)
            ages = {s: (here ^ place).bit_length() for s, place in places.items()}
            return [ages.get(s) for s in range(len(stream.mask))]
    raise ValueError(f"there is no token {reader}")
