"""The links of the documentation, which name files of the repository, as links of the site."""

from __future__ import annotations

import functools
import posixpath
import re

from .. import ROOT

__all__ = ["INCLUDED", "site_links"]

INCLUDED = {
    "benches.md": "benches/README.md",
    "bundled_model.md": "models/README.md",
    "changelog.md": "CHANGELOG.md",
    "contributing.md": "CONTRIBUTING.md",
    "examples.md": "examples/README.md",
    "notes.md": "benches/NOTES.md",
    "security.md": "SECURITY.md",
}
"""Pages of the site that are files outside docs/."""
PLACES = {
    **{source: page for page, source in INCLUDED.items()},
    "README.md": "index.md",
    "docs": "index.md",
    "examples": "examples.md",
}
FENCED = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?P<image>!?)\[(?P<text>(?:[^\[\]]|\[[^\]]*\])*)\]\((?P<target>[^)\s]+)\)")


REPOSITORY_ONLY = re.compile(r"<!-- markdown -->.*?<!-- /markdown -->\n*", re.DOTALL)
"""Text for readers of the file itself."""
CONTENTS = re.compile(r"^(?:- \[[^\]]*\]\(#[^)]*\)\n)+\n?", re.MULTILINE)
"""A list of a page's own sections, which the site has beside each page."""


def site_links(markdown: str, page: str) -> str:
    """The text of a page for the site: links that are named by a page's file get its title, links to files that the
    site does not have become plain text. Code stays unchanged."""
    markdown = CONTENTS.sub("", REPOSITORY_ONLY.sub("", markdown))
    parts, end = [], 0
    for code in FENCED.finditer(markdown):
        parts += [in_prose(markdown[end : code.start()], page), code[0]]
        end = code.end()
    return "".join([*parts, in_prose(markdown[end:], page)])


def in_prose(prose: str, page: str) -> str:
    folder = posixpath.dirname(INCLUDED.get(page, f"docs/{page}"))

    def replaced(link: re.Match[str]) -> str:
        text, target = link["text"], link["target"]
        path, hash_sign, section = target.partition("#")
        if not path or "://" in path or path.startswith("mailto:"):
            return link[0]
        place = posixpath.normpath(posixpath.join(folder, path))
        inside = PLACES.get(place) or (place.removeprefix("docs/") if place.startswith("docs/") else None)
        if inside is not None:
            text = title(place) if text == posixpath.basename(path) and text.endswith(".md") else text
            relative = posixpath.relpath(inside, posixpath.dirname(page) or ".")
            return f"{link['image']}[{text}]({relative}{hash_sign}{section})"
        return text if posixpath.basename(place) in text or "`" in text else f"{text} (`{place}`)"

    return LINK.sub(replaced, prose)


@functools.cache
def title(path: str) -> str:
    """A page's first heading."""
    text = (ROOT / path).read_text(encoding="utf-8")
    found = re.search(r"^# (.+)$", text, re.MULTILINE)
    return found[1] if found else posixpath.basename(path)
