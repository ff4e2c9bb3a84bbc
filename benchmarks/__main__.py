"""Benchmarks by name.

    python -m benchmarks growth --help

Each is a script of its own as well, `python benchmarks/growth.py`.
"""

import ast
import runpy
import sys
from pathlib import Path


def described() -> dict[str, str]:
    """The first sentence of every script, by its name."""
    found = {}
    for path in sorted(Path(__file__).parent.glob("[!_]*.py")):
        text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        found[path.stem] = " ".join(text.partition("\n\n")[0].split())
    return found


def usage(scripts: dict[str, str]) -> str:
    """What can be run."""
    lines = ["usage: python -m benchmarks NAME [options]; NAME --help lists them", ""]
    return "\n".join([*lines, *(f"  {name:13} {text}" for name, text in scripts.items())])


def main(arguments: list[str]) -> int:
    """Runs one script, or says which there are."""
    scripts = described()
    if not arguments or arguments[0] in ("-h", "--help"):
        print(usage(scripts))
        return 0
    name, *rest = arguments
    if name not in scripts:
        print(f"There is no benchmark {name!r}.\n\n{usage(scripts)}", file=sys.stderr)
        return 2
    sys.argv = [f"benchmarks {name}", *rest]
    runpy.run_module(f"benchmarks.{name}", run_name="__main__", alter_sys=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
