"""`python -m tests.properties`: one row an identity; the exit status is 0 only if all hold."""

import sys

import jax


jax.config.update("jax_enable_x64", True)

from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

from tests.properties._all import CHECKS, measured  # noqa: E402


def main() -> int:
    """Prints the table."""
    table = Table("id", "statement", "error", "tolerance", "", title="Properties")
    failed = 0
    for name in CHECKS:
        row = measured(name)
        failed += not row.holds
        verdict = "pass" if row.holds else "FAIL"
        table.add_row(row.id, row.statement, f"{row.error:.1e}", f"{row.tolerance:.0e}", verdict)
    Console(width=None if sys.stdout.isatty() else 140).print(table)
    print(f"{len(CHECKS) - failed} of {len(CHECKS)} hold")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
