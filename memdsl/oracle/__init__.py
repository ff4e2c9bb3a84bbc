"""The definition of every memory, atom by atom: what all executions are compared with."""

from ._denote import denote as denote
