"""The links in this repository's documents point to existing files and sections."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from buildtools import ROOT
from buildtools.cli import parse

PAGES = [
    *ROOT.glob("*.md"),
    *(ROOT / "docs").glob("*.md"),
    *(ROOT / "benches").rglob("*.md"),
    ROOT / "examples/README.md",
]
LINK = re.compile(r"\]\(([^)\s]+)\)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix().replace("/", "-"))
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    lost = []
    for link in LINK.findall(text):
        path, _, section = link.partition("#")
        target = page.parent / path if path else page
        if "://" not in link and not (target.exists() and (not section or section in sections(target))):
            lost.append(link)
    assert lost == []


def sections(page: Path) -> set[str]:
    """A Markdown page's headings as links name them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix().replace("/", "-"))
def test_examples_name_no_model_of_the_tests(page: Path) -> None:
    """A reader has the chat model, the bundled one, and those of a hub."""
    if page.is_relative_to(ROOT / "benches"):
        return
    blocks = re.findall(r"^```.*?^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert not [name for block in blocks for name in re.findall(r"\bnano-\w+|\btests/fixtures\S*", block)]


SHELL = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix().replace("/", "-"))
def test_the_command_line_takes_the_commands(page: Path) -> None:
    blocks = "\n".join(SHELL.findall(page.read_text(encoding="utf-8")))
    for command in re.findall(r"python3 build\.py (.+)", blocks):
        parse(shlex.split(command.replace(" ...", ""), comments=True))


CITED = re.compile(r"`([\w.]+\.(?:py|mjs))`(?:, ([^;|]+))?")


def test_each_test_that_reliability_names_is_there() -> None:
    """The last cell of a row names files of tests, each followed by words of their names."""
    rows = [line.rstrip(" |") for line in (ROOT / "docs/reliability.md").read_text().splitlines() if line[:2] == "| "]
    cited = [found for row in rows for found in CITED.findall(row.rpartition("|")[2])]
    assert len(cited) > 60
    for file, words in cited:
        texts = [plain(path.read_text()) for path in (ROOT / "tests").rglob(file)]
        assert texts, f"there is no {file}"
        for word in filter(None, words.split(",")):
            assert any(plain(word.strip(" `")) in text for text in texts), f"{file} has no test {word}"


def plain(text: str) -> str:
    """A text as it would be in a name."""
    return re.sub(r"\W", "_", text.lower())
