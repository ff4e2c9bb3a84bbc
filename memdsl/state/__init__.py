"""Representations of a function that is being learned: a matrix, atoms, a ridge problem, a network."""

from ._base import (
    AbstractState as AbstractState,
    answer as answer,
    fade as fade,
    Pair as Pair,
    read as read,
    Token as Token,
    with_own as with_own,
)
from ._blocks import chosen as chosen
from ._buffer import BufferState as BufferState
from ._descent import DescentState as DescentState
from ._empty import empty_state as empty_state
from ._gram import GramState as GramState
from ._local import tilted as tilted
from ._matrix import MatrixState as MatrixState
from ._network import NetworkState as NetworkState
from ._solved import as_sum as as_sum, function_of as function_of, SolvedState as SolvedState
from ._write import write as write
