"""Browsers that Playwright does not drive, for the tests that run in the harness page."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import pytest
from playwright.sync_api import Error, Page

from buildtools.other_browsers import FIREFOX, WEBKIT, OtherBrowser
from tests.harness import Harness

from .firefox import Firefox
from .remote_page import Driver, RemotePage
from .webkit import WebKit

__all__ = ["OTHERS", "harness_in"]

OTHERS: dict[str, tuple[OtherBrowser, Callable[[Path], Driver]]] = {
    "firefox": (FIREFOX, Firefox),
    "webkit": (WEBKIT, WebKit),
}


def started(driver: Callable[[Path], Driver], program: Path) -> Driver:
    """The browser, started; one that was installed a moment ago may need a second attempt."""
    try:
        return driver(program)
    except Error:
        return driver(program)


@contextmanager
def harness_in(name: str, url: str) -> Iterator[Harness]:
    """The harness page of the site at `url` in a browser of OTHERS; where it cannot be had, the test is skipped."""
    about, driver = OTHERS[name]
    program = about.find()
    if program is None:
        pytest.skip(about.remedy)
    page = RemotePage(started(driver, program))
    try:
        yield Harness.open(cast(Page, page), url)
    finally:
        page.close()
