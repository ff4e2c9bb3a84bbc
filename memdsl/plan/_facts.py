"""What a plan can say about a memory: its equation, its state, its references."""

from typing import Any

from ..spec._facts import one_pair
from ..spec._gate import (
    admissions,
    Decay,
    DiagonalDecay,
    forgets,
    Householder,
    KeyDecay,
    Reset,
    ValueDecay,
)
from ..spec._memory import Memory
from ..spec._read import Normalised
from ..spec._write import Delta, Descent, Hebb, Repeated, Reweight, Ridge
from ._dims import Dims
from ._prepare import kept_size


def meaning(m: Memory) -> str:
    """The memory's recurrence in one line."""
    fades = {
        Decay: "f ← α f",
        DiagonalDecay: "f ← diag(α) f",
        ValueDecay: "f ← f · α",
        KeyDecay: "kᵢ ← diag(α) kᵢ",
        Householder: "kᵢ ← (I − β w wᵀ) kᵢ",
    }
    lines = [fades[type(g)] for g in forgets(m.gate) if type(g) in fades]
    if any(isinstance(g, Reset) for g in forgets(m.gate)):
        lines.insert(0, "f ← 0 at starts")
    lines.append(_written(m))
    if admissions(m.gate):
        lines[-1] += " if admitted"
    lines.append(_read(m))
    if m.read.is_before():
        lines = [lines[-1], *lines[:-1]]
    return ";   ".join(lines)


def _written(m: Memory) -> str:
    write: Any = one_pair(m.write)
    times = f" ({m.write.count} pairs a token)" if isinstance(m.write, Repeated) else ""
    match write:
        case Hebb():
            rate = "" if write.rate == 1.0 else "β "
            return f"f ← f + κ(k,·) {rate}v{times}"
        case Delta():
            asked = "f(k)" if write.recall == "decayed" else "f₋(k)"
            asked = asked.replace("(k)", "(e)") if write.erase == "own" else asked
            target = "v" if write.write_gate is None else "w·v"
            if write.on == "atoms":
                return f"c ← c + β h ({target} − {asked}), h = κ(K,k)"
            rate = "" if write.rate == 1.0 else "β "
            rate = "β/(1+βκ(k,k)) " if write.implicit else rate
            if write.remove == "own":
                return f"f ← f + κ(k,·) {rate}{target} − κ(r,·) {rate}{asked}"
            return f"f ← f + κ(k,·) {rate}({target} − {asked}){times}"
        case Ridge():
            return "f = argmin Σ w ‖f(k) − v‖² + λ ‖f‖²"
        case Descent():
            what = f"∇{type(write.loss).__name__}(f(k), v)"
            what = what if write.window == 1 else f"Σ over the latest {write.window} of {what}"
            if write.momentum is None:
                return f"f ← f − κ(k,·) β {what}"
            return f"s ← μ s − κ(k,·) β {what};   f ← f + s"
        case Reweight():
            return f"(N, D) ← (N, D) + κ(k,·) β/D(k) (−σ² g, w),  w: {write.negative}"
        case _:
            return f"f ← f + κ(k,·) {type(write).__name__}(v, f(k))"


def _read(m: Memory) -> str:
    core: Any = m.read.core()
    scale = "" if core.scale == 1.0 else "c "
    top = "" if m.read.top() is None else f" of the {m.read.top()} nearest"
    if isinstance(core, Normalised):
        prior = "" if core.prior == 0.0 else " + p"
        mass = f"({scale}D(q){prior})" if scale or prior else "D(q)"
        return f"y = {scale}N(q) / {mass}{top}"
    return f"y = {scale}f(q){top}"


def state_shape(m: Memory, representation: str, dims: Dims) -> tuple[str, int]:
    """`(shape, floats)` of one head's state."""
    key, value = dims.key or 64, dims.value or 64
    size = kept_size(m, key, representation)
    write: Any = m.write
    columns = 2 * value if isinstance(write, Descent) and write.momentum is not None else value
    mass = m.read.needs_mass()
    if representation == "gram":
        return f"{size} × {size} + {size} × {value}", size * (size + value)
    if representation == "matrix":
        return f"{size} × {columns}" + (f" + {size}" if mass else ""), size * (columns + mass)
    slots = m.capacity.slots()
    count = int(slots) if slots < 1e18 else (dims.time or 0)
    shown = f"{count} × ({size} + {columns}{' + 1' if mass else ''})"
    return shown, count * (size + columns + mass)


def kernel_line(m: Memory, dims: Dims) -> str:
    """The kernel, and what is known of it."""
    kernel = m.kernel
    rank = kernel.rank(dims.key or 64)
    facts = [f"{int(rank)} features" if rank < 1e18 else "no finite features"]
    own = kernel.value_at_itself()
    if own is not None:
        facts.append(f"κ(k,k) = {own:g}")
    if kernel.is_nonnegative():
        facts.append("never below 0")
    return f"{kernel!r}   {', '.join(facts)}"
