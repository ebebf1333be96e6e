"""Capstan's page in one or several headless browsers, asked from code that blocks."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import CapstanError
from ..headless.browser import find_browser
from ..headless.page import BackgroundLoop, HarnessPage, open_harness
from ..headless.server import StaticServer, running

__all__ = ["Pages", "RequestError"]

Request = dict[str, Any]


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
        self._loop = BackgroundLoop("capstan pages")
        self._stack = contextlib.AsyncExitStack()
        self._pages: list[HarnessPage] = []
        atexit.register(self.close)
        try:
            self._loop.wait(self._open(site, models, count))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the browsers."""
        if not self._loop.closed:
            atexit.unregister(self.close)
            try:
                self._loop.wait(self._stack.aclose())
            finally:
                self._loop.close()

    def everywhere(self, request: Request) -> list[Any]:
        """The result of a request on each page."""
        return self._loop.wait(self._everywhere(request))

    def run(self, batches: Sequence[Sequence[Request]], done: Callable[[int], object] = lambda _: None) -> list[Any]:
        """The results of all requests, in their order. A page takes batch after batch; `done` is
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
            self._loop.wait(work_all())
        except ExceptionGroup as group:
            raise group.exceptions[0] from None
        return [result for batch in results for result in batch]

    async def _open(self, site: Path, models: Mapping[str, Path], count: int) -> None:
        server = self._stack.enter_context(running(StaticServer(site, models)))
        for _ in range(count):
            opened = open_harness(server.url, lambda _event: None, program=self._program)
            self._pages.append(await self._stack.enter_async_context(opened))

    async def _everywhere(self, request: Request) -> list[Any]:
        return [one for page in self._pages for one in await _ask(page, [request])]


async def _ask(page: HarnessPage, requests: Sequence[Request]) -> list[Any]:
    replies = await asyncio.gather(*map(page.request, requests))
    for reply in replies:
        if not reply["ok"]:
            raise RequestError(reply["error"])
    return [reply["result"] for reply in replies]
