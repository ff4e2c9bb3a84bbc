"""The table of the classics in the documents is the one that the code gives."""

from pathlib import Path

import pytest

import memdsl as md
from memdsl.listing import cells, entries, listing
from tests.catalogue import CATALOGUE, memories, page
from tests.classics import DOCUMENTS, marked, table


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda file: file.name)
def test_table_is_current(document: Path):
    place = marked(document.read_text(encoding="utf-8"))
    assert place is not None
    assert place[0] == table(), "run: python -m tests.classics"


def test_catalogue_is_current():
    assert CATALOGUE.read_text(encoding="utf-8") == page(), "run: python -m tests.classics"


def test_catalogue_has_every_memory_and_every_layer():
    """Each under its heading, the layers with the memories that are in them."""
    headings = [line.removeprefix("### ") for line in page().splitlines() if line[:4] == "### "]
    assert headings == [*md.zoo.catalogue(), *md.zoo.layers.catalogue()]
    for make in md.zoo.layers.catalogue().values():
        assert list(memories(make(512)))


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


@pytest.mark.parametrize(
    ("memory", "kernel", "write", "read"),
    [
        (md.zoo.softmax() + md.zoo.klms(), "`Exp(1/√d * Dot)` `+` `RBF`", None, None),
        (md.every(3, md.zoo.klms()), "`RBF`", "`Delta(rate=0.2)`, every 3 tokens", "`Evaluate`"),
        (0.5 * md.zoo.klms(), "`RBF`", None, "`Evaluate` `* 0.5`"),
        (md.zoo.klms() >> md.L2Norm(), "`RBF`", None, "`Evaluate` `>> L2Norm`"),
        (md.zoo.klms().boost(md.zoo.ttt_linear()), None, None, "`Evaluate`"),
        (md.Zero(), "`Zero`", "", ""),
    ],
)
def test_cells_of_memories_made_of_memories(memory, kernel, write, read):
    found = cells(memory)
    for index, wanted in ((0, kernel), (1, write), (4, read)):
        assert wanted is None or found[index] == wanted
    assert len(found) == 5


def test_states_are_the_smallest_that_a_plan_may_have():
    """At keys and values of 64 and 4096 tokens: matrices, with their mass; buffers; a Gram matrix."""
    size = {entry.name: entry.state for entry in entries()}
    assert size["delta_net"] == 64 * 64
    assert size["linear_attention"] == 64 * 65
    assert size["rbf_delta_budget"] == 16 * 128
    assert size["softmax"] == 4096 * 129
    assert size["mesa_net"] == 64 * (64 + 64)
    assert size["ada_transformer"] == size["softmax"] + 64 * 64


@pytest.mark.parametrize("width", [100, 160])
def test_the_listing_fits_and_leaves_nothing_out(width: int):
    """Every cell is there, whatever lines it was folded into; a word may be longer than a line."""
    longest = width // 3
    text = listing(["klms"], width)
    assert max(map(len, text.splitlines())) <= width
    assert [line for line in text.splitlines() if line.startswith("* ")] == [
        line for line in text.splitlines() if line.split()[:2] == ["*", "klms"]
    ]
    words = text.split()
    for entry in entries():
        assert entry.name in words
        wanted = [w for cell in (*entry.cells, entry.plans) for w in cell.replace("`", "").split()]
        assert not {w for w in wanted if len(w) <= longest} - set(words)
