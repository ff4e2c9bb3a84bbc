"""The documents keep their word: code runs, commands stand alone, links lead somewhere."""

import contextlib
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import matplotlib
import pytest


ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
DOCUMENTS = [README, *sorted((ROOT / "docs").rglob("*.md"))]
LEFT_OUT = re.compile(r"<!-- not run: (?P<reason>\S.*) -->")
PRINTED = "<!-- printed -->"
FENCE = re.compile(r"^(?P<indent> *)```(?P<language>\S*)(?P<rest>.*)$")
# The name on the public index belongs to an unrelated project.
WRONG_INSTALL = re.compile(r"\binstall\b[^\n|&;]*(?<![\w/.-])memdsl(?![\w/.-])", re.IGNORECASE)


@dataclass(frozen=True)
class Block:
    language: str
    line: int  # the number of its first line of code, counted from one
    code: str
    before: str  # the last line above it that is not blank


def blocks(text: str) -> Iterator[Block]:
    """Every fenced block, those indented inside lists and admonitions too."""
    opened, body, before = None, [], ""
    for number, line in enumerate(text.splitlines(), start=1):
        fence = FENCE.match(line)
        if opened is None:
            if fence:
                opened, body = (fence, number, before), []
            elif line.strip():
                before = line.strip()
        elif line.strip() == "```":
            start, first, above = opened
            width = len(start["indent"])
            code = "\n".join(row[width:] for row in body)
            yield Block(start["language"], first + 1, code, above)
            opened, before = None, line.strip()
        else:
            body.append(line)
    if opened is not None:
        raise ValueError(f"the fence opened in line {opened[1]} is never closed")


def sections(text: str) -> dict[str, str]:
    """The text under each second-level heading."""
    parts = re.split(r"^## (.*)$", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def name_of(file: Path) -> str:
    return file.relative_to(ROOT).as_posix()


def run(document: Path) -> int:
    """Runs the python blocks of a document in one namespace, in order; how many there were.

    A block under the mark of what is printed must be what the last one printed.
    """
    namespace: dict[str, object] = {"__name__": "__main__"}
    count, printed = 0, ""
    for block in blocks(document.read_text(encoding="utf-8")):
        if block.before == PRINTED:
            assert _lines(printed) == _lines(block.code), f"{document}, line {block.line}"
        if block.language != "python" or LEFT_OUT.fullmatch(block.before):
            continue
        # Blank lines in front give errors the line number of the document.
        code = "\n" * (block.line - 1) + block.code
        with contextlib.redirect_stdout(io.StringIO()) as out:
            exec(compile(code, str(document), "exec"), namespace)
        printed = out.getvalue()
        count += 1
    return count


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip("\n").splitlines()]


@pytest.mark.usefixtures("ordinary_settings")
@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_code_runs(document: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    matplotlib.use("Agg")
    monkeypatch.chdir(tmp_path)
    run(document)


@pytest.mark.parametrize("heading", ["Run it", "Test it"])
def test_one_command_under_its_heading(heading: str):
    (block,) = blocks(sections(README.read_text(encoding="utf-8"))[heading])
    assert len(block.code.splitlines()) == 1
    assert block.code.startswith("python3 -m venv .venv && ")


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_nobody_is_sent_to_the_unrelated_project(document: Path):
    assert not WRONG_INSTALL.findall(document.read_text(encoding="utf-8"))


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_links_and_pictures_lead_somewhere(document: Path):
    text = re.sub(r"^( *)```.*?^\1```$", "", document.read_text("utf-8"), flags=re.M | re.S)
    targets = re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r'src="([^"]+)"', text)
    local = [target.split("#")[0] for target in targets if not re.match(r"[a-z]+:|#", target)]
    missing = [target for target in local if not (document.parent / target).exists()]
    assert not missing


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("pip install memdsl", True),
        ("python -m pip install -U memdsl && memdsl list", True),
        ("pip install 'memdsl[test]'", True),
        ("pip install memdsl-jax", False),
        ("pip install -q . && .venv/bin/memdsl run digits", False),
    ],
)
def test_the_wrong_install_is_recognised(line: str, wrong: bool):
    assert bool(WRONG_INSTALL.search(line)) == wrong


def test_blocks_are_read_with_indent_line_and_reason():
    text = "a\n\n<!-- not run: needs a GPU -->\n```python\nx = 1\n```\n- b\n  ```sh\n  ls\n  ```\n"
    first, second = blocks(text)
    assert first == Block("python", 5, "x = 1", "<!-- not run: needs a GPU -->")
    assert second == Block("sh", 9, "ls", "- b")
    assert LEFT_OUT.fullmatch(first.before)
    assert not LEFT_OUT.fullmatch("<!-- not run: -->")


def test_a_document_that_fails_is_seen(tmp_path: Path):
    document = tmp_path / "page.md"
    document.write_text("```python\nx = 1\n```\n\n```python\nassert x == 2\n```\n")
    with pytest.raises(AssertionError) as failure:
        run(document)
    last = failure.traceback[-1]
    assert (last.path, last.lineno + 1) == (document, 6)


def test_what_is_printed_is_compared(tmp_path: Path):
    document = tmp_path / "page.md"
    page = "```python\nprint(1)\n```\n\n<!-- printed -->\n```text\n{}\n```\n"
    document.write_text(page.format(1))
    assert run(document) == 1
    document.write_text(page.format(2))
    with pytest.raises(AssertionError, match="line 7"):
        run(document)
