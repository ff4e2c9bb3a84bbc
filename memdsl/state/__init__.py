"""Representations of a function that is being learned: a matrix, a buffer of atoms, a ridge problem."""

from ._base import (
    AbstractState as AbstractState,
    answer as answer,
    fade as fade,
    Pair as Pair,
    read as read,
    Token as Token,
)
from ._buffer import BufferState as BufferState
from ._descent import DescentState as DescentState
from ._empty import empty_state as empty_state
from ._gram import GramState as GramState
from ._matrix import MatrixState as MatrixState
from ._write import write as write
