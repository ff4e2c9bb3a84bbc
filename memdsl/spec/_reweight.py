"""The functional gradient of a normalised read."""

from typing import Any

import jax
import jax.numpy as jnp

from ._base import choice, flag, plain_float, refuse, sort
from ._kernel_base import AbstractKernel
from ._loss import AbstractLoss
from ._number import Number, number
from ._write_base import AbstractWrite, rate, Recalled


NEGATIVE = ("frozen", "damped", "clip", "gauge", "centred", "exact")


class Reweight(AbstractWrite):
    """The functional gradient of a normalised read, `(c, m) = rate / D(k) (-spread g, w)`.

    g is the error signal, the derivative of the loss with respect to the answer: of `loss` at s and
    v, or passed in the place of the value; s is the answer and `w = <g, s>`. Where w is below 0 the
    mass could vanish; `negative` says what is written instead:

    - `"exact"`: w all the same. `"damped"`: w times the largest number up to 1 with which the mass at
      no key of the batch falls below `kept_mass` of what it was; still a descent direction.
    - `"frozen"`: mass 0, so that only values are learned; always a descent direction.
    - `"clip"`: `max(w, 0)`.
    - `"gauge"`: the values shifted along g until w is at least `margin |g|`.
    - `"centred"`: the values centred at s, so that w is `margin |g|`.

    Under the first two a read does not divide by a mass that is nearly 0: see `Normalised`. How often
    a write met such a mass is in the `counts.guarded` of the state.

    Coefficients are kept as `rate (-spread g, w)`, and `1 / D` as the weight of the atom, in the
    logarithm: D may be larger than any float. Only differences of these logarithms are ever
    exponentiated, so nothing has to be subtracted from them to keep them in range.

    **Arguments:**

    - `rate`: the step.
    - `spread`: the variance of a stored value, positive.
    - `negative`: as above.
    - `margin`: above 0; for `"gauge"` and `"centred"`.
    - `loss`: of the answer and the value; `None` where the value is g, as in a growing layer.
    - `scale_free`: whether the step is multiplied by D², so that it is the same whatever factor all
        masses and values have: `exp(2 mean log |D(k)|)`, the mean over a batch, one pair in a sequence.
        Without it, a rule that adds mass slows itself down, as 1 / D².
    - `kept_mass`: between 0 and 1; for `"damped"`.

    **Raises:** `SpecError` where an argument is out of range; and in a memory whose read does not
    divide, or whose mass can be 0.

    ??? example

        ```python
        >>> import memdsl as md
        >>> md.Memory(md.Exp(md.Dot()), md.Reweight(0.5), read=md.Normalised(prior=1.0))
        Memory(Exp(Dot()), write=Reweight(rate=0.5), read=Normalised(prior=1.0))

        ```

    Source: "Retrieval-Centric Deep Learning" (2026), equation 7 and section 3.2.1, with its factor
    of proportionality 1 / D; `"frozen"`, `"damped"`, `"centred"` and `scale_free` are not from there.
    """

    rate: Number = rate(per=("layer", "head"))
    spread: Number = number(default=1.0, above=0.0, of_input=False, meaning="value variance")
    negative: str = choice(*NEGATIVE, default="frozen")
    margin: float = plain_float(above=0.0, default=1e-2)
    loss: AbstractLoss | None = sort(AbstractLoss, default=None, optional=True)
    scale_free: bool = flag()
    kept_mass: float = plain_float(above=0.0, default=0.9)

    def __check__(self) -> None:
        if self.kept_mass >= 1:
            instead = "kept_mass=0.9, say."
            raise refuse(self, "kept_mass", "below 1", self.kept_mass, instead=instead)

    def has_signed_masses(self) -> bool:
        return self.negative in ("exact", "damped")

    def coefficient(self, value: Any, recalled: Recalled, norm: Any) -> tuple[Any, Any]:
        c, m, log_weight = self._atom(value, recalled, jnp.log(norm))
        return jnp.exp(log_weight) * c, jnp.exp(log_weight) * m

    def atom(
        self, kernel: AbstractKernel, key: Any, value: Any, recalled: Recalled
    ) -> tuple[Any, Any, Any]:
        log_norm = kernel.log(key, key) if self.negative == "damped" else None
        return self._atom(value, recalled, log_norm)

    def atoms(
        self, kernel: AbstractKernel, keys: Any, values: Any, recalled: Recalled
    ) -> tuple[Any, Any, Any]:
        log_gram = kernel.log_pairs(keys, keys) if self.negative == "damped" else None
        return self._atoms(values, recalled, log_gram)

    def _atom(self, value: Any, recalled: Recalled, log_norm: Any) -> tuple[Any, Any, Any]:
        """A pair is a batch of one."""
        alone = jax.tree.map(lambda x: jnp.asarray(x)[None], (value, recalled, log_norm))
        values, batch, log_row = alone
        log_gram = None if log_row is None else log_row[None]
        return jax.tree.map(lambda x: x[0], self._atoms(values, batch, log_gram))

    def _atoms(self, values: Any, recalled: Recalled, log_gram: Any) -> tuple[Any, Any, Any]:
        s, mass, log_mass = recalled.answer, recalled.mass, recalled.log_mass
        if log_mass is None:
            log_mass = jnp.log(jnp.abs(mass))
        g = values if self.loss is None else jax.vmap(self.loss.gradient)(s, values)
        log_weight = -log_mass
        if self.scale_free:
            log_weight = log_weight + 2 * jnp.mean(log_mass)
        sign = jnp.where(mass < 0, -1, 1).astype(g.dtype)
        c, m = self._bracket(g, s)
        c, m = (self.rate * sign)[:, None] * c, self.rate * sign * m
        if self.negative == "damped":
            logs = log_gram + log_weight[None, :] - log_mass[:, None]
            m = m * self._damping(logs, sign[:, None] * m[None, :])
        return c, m, log_weight

    def _bracket(self, g: Any, s: Any) -> tuple[Any, Any]:
        """`(c, m)` of every pair, but for the factor `rate / D`."""
        inner = jnp.sum(g * s, axis=-1)
        size = jnp.sqrt(jnp.maximum(jnp.sum(g * g, axis=-1), jnp.finfo(g.dtype).tiny))
        plain = -self.spread * g
        match self.negative:
            case "exact" | "damped":
                return plain, inner
            case "frozen":
                return plain, jnp.zeros_like(inner)
            case "clip":
                return plain, jnp.maximum(inner, 0)
            case "gauge":
                mass = jnp.maximum(inner, self.margin * size)
                shift = jnp.maximum(self.margin - inner / size, 0) * mass / size
                return plain - shift[:, None] * g, mass
            case _:
                mass = self.margin * size
                return plain + mass[:, None] * s - self.margin**2 * g, mass

    def _damping(self, logs: Any, changes: Any) -> Any:
        """The factor of all masses with which D falls at no key below `kept_mass` of what it was;
        without one the change at key i, as a share of D, is `sum_j exp(logs_ij) changes_ij`."""
        peak = jax.lax.stop_gradient(jnp.max(jnp.where(changes == 0, -jnp.inf, logs)))
        peak = jnp.where(jnp.isfinite(peak), peak, 0)
        change = jnp.sum(jnp.exp(jnp.where(changes == 0, peak, logs) - peak) * changes, axis=1)
        loss = jnp.max(-change)
        log_loss = jnp.log(jnp.where(loss > 0, loss, 1)) + peak
        log_kept = jnp.log(jnp.asarray(1 - self.kept_mass, logs.dtype))
        return jnp.where(loss > 0, jnp.exp(jnp.minimum(log_kept - log_loss, 0)), 1)
