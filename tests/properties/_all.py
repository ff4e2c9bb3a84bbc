"""Every check, in the order of the table."""

from tests.properties import (  # noqa: F401
    _descents,
    _dual,
    _growth,
    _mesa,
    _optimisers,
    _sequence,
    _softmax,
    _training,
)
from tests.properties._table import CHECKS as CHECKS, measured as measured
