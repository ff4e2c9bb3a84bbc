"""The streams of `of(...)`: what a memory sees of a token."""

from collections.abc import Callable
from typing import Any

import jax
from jaxtyping import Array

from ..spec._slots import ground
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


def evaluate_stream(
    spec: AbstractStream, path: str, tokens: Any, answer: Callable[[str], Array]
) -> Array:
    """The rows of a stream at a path, one a token.

    `tokens` has `keys`, `values`, `queries` and `own` as they come, and `constants` by path;
    `answer(path)` is what the memory at a path answers.
    """

    def of(name: str) -> Array:
        return evaluate_stream(getattr(spec, name), f"{path}.{name}", tokens, answer)

    match spec:
        case Key():
            return tokens.keys
        case Value():
            return tokens.values
        case Query():
            return tokens.queries
        case Own():
            return tokens.own
        case Answer():
            return answer(f"{path}.memory")
        case MappedStream():
            cut = f"{path}.feature."
            numbers = {
                p.removeprefix(cut): v for p, v in tokens.constants.items() if p.startswith(cut)
            }
            return jax.vmap(ground(spec.feature, numbers))(of("stream"))
        case StreamProduct():
            return of("left") * of("right")
        case StreamSum():
            return of("left") + of("right")
        case _:
            raise TypeError(f"no execution for {type(spec).__name__}")
