"""The plain layers around a memory. They act on the last axis, so a vector or a sequence will do."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from .._types import at_least_single
from ..plan import Dims
from ..spec._feature import AbstractFeature
from ..spec._layer import (
    AbstractLayer,
    Dense as DenseSpec,
    Embed as EmbedSpec,
    Flatten as FlattenSpec,
    Map as MapSpec,
    Mlp as MlpSpec,
    Norm as NormSpec,
    Repeat as RepeatSpec,
    Residual as ResidualSpec,
    Sequence as SequenceSpec,
    Unembed as UnembedSpec,
)
from ._base import AbstractModule


def linear(x: Array, weight: Array, bias: Array | None = None) -> Array:
    """`W x + b` over the last axis, in the dtype of x."""
    y = x @ weight.astype(x.dtype).T
    if bias is None:
        return y
    return y + jnp.broadcast_to(bias.astype(x.dtype), y.shape)


class AbstractPointwise(AbstractModule):
    """A layer that looks at one token at a time and carries nothing."""

    def init(self, time: int | None = None) -> None:
        return None

    def run(
        self, x: Array, state: Any, starts: Array | None, mask: Array | None
    ) -> tuple[Any, Array]:
        return state, self.apply(x)

    def apply(self, x: Array) -> Array:
        """The map itself."""
        raise NotImplementedError


class Dense(AbstractPointwise):
    """`y = W x + b`."""

    spec: DenseSpec = eqx.field(static=True)
    dims: Dims = eqx.field(static=True)
    weight: Array
    bias: Array | None

    def apply(self, x: Array) -> Array:
        if self.spec.trainable:
            return linear(x, self.weight, self.bias)
        frozen = None if self.bias is None else jax.lax.stop_gradient(self.bias)
        return linear(x, jax.lax.stop_gradient(self.weight), frozen)


class Mlp(AbstractPointwise):
    """`W_2 (silu(W_1 x) * W_3 x)`."""

    spec: MlpSpec = eqx.field(static=True)
    dims: Dims = eqx.field(static=True)
    inner: Array
    gate: Array
    outer: Array

    def apply(self, x: Array) -> Array:
        return linear(jax.nn.silu(linear(x, self.inner)) * linear(x, self.gate), self.outer)


class Norm(AbstractPointwise):
    """`x / sqrt(mean x^2 + epsilon) * gain`, group by group, with the mean in float32."""

    spec: NormSpec = eqx.field(static=True)
    dims: Dims = eqx.field(static=True)
    gain: Array
    bias: Array | None = None

    def apply(self, x: Array) -> Array:
        groups = self.spec.groups
        wide = x.astype(at_least_single(x.dtype))
        wide = wide.reshape(*x.shape[:-1], groups, x.shape[-1] // groups)
        if self.spec.centred:
            wide = wide - jnp.mean(wide, axis=-1, keepdims=True)
        square = jnp.mean(wide * wide, axis=-1, keepdims=True)
        y = wide * jax.lax.rsqrt(square + self.spec.epsilon) * self._over(self.gain, wide)
        if self.bias is not None:
            y = y + self._over(self.bias, wide)
        return y.reshape(x.shape).astype(x.dtype)

    def _over(self, parameter: Array, wide: Array) -> Array:
        """A gain or a bias beside every group, one for all groups or one of its own each."""
        size = wide.shape[-1]
        return jnp.broadcast_to(parameter.astype(wide.dtype).reshape(-1, size), wide.shape)


class Map(AbstractPointwise):
    """A feature of every vector."""

    spec: MapSpec = eqx.field(static=True)
    dims: Dims = eqx.field(static=True)
    weights: dict[str, Array]
    feature: AbstractFeature = eqx.field(static=True)

    def apply(self, x: Array) -> Array:
        from ..spec._slots import ground

        feature = ground(self.feature, self.weights)
        flat = x.reshape(-1, x.shape[-1])
        y = jax.vmap(feature)(flat)
        return y.reshape(*x.shape[:-1], y.shape[-1])


class Flatten(AbstractPointwise):
    """An array as one vector."""

    spec: FlattenSpec = eqx.field(static=True)
    dims: Dims = eqx.field(static=True)

    def apply(self, x: Array) -> Array:
        return x.reshape(-1)


class Embed(AbstractPointwise):
    """Tokens to vectors."""

    spec: EmbedSpec = eqx.field(static=True)
    dims: Dims = eqx.field(static=True)
    weight: Array

    def apply(self, x: Array) -> Array:
        return self.weight[x]


class Unembed(AbstractPointwise):
    """Vectors to logits."""

    spec: UnembedSpec = eqx.field(static=True)
    dims: Dims = eqx.field(static=True)
    weight: Array

    def apply(self, x: Array) -> Array:
        return linear(x, self.weight)


class Residual(AbstractModule):
    """`x + layer(x)`."""

    spec: ResidualSpec = eqx.field(static=True)
    dims: Dims = eqx.field(static=True)
    layer: AbstractModule

    def init(self, time: int | None = None) -> Any:
        return self.layer.init(time)

    def run(
        self, x: Array, state: Any, starts: Array | None, mask: Array | None
    ) -> tuple[Any, Array]:
        state, y = self.layer.run(x, state, starts, mask)
        return state, x + y


class Sequence(AbstractModule):
    """Layers one after the other."""

    spec: SequenceSpec = eqx.field(static=True)
    dims: Dims = eqx.field(static=True)
    layers: tuple[AbstractModule, ...]

    def init(self, time: int | None = None) -> tuple[Any, ...]:
        return tuple(layer.init(time) for layer in self.layers)

    def run(
        self, x: Array, state: Any, starts: Array | None, mask: Array | None
    ) -> tuple[Any, Array]:
        before = (None,) * len(self.layers) if state is None else state
        after = []
        for layer, own in zip(self.layers, before, strict=True):
            own, x = layer.run(x, own, starts, mask)
            after.append(own)
        return None if state is None else tuple(after), x


class Repeat(AbstractModule):
    """Equal layers one after the other, as one scan over their stacked parameters."""

    spec: RepeatSpec = eqx.field(static=True)
    dims: Dims = eqx.field(static=True)
    stacked: AbstractModule

    def init(self, time: int | None = None) -> Any:
        return eqx.filter_vmap(lambda layer: layer.init(time))(self.stacked)

    def run(
        self, x: Array, state: Any, starts: Array | None, mask: Array | None
    ) -> tuple[Any, Array]:
        arrays, static = eqx.partition(self.stacked, eqx.is_array)

        def body(x: Array, turn: tuple[Any, Any]) -> tuple[Array, Any]:
            own, before = turn
            after, y = eqx.combine(own, static).run(x, before, starts, mask)
            return y, None if before is None else after

        y, after = jax.lax.scan(body, x, (arrays, state))
        return after, y


BLOCKS: dict[type[AbstractLayer], type[AbstractModule]] = {
    DenseSpec: Dense,
    MlpSpec: Mlp,
    NormSpec: Norm,
    MapSpec: Map,
    FlattenSpec: Flatten,
    EmbedSpec: Embed,
    UnembedSpec: Unembed,
}
