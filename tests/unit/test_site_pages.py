"""mkdocs.yml lists every page, links become those of the site, the page of options is in step, and the site builds."""

from __future__ import annotations

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from buildtools import ROOT
from buildtools.bundles import ENTRIES
from buildtools.commands import docs
from buildtools.documentation.links import INCLUDED, site_links
from buildtools.documentation.options import OPTIONS, write_page

DOCS = ROOT / "docs"
LISTED = re.compile(r"^ +- (?:[^:\n]+: )?(\S+\.md)$", re.MULTILINE)
EXPORT = re.compile(
    r"^export (?:type )?\{([^}]*)\}|^export (?:abstract )?(?:class|interface|type|const|function) (\w+)", re.M
)
LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href"}


def test_the_site_lists_every_page_once() -> None:
    listed = LISTED.findall((ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2])
    pages = [path.name for path in DOCS.glob("*.md")]
    assert sorted(listed) == sorted([*pages, *INCLUDED, *(f"typescript/{entry}.md" for entry in ENTRIES)])


def test_links_become_those_of_the_site() -> None:
    text = (
        "- [Load](#load)\n- [Chat](#chat)\n\n"
        "[models.md](models.md#families), [here](../benches/NOTES.md), [min_p.py](../py_src/capstan/stages/min_p.py), "
        "[the loop](../web/src/worker/storage/weight_load.ts#L1), [hub](https://huggingface.co/a.md), "
        "[README](../README.md#speed)\n"
        "```md\n[code](../web/src)\n```\n"
    )
    assert site_links(text, "web.md") == (
        "[Which models run, and how](models.md#families), [here](notes.md), min_p.py, "
        "the loop (`web/src/worker/storage/weight_load.ts`), [hub](https://huggingface.co/a.md), "
        "[README](index.md#speed)\n"
        "```md\n[code](../web/src)\n```\n"
    )
    assert site_links("[guide](../docs/lora.md) [x](results/)", "notes.md") == "[guide](lora.md) x (`benches/results`)"
    assert site_links("a\n\n<!-- markdown -->\n\nb\n\n<!-- /markdown -->\n\nc\n", "web.md") == "a\n\nc\n"
    assert site_links("![shown](docs/pictures/a.png)", "contributing.md") == "![shown](pictures/a.png)"


def test_the_page_of_options_is_that_of_the_parsers(tmp_path: Path) -> None:
    made = write_page(tmp_path / "options.md")
    assert made.read_text() == OPTIONS.read_text(), "python3 build.py docs --pages"


class Resources(HTMLParser):
    """The addresses from which a page loads something."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.addresses += [value for name, value in attrs if name == LOADED.get(tag) and value]


@pytest.fixture(scope="module")
def site() -> Path:
    """The site as `build.py docs` makes it, which refuses one with a warning."""
    subprocess.run([sys.executable, ROOT / "build.py", "docs"], cwd=ROOT, check=True)
    return docs.TARGET


@pytest.mark.extended
def test_the_site_builds_without_a_warning_and_loads_nothing_from_elsewhere(site: Path) -> None:
    pages = [path for path in site.rglob("*.html") if path.name != "404.html"]
    listed = LISTED.findall((ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2])
    assert sorted(path.relative_to(site).with_suffix(".md").as_posix() for path in pages) == sorted(listed)
    found = {address for page in pages for address in Resources(page).addresses}
    assert found
    assert not [address for address in found if urlsplit(address).netloc]


@pytest.mark.extended
def test_the_site_of_dist_leads_to_the_demo_beside_it(site: Path, tmp_path: Path) -> None:
    link = 'href="../index.html">Open the demo'
    assert link not in (site / "index.html").read_text(encoding="utf-8")
    beside = docs.build_site(tmp_path / "docs", demo=True)
    home = (beside / "index.html").read_text(encoding="utf-8")
    assert link in home
    assert "../index.html" in Resources(beside / "index.html").addresses, "the demo in a frame"
    assert "Martin Donath" in (beside / "licences.txt").read_text(encoding="utf-8")


@pytest.mark.extended
@pytest.mark.parametrize("entry", ENTRIES)
def test_the_reference_has_every_export(site: Path, entry: str) -> None:
    text = (site / f"typescript/{entry}.html").read_text(encoding="utf-8")
    headings = set(re.findall(r">(\w+)(?:\(\))?<a class=\"headerlink", text))
    found = exports(ENTRIES[entry])
    assert found
    assert set(found) <= headings


def exports(module: Path) -> list[str]:
    """The names that a module exports, also those of modules that it passes on as a whole."""
    text = module.read_text(encoding="utf-8")
    names = [name for group, single in EXPORT.findall(text) for name in ([single] if single else group.split(","))]
    plain = [name.strip().removeprefix("type ").split(" as ")[-1] for name in names if name.strip()]
    passed = re.findall(r'^export (?:type )?\* from "(\.[./\w]*)"', text, re.MULTILINE)
    return [*plain, *(name for other in passed for name in exports(module.parent / f"{other}.ts"))]
