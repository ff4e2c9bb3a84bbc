"""Three tasks of the MAD collection: recall in context, with noise, and of a fixed map.

Labels are -1 where nothing is asked. Training sequences are a fixed pool, gone through again and again.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ._data import RecallBatch


IGNORED = -1
_TRAIN, _TEST, _MAP = 3, 4, 5  # streams of randomness, apart from those of the recall tasks


@dataclass(frozen=True)
class ContextTask:
    """Recall in context: key value key value …, where a key keeps its value for the sequence.

    Identities below V / 2 are keys, those from there to V - 1 values. A key is drawn for every pair;
    the first time it gets a value. With `noise`, a pair is replaced by two identities from V on, with
    that probability; one pair of them all is kept. The last pair is of a key that was shown before.
    Training asks for every next token, the test for the values of keys that were shown before.

    **Arguments:**

    - `vocabulary`: V, without the identities of noise; even.
    - `time`: tokens in a sequence, even.
    - `noise`: the share of pairs that are noise.
    - `noises`: how many identities noise has.
    - `pool`: the number of training sequences.
    """

    vocabulary: int = 16
    time: int = 64
    noise: float = 0.0
    noises: int = 0
    pool: int = 6400

    @property
    def identities(self) -> int:
        """The number of token identities."""
        return self.vocabulary + self.noises

    def make(self, rng: np.random.Generator, count: int, *, is_test: bool) -> RecallBatch:
        """Draws sequences; labels are those of the training, or those of the test."""
        pairs, half = self.time // 2, self.vocabulary // 2
        tokens = np.zeros((count, self.time), np.int32)
        labels = np.full((count, self.time), IGNORED, np.int32)
        for row in range(count):
            value_of: dict[int, int] = {}
            kept = rng.integers(pairs - 1)
            for place in range(pairs):
                is_probe = place == pairs - 1
                if self.noise and place != kept and not is_probe and rng.random() < self.noise:
                    drawn = self.vocabulary + rng.integers(0, self.noises, 2)
                    tokens[row, 2 * place : 2 * place + 2] = drawn
                    continue
                key = int(rng.choice(list(value_of)) if is_probe else rng.integers(half))
                if key in value_of:
                    labels[row, 2 * place] = value_of[key]
                value = value_of.setdefault(key, half + int(rng.integers(half)))
                tokens[row, 2 * place : 2 * place + 2] = key, value
        if not is_test:
            labels[:, :-1] = tokens[:, 1:]
        places = np.broadcast_to(np.arange(self.time, dtype=np.int32), tokens.shape)
        return RecallBatch(tokens, places, labels)

    @cached_property
    def _pool(self) -> RecallBatch:
        return self.make(np.random.default_rng([_TRAIN, 0]), self.pool, is_test=False)

    def training(self, seed: int) -> np.random.Generator:
        """A generator for the order of the training sequences."""
        return np.random.default_rng([_TRAIN, 1, seed])

    def sample(self, rng: np.random.Generator, count: int) -> RecallBatch:
        """Draws training sequences from the pool."""
        rows = rng.integers(0, self.pool, count)
        return RecallBatch(*(part[rows] for part in self._pool))

    def test(self, count: int = 512) -> RecallBatch:
        """The fixed test sequences."""
        return self.make(np.random.default_rng([_TEST, 0]), count, is_test=True)


@dataclass(frozen=True)
class MemoriseTask:
    """Memorisation: key ? key ? …, and at every ? the value that the key has in a fixed map.

    Identity V - 1 is the question, those below (V - 1) / 2 are keys, the rest values. The map is the
    same in training and test, so it has to go into the weights.

    **Arguments:**

    - `vocabulary`: V.
    - `time`: tokens in a sequence, even.
    - `pool`: the number of training sequences.
    """

    vocabulary: int = 2048
    time: int = 32
    pool: int = 256

    @property
    def identities(self) -> int:
        """The number of token identities."""
        return self.vocabulary

    def make(self, rng: np.random.Generator, count: int) -> RecallBatch:
        """Draws sequences of distinct positions and keys that may repeat."""
        half, question = (self.vocabulary - 1) // 2, self.vocabulary - 1
        values = np.random.default_rng([_MAP]).integers(half, question, half).astype(np.int32)
        keys = rng.integers(0, half, (count, self.time // 2)).astype(np.int32)
        tokens = np.full((count, self.time), question, np.int32)
        tokens[:, ::2] = keys
        places = np.arange(1, self.time, 2, dtype=np.int32)
        return RecallBatch(tokens, np.broadcast_to(places, keys.shape), values[keys])

    @cached_property
    def _pool(self) -> RecallBatch:
        return self.make(np.random.default_rng([_TRAIN, 2]), self.pool)

    def training(self, seed: int) -> np.random.Generator:
        """A generator for the order of the training sequences."""
        return np.random.default_rng([_TRAIN, 3, seed])

    def sample(self, rng: np.random.Generator, count: int) -> RecallBatch:
        """Draws training sequences from the pool."""
        rows = rng.integers(0, self.pool, count)
        return RecallBatch(*(part[rows] for part in self._pool))

    def test(self, count: int = 512) -> RecallBatch:
        """The fixed test sequences."""
        return self.make(np.random.default_rng([_TEST, 2]), count)
