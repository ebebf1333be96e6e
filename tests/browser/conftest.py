"""Fixtures of tests that run Python inside the harness page."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from capstan_host.site_server import SiteServer
from capstan_host.testing.harness import Harness
from tests.browser.demo_page import Demo
from tests.browser.kernel_page import KernelPage
from tests.browser.model_variants import Variants
from tests.browser.page_scripts import PageScripts


@pytest.fixture(scope="module", autouse=os.name != "nt")
def quick_starts(quick_browser: Path) -> Iterator[None]:
    """Commands, fleets and tests that start a browser themselves take this one: it uses half of the processor time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CAPSTAN_BROWSER", str(quick_browser))
        yield


@pytest.fixture(scope="module")
def installed_scripts(harness: Harness) -> PageScripts:
    return PageScripts.install(harness)


@pytest.fixture
def scripts(installed_scripts: PageScripts) -> Iterator[PageScripts]:
    """The scripts in the page; a console error, uncaptured WebGPU error or lost device fails the test."""
    yield installed_scripts
    faults = installed_scripts.faults()
    assert not faults, f"went wrong in the page: {faults}"


@pytest.fixture(scope="module")
def variants(site: SiteServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Variants]:
    """Makes broken copies of nano-llama that the page can load, for one module."""
    made = Variants(site, tmp_path_factory.mktemp("models"))
    yield made
    made.unmount()


@pytest.fixture(scope="module")
def kernel_page(browser: Browser, site: SiteServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KernelPage]:
    """Runs single kernels."""
    with KernelPage.opened(browser, site.url, tmp_path_factory.mktemp("kernel")) as page:
        yield page


@pytest.fixture(scope="module")
def booted_demo(browser: Browser, site: SiteServer) -> Iterator[Demo]:
    with Demo.opened(browser, site) as demo:
        yield demo


@pytest.fixture
def visit(browser: Browser) -> Iterator[Callable[[str], Page]]:
    """Opens an empty page of a site, with a storage of its own that goes with the test."""
    with ExitStack() as contexts:

        def opened(url: str) -> Page:
            context = browser.new_context()
            contexts.callback(context.close)
            page = context.new_page()
            page.goto(url + "blank.html")
            return page

        yield opened


@pytest.fixture
def demo(booted_demo: Demo) -> Iterator[Demo]:
    """The demo page with nano-llama chosen and short, greedy runs; a console error in it fails the test."""
    booted_demo.begin()
    yield booted_demo
    assert not booted_demo.faults()
