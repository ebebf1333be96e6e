"""Capstan's page in one or several headless browsers, asked from code that blocks."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from playwright.async_api import Error

from ..errors import CapstanError
from ..headless.browser import find_browser
from ..headless.page import HarnessPage, open_harness, page_error
from ..headless.server import serving

__all__ = ["Pages", "RequestError"]

T = TypeVar("T")
Request = dict[str, Any]

ASK = "requests => Promise.all(requests.map(request => window.capstan.request(request)))"


class RequestError(CapstanError):
    """The page answered a request with an error; `type` is its class there, `detail` its traceback."""

    def __init__(self, error: Mapping[str, str]) -> None:
        super().__init__(f"{error['type']}: {error['message']}")
        self.type = error["type"]
        self.detail = error["traceback"]


class Pages:
    """As many browsers as asked for, each with the page of the folder `site`. `models` is served to them."""

    def __init__(self, site: Path, models: Mapping[str, Path], count: int) -> None:
        self._program = find_browser()
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="capstan pages", daemon=True).start()
        self._stack = contextlib.AsyncExitStack()
        self._pages: list[HarnessPage] = []
        atexit.register(self.close)
        try:
            self._wait(self._open(site, models, count))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the browsers."""
        if not self._loop.is_closed():
            atexit.unregister(self.close)
            try:
                self._wait(self._stack.aclose())
            finally:
                self._loop.call_soon_threadsafe(self._loop.stop)

    def everywhere(self, request: Request) -> list[Any]:
        """The result of a request on each page."""
        return self._wait(self._everywhere(request))

    def run(self, batches: Sequence[Sequence[Request]], done: Callable[[int], object] = lambda _: None) -> list[Any]:
        """The results of all requests, in their order. A page takes batch after batch, each as one message; `done` is
        told how many requests were answered. RequestError for the first that a page cannot answer."""
        results: list[list[Any]] = [[] for _ in batches]
        left = iter(range(len(batches)))

        async def work(page: HarnessPage) -> None:
            for place in left:
                results[place] = await _ask(page, batches[place])
                done(len(batches[place]))

        async def work_all() -> None:
            async with asyncio.TaskGroup() as group:
                for page in self._pages:
                    group.create_task(work(page))

        try:
            self._wait(work_all())
        except ExceptionGroup as group:
            raise group.exceptions[0] from None
        return [result for batch in results for result in batch]

    async def _open(self, site: Path, models: Mapping[str, Path], count: int) -> None:
        server = self._stack.enter_context(serving(site, models))
        for _ in range(count):
            opened = open_harness(server.url, lambda _event: None, program=self._program)
            self._pages.append(await self._stack.enter_async_context(opened))

    async def _everywhere(self, request: Request) -> list[Any]:
        return [one for page in self._pages for one in await _ask(page, [request])]

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


async def _ask(page: HarnessPage, requests: Sequence[Request]) -> list[Any]:
    try:
        replies = await page.page.evaluate(ASK, list(requests))
    except Error as error:
        raise page_error(error, page.browser_name) from error
    for reply in replies:
        if not reply["ok"]:
            raise RequestError(reply["error"])
    return [reply["result"] for reply in replies]
