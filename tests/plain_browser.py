"""A browser started as by a user: Playwright's own never hides or freezes pages, or keeps old ones."""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, BrowserType

from buildtools.browser import find_browser
from capstan_host.headless.chromium import flags

__all__ = ["plain_browser"]

LISTENING_SECONDS = 60


@contextmanager
def plain_browser(kind: BrowserType, adapter: str = "software") -> Iterator[Browser]:
    """Headless Chromium with a profile of its own, and Playwright attached.

    It starts without a page: one that opens while Playwright attaches may keep it waiting for ever.
    """
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        start = ["--no-first-run", "--no-startup-window", "--headless=new"]
        own = [f"--user-data-dir={profile}", "--remote-debugging-port=0", *start]
        process = subprocess.Popen([find_browser(), *own, *flags(adapter)], stderr=subprocess.DEVNULL)
        try:
            with kind.connect_over_cdp(f"http://127.0.0.1:{port(Path(profile))}", no_defaults=True) as attached:
                yield attached
        finally:
            process.terminate()
            process.wait()


def port(profile: Path) -> str:
    """The port at which the browser of this profile listens."""
    listening, deadline = profile / "DevToolsActivePort", time.monotonic() + LISTENING_SECONDS
    while not (listening.exists() and len(lines := listening.read_text().split()) == 2):
        assert time.monotonic() < deadline, f"the browser does not listen within {LISTENING_SECONDS} s"
        time.sleep(0.1)
    return lines[0]
