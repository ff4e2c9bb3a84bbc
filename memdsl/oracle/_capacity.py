"""Which pairs become atoms, which atoms leave, and what becomes of what they knew."""

from typing import Any

import jax
import jax.numpy as jnp

from ..spec._capacity import (
    AddToNearest,
    Budget,
    Drop,
    LeastUsed,
    LeaveOneOut,
    Oldest,
    Pairwise,
    Project,
    Random,
    Smallest,
    Window,
)
from ..spec._gate import admissions, Arrival
from ..spec._memory import Memory
from ..spec._write import Ridge
from ._evaluate import evaluate, solved
from ._function import Atom, Function, one, plain, undefined, weight


def admits(memory: Memory, function: Function, asked: Function, key: Any, value: Any) -> bool:
    """Whether every admission gate lets a pair in, beside the atoms of `function`.

    `asked` is the function whose error at the key is the surprise: what the write recalls.
    """
    gates = admissions(memory.gate)
    if not gates:
        return True
    kernel = memory.kernel
    distance, coherence = jnp.asarray(jnp.inf, key.dtype), jnp.zeros((), key.dtype)
    for atom in function.atoms:
        size = jnp.sqrt(kernel(key, key) * kernel(atom.key, atom.key))
        distance = jnp.minimum(distance, jnp.sqrt(_squared_distance(key, atom.key)))
        if size > 0:  # a key that is nothing coheres with nothing
            coherence = jnp.maximum(coherence, jnp.abs(kernel(key, atom.key)) / size)
    error = value - evaluate(memory, asked, key).answer
    arrival = Arrival(distance, coherence, jnp.sqrt(jnp.sum(error * error)))
    return all(bool(gate.admits(jax.lax.stop_gradient(arrival))) for gate in gates)


def offer(memory: Memory, function: Function, atom: Atom, *, admitted: bool) -> Function:
    """The function after an atom was offered to it."""
    capacity = memory.capacity
    if not admitted:
        return merged(memory, function, atom) if isinstance(capacity, Budget) else function
    after = function.put(born=function.born + 1)
    if isinstance(capacity, Window):
        oldest = function.born - capacity.size
        kept = (a.birth < capacity.sinks or a.birth > oldest for a in function.atoms)
        atoms = tuple(a if stays else atom for a, stays in zip(function.atoms, kept, strict=True))
        return after.put(atoms=atoms if atom in atoms else (*atoms, atom))
    if not isinstance(capacity, Budget) or len(function.atoms) < capacity.size:
        return after.put(atoms=(*function.atoms, atom))
    if isinstance(capacity.evict, LeaveOneOut):
        every = after.put(atoms=(*function.atoms, atom))
        scores = _leave_one_out(memory, every, capacity.evict)
        victim = min(range(len(scores)), key=scores.__getitem__)
        return _without(memory, every, victim)[0]
    if isinstance(capacity.evict, Random) and capacity.evict.reservoir:
        key_of_draw = jax.random.fold_in(_draw(capacity.evict, function), 1)
        draw = jax.random.uniform(key_of_draw, (), jnp.float32)
        if not float(draw) * (function.seen + 1) < capacity.size:
            return merged(memory, function, atom)
    without, slot = _without(memory, after, _victim(memory, function, capacity.evict))
    return without.put(atoms=(*without.atoms[:slot], atom, *without.atoms[slot:]))


def merged(memory: Memory, function: Function, gone: Atom) -> Function:
    """The function with what an atom knew put on the atoms that are there."""
    merge, atoms = memory.capacity.merging(), function.atoms
    if isinstance(merge, Drop) or not atoms:
        return function
    if isinstance(merge, Pairwise):
        return _joined(memory, function, gone)
    if isinstance(merge, AddToNearest):
        distances = [plain(_squared_distance(atom.key, gone.key)) for atom in atoms]
        nearest = distances.index(min(distances))
        shares = [jnp.asarray(float(i == nearest), gone.key.dtype) for i in range(len(atoms))]
    elif isinstance(merge, Project):
        gram, similar = (
            _gram(memory, atoms, merge.ridge),
            [memory.kernel(a.key, gone.key) for a in atoms],
        )
        shares = list(jnp.linalg.solve(gram, jnp.stack(similar)))
    else:
        raise undefined(merge)
    moved = [
        atom.moved(share * gone.value, share * gone.mass, gone.log_weight).put(
            momentum=atom.momentum + share * gone.momentum
        )
        if plain(share) != 0
        else atom
        for atom, share in zip(atoms, shares, strict=True)
    ]
    return function.put(atoms=tuple(moved))


def _joined(memory: Memory, function: Function, gone: Atom) -> Function:
    """The function with an atom and one that is there as one atom between them."""
    atoms, kernel = function.atoms, memory.kernel
    parts = [i / 8 for i in range(9)]
    losses = [[plain(_lost(memory, gone, atom, h)) for h in parts] for atom in atoms]
    partner = min(range(len(atoms)), key=lambda i: min(losses[i]))
    other, best = atoms[partner], min(range(9), key=losses[partner].__getitem__)
    h = parts[best]
    low, high = max(h - 1 / 8, 0.0), min(h + 1 / 8, 1.0)
    slope = jax.grad(lambda h: _lost(memory, gone, other, h))
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if plain(slope(middle)) < 0 else (low, middle)
    if plain(_lost(memory, gone, other, low)) < losses[partner][best]:
        h = low
    key = (1 - h) * gone.key + h * other.key
    mine, theirs = (kernel(atom.key, key) / kernel(key, key) for atom in (gone, other))
    joined = other.put(key=key, value=theirs * other.value, mass=theirs * other.mass).moved(
        mine * gone.value, mine * gone.mass, gone.log_weight
    )
    joined = joined.put(momentum=mine * gone.momentum + theirs * other.momentum)
    return function.put(atoms=(*atoms[:partner], joined, *atoms[partner + 1 :]))


def _lost(memory: Memory, gone: Atom, other: Atom, h: Any) -> Any:
    """The square of what the function loses where two atoms become one, h of the way along."""
    kernel, mass = memory.kernel, memory.read.needs_mass()
    place = (1 - h) * gone.key + h * other.key
    both = []
    for atom in (gone, other):
        coefficient = jnp.append(atom.value, atom.mass) if mass else atom.value
        both.append((atom.key, jnp.exp(atom.log_weight) * coefficient))
    (x, a), (y, b) = both
    c = (kernel(x, place) * a + kernel(y, place) * b) / kernel(place, place)
    three = ((x, a), (y, b), (place, -c))
    return sum(kernel(k, q) * (u @ v) for k, u in three for q, v in three)


def used(memory: Memory, function: Function, query: Any) -> Function:
    """The function after a read, which `LeastUsed` remembers: each atom's share of the weights."""
    capacity = memory.capacity
    if not isinstance(capacity, Budget) or not isinstance(capacity.evict, LeastUsed):
        return function
    fade, weights = capacity.evict.fade, [abs(weight(memory, a, query)) for a in function.atoms]
    total = sum(weights, jnp.zeros((), query.dtype))
    shares = [jnp.where(total == 0, 0, w / jnp.where(total == 0, 1, total)) for w in weights]
    pairs = zip(function.atoms, shares, strict=True)
    return function.put(atoms=tuple(a.put(usage=fade * a.usage + share) for a, share in pairs))


def _without(memory: Memory, function: Function, victim: int) -> tuple[Function, int]:
    """The function without one of its atoms, and the slot that is free now."""
    rest = (*function.atoms[:victim], *function.atoms[victim + 1 :])
    return merged(memory, function.put(atoms=rest), function.atoms[victim]), victim


def _victim(memory: Memory, function: Function, evict: Any) -> int:
    """The atom that makes room."""
    if isinstance(evict, Random):
        count = len(function.atoms)
        return int(jax.random.randint(_draw(evict, function), (), 0, count, jnp.int32))
    scores = _scores(memory, function, evict)
    return min(range(len(scores)), key=scores.__getitem__)


def _scores(memory: Memory, function: Function, evict: Any) -> list[float]:
    """A number for every atom; the lowest goes."""
    atoms = function.atoms
    if isinstance(evict, Oldest):
        return [jnp.inf if a.birth < evict.sinks else float(a.birth) for a in atoms]
    if isinstance(evict, LeastUsed):
        return [plain(atom.usage) for atom in atoms]
    if isinstance(evict, Smallest):
        return [plain(jnp.sqrt(jnp.sum(c * c))) for c in _coefficients(memory, function)]
    raise undefined(evict)


def _draw(evict: Random, function: Function) -> Any:
    return jax.random.fold_in(jax.random.key(evict.seed), function.seen)


def _leave_one_out(memory: Memory, function: Function, evict: LeaveOneOut) -> list[float]:
    """`|c_i| / [(K + ridge I)^-1]_ii`; a `Ridge` memory brings its own K + strength / w."""
    atoms = function.atoms
    if isinstance(one(memory.write), Ridge):
        gram, _ = solved(memory, function)
        weights = jnp.stack([atom.mass * jnp.exp(atom.log_weight) for atom in atoms])
        inverse = jnp.linalg.inv(gram + jnp.diag(1 / weights))
    else:
        inverse = jnp.linalg.inv(_gram(memory, atoms, evict.ridge))
    coefficients = _coefficients(memory, function)
    return [plain(jnp.sqrt(jnp.sum(c * c)) / inverse[i, i]) for i, c in enumerate(coefficients)]


def _coefficients(memory: Memory, function: Function) -> list[Any]:
    """What each atom adds to the function now; for `Ridge`, what the solved problem gives it."""
    if isinstance(one(memory.write), Ridge):
        return list(solved(memory, function)[1])
    return [jnp.exp(atom.log_weight) * atom.value for atom in function.atoms]


def _gram(memory: Memory, atoms: tuple[Atom, ...], ridge: Any) -> Any:
    rows = [jnp.stack([memory.kernel(a.key, b.key) for b in atoms]) for a in atoms]
    return jnp.stack(rows) + ridge * jnp.eye(len(atoms), dtype=atoms[0].key.dtype)


def _squared_distance(k: Any, q: Any) -> Any:
    return jnp.sum((k - q) ** 2)
