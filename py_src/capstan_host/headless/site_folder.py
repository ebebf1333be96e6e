"""Finds the folder with Capstan's page for headless browsers."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from capstan.errors import CapstanError

__all__ = ["PACKAGED", "PAGE", "SiteError", "find_site"]

PAGE = "capstan/harness.html"
"""The page, in a site folder: build/site of a checkout, or the npm package's folder."""
PACKAGED = Path(__file__).resolve().parents[1] / "site"
"""The site folder in a package that was installed from a checkout."""
REMEDY = "run `npm install capstan-webgpu` in this folder or above it, or name a site folder in CAPSTAN_SITE"


class SiteError(CapstanError):
    """No folder has Capstan's page, or the named one lacks it."""


def find_site(named: str | Path | None = None, environ: Mapping[str, str] = os.environ) -> Path:
    """The site folder: `named`, else CAPSTAN_SITE, else node_modules/capstan-webgpu of the working directory or of a
    folder above it, else the one in this package. Raises SiteError for a named folder without the page, and if there is
    no folder with it.
    """
    for source, folder in (("site", named), ("CAPSTAN_SITE", environ.get("CAPSTAN_SITE"))):
        if folder:
            if not (Path(folder) / PAGE).is_file():
                raise SiteError(f"{source}={folder} has no {PAGE}: give the folder of the npm package capstan-webgpu")
            return Path(folder).resolve()
    found = next((folder for folder in _installed() if (folder / PAGE).is_file()), None)
    if found is None:
        raise SiteError(f"no node_modules/capstan-webgpu with {PAGE} at {Path.cwd()} or above it: {REMEDY}")
    return found


def _installed() -> Iterator[Path]:
    here = Path.cwd()
    for folder in (here, *here.parents):
        yield folder / "node_modules" / "capstan-webgpu"
    yield PACKAGED
