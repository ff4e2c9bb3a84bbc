"""Optimisers that are the training dual of a memory."""

from ._backward import backward as backward, with_grams as with_grams
from ._capture import capture as capture, Captured as Captured
from ._dual import dual as dual, DualState as DualState
from ._explain import explain as explain
from ._gram import Gram as Gram
