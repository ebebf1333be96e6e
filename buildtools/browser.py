"""A Chromium for this checkout: an installed one, or else Playwright's or the system's package."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from capstan_host.headless.chromium import (
    REMEDY,
    BrowserError,
    browser_version,
    installed_browser,
    named_browser,
)
from capstan_host.locks import locked
from capstan_host.terminal import say

from . import CACHE
from .environment import venv_python

__all__ = ["find_browser", "install_packages"]

REMEMBERED = CACHE / "browser.txt"
DOWNLOAD_SECONDS = 900


def find_browser(environ: Mapping[str, str] = os.environ) -> Path:
    """A Chromium that answers `--version`: CAPSTAN_BROWSER, an installed one, Playwright's, the system's package."""
    found = named_browser(environ) or installed_browser(environ) or _remembered()
    if found is not None:
        return found
    with locked("browser"):
        found = _download() or _install_package(environ)
        if found is None:
            raise BrowserError(f"no Chrome or Chromium starts on this machine: {REMEDY}")
        REMEMBERED.write_text(str(found))
    return found


def _remembered() -> Path | None:
    if not REMEMBERED.exists():
        return None
    path = Path(REMEMBERED.read_text())
    return path if browser_version(path) else None


def _download() -> Path | None:
    """Playwright's own Chromium, with the system libraries it needs where we may install them."""
    playwright = [str(venv_python()), "-m", "playwright"]
    say("set-up: no browser is installed; downloading Chromium through Playwright ...")
    if not _succeeds([*playwright, "install", "--no-shell", "chromium"], DOWNLOAD_SECONDS):
        say("set-up: the download failed")
        return None
    script = "from playwright.sync_api import sync_playwright as s\nwith s() as p: print(p.chromium.executable_path)"
    path = Path(
        subprocess.run([venv_python(), "-c", script], capture_output=True, text=True, check=True).stdout.strip()
    )
    if not browser_version(path) and _is_root():
        _succeeds([*playwright, "install-deps", "chromium"], DOWNLOAD_SECONDS)
    return path if browser_version(path) else None


def _install_package(environ: Mapping[str, str]) -> Path | None:
    """The system's chromium package."""
    install_packages(["chromium"])
    return installed_browser(environ)


def install_packages(names: Sequence[str]) -> bool:
    """Install packages of the system, for root on a machine with apt; whether that was done."""
    if not _is_root() or shutil.which("apt-get") is None:
        return False
    say(f"set-up: installing {', '.join(names)} with apt-get ...")
    _succeeds(["apt-get", "update"], DOWNLOAD_SECONDS)
    return _succeeds(["apt-get", "install", "-y", "--no-install-recommends", *names], DOWNLOAD_SECONDS)


def _is_root() -> bool:
    return hasattr(os, "geteuid") and os.geteuid() == 0


def _succeeds(command: list[str], seconds: float) -> bool:
    try:
        done = subprocess.run(command, capture_output=True, timeout=seconds, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
