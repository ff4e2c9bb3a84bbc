"""Linear layers that hand out their pairs, and are otherwise what they were."""

from typing import Any

import equinox as eqx
from jaxtyping import Array

from ..nn._blocks import AbstractPointwise, Dense
from ..nn._tap import Pairs, Probe, through, Uses
from ..plan import Dims
from ..spec._layer import Dense as DenseSpec


class RecordedDense(AbstractPointwise):
    """A `Dense` whose answers pass a tap."""

    spec: DenseSpec = eqx.field(static=True)
    dims: Dims = eqx.field(static=True)
    layer: Dense
    sink: Pairs | Uses | Probe | None = None

    def apply(self, x: Array) -> Array:
        return through(self.layer.apply(x), x, self.sink)


class RecordedLinear(eqx.Module):
    """An `equinox.nn.Linear` whose answers pass a tap."""

    layer: eqx.nn.Linear
    sink: Pairs | Uses | Probe | None = None

    def __call__(self, x: Array, *, key: Any = None) -> Array:
        return through(self.layer(x, key=key), x, self.sink)

    @property
    def weight(self) -> Array:
        """What a model that looks for the weight itself finds: a use that a record refuses."""
        return self.layer.weight

    @property
    def bias(self) -> Array | None:
        return self.layer.bias


Recorded = RecordedDense | RecordedLinear


def recorded(layer: Dense | eqx.nn.Linear) -> RecordedDense | RecordedLinear:
    """The layer, with a tap."""
    if isinstance(layer, Dense):
        return RecordedDense(spec=layer.spec, dims=layer.dims, layer=layer)
    return RecordedLinear(layer)
