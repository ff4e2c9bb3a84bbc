"""Training from end to end: what it comes to, and going on as if nothing had happened."""

import csv
import itertools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import memdsl as md
from memdsl.grow import _checkpoint

from .test_grow import built, grown, half_square, rbf


def draw(seed, *shape):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape))


DATA, TEST = (draw(1, 23, 3), draw(2, 23, 2)), (draw(3, 9, 3), draw(4, 9, 2))


def hybrid(trainable=True):
    """A growing layer with trainable atoms that are evicted, under a layer of weights."""
    memory = rbf(md.Budget(12), rate=0.3)
    return grown(4, memory, trainable=trainable) >> md.Silu() >> md.Dense(2)


def mean_error(predictions, targets):
    return jnp.mean(jnp.abs(predictions - targets))


def call(model, **options):
    settings = {"epochs": 3, "batch": 5, "test": TEST, "metrics": {"error": mean_error}}
    settings = {**settings, "progress": False, "check": False, **options}
    return md.grow.fit(model, DATA, half_square, optax.sgd(0.1, momentum=0.5), **settings)


@pytest.fixture(scope="module")
def model():
    return built(hybrid(), 3, jax.random.key(0))


@pytest.fixture(scope="module")
def whole(model):
    return call(model, stop=md.grow.EarlyStop(patience=50))


def same(one, two):
    """Bit for bit: models, moments, and the history."""
    arrays = [eqx.filter((fit.model, fit.best, fit.moments), eqx.is_array) for fit in (one, two)]
    for mine, theirs in zip(*map(jax.tree.leaves, arrays), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert one.history.csv() == two.history.csv()


def test_fit_is_the_loop_written_out(model, whole):
    optimiser = md.grow.slotwise(optax.sgd(0.1, momentum=0.5))
    moments, after = optimiser.init(md.grow.parameters(model)), model

    @eqx.filter_jit
    def step(model, moments, x, y):
        loss, gradients, pairs = md.grow.backward(half_square, model, x, y)
        updates, moments = optimiser.update(
            gradients, moments, md.grow.parameters(model), model=model
        )
        return md.grow.write(eqx.apply_updates(model, updates), pairs), moments, loss

    means = []
    for epoch in range(3):
        order = np.random.default_rng([0, epoch]).permutation(23)[:20].reshape(4, 5)
        losses = []
        for rows in order:
            after, moments, loss = step(after, moments, *(x[rows] for x in DATA))
            losses.append(loss)
        means.append(np.mean(losses))
    np.testing.assert_allclose(whole.history["loss"], means, rtol=1e-12)
    x, y = TEST
    predictions = jax.vmap(after)(x)
    np.testing.assert_allclose(jax.vmap(whole.model)(x), predictions, rtol=1e-10, atol=1e-12)
    last = whole.history.rows[-1]
    assert list(last) == ["epoch", "step", "loss", "test_loss", "test_error", "atoms"]
    assert (last["epoch"], last["step"], last["atoms"]) == (3, 12, 12)
    np.testing.assert_allclose(last["test_loss"], half_square(predictions, y), rtol=1e-10)
    np.testing.assert_allclose(last["test_error"], mean_error(predictions, y), rtol=1e-10)
    assert not jnp.array_equal(model.layers[2].weight, whole.model.layers[2].weight)


class Killed(BaseException):
    """Not an `Exception`: nothing may catch it."""


@pytest.mark.parametrize(("where", "moment"), [("after", 1), ("before", 3), ("before", 6)])
def test_a_killed_training_goes_on_bit_for_bit(model, whole, moment, where, tmp_path, monkeypatch):
    """Killed while a checkpoint is written, or just after, at epochs' ends and in between."""
    stop, count = md.grow.EarlyStop(patience=50), itertools.count()
    store = _checkpoint.store

    def dying(path, *rest):
        killed = next(count) == moment
        if killed and where == "before":
            (path.parent / f".{path.name}.half").write_bytes(b"half a checkpoint")
            raise Killed
        store(path, *rest)
        if killed:
            raise Killed

    monkeypatch.setattr(_checkpoint, "store", dying)
    with pytest.raises(Killed):
        call(model, stop=stop, folder=tmp_path, save_every=1)
    monkeypatch.setattr(_checkpoint, "store", store)
    same(call(model, stop=stop, folder=tmp_path, save_every=1), whole)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["checkpoint", "history.csv"]


def test_more_epochs_are_those_of_a_longer_training(model, whole, tmp_path):
    stop = md.grow.EarlyStop(patience=50)
    first = call(model, stop=stop, folder=tmp_path, epochs=2)
    assert len(first.history) == 2
    same(call(model, stop=stop, folder=tmp_path), whole)
    again = call(model, stop=stop, folder=tmp_path)  # there is nothing left to do
    same(again, whole)
    with open(tmp_path / "history.csv", newline="") as file:
        lines = list(csv.DictReader(file))
    np.testing.assert_array_equal([float(line["loss"]) for line in lines], again.history["loss"])


SCRIPT = """
import sys, jax, jax.numpy as jnp, numpy as np, optax
import memdsl as md

atoms = md.Memory(md.RBF(), md.Hebb(0.3), capacity=md.Budget(30))
spec = md.Grown(md.Dense(4), atoms, trainable=True) >> md.Silu() >> md.Dense(2)
model = md.build(spec, md.Dims(model=3), key=jax.random.key(0))
rng = np.random.default_rng(1)
data = (rng.normal(size=(40, 3)).astype("f"), rng.normal(size=(40, 2)).astype("f"))
loss = lambda y, t: jnp.mean((y - t) ** 2)
fitted = md.grow.fit(model, data, loss, optax.adam(1e-2), epochs=int(sys.argv[2]), batch=2,
                     test=data, folder=sys.argv[1], save_every=3, progress=False, check=False)
np.savez(sys.argv[1] + "/end.npz", *jax.tree.leaves((fitted.moments, jax.vmap(model)(data[0]))))
"""


@pytest.mark.slow
def test_a_process_that_is_killed_goes_on_bit_for_bit(tmp_path):
    """SIGKILL at whatever moment it comes, three times over, beside a process that nobody kills."""

    def start(folder):
        folder.mkdir(exist_ok=True)
        line = [sys.executable, "-c", SCRIPT, str(folder), "30"]
        return subprocess.Popen(line, cwd=Path(__file__).parent.parent)

    alone, killed = tmp_path / "alone", tmp_path / "killed"
    assert start(alone).wait() == 0
    seen = 0
    for kill in range(3):
        process, history = start(killed), killed / "history.csv"
        while process.poll() is None:
            now = len(history.read_text().splitlines()) if history.exists() else 0
            if now > seen + 2:
                time.sleep(0.003 * kill)
                os.kill(process.pid, signal.SIGKILL)
                process.wait()
                seen = now
                break
            time.sleep(0.001)
        assert process.returncode == -signal.SIGKILL
        assert not (killed / "end.npz").exists()
    assert start(killed).wait() == 0
    assert (alone / "history.csv").read_bytes() == (killed / "history.csv").read_bytes()
    one, two = (np.load(folder / "end.npz") for folder in (alone, killed))
    assert one.files == two.files
    for name in one.files:
        np.testing.assert_array_equal(one[name], two[name])
    assert (alone / "checkpoint").read_bytes() == (killed / "checkpoint").read_bytes()


def test_another_training_is_not_gone_on_with(model, tmp_path):
    call(model, folder=tmp_path, epochs=1)
    for options, words in (
        ({"seed": 1}, "seed differ"),
        ({"batch": 4}, "batch differ"),
        ({"test": DATA}, "data differ"),
        ({"metrics": {}}, "metrics differ"),
        ({"stop": md.grow.EarlyStop()}, "arrays, stop differ"),
    ):
        with pytest.raises(md.SpecError, match=words):
            call(model, folder=tmp_path, **options)
    (tmp_path / "checkpoint").write_bytes(b"something else\n")
    with pytest.raises(md.SpecError, match="no checkpoint"):
        call(model, folder=tmp_path)


def test_it_stops_when_nothing_becomes_better(model):
    """At a rate of 0 nothing ever does, so that the first epoch stays the best."""
    still = built(md.Dense(2), 3, jax.random.key(1))
    stop = md.grow.EarlyStop("test_error", patience=2)
    options = {"batch": 5, "test": TEST, "metrics": {"error": mean_error}, "progress": False}
    fitted = md.grow.fit(still, DATA, half_square, optax.sgd(0.0), epochs=9, stop=stop, **options)
    assert fitted.stopped and len(fitted.history) == 3
    assert eqx.tree_equal(fitted.best, still)


def test_the_best_model_is_that_of_its_epoch():
    model = built(md.Dense(2), 3, jax.random.key(1))
    stop = md.grow.EarlyStop("test_loss", patience=9, highest=True)  # the worst, that is
    options = {"batch": 5, "test": TEST, "progress": False}
    falling = optax.sgd(0.05)
    fitted = md.grow.fit(model, DATA, half_square, falling, epochs=3, stop=stop, **options)
    first = md.grow.fit(model, DATA, half_square, falling, epochs=1, **options)
    assert int(np.argmax(fitted.history["test_loss"])) == 0
    assert eqx.tree_equal(fitted.best, first.model) and not fitted.stopped
    assert not eqx.tree_equal(fitted.best, fitted.model)


def test_early_stops_count_from_the_last_that_was_better():
    stop = md.grow.EarlyStop(patience=2, by=0.1)
    assert stop.best([]) == stop.best([float("nan")] * 3) == 0
    assert stop.best([1.0, 0.95, 0.85, 0.8]) == 2
    assert not stop.reached([1.0, 0.95]) and stop.reached([1.0, 0.95, 0.91])


def test_without_an_optimiser_only_growing_layers_learn(capsys):
    model = built(hybrid(trainable=False), 3, jax.random.key(0))
    fitted = md.grow.fit(model, DATA, half_square, epochs=1, batch=5, check=False)
    assert "epoch 1/1" in capsys.readouterr().out
    assert fitted.moments is None
    assert eqx.tree_equal(fitted.model.layers[2], model.layers[2])
    assert fitted.history["atoms"][0] == 12
    assert int(jnp.sum(model.layers[0].state.valid)) == 0  # the one that was given is as it was


def test_rates_are_looked_at_before_anything_runs():
    model = built(grown(2, rbf(md.Budget(12), rate=99.0)), 3, jax.random.key(0))
    with pytest.warns(md.grow.RateWarning, match="the rate 99"):
        md.grow.fit(model, DATA, half_square, epochs=1, batch=5, progress=False)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"batch": 24}, "batch=24"),
        ({"epochs": -1}, "epochs=-1"),
        ({"save_every": 0}, "save_every=0"),
        ({"test": None}, "Metrics are of a test"),
        ({"stop": md.grow.EarlyStop("accuracy")}, "no column 'accuracy'"),
    ],
)
def test_what_makes_no_sense_is_refused(model, options, words):
    with pytest.raises(md.SpecError, match=words):
        call(model, **options)


def test_data_of_different_lengths_are_refused(model):
    with pytest.raises(md.SpecError, match=r"these have \[9, 23\]"):
        md.grow.fit(model, (DATA[0], TEST[1]), half_square, epochs=1, batch=2)


def test_slotwise_is_not_put_around_itself(model):
    def slotwise_states(optimiser):
        still = {"epochs": 0, "batch": 5, "progress": False}
        fitted = md.grow.fit(model, DATA, half_square, optimiser, **still)
        kind = md.grow.SlotwiseState
        found = jax.tree.leaves(fitted.moments, is_leaf=lambda x: isinstance(x, kind))
        return fitted.moments, sum(isinstance(part, kind) for part in found)

    plain, chained = optax.sgd(0.1, momentum=0.5), optax.clip_by_global_norm(1.0)
    moments, count = slotwise_states(plain)
    assert isinstance(moments, md.grow.SlotwiseState) and count == 1
    moments, count = slotwise_states(optax.chain(chained, md.grow.slotwise(plain)))
    assert not isinstance(moments, md.grow.SlotwiseState) and count == 1
