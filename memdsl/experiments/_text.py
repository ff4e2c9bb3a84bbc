"""Text that every Python brings along, and how well counting characters predicts it."""

import dataclasses
import math
from collections import Counter, defaultdict
from pydoc_data.topics import topics

import numpy as np
from jaxtyping import Int


@dataclasses.dataclass(frozen=True)
class Text:
    """Characters as numbers: nine tenths to train on, the last tenth to test.

    `alphabet[i]` is the character with the number i; it is that of the whole text.
    """

    alphabet: str
    train: Int[np.ndarray, " train"]
    test: Int[np.ndarray, " test"]

    def encode(self, text: str) -> Int[np.ndarray, " time"]:
        """The numbers of characters; those that the alphabet lacks are left out."""
        places = {character: i for i, character in enumerate(self.alphabet)}
        return np.array([places[c] for c in text if c in places], np.int32)

    def decode(self, tokens: Int[np.ndarray, " time"]) -> str:
        """The characters of numbers."""
        return "".join(self.alphabet[i] for i in tokens)


def python_documentation() -> Text:
    """The topics of Python's own `help()`, about 470 000 characters of prose and code.

    They are sorted by name and joined by an empty line. The text is part of the standard library and
    differs a little from one version of Python to the next.

    ??? example

        ```python
        >>> from memdsl.experiments import python_documentation
        >>> text = python_documentation()
        >>> text.decode(text.encode("def f(x):"))
        'def f(x):'

        ```
    """
    whole = "\n\n".join(topics[name] for name in sorted(topics))
    alphabet = "".join(sorted(set(whole)))
    text = Text(alphabet, np.zeros(0, np.int32), np.zeros(0, np.int32))
    tokens = text.encode(whole)
    cut = len(tokens) * 9 // 10
    return Text(alphabet, tokens[:cut], tokens[cut:])


def ngram_bits(text: Text, order: int) -> float:
    r"""Bits a character of the test text, by an interpolated n-gram of the training text.

    $$p(c \mid h) = \frac{N(hc) + T(h)\, p(c \mid h')}{N(h) + T(h)}$$

    with $N$ the counts, $T(h)$ how many different characters follow h, $h'$ the context without its
    first character, and $1 / |\text{alphabet}|$ in the end.

    **Arguments:**

    - `text`: what is trained on and tested.
    - `order`: n; the context has n - 1 characters.

    **Source:** Witten and Bell 1991, method C, interpolated.
    """
    counts: list[dict[bytes, Counter[int]]] = [defaultdict(Counter) for _ in range(order)]
    train, test = (part.astype(np.uint8).tobytes() for part in (text.train, text.test))
    for i, character in enumerate(train):
        for length in range(min(order - 1, i) + 1):
            counts[length][train[i - length : i]][character] += 1
    bits = 0.0
    history = train[len(train) - order + 1 :] if order > 1 else b""
    for character in test:
        p = 1 / len(text.alphabet)
        for length in range(order):
            seen = counts[length].get(history[len(history) - length :])
            if seen is not None:
                kinds = len(seen)
                p = (seen[character] + kinds * p) / (seen.total() + kinds)
        bits -= math.log2(p)
        history = (history + bytes([character]))[-(order - 1) :] if order > 1 else b""
    return bits / len(test)
