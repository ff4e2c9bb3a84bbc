"""The rules of gates that move the stored keys."""

from .._errors import SpecError
from ._facts import compares_by_dot, is_solved, one_pair
from ._gate import Householder, transports
from ._memory import Memory
from ._write import Delta, Descent, Repeated


def check_transport(m: Memory) -> None:
    """Raises `SpecError` where moved keys have no meaning."""
    if not transports(m.gate):
        return
    gate, write = transports(m.gate)[0], one_pair(m.write)
    if is_solved(m) or (isinstance(write, Descent) and not write.is_plain()):
        kind = "Ridge" if is_solved(m) else "a Descent that remembers more than the function"
        raise SpecError(
            f"{gate!r} moves keys, and {kind} goes back to pairs where they were.",
            where=m,
            at="gate",
            instead="Decay(...); or a write that looks at each pair once.",
        )
    if not any(isinstance(gate, Householder) for gate in transports(m.gate)):
        return
    if isinstance(m.write, Repeated):
        raise SpecError(
            "Householder takes one erase key a token, and the write takes several pairs.",
            where=m,
            at="gate",
            instead="a write of one pair a token.",
        )
    if isinstance(write, Delta) and write.erase == "own":
        raise SpecError(
            "Householder takes erase keys, and so does the write.",
            where=m,
            at="gate",
            why="A token has one erase key.",
            instead='erase="key" in the write.',
        )
    if m.read.needs_mass() and compares_by_dot(m.kernel):
        raise SpecError(
            f"Householder can make weights of {m.kernel!r} negative, and Normalised divides by "
            "their sum.",
            where=m,
            at="gate",
            instead="Exp(Dot()) as the kernel; or Evaluate() as the read.",
        )
