"""The table of `python -m tests.properties`, a test a row."""

import pytest

from tests.properties._all import CHECKS, measured


@pytest.mark.parametrize("name", CHECKS)
def test_property(name):
    row = measured(name)
    assert row.holds, f"{row.statement}: {row.error:.2g} > {row.tolerance:.0e}"
