"""`denote`: what a memory means."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .._errors import SpecError
from .._types import checked
from ..spec._memory import AbstractMemory
from ..spec._rewired import answer_size
from ..spec._slots import resolve
from ..spec._streams import Sizes
from ._signals import check_streams, defined, given
from ._stream import Stream
from ._tree import answers_of


@checked
def denote(
    memory: AbstractMemory,
    keys: Float[Array, "pairs key"],
    values: Float[Array, "pairs value"],
    queries: Float[Array, "time key"] | None = None,
    *,
    mask: Bool[Array, " time"] | None = None,
    starts: Bool[Array, " time"] | None = None,
    erase_keys: Float[Array, "pairs erase"] | None = None,
    remove_keys: Float[Array, "pairs remove"] | None = None,
    **signals: Any,
) -> Float[Array, "time answer"]:
    """What a memory answers to every token, by its definition: atom by atom, in plain Python.

    The state is a function $f = (N, D) = \\sum_i w_i \\, \\kappa(k_i, \\cdot) (c_i, m_i)$, kept as the
    list of its atoms. A token does, in this order,

    $$f \\leftarrow f_0 \\text{ at a start}; \\quad f \\leftarrow \\alpha f; \\quad
    (c, m) = \\mathrm{write}(v, f(k)); \\quad f \\leftarrow f + \\kappa(k, \\cdot)(c, m); \\quad
    y = \\mathrm{read}(f, q)$$

    It is slow (every token visits every atom) and it is what every execution is compared with, so it
    shares no code with any. Gradients flow through it outside `jax.jit`. It decides these points:

    - *Recall* is unscaled, over all atoms, and a prior counts as mass: N / (D + prior).
    - *Before*, and a forecast, see the function after the start of a document and before this
      token's decay. A forecast has no bonus, and a token that is not written lets nothing through. Of
      several pairs it is the first that is let through; beside `TopK` it takes nobody's place.
    - A weight of exactly 0 (a decay of 0) ends an atom; a decay multiplies both value and mass.
    - *Admission* compares with the atoms before the pair (of several a token: one after the other);
      the surprise is |v - f(k)| of the f that the write recalls from. Keys are compared after the
      feature of `.pullback`.
    - *Eviction* happens before a new atom enters, from a function that has already faded and been
      recalled; `LeaveOneOut` lets the new atom in first. For `Ridge` the coefficient of an atom is
      what the solved problem gives it, and `LeaveOneOut` takes the inverse of that problem.
    - `Random` draws, at the t-th pair written since the last start (t from 0), the slot of the atom
      that goes, `jax.random.randint(fold_in(key(seed), t), (), 0, size, int32)`; with `reservoir` the
      new atom enters where `uniform(fold_in(fold_in(key(seed), t), 1), (), float32) (t + 1) < size`,
      and is merged where it does not.
    - `LeastUsed` is told of every query once the token is written, even if it was answered before:
      the share of each stored atom in sum |w kernel|, whether or not `TopK` lets it answer.
    - Momentum is a second coefficient of every atom: it leaves and merges with its atom. An atom to
      which another is added later (a merge, momentum, a window) has the larger of the two weights
      from then on, for `TopK`, `LeastUsed` and `Delta(on="atoms")`; what is new weighs 1.
    - An atom of `Reweight` has the weight 1 / |D| (|D| with `scale_free`) from its start on.
    - `Delta(remove="own")` writes two atoms, (k, 1 mass) and then (remove key, 0 mass); its step is
      that of k.
    - `Reweight(negative="damped")` is damped for a batch of one pair: the mass at its own key keeps
      at least `kept_mass` of what it was. Where masses can be below 0, a read and a recall divide by
      no less than a thousandth of the sum of the sizes of all masses, the prior's included.
    - `Every(n, memory)` counts tokens that are not masked, from the last start on, and so does `Level`:
      the pairs of other levels are not written, and the memory fades all the same. A token that is not
      written reads at the place of the latest one that was.
    - Where atoms do not say it, the state is a point in a space of numbers: the matrix under a
      retention or of an orthogonalised step, the parameters of a `Network`; and, of a minibatch or a
      gain on a kernel without finite features, a coefficient for every pair.
    - A retention that is a mirror (`LqNorm`, `Simplex`) is between the stored matrix, on which decays
      and steps act, and the one that answers and errs. `SoftThreshold` acts once a token is written,
      after its last pair; what a minibatch has moved stays, and the rest of the matrix gives way.
    - A minibatch counts the tokens that are written, from the last start on. Its errors are of the
      function after the last token of the one before; with `recall="decayed"`, faded since.
    - A masked token is the identity on the state, a start included, and its answer is 0.

    **Arguments:**

    - `memory`: what to denote.
    - `keys`, `values`: `[time, key]`, `[time, value]`; `[time * n, …]` where a token writes n pairs.
    - `queries`: `[time, key]`; `None` forecasts: the key is asked before its token is written.
    - `mask`: False at tokens that are not there.
    - `starts`: True at the first token of every document.
    - `erase_keys`, `remove_keys`: for writes with keys of their own; shaped as the keys.
    - `signals`: the numbers of the memory by name, `log_decay=`, `rate=`, `initial=` `[features,
      value]`, …; those of every token have a row a token (in a write: a pair).

    **Returns:** the answers, `[time, answer]`, in the dtype of the inputs.

    **Raises:** `SpecError` for signals that are missing or unknown.

    ??? example

        ```python
        >>> import jax.numpy as jnp
        >>> import memdsl as md
        >>> kernel_lms = md.Memory(md.RBF(scale=1.0), md.Delta(rate=0.5))
        >>> keys, values = jnp.array([[0.0], [1.0], [0.0]]), jnp.array([[1.0], [0.0], [1.0]])
        >>> md.denote(kernel_lms, keys, values)[:, 0]
        Array([0.        , 0.30326533, 0.40803015], dtype=float32)

        ```
    """
    pairs = defined(memory)
    streams = {"starts": starts, "erase_keys": erase_keys, "remove_keys": remove_keys}
    check_streams(memory, streams)
    if queries is None and pairs > 1:
        raise SpecError(
            f"A token of {pairs} pairs has no single key to forecast at.", instead="queries=…."
        )
    time, key_size, value_size = len(keys) // pairs, keys.shape[1], values.shape[1]
    if time * pairs != len(keys) or (queries is not None and len(queries) != time):
        raise SpecError(
            f"{len(keys)} keys are not {pairs} a token.",
            instead=f"{pairs} keys and values a token, and one query.",
        )
    resolved = resolve(memory, {"key": key_size, "value": value_size})
    there = [True] * time if mask is None else [bool(flag) for flag in mask]
    numbers = given(resolved, signals, keys.dtype, there, pairs)

    def grouped(rows: Any) -> list[list[Any]]:
        if rows is None:
            return [[None] * pairs] * time
        return [[rows[t * pairs + j] for j in range(pairs)] for t in range(time)]

    stream = Stream(
        keys=grouped(keys),
        values=grouped(values),
        queries=list(keys if queries is None else queries),
        asks=[[]] * time,
        mask=there,
        starts=[False] * time if starts is None else [bool(flag) for flag in starts],
        writes=[True] * time,
        closed=[False] * time,
        erase_keys=grouped(erase_keys),
        remove_keys=grouped(remove_keys),
        forecasts=queries is None,
    )
    answers, _ = answers_of(resolved, numbers, stream)
    size = answer_size(resolved, Sizes(key_size, value_size, key_size))
    blank = jnp.zeros((size or 0,), values.dtype)
    rows = [blank if answer is None else answer for answer in answers]
    return jnp.stack(rows) if rows else jnp.zeros((0, size), values.dtype)
