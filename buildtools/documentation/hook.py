"""MkDocs' hook: adds the pages that are not in docs/, and gives every page the links of the site.

MkDocs loads this file by its path, and calls these functions by their names.
"""

from __future__ import annotations

from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from buildtools import ROOT
from buildtools.documentation.links import INCLUDED, site_links
from buildtools.documentation.reference import ENTRIES, TYPESCRIPT

__all__ = ["on_files", "on_page_markdown"]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the included and the generated pages."""
    for page, source in INCLUDED.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / source)))
    for entry in ENTRIES:
        files.append(File.generated(config, f"typescript/{entry}.md", abs_src_path=str(TYPESCRIPT / f"{entry}.md")))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """The page's text with links of the site."""
    name = page.file.src_uri
    return markdown if name.startswith("typescript/") else site_links(markdown, name)
