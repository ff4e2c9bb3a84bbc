"""What a run is given: one sequence of one head, already mapped by the kernel's feature."""

from collections.abc import Mapping
from typing import Any, Self

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ..spec._number import Log
from ..spec._slots import ground
from ..state import Token


class Inputs(eqx.Module):
    """One sequence.

    `pairs` pairs are written at every token (DeltaProduct writes several), laid out along time, so
    keys and values have `time * pairs` rows. `numbers` holds, by path, the numbers of the spec that
    change from token to token; those of the write have a row a pair.
    """

    keys: Float[Array, "pairs key"]
    values: Float[Array, "pairs value"]
    queries: Float[Array, "time key"]
    erase_keys: Float[Array, "pairs key"] | None = None
    remove_keys: Float[Array, "pairs key"] | None = None
    starts: Bool[Array, " time"] | None = None
    active: Bool[Array, " time"] | None = None
    """False where a token neither fades nor writes: padding, or a memory written now and then."""
    numbers: Mapping[str, Any] = eqx.field(default_factory=dict)
    pairs: int = eqx.field(static=True, default=1)
    fresh: bool = eqx.field(static=True, default=False)
    """Whether the state is known to be empty, so that nothing stored has to be read."""
    there: Bool[Array, " time"] | None = None
    """False for padding: not even what it reads counts."""
    closed: Bool[Array, " time"] | None = None
    """True where the memory fades, and the pair is not written."""

    @property
    def enters(self) -> Array | None:
        """Whether the pair of each token is written, `None` where every one is."""
        if self.closed is None:
            return self.active
        return ~self.closed if self.active is None else self.active & ~self.closed

    @property
    def time(self) -> int:
        """How many tokens there are."""
        return len(self.queries)

    def put(self, **changes: Any) -> Self:
        """A copy with some fields changed."""
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return type(self)(**{**fields, **changes})

    def cleaned(self) -> Self:
        """Zeros in what inactive tokens would write, whatever they hold, and no gradient to them."""
        if self.active is None:
            return self
        active, pairs = self.active, self.pairs

        def clean(array: Any) -> Any:
            if array is None:
                return None
            rows = active if len(array) == len(active) else jnp.repeat(active, pairs)
            return jnp.where(rows.reshape(rows.shape + (1,) * (array.ndim - 1)), array, 0)

        numbers = {
            path: Log(clean(value.log)) if isinstance(value, Log) else clean(value)
            for path, value in self.numbers.items()
        }
        return self.put(
            keys=clean(self.keys),
            values=clean(self.values),
            erase_keys=clean(self.erase_keys),
            remove_keys=clean(self.remove_keys),
            numbers=numbers,
        )

    def spread(self) -> "Inputs":
        """The same with one pair a token, and `pairs` tokens in the place of one.

        The first of them carries the start; queries are repeated; what they answer is for the caller
        to pick.
        """
        if self.pairs == 1:
            return self
        time, pairs = self.time, self.pairs

        def first(array: Array | None, fill: bool) -> Array | None:
            if array is None:
                return None
            there = jnp.arange(time * pairs) % pairs == 0
            return jnp.where(there, jnp.repeat(array, pairs), fill)

        def wide(value: Any) -> Any:
            array = value.log if isinstance(value, Log) else value
            array = array if len(array) == time * pairs else jnp.repeat(array, pairs, axis=0)
            return Log(array) if isinstance(value, Log) else array

        return self.put(
            queries=jnp.repeat(self.queries, pairs, axis=0),
            starts=first(self.starts, False),
            active=None if self.active is None else jnp.repeat(self.active, pairs),
            there=None if self.there is None else jnp.repeat(self.there, pairs),
            closed=None if self.closed is None else jnp.repeat(self.closed, pairs),
            numbers={path: wide(value) for path, value in self.numbers.items()},
            pairs=1,
        )

    def per_token(self) -> "Inputs":
        """Every array with the tokens along its first axis: pairs become a second axis."""
        time, pairs = self.time, self.pairs
        if pairs == 1:
            return self

        def fold(array: Any) -> Any:
            return None if array is None else array.reshape(time, pairs, *array.shape[1:])

        numbers = {
            path: fold(value) if path.startswith("write.") else value
            for path, value in self.numbers.items()
        }
        return self.put(
            keys=fold(self.keys),
            values=fold(self.values),
            erase_keys=fold(self.erase_keys),
            remove_keys=fold(self.remove_keys),
            numbers=numbers,
        )

    def pair(self, index: int) -> Token:
        """The `index`-th pair of one token (inside a scan, where the time axis is gone)."""

        def take(array: Array | None) -> Array | None:
            return array if array is None or self.pairs == 1 else array[index]

        return Token(
            take(self.keys),  # pyright: ignore[reportArgumentType]
            take(self.values),  # pyright: ignore[reportArgumentType]
            take(self.erase_keys),
            take(self.remove_keys),
        )

    def grounded(self, memory: Any, index: int) -> Any:
        """The memory with this token's numbers in it, those of its `index`-th pair included."""
        values = {}
        for path, value in self.numbers.items():
            several = self.pairs > 1 and path.startswith("write.")
            values[path] = value[index] if several else value
        return ground(memory, values)
