"""A page with a bundled script of this folder."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, Page

from capstan_host.testing.harness import watch

__all__ = ["bundled", "page_with"]

ROOT = Path(__file__).parents[2]


def bundled(name: str, folder: Path) -> Path:
    """The script of this name with all that it imports, in a folder."""
    source, script = Path(__file__).with_name(name), folder / "page.js"
    esbuild = ["node", str(ROOT / "node_modules/esbuild/bin/esbuild"), "--bundle", "--loader:.wgsl=text"]
    subprocess.run([*esbuild, "--log-level=error", str(source), f"--outfile={script}"], check=True)
    return script


@contextmanager
def page_with(name: str, browser: Browser, url: str, folder: Path) -> Iterator[Page]:
    """An isolated page of the site with the script of this name; an error in the page fails the test."""
    page = browser.new_page()
    errors = watch(page, [])
    page.goto(url + "blank.html")
    page.add_script_tag(path=bundled(name, folder))
    yield page
    page.close()
    assert not errors, f"the page reported {errors}"
