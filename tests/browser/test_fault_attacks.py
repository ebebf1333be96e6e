"""The short form of `build.py test --faults` in a page: Pyodide's limits, the protocol's messages, broken folders."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import Browser

from buildtools.server import SiteServer
from tests.faults.main import CORPUS, model_files
from tests.faults.page import Folders, attack_folders, attack_in_python, attack_requests
from tests.faults.stored import attack_stored
from tests.faults.visits import attack_visits
from tests.harness import Harness

COUNT, SEED = 6, 1


def test_bad_input_ends_in_errors_of_ours_and_the_page_goes_on(
    harness: Harness, site: SiteServer, tmp_path: Path
) -> None:
    files = model_files()
    corpus = {folder.name: [case.read_bytes() for case in folder.iterdir()] for folder in CORPUS.iterdir()}
    folders = Folders(site, tmp_path, files)
    try:
        outcomes = [
            *attack_in_python(harness, COUNT, SEED, files, corpus),
            attack_requests(harness, folders, 2 * COUNT, SEED),
            attack_folders(harness, folders, COUNT, SEED),
        ]
    finally:
        for name in [name for name in site.models if name.startswith("fault-")]:
            del site.models[name]
    assert not [failure for outcome in outcomes for failure in outcome.failures]
    assert len(outcomes) > 5


def test_a_disturbed_page_load_and_changed_storage_end_rightly(browser: Browser, site: SiteServer) -> None:
    outcomes = [attack_visits(browser, site.root, 1, SEED), attack_stored(browser, site.root, 2, SEED)]
    assert not [failure for outcome in outcomes for failure in outcome.failures]
    assert [outcome.tried for outcome in outcomes] == [2, 2]
