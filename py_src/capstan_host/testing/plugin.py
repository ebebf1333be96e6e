"""A pytest plugin: fixtures for a page with a model, and what is kept of a failure. docs/testing.md describes them.

Only tests that use the fixtures need Playwright and a browser.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
from collections.abc import Callable, Generator, Iterator
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from capstan.signatures import checked

from ..headless.chromium import BrowserError, find_browser
from ..headless.site_folder import find_site
from .oracles import Golden, Oracle

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Playwright

    from .pages import AppModel, PageModel, Pages

__all__ = [
    "capstan_app",
    "capstan_browser",
    "capstan_golden",
    "capstan_model",
    "capstan_pages",
    "capstan_playwright",
    "capstan_serve",
    "capstan_site",
]

LONGEST = 200
"""The most characters of a test's id in the name of a folder."""
PAGES = pytest.StashKey["Pages"]()
SAID = pytest.StashKey[list[str]]()
"""Lines for the end of pytest's report."""
OPTIONS = {
    "site": (
        "CAPSTAN_SITE",
        "the site folder with Capstan's page; by default the npm package capstan-webgpu",
    ),
    "browser": ("CAPSTAN_BROWSER", "Chrome or Chromium; by default an installed one"),
    "adapter": ("CAPSTAN_ADAPTER", "the GPU adapter: auto (the default), hardware or software"),
    "browser-args": ("CAPSTAN_BROWSER_ARGS", "further arguments of the browser, with spaces between them"),
    "results": ("CAPSTAN_RESULTS", "the folder for what is kept of failed tests; by default test-results"),
}
"""The options --capstan-NAME and capstan_NAME of pytest's configuration, with their environment variables."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("capstan", "Capstan: models in a page")
    for name, (variable, text) in OPTIONS.items():
        group.addoption(f"--capstan-{name}", metavar=name.upper().replace("-", "_"), help=f"{text} ({variable})")
        parser.addini(f"capstan_{name.replace('-', '_')}", f"as --capstan-{name}", default="")
    group.addoption("--capstan-update-goldens", action="store_true", help="write the goldens instead of reading them")


def option(config: pytest.Config, name: str) -> str | None:
    """An option's value: of the command line, the environment, or pytest's configuration, in this order."""
    given = config.getoption(f"--capstan-{name}")
    return given or os.environ.get(OPTIONS[name][0]) or config.getini(f"capstan_{name.replace('-', '_')}") or None


@pytest.fixture(scope="session")
def capstan_site(request: pytest.FixtureRequest) -> Path:
    """The folder with Capstan's page: --capstan-site, CAPSTAN_SITE, or node_modules/capstan-webgpu."""
    return find_site(option(request.config, "site"))


@pytest.fixture(scope="session")
def capstan_playwright(request: pytest.FixtureRequest) -> Iterator[Playwright]:
    """Playwright: that of pytest-playwright if it is installed, since only one can run."""
    if importlib.util.find_spec("playwright") is None:
        raise BrowserError("Playwright is not installed: run `pip install 'capstan-webgpu[testing]'`")
    if request.config.pluginmanager.hasplugin("playwright"):
        yield request.getfixturevalue("playwright")
        return
    from playwright.sync_api import sync_playwright  # noqa: PLC0415  (each run of pytest imports this module)

    with sync_playwright() as playwright:
        yield playwright


@pytest.fixture(scope="session")
def capstan_browser(request: pytest.FixtureRequest, capstan_playwright: Playwright) -> Iterator[Browser]:
    """One headless Chromium for the session. Projects with flags of their own override this fixture."""
    from .pages import launched  # noqa: PLC0415  (Playwright is in the extra `testing`)

    config = request.config
    named = option(config, "browser")
    program = find_browser({**os.environ, **({"CAPSTAN_BROWSER": named} if named else {})})
    adapter = option(config, "adapter") or "auto"
    site = request.getfixturevalue("capstan_site") if adapter != "software" else None
    further = (option(config, "browser-args") or "").split()
    say = config.stash.setdefault(SAID, []).append
    with launched(capstan_playwright, program, adapter, site, further, say) as browser:
        yield browser


@pytest.fixture(scope="session")
def capstan_pages(request: pytest.FixtureRequest, capstan_browser: Browser) -> Iterator[Pages]:
    """The session's pages; see the fixtures below."""
    from .pages import Pages  # noqa: PLC0415  (Playwright is in the extra `testing`)

    with contextlib.ExitStack() as stack:
        # The device "auto" never takes a software adapter, so a named one needs "webgpu".
        device = "webgpu" if option(request.config, "adapter") == "software" else "auto"
        pages = request.config.stash[PAGES] = Pages(capstan_browser, stack, device)
        yield pages
        del request.config.stash[PAGES]


@pytest.fixture(scope="session")
def capstan_serve(capstan_pages: Pages) -> Callable[..., str]:
    """`capstan_serve(folder, models={"name": path})` serves an app's files, isolated, and gives their address."""
    return capstan_pages.serve


@pytest.fixture(scope="session")
def capstan_model(request: pytest.FixtureRequest, capstan_pages: Pages) -> Callable[..., PageModel]:
    """`capstan_model(folder, site=None, **options)` is a model in Capstan's own, empty page: of the site folder, or of
    another build of Capstan."""

    def opened(folder: str | Path, *, site: str | Path | None = None, **options: Any) -> PageModel:
        found = request.getfixturevalue("capstan_site") if site is None else find_site(site, {})
        return capstan_pages.model(Path(folder), found, options)

    public: Callable[..., PageModel] = checked(opened, "capstan_model")
    return public


@pytest.fixture(scope="session")
def capstan_app(capstan_pages: Pages) -> Callable[..., AppModel]:
    """`capstan_app(url, handle="llm", folder=None)` is the model of an app's page, which has its Capstan object at
    window.llm. `folder` are the model's files, if they are on this machine."""

    def opened(url: str, handle: str = "llm", folder: str | Path | None = None) -> AppModel:
        return capstan_pages.app(url, handle, None if folder is None else Path(folder))

    public: Callable[..., AppModel] = checked(opened, "capstan_app")
    return public


@pytest.fixture(scope="session")
def capstan_golden(request: pytest.FixtureRequest) -> Callable[..., Golden]:
    """`capstan_golden(file, source=None)` is a Golden that --capstan-update-goldens writes. A relative file is in the
    folder that pytest was started for (rootdir)."""

    def opened(file: str | Path, source: Oracle | None = None) -> Golden:
        golden = Golden(request.config.rootpath / file, source)
        golden.update = request.config.getoption("--capstan-update-goldens")
        return golden

    public: Callable[..., Golden] = checked(opened, "capstan_golden")
    return public


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if pages := item.config.stash.get(PAGES, None):
        pages.begin()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """An exception or a crash of a page fails the test that saw it."""
    result = yield
    if (pages := item.config.stash.get(PAGES, None)) and (errors := pages.errors()):
        raise AssertionError(f"the pages reported {errors}")
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    pages = item.config.stash.get(PAGES, None)
    if report.failed and report.when in ("setup", "call") and pages and pages.open:
        folder = item.config.rootpath / (option(item.config, "results") or "test-results") / folder_name(item.nodeid)
        for page in pages.open:
            (folder / page.name).mkdir(parents=True, exist_ok=True)
            page.keep(folder / page.name, write_json)
        report.sections.append(("Capstan", f"kept: {folder}"))
    return report


def folder_name(test: str) -> str:
    """A test's id as the name of a folder; file systems take at most 255 bytes."""
    name = re.sub(r"[^\w.-]+", "-", test, flags=re.ASCII)
    return name if len(name) <= LONGEST else f"{name[:LONGEST]}-{sha256(test.encode()).hexdigest()[:8]}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for line in config.stash.get(SAID, []):
        terminalreporter.write_line(f"Capstan: {line}")


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    if pages := item.config.stash.get(PAGES, None):
        pages.end()


def write_json(path: Path, content: Any) -> None:
    """Write a part of a kept failure, readable."""
    path.write_text(json.dumps(content, indent=1, default=str) + "\n", encoding="utf-8")
