"""`python -m tests.golden`: the table, a row a file; exit status 0 only if no row fails.

`python -m tests.golden gla kda` makes these rows alone.
"""

import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import jax


for _name, _value in {
    "jax_enable_x64": True,
    "jax_numpy_dtype_promotion": "strict",
    "jax_numpy_rank_promotion": "raise",
}.items():
    jax.config.update(_name, _value)

from ._file import names  # noqa: E402  (after the precision is set)
from ._table import measure, Row  # noqa: E402


HEAD = ("file", "value", "state", "gradient", "float32", "plans", "furthest plan", "verdict")


def cells(row: Row) -> tuple[str, ...]:
    """A row of the table as text."""
    verdict = f"{row.verdict}: {row.note}" if row.note else row.verdict
    if row.double is None or row.single is None:
        return (f"{row.name}.npz", "", "", "", "", "", "", verdict)
    numbers = [f"{error:.1e}" for error in (*row.double, row.single.worst)]
    numbers[1] = numbers[1] if row.has_state else ""
    return (f"{row.name}.npz", *numbers, str(row.plans), row.worst, verdict)


def main(wanted: Sequence[str]) -> int:
    """Prints the table; 1 where a row fails."""
    form = "{:29}{:>9}{:>9}{:>10}{:>9}{:>7}  {:35}{}"
    print(form.format(*HEAD))
    began, verdicts = time.perf_counter(), []
    # compilers run beside one another, which is where the time goes
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for row in pool.map(measure, wanted or names()):
            verdicts.append(row.verdict)
            print(form.format(*cells(row)), flush=True)
    counts = ", ".join(f"{verdicts.count(v)} {v}" for v in ("pass", "fail", "reason"))
    print(f"\n{counts}, in {time.perf_counter() - began:.0f} s")
    return 1 if "fail" in verdicts else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
