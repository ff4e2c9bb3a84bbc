"""The functional gradient of a normalised read."""

from typing import Any

import jax.numpy as jnp

from ._base import choice, plain_float, sort
from ._loss import AbstractLoss
from ._number import Number, number
from ._write_base import AbstractWrite, rate, Recalled


NEGATIVE = ("frozen", "damped", "clip", "gauge", "centred", "exact")


class Reweight(AbstractWrite):
    """The functional gradient of a normalised read, `(c, m) = rate / D(k) (-spread g, w)`.

    g is the error signal, the derivative of the loss with respect to the answer: of `loss` at s and
    v, or passed in the place of the value; s is the answer and `w = <g, s>`. Where w is below 0 the
    mass could vanish; `negative` says what is written instead:

    - `"exact"`: w all the same; `"damped"`: w shortened, by a factor common to a batch.
    - `"frozen"`: mass 0, so that only values are learned; always a descent direction.
    - `"clip"`: `max(w, 0)`.
    - `"gauge"`: the values shifted along g until w is at least `margin |g|`.
    - `"centred"`: the values centred at s, so that w is `margin |g|`.

    **Arguments:**

    - `rate`: the step.
    - `spread`: the variance of a stored value, positive.
    - `negative`: as above.
    - `margin`: above 0; for `"gauge"` and `"centred"`.
    - `loss`: of the answer and the value; `None` where the value is g, as in a growing layer.

    **Raises:** `SpecError` where an argument is out of range; and in a memory whose read does not
    divide, or whose mass can be 0.

    ??? example

        ```python
        >>> import memdsl as md
        >>> md.Memory(md.Exp(md.Dot()), md.Reweight(0.5), read=md.Normalised(prior=1.0))
        Memory(Exp(Dot()), write=Reweight(rate=0.5), read=Normalised(prior=1.0))

        ```

    Source: "Retrieval-Centric Deep Learning" (2026), equation 7 and section 3.2.1, with its factor
    of proportionality 1 / D; `"frozen"`, `"damped"` and `"centred"` are not from there.
    """

    rate: Number = rate(per=("layer", "head"))
    spread: Number = number(default=1.0, above=0.0, of_input=False, meaning="value variance")
    negative: str = choice(*NEGATIVE, default="frozen")
    margin: float = plain_float(above=0.0, default=1e-2)
    loss: AbstractLoss | None = sort(AbstractLoss, default=None, optional=True)

    def coefficient(self, value: Any, recalled: Recalled, norm: Any) -> tuple[Any, Any]:
        s = recalled.answer
        g = value if self.loss is None else self.loss.gradient(s, value)
        step = self.rate / recalled.mass
        inner, size = g @ s, jnp.sqrt(jnp.maximum(g @ g, jnp.finfo(g.dtype).tiny))
        if self.negative in ("exact", "damped"):
            return -step * self.spread * g, step * inner
        if self.negative == "frozen":
            return -step * self.spread * g, jnp.zeros_like(step)
        if self.negative == "clip":
            return -step * self.spread * g, step * jnp.maximum(inner, 0)
        if self.negative == "gauge":
            mass = jnp.maximum(inner, self.margin * size)
            shift = jnp.maximum(self.margin - inner / size, 0) * g / size
            return -step * (self.spread * g + mass * shift), step * mass
        mass = self.margin * size
        return step * (mass * s - (self.spread + self.margin**2) * g), step * mass
