"""The reference that TypeDoc makes from the types of the npm package."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from capstan_host.locks import locked

from .. import CACHE, ROOT
from ..bundles import ENTRIES
from ..environment import Stage, run_tool

__all__ = ["TYPESCRIPT", "make_typescript_pages"]

TYPEDOC = Path(__file__).with_name("typedoc")
"""TypeDoc has a TypeScript of its own, and so a package and a lock file."""
INSTALLED = CACHE / "typedoc-package"
TYPESCRIPT = CACHE / "typedoc"


def make_typescript_pages() -> Path:
    """Write TypeDoc's pages, a page for each entry of the package, and return their folder."""
    inputs = [TYPEDOC / "package.json", TYPEDOC / "package-lock.json"]
    stage = Stage("TypeDoc for the reference", INSTALLED / ".capstan", inputs, install_typedoc)
    if not stage.is_done():
        with locked("typedoc"):
            stage.run_once()
    options = json.loads((TYPEDOC / "typedoc.json").read_text(encoding="utf-8"))
    plugin = INSTALLED / "node_modules/typedoc-plugin-markdown/dist/index.js"
    options |= {"plugin": [str(plugin)], "out": str(TYPESCRIPT), "tsconfig": str(ROOT / "tsconfig.json")}
    options["entryPoints"] = [*map(str, ENTRIES.values())]
    written = INSTALLED / "typedoc.json"
    written.write_text(json.dumps(options), encoding="utf-8")
    typedoc = INSTALLED / "node_modules/typedoc/bin/typedoc"
    run_tool(["node", typedoc, "--options", written], "mend what build.py check reports of web/src")
    return TYPESCRIPT


def install_typedoc() -> None:
    """npm runs no scripts."""
    shutil.rmtree(INSTALLED, ignore_errors=True)
    INSTALLED.mkdir(parents=True)
    for name in ("package.json", "package-lock.json"):
        shutil.copy(TYPEDOC / name, INSTALLED)
    shutil.copy(ROOT / ".npmrc", INSTALLED)
    flags = ["--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
    run_tool(["npm", "ci", *flags], "check the network and free disk space, then run this again", cwd=INSTALLED)
