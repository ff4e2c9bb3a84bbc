"""Language models of characters, one memory each, on the documentation of Python."""

import dataclasses
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from time import perf_counter
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int
from rich.table import Table

import memdsl as md

from ._memories import weight_decayed
from ._report import Report, Row, SettingError, suggestion, table, write_atomically
from ._sequence import recipe
from ._text import ngram_bits, python_documentation, Text


NGRAMS = (3, 5)
PROMPT = "The :keyword:`with` statement "


@dataclass(frozen=True)
class LanguageSettings:
    """Settings of the language-model run.

    A model is an embedding, blocks x + mixer(norm(x)), x + mlp(norm(x)), a norm and an unembedding.
    It is trained on windows drawn from the first nine tenths of the text; the last tenth tests, in
    bits a character, each with at least one window of context.
    """

    memory: tuple[str, ...] = ("gated_delta_net",)
    """One or several names that memdsl list shows; NAME+NAME is a hybrid, whose blocks alternate."""
    seed: int = 0
    """The first seed; it decides the initial weights and the training windows."""
    seeds: int = 1
    """How many seeds to run: seed, seed + 1, ..."""
    steps: int = 600
    """Training steps, each on fresh windows."""
    batch: int = 32
    """Windows in a step."""
    time: int = 128
    """Characters in a window."""
    width: int = 128
    """Width of the model."""
    blocks: int = 3
    """How many blocks of a mixer and an MLP; a hybrid has as many of each memory."""
    heads: int = 4
    """Heads of a mixer."""
    rate: float = 0.006
    """Highest learning rate, after a warm-up over a tenth of the steps."""
    every: int = 150
    """Steps between tests, the points of the learning curves."""
    sample: int = 300
    """Characters that the trained model is asked to write."""

    def check(self) -> None:
        """Raises `SettingError` for a value that cannot be."""
        for name in ("seeds", "steps", "batch", "time", "width", "blocks", "heads", "every"):
            if getattr(self, name) < 1:
                raise SettingError(f"--{name} must be at least 1, not {getattr(self, name)}.")
        if self.width % self.heads:
            raise SettingError(f"--heads {self.heads} must divide --width {self.width}.")
        if not (np.isfinite(self.rate) and self.rate > 0):
            raise SettingError(f"--rate must be a positive finite number, not {self.rate}.")
        if self.seed < 0 or self.sample < 0:
            raise SettingError("--seed and --sample must be 0 or more.")
        if not self.memory:
            raise SettingError("--memory needs at least one name.")
        for name in (part for names in self.memory for part in names.split("+")):
            if name not in md.zoo.catalogue():
                near = suggestion(name, md.zoo.catalogue())
                raise SettingError(f"--memory {name}: there is no such memory here. {near}")


def language_spec(name: str, settings: LanguageSettings, vocabulary: int) -> md.AbstractLayer:
    """The whole model of a memory, or of several joined by `+`."""
    stages = [_block(md.zoo.catalogue()[part](), settings.heads) for part in name.split("+")]
    block = stages[0]
    for stage in stages[1:]:
        block = block >> stage
    body = md.Repeat(block, settings.blocks)
    return md.Embed(vocabulary) >> body >> md.Norm() >> md.Unembed()


def _block(memory: md.AbstractMemory, heads: int) -> md.AbstractLayer:
    mixer = md.Layer(memory, heads=heads, convolution=4, activation="silu", output_gate="silu")
    return md.Residual(md.Norm() >> mixer) >> md.Residual(md.Norm() >> md.Mlp(2))


def language_specs(settings: LanguageSettings) -> dict[str, Any]:
    """The spec of each model that is trained, as JSON values."""
    size = len(python_documentation().alphabet)
    specs = {name: language_spec(name, settings, size) for name in settings.memory}
    return {name: json.loads(md.to_json(spec)) for name, spec in specs.items()}


def language_settings(settings: LanguageSettings) -> dict[str, Any]:
    """The settings as JSON values, with the sizes of the text."""
    text = python_documentation()
    sizes = {"alphabet": len(text.alphabet), "train": len(text.train), "test": len(text.test)}
    return {**dataclasses.asdict(settings), "text": sizes}


class Stage(NamedTuple):
    """Where training stands at a test."""

    step: int
    train_bits: float
    test_bits: float
    model: Any


def train_language(
    model: Any, text: Text, settings: LanguageSettings, seed: int, advance: Any = lambda step: None
) -> Iterator[Stage]:
    """Trains a model on random windows of a text, and tests it now and then.

    **Arguments:**

    - `model`: from tokens `[time]` to logits `[time, alphabet]`.
    - `text`: what to train on and to test with.
    - `settings`: steps, batch, window, rate.
    - `seed`: of the windows.
    - `advance`: told the number of steps done, now and then.

    **Returns:** an iterator over the tests, which trains up to the next for each that is asked for.
    """
    weights, rest = eqx.partition(model, eqx.is_inexact_array)
    optimiser = recipe(settings.rate, settings.steps, weight_decayed(model))
    state = optimiser.init(weights)

    def loss_of(weights: Any, windows: Array) -> Array:
        logits = jax.vmap(eqx.combine(weights, rest))(windows[:, :-1])
        loss = optax.softmax_cross_entropy_with_integer_labels(logits, windows[:, 1:])
        return jnp.mean(loss)

    @jax.jit
    def step(weights: Any, state: Any, windows: Array) -> Any:
        loss, gradient = jax.value_and_grad(loss_of)(weights, windows)
        updates, state = optimiser.update(gradient, state, weights)
        return optax.apply_updates(weights, updates), state, loss

    scored = jax.jit(lambda weights, windows: _surprise(eqx.combine(weights, rest), windows))
    rng, losses = np.random.default_rng(seed), []
    last_start = len(text.train) - settings.time
    for number in range(1, settings.steps + 1):
        starts = rng.integers(0, last_start, settings.batch)
        windows = text.train[starts[:, None] + np.arange(settings.time + 1)]
        weights, state, loss = step(weights, state, jnp.asarray(windows))
        losses.append(loss)
        if number % 10 == 0:
            jax.block_until_ready(loss)
            advance(number)
        if number % settings.every == 0 or number == settings.steps:
            train = float(np.mean(jax.device_get(losses))) / math.log(2)
            test = _bits(lambda windows: scored(weights, windows), text, settings.time)  # noqa: B023
            yield Stage(number, train, test, eqx.combine(weights, rest))
            losses = []


def _surprise(model: Any, windows: Int[Array, "window time"]) -> Float[Array, "window time"]:
    """Nats of every character of the second half of a window of twice the length and one more."""
    logits = jax.vmap(model)(windows[:, :-1])
    loss = optax.softmax_cross_entropy_with_integer_labels(logits, windows[:, 1:])
    return loss[:, loss.shape[1] // 2 :]


def _bits(surprise: Any, text: Text, time: int) -> float:
    """Bits a character of the test text, each character after at least `time` others."""
    windows = tested_windows(text, time)
    size, nats = 16, []
    for start in range(0, len(windows), size):
        part = np.zeros((size, windows.shape[1]), np.int32)
        rows = windows[start : start + size]
        part[: len(rows)] = rows
        nats.append(np.asarray(surprise(jnp.asarray(part)))[: len(rows)])
    return float(np.concatenate(nats).reshape(-1)[: len(text.test)].mean() / math.log(2))


def tested_windows(text: Text, time: int) -> Int[np.ndarray, "window both"]:
    """Windows of `2 time + 1` characters: what is predicted in their second halves is the test text,
    and then zeros that fill the last."""
    count = -(-len(text.test) // time)
    line = np.concatenate([text.train[-time - 1 :], text.test, np.zeros(time, np.int32)])
    return line[np.arange(count)[:, None] * time + np.arange(2 * time + 1)]


def run_language(settings: LanguageSettings, report: Report) -> None:
    """Trains a model a memory and seed, beside n-grams, and records each test in the report.

    A row is `{"name", "seed", "bits", "parameters", "seconds"}`: bits a character of the test text,
    and wall-clock seconds with compilation and tests. What each model writes is left in
    `samples.txt`.

    **Arguments:**

    - `settings`: see `LanguageSettings`.
    - `report`: an entered `Report`.
    """
    text, samples = python_documentation(), ""
    for order in NGRAMS:
        start = perf_counter()
        row: Row = {"name": f"{order}-gram", "seed": 0, "bits": ngram_bits(text, order)}
        row |= {"parameters": None, "seconds": round(perf_counter() - start, 3)}
        report.baseline(row)
    for seed in range(settings.seed, settings.seed + settings.seeds):
        for name in dict.fromkeys(settings.memory):
            report.begin(f"{name}, seed {seed}", settings.steps, "steps")
            start = perf_counter()
            model = _model(name, settings, len(text.alphabet), seed)
            for stage in train_language(model, text, settings, seed, report.advance):
                seconds = round(perf_counter() - start, 3)
                row = {"name": name, "seed": seed, "bits": stage.test_bits}
                row |= {"parameters": parameters(model), "seconds": seconds}
                point: Row = {"name": name, "seed": seed, "step": stage.step, "seconds": seconds}
                point |= {"train_bits": stage.train_bits, "bits": stage.test_bits}
                report.record(row, point, f"{stage.test_bits:.3f} bits a character", stage.step)
                model = stage.model
            if settings.sample:
                samples += f"# {name}, seed {seed}\n{_sample(model, text, settings)}\n\n"
                write_atomically(report.folder / "samples.txt", samples)


def _model(name: str, settings: LanguageSettings, vocabulary: int, seed: int) -> md.AbstractModule:
    spec = language_spec(name, settings, vocabulary)
    dims = md.Dims(model=settings.width, time=2 * settings.time)
    return md.build(spec, dims, key=jax.random.key(seed))


def parameters(model: Any) -> int:
    """How many numbers of a model are trained."""
    return sum(x.size for x in jax.tree.leaves(eqx.filter(model, eqx.is_inexact_array)))


def _sample(model: Any, text: Text, settings: LanguageSettings) -> str:
    prompt = jnp.asarray(text.encode(PROMPT))
    key = jax.random.key(settings.seed)
    drawn = md.generate(model, prompt, settings.sample, key=key, temperature=0.7)
    return PROMPT + text.decode(np.asarray(drawn))


def language_table(rows: list[Row]) -> Table:
    """Bits a character, parameters and seconds, the best first."""
    ordered = sorted(rows, key=lambda row: row["bits"])
    lines = [
        [
            row["name"],
            str(row["seed"]),
            f"{row['bits']:.3f}",
            "" if row["parameters"] is None else f"{row['parameters']:,}",
            f"{row['seconds']:.0f}",
        ]
        for row in ordered
    ]
    columns = ["model", "seed", "bits a character", "parameters", "seconds"]
    return table("Characters of the Python documentation", columns, [lines])
