"""Capstan's page in a headless Chromium.

Its coroutines take pages and browsers of either API of Playwright. Those of the blocking API never suspend a coroutine,
so that blocking code can run it with `at_once`.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import sys
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from playwright.async_api import Error, async_playwright

from .chromium import BrowserError, Launches, start_error

__all__ = ["PROBE", "Event", "HeadlessPage", "Reply", "at_once", "end", "is_hardware", "launch"]

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


def at_once(work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine over Playwright's blocking API."""
    try:
        work.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    work.close()
    raise RuntimeError("a page of Playwright's asynchronous API has to be awaited")


async def settled(told: Any) -> Any:
    """Await the result of a call of Playwright; the blocking API has returned the result already."""
    return await told if inspect.isawaitable(told) else told


def to_stderr(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@dataclass
class HeadlessPage:
    """harness.html of the site at `url` (a folder with capstan/, like the npm package): in a separate browser after
    `start`, or in the caller's page after `attach`.

    `async with` starts and closes it. Its failures are BrowserErrors; `start` replaces a browser that died.
    """

    url: str
    on_event: Callable[[Event], object]
    on_input: Callable[[], Awaitable[str | None]] | None = None
    """Gives a script the next line of its input, None at the end."""
    program: Path = Path("chromium")
    """The browser to start."""
    device: str = "auto"
    """Decides which adapter the browser gets; see adapters_to_try."""
    say: Callable[[str], object] = to_stderr
    """Is notified of a fallback of the adapter, and with `debug` of the page's messages."""
    debug: bool = False
    query: str = ""
    """"?trace" begins a trace with the worker, "?python=plain" starts Python without its memory snapshot."""
    page: Any = None
    """The page as an object of Playwright."""
    readiness: dict[str, Any] = field(default_factory=dict)
    """How Python came up; see Readiness in web/src/wire/protocol.ts."""
    _opened: AsyncExitStack = field(default_factory=AsyncExitStack)

    async def start(self) -> None:
        """Start a browser in place of the one before, open the page and boot Python."""
        await self.close()
        async with AsyncExitStack() as opened:
            playwright = await opened.enter_async_context(async_playwright())
            tried = Launches(os.environ.get("CAPSTAN_ADAPTER", "auto"), self.device)
            browser = await launch(playwright, self.program, tried, self.url, self.say)
            opened.push_async_callback(end, browser)
            await self.attach(await self._checked(browser.new_page))
            self._opened = opened.pop_all()

    async def attach(self, page: Any) -> None:
        """Open harness.html in this page and boot Python."""
        self.page = page
        if self.debug:
            page.on("console", lambda message: self.say(f"console: {message.text}"))
            page.on("pageerror", lambda error: self.say(f"page error: {error}"))
        await self._checked(page.expose_function, "capstanEvent", lambda event: self.on_event(event))
        if (read := self.on_input) is not None:
            await self._checked(page.expose_function, "capstanInput", lambda: read())
        await self._checked(page.goto, f"{self.url}capstan/harness.html{self.query}")
        self.readiness = await self.evaluate("() => window.capstan.ready")

    async def request(self, request: Mapping[str, Any]) -> Reply:
        """Pass a request to the worker and wait for its reply."""
        reply: Reply = await self.evaluate("request => window.capstan.request(request)", dict(request))
        return reply

    async def evaluate(self, script: str, argument: Any = None) -> Any:
        """Run JavaScript in the page."""
        return await self._checked(self.page.evaluate, script, argument)

    async def close(self) -> None:
        """End the browser that `start` started."""
        await self._opened.aclose()

    async def __aenter__(self) -> HeadlessPage:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _checked(self, call: Callable[..., Any], *given: Any) -> Any:
        """Call a function of Playwright; its errors become BrowserErrors."""
        try:
            return await settled(call(*given))
        except Error as error:
            raise page_error(error, str(self.program)) from error


async def launch(
    playwright: Any,
    program: Path,
    tried: Launches,
    url: str,
    say: Callable[[str], object],
    further: Sequence[str] = (),
) -> Any:
    """Start a browser with the first adapter of `tried` that a page of the site at `url` gets, and with `further`
    arguments. `say` gets the message about a fallback. Raises BrowserError if the browser does not start, or if it
    fails with the GPU and no other adapter is allowed.
    """
    for adapter, arguments in tried:
        try:
            browser = await settled(
                playwright.chromium.launch(
                    executable_path=str(program),
                    args=[*arguments, *further],
                    handle_sigint=False,
                    handle_sigterm=False,
                    handle_sighup=False,
                )
            )
        except Error as error:
            raise start_error(program, error) from error
        try:
            if adapter != "hardware" or await has_hardware_adapter(browser, url):
                break
        except Error as error:
            tried.failure = page_error(error, str(program))
        await end(browser)
    for line in tried.step_down():
        say(line)
    return browser


async def end(opened: Any) -> None:
    """Close a browser or a page, which may have died."""
    with contextlib.suppress(Error):
        await settled(opened.close())


def is_hardware(adapter: Mapping[str, Any] | None) -> bool:
    """Whether PROBE, run in a page, found a GPU adapter that is not software."""
    return adapter is not None and not adapter["software"]


async def has_hardware_adapter(browser: Any, url: str) -> bool:
    """Whether a page of the site is given a WebGPU adapter that is not software."""
    page = await settled(browser.new_page())
    await settled(page.goto(url + "capstan/python.json"))
    found = is_hardware(await settled(page.evaluate(PROBE)))
    await settled(page.close())
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
