"""The classics, one expression each. Every function returns a spec; nothing here is special."""

import inspect
from collections.abc import Callable

from ..spec._memory import AbstractMemory
from . import _attention, _cells, _classics, _descents, _gated, _rewired, layers as layers
from ._attention import (
    alibi as alibi,
    deltaformer as deltaformer,
    dsa as dsa,
    laplace_attention as laplace_attention,
    local_linear_attention as local_linear_attention,
    matern_attention as matern_attention,
    moba as moba,
    nsa as nsa,
    path_attention as path_attention,
    rational_attention as rational_attention,
    rwkv4 as rwkv4,
    softmax_sink as softmax_sink,
    streaming_attention as streaming_attention,
    wall_attention as wall_attention,
)
from ._cells import (
    gauss_seidel as gauss_seidel,
    rbf_gated_ridge as rbf_gated_ridge,
    robust_kernel_delta as robust_kernel_delta,
    softmax_delta as softmax_delta,
    softmax_reweight as softmax_reweight,
)
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
from ._gated import (
    based as based,
    dplr as dplr,
    gated_delta_product as gated_delta_product,
    gated_oja as gated_oja,
    hgrn as hgrn,
    hgrn2 as hgrn2,
    iplr as iplr,
    kalman_net as kalman_net,
    lightning_attention as lightning_attention,
    log_linear_attention as log_linear_attention,
    normalised_delta as normalised_delta,
    rebased as rebased,
    simple_gla as simple_gla,
)
from ._rewired import (
    abc as abc,
    gsa as gsa,
    lightnet as lightnet,
    preconditioned_delta_net as preconditioned_delta_net,
    preconditioned_kda as preconditioned_kda,
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
        for module in (_classics, _gated, _rewired, _descents, _attention, _cells)
        for name, function in vars(module).items()
        if inspect.isfunction(function)
        and function.__module__ == module.__name__
        and not name.startswith("_")
    }
