"""Browsers that Playwright does not drive, for the tests that run in the harness page."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import pytest
from playwright.sync_api import Error, Page

from buildtools.other_browsers import FIREFOX, WEBKIT, OtherBrowser
from capstan_host.testing.harness import Harness

from .firefox import Firefox
from .remote_page import PATIENCE, Driver, RemotePage
from .webkit import WebKit

__all__ = ["OTHERS", "harness_in"]

OTHERS: dict[str, tuple[OtherBrowser, Callable[[Path], Driver]]] = {
    "firefox": (FIREFOX, Firefox),
    "webkit": (WEBKIT, WebKit),
}


def opened(name: str, program: Path, url: str) -> Harness:
    driver = OTHERS[name][1]
    page = RemotePage(driver(program))
    try:
        harness = Harness(cast(Page, page), url)
    except AssertionError:
        page.close()
        raise
    page.patience = PATIENCE
    return harness


@contextmanager
def harness_in(name: str, url: str) -> Iterator[Harness]:
    """The harness page of the site at `url` in a browser of OTHERS; where it cannot be had, the test is skipped.

    One that was installed a moment ago may need a second attempt; a warning tells why the first failed."""
    about, _ = OTHERS[name]
    program = about.find()
    if program is None:
        pytest.skip(about.remedy)
    try:
        harness = opened(name, program, url)
    except (AssertionError, Error) as error:
        warnings.warn(f"{about.name} is started again: {error}", stacklevel=2)
        harness = opened(name, program, url)
    try:
        yield harness
    finally:
        harness.page.close()
