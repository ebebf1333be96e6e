"""The links in this repository's documents point to existing files and sections."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from buildtools import ROOT

PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), ROOT / "benches/README.md", ROOT / "examples/README.md"]
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
