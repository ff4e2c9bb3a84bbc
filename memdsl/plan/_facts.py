"""What a plan can say about a memory: its equation, its state, its references."""

from typing import Any

from ..spec._facts import descends, one_pair, retention
from ..spec._gate import (
    AbstractRetention,
    admissions,
    Decay,
    DiagonalDecay,
    forgets,
    Householder,
    KeyDecay,
    LqNorm,
    Reset,
    Simplex,
    SoftThreshold,
    ValueDecay,
)
from ..spec._loss import After
from ..spec._memory import Leaf, Network
from ..spec._read import LocalLinear, Normalised, ranked_by
from ..spec._read_blocks import blocks_of
from ..spec._write import Delta, Descent, Hebb, Repeated, Reweight, Ridge
from ..state._descent import remembered
from ._dims import Dims
from ._prepare import kept_size


def meaning(m: Leaf) -> str:
    """The memory's recurrence in one line."""
    what = "θ" if isinstance(m, Network) else "f"
    fades = {
        Decay: f"{what} ← α {what}",
        DiagonalDecay: "f ← diag(α) f",
        ValueDecay: "f ← f · α",
        KeyDecay: "kᵢ ← diag(α) kᵢ",
        Householder: "kᵢ ← (I − β w wᵀ) kᵢ",
        Simplex: "log S ← α log S",
    }
    lines = [fades[type(g)] for g in forgets(m.gate) if type(g) in fades]
    if any(isinstance(g, Reset) for g in forgets(m.gate)):
        lines.insert(0, "f ← 0 at starts")
    lines.append(_written(m))
    gate = retention(m)
    if gate is not None:
        lines.append(_retained(gate))
    if admissions(m.gate):
        lines[-1] += " if admitted"
    lines.append(_read(m))
    if m.read.is_before():
        lines = [lines[-1], *lines[:-1]]
    return ";   ".join(lines)


def _retained(gate: AbstractRetention) -> str:
    match gate:
        case SoftThreshold():
            return "S ← sign(S) max(|S| − γ, 0)"
        case LqNorm():
            exact = gate.form == "exact"
            return f"S = {'∇½‖A‖ₚ²' if exact else 'A / ‖A‖^(q−2)'}, A being stepped"
        case Simplex():
            return "S = softmax(log S)"
        case _:
            return f"S by {gate!r}"


def _written(m: Leaf) -> str:
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
            return _descended(m, write)
        case Reweight():
            g = "" if write.loss is None else f", g = ∇{type(write.loss).__name__}(f(k), v)"
            return f"(N, D) ← (N, D) + κ(k,·) β/D(k) (−σ² g, w),  w: {write.negative}{g}"
        case _:
            return f"f ← f + κ(k,·) {type(write).__name__}(v, f(k))"


def _descended(m: Leaf, write: Descent) -> str:
    is_network = isinstance(m, Network)
    loss = type(write.loss.loss if isinstance(write.loss, After) else write.loss).__name__
    asked = "f₀" if write.minibatch > 1 else "f"
    what = f"∇{loss}({asked}(k), v)"
    what = f"β ∂{what[1:]}/∂θ" if is_network else f"κ(k,·) β {what}"
    what = what if write.window == 1 else f"Σ over the latest {write.window} of {what}"
    f, minus = "θ" if is_network else "f", f"− {what}"
    ahead, step = "", minus
    if write.momentum is not None:
        ahead, step = f"s ← μ s {minus};   ", "+ s"
    if write.orthogonalise:
        step = "+ orthogonal(s)" if ahead else f"+ orthogonal({minus})"
    if write.has_gain():
        step = (
            f"+ η ({step.removeprefix('+ ')})"
            if write.minibatch == 1
            else "+ η Σ of steps since f₀"
        )
    count = "" if write.minibatch == 1 else f", f₀ of {write.minibatch} tokens"
    return f"{ahead}{f} ← {f} {step}{count}"


def _read(m: Leaf) -> str:
    core: Any = m.read.core()
    scale = "" if core.scale == 1.0 else "c "
    top = "" if m.read.top() is None else f" of the {m.read.top()} nearest"
    blocks = blocks_of(m.read)
    if blocks is not None:
        top = f" of the atoms in {blocks.count} blocks of {blocks.size}"
    by = ranked_by(m.read)
    top += "" if by is None else f" by {by!r}"
    if isinstance(core, LocalLinear):
        return f"y = a, (a, B) = argmin Σ wᵢ κ(kᵢ,q) ‖a + B (kᵢ − q) − vᵢ‖² + λ ‖B‖²{top}"
    if isinstance(core, Normalised):
        prior = "" if core.prior == 0.0 else " + p"
        mass = f"({scale}D(q){prior})" if scale or prior else "D(q)"
        return f"y = {scale}N(q) / {mass}{top}"
    return f"y = {scale}f(q){top}"


def state_shape(m: Leaf, representation: str, dims: Dims) -> tuple[str, int]:
    """`(shape, floats)` of one head's state."""
    key, value = dims.key or 64, dims.value or 64
    write: Any = one_pair(m.write)
    parts = len(remembered(write)) if descends(m) else 1
    if isinstance(m, Network):
        count = m.count(key, value)
        return f"{count} parameters" + (f" × {parts}" if parts > 1 else ""), parts * count
    size = kept_size(m, key, representation)
    columns = parts * value
    mass = m.read.needs_mass()
    if representation == "gram":
        return f"{size} × {size} + {size} × {value}", size * (size + value)
    if representation == "matrix":
        return f"{size} × {columns}" + (f" + {size}" if mass else ""), size * (columns + mass)
    slots = m.capacity.slots()
    count = int(slots) if slots < 1e18 else (dims.time or 0)
    shown = f"{count} × ({size} + {columns}{' + 1' if mass else ''})"
    return shown, count * (size + columns + mass)


def kernel_line(m: Leaf, dims: Dims) -> str:
    """The kernel and what is known of it, or the sizes of a network."""
    if isinstance(m, Network):
        sizes = (dims.key or 64, *m.widths, dims.value or 64)
        return f"a network {' → '.join(map(str, sizes))}"
    kernel = m.kernel
    rank = kernel.rank(dims.key or 64)
    facts = [f"{int(rank)} features" if rank < 1e18 else "no finite features"]
    own = kernel.value_at_itself()
    if own is not None:
        facts.append(f"κ(k,k) = {own:g}")
    if kernel.is_nonnegative():
        facts.append("never below 0")
    return f"{kernel!r}   {', '.join(facts)}"
