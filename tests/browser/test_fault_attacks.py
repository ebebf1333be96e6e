"""The short form of `build.py test --faults` in a page: Pyodide's limits, the protocol's messages, broken folders, a
worker whose work is cancelled, disturbed page loads."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Browser

from capstan_host.site_server import SiteServer
from capstan_host.testing.harness import Harness
from tests.faults import page as page_module
from tests.faults.main import corpus, model_files
from tests.faults.page import Folders, OpenedPage, page_attacks
from tests.faults.share import Share
from tests.plain_browser import plain_browser

COUNT, SEED = 6, 5
FEW = {"cancelled requests": 1, "cancelled scripts": 2, "visits": 3, "stored": 1}
"""The kinds whose cases take seconds, and how many one case in each place makes."""


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


# test_stop.py and test_start_faults.py have disturbed work of each kind, one by one.
@pytest.mark.one_in(4)
@pytest.mark.parametrize(("kind", "tried"), FEW.items())
def test_cancelled_work_disturbed_page_loads_and_changed_storage_end_rightly(
    kind: str, tried: int, browser: Browser, harness: Harness, site: SiteServer, tmp_path: Path
) -> None:
    files = model_files()
    try:
        with plain_browser(browser.browser_type) as plain:
            page = OpenedPage(plain, site, harness, Folders(site, tmp_path, files))
            outcome = page_attacks(Share(1, SEED), files, corpus)[kind](page)
    finally:
        unmount(site)
    assert (outcome.tried, outcome.failures) == (tried, [])


def test_a_case_that_holds_pyodide_is_a_failure_and_the_next_ones_are_tried_in_a_new_page(
    browser: Browser, site: SiteServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, held = corpus("names")[:2]
    text = (page_module.HERE / "targets.py").read_text()
    use = 'require_below(data.decode(errors="surrogatepass"))'
    assert use in text
    for name in page_module.MODULES:
        (tmp_path / name).write_text((page_module.HERE / name).read_text())
    (tmp_path / "targets.py").write_text(text.replace(use, f"while data == {held!r}: pass\n        {use}"))
    monkeypatch.setattr(page_module, "HERE", tmp_path)
    monkeypatch.setattr(page_module, "LIMIT_MS", 10_000)
    files = model_files()
    try:
        with plain_browser(browser.browser_type) as plain:
            page = OpenedPage(plain, site, page_module.harness(plain, site), Folders(site, tmp_path, files))
            outcome = page_module.attack_in_python(Share(3, SEED), files, "names", [kept, held], page)
    finally:
        unmount(site)
    [failure] = outcome.failures
    assert (failure.case, failure.why) == (held, "no end within 10 s")
    assert outcome.tried == 2 + 3 + 1


def unmount(site: SiteServer) -> None:
    for name in [name for name in site.models if name.startswith("fault-")]:
        del site.models[name]
