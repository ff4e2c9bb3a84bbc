"""Growing layers: the backward pass hands out the pairs, and a write makes atoms of them."""

from ..nn._tap import Pairs as Pairs, tap as tap
from ._attribute import attribute as attribute, Attribution as Attribution
from ._backward import backward as backward
from ._checkpoints import Checkpoints as Checkpoints
from ._fit import Fit as Fit, fit as fit
from ._history import EarlyStop as EarlyStop, History as History
from ._layers import growing as growing, parameters as parameters
from ._naive import naive_insertion as naive_insertion
from ._plant import plant as plant
from ._rates import Rates as Rates, RateWarning as RateWarning, suggest_rate as suggest_rate
from ._resize import resize as resize
from ._shard import shard as shard, shard_batch as shard_batch
from ._slotwise import slotwise as slotwise, SlotwiseState as SlotwiseState
from ._unroll import Record as Record, unroll as unroll
from ._write import write as write
