"""The table of the classics, read off `memdsl.zoo`: `python -m tests.classics` writes it anew.

It stands between two marks in the README and in the documents; the page of the whole catalogue is
written too. `tests/test_classics.py` compares.
"""

import re
from pathlib import Path

from memdsl.listing import entries, SORTS

from .catalogue import CATALOGUE, page


ROOT = Path(__file__).parent.parent
DOCUMENTS = (ROOT / "README.md", ROOT / "docs" / "idea.md")
START, END = "<!-- the classics: python -m tests.classics -->", "<!-- end of the classics -->"


def table() -> str:
    """The whole table, in Markdown."""
    rows = [["name", *SORTS], ["---"] * 6]
    rows += [[f"`{entry.name}`", *entry.cells] for entry in entries()]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def marked(text: str) -> re.Match[str] | None:
    """The place of the table in a document."""
    return re.search(f"(?<={re.escape(START)}\n\n).*?(?=\n\n{re.escape(END)})", text, re.DOTALL)


def main() -> None:
    """Writes the table into every document that has a place for it, and the page of the catalogue."""
    CATALOGUE.write_text(page(), encoding="utf-8")
    for document in DOCUMENTS:
        text = document.read_text(encoding="utf-8")
        place = marked(text)
        if place is None:
            raise SystemExit(f"{document} has no place between {START} and {END}")
        document.write_text(text[: place.start()] + table() + text[place.end() :], encoding="utf-8")


if __name__ == "__main__":
    main()
