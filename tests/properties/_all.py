"""Every check, in the order of the table."""

from tests.properties import _descents, _dual, _growth, _sequence, _softmax, _training  # noqa: F401
from tests.properties._table import CHECKS as CHECKS, measured as measured
