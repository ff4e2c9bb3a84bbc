"""Executions of a buffer that take many tokens at once."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from ..spec._capacity import Window
from ..spec._kernel import Constant, Dot, Exp, Product
from ..spec._memory import Memory
from ..spec._read import bonus_of, LocalLinear
from ..spec._read_blocks import blocks_of
from ..spec._write import Ridge
from ..state import AbstractState, answer, BufferState, Pair, with_own
from ._allprefix import all_prefix_ridge
from ._append import append, left_over
from ._atoms import Atoms
from ._banded import banded
from ._blocks import within_blocks
from ._dot_product import dot_product
from ._inputs import Inputs
from ._kernel_delta import kernel_delta
from ._local import fitted
from ._lower import Canonical, canonical
from ._parallel import kernel_parallel, mean, softmax_parallel, total, whole_parallel


Execution = Callable[[Memory, AbstractState, Inputs], tuple[AbstractState, Array]]


def buffer_parallel(
    memory: Memory, state: AbstractState, inputs: Inputs
) -> tuple[AbstractState, Array]:
    """Every query against every earlier key at once: for additive writes that keep all atoms."""
    state, tokens, c = _start(memory, state, inputs)
    common: dict[str, Any] = dict(
        log_decay=c.log_decay,
        stored=_stored(state, inputs),
        starts=tokens.starts,
        mask=tokens.active,
        read_before=memory.read.is_before(),
    )
    stream = tokens.keys, c.value, tokens.queries
    if isinstance(memory.read.core(), LocalLinear) or blocks_of(memory.read) is not None:
        out = _whole(memory, state, tokens, c, common)
    elif _in_logs(memory):
        out = softmax_parallel(
            memory.kernel.log_pairs,
            *stream,
            masses=c.mass,
            log_prior=_log_prior(memory, c.value),
            log_own=_log_own(memory, c.value),
            **common,
        )
    else:
        keys, values, queries = stream
        both = _with_mass(memory, values, c.mass)
        common["stored"] = _stored(state, inputs, joined=memory.read.needs_mass())
        out = kernel_parallel(memory.kernel.pairs, keys, both, queries, **common)
        out = _divided(memory, tokens, out)
    return _finish(memory, state, tokens, c), out


def _whole(
    memory: Memory, state: BufferState, tokens: Inputs, c: Canonical, common: dict[str, Any]
) -> Array:
    """The answers of reads that look at all atoms and their weights at once."""
    kernel, massed = memory.kernel, memory.read.needs_mass()

    def one(keys: Array, coefficients: Array, query: Array, logs: Array) -> Array:
        if not _in_logs(memory):
            return total(kernel.pairs, keys, coefficients, query, logs)
        prior = _log_prior(memory, coefficients)
        return mean(kernel.log_pairs, keys, coefficients, query, logs, prior)

    local = isinstance(memory.read.core(), LocalLinear)
    how = fitted(memory) if local else one
    if blocks_of(memory.read) is not None:
        how = within_blocks(memory, state, tokens, c.log_decay, how)
    both = _with_mass(memory, c.value, c.mass)
    out = whole_parallel(how, tokens.keys, both, tokens.queries, massed=massed, **common)
    return out if local or _in_logs(memory) else _divided(memory, tokens, out)


def buffer_attention(
    memory: Memory, state: AbstractState, inputs: Inputs
) -> tuple[AbstractState, Array]:
    """`jax.nn.dot_product_attention`, for the kernel `exp(scale k . q)` from an empty buffer."""
    if not inputs.fresh or inputs.closed is not None:
        other = buffer_banded if isinstance(memory.capacity, Window) else buffer_parallel
        return other(memory, state, inputs)
    state, tokens, c = _start(memory, state, inputs)
    out = dot_product(
        tokens.keys,
        c.value,
        tokens.queries,
        scale=attention_scale(memory),
        window=memory.capacity.size if isinstance(memory.capacity, Window) else None,
        log_prior=_log_prior(memory, c.value),
        log_decay=c.log_decay,
        starts=tokens.starts,
        mask=tokens.active,
    )
    return _finish(memory, state, tokens, c), out


def attention_scale(memory: Memory) -> Any:
    """The scale of a kernel `exp(scale k . q)`, or `None` for any other kernel."""
    kernel = memory.kernel
    if not isinstance(kernel, Exp):
        return None
    match kernel.inner:
        case Dot():
            return 1.0
        case Product(left=Constant(value=scale), right=Dot()):
            return scale
        case Product(left=Dot(), right=Constant(value=scale)):
            return scale
        case _:
            return None


def buffer_banded(
    memory: Memory, state: AbstractState, inputs: Inputs
) -> tuple[AbstractState, Array]:
    """Every query against the keys of its window, in blocks: memory is linear in time."""
    capacity = memory.capacity
    if not isinstance(capacity, Window):
        raise TypeError("a band is of a window")
    state, tokens, c = _start(memory, state, inputs)
    local = isinstance(memory.read.core(), LocalLinear)
    logs = _in_logs(memory) or local
    keys, values, queries = tokens.keys, c.value, tokens.queries
    common: dict[str, Any] = dict(
        window=capacity.size,
        sinks=capacity.sinks,
        log_decay=c.log_decay,
        starts=tokens.starts,
        mask=tokens.active,
        read_before=memory.read.is_before(),
    )
    if logs:
        out = banded(
            memory.kernel.log_pairs,
            keys,
            values,
            queries,
            normalised=True,
            masses=c.mass,
            log_prior=_log_prior(memory, values),
            log_own=_log_own(memory, values),
            stored=_stored(state, inputs, sinks=capacity.sinks),
            answered=fitted(memory) if local else None,
            **common,
        )
    else:
        mass = memory.read.needs_mass()
        both = _with_mass(memory, values, c.mass)
        stored = _stored(state, inputs, sinks=capacity.sinks, joined=mass)
        out = banded(memory.kernel.pairs, keys, both, queries, stored=stored, **common)
        out = _divided(memory, tokens, out)
    return _finish(memory, state, tokens, c), out


def buffer_chunkwise(chunk: int) -> Execution:
    """The delta rule on kept atoms, by one triangular solve a chunk."""

    def run(memory: Memory, state: AbstractState, inputs: Inputs) -> tuple[AbstractState, Array]:
        state, tokens, c = _start(memory, state, inputs)
        rule: Any = memory.write
        # c0 = rate v and slope = -rate: the rate goes in alone, so that a rate of 0 divides nothing
        rate = -c.slope if c.slope is not None else jnp.zeros(tokens.time, c.value.dtype)
        found = kernel_delta(
            memory.kernel.pairs,
            tokens.keys,
            _targets(memory, tokens),
            tokens.queries,
            rate=rate,
            log_decay=c.log_decay,
            recall="previous" if rule.reads_before_decay() else "decayed",
            stored=_stored(state, inputs),
            starts=tokens.starts,
            mask=tokens.active,
            read_before=memory.read.is_before(),
            chunk=chunk,
        )
        stored = _left(state, tokens, c)[1]
        after = append(
            state,
            tokens,
            found.coefficients,
            jnp.ones(tokens.time, c.value.dtype),
            found.log_weight,
            stored,
        )
        if found.outputs is None:
            raise TypeError("a run without queries has no answers")
        return after, _divided(memory, tokens, found.outputs)

    return run


def _targets(memory: Memory, tokens: Inputs) -> Array:
    def one(token: Inputs) -> Array:
        rule: Any = token.grounded(memory, 0).write
        gate = vars(rule).get("write_gate")
        return (
            token.values if gate is None else jnp.asarray(gate, token.values.dtype) * token.values
        )

    return jax.vmap(one)(tokens)


def buffer_all_prefix(
    memory: Memory, state: AbstractState, inputs: Inputs
) -> tuple[AbstractState, Array]:
    """The ridge regression of every prefix from one Cholesky factor."""
    if not isinstance(state, BufferState) or not isinstance(memory.write, Ridge):
        raise TypeError("the all-prefix form is of a ridge problem on a buffer")
    tokens = inputs.cleaned()
    rule: Ridge = memory.write
    importance = jax.vmap(lambda t: jnp.asarray(_rate(memory, t), tokens.values.dtype))(tokens)
    keys, values, queries, weight = tokens.keys, tokens.values, tokens.queries, importance
    active = jnp.ones(tokens.time, bool) if tokens.active is None else tokens.active
    starts, count = tokens.starts, 0
    if not inputs.fresh:  # the stored pairs are a prefix that nobody asks anything
        count = len(state.log_weight)
        order = jnp.argsort(jnp.where(state.valid, state.birth, jnp.iinfo(jnp.int32).max))
        old_keys, old_values, _ = state.safe()
        old = jnp.where(state.valid, jnp.exp(jnp.where(state.valid, state.log_weight, 0)), 0)

        def join(first: Array, second: Array) -> Array:
            return jnp.concatenate([first[order], second])

        keys, values = join(old_keys, keys), join(old_values, values)
        queries = jnp.concatenate([jnp.zeros_like(old_keys), queries])
        weight, active = join(old, weight), join(state.valid, active)
        if starts is not None:
            starts = jnp.concatenate([jnp.zeros(count, bool), starts])
    out = all_prefix_ridge(
        memory.kernel.pairs,
        keys,
        values,
        queries,
        strength=jnp.asarray(rule.strength, values.dtype),
        importance=weight,
        starts=starts,
        mask=active,
        read_before=memory.read.is_before(),
    )[count:]
    time = tokens.time
    left = left_over(None, tokens.starts, time, values.dtype)
    present = importance > 0
    log_weight = jnp.log(jnp.where(present, importance, 1))
    log_weight = jnp.where(present, log_weight, -jnp.inf) + left[1:]
    stored = jnp.where(state.valid, state.log_weight + left[0], -jnp.inf)
    after = append(state, tokens, tokens.values, importance, log_weight, stored)
    return after, _divided(memory, tokens, out)


def _rate(memory: Memory, token: Inputs) -> Any:
    write: Any = token.grounded(memory, 0).write
    return write.rate


def _start(
    memory: Memory, state: AbstractState, inputs: Inputs
) -> tuple[BufferState, Inputs, Canonical]:
    if not isinstance(state, BufferState):
        raise TypeError("this execution is of a buffer")
    tokens = inputs.cleaned()
    return state, tokens, canonical(memory, tokens)


def _finish(memory: Memory, state: BufferState, tokens: Inputs, c: Canonical) -> BufferState:
    left, stored = _left(state, tokens, c)
    sinks = memory.capacity.sinks if isinstance(memory.capacity, Window) else None
    return append(state, tokens, c.value, c.mass, left, stored, sinks=sinks)


def _left(state: BufferState, tokens: Inputs, c: Canonical) -> tuple[Array, Array]:
    left = left_over(c.log_decay, tokens.starts, tokens.time, c.value.dtype)
    return left[1:], jnp.where(state.valid, state.log_weight + left[0], -jnp.inf)


def _in_logs(memory: Memory) -> bool:
    """Whether weights are kept as logarithms until they are divided."""
    return memory.read.needs_mass() and memory.kernel.is_exponential()


def _log_prior(memory: Memory, like: Array) -> Any:
    """The logarithm of the prior mass, in units of what the scale leaves of a mass."""
    core: Any = memory.read.core()
    if isinstance(core.prior, int | float) and core.prior == 0:
        return None
    prior, scale = (jnp.asarray(x, like.dtype) for x in (core.prior, core.scale))
    return jnp.log(prior) - jnp.log(scale)


def _log_own(memory: Memory, like: Array) -> Any:
    """The logarithm of the weight of a token's own pair, or `None` where there is no bonus."""
    bonus = bonus_of(memory.read)
    if bonus is None:
        return None
    bonus = jnp.asarray(bonus, like.dtype)
    return jnp.where(bonus > 0, jnp.log(jnp.where(bonus > 0, bonus, 1)), -jnp.inf)


def _with_mass(memory: Memory, values: Array, masses: Array) -> Array:
    if not memory.read.needs_mass():
        return values
    return jnp.concatenate([values, masses[:, None]], axis=-1)


def _divided(memory: Memory, tokens: Inputs, out: Array) -> Array:
    """The answers from sums of values, and of masses in the last column where the read divides."""
    mass = memory.read.needs_mass()

    def one(row: Array, token: Inputs) -> Array:
        here = token.grounded(memory, 0)
        pair = Pair(row[:-1], row[-1]) if mass else Pair(row, None)
        return answer(here.read, with_own(here, pair, token.queries, token.pair(0), token.enters))

    return jax.vmap(one)(out, tokens)


def _stored(
    state: BufferState, inputs: Inputs, *, sinks: int | None = None, joined: bool = False
) -> Atoms | None:
    """The atoms that are there, oldest first; `joined` with masses as a column of the values."""
    if inputs.fresh:
        return None
    order = jnp.argsort(jnp.where(state.valid, state.birth, jnp.iinfo(jnp.int32).max), stable=True)
    pinned = None if sinks is None else (state.birth - state.origin < sinks)[order]
    values = state.values
    if joined and state.masses is not None:
        values = jnp.concatenate([values, state.masses[:, None]], axis=-1)
    masses = None if state.masses is None or joined else state.masses[order]
    return Atoms(state.keys[order], values[order], state.log_weight[order], masses, pinned)
