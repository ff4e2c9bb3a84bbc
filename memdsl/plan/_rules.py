"""The rules that come with the library."""

from ..run._buffer import (
    attention_scale,
    buffer_all_prefix,
    buffer_attention,
    buffer_banded,
    buffer_chunkwise,
    buffer_parallel,
)
from ..run._gram import gram_chunkwise, is_batched
from ..run._matrix import matrix_associative, matrix_chunkwise
from ..run._minibatch import minibatch
from ..run._recurrent import recurrent
from ..spec._capacity import All, Window
from ..spec._facts import (
    decays,
    degree,
    has_nonlinear_retention,
    is_additive,
    is_affine,
    is_finite,
    is_solved,
    moves_keys,
    needs_atoms,
    needs_matrix,
    own_keys,
    pairs_per_token,
    retention,
)
from ..spec._gate import admissions, Decay, ValueDecay
from ..spec._loss import Squared
from ..spec._memory import Memory
from ..spec._number import leaves
from ..spec._read import Backwards, bonus_of, Normalised
from ..spec._read_blocks import blocks_of
from ..spec._slots import peel
from ..spec._write import Delta, Descent, Ridge
from . import _costs as costs
from ._rule import Requirement, Rule


LINEAR = Requirement(
    lambda m: not has_nonlinear_retention(m),
    "what is read is not linear in what is stored: a retention stands between",
)
FINITE = Requirement(
    lambda m: is_finite(m.kernel),
    "the kernel has infinitely many features",
    "the kernel has finitely many features",
)
NO_ATOMS = Requirement(
    lambda m: not needs_atoms(m) or not is_finite(m.kernel),
    "a window, a budget, an admission gate, a local read or a moved key speaks of atoms",
)
UNSOLVED = Requirement(lambda m: not is_solved(m), "Ridge solves for its coefficients")
SOLVED = Requirement(is_solved, "only Ridge keeps a Gram matrix", "the write is a Ridge")
ATOMS = Requirement(
    lambda m: not needs_matrix(m), "a part of the memory speaks of the coordinates of a matrix"
)
MATRIX = (FINITE, NO_ATOMS, UNSOLVED)
GRAM = (FINITE, NO_ATOMS, SOLVED)
BUFFER = (ATOMS,)


def _one_rate(m: Memory) -> bool:
    """Whether the step is one number, so that the correction is of rank one."""
    rate = vars(m.write).get("rate", vars(vars(m.write).get("write", m.write)).get("rate"))
    wide = any(getattr(leaf, "per", "") == "value_channel" for leaf in leaves(rate))
    return is_additive(m) or not wide


AFFINE = Requirement(
    is_affine,
    "the write is not affine in what it recalls",
    "the write is affine in what it recalls",
)
ADDITIVE = Requirement(
    is_additive, "needs an additive write: this one reads what it writes", "the write is additive"
)
ONE_RATE = Requirement(_one_rate, "a step per value channel makes the correction of full rank")
NO_VALUE_DECAY = Requirement(
    lambda m: not any(isinstance(g, ValueDecay) for g in decays(m)),
    "channels of the value fade each by its own factor",
)
FORWARDS = Requirement(
    lambda m: not isinstance(m.read, Backwards), "a transposed memory is read from its values' side"
)
WHOLE_DECAY = Requirement(
    lambda m: all(isinstance(g, Decay) for g in decays(m)) and not moves_keys(m),
    "the decay is not one number a token",
)
UNMOVED = Requirement(lambda m: not moves_keys(m), "the gate moves the stored keys")
UNADMITTED = Requirement(
    lambda m: not admissions(m.gate), "an admission gate looks at the atoms at every token"
)
ONE_PAIR = Requirement(lambda m: pairs_per_token(m.write) == 1, "a token writes several pairs")
KEEPS_ALL = Requirement(
    lambda m: isinstance(m.capacity, All), "atoms are evicted", "every atom is kept"
)
WINDOWED = Requirement(
    lambda m: isinstance(m.capacity, Window), "not a window", "the capacity is a window"
)
ALL_READ = Requirement(lambda m: m.read.top() is None, "only the nearest atoms are read")
WHOLE_BLOCKS = Requirement(
    lambda m: m.read.top() is None or (blocks_of(m.read) is not None and bonus_of(m.read) is None),
    "only the nearest atoms are read, one by one or beside a token's own",
)
CORRECTS = Requirement(
    lambda m: (
        (
            isinstance(m.write, Delta)
            and m.write.on == "key"
            and m.write.erase_gate is None
            and not own_keys(m)
        )
        or (
            isinstance(m.write, Descent) and m.write.loss == Squared() and m.write.get_degree() == 1
        )
    ),
    "needs a write that corrects what it recalls at its own key",
    "the write corrects what it recalls at its own key",
)
UNMASSED = Requirement(lambda m: not m.read.needs_mass(), "what is recalled is divided by a mass")
NO_DECAY = Requirement(
    lambda m: not decays(m), "the ridge does not fade with the pairs, so prefixes are not nested"
)
BATCHED = Requirement(
    lambda m: isinstance(m.write, Ridge) and is_batched(m.write.solver),
    "this solver works pair by pair",
)
ATTENTION = Requirement(
    lambda m: attention_scale(_core(m)) is not None and isinstance(m.read.core(), Normalised),
    "not the normalised kernel exp(scale k · q)",
    "the kernel is exp(scale k · q), and normalised",
)
SINKLESS = Requirement(
    lambda m: not isinstance(m.capacity, Window) or m.capacity.sinks == 0, "the window has sinks"
)
AFTERWARDS = Requirement(lambda m: not m.read.is_before(), "a token reads before it writes")
BOUNDLESS = Requirement(
    lambda m: isinstance(m.capacity, All | Window), "a budget decides atom by atom who stays"
)
PER_PAIR = Requirement(lambda m: degree(m.write) < 2, "the write is a descent with a memory")


IN_MINIBATCHES = Requirement(
    lambda m: isinstance(m.write, Descent) and m.write.minibatch > 1,
    "errors are of the latest function: no minibatch has one function of its own",
)
ONE_ERROR = Requirement(
    lambda m: not isinstance(m.write, Descent) or m.write.window == 1,
    "a token descends a whole window of pairs",
)
UNSETTLED = Requirement(
    lambda m: not getattr(retention(m), "settles", False),
    "a retention moves the matrix after every token",
)
MINIBATCH = (IN_MINIBATCHES, ONE_ERROR, WHOLE_DECAY, UNSETTLED)


def _core(m: Memory) -> Memory:
    return peel(m)[0]


MATRIX_CHUNKS = (16, 32, 64)
BUFFER_CHUNKS = (32, 64)

RULES: tuple[Rule, ...] = (
    Rule(
        "matrix",
        "recurrent",
        MATRIX,
        costs.matrix_recurrent,
        recurrent,
        note="constant state; one small step a token",
    ),
    *(
        Rule(
            "matrix",
            f"chunkwise ({chunk})",
            (*MATRIX, LINEAR, UNMOVED, AFFINE, ONE_RATE, NO_VALUE_DECAY, FORWARDS),
            costs.matrix_chunkwise(chunk),
            matrix_chunkwise(chunk),
            note="constant state; matrix products inside a chunk",
        )
        for chunk in MATRIX_CHUNKS
    ),
    Rule(
        "matrix",
        "associative",
        (*MATRIX, LINEAR, UNMOVED, ADDITIVE, NO_VALUE_DECAY, FORWARDS),
        costs.matrix_associative,
        matrix_associative,
        note="every prefix's matrix at once",
    ),
    Rule(
        "matrix",
        "minibatch",
        (*MATRIX, *MINIBATCH, FORWARDS),
        costs.matrix_minibatch,
        minibatch,
        note="constant state; the errors of a minibatch together",
    ),
    Rule(
        "network",
        "minibatch",
        MINIBATCH,
        costs.network_minibatch,
        minibatch,
        note="constant state; the gradients of a minibatch together",
    ),
    Rule(
        "network",
        "recurrent",
        (),
        costs.network_recurrent,
        recurrent,
        note="constant state; a gradient of the network a token",
    ),
    Rule(
        "gram",
        "recurrent",
        GRAM,
        costs.gram_recurrent,
        recurrent,
        note="constant state; one solve a token",
    ),
    Rule(
        "gram",
        "chunkwise (32)",
        (*GRAM, BATCHED),
        costs.gram_chunkwise(32),
        gram_chunkwise(32),
        note="constant state; the solves of a chunk together",
    ),
    Rule(
        "buffer",
        "recurrent",
        BUFFER,
        costs.buffer_recurrent,
        recurrent,
        note="exact for every rule about atoms",
    ),
    Rule(
        "buffer",
        "parallel",
        (*BUFFER, ADDITIVE, WHOLE_DECAY, UNADMITTED, ONE_PAIR, KEEPS_ALL, WHOLE_BLOCKS),
        costs.buffer_parallel,
        buffer_parallel,
        note="every query against every key",
    ),
    Rule(
        "buffer",
        "banded",
        (*BUFFER, WINDOWED, ADDITIVE, WHOLE_DECAY, ONE_PAIR, ALL_READ),
        costs.buffer_banded,
        buffer_banded,
        note="every query against its window",
    ),
    Rule(
        "buffer",
        "attention",
        (
            *BUFFER,
            ATTENTION,
            ADDITIVE,
            WHOLE_DECAY,
            UNADMITTED,
            ONE_PAIR,
            BOUNDLESS,
            SINKLESS,
            ALL_READ,
            AFTERWARDS,
        ),
        costs.buffer_attention,
        buffer_attention,
        note="jax.nn.dot_product_attention",
    ),
    *(
        Rule(
            "buffer",
            f"chunkwise ({chunk})",
            (
                *BUFFER,
                CORRECTS,
                UNMASSED,
                ONE_RATE,
                WHOLE_DECAY,
                UNADMITTED,
                ONE_PAIR,
                KEEPS_ALL,
                ALL_READ,
            ),
            costs.buffer_chunkwise(chunk),
            buffer_chunkwise(chunk),
            note="one triangular solve a chunk",
        )
        for chunk in BUFFER_CHUNKS
    ),
    Rule(
        "buffer",
        "all-prefix",
        (*BUFFER, SOLVED, NO_DECAY, UNADMITTED, KEEPS_ALL, BATCHED),
        costs.buffer_all_prefix,
        buffer_all_prefix,
        note="every prefix's solution from one Cholesky factor",
    ),
)
"""The rules that come with the library; pass `rules=RULES + (yours,)` to add one."""
