"""One headless Chromium with the harness page open."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from playwright.async_api import Browser, Error, Page, Playwright, async_playwright

from .browser import BrowserError, Launches, start_error

__all__ = [
    *("PROBE", "BackgroundLoop", "Event", "HarnessPage", "Reply", "is_hardware", "launch", "open_harness"),
    "page_error",
]

T = TypeVar("T")
Event = dict[str, Any]
Reply = dict[str, Any]

PROBE = """async () => {
  const adapter = await navigator.gpu?.requestAdapter();
  if (!adapter) return null;
  const { vendor, architecture, description } = adapter.info;
  const software = adapter.info.isFallbackAdapter === true || /swiftshader/i.test(architecture + description);
  return { name: [vendor, architecture].filter(Boolean).join(' ') || description, software };
}"""
LOST = ("has been closed", "Target closed", "crash", "Connection closed", "Browser closed")


@dataclass
class HarnessPage:
    """The page, once its worker has booted."""

    page: Page
    browser_name: str

    async def request(self, request: dict[str, Any]) -> Reply:
        """Pass a request to the worker and wait for its reply; an error of the page itself is a BrowserError."""
        try:
            reply: Reply = await self.page.evaluate("request => window.capstan.request(request)", request)
        except Error as error:
            raise page_error(error, self.browser_name) from error
        return reply


class BackgroundLoop:
    """An event loop in a thread of its own, in which pages are driven by code that blocks."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    @property
    def closed(self) -> bool:
        """Whether the loop has ended."""
        return self._loop.is_closed()

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the loop to its end. Not for code of the loop itself."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def close(self) -> None:
        """End the loop and its thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def to_stderr(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@contextlib.asynccontextmanager
async def open_harness(
    url: str,
    on_event: Callable[[Event], None],
    *,
    program: Path,
    say: Callable[[str], None] = to_stderr,
    debug: bool = False,
    on_input: Callable[[], Awaitable[str | None]] | None = None,
    trace: bool = False,
    device: str = "auto",
) -> AsyncIterator[HarnessPage]:
    """Start the browser `program`, open harness.html of the site at `url` (a folder with capstan/, as the npm package
    is) and boot Python; all is closed at the end of the block. With `debug` the page's messages are said; `on_input`
    gives a script the next line of its input, None at the end; `trace` begins a trace with the worker; `device` as for
    `launch`. BrowserError for a browser that does not start and a page that fails."""
    async with async_playwright() as playwright:
        browser = await launch(playwright, program, url, say, device)
        try:
            try:
                page = await browser.new_page()
                if debug:
                    page.on("console", lambda message: say(f"console: {message.text}"))
                    page.on("pageerror", lambda error: say(f"page error: {error}"))
                await page.expose_binding("capstanEvent", lambda _source, event: on_event(event))
                if on_input is not None:
                    await page.expose_binding("capstanInput", lambda _source: on_input())
                await page.goto(url + "capstan/harness.html" + ("?trace" if trace else ""))
                await page.evaluate("() => window.capstan.ready")
            except Error as error:
                raise page_error(error, str(program)) from error
            yield HarnessPage(page, str(program))
        finally:
            with contextlib.suppress(Error):
                await browser.close()


async def launch(
    playwright: Playwright,
    program: Path,
    url: str,
    say: Callable[[str], None] = to_stderr,
    device: str = "auto",
) -> Browser:
    """The browser with the best adapter for a `device` that CAPSTAN_ADAPTER allows (adapters_to_try): a page of the
    site at `url` looks for it. `say` is notified of a step down. BrowserError if the browser does not start, or fails
    with the GPU where CAPSTAN_ADAPTER allows nothing else."""
    tried = Launches(os.environ.get("CAPSTAN_ADAPTER", "auto"), device)
    for adapter, arguments in tried:
        try:
            browser = await playwright.chromium.launch(
                executable_path=str(program),
                args=arguments,
                handle_sigint=False,
                handle_sigterm=False,
                handle_sighup=False,
            )
        except Error as error:
            raise start_error(program, error) from error
        try:
            if adapter != "hardware" or await has_hardware_adapter(browser, url):
                break
        except Error as error:
            tried.failure = page_error(error, str(program))
        with contextlib.suppress(Error):
            await browser.close()
    for line in tried.step_down():
        say(line)
    return browser


def is_hardware(adapter: Mapping[str, Any] | None) -> bool:
    """Whether PROBE, run in a page, found a GPU adapter that is not software."""
    return adapter is not None and not adapter["software"]


async def has_hardware_adapter(browser: Browser, url: str) -> bool:
    """Whether a page of the site is given a WebGPU adapter that is not software."""
    page = await browser.new_page()
    await page.goto(url + "capstan/python.json")
    found = is_hardware(await page.evaluate(PROBE))
    await page.close()
    return found


def page_error(error: Error, browser: str) -> BrowserError:
    """Playwright's error as one line for the user."""
    text = error.message.strip()
    if any(word in text for word in LOST):
        return BrowserError(
            f"the browser {browser} crashed or was closed: run it again, or name another in CAPSTAN_BROWSER",
            detail=text,
        )
    first = text.removeprefix("Page.evaluate: ").removeprefix("Error: ").splitlines()[0]
    return BrowserError(f"the page failed: {first}", detail=text)
