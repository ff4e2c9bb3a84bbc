"""A page about a dual optimiser: what a step does, and what it costs for the layers of a model."""

import math
from typing import Any, NamedTuple

import equinox as eqx
import jax

from .._types import checked
from ..grow._layers import parameters
from ..plan._explain import in_bytes, row
from ..spec._gate import Keep
from ..spec._write import ConjugateGradient
from ._backward import check_captured
from ._matrices import every, linear, tensors, Trained, without
from ._rule import Options, Rule, rule_of
from ._solved import Solved
from ._step import Explicit, Implicit


class Work(NamedTuple):
    """Operations on numbers, a multiplication with an addition being two."""

    step: float
    """In every training step."""
    row: float
    """For every input of the layer, beside its forward and backward pass."""


@checked
def explain(memory: Any, captured: Any, **options: Any) -> str:
    """A page about the dual of a memory: its equations, and its cost for every layer of a model.

    **Arguments:**

    - `memory`, `options`: as for `md.optim.dual`, without the rate and the base.
    - `captured`: of `md.optim.capture`.

    **Returns:** the page. A layer is `out × in`, the 1 of a bias among its inputs; what is kept is that
    of the memory, beside the state of the base optimiser; and the work is that of a training step, and
    of every input of the layer beside its own two passes.

    **Raises:** `SpecError` as `md.optim.dual`.

    ??? example

        ```python
        >>> import equinox as eqx
        >>> import jax
        >>> import jax.numpy as jnp
        >>> import memdsl as md
        >>> model = eqx.nn.MLP(196, 10, 128, 1, key=jax.random.key(0))
        >>> captured = md.optim.capture(model, jnp.ones((100, 196)))
        >>> mesa = md.Memory(md.Dot(), md.Ridge(1.0), md.Decay(0.95))
        >>> print(md.optim.explain(mesa, captured, ridge="relative", average=True))
        Optimiser  the dual of Ridge(), Decay(0.95)
          meaning    R ← γ R + S̄;   W ← W − η G H⁻¹,   H = R/N + λ mean(R/N) I
          layer      layers[0].weight    128 × 197      152 KiB  12.5 Mflop a step, 77.6 kflop an input
                     layers[1].weight    10 × 129        65 KiB  1.05 Mflop a step, 33.3 kflop an input
          base       nothing
          kept       217 KiB beside 104 KiB of parameters

        ```
    """
    check_captured(captured)
    rule, params = rule_of(memory, Options(**options)), parameters(captured)
    trained = linear(params) if rule.step.needs_matrices() else every(params)
    lines = [f"Optimiser  the dual of {_named(rule)}", row("meaning", meaning(rule))]
    kept = [_kept(rule, one, tensors(params)) for one in trained]
    for index, (one, size) in enumerate(zip(trained, kept, strict=True)):
        lines.append(row("layer" if index == 0 else "", _layer(rule, one, params, size)))
    rest = tensors(without(params, trained))
    count = sum(leaf.size for leaf in rest.values())
    listed = f"{count} numbers: {', '.join(_short(name) for name in rest)}" if rest else "nothing"
    lines.append(row("base", listed))
    known = sum(leaf.size * leaf.dtype.itemsize for leaf in tensors(params).values())
    lines.append(row("kept", f"{in_bytes(sum(kept))} beside {in_bytes(known)} of parameters"))
    return "\n".join(lines)


def _named(rule: Rule) -> str:
    gate = rule.memory.gate
    return f"{rule.memory.write!r}" + ("" if isinstance(gate, Keep) else f", {gate!r}")


def _short(name: str) -> str:
    return name.removeprefix(".model").removeprefix(".")


def _layer(rule: Rule, one: Trained, params: Any, kept: float) -> str:
    *stack, out, size = one.of(tensors(params)).shape if one.projection else (1, 1)
    count = math.prod(stack)
    if one.projection is None:
        return f"{_short(one.weight):<32}{in_bytes(kept):>10}"
    work = _work(rule.step, out, size, one.is_table)
    shape = " × ".join(str(n) for n in (*stack, out, size))
    costs = f"{_flops(count * work.step)} a step, {_flops(count * work.row).strip()} an input"
    return f"{_short(one.weight):<20}{shape:<12}{in_bytes(kept):>10} {costs}"


def _flops(count: float) -> str:
    for unit in ("flop", "kflop", "Mflop", "Gflop"):
        if count < 1000 or unit == "Gflop":
            return f"{f'{count:.3g} {unit}':>11}"
        count /= 1000
    raise AssertionError


def _kept(rule: Rule, one: Trained, tree: dict[str, Any]) -> float:
    """How many bytes are kept of a tensor."""

    def begin(tree: dict[str, Any]) -> Any:
        memory = rule.grounded(rule.knobs(), jax.numpy.zeros((), int), jax.numpy.float32)
        return rule.step.begin(memory, one.of(tree), one.is_table)

    found = eqx.filter_eval_shape(begin, tree)
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(found))


def _work(step: Any, out: int, size: int, table: bool) -> Work:
    """What a step of one matrix costs."""
    if table:
        return Work(4.0 * out * size, 1.0)
    square, solve, cube = 2.0 * out * size**2, 2.0 * out * size**2, size**3 / 3
    match step:
        case Explicit(delta=False):
            return Work(
                30.0 * min(out, size) ** 2 * max(out, size) if step.orthogonal else 0.0, 0.0
            )
        case Explicit():
            return Work(square, 2.0 * size**2)
        case Implicit():
            return Work(square + solve + cube, 2.0 * size**2)
        case Solved(recursive=True):
            return Work(square, 6.0 * size**2)
        case Solved(solver=ConjugateGradient(steps=steps)):
            return Work(steps * square, 2.0 * size**2)
        case _:
            return Work(solve + cube / step.refresh, 2.0 * size**2)


def meaning(rule: Rule) -> str:
    """The equations of a step, in one line."""
    decays = not isinstance(rule.memory.gate, Keep)
    faded = "γ W" if decays else "W"
    match rule.step:
        case Explicit():
            return _explicit(rule.step, rule.memory.write, faded)
        case Implicit(target=target):
            wrong = "((γ − 1) W S̄ + η G)" if decays else "η G"
            error = wrong if target else f"({faded} S̄ + η G)"
            return f"W ← {faded} − {error} (S̄ + I/β)⁻¹"
        case _:
            return _of_ridge(rule.step, decays)


def _explicit(step: Any, write: Any, faded: str) -> str:
    recalled = faded if not step.previous else "W"
    error = "η G"
    if step.delta and not step.target:
        error = f"({recalled} S̄ + η G)"
    elif step.delta and recalled != "W":
        error = f"(({recalled} − W) S̄ + η G)"
    change = f"β {error}"
    if not step.momentum and not step.orthogonal:
        return f"W ← {faded} − {change}"
    moved = "M" if step.momentum else f"(−{change})"
    moved = f"orthogonal {moved}" if step.orthogonal else moved
    gain = "" if write.gain == 1 else f"{write.gain!r} "
    last = f"W ← {faded} + {gain}{moved}"
    return f"M ← μ M − {change};   {last}" if step.momentum else last


def _of_ridge(step: Any, decays: bool) -> str:
    fade = "γ " if decays else ""
    mean = "R/N" if step.average else "R"
    matrix = {
        "constant": "R + N λ I" if step.average else "R + λ I",
        "fading": f"R + λ {'γᵗ ' if decays else ''}I",
        "centred": f"{mean} + λ I",
        "relative": f"{mean} + λ mean({mean}) I",
    }[step.ridge]
    kept = f"R ← {fade}R + S̄"
    if not step.target:
        return f"{kept};   B ← {fade}B − η G;   W ← B H⁻¹,   H = {matrix}"
    pull = ""
    if step.ridge == "constant" and (decays or step.average):
        pull = " + λ W" if step.average else " + (1 − γ) λ W"
    error = f"(η G{pull})" if pull else "η G"
    return f"{kept};   W ← W − {error} H⁻¹,   H = {matrix}"
