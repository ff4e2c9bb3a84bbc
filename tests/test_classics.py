"""The table of the classics in the documents is the one that the code gives."""

from pathlib import Path

import pytest

import memdsl as md
from tests.classics import cells, DOCUMENTS, marked, table


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda file: file.name)
def test_table_is_current(document: Path):
    place = marked(document.read_text(encoding="utf-8"))
    assert place is not None
    assert place[0] == table(), "run: python -m tests.classics"


def test_cells_say_where_numbers_come_from():
    memory = md.Memory(
        md.Exp(md.InverseRoot("key") * md.Dot()),
        md.Delta(rate=md.FromInput("sigmoid")),
        md.Decay(md.Learned(0.9)),
        md.Window(16),
    )
    assert cells(memory) == [
        "`Exp(1/√d * Dot)`",
        "`Delta(rate=token)`",
        "`Decay(learned)`",
        "`Window(16)`",
        "`Evaluate`",
    ]
