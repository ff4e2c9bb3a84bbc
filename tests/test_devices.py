"""Growing layers on many devices are what they are on one, to the rounding of sums."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import memdsl as md

from .devices import error, SLOTS


ROOT = Path(__file__).parent.parent
SECONDS = 600  # a program that hangs is killed then


def start(devices: int, *arguments: str) -> subprocess.Popen[str]:
    """The program of `devices.py`, with so many devices."""
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    environment["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={devices}"
    line = [sys.executable, "-m", "tests.devices", *arguments]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(line, cwd=ROOT, env=environment, **pipes)


def ends(programs: list[subprocess.Popen[str]], wanted: int = 0) -> list[dict[str, Any]]:
    """What programs have found, when all have come to their end."""
    try:
        told = [program.communicate(timeout=SECONDS) for program in programs]
    finally:
        for program in programs:
            program.kill()
    for program, (_, errors) in zip(programs, told, strict=True):
        assert program.returncode == wanted, errors[-4000:]
    return [json.loads(output.splitlines()[-1]) for output, _ in told]  # gloo prints before


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("devices")


@pytest.fixture(scope="module")
def some(folder) -> dict[str, Any]:
    """The program, which is killed at its end, while it saves."""
    return ends([start(8, "some", str(folder))], wanted=-signal.SIGKILL)[0]


@pytest.fixture(scope="module")
def more() -> dict[str, Any]:
    return ends([start(8, "more")])[0]


def agree(found: dict[str, float], parts: int) -> None:
    """That a training on a mesh comes to what it comes to on one device, with slots in parts."""
    assert found.pop("slots of a device") == SLOTS // parts
    assert found and all(value <= 1e-6 for value in found.values()), found


@pytest.mark.parametrize("name", ["ring, merges", "reweight, nearest"])
def test_training_on_a_mesh_is_training_on_one_device(some, name):
    agree(dict(some[name]), 4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "parts"),
    [("ring, merges on 8x1", 8), ("ring, merges on 1x8", 1), ("least used, smallest", 4)],
)
def test_other_meshes_and_evictions(more, name, parts):
    agree(dict(more[name]), parts)


def test_no_device_is_sent_what_another_holds(some):
    """A step with 1024 slots a layer moves some numbers a pair, and none a slot."""
    assert some["traffic"]["collectives"] > 4
    assert some["traffic"]["largest"] < 1024 // 4


@pytest.mark.slow
@pytest.mark.parametrize("of", ["evictions", "reweight"])
def test_nor_by_evictions(more, of):
    assert more[f"traffic of {of}"]["largest"] < 1024 // 2


def test_sizes_that_do_not_fit_are_refused(some):
    said = {name: message.splitlines()[0] for name, message in some["refused"].items()}
    assert said == {
        "slots": "30 slots cannot be cut into 4 equal parts.",
        "resize": "33 slots cannot be cut into 4 equal parts.",
        "rows": "9 rows cannot be cut into 2 equal parts.",
        "batch": "3 rows cannot be cut into 2 equal parts.",
        "axis": "The mesh has no axis 'slots'.",
    }
    assert "md.grow.resize(model, 32)" in some["refused"]["slots"]
    assert "md.grow.resize(model, 36)" in some["refused"]["resize"]


def test_a_checkpoint_is_loaded_onto_other_devices_exactly(some):
    """It was saved while the model was overwritten."""
    assert some["saved"] == {
        "other mesh": 0.0,
        "one device": 0.0,
        "spec": True,
        "slots of a device": SLOTS // 8,
        "shards": [True, True],
    }


def test_a_save_that_is_killed_leaves_the_last_one(some, folder):
    """The program was killed when step 6 was written, but for its name."""
    left = [path.name for path in (folder / "steps").iterdir() if path.name.startswith("6")]
    assert left and left != ["6"]
    with md.grow.Checkpoints(folder / "steps") as checkpoints:
        assert checkpoints.steps == (5,)
        model = checkpoints.load()
    with np.load(folder / "kept.npz") as kept:
        found = jax.tree.leaves(model)
        assert error([kept[name] for name in kept.files][: len(found)], found) == 0
    assert not [path for path in (folder / "steps").iterdir() if path.name.startswith("6")]


@pytest.mark.slow
def test_stacked_layers_on_a_mesh(more):
    agree(dict(more["stack"]), 4)


@pytest.mark.slow
def test_what_is_asked_between_steps(more):
    found = dict(more["asked"])
    assert found.pop("slots of a device") == 48 // 4
    assert all(value <= 1e-6 for value in found.values()), found


@pytest.mark.slow
def test_fit_goes_on_on_another_mesh(more):
    found = dict(more["fits"])
    assert found.pop("restored exactly") == 0
    assert found.pop("epochs") == 2
    assert found.pop("where") == "P('atoms',) P()"
    assert found.pop("files") == "checkpoints history.csv"
    assert all(value <= 1e-6 for value in found.values()), found


@pytest.mark.parametrize("what", ["pair", pytest.param("pair fit", marks=pytest.mark.slow)])
def test_two_processes_are_one_device(what, tmp_path):
    """Two processes of two devices each, on one machine."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = str(free.getsockname()[1])
    found = ends([start(2, what, port, index, str(tmp_path)) for index in "01"])
    for one in found:
        if what == "pair":
            assert (one.pop("devices"), one.pop("slots of a device")) == (4, SLOTS // 2)
        else:
            assert one.pop("rows") == 3
        assert one.pop("restored exactly") == 0
        assert len(one) >= 2 and all(value <= 1e-6 for value in one.values()), one


def test_without_orbax_it_is_said_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "orbax", None)
    monkeypatch.setitem(sys.modules, "orbax.checkpoint", None)
    with pytest.raises(md.SpecError, match="which is not installed") as error:
        md.grow.Checkpoints(tmp_path)
    assert "orbax-checkpoint" in str(error.value)


def test_steps_that_are_not_there_are_refused(tmp_path):
    memory = md.Memory(md.RBF(), md.Hebb(0.5), capacity=md.Budget(4))
    model = md.build(md.Grown(md.Dense(1), memory), md.Dims(model=2), key=jax.random.key(0))
    with md.grow.Checkpoints(tmp_path, keep=2) as checkpoints:
        with pytest.raises(md.SpecError, match="There is no checkpoint in"):
            checkpoints.load()
        for step in (1, 3, 4):
            checkpoints.save(step, model, {"count": jax.numpy.ones(3)})
        checkpoints.wait()
        assert checkpoints.steps == (3, 4)
        with pytest.raises(md.SpecError, match="Step 4 is not after step 4"):
            checkpoints.save(4, model)
        with pytest.raises(md.SpecError, match="There is no step 1 in"):
            checkpoints.load(1)
        with pytest.raises(md.SpecError, match=r"Step 4 of .* holds other arrays as its moments"):
            checkpoints.load_moments({"count": jax.numpy.ones(2)})
        with pytest.raises(md.SpecError, match="Only what build made can be saved"):
            checkpoints.save(5, {"weight": jax.numpy.ones(2)})


def test_a_mesh_of_explicit_axes_must_not_be_set():
    mesh = jax.make_mesh((1, 1), ("atoms", "data"))
    with jax.set_mesh(mesh), pytest.raises(md.SpecError, match="has explicit axes"):
        md.grow.shard_batch(np.zeros((4, 2)), mesh)
