"""The experiments: the laws of their data, their reports, and short real runs of both."""

import platform
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from memdsl.experiments import digits, RECALL_TASKS, RecallTask


ROOT = Path(__file__).parent.parent


def last_value_of(tokens, position):
    """What the key at `position` was paired with last, read off the tokens themselves."""
    key = tokens[position]
    written = [i for i in range(0, position, 2) if tokens[i] == key]
    return tokens[written[-1] + 1]


@pytest.mark.parametrize("name", RECALL_TASKS)
def test_every_recall_label_is_the_last_value_written_for_its_key(name):
    task = RECALL_TASKS[name]
    batch = task.sample(np.random.default_rng(0), 64)
    assert batch.tokens.shape == (64, task.time)
    assert batch.positions.shape == batch.labels.shape == (64, task.keys)
    for tokens, positions, labels in zip(*batch, strict=True):
        found = [last_value_of(tokens, position) for position in positions]
        assert found == labels.tolist()


@given(
    keys=st.integers(1, 6),
    writes=st.integers(1, 3),
    more=st.integers(0, 9),
    seed=st.integers(0, 99),
)
@settings(max_examples=30, deadline=None)
def test_recall_sequences_are_pairs_then_each_key_once_between_fillers(keys, writes, more, seed):
    task = RecallTask(keys, writes, vocabulary=64, time=2 * keys * (writes + 1) + more)
    for tokens, positions, _ in zip(*task.sample(np.random.default_rng(seed), 4), strict=True):
        shown, asked = tokens[: task.context], tokens[task.context :]
        distinct, counts = np.unique(shown[0::2], return_counts=True)
        assert len(distinct) == keys and (counts == writes).all()  # no key drawn twice
        assert len(np.unique(shown[1::2])) == keys * writes  # no value twice
        assert ((shown[0::2] >= 1) & (shown[0::2] < 32)).all()
        assert ((shown[1::2] >= 32) & (shown[1::2] < 64)).all()
        assert (np.diff(positions) > 0).all() and (positions % 2 == 0).all()
        assert sorted(tokens[positions]) == distinct.tolist()
        assert np.delete(asked, positions - task.context).sum() == 0  # all the rest is filler


def test_recall_with_rewrites_contradicts_every_earlier_value_in_random_order():
    task = RECALL_TASKS["rewrites"]
    batch = task.sample(np.random.default_rng(1), 400)
    gaps = []
    for tokens, positions, labels in zip(*batch, strict=True):
        for position, label in zip(positions, labels, strict=True):
            at = [i for i in range(0, task.context, 2) if tokens[i] == tokens[position]]
            assert len(at) == 2 and tokens[at[0] + 1] != label and tokens[at[1] + 1] == label
            gaps.append((at[1] - at[0]) // 2)
    # Two of 16 places drawn at random lie (16 + 1) / 3 apart on average.
    assert np.mean(gaps) == pytest.approx(17 / 3, abs=0.25)


def test_recall_asks_at_slots_with_the_power_law():
    """The most likely slot is left empty with the probability that the law says."""
    task = RecallTask(keys=1, vocabulary=64, time=34, power=0.01)
    batch = task.sample(np.random.default_rng(2), 20_000)
    slot = (batch.positions[:, 0] - task.context) // 2
    expected = np.arange(1, task.slots + 1) ** (task.power - 1)
    expected /= expected.sum()
    seen = np.bincount(slot, minlength=task.slots) / len(slot)
    error = np.sqrt(expected * (1 - expected) / len(slot))
    assert (abs(seen - expected) < 4.5 * error).all()


def test_recall_guessing_among_the_values_scores_at_chance():
    task = RECALL_TASKS["mqar"]
    rng = np.random.default_rng(3)
    labels = task.sample(rng, 4000).labels
    guesses = rng.integers(task.vocabulary // 2, task.vocabulary, labels.shape)
    hits = np.mean(guesses == labels)
    assert task.chance == 1 / 256
    assert hits == pytest.approx(task.chance, abs=4.5 * np.sqrt(task.chance / labels.size))


def test_recall_is_the_same_for_the_same_seed_and_fresh_every_step():
    task = RECALL_TASKS["mqar"]
    one, again, other = (task.training(seed) for seed in (0, 0, 1))
    first, second = task.sample(one, 32), task.sample(one, 32)
    assert all((a == b).all() for a, b in zip(first, task.sample(again, 32), strict=True))
    batches = [first, second, task.sample(other, 32), task.test()]
    rows = np.concatenate([batch.tokens for batch in batches])
    assert len(np.unique(rows, axis=0)) == len(rows)  # steps, seeds and test share nothing
    assert all((a == b).all() for a, b in zip(task.test(), task.test(), strict=True))
    assert task.test().tokens.shape == (512, 64)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"keys": 16, "writes": 2}, "time=64 leaves 0 slots for keys=16 questions: it must be at "),
        ({"keys": 300, "time": 2000}, "must be even, with more than keys=300"),
        ({"keys": 8, "writes": 2, "vocabulary": 30}, "has 15 values, too few for"),
        ({"keys": 0}, "must both be at least 1"),
    ],
)
def test_recall_tasks_that_cannot_be_are_refused(arguments, says):
    with pytest.raises(ValueError, match=says):
        RecallTask(**arguments)


def test_digits_are_two_halves_centred_by_the_first_on_the_unit_sphere():
    from sklearn.datasets import load_digits

    data = digits()
    pixels, labels = load_digits(return_X_y=True)
    assert data.train_inputs.shape == (898, 64) and data.test_inputs.shape == (899, 64)
    assert np.concatenate([data.train_labels, data.test_labels]).tolist() == labels.tolist()
    for inputs in (data.train_inputs, data.test_inputs):
        np.testing.assert_allclose(np.linalg.norm(inputs, axis=1), 1, rtol=1e-6)
    by_hand = pixels[900] / 16 - pixels[:898].mean(0) / 16
    np.testing.assert_allclose(
        data.test_inputs[2], by_hand / np.linalg.norm(by_hand), rtol=1e-5, atol=1e-7
    )


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the setting is glibc's")
def test_freed_memory_is_kept_for_the_next_step():
    """Pages of an 80 MB array that a thread makes anew 10 times, in a process of its own."""
    program = """
import resource, sys, threading
import numpy as np
from memdsl.experiments import keep_freed_memory
if sys.argv[1] == "keep":
    assert keep_freed_memory()
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def work():
    np.ones(20_000_000, np.float32)
    before = faults()
    for _ in range(10):
        np.ones(20_000_000, np.float32)
    print(faults() - before)
thread = threading.Thread(target=work)
thread.start()
thread.join()
"""
    kept, plain = (
        int(subprocess.check_output([sys.executable, "-c", program, how], cwd=ROOT, text=True))
        for how in ("keep", "plain")
    )
    assert kept < plain / 10
