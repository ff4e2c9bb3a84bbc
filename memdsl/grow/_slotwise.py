"""Any optax optimiser, with moments and a step count of its own for every stored atom."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Int

from .._errors import SpecError
from .._types import checked
from ..state import BufferState
from ._layers import stores
from ._shard import beside, home


class Atoms(NamedTuple):
    """What an optimiser sees of the atoms of a memory: one row a slot."""

    keys: Array
    values: Array
    log_masses: Array | None


class Slots(NamedTuple):
    """The state of the optimiser of one memory's atoms."""

    atom: Int[Array, "*layer slots"]
    """Which atom each slot's moments are of; −1 for none yet."""
    inner: Any
    """The optimiser's own state, with the axes of the slots in front."""


class SlotwiseState(NamedTuple):
    """The state of `md.grow.slotwise`: of the weights, and of the atoms of every memory."""

    weights: Any
    atoms: tuple[Slots | None, ...]


@checked
def slotwise(
    optimiser: optax.GradientTransformation,
    *,
    weights: optax.GradientTransformation | None = None,
) -> optax.GradientTransformationExtraArgs:
    """An optimiser that trains stored atoms one by one: each slot has moments and a step count.

    Where a slot was rewritten since the last update its moments and its count start anew, so that
    the first step of a new atom is that of a new parameter; with one count for all, Adam's would be
    `(1 - 0.9) / sqrt(1 - 0.999) = 3.2` times too long. Where a slot is empty, nothing happens: no
    update, no decay, no count. What was merged into an atom leaves its moments as they are.

    Atoms are those of buffers whose layer has `trainable=True`: keys, values, and masses, which are
    trained in the logarithm and keep their sign. All that follows one count an atom does so here,
    schedules too; what the optimiser does with the sizes of gradients it does atom by atom. For the
    sizes of all gradients, or one schedule, chain them: before it as `optax.chain(
    optax.clip_by_global_norm(1.0), md.grow.slotwise(optax.adam(1e-3)))`; what comes after it scales
    the change of a mass, no longer that of its logarithm.

    **Arguments:**

    - `optimiser`: of the atoms, and of all other parameters if nothing else is said.
    - `weights`: the optimiser of all other parameters.

    **Returns:** an optax transformation over `md.grow.parameters(model)`. Its `update` must also be
    given the model: `update(gradients, state, parameters, model=model)`, before anything is applied
    or written. After a `md.grow.resize` its state is begun anew.

    **Raises:** `SpecError` in `update` where there are atoms to train and no model is given, or one
    with another number of slots.

    ??? example

        ```python
        >>> import equinox as eqx
        >>> import jax
        >>> import jax.numpy as jnp
        >>> import memdsl as md
        >>> import optax
        >>> atoms = md.Memory(md.RBF(), md.Hebb(rate=0.5), capacity=md.Budget(3))
        >>> net = md.Grown(md.Dense(1, start="zeros", trainable=False), atoms, trainable=True)
        >>> model = md.build(net, md.Dims(model=1), key=jax.random.key(0))
        >>> optimiser = md.grow.slotwise(optax.adam(0.1))
        >>> state = optimiser.init(md.grow.parameters(model))
        >>> def half_square(y, targets):
        ...     return 0.5 * jnp.mean(jnp.sum((y - targets) ** 2, axis=-1))
        >>> x, y = jnp.array([[0.0]]), jnp.array([[2.0]])
        >>> for _ in range(3):
        ...     _, gradients, pairs = md.grow.backward(half_square, model, x, y)
        ...     parameters = md.grow.parameters(model)
        ...     updates, state = optimiser.update(gradients, state, parameters, model=model)
        ...     model = md.grow.write(eqx.apply_updates(model, updates), pairs)
        >>> print([f"{x:.2f}" for x in updates.state.values[:, 0]], state.atoms[0].inner[0].count)
        ['0.09', '0.10', '0.00'] [2 1 0]

        ```

    From "Retrieval-Centric Deep Learning", section 3.3, where stored pairs are trained by Adam; what
    becomes of the optimiser's state when a slot is rewritten is not told there.
    """
    of_atoms = optax.with_extra_args_support(optimiser)
    of_weights = optax.with_extra_args_support(weights or optimiser)

    def init(parameters: Any) -> SlotwiseState:
        found, rest = _split(parameters)
        slots = tuple(
            None if atoms is None else _begin(of_atoms, held, atoms)
            for held, atoms in zip(stores(parameters), found, strict=True)
        )
        return SlotwiseState(beside(of_weights.init(rest), home(rest)), slots)

    def update(
        updates: Any, state: SlotwiseState, params: Any = None, *, model: Any = None, **extra: Any
    ) -> tuple[Any, SlotwiseState]:
        found, rest = _split(updates)
        known = None if params is None else _split(params)[1]
        moved, after = of_weights.update(rest, state.weights, known, model=model, **extra)
        if all(atoms is None for atoms in found):
            return moved, SlotwiseState(after, state.atoms)
        steps, slots = [], []
        turns = zip(_held(model, found, state.atoms), found, state.atoms, strict=True)
        for held, gradients, before in turns:
            if gradients is None or before is None:
                steps.append(None)
                slots.append(before)
                continue
            step, own = _one_buffer(of_atoms, held, gradients, before, extra)
            steps.append(step)
            slots.append(own)
        return _join(moved, steps), SlotwiseState(after, tuple(slots))

    return optax.GradientTransformationExtraArgs(init, update)  # pyright: ignore[reportArgumentType]


def _split(tree: Any) -> tuple[list[Atoms | None], Any]:
    """The atoms among parameters or gradients, by memory, and the tree without them."""
    found = [_atoms_of(state) for state in stores(tree)]
    return found, _join(tree, [None if atoms is None else _NOTHING for atoms in found])


_NOTHING = (None, None, None)


def _atoms_of(state: Any) -> Atoms | None:
    if not isinstance(state, BufferState) or state.keys is None:
        return None
    return Atoms(state.keys, state.values, state.masses)


def _join(tree: Any, found: list[Any]) -> Any:
    """The tree with these atoms in the memories that have some."""

    def where(tree: Any) -> list[Any]:
        held = zip(stores(tree), found, strict=True)
        chosen = [state for state, atoms in held if atoms is not None]
        return [x for state in chosen for x in (state.keys, state.values, state.masses)]

    new = [x for atoms in found if atoms is not None for x in atoms]
    return eqx.tree_at(where, tree, new, is_leaf=lambda x: x is None) if new else tree


def _held(model: Any, found: list[Any], known: Any) -> list[Any]:
    """What the memories of the model hold, where these are the atoms that are trained."""
    states = [] if model is None else stores(model)
    wanted = [None if atoms is None else atoms.keys.shape[:-1] for atoms in found]
    there = [None if slots is None else slots.atom.shape for slots in known]
    held = [
        state.log_weight.shape if wants and isinstance(state, BufferState) else None
        for state, wants in zip(states, wanted, strict=False)
    ]
    if not len(states) == len(wanted) or wanted != held:
        raise SpecError(
            "slotwise was not given the model whose atoms it trains.",
            why="Which slots are empty, and which were rewritten, stands in the model alone.",
            instead="optimiser.update(gradients, state, parameters, model=model).",
        )
    if wanted != there:
        raise SpecError(
            f"The model has slots {wanted}, and the state of slotwise is of {there}.",
            instead="optimiser.init(md.grow.parameters(model)) after a md.grow.resize.",
        )
    return states


def _rows(function: Callable[..., Any], axes: int) -> Callable[..., Any]:
    """A function of one slot, over all slots of all layers of a stack."""
    for _ in range(axes):
        function = jax.vmap(function)
    return function


@eqx.filter_jit
def _begin(optimiser: Any, state: Any, atoms: Atoms) -> Slots:
    shape = atoms.keys.shape[:-1]
    inner = _rows(optimiser.init, len(shape))(jax.tree.map(jnp.zeros_like, atoms))
    return state.by_slot(Slots(jnp.full(shape, -1, jnp.int32), inner), len(shape) - 1)


def _one_buffer(
    optimiser: Any, state: Any, gradients: Atoms, before: Slots, extra: dict[str, Any]
) -> tuple[Atoms, Slots]:
    """The updates of the atoms of one memory, and the state after them."""
    axes = state.log_weight.ndim
    valid = state.valid
    atom = jnp.where(valid, state.birth, before.atom)
    masses = state.masses
    logs = None if masses is None else _log(jnp.where(valid, masses, 1))
    atoms = _where(valid, Atoms(state.keys, state.values, logs), 0)
    if masses is not None:
        gradients = gradients._replace(log_masses=gradients.log_masses * masses)
    gradients = _where(valid, gradients, 0)

    def one(gradient: Atoms, held: Any, own: Atoms) -> tuple[Atoms, Any]:
        return optimiser.update(gradient, held, own, **extra)

    fresh = _where(atom != before.atom, _rows(optimiser.init, axes)(atoms), before.inner)
    steps, after = _rows(one, axes)(gradients, fresh, atoms)
    steps = _where(valid, steps, 0)
    if masses is not None:
        change = jnp.where(valid, masses, 0) * jnp.expm1(steps.log_masses)
        steps = steps._replace(log_masses=change)
    found = steps, Slots(atom, _where(valid, after, before.inner))
    return state.by_slot(found, axes - 1)


def _log(masses: Array) -> Array:
    """`log |m|`; a mass of 0 has no logarithm and stays what it is."""
    size = jnp.abs(masses)
    return jnp.where(size > 0, jnp.log(jnp.where(size > 0, size, 1)), 0)


def _where(chosen: Bool[Array, "*slots"], new: Any, old: Any) -> Any:
    """By slot, the rows of one tree or of the other (or a number)."""

    def pick(x: Array, y: Any) -> Array:
        mask = chosen.reshape(*chosen.shape, *(1,) * (x.ndim - chosen.ndim))
        return jnp.where(mask, x, jnp.asarray(y, x.dtype) if isinstance(y, int) else y)

    if isinstance(old, int):
        return jax.tree.map(lambda x: pick(x, old), new)
    return jax.tree.map(pick, new, old)
