"""The classics, one expression each. Every function returns a spec; nothing here is special."""

import inspect
from collections.abc import Callable

from ..spec._memory import AbstractMemory
from . import _classics, _descents, layers as layers
from ._classics import (
    ada_transformer as ada_transformer,
    comba as comba,
    delta_net as delta_net,
    delta_product as delta_product,
    forgetting_attention as forgetting_attention,
    gated_delta_net as gated_delta_net,
    gated_delta_net2 as gated_delta_net2,
    gla as gla,
    kimi_delta_attention as kimi_delta_attention,
    klms as klms,
    knlms as knlms,
    linear_attention as linear_attention,
    linear_attention_identity as linear_attention_identity,
    longhorn as longhorn,
    mamba2 as mamba2,
    mesa_net as mesa_net,
    mesa_net_ungated as mesa_net_ungated,
    nadaraya_watson as nadaraya_watson,
    norma as norma,
    oja_net as oja_net,
    qklms as qklms,
    rbf_delta as rbf_delta,
    rbf_delta_budget as rbf_delta_budget,
    rbf_gated_delta as rbf_gated_delta,
    rbf_ridge as rbf_ridge,
    retnet as retnet,
    rwkv6 as rwkv6,
    rwkv7 as rwkv7,
    sliding_window as sliding_window,
    sliding_window_ridge as sliding_window_ridge,
    softmax as softmax,
)
from ._descents import (
    atlas as atlas,
    elastic_net as elastic_net,
    memora as memora,
    moneta as moneta,
    moneta_miras as moneta_miras,
    omega_net as omega_net,
    titans as titans,
    titans_mlp as titans_mlp,
    ttt_linear as ttt_linear,
    ttt_mlp as ttt_mlp,
    value_shift as value_shift,
    yaad as yaad,
)


def catalogue() -> dict[str, Callable[[], AbstractMemory]]:
    """Every memory of the zoo by name.

    ??? example

        ```python
        >>> import memdsl as md
        >>> md.zoo.catalogue()["klms"]()
        Memory(RBF(), write=Delta(rate=0.2))

        ```
    """
    return {
        name: function
        for module in (_classics, _descents)
        for name, function in vars(module).items()
        if inspect.isfunction(function) and not name.startswith("_")
    }
