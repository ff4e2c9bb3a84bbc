"""From a spec and its sizes to a way of running it: rules, plans, and bare runs."""

from ._dims import Dims as Dims
from ._documents import starts_of as starts_of
from ._explain import page as page, row as row
from ._measure import machine as machine, measure as measure, Measured as Measured
from ._plan import Choice as Choice, Plan as Plan, plan as plan
from ._rule import Cost as Cost, Requirement as Requirement, Rule as Rule
from ._rules import RULES as RULES
from ._run import (
    evaluate as evaluate,
    run as run,
    step as step,
)
from ._signals import signals as signals
from ._states import empty as empty
