"""MkDocs' hook: adds the pages that are not in docs/, and gives every page the links of the site.

MkDocs loads this file by its path, and calls these functions by their names.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from buildtools import ROOT
from buildtools.bundles import ENTRIES
from buildtools.documentation.links import INCLUDED, site_links
from buildtools.documentation.reference import TYPESCRIPT
from buildtools.environment import distribution, site_packages

__all__ = ["on_files", "on_page_markdown", "on_post_build"]

HOME = "index.md"
DEMO = '<p><a class="md-button md-button--primary" href="../index.html">Open the demo</a></p>'
"""On the home page if CAPSTAN_DEMO is set: the site is then in the folder docs/ of one that has the demo."""
LICENCES = """This site is made by Material for MkDocs, whose licence follows, and has icons of Material Design Icons.
Its scripts contain clipboard.js (MIT), escape-html (MIT), focus-visible (W3C-20150513), lunr (MIT), RxJS (Apache-2.0)
and tslib (0BSD); the source maps beside them hold their sources with their notices.
"""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the included and the generated pages."""
    for page, source in INCLUDED.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / source)))
    for entry in ENTRIES:
        files.append(File.generated(config, f"typescript/{entry}.md", abs_src_path=str(TYPESCRIPT / f"{entry}.md")))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """The page's text with links of the site, and the names that importers of TypeScript know."""
    name = page.file.src_uri
    if name.startswith("typescript/"):
        entry = Path(name).stem
        return markdown.replace(f"# {entry}\n", f"# capstan-webgpu{'' if entry == 'capstan' else '/' + entry}\n", 1)
    if name == HOME:
        page.meta["hide"] = ["navigation", "toc"]
        markdown = markdown.replace("<!-- demo -->", DEMO if os.environ.get("CAPSTAN_DEMO") else "")
    return site_links(markdown, name)


def on_post_build(config: MkDocsConfig) -> None:
    """Add the licences of the site's own parts."""
    texts = [
        distribution("mkdocs_material") / "licenses/LICENSE",
        site_packages() / "material/templates/.icons/material/LICENSE",
    ]
    whole = "\n\n".join([LICENCES, *(path.read_text(encoding="utf-8") for path in texts)])
    Path(config.site_dir, "licences.txt").write_text(whole, encoding="utf-8")
