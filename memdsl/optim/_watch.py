"""Runs a function and sees what the linear layers of its model are given.

The function is traced, and its equations are followed one after the other: those that use a tensor of
the model hand out their other operand. So it does not matter how the model is written, in which
library, or under which `jit`, `vmap`, `scan` and `checkpoint`.
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.extend.core import Literal

from ._gram import Gram
from ._origin import Origin, passed
from ._uses import added, Use, uses


Grams = dict[str, Gram]


class AbstractWatcher:
    """What is done with the uses of tensors as they come by."""

    @abstractmethod
    def use(self, use: Use, operand: Any) -> Gram | None:
        """The Gram matrix of one use, if it is wanted."""

    @abstractmethod
    def add(self, answer: Origin, vector: Origin) -> None:
        """Notes that a tensor is added to the outputs of another."""


def watched(function: Callable[..., Any], watcher: AbstractWatcher, tree: Any, *args: Any) -> Any:
    """`(function(tree, *args), Gram matrices)`, by the place of each tensor in the tree."""
    arrays, rest = eqx.partition(tree, eqx.is_inexact_array)
    leaves, structure = jax.tree_util.tree_flatten_with_path(arrays)
    names = [jax.tree_util.keystr(path) for path, _ in leaves]

    def flat(tensors: list[Any], args: Any) -> Any:
        return function(eqx.combine(jax.tree.unflatten(structure, tensors), rest), *args)

    tensors = [leaf for _, leaf in leaves]
    closed, shapes, static = eqx.filter_make_jaxpr(flat)(tensors, args)
    values = jax.tree.leaves(eqx.filter((tensors, args), eqx.is_array))
    origins = [Origin(n, tuple(range(t.ndim))) for n, t in zip(names, tensors, strict=True)]
    unknown = [None] * (len(values) - len(tensors))
    outs, _, found = _run(closed.jaxpr, closed.consts, values, [*origins, *unknown], watcher)
    result = jax.tree.unflatten(jax.tree.structure(shapes), outs)
    return eqx.combine(result, static), found


def _run(
    jaxpr: Any,
    constants: Sequence[Any],
    values: Sequence[Any],
    origins: Sequence[Origin | None],
    watcher: AbstractWatcher,
) -> tuple[list[Any], list[Origin | None], Grams]:
    """The equations of a traced function in order: results, their origins, Gram matrices."""
    known = dict(zip(jaxpr.constvars, constants, strict=True))
    known.update(zip(jaxpr.invars, values, strict=True))
    came: dict[Any, Origin] = {}
    _note(came, jaxpr.invars, origins)
    found: Grams = {}

    def value(atom: Any) -> Any:
        return atom.val if isinstance(atom, Literal) else known[atom]

    def origin(atom: Any) -> Origin | None:
        return None if isinstance(atom, Literal) else came.get(atom)

    for equation in jaxpr.eqns:
        operands = [value(atom) for atom in equation.invars]
        given = [origin(atom) for atom in equation.invars]
        inner = _INSIDE.get(equation.primitive.name)
        with equation.ctx.manager:
            if inner is not None and any(given):
                outs, made, grams = inner(equation, operands, given, watcher)
            else:
                outs = _plain(equation, operands)
                made, grams = _seen(equation, operands, given, watcher)
        known.update(zip(equation.outvars, outs, strict=True))
        _note(came, equation.outvars, made)
        found = _both(found, grams)
    results = [value(atom) for atom in jaxpr.outvars]
    return results, [origin(atom) for atom in jaxpr.outvars], found


def _note(came: dict[Any, Origin], variables: Sequence[Any], origins: Sequence[Any]) -> None:
    came.update({v: o for v, o in zip(variables, origins, strict=True) if o is not None})


def _plain(equation: Any, operands: list[Any]) -> list[Any]:
    parameters = equation.primitive.get_bind_params(equation.params)
    outs = equation.primitive.bind(*operands, **parameters)
    return outs if equation.primitive.multiple_results else [outs]


def _seen(
    equation: Any, operands: list[Any], given: list[Origin | None], watcher: AbstractWatcher
) -> tuple[list[Origin | None], Grams]:
    """The origins of what an equation makes, and the Gram matrices of the tensors that it uses."""
    nothing: list[Any] = [None] * len(equation.outvars)
    if not any(given):
        return nothing, {}
    if len(given) == 1 and given[0] is not None:
        return [passed(equation, given[0]), *nothing[1:]], {}
    pair = added(equation, given)
    if pair is not None:
        watcher.add(*pair)
        return [pair[0]], {}
    found: Grams = {}
    seen = uses(equation, given)
    for use in seen:
        gram = watcher.use(use, operands[use.operand])
        if gram is not None:
            found = _both(found, {use.projection.weight: gram})
    return [seen[0].answer, *nothing[1:]] if len(seen) == 1 else nothing, found


def _called(equation: Any, operands: Any, given: Any, watcher: AbstractWatcher) -> Any:
    closed = equation.params["jaxpr"]
    return _run(closed.jaxpr, closed.consts, operands, given, watcher)


def _checkpointed(equation: Any, operands: Any, given: Any, watcher: AbstractWatcher) -> Any:
    made: list[Any] = []

    def body(*operands: Any) -> tuple[Any, Grams]:
        outs, origins, found = _run(equation.params["jaxpr"], (), operands, given, watcher)
        made[:] = origins
        return outs, found

    known = equation.params
    kept = jax.checkpoint(body, policy=known["policy"], prevent_cse=known["prevent_cse"])
    outs, found = kept(*operands)
    return outs, list(made), found


def _scanned(equation: Any, operands: Any, given: Any, watcher: AbstractWatcher) -> Any:
    """A loop: Gram matrices of tensors that it runs over are stacked, those of others add up."""
    known, closed = equation.params, equation.params["jaxpr"]
    first, carried = known["num_consts"], known["num_carry"]
    constants, start, along = _cut(operands, first, carried)
    fixed, _, over = _cut(given, first, carried)
    inner = [*fixed, *[None] * carried, *(_entered(origin) for origin in over)]
    stacks = {origin.weight for origin in inner[first + carried :] if origin is not None}

    def body(carry: Any, x: Any) -> Any:
        outs, _, found = _run(closed.jaxpr, closed.consts, [*constants, *carry, *x], inner, watcher)
        apart = {
            name: gram for name, gram in found.items() if name in stacks or gram.rows is not None
        }
        summed = {name: gram for name, gram in found.items() if name not in apart}
        return outs[:carried], outs[carried:], apart, summed

    one = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), along)
    shapes = jax.eval_shape(body, start, one)[3]
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)

    def step(carry: Any, x: Any) -> Any:
        state, sums = carry
        state, outs, apart, summed = body(state, x)
        return (state, jax.tree.map(jnp.add, sums, summed)), (outs, apart)

    how = {name: known[name] for name in ("length", "reverse", "unroll")}
    (end, summed), (outs, apart) = jax.lax.scan(step, (start, zeros), along, **how)
    found = {n: g if n in stacks else _unrolled(g) for n, g in apart.items()}
    nothing: list[Any] = [None] * (len(end) + len(outs))
    return [*end, *outs], nothing, _both(found, summed)


_INSIDE: dict[str, Callable[..., Any]] = {
    "jit": _called,
    "pjit": _called,
    "closed_call": _called,
    "checkpoint": _checkpointed,
    "remat2": _checkpointed,
    "scan": _scanned,
}


def _cut(several: Sequence[Any], first: int, second: int) -> tuple[list[Any], list[Any], list[Any]]:
    end = first + second
    return list(several[:first]), list(several[first:end]), list(several[end:])


def _entered(origin: Origin | None) -> Origin | None:
    """The origin of one of the rows that a loop runs over."""
    if origin is None or origin.axes[0] is None or origin.answers:
        return None
    axes, axis = origin.axes[1:], origin.axes[0]
    return Origin(origin.weight, axes, (*origin.scanned, axis))


def _unrolled(gram: Gram) -> Gram:
    """The inputs of all turns of a loop as those of one."""
    assert gram.rows is not None
    rows = jnp.moveaxis(gram.rows, 0, -3)
    rows = rows.reshape(*rows.shape[:-3], rows.shape[-3] * rows.shape[-2], rows.shape[-1])
    return Gram(None, jnp.sum(gram.count, axis=0), rows)


def _both(found: Grams, more: Grams) -> Grams:
    """Gram matrices of two parts of a function, added up."""
    both = dict(found)
    for name, gram in more.items():
        both[name] = gram if name not in both else both[name] + gram
    return both
