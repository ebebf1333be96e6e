"""Fixtures for every test: the assembled site, one headless Chromium, pages on the site's origin."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright
from xdist.remote import Producer

from buildtools.browser import find_browser
from buildtools.site import assemble
from capstan_host.headless.chromium import flags
from capstan_host.model_arguments import BUNDLED, mounts
from capstan_host.site_server import SiteServer, serving
from capstan_host.testing.harness import Harness, watch
from tests.browser.page_scripts import PageScripts
from tests.default import has_default
from tests.extended import ALL, DEFAULT, EXTENDED, OnePage, leave_out, shares_a_page
from tests.other_browsers import harness_in

pytest_plugins = ("capstan_host.testing.plugin",)
"""The installed wheel has it by its entry point."""

TESTS = Path(__file__).parent
FIXTURES = TESTS / "fixtures"
ORDER = ("unit", "device", "browser")
LONGEST = (
    *("weight_store", "web_api", "small_adapters", "demo", "sampler", "testing_example", "attention"),
    *("sliding_caches", "shared", "demo_looks", "fleet", "matvec", "long_rope", "stored_tapes", "document_blocks"),
    *("life", "evaluation", "markdown", "cli", "rows", "beams", "sampled", "chat_element", "bad_input", "scoring"),
    *("packed_prompts", "families", "testing", "snapshot", "generate", "quantized_caches"),
    *("demo_inside", "tape", "other_browsers", "speculation", "trace", "session_weights"),
    *("hearing", "prompt_api", "start_faults", "saved_sessions", "load_errors", "client", "agents", "attachments"),
)
"""Files of browser tests that take longest; they begin first, so that all processes end at about the same time."""
BOOT_MS = 120_000
TIERING = "--js-flags=--wasm-tiering-budget=100000000"
"""V8 optimises no WebAssembly function: pages of tests are short, and optimising Python and onnxruntime-web took half
of the processor time of each."""
UNCHECKED = "--enable-dawn-features=disable_robustness"
"""Dawn clamps no index of a kernel: the software adapter compiles a fifth faster. One of our kernels that leaves its
buffers is a fault, which clamping would hide; users' browsers, the soak and the command line clamp."""

BARE = "--disable-features=" + ",".join(
    (
        *("WebUIOmniboxPopup", "WebUIOmniboxAimPopup", "PreloadTopChromeWebUI"),
        *("AvoidCorsURLLoaderRestartOnRedirect", "AvoidUnnecessaryBeforeUnloadCheckSync"),
        *("DestroyProfileOnBrowserClose", "HttpsFirstBalancedModeAutoEnable", "HttpsUpgrades", "LensOverlay"),
        *("MediaRouter", "NetworkTimeServiceQuerying", "OptimizationHints", "PaintHolding", "PreconnectToSearch"),
        "ThirdPartyStoragePartitioning",
    )
)
"""A window of a new context costs 0.6 instead of 1.6 core-seconds without the pages of the address bar's popup, the
first three. Chromium obeys the last list alone: the others are those that Playwright disables."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(DEFAULT, action="store_true", help="run what finds most in a few minutes (tests/default.py)")
    parser.addoption(ALL, action="store_true", help="run all tests but those of browsers that are marked extended")
    parser.addoption(EXTENDED, action="store_true", help="run the tests marked extended too: minutes each")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With --default no file is read that has none of its tests: reading all takes half a minute."""
    if config.getoption(DEFAULT) and collection_path.name.startswith("test_"):
        return not has_default(collection_path.relative_to(TESTS.parent).as_posix()) or None
    return None


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> OnePage | None:
    """With --default the browser tests share one page; else each process has one."""
    return OnePage(config, log) if config.getoption(DEFAULT) else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Quick tests first, then the longest files; those marked extended only if they were asked for, by the option or by
    name. With --default those of one page come first, since one process has them all, then other browser tests."""
    leave_out(config, items)

    def rank(item: pytest.Item) -> tuple[int, int]:
        folder = item.path.relative_to(TESTS).parts[0]
        name = item.path.stem.removeprefix("test_")
        return (
            ORDER.index(folder) if folder in ORDER else len(ORDER),
            LONGEST.index(name) if folder == "browser" and name in LONGEST else len(LONGEST),
        )

    items.sort(key=rank)
    if config.getoption(DEFAULT):
        items.sort(key=lambda item: (not shares_a_page(item.path), "/browser/" not in item.nodeid))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Ten thousand items and their modules stay to the end: Python's collector need not look at them again and again,
    which took a sixth of the collection's time and a tenth of the unit tests'."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


@pytest.fixture(autouse=True)
def no_running_loop(request: pytest.FixtureRequest) -> Iterator[None]:
    """Hide Playwright's event loop from tests without a browser, so that they can call `asyncio.run`."""
    if {"browser", "harness"} & set(request.fixturenames):
        yield
        return
    loop = asyncio._get_running_loop()
    asyncio._set_running_loop(None)
    yield
    asyncio._set_running_loop(loop)


@pytest.fixture(scope="session")
def site() -> Iterator[SiteServer]:
    """The assembled site on a free port, with every fixture model and the bundled model under /models/."""
    found = [path for place in ("*", "speech/*", "vision/*") for path in FIXTURES.glob(f"{place}/genai_config.json")]
    found += FIXTURES.glob("speech/*-hub/config.json")
    folders = [config.parent for config in sorted(found)]
    if BUNDLED.is_dir():
        folders.insert(0, BUNDLED)
    with serving(assemble(), mounts(folders)) as server:
        yield server


@pytest.fixture(scope="session")
def quick_browser(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program that starts Chromium with the flags of tests, for browsers that `browser` is not."""
    program = tmp_path_factory.mktemp("chromium") / "chromium"
    unchecked = UNCHECKED if os.environ.get("CAPSTAN_ADAPTER", "software") == "software" else ""
    program.write_text(f'#!/bin/sh\nexec "{find_browser()}" {TIERING} {unchecked} "$@" {BARE}\n')
    program.chmod(0o755)
    return program


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """One headless Chromium for the session, with the software adapter unless CAPSTAN_ADAPTER=hardware."""
    adapter = os.environ.get("CAPSTAN_ADAPTER", "software")
    arguments = ["--headless=new", TIERING, BARE, *flags(adapter), *([UNCHECKED] if adapter == "software" else [])]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(find_browser()), args=arguments)
        yield browser
        if browser.is_connected():
            browser.close()


@pytest.fixture(scope="session")
def capstan_browser(browser: Browser) -> Browser:
    """The plugin's pages are opened in the same browser."""
    return browser


@pytest.fixture(scope="session")
def capstan_site(site: SiteServer) -> Path:
    """The plugin's pages are those of the assembled site."""
    return site.root


@pytest.fixture
def page_errors() -> list[str]:
    """The errors in `blank_page`; a test that provokes an error takes it out of the list."""
    return []


@pytest.fixture
def blank_page(browser: Browser, site: SiteServer, page_errors: list[str]) -> Iterator[Page]:
    """An empty page of the site's origin, isolated; an exception, console error or lost device in it fails the test."""
    assert browser.is_connected(), "the browser crashed in an earlier test"
    page = browser.new_page()
    errors = watch(page, page_errors)
    page.goto(site.url + "blank.html")
    yield page
    page.close()
    assert not errors, f"the page reported {errors}"


@pytest.fixture(scope="session")
def shared_harness(browser: Browser, site: SiteServer) -> Harness:
    """The page of all test modules that have none of their own: Python boots once, and each kernel compiles once.
    The probe wraps WebGPU first: a model of one module may leave its open device to the next module."""
    harness = booted(browser, site)
    PageScripts.install(harness)
    return harness


@pytest.fixture(scope="module")
def harness(request: pytest.FixtureRequest, site: SiteServer) -> Iterator[Harness]:
    """The harness page with Python booted: a new one for a module marked `own_page`, else the one that modules share.
    With CAPSTAN_TEST_IN=firefox or webkit a new one in that browser."""
    other = os.environ.get("CAPSTAN_TEST_IN")
    if other:
        with harness_in(other, site.url) as harness:
            yield harness
    elif request.node.get_closest_marker("own_page"):
        harness = booted(request.getfixturevalue("browser"), site)
        yield harness
        harness.page.close()
    else:
        harness = request.getfixturevalue("shared_harness")
        harness.errors.clear()
        harness.events.clear()
        yield harness


def booted(browser: Browser, site: SiteServer) -> Harness:
    """The harness page in a context of its own, with nothing stored."""
    assert browser.is_connected(), "the browser crashed in an earlier test"
    page = browser.new_page()
    page.set_default_navigation_timeout(BOOT_MS)
    return Harness(page, site.url)
