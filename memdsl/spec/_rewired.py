"""Memories that see other vectors of a token than they are given, and memories of running means."""

from typing import Any, ClassVar

from ._base import choice, code, sort, Spec, whole, written
from ._composite import Added, Boosted, Chained, Mapped, Transposed
from ._memory_base import AbstractMemory
from ._number import axis_of, Number, number
from ._streams import AbstractStream, Answer, inner_streams, Key, Own, Query, Sizes, Value


STREAMS = ("key", "value", "query", "erase", "remove")
"""What `of` can put in another's place."""


class Rewired(AbstractMemory):
    """`memory.of(key=..., value=..., query=..., own=..., ...)`: the memory sees these vectors of a token
    in the place of those that it is given.

        y = memory(key(k, v, q), value(k, v, q), query(k, v, q))

    A stream is `Key()`, `Value()`, `Query()` or `Own()` of the token as it comes, what another memory
    answers to it, `Answer(memory)`, or what `>>`, `*` and `+` make of them.

    **Arguments:**

    - `memory`: the memory.
    - `key`, `value`, `query`: what it is written with and asked at.
    - `erase`, `remove`: the further keys of a memory that takes them, such as `Delta(erase="own")`; by
        default those that it is given.
    - `own`: one more vector of the token, for `Own()`: a number of one per `"key_channel"` or
        `"value_channel"`, and of any other number a vector of one. The signal is called `own`.
    - `own_size`: how many channels it has, where they are not as many as those of the key or the value.

    **Raises:** `SpecError` where the memory writes several pairs a token, where `own` is not used, and
    by the plan where streams do not go together.

    ??? example

        ```python
        >>> import jax.numpy as jnp
        >>> import memdsl as md
        >>> total = md.Memory(md.Constant()).of(value=md.Key())  # the sum of the keys so far
        >>> keys, values = jnp.array([[1.0], [2.0], [3.0]]), jnp.zeros((3, 1))
        >>> state = md.empty(total, key_size=1, value_size=1)
        >>> md.run(total, state, keys, values, keys)[1][:, 0]
        Array([1., 3., 6.], dtype=float32)

        ```
    """

    memory: AbstractMemory = sort(AbstractMemory)
    key: AbstractStream = sort(AbstractStream, default=Key())
    value: AbstractStream = sort(AbstractStream, default=Value())
    query: AbstractStream = sort(AbstractStream, default=Query())
    erase: AbstractStream | None = sort(AbstractStream, default=None, optional=True)
    remove: AbstractStream | None = sort(AbstractStream, default=None, optional=True)
    own: Number = number(
        default=None,
        optional=True,
        per=("layer", "head", "key_channel", "value_channel"),
        meaning="further vector of the token",
    )
    own_size: int | None = whole(at_least=1, default=None, optional=True)
    positional: ClassVar[int] = 1

    def __check__(self) -> None:
        from ._check_outside import check_rewired

        check_rewired(self)

    def __repr__(self) -> str:
        shown = ", ".join(text for _, text in self.shown()[1:])
        return f"{written(self.memory, Spec.binding)}.of({shown})"

    def streams(self) -> dict[str, AbstractStream]:
        """The stream of every name that has one."""
        given = {name: getattr(self, name) for name in STREAMS}
        return {name: stream for name, stream in given.items() if stream is not None}

    def answers(self) -> list[tuple[str, AbstractMemory]]:
        """`(path, memory)` of the memories whose answers are streams."""
        return [
            (f"{path}.memory", inner.memory)
            for name, stream in self.streams().items()
            for path, inner in inner_streams(stream, name)
            if isinstance(inner, Answer)
        ]

    def uses_own(self) -> bool:
        """Whether `Own()` is asked for, here or within, and would be this one's."""
        return any(
            isinstance(inner, Own)
            for name, stream in self.streams().items()
            for _, inner in inner_streams(stream, name)
        ) or any(_asks_own(memory) for _, memory in [("memory", self.memory), *self.answers()])


def _asks_own(memory: Any) -> bool:
    """Whether a memory has an `Own()` that no `of` within it brings."""
    if isinstance(memory, Rewired):
        return memory.own is None and memory.uses_own()
    parts = [getattr(memory, name, None) for name in ("first", "second", "memory")]
    return any(_asks_own(part) for part in parts if isinstance(part, AbstractMemory))


class Averaged(AbstractMemory):
    """`memory.averaged("key")`: every channel of the key is a running mean of values, weighed by a
    softmax over time; of `"value"`, every channel of the value one of keys.

        y_t = sum_n q_n sum_j p_jn v_j,   p_jn = exp(k_jn) / sum_{i <= t} exp(k_in)

    The keys (the values) are logits. It is the linear memory with the decay `exp(z_{t-1} - z_t)` and
    the write `exp(k_t - z_t)` for `z_t = log sum_{i <= t} exp(k_i)`, a channel each.

    **Arguments:**

    - `memory`: `Memory(Dot(), Hebb(...))`, whose gate is none, or `Reset()`.
    - `over`: whose channels these are, `"key"` or `"value"`.

    **Raises:** `SpecError` for any other memory.

    ??? example

        ```python
        >>> import jax.numpy as jnp
        >>> import memdsl as md
        >>> mean = md.Memory(md.Dot()).averaged("key")
        >>> keys, values = jnp.zeros((3, 1)), jnp.array([[1.0], [2.0], [6.0]])
        >>> state = md.empty(mean, key_size=1, value_size=1)
        >>> _, answers = md.run(mean, state, keys, values, jnp.ones((3, 1)))
        >>> [round(float(x), 4) for x in answers[:, 0]]
        [1.0, 1.5, 3.0]

        ```

    Source: Qin et al. 2024 ("You Only Scan Once", LightNet); Peng et al. 2022 (ABC).
    """

    memory: AbstractMemory = sort(AbstractMemory)
    over: str = choice("key", "value")
    positional: ClassVar[int] = 1

    def __check__(self) -> None:
        from ._check_outside import check_averaged

        check_averaged(self)

    def __repr__(self) -> str:
        return f"{written(self.memory, Spec.binding)}.averaged({code(self.over)})"


def sizes_of(memory: AbstractMemory, name: str, sizes: Sizes) -> Sizes:
    """The sizes that the part called `name` of a memory is given."""
    match memory:
        case Transposed():
            return sizes._replace(key=sizes.value, value=sizes.key)
        case Chained() if name == "second":
            return sizes._replace(query=answer_size(memory.first, sizes))
        case Rewired():
            outer = sizes if memory.own is None else sizes._replace(own=_own_size(memory, sizes))
            if name != "memory":
                return outer
            return outer._replace(
                key=memory.key.size(outer),
                value=memory.value.size(outer),
                query=memory.query.size(outer),
            )
        case _:
            return sizes


def _own_size(memory: Rewired, sizes: Sizes) -> int | None:
    if memory.own_size is not None:
        return memory.own_size
    return {"key_channel": sizes.key, "value_channel": sizes.value}.get(axis_of(memory.own), 1)


def answer_size(memory: Any, sizes: Sizes) -> int | None:
    """How many numbers a memory answers with."""
    match memory:
        case Transposed():
            inner = memory.memory
            return None if sizes.value is None else int(inner.kernel.rank(sizes.value))  # pyright: ignore[reportAttributeAccessIssue]
        case Mapped():
            given = answer_size(memory.memory, sizes)
            return None if given is None else memory.feature.size(given)
        case Chained():
            return answer_size(memory.second, sizes_of(memory, "second", sizes))
        case Added() | Boosted():
            return answer_size(memory.first, sizes)
        case AbstractMemory() if isinstance(vars(memory).get("memory"), AbstractMemory):
            return answer_size(vars(memory)["memory"], sizes_of(memory, "memory", sizes))
        case _:
            return sizes.value
