"""What is computed on many devices, beside one: `python -m tests.devices` prints a line of JSON.

A process has as many devices as XLA was told when it began, so these checks are a program of their own,
which `test_devices.py` runs: on eight devices of one process, and on the devices of two.
"""

import json
import os
import re
import signal
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

import memdsl as md
from memdsl.grow._shard import on_host


KEY, HIDDEN, VALUE, SLOTS, BATCH = 3, 4, 2, 32, 16
MESHES = {"8x1": (8, 1), "4x2": (4, 2), "1x8": (1, 8)}


def memory(capacity: md.AbstractCapacity, **parts: Any) -> md.Memory:
    return md.Memory(
        **{"kernel": md.RBF(1.2), "write": md.Hebb(0.4), "capacity": capacity, **parts}
    )


def budget(**parts: Any) -> md.Budget:
    return md.Budget(SLOTS, **parts)


MEMORIES = {
    "ring": memory(budget(), gate=md.Decay(0.95)),
    "merges": memory(budget(merge=md.AddToNearest()), gate=md.Novelty(0.3)),
    "least used": memory(budget(evict=md.LeastUsed(0.9))),
    "smallest": memory(budget(evict=md.Smallest(), merge=md.AddToNearest())),
    "nearest": memory(budget(evict=md.Random(seed=1)), read=md.TopK(5, md.Evaluate())),
    "reweight": md.Memory(
        md.Exp(md.Knob(0.3) * md.Dot()),
        md.Reweight(0.4),
        md.Decay(0.9),
        budget(),
        md.Normalised(prior=1.0),
    ),
}
NETS = {
    "ring, merges": ("ring", "merges"),
    "least used, smallest": ("least used", "smallest"),
    "reweight, nearest": ("reweight", "nearest"),
}


def net(name: str) -> Any:
    """Two growing layers with trainable atoms."""
    first, second = (MEMORIES[part] for part in NETS[name])
    lower = md.Grown(md.Dense(HIDDEN), first, trainable=True)
    spec = lower >> md.Silu() >> md.Grown(md.Dense(VALUE), second, trainable=True)
    return md.build(spec, md.Dims(model=KEY), key=jax.random.key(0))


def draw(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def batch(turn: int) -> tuple[np.ndarray, np.ndarray]:
    return draw(2 * turn, BATCH, KEY), draw(2 * turn + 1, BATCH, VALUE)


def half_square(predictions: jax.Array, targets: jax.Array) -> jax.Array:
    return 0.5 * jnp.mean(jnp.sum((predictions - targets) ** 2, axis=-1))


OPTIMISER = md.grow.slotwise(optax.adam(1e-2))


@eqx.filter_jit
def step(model: Any, moments: Any, x: Any, y: Any) -> tuple[Any, Any, Any]:
    loss, gradients, pairs = md.grow.backward(half_square, model, x, y)
    parameters = md.grow.parameters(model)
    updates, moments = OPTIMISER.update(gradients, moments, parameters, model=model)
    model = md.grow.write(eqx.apply_updates(model, updates), pairs)
    return model, moments, (loss, pairs)


def train(model: Any, mesh: Any = None, steps: int = 3) -> tuple[Any, Any, Any]:
    """The model, its moments, and the loss and the pairs of the last step."""
    moments, seen = OPTIMISER.init(md.grow.parameters(model)), None
    for turn in range(steps):
        rows = batch(turn)
        if mesh is not None:
            rows = md.grow.shard_batch(rows, mesh)
        model, moments, seen = step(model, moments, *rows)
    return model, moments, seen


def error(one: Any, other: Any) -> float:
    """The largest difference of two trees of arrays, relative to the size of each array."""
    worst = 0.0
    for a, b in zip(*(map(on_host, jax.tree.leaves(tree)) for tree in (one, other)), strict=True):
        finite = np.isfinite(a)
        if a.shape != b.shape or not np.array_equal(a[~finite], b[~finite]):
            return float("inf")
        size = 1 + np.max(np.abs(a[finite]), initial=0)
        worst = max(worst, float(np.max(np.abs(a[finite] - b[finite]), initial=0) / size))
    return worst


def mesh_of(sizes: tuple[int, int]) -> Any:
    return jax.make_mesh(sizes, ("atoms", "data"))


def trained(name: str, mesh: str) -> dict[str, float]:
    """Three steps of a net, on a mesh and on one device: the model, the moments, the loss, the pairs."""
    where = mesh_of(MESHES[mesh])
    one, two = train(net(name)), train(md.grow.shard(net(name), where), where)
    parts = "model", "moments", "loss and pairs"
    found = {part: error(a, b) for part, a, b in zip(parts, one, two, strict=True)}
    layer = md.grow.growing(two[0])[0]
    there = layer.state.keys.sharding.shard_shape(layer.state.keys.shape)
    return found | {"slots of a device": there[0]}


def traffic(*names: str) -> dict[str, int]:
    """The most numbers that any one collective moves in a step, where there are 1024 slots."""
    spec = md.Dense(HIDDEN)
    for name in names:
        wide = MEMORIES[name].replace(capacity=MEMORIES[name].capacity.replace(size=1024))
        spec = spec >> md.Grown(md.Dense(HIDDEN), wide)
    model = md.build(spec, md.Dims(model=KEY), key=jax.random.key(0))
    mesh = mesh_of((4, 2))
    model, rows = md.grow.shard(model, mesh), md.grow.shard_batch((batch(0)[0], batch(1)[0]), mesh)

    def grown(model: Any, x: Any, y: Any) -> Any:
        loss, _, pairs = md.grow.backward(lambda a, b: half_square(a[:, :KEY], b), model, x, y)
        return md.grow.write(model, pairs), loss

    program = eqx.filter_jit(grown).lower(model, *rows).compile().compiled.as_text()
    return {"largest": max(collectives(program)), "collectives": len(collectives(program))}


def collectives(program: str) -> list[int]:
    """How many numbers each collective of a compiled program gives out."""
    kinds = "all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter"
    found = re.findall(rf" = (\(.*?\)|\S+) (?:{kinds})(?:-start)?\(", program)
    shapes = [re.findall(r"\[([\d,]*)\]", shape) for shape in found]
    return [
        sum(int(np.prod([int(n) for n in sizes.split(",") if n])) for sizes in each)
        for each in shapes
    ]


def one_layer(name: str) -> Any:
    spec = md.Grown(md.Dense(VALUE), MEMORIES[name], trainable=True)
    return md.build(spec, md.Dims(model=KEY), key=jax.random.key(0))


def fitted(model: Any, rows: Any, folder: str | None = None, epochs: int = 2) -> Any:
    settings = {"test": rows, "folder": folder, "progress": False, "check": False}
    return md.grow.fit(
        model, rows, half_square, optax.adam(1e-2), epochs=epochs, batch=8, **settings
    )


def fits() -> dict[str, float]:
    """`fit` on a mesh, and one that begins on a mesh, goes on on another, and is found by one device."""
    rows = draw(90, 32, KEY), draw(91, 32, VALUE)
    alone, model = fitted(one_layer("merges"), rows), one_layer("merges")
    first, second = mesh_of((8, 1)), mesh_of((4, 2))
    with tempfile.TemporaryDirectory() as folder:
        fitted(md.grow.shard(model, first), md.grow.shard_batch(rows, first), folder, epochs=1)
        on = fitted(md.grow.shard(model, second), md.grow.shard_batch(rows, second), folder)
        off = fitted(model, rows, folder)
        left = sorted(path.name for path in Path(folder).iterdir())
    spread = {str(x.sharding.spec) for x in jax.tree.leaves((on.model, on.moments))}
    return {
        "model": error(alone.model, on.model),
        "moments": error(alone.moments, on.moments),
        "history": float(max(np.max(np.abs(alone.history[c] - on.history[c])) for c in COLUMNS)),
        "restored exactly": error(on.model, off.model),
        "epochs": len(off.history),
        "where": " ".join(sorted(spread)),
        "files": " ".join(left),
    }


COLUMNS = ("loss", "test_loss", "atoms")


def asked() -> dict[str, float]:
    """What is asked of a model between steps: who made an answer, how far to step, more room."""
    mesh = mesh_of((4, 2))
    model, _, _ = train(one_layer("merges"))
    there = md.grow.shard(model, mesh)
    query, rows = draw(80, KEY), batch(9)
    one, two = (md.grow.attribute(each, query) for each in (model, there))
    answer = eqx.filter_jit(lambda model, x: model(x))
    rates = [md.grow.suggest_rate(half_square, each, *rows) for each in (model, there)]
    larger = [md.grow.resize(each, 48) for each in (model, there)]
    return {
        "answer": error(answer(model, query), answer(there, query)),
        "ids": error(one.ids, two.ids),
        "contributions": error(one.contributions, two.contributions),
        "rate": abs(rates[0].rate[0] / rates[1].rate[0] - 1),
        "resized": error(larger[0], larger[1]),
        "slots of a device": larger[1].state.keys.sharding.shard_shape((48, KEY))[0],
        "smaller": error(md.grow.resize(larger[0], 36), md.grow.resize(larger[1], 36)),
    }


def refused() -> dict[str, str]:
    """What is said of sizes that do not fit a mesh."""
    mesh = mesh_of((4, 2))
    model = md.grow.shard(one_layer("ring"), mesh)
    odd = md.grow.resize(one_layer("ring"), 30)
    rows = md.grow.shard_batch((draw(1, 12, KEY), draw(2, 12, VALUE)), mesh)
    calls: dict[str, Callable[[], Any]] = {
        "slots": lambda: md.grow.shard(odd, mesh),
        "resize": lambda: md.grow.resize(model, 33),
        "rows": lambda: md.grow.shard_batch(draw(1, 9, 2), mesh),
        "batch": lambda: md.grow.fit(model, rows, half_square, epochs=1, batch=3, progress=False),
        "axis": lambda: md.grow.shard(model, mesh, atoms="slots"),
    }
    found = {}
    for name, call in calls.items():
        try:
            call()
        except md.SpecError as error:
            found[name] = str(error)
    return found


def stack() -> dict[str, float]:
    """Equal growing layers, where the slots are the second axis of arrays; on one without slots."""
    linear = md.Grown(md.Dense(KEY), md.Memory(md.Dot(), md.Hebb(0.1)))
    twice = md.Repeat(md.Residual(md.Grown(md.Dense(KEY), MEMORIES["merges"])), 2)
    spec, mesh = linear >> twice >> md.Dense(VALUE), mesh_of((4, 2))
    model = md.build(spec, md.Dims(model=KEY), key=jax.random.key(0))
    one, two = train(model), train(md.grow.shard(model, mesh), mesh)
    keys = md.grow.growing(two[0])[1].state.keys
    return {
        "model": error(one[0], two[0]),
        "pairs": error(one[2], two[2]),
        "slots of a device": keys.sharding.shard_shape(keys.shape)[1],
    }


def saved(folder: Path) -> dict[str, Any]:
    """A checkpoint of a model that goes on at once, loaded onto another mesh and onto one device."""
    mesh, other = mesh_of((4, 2)), mesh_of((8, 1))
    model, moments, _ = train(md.grow.shard(net("ring, merges"), mesh), mesh)
    kept = jax.tree.map(np.array, jax.tree.leaves((model, moments)))
    np.savez(folder / "kept.npz", *kept)
    overwrite = eqx.filter_jit(lambda tree: jax.tree.map(lambda x: x + 1, tree), donate="all")
    with md.grow.Checkpoints(folder / "steps") as checkpoints:
        checkpoints.save(5, model, moments)
        overwrite(eqx.filter((model, moments), eqx.is_array))
        checkpoints.wait()
        there, alone = checkpoints.load(mesh=other), checkpoints.load(5)
        like = OPTIMISER.init(md.grow.parameters(there))
        again = checkpoints.load_moments(like)
    state = there.layers[2].state
    return {
        "other mesh": error(kept, jax.tree.leaves((there, again))),
        "one device": error(kept[: len(jax.tree.leaves(model))], jax.tree.leaves(alone)),
        "spec": alone.spec == model.spec,
        "slots of a device": state.keys.sharding.shard_shape(state.keys.shape)[0],
        "shards": [layer.state.shards is None for layer in md.grow.growing(alone)],
    }


def killed(folder: Path) -> None:
    """Saves a further checkpoint, and is killed when all of it is written, but for its name."""
    rename = os.rename

    def die(source: Any, target: Any) -> None:
        if Path(target).name == "6":
            os.kill(os.getpid(), signal.SIGKILL)
        rename(source, target)

    os.rename = die
    with md.grow.Checkpoints(folder / "steps") as checkpoints:
        checkpoints.save(6, md.grow.shard(net("ring, merges"), mesh_of((8, 1))))
        checkpoints.wait()


def pair(port: str, index: str, folder: Path, fit: bool) -> dict[str, Any]:
    """One of two processes: a step of both together, beside one device of its own."""
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"localhost:{port}", 2, int(index), initialization_timeout=60)
    mesh, other, model = mesh_of((2, 2)), mesh_of((4, 1)), one_layer("merges")
    if fit:
        rows = draw(90, 32, KEY), draw(91, 32, VALUE)
        placed = md.grow.shard(model, mesh), md.grow.shard_batch(rows, mesh)
        one, two = fitted(model, rows), fitted(*placed, str(folder / "fit"))
        again = fitted(*placed, str(folder / "fit"))
        made = [md.grow.attribute(each.model, draw(80, KEY)) for each in (one, two)]
        return {
            "model": error(one.model, two.model),
            "moments": error(one.moments, two.moments),
            "restored exactly": error(two.model, again.model),
            "attributed": error(*[each.contributions for each in made]),
            "rows": len((folder / "fit" / "history.csv").read_text().splitlines()),
        }
    one, two = train(model, steps=2), train(md.grow.shard(model, mesh), mesh, steps=2)
    with md.grow.Checkpoints(folder / "steps") as checkpoints:
        checkpoints.save(5, two[0])
        checkpoints.wait()
        there = checkpoints.load(mesh=other)
    return {
        "devices": len(jax.devices()),
        "model": error(one[0], two[0]),
        "moments": error(one[1], two[1]),
        "loss and pairs": error(one[2], two[2]),
        "restored exactly": error(two[0], there),
        "slots of a device": two[0].state.keys.sharding.shard_shape((SLOTS, KEY))[0],
    }


def some(folder: Path) -> dict[str, Any]:
    """What is looked at always."""
    return {
        "ring, merges": trained("ring, merges", "4x2"),
        "reweight, nearest": trained("reweight, nearest", "4x2"),
        "traffic": traffic("ring", "merges"),
        "refused": refused(),
        "saved": saved(folder),
    }


def more() -> dict[str, Any]:
    """What is looked at by the slow tests."""
    return {
        "ring, merges on 8x1": trained("ring, merges", "8x1"),
        "ring, merges on 1x8": trained("ring, merges", "1x8"),
        "least used, smallest": trained("least used, smallest", "4x2"),
        "traffic of evictions": traffic("least used", "smallest"),
        "traffic of reweight": traffic("reweight"),
        "stack": stack(),
        "asked": asked(),
        "fits": fits(),
    }


def main(what: str, *rest: str) -> None:
    warnings.simplefilter("error")
    folder = Path(rest[-1]) if rest else Path()
    match what:
        case "some":
            print(json.dumps(some(folder)), flush=True)
            killed(folder)
        case "more":
            print(json.dumps(more()), flush=True)
        case "pair" | "pair fit":
            print(json.dumps(pair(*rest[:2], folder, what == "pair fit")), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
