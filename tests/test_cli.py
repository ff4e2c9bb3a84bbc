"""The command line: what it prints, what it leaves, and how it refuses."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import memdsl as md
from memdsl.cli import main


ROOT = Path(__file__).parent.parent
pytestmark = pytest.mark.usefixtures("ordinary_settings")


def refused(arguments, capsys):
    """Runs a command that must be refused with status 2; what it says."""
    try:
        status = main(arguments)
    except SystemExit as error:  # how the parser of options says no
        status = error.code
    said = capsys.readouterr()
    assert status == 2 and said.out == ""
    return " ".join(said.err.replace("│", " ").split())


def test_a_digits_run_prints_its_table_and_says_where_the_files_are(tmp_path, capsys):
    out = tmp_path / "here"
    assert main(["run", "digits", "--epochs", "2", "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    rows = json.loads((out / "summary.json").read_text())["rows"]
    lines = printed.splitlines()
    for row, line in zip(rows, lines[3:6], strict=True):
        scores = [f"{a:.3f}".removeprefix("0") for a in row["test_accuracy"]]
        assert line.split()[:5] == [*row["name"].split(), "0", *scores]
    assert lines[-1] == f"Results: {out}"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("run digits --epoch 3", "Perhaps you meant: --epochs"),
        ("run digits --epochs three", "Error parsing --epochs"),
        ("run digits --epochs 0", "--epochs must be at least 1, not 0."),
        ("run digits --rate nan", "--rate must be a positive finite number, not nan."),
        ("run digits --rate -1", "--rate must be a positive finite number, not -1.0."),
        ("run digits --batch 899", "--batch is 899, and there are only 898 training rows."),
        ("run digits --sgd-momentum 1", "--sgd-momentum must be in [0, 1), not 1.0."),
        ("run digits --adamw-decay -1", "--adamw-decay must be 0 or more, not -1.0."),
        ("run digits --seed -1", "--seed must be 0 or more, not -1."),
        ("run recall --memory softmaxx", "--memory softmaxx: there is no such memory"),
        ("run recall --memory softmaxx", "Did you mean softmax"),
        ("run recall --memory delta-net rbf", "Did you mean delta_net"),
        ("run recall --memory zzz", "Known names: abc, ada_transformer, "),
        ("run recall --task mqarr", "mqar"),
        ("run recall --steps 0", "--steps must be at least 1, not 0."),
        ("run recall --rate inf", "--rate must be a positive finite number, not inf."),
        ("run digit", "Available subcommands: digits, classify, teacher-student, hybrid"),
        ("rum", "Available subcommands: run, reproduce, list, explain"),
        ("", "Missing"),
        ("explain gated_deltanet", "Did you mean gated_delta_net"),
        ("explain", "memdsl explain"),
    ],
)
def test_what_does_not_exist_or_cannot_be_is_refused_with_advice(arguments, says, capsys, tmp_path):
    os.chdir(tmp_path)
    assert says in refused(arguments.split(), capsys)
    assert not (tmp_path / "runs").exists()  # refused before anything was made


def test_a_folder_that_holds_a_run_is_not_overwritten(tmp_path, capsys):
    (tmp_path / "summary.json").write_text("precious")
    said = refused(["run", "digits", "--out", str(tmp_path)], capsys)
    assert "this folder already holds a run" in said
    assert (tmp_path / "summary.json").read_text() == "precious"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--help", ["run", "list", "explain"]),
        ("run --help", ["digits", "recall"]),
        ("run digits --help", ["--epochs", "--seeds", "--out", "Passes over the 898 training"]),
        ("run recall --help", ["--task", "{mqar,rewrites}", "--memory", "written twice"]),
        ("explain --help", ["--heads", "--time", "memdsl list"]),
    ],
)
def test_help_explains_every_command(arguments, words, capsys):
    with pytest.raises(SystemExit) as left:
        main(arguments.split())
    said = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert left.value.code == 0
    assert [word for word in words if word not in said] == []


def test_list_names_every_memory_that_explain_and_recall_know(capsys):
    from memdsl.experiments import RECALL_MEMORIES

    assert main(["list"]) == 0
    listed = capsys.readouterr().out
    assert [name for name in RECALL_MEMORIES if name not in listed] == []


def test_list_says_what_all_stands_for_and_fits_where_it_is_read(capsys):
    from memdsl.experiments import RECALL_MEMORIES

    assert main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert {line.split()[1] for line in lines if line.startswith("* ")} == set(RECALL_MEMORIES)
    assert max(map(len, lines)) <= 100


@pytest.mark.parametrize(
    ("command", "reader"), [("list", "head -n 1"), ("explain softmax", "true")]
)
def test_whoever_reads_may_stop_reading(command, reader):
    line = f"{sys.executable} -m memdsl.cli {command} | {reader}"
    done = subprocess.run(line, shell=True, cwd=ROOT, capture_output=True, text=True)
    assert done.stderr == "" and ("kernel" in done.stdout) == (reader != "true")


@pytest.mark.parametrize("name", md.zoo.catalogue())
def test_explain_knows_every_memory(name, capsys):
    assert main(["explain", name, "--model", "64", "--heads", "2", "--time", "32"]) == 0
    assert f"Memory  {name.replace('_', ' ')}" in capsys.readouterr().out


def test_explain_prints_meaning_plan_and_rejections(capsys):
    assert main(["explain", "gated_delta_net"]) == 0
    page = capsys.readouterr().out
    for word in ("meaning", "kernel", "signals", "plan", "rejected"):
        assert f"  {word}" in page


def test_ctrl_c_leaves_the_results_so_far_and_says_where(tmp_path):
    out = tmp_path / "stopped"
    # started as a job in the background, a process inherits that it ignores the signal
    listening = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    code = f"{listening}import sys; from memdsl.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", code, "run", "digits", "--epochs", "100000"]
    process = subprocess.Popen(
        [*command, "--out", str(out)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        deadline = time.monotonic() + 60
        history = out / "history.csv"
        while not history.exists() or history.read_text().count("\n") < 4:
            assert process.poll() is None and time.monotonic() < deadline, process.stderr
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        printed, said = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert f"The results so far are in {out}" in said and "Traceback" not in said
    summary = json.loads((out / "summary.json").read_text())
    reached = summary["rows"][0]["test_accuracy"]
    assert summary["complete"] is False and len(reached) >= 3
    with open(out / "history.csv", newline="") as file:
        assert [float(line["test_accuracy"]) for line in csv.DictReader(file)] == reached
    assert (out / "learning_curves.png").read_bytes().startswith(b"\x89PNG")
    assert "grown rbf" in printed
