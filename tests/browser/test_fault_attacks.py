"""The short form of `build.py test --faults` in a page: Pyodide's limits, the protocol's messages, broken folders, a
worker whose work is cancelled, disturbed page loads."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import Browser

from buildtools.server import SiteServer
from capstan.testing.harness import Harness
from tests.faults.main import corpus, model_files
from tests.faults.page import Folders, OpenedPage, page_attacks
from tests.faults.share import Share
from tests.plain_browser import plain_browser

COUNT, SEED = 6, 5
FEW = {"cancelled requests": 1, "cancelled scripts": 1, "visits": 1, "stored": 1}
"""Cases of seconds."""


def test_bad_input_ends_in_errors_of_ours_and_the_page_goes_on(
    browser: Browser, harness: Harness, site: SiteServer, tmp_path: Path
) -> None:
    files = model_files()
    page = OpenedPage(browser, site, harness, Folders(site, tmp_path, files))
    attacks = page_attacks(Share(COUNT, SEED), files, corpus)
    try:
        outcomes = [attack(page) for kind, attack in attacks.items() if kind not in FEW]
    finally:
        unmount(site)
    assert not [failure for outcome in outcomes for failure in outcome.failures]
    assert all(outcome.tried >= COUNT for outcome in outcomes)


def test_cancelled_work_disturbed_page_loads_and_changed_storage_end_rightly(
    browser: Browser, harness: Harness, site: SiteServer, tmp_path: Path
) -> None:
    files = model_files()
    try:
        with plain_browser(browser.browser_type) as plain:
            page = OpenedPage(plain, site, harness, Folders(site, tmp_path, files))
            outcomes = [page_attacks(Share(count, SEED), files, corpus)[kind](page) for kind, count in FEW.items()]
    finally:
        unmount(site)
    assert not [failure for outcome in outcomes for failure in outcome.failures]
    assert [outcome.tried for outcome in outcomes] == [1, 2, 3, 1]


def unmount(site: SiteServer) -> None:
    for name in [name for name in site.models if name.startswith("fault-")]:
        del site.models[name]
