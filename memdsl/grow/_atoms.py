"""Atoms that are not in a buffer yet, or no longer: those of a batch, and coefficients on the move."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int


class Atoms(NamedTuple):
    """The atoms that the pairs of a batch would be, `exp(log_weight) kernel(key, .) (value, mass)`."""

    keys: Float[Array, "batch key"]
    values: Float[Array, "batch value"]
    masses: Float[Array, " batch"]
    log_weights: Float[Array, " batch"]
    sizes: Float[Array, " batch"]
    """The norms of their error signals."""


class Moved(NamedTuple):
    """Coefficients without their keys, `exp(log) (value, mass)` in every row."""

    values: Float[Array, "*rows value"]
    masses: Float[Array, "*rows"]
    logs: Float[Array, "*rows"]

    @staticmethod
    def of(batch: Atoms) -> "Moved":
        """Those of a batch."""
        return Moved(batch.values, batch.masses, batch.log_weights)

    def row(self, i: Array) -> "Moved":
        """One of them, or some."""
        return Moved(*(x[i] for x in self))

    def followed_by(self, more: "Moved") -> "Moved":
        """These and then others."""
        return Moved(*(jnp.concatenate(both) for both in zip(self, more, strict=True)))

    def plus(self, more: "Moved") -> "Moved":
        """The sum of every row with that of others, in units of the larger weight."""
        peak = jnp.maximum(self.logs, more.logs)
        own, other = self._in(peak), more._in(peak)
        return Moved(own.values + other.values, own.masses + other.masses, peak)

    def with_row(self, i: Array, row: "Moved") -> "Moved":
        """With another row; nothing changes where `i` is past the last."""
        return Moved(*(x.at[i].set(y, mode="drop") for x, y in zip(self, row, strict=True)))

    def with_added(self, more: "Moved", rows: Int[Array, " more"]) -> "Moved":
        """These with others added to some rows, in units of the largest weight of each; a row past the
        last is none."""
        peak = self.logs.at[rows].max(more.logs, mode="drop")
        own, other = self._in(peak), more._in(peak.at[rows].get(mode="fill", fill_value=jnp.inf))
        return Moved(
            own.values.at[rows].add(other.values, mode="drop"),
            own.masses.at[rows].add(other.masses, mode="drop"),
            peak,
        )

    def _in(self, peak: Array) -> "Moved":
        factor = jnp.exp(jnp.where(peak > -jnp.inf, self.logs - peak, 0))
        return Moved(factor[..., None] * self.values, factor * self.masses, peak)
