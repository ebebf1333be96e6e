"""Finds the page's files, a browser, and Transformers.js for the demo's race, on behalf of the commands."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from capstan.errors import CapstanError

from .command_errors import CommandError
from .headless.chromium import find_browser
from .headless.site_folder import PACKAGED, find_site

__all__ = ["INSTALLED", "Machine"]


@dataclass(frozen=True)
class Machine:
    """Finds the files and programs that commands need. `build.py` makes them in the checkout, an installed package has
    to find them. Each function raises CommandError or BrowserError with the remedy.
    """

    program: str
    """The name of the command line, for messages."""
    site: Callable[[], Path]
    """The folder of the page's files."""
    browser: Callable[[], Path]
    """A Chrome or Chromium that starts."""
    transformers_js: Callable[[bool], Path | None]
    """The folder of Transformers.js; None if it is not installed. With True as argument it is installed first."""


def installed_site() -> Path:
    """CAPSTAN_SITE, else the page in this package, else that of an npm package at or above the working directory."""
    try:
        if PACKAGED.is_dir() and not os.environ.get("CAPSTAN_SITE"):
            return PACKAGED
        return find_site()
    except CapstanError as error:
        raise CommandError(str(error)) from error


def no_transformers_js(install: bool) -> None:
    """Raises CommandError for a request to install Transformers.js, since only a checkout can do that."""
    if install:
        raise CommandError("--transformers-js has no folder: give the one that has Transformers.js' files")


INSTALLED = Machine("capstan", installed_site, find_browser, no_transformers_js)
