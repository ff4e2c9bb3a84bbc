"""Short real runs of both experiments, and the growing layer against its own arithmetic in NumPy."""

import csv
import json

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import memdsl as md
from memdsl.experiments import (
    classification,
    Course,
    digits,
    DigitsSettings,
    draw_digits,
    draw_recall,
    growth_settings,
    growth_specs,
    GrowthLearner,
    learn,
    RECALL_MEMORIES,
    recall_model,
    recall_settings,
    recall_spec,
    recall_specs,
    RECALL_TASKS,
    RecallSettings,
    RecallTask,
    Report,
    run_growth,
    run_recall,
    SettingError,
    state_size,
    train_recall,
    weight_decayed,
)


pytestmark = pytest.mark.usefixtures("ordinary_settings")


def run_all_digits(folder, **others):
    folder.mkdir()
    settings = DigitsSettings(**others)
    with Report(
        "digits",
        folder,
        settings=growth_settings(settings),
        specs=growth_specs(settings),
        draw=draw_digits,
    ) as report:
        run_growth(settings, report)
    return json.loads((folder / "summary.json").read_text())


def without_seconds(rows):
    return [{k: v for k, v in row.items() if k not in ("seconds", "step_ms")} for row in rows]


def test_two_epochs_of_digits_leave_every_row_and_the_same_numbers_again(tmp_path):
    summary = run_all_digits(tmp_path / "first", epochs=2, seeds=2)
    rows = summary["rows"]
    names = ["grown rbf", "mlp sgd", "mlp adamw"]
    assert [(row["seed"], row["name"]) for row in rows] == [(s, n) for s in (0, 1) for n in names]
    for row in rows:
        curves = {"test_accuracy", "train_loss", "seconds", "step_ms"}
        assert set(row) == {"name", "seed", "atoms", *curves}
        assert len(row["test_accuracy"]) == 2 and row["seconds"] > 0
        grown = row["name"] == "grown rbf"
        assert all(a >= (0.938 if grown else 0.85) for a in row["test_accuracy"])
        # 35 whole batches of 25 an epoch, then nearly every one of the 898 rows
        assert 875 < row["atoms"] <= 898 if grown else row["atoms"] is None
    by = {(r["seed"], r["name"]): r["test_accuracy"][0] for r in rows}
    assert all(by[s, "grown rbf"] - by[s, "mlp sgd"] >= 0.03 for s in (0, 1))
    assert by[0, "mlp sgd"] != by[1, "mlp sgd"]  # a seed matters

    again = run_all_digits(tmp_path / "second", epochs=2, seed=1)
    assert without_seconds(again["rows"]) == without_seconds(rows[3:])

    with open(tmp_path / "first" / "history.csv", newline="") as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == 12
    last = [line for line in lines if line["name"] == "grown rbf" and line["seed"] == "1"][-1]
    assert float(last["test_accuracy"]) == rows[3]["test_accuracy"][-1]
    specs = json.loads((tmp_path / "first" / "spec.json").read_text())
    assert isinstance(md.from_json(json.dumps(specs["grown rbf"])), md.Grown)


def test_the_growing_layer_does_what_its_equation_says():
    """The same learner in NumPy: a coefficient for every row, moved by the gradient of its batch."""
    data, rate, bandwidth = digits(), 100.0, 0.3
    train, labels, test = (np.asarray(x, np.float64) for x in data[:3])
    labels = data.train_labels
    scale = md.RBF.median(train, bandwidth).scale

    def kernel(a, b):
        squared = np.sum((a[:, None] - b[None]) ** 2, axis=-1)
        return np.exp(-squared / (2 * scale**2))

    among, to_test = kernel(train, train), kernel(test, train)
    coefficients, rng, expected = np.zeros((898, 10)), np.random.default_rng(3), []
    for _ in range(2):
        for rows in rng.permutation(898)[:875].reshape(35, 25):
            logits = among[rows] @ coefficients
            chances = np.exp(logits - logits.max(axis=1, keepdims=True))
            error = chances / chances.sum(axis=1, keepdims=True) - np.eye(10)[labels[rows]]
            coefficients[rows] -= rate * error / 25
        expected.append(np.mean(np.argmax(to_test @ coefficients, axis=1) == data.test_labels))

    problem, course = classification(data), Course(epochs=2, batch=25)
    learner = GrowthLearner((rate,), (bandwidth,))
    model = learner.model(problem, course, 3)
    epochs = learn(problem, model, None, course.orders(898, seed=3))
    # float32 against float64 may turn over a row whose two best logits are equal to six digits
    assert [e.score for e in epochs] == pytest.approx(expected, abs=1.5 / 899)


TINY = RecallTask(keys=2, writes=2, vocabulary=16, time=12)


def test_state_sizes_are_those_of_the_memories():
    """Two heads with keys and values of 32 each, over 64 tokens."""
    assert {name: state_size(name, 64) for name in RECALL_MEMORIES} == {
        "softmax": 2 * 64 * (32 + 32),
        "rbf_delta": 2 * 64 * (32 + 32),
        "nadaraya_watson": 2 * 64 * (32 + 32),
        "mesa_net_ungated": 2 * 32 * (32 + 32),
        "delta_net": 2 * 32 * 32,
        "gated_delta_net": 2 * 32 * 32,
        "retnet": 2 * 32 * 32,
        "linear_attention": 2 * 32 * (32 + 1),
        "linear_attention_identity": 2 * 32 * 32,
        "sliding_window": 2 * 16 * (32 + 32),
    }


@pytest.mark.parametrize("name", RECALL_MEMORIES)
def test_a_recall_model_answers_at_its_questions_alone_and_from_the_past_alone(name):
    model = recall_model(name, TINY, seed=0)
    (tokens, positions, _) = (part[0] for part in TINY.sample(np.random.default_rng(0), 1))
    changed = np.stack([tokens] * 3)
    changed[1, positions[0] + 1 :] = 0
    changed[2, positions[0] - 1] = 15 if tokens[positions[0] - 1] != 15 else 14

    @eqx.filter_jit
    def ask(model, sequences):
        return jax.vmap(lambda tokens: model(tokens, positions))(sequences)

    answers = ask(model, jnp.asarray(changed))
    same, later, earlier = np.asarray(answers)
    assert same.shape == (2, 16) and np.isfinite(answers).all()
    np.testing.assert_allclose(later[0], same[0], rtol=1e-5, atol=1e-6)
    assert abs(earlier[0] - same[0]).max() > 1e-4


@pytest.mark.parametrize("name", md.zoo.catalogue())
def test_every_named_memory_can_be_given_to_the_recall_run(name):
    RecallSettings(memory=(name,)).check()
    model, task = recall_model(name, TINY, seed=0), RECALL_TASKS["mqar"]
    shape = eqx.filter_eval_shape(
        lambda model, tokens, positions: model(tokens, positions),
        model,
        jax.ShapeDtypeStruct((TINY.time,), np.int32),
        jax.ShapeDtypeStruct((TINY.keys,), np.int32),
    )
    # the memory of hgrn is a vector, that of all others at least a matrix
    assert shape.shape == (2, 16)
    assert state_size(name, task.time) >= (64 if name == "hgrn" else 2048)
    marks = jax.tree.leaves(weight_decayed(model))
    assert len(marks) == len(jax.tree.leaves(eqx.filter(model, eqx.is_inexact_array)))


def test_weight_decay_spares_gains_biases_and_lone_numbers():
    model = recall_model("mesa_net_ungated", TINY, seed=0)
    flags = jax.tree_util.tree_leaves_with_path(weight_decayed(model))
    spared = {jax.tree_util.keystr(path).split("layers")[-1] for path, flag in flags if not flag}
    assert spared == {
        "[0].gain",
        "[1].gain",
        "[1].numbers['write.rate'][0][1]",
        "[1].numbers['write.strength'][0]",
        "[3].gain",
    }


def test_a_small_recall_task_is_learned_and_a_seed_repeats_its_numbers():
    task = RecallTask(keys=2, writes=1, vocabulary=16, time=8)

    def run(seed):
        model = recall_model("delta_net", task, seed=seed)
        return list(
            train_recall(
                model,
                task,
                decayed=weight_decayed(model),
                rate=0.01,
                steps=150,
                batch=32,
                seed=seed,
                every=50,
            )
        )

    first = run(0)
    assert [point.step for point in first] == [50, 100, 150]
    assert first[-1].accuracy > 0.9 and first[-1].train_loss < first[0].train_loss
    assert run(0) == first


def test_a_recall_run_records_every_memory(tmp_path):
    names = ("delta_net", "sliding_window")
    settings = RecallSettings("rewrites", names, seed=3, steps=3, batch=2, every=2)
    with Report(
        "recall",
        tmp_path,
        settings=recall_settings(settings),
        specs=recall_specs(settings),
        draw=draw_recall,
    ) as report:
        run_recall(settings, report)
    summary = json.loads((tmp_path / "summary.json").read_text())
    rows = summary["rows"]
    assert [(r["name"], r["seed"]) for r in rows] == [(name, 3) for name in names]
    for row in rows:
        assert set(row) == {"name", "task", "seed", "accuracy", "state_size", "seconds"}
        assert row["state_size"] == 2048 and 0 <= row["accuracy"] < 0.1
    assert [p["step"] for p in report.history if p["name"] == "sliding_window"] == [2, 3]
    assert summary["settings"]["memory"] == ["delta_net", "sliding_window"]
    specs = json.loads((tmp_path / "spec.json").read_text())
    for name, spec in specs.items():
        assert md.from_json(json.dumps(spec)) == recall_spec(name, RECALL_TASKS["rewrites"])


def test_all_means_every_memory_once():
    assert RecallSettings(memory=("sliding_window", "all")).names == [
        "sliding_window",
        *(name for name in RECALL_MEMORIES if name != "sliding_window"),
    ]
    with pytest.raises(SettingError, match="Did you mean sliding_window"):
        RecallSettings(memory=("slidin_window",)).check()
