"""Training from the first batch to the last: epochs, tests, early stops, and going on after a kill."""

import contextlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, PyTree
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from .._errors import SpecError
from .._types import checked
from ._backward import backward
from ._checkpoint import fingerprint, Keeper, Training
from ._history import EarlyStop, History
from ._layers import counted, growing, parameters
from ._rates import suggest_rate
from ._shard import beside, check_rows, home, kept, places
from ._slotwise import slotwise, SlotwiseState
from ._write import write


class Fit(NamedTuple):
    """What `md.grow.fit` came to."""

    model: Any
    """The model after the last step."""
    best: Any
    """The model after the best epoch by `stop`; without one, the last."""
    history: History
    """A row an epoch."""
    moments: Any
    """The state of the optimiser, `None` without one."""
    stopped: bool
    """Whether `stop` ended it."""


@checked
def fit(
    model: Callable[[Any], Any],
    data: tuple[PyTree[Array | np.ndarray], ...],
    loss: Callable[..., Array],
    optimiser: optax.GradientTransformation | None = None,
    *,
    epochs: int,
    batch: int,
    seed: int = 0,
    test: tuple[PyTree[Array | np.ndarray], ...] | None = None,
    metrics: Mapping[str, Callable[..., Array]] | None = None,
    stop: EarlyStop | None = None,
    folder: str | os.PathLike[str] | None = None,
    save_every: int | None = None,
    progress: bool = True,
    check: bool = True,
) -> Fit:
    """Trains a model: the optimiser moves its parameters, and `md.grow.write` grows its layers.

    A step takes one batch: `backward`, the optimiser's update, then `write`. An epoch takes the rows
    in a new order, given by the seed and its number alone; rows that fill no batch wait for another
    epoch. Trainable atoms are trained through `md.grow.slotwise`, unless the optimiser has it in
    itself already. A model in which nothing grows is trained all the same.

    With a folder, the training is saved there after every epoch, in one file that is replaced when
    the next is whole, with the history as CSV beside it. The same call goes on where the last one
    was killed, at whatever moment, and comes to the same numbers, bit for bit, as without it (where
    the machine and the versions are the same, and sums on the device have one order, as on a CPU). A
    finished training can be given more epochs.

    **Arguments:**

    - `model`: any callable pytree, `model(example)`. It is copied, not changed.
    - `data`: `(inputs, ...)`, all with one row an example; what is after the inputs goes to the loss.
    - `loss`: `loss(predictions, *labels)`, a scalar.
    - `optimiser`: of `md.grow.parameters(model)`; `None` trains nothing but what grows.
    - `epochs`: how many passes in all, those before a kill counted.
    - `batch`: rows in a step; also of what is predicted at once in a test.
    - `seed`: of the orders.
    - `test`: as `data`; its loss, and the metrics, are taken after every epoch.
    - `metrics`: by name, `metric(predictions, *labels)`, a scalar.
    - `stop`: when to stop early, and which epoch is the best.
    - `folder`: where to save; it is made if need be.
    - `save_every`: also save after so many steps of an epoch.
    - `progress`: whether to show a bar.
    - `check`: whether to look at the rates of growing layers first, and warn: see `suggest_rate`.

    **Returns:** `Fit`. The columns of its history are `epoch`, `step`, `loss` (the mean of the
    epoch's steps), `test_loss` and `test_` with the name of each metric, `atoms`, which all growing
    buffers hold, and, where masses can be below 0, `guarded`: how many pairs so far met a mass too
    near to 0 to divide by (see `Normalised`).

    **Raises:** `SpecError` for data that cannot be cut into batches, a column of `stop` that there
    is not, and a folder that holds another training.

    ??? example

        ```python
        >>> import jax
        >>> import jax.numpy as jnp
        >>> import memdsl as md
        >>> import optax
        >>> atoms = md.Memory(md.RBF(scale=0.3), md.Hebb(rate=4.0), capacity=md.Budget(400))
        >>> net = md.Grown(md.Dense(1), atoms)
        >>> model = md.build(net, md.Dims(model=2), key=jax.random.key(0))
        >>> inputs = jax.random.uniform(jax.random.key(1), (120, 2))
        >>> targets = jnp.sin(6 * inputs[:, :1])
        >>> def half_square(y, targets):
        ...     return 0.5 * jnp.mean(jnp.sum((y - targets) ** 2, axis=-1))
        >>> fitted = md.grow.fit(
        ...     model,
        ...     (inputs[:100], targets[:100]),
        ...     half_square,
        ...     optax.sgd(0.1),
        ...     epochs=3,
        ...     batch=10,
        ...     test=(inputs[100:], targets[100:]),
        ...     progress=False,
        ... )
        >>> fitted.history.columns
        ('epoch', 'step', 'loss', 'test_loss', 'atoms')
        >>> print(fitted.history["atoms"], bool(fitted.history["test_loss"][-1] < 0.02))
        [100. 200. 300.] True

        ```

    What is trained how is section 3 of "Retrieval-Centric Deep Learning". There the pairs of a step
    are of the atoms before the optimiser moved them; here the optimiser is first.
    """
    metrics = dict(metrics or {})
    rows = _check(data, test, metrics, epochs, batch, save_every, stop)
    steps = rows // batch
    held, fixed = eqx.partition(model, eqx.is_array)
    data, test = beside(jax.tree.map(jnp.asarray, (data, test)), home(held))
    for x in jax.tree.leaves(data):
        check_rows(batch, x.sharding)  # a batch lies on a mesh as the data do
    step, moments = _make_step(loss, model, optimiser, places(data))
    score = _make_score(loss, metrics, batch)

    held, moments = jax.tree.map(_copy, (held, moments))  # the steps may then overwrite them
    best = jax.tree.map(_copy, held) if stop else None
    run = Training(held, moments, best, np.zeros(steps, np.float64), 0, 0, [])
    keeper = None
    if folder is not None:
        settings = {"seed": seed, "batch": batch, "metrics": [*metrics], "stop": _judges(stop)}
        marks = fingerprint((data, test), run, settings)
        keeper = Keeper(Path(folder), marks, home(held) is not None)
        run = keeper.restore(run)
    if check and epochs and (run.epoch, run.position) == (0, 0) and growing(model):
        suggest_rate(loss, model, *_take(data, _order(seed, 0, rows, batch)[0])).check()

    columns = (
        TextColumn("epoch {task.fields[epoch]}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[news]}"),
    )
    shown = progress and jax.process_index() == 0
    saving = contextlib.nullcontext() if keeper is None else contextlib.closing(keeper)
    with saving, Progress(*columns, disable=not shown) as bar:
        task = bar.add_task("", total=epochs * steps, epoch=f"{run.epoch}/{epochs}", news="")
        while run.epoch < epochs and not _reached(stop, run.rows):
            bar.update(task, epoch=f"{run.epoch + 1}/{epochs}")
            order = _order(seed, run.epoch, rows, batch)
            losses: list[Any] = []
            for at in range(run.position, steps):
                held, moments, value = step((data, order[at], fixed), run.model, run.moments)
                losses.append(value)
                run = run._replace(model=held, moments=moments)
                bar.update(task, completed=run.epoch * steps + at + 1)
                whole = at + 1 == steps
                if whole or (save_every and (at + 1) % save_every == 0):
                    run, losses = _gathered(run, losses, at + 1), []
                    if keeper is not None and not whole:
                        keeper.store(run)
            scores = score(eqx.combine(run.model, fixed), test)
            run = _end_of_epoch(run, scores, [*metrics], stop)
            bar.update(
                task, news="  ".join(f"{n} {x:.4g}" for n, x in list(run.rows[-1].items())[2:])
            )
            if keeper is not None:
                keeper.store(run)
    last = eqx.combine(run.model, fixed)
    return Fit(
        last,
        last if stop is None else eqx.combine(run.best, fixed),
        History(run.rows),
        run.moments,
        _reached(stop, run.rows),
    )


def _copy(x: Any) -> Any:
    return jnp.copy(x) if eqx.is_array(x) else x


def _order(seed: int, epoch: int, rows: int, batch: int) -> np.ndarray:
    """The rows of every step of an epoch."""
    order = np.random.default_rng([seed, epoch]).permutation(rows)
    return order[: rows // batch * batch].reshape(-1, batch).astype(np.int32)


def _take(data: Any, rows: Any) -> Any:
    return jax.tree.map(lambda x: x[rows], data)


def starting(model: Any, optimiser: optax.GradientTransformation | None) -> tuple[Any, Any]:
    """`(optimiser, moments)`: ready for `advance`, wrapped in `slotwise` unless that is in it already."""
    if optimiser is None:
        return None, None
    weights = parameters(model)
    trains: Any = optax.with_extra_args_support(optimiser)
    moments = trains.init(weights)
    held = jax.tree.leaves(moments, is_leaf=lambda x: isinstance(x, SlotwiseState))
    if not any(isinstance(part, SlotwiseState) for part in held):
        trains = slotwise(optimiser)
        moments = trains.init(weights)
    return trains, moments


def advance(
    loss: Any, model: Any, optimiser: Any, moments: Any, *batch: Any
) -> tuple[Any, Any, Array]:
    """`(model, moments, loss)` after one step: the optimiser's update first, then the write."""
    value, gradients, pairs = backward(loss, model, *batch)
    if optimiser is not None:
        updates, moments = optimiser.update(gradients, moments, parameters(model), model=model)
        model = eqx.apply_updates(model, updates)
    return write(model, pairs), moments, value


def _make_step(
    loss: Any, model: Any, optimiser: optax.GradientTransformation | None, rows: Any
) -> tuple[Callable[..., Any], Any]:
    """`(step, moments)`: one compiled step, `(arrays, moments, loss)`, and the optimiser's start.

    What a step returns lies where it lay, and its batch where the data lie: `rows`, their places.
    """
    trains, moments = starting(model, optimiser)
    moments = beside(moments, home(model))
    stays = places((eqx.filter(model, eqx.is_array), moments))

    @eqx.filter_jit(donate="all-except-first")
    def step(given: Any, held: Any, moments: Any) -> tuple[Any, Any, Array]:
        data, order, fixed = given
        model, moments, value = advance(
            loss, eqx.combine(held, fixed), trains, moments, *kept(_take(data, order), rows)
        )
        return *kept((eqx.filter(model, eqx.is_array), moments), stays), value

    return step, moments


def _make_score(loss: Any, metrics: dict[str, Any], batch: int) -> Callable[..., Any]:
    """One compiled test: its loss, its metrics, and what the growing buffers count."""

    @eqx.filter_jit
    def score(model: Any, test: Any) -> dict[str, Array]:
        found = {}
        if test is not None:
            inputs, *labels = test
            predictions = jax.lax.map(model, inputs, batch_size=batch)
            found["test_loss"] = loss(predictions, *labels)
            found |= {f"test_{name}": f(predictions, *labels) for name, f in metrics.items()}
        return found | counted(model)

    return score


def _gathered(run: Training, losses: list[Any], position: int) -> Training:
    """The training with the losses of the last steps, which waits for them."""
    whole = run.losses.copy()
    whole[position - len(losses) : position] = jax.device_get(losses)
    return run._replace(losses=whole, position=position)


def _end_of_epoch(
    run: Training, scores: dict[str, Array], metrics: list[str], stop: EarlyStop | None
) -> Training:
    epoch, steps = run.epoch + 1, len(run.losses)
    row = {"epoch": epoch, "step": epoch * steps, "loss": float(np.mean(run.losses))}
    for name in ("test_loss", *(f"test_{metric}" for metric in metrics), "atoms", "guarded"):
        if name in scores:
            row[name] = np.asarray(scores[name]).item()
    run = run._replace(epoch=epoch, position=0, rows=[*run.rows, row])
    if stop is not None and stop.best([row[stop.column] for row in run.rows]) == epoch - 1:
        run = run._replace(best=jax.tree.map(_copy, run.model))
    return run


def _judges(stop: EarlyStop | None) -> list[Any] | None:
    """What decides which epoch is the best; how long to wait for a better one may change."""
    return None if stop is None else [stop.column, stop.highest, stop.by]


def _reached(stop: EarlyStop | None, rows: list[dict[str, float]]) -> bool:
    return stop is not None and stop.reached([row[stop.column] for row in rows])


def _check(
    data: Any,
    test: Any,
    metrics: dict[str, Any],
    epochs: int,
    batch: int,
    save_every: int | None,
    stop: EarlyStop | None,
) -> int:
    """How many rows the data has, or `SpecError`."""
    sizes = {len(x) for x in jax.tree.leaves(data)}
    if len(sizes) != 1:
        raise SpecError(
            f"The data of fit is one tuple of arrays with as many rows, and these have {sorted(sizes)}.",
            instead="(inputs, targets).",
        )
    (rows,) = sizes
    for name, value, most in (
        ("batch", batch, rows),
        ("epochs", epochs, None),
        ("save_every", 1 if save_every is None else save_every, None),
    ):
        least = 0 if name == "epochs" else 1
        if not isinstance(value, int) or value < least or (most is not None and value > most):
            raise SpecError(
                f"fit got {name}={value!r}.",
                instead=f"a whole number from {least}"
                + (f" to {most}, the rows." if most else "."),
            )
    if metrics and test is None:
        raise SpecError("Metrics are of a test, and there is none.", instead="test=(inputs, ...).")
    known = ["loss", *(["test_loss", *(f"test_{name}" for name in metrics)] if test else [])]
    if stop is not None and stop.column not in known:
        raise SpecError(
            f"There is no column {stop.column!r} to stop by.", instead=f"one of {', '.join(known)}."
        )
    return rows
