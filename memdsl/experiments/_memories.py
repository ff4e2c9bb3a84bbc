"""The memories of the recall run, one expression each, and the model around them."""

from typing import Any, cast

import equinox as eqx
import jax
from jax.tree_util import SequenceKey, tree_leaves_with_path, tree_map_with_path
from jaxtyping import Array, Float, Int, PyTree

import memdsl as md

from ..nn._blocks import Sequence
from ._data import RecallTask


MODEL, HEADS = 64, 2
_BOOKKEEPING = ("log_weight", "masses", "usage")

RECALL_MEMORIES = (
    "softmax",
    "rbf_delta",
    "nadaraya_watson",
    "mesa_net_ungated",
    "delta_net",
    "gated_delta_net",
    "retnet",
    "linear_attention",
    "linear_attention_identity",
    "sliding_window",
)
"""The names that `memdsl run recall --memory all` stands for."""


def recall_memory(name: str, bias: float = -2.0) -> md.AbstractMemory:
    """The memory of a name in `memdsl.zoo`, with the recipe's start of its write rate.

    A rate sigmoid(w x + b) starts at b = -2 here: with keys of 32 numbers that point anywhere, a
    write at rate 1/2 erases what was written 60 tokens before, and training is slow to start.

    **Arguments:**

    - `name`: a name that `memdsl list` shows.
    - `bias`: b, where the write rate starts.
    """
    memory = md.zoo.catalogue()[name]()
    if isinstance(memory, md.Memory) and isinstance(memory.write, md.Delta | md.Ridge):
        rate = memory.write.rate
        if isinstance(rate, md.FromInput):
            return memory.replace(write=memory.write.replace(rate=rate.replace(bias=bias)))
    return memory


def recall_mixer(name: str) -> md.Layer:
    """The sequence layer around a memory: heads, a convolution of width 4, SiLU, a norm a head."""
    return md.Layer(recall_memory(name), heads=HEADS, convolution=4, activation="silu")


def recall_spec(name: str, task: RecallTask) -> md.AbstractLayer:
    """The whole model: two blocks x + mixer(norm(x)) between an embedding and an unembedding.

    There is no position embedding: a memory must tell first from last by what it does with time.

    **Arguments:**

    - `name`: a name that `memdsl list` shows.
    - `task`: gives the vocabulary.
    """
    block = md.Residual(md.Norm() >> recall_mixer(name))
    return md.Embed(task.vocabulary) >> block >> block >> md.Norm() >> md.Unembed(task.vocabulary)


class Questions(eqx.Module):
    """A sequence model that is asked at a few positions: the last layer runs at these alone."""

    network: Sequence

    def __call__(
        self, tokens: Int[Array, " time"], positions: Int[Array, " query"]
    ) -> Float[Array, "query vocabulary"]:
        *body, last = self.network.layers
        x = tokens
        for layer in body:
            x = layer(x)
        return last(x[positions])


def recall_model(name: str, task: RecallTask, *, seed: int) -> Questions:
    """The model of `recall_spec`, with fresh parameters."""
    dims = md.Dims(model=MODEL, time=task.time)
    network = md.build(recall_spec(name, task), dims, key=jax.random.key(seed))
    return Questions(cast(Sequence, network))


def state_size(name: str, time: int) -> int:
    """How many floats the memory of one layer holds for one sequence, all heads together.

    These are the keys and values of the atoms, or the matrix with its mass, and for a ridge the
    Gram matrix too, whichever representation is smaller; weights and counters of atoms, and tails
    of convolutions, are left out.

    ??? example

        ```python
        >>> from memdsl.experiments import state_size
        >>> {name: state_size(name, time=64) for name in ("softmax", "delta_net", "linear_attention")}
        {'softmax': 8192, 'delta_net': 2048, 'linear_attention': 2112}

        ```

    **Arguments:**

    - `name`: a name that `memdsl list` shows.
    - `time`: the tokens of a sequence, all of which an unbounded buffer keeps.
    """
    size = MODEL // HEADS
    parts = md.plan(recall_memory(name), md.Dims(key=size, value=size, time=time)).choices
    return HEADS * sum(_floats(part.memory, [r for r, _ in part.legal], time) for part in parts)


def _floats(memory: md.AbstractMemory, rules: list[md.Rule], time: int) -> int:
    """The floats of the smallest state that one head of a memory can have."""
    size, found = MODEL // HEADS, []
    for rule in {rule.representation: rule for rule in rules}.values():
        state = md.empty(memory, size, size, capacity=time, using=rule.name)
        found.append(
            sum(
                leaf.size
                for path, leaf in tree_leaves_with_path(state)
                if eqx.is_inexact_array(leaf) and getattr(path[-1], "name", "") not in _BOOKKEEPING
            )
        )
    return min(found)


def weight_decayed(model: Questions) -> PyTree[bool]:
    """Which parameters weight decay applies to: matrices, and no biases, gains or lone numbers."""

    def is_matrix(path: tuple[Any, ...], leaf: Array) -> bool:
        names = [getattr(key, "name", None) for key in path]
        if "numbers" in names:  # a number read off the input is (matrices, bias, rate of decay)
            inside = path[names.index("numbers") + 1 :]
            return len(inside) == 4 and inside[2] == SequenceKey(0)
        return "gain" not in names

    return tree_map_with_path(is_matrix, eqx.filter(model, eqx.is_inexact_array))
