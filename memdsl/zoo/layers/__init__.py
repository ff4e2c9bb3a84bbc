"""Published layers: a memory with all that its authors put around it.

Every function returns a spec with the published start of its parameters, whose parts have the
published names, so that `md.load_published` finds its weights. `catalogue()` lists them by name.
`model` is the width of the layer's input and output. A published *model* may start its projections
anew, as with a normal distribution of deviation 0.02; here is what a layer alone starts with.

??? example

    ```python
    >>> import jax, jax.numpy as jnp
    >>> import memdsl as md
    >>> spec = md.zoo.layers.gla(model=8, heads=2, gate_rank=4)
    >>> layer = md.build(spec, md.Dims(model=8), key=jax.random.key(0))
    >>> layer(jnp.ones((5, 8))).shape
    (5, 8)

    ```
"""

import inspect
from collections.abc import Callable

from ...spec._layer import Tied
from ._additive import (
    gated_slot_attention as gated_slot_attention,
    gla as gla,
    hgrn as hgrn,
    hgrn2 as hgrn2,
    linear_attention as linear_attention,
    retnet as retnet,
    simple_gla as simple_gla,
)
from ._attention import (
    forgetting_attention as forgetting_attention,
    path_attention as path_attention,
)
from ._delta import (
    comba as comba,
    delta_net as delta_net,
    gated_delta_net as gated_delta_net,
    gated_delta_net2 as gated_delta_net2,
    gated_delta_product as gated_delta_product,
    kimi_delta_attention as kimi_delta_attention,
    mesa_net as mesa_net,
)
from ._rwkv import rwkv6 as rwkv6, rwkv7 as rwkv7
from ._state_space import mamba as mamba, mamba2 as mamba2


def catalogue() -> dict[str, Callable[..., Tied]]:
    """Every layer of this module by name."""
    return {
        name: function
        for name, function in globals().items()
        if inspect.isfunction(function) and not name.startswith("_") and name != "catalogue"
    }
