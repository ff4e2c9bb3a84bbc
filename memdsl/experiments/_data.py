"""Two tasks of associative recall."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Int


RecallName = Literal["mqar", "rewrites"]

_TRAINING_STREAM = 1
_TEST_STREAM = 2


class RecallBatch(NamedTuple):
    """Token sequences, the positions at which something is asked, and the answers."""

    tokens: Int[np.ndarray, "count time"]
    positions: Int[np.ndarray, "count query"]
    labels: Int[np.ndarray, "count query"]


@dataclass(frozen=True)
class RecallTask:
    r"""Multi-query associative recall: pairs are shown, then keys are asked for.

    Identity 0 is filler, 1 to V/2 - 1 are keys, V/2 to V - 1 are values. One sequence is made so:

    1. `keys` distinct keys are drawn, and `keys * writes` distinct values.
    2. Every key is paired with `writes` of the values; the pairs are shown in a random order, as
       `key value key value ...`: the first `2 * keys * writes` tokens, the context.
    3. The rest of the sequence has slots two tokens apart, the first right after the context. Every
       key is put into a slot of its own, slot i = 1, 2, ... being drawn, without replacement, with
       probability proportional to $i^{a-1}$, a = `power`. Everything else is filler.
    4. At each of these later keys, the answer is the value the key was paired with **last**.

    With `writes=1` this is the MQAR task; with more, every earlier value of a key is a wrong
    answer, which tells memories that overwrite from memories that add up.

    **Arguments:**

    - `keys`: how many distinct keys a sequence has; each is asked for exactly once.
    - `writes`: how often each key is written, always with a value not seen before.
    - `vocabulary`: V, the number of token identities, even.
    - `time`: tokens in a sequence.
    - `power`: the exponent a of the law of the slots; small means that most keys are asked soon.

    **Raises:**

    `ValueError` if the sequence is too short for its pairs and questions, or the vocabulary too
    small for distinct keys and values.

    ??? example

        ```python
        >>> import numpy as np
        >>> from memdsl.experiments import RecallTask
        >>> task = RecallTask(keys=2, writes=2, vocabulary=16, time=14)
        >>> batch = task.sample(np.random.default_rng(0), 1)
        >>> batch.tokens[0].tolist()
        [4, 12, 3, 14, 4, 9, 3, 8, 0, 0, 4, 0, 3, 0]
        >>> batch.positions[0].tolist(), batch.labels[0].tolist()
        ([10, 12], [9, 8])

        ```

    Arora et al., "Zoology: Measuring and Improving Recall in Efficient Language Models" (2023),
    there with `writes=1`; the second writes are the idea of setting 2 in Schlag et al., "Linear
    Transformers Are Secretly Fast Weight Programmers" (2021). Different from Zoology: fillers are
    never replaced by random tokens.
    """

    keys: int
    writes: int = 1
    vocabulary: int = 512
    time: int = 64
    power: float = 0.01

    def __post_init__(self):
        if self.keys < 1 or self.writes < 1:
            raise ValueError(f"keys={self.keys} and writes={self.writes} must both be at least 1.")
        if self.vocabulary % 2 or self.vocabulary // 2 - 1 < self.keys:
            raise ValueError(
                f"vocabulary={self.vocabulary} must be even, with more than keys={self.keys} "
                "identities in its lower half."
            )
        if self.vocabulary // 2 < self.keys * self.writes:
            raise ValueError(
                f"vocabulary={self.vocabulary} has {self.vocabulary // 2} values, too few for "
                f"keys * writes = {self.keys * self.writes} distinct ones."
            )
        if self.slots < self.keys:
            raise ValueError(
                f"time={self.time} leaves {max(self.slots, 0)} slots for keys={self.keys} "
                f"questions: it must be at least {2 * self.keys * (self.writes + 1)}."
            )

    @property
    def context(self) -> int:
        """The number of tokens that show pairs."""
        return 2 * self.keys * self.writes

    @property
    def slots(self) -> int:
        """The number of places at which a key can be asked for."""
        return (self.time - self.context) // 2

    @property
    def chance(self) -> float:
        """The accuracy of guessing among the values of the vocabulary."""
        return 2 / self.vocabulary

    def sample(self, rng: np.random.Generator, count: int) -> RecallBatch:
        """Draws `count` new sequences; the same generator state gives the same sequences.

        **Arguments:**

        - `rng`: the source of randomness, which this call advances.
        - `count`: the number of sequences.

        **Returns:**

        A `RecallBatch` of int32 arrays, `positions` ascending in
        each row.
        """
        pairs = self.keys * self.writes
        half = self.vocabulary // 2
        keys = 1 + _distinct(rng, count, half - 1, self.keys)
        values = half + _distinct(rng, count, half, pairs)
        order = np.argsort(rng.random((count, pairs)), axis=1)  # which key each pair is about
        owner = order % self.keys

        tokens = np.zeros((count, self.time), np.int32)
        tokens[:, 0 : self.context : 2] = np.take_along_axis(keys, owner, axis=1)
        tokens[:, 1 : self.context : 2] = values
        backwards = [np.argmax(owner[:, ::-1] == key, axis=1) for key in range(self.keys)]
        last = pairs - 1 - np.stack(backwards, axis=1)
        answers = np.take_along_axis(values, last, axis=1)

        weights = self.power * np.arange(1, self.slots + 1) ** (self.power - 1)
        # The largest of log p + Gumbel are a draw without replacement.
        scores = np.log(weights / weights.sum()) + rng.gumbel(size=(count, self.slots))
        slot = np.argsort(-scores, axis=1)[:, : self.keys]
        positions = self.context + 2 * slot
        np.put_along_axis(tokens, positions, keys, axis=1)

        ascending = np.argsort(positions, axis=1)
        return RecallBatch(
            tokens,
            np.take_along_axis(positions, ascending, axis=1).astype(np.int32),
            np.take_along_axis(answers, ascending, axis=1).astype(np.int32),
        )

    def training(self, seed: int) -> np.random.Generator:
        """A generator for the training sequences of a seed, apart from every other seed's."""
        return np.random.default_rng([_TRAINING_STREAM, seed])

    def test(self, count: int = 512) -> RecallBatch:
        """The fixed test sequences: the same in every run, and from a stream no training uses."""
        return self.sample(np.random.default_rng([_TEST_STREAM, 0]), count)


def _distinct(rng: np.random.Generator, count: int, among: int, take: int) -> np.ndarray:
    """`take` distinct integers below `among`, in random order, in each of `count` rows."""
    return np.argsort(rng.random((count, among)), axis=1)[:, :take].astype(np.int32)


RECALL_TASKS: dict[RecallName, RecallTask] = {
    "mqar": RecallTask(keys=16, writes=1),
    "rewrites": RecallTask(keys=8, writes=2),
}


@dataclass(frozen=True)
class MixedTask:
    """Training sequences of several recall tasks of one length and vocabulary, in equal shares.

    **Arguments:**

    - `tasks`: the tasks.
    """

    tasks: tuple[RecallTask, ...]

    def training(self, seed: int) -> np.random.Generator:
        """A generator for the training sequences of a seed."""
        return np.random.default_rng([_TRAINING_STREAM, seed])

    def sample(self, rng: np.random.Generator, count: int) -> RecallBatch:
        """Draws as many sequences of each task; further questions of a row have the label -1."""
        most = max(task.keys for task in self.tasks)
        drawn = [task.sample(rng, count // len(self.tasks)) for task in self.tasks]

        def wide(array: np.ndarray, fill: int) -> np.ndarray:
            return np.pad(array, [(0, 0), (0, most - array.shape[1])], constant_values=fill)

        return RecallBatch(
            np.concatenate([batch.tokens for batch in drawn]),
            np.concatenate([wide(batch.positions, 0) for batch in drawn]),
            np.concatenate([wide(batch.labels, -1) for batch in drawn]),
        )

    def test(self, count: int = 512) -> RecallBatch:
        """The fixed test sequences, those of each task in equal shares."""
        return self.sample(np.random.default_rng([_TEST_STREAM, 0]), count)
