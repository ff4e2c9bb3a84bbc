"""Optimisers that are the training dual of a memory."""

from ._capture import (
    backward as backward,
    capture as capture,
    Captured as Captured,
    with_grams as with_grams,
)
from ._dual import dual as dual, DualState as DualState
from ._gram import Gram as Gram
