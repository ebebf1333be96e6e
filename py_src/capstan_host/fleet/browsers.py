"""The browsers of one worker. Each has a page and a loaded model, and is replaced when it dies."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

from capstan.model_files.bounded_json import MOST_DEPTH, is_deeper
from capstan.model_files.hub import HubRepository

from ..headless.chromium import BrowserError, find_browser
from ..headless.headless_page import HeadlessPage
from ..headless.served_files import model_path
from ..headless.site_folder import find_site
from ..headless.static_server import StaticServer, running
from .items import Entry, Item, ItemError, UnfitError

__all__ = ["Browsers", "HeadlessSlot", "Outcome", "Serving", "Slot", "item_of", "request_form"]

T = TypeVar("T")
IN_PAGE = Path(__file__).with_name("in_page.py")
MARK = "\x1e"
"""Begins the lines that in_page.py writes."""
STARTS = 3
"""How often a browser is started, or a model is loaded, before the worker is unfit."""
CLOSE_SECONDS = 30.0
PAUSE_SECONDS = 0.5
BROKEN = ("DeviceLostError", "OutOfMemoryError", "MemoryError", "ClosedError")
"""Errors of an item after which the page's model is not used any more."""
log = logging.getLogger("distributed.worker.capstan")


@dataclass(frozen=True)
class Serving:
    """The model and the page that a worker's browsers serve, and their limits."""

    model: str | dict[str, Any]
    """A path that the worker can read, a folder's URL, or a hub's repository as page requests have it."""
    browsers: int
    site: str | None
    options: dict[str, Any]
    """The options of Model.load."""
    timeout: float
    """Seconds for a batch."""
    attempts: int
    """How often an item may fail."""


@dataclass
class Outcome:
    """The result or the error of an item."""

    entry: Entry
    told: dict[str, Any] = field(default_factory=dict)
    """The page's line: `result`, `adapter`, `timings`, or `error`."""


def item_of(outcome: Outcome, worker: str) -> Item:
    """The result of an item: an error if a script returned a value that is not JSON."""
    entry, told = outcome.entry, outcome.told
    error = told.get("error")
    about = (entry.id, entry.index, entry.digest, worker)
    if error:
        return Item(*about, entry.failures, error=ItemError(error["type"], error["message"]))
    adapter, timings = told.get("adapter", ""), told.get("timings", {})
    item = Item(*about, entry.failures + 1, adapter, **told.get("result", {}), timings=timings)
    try:
        deep = is_deeper(item.line().encode(), MOST_DEPTH)
        fault = f"it is nested more than {MOST_DEPTH} levels deep" if deep else ""
    except (ValueError, RecursionError) as refused:
        fault = str(refused)
    if not fault:
        return item
    return Item(
        *about,
        entry.failures + 1,
        error=ItemError("ValueError", f"the result is no JSON value ({fault}): return another one"),
    )


def request_form(model: HubRepository) -> dict[str, Any]:
    """A repository in the form of a page's requests."""
    return {"repository": model.id, "hub": model.hub, "revision": model.revision, "token": model.token}


class Slot(Protocol):
    """A browser's place: it is opened by the first batch, and again after it was closed."""

    async def answer(self, job: dict[str, Any], entries: Sequence[Entry], done: Callable[[int, Any], None]) -> None:
        """Answer the entries: `done` gets the place of each entry and its line. Raises BrowserError, TimeoutError,
        UnfitError.
        """

    async def close(self) -> None: ...


class BackgroundLoop:
    """An event loop in a separate thread, in which blocking code can drive pages."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the loop to its end. Code that runs in the loop must not call this."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def close(self) -> None:
        """End the loop and its thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Browsers:
    """Answers batches with a fixed number of browsers, in a thread with a separate event loop.

    A browser that dies is replaced. Its batch is halved until the item that kills browsers is alone: this item fails,
    all others are answered.
    """

    def __init__(self, serving: Serving, slots: Callable[[Serving], Sequence[Slot]]) -> None:
        self._serving = serving
        self._loop = BackgroundLoop("capstan browsers")
        self._slots = slots(serving)
        self._free: asyncio.Queue[Slot] = asyncio.Queue()
        for slot in self._slots:
            self._free.put_nowait(slot)
        self._tasks: set[asyncio.Task[Any]] = set()
        self.replaced = 0
        """Browsers that were closed for a fault."""

    def answer(self, job: dict[str, Any], entries: Sequence[Entry]) -> list[Outcome]:
        """The outcome of each item. Raises UnfitError, and CancelledError if the browsers are closed meanwhile."""
        return self._loop.wait(self._answer(job, entries))

    def answer_all(
        self, job: dict[str, Any], batches: Sequence[Sequence[Entry]], done: Callable[[int], object] = lambda _: None
    ) -> list[list[Outcome]]:
        """The outcomes of batches that the browsers share; `done` is called with the number of answered items. Raises
        the errors of `answer`, and then cancels the other batches.
        """

        async def one(batch: Sequence[Entry]) -> list[Outcome]:
            outcomes = await self._answer(job, batch)
            done(len(batch))
            return outcomes

        async def every() -> list[list[Outcome]]:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(one(batch)) for batch in batches]
            return [task.result() for task in tasks]

        try:
            return self._loop.wait(every())
        except ExceptionGroup as group:
            raise group.exceptions[0] from None

    def close(self) -> None:
        """Close the browsers; batches under way are cancelled."""

        async def close_all() -> None:
            tasks = [*self._tasks]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            closing = (asyncio.wait_for(slot.close(), CLOSE_SECONDS) for slot in self._slots)
            await asyncio.gather(*closing, return_exceptions=True)

        self._loop.wait(close_all())
        self._loop.close()

    async def _answer(self, job: dict[str, Any], entries: Sequence[Entry]) -> list[Outcome]:
        task = asyncio.ensure_future(self._outcomes(job, entries))
        self._tasks.add(task)
        try:
            return await task
        finally:
            self._tasks.discard(task)

    async def _outcomes(self, job: dict[str, Any], entries: Sequence[Entry]) -> list[Outcome]:
        outcomes: dict[str, Outcome] = {}
        failures = {entry.id: entry.failures for entry in entries}
        waiting = deque([list(entries)])
        starts = 0
        while waiting:
            batch = waiting.popleft()
            slot = await self._free.get()
            told: dict[int, Any] = {}
            try:
                fault = await self._attempt(slot, job, batch, told)
            finally:
                self._free.put_nowait(slot)
            if isinstance(fault, UnfitError):
                starts += 1
                if starts == STARTS:
                    raise fault
                await asyncio.sleep(PAUSE_SECONDS)
                waiting.appendleft(batch)
                continue
            rest = []
            for place, entry in enumerate(batch):
                line = told.get(place)
                if line is not None and "error" not in line:
                    outcomes[entry.id] = Outcome(replace(entry, input=None, failures=failures[entry.id]), line)
                elif line is not None and line["error"]["type"] not in BROKEN:
                    waiting += self._failed(entry, line["error"], failures, outcomes)
                else:
                    rest.append((entry, line and line["error"]))
            if len(rest) == 1 and len(batch) == 1:
                [(entry, error)] = rest
                error = error or {"type": type(fault).__name__, "message": str(fault) or "the page did not answer"}
                waiting += self._failed(entry, error, failures, outcomes)
            elif rest:
                left = [entry for entry, _ in rest]
                half = (len(left) + 1) // 2
                waiting += [part for part in (left[:half], left[half:]) if part]
        return [outcomes[entry.id] for entry in entries]

    def _failed(
        self, entry: Entry, error: dict[str, str], failures: dict[str, int], outcomes: dict[str, Outcome]
    ) -> list[list[Entry]]:
        """Count a failure of an item. Returns a batch of this item alone for another attempt; after its last attempt
        returns no batch, and sets its outcome.
        """
        failures[entry.id] += 1
        if failures[entry.id] < self._serving.attempts:
            return [[entry]]
        outcomes[entry.id] = Outcome(replace(entry, input=None, failures=failures[entry.id]), {"error": error})
        return []

    async def _attempt(
        self, slot: Slot, job: dict[str, Any], batch: Sequence[Entry], told: dict[int, Any]
    ) -> Exception | None:
        """Have a browser answer a batch. After a fault the browser is closed and the fault is returned."""
        fault: Exception | None = None
        try:
            await asyncio.wait_for(slot.answer(job, batch, told.__setitem__), self._serving.timeout)
            if not any(line.get("error", {}).get("type") in BROKEN for line in told.values()):
                return None
        except TimeoutError:
            fault = TimeoutError(f"no answer of {len(batch)} items in {self._serving.timeout:g} s")
        except Exception as error:
            # Playwright's driver, a process of its own, may die as well as the browser.
            fault = error
        self.replaced += 1
        log.warning("a browser is replaced: %s", fault or "its page's device is lost")
        with contextlib.suppress(Exception):
            await asyncio.wait_for(slot.close(), CLOSE_SECONDS)
        return fault


class HeadlessSlot:
    """A headless Chromium with Capstan's page."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self._opened = AsyncExitStack()
        self._page: HeadlessPage | None = None
        self._lines = ""
        self._done: Callable[[dict[str, Any]], None] = lambda line: None

    @classmethod
    def several(cls, serving: Serving) -> list[HeadlessSlot]:
        """One slot for each of the worker's browsers."""
        return [cls(serving) for _ in range(serving.browsers)]

    async def answer(self, job: dict[str, Any], entries: Sequence[Entry], done: Callable[[int, Any], None]) -> None:
        """See Slot."""
        page = self._page or await self._open()
        unfit: list[dict[str, str]] = []

        def take(line: dict[str, Any]) -> None:
            if "unfit" in line:
                unfit.append(line["unfit"])
            else:
                done(line["number"], line)

        self._lines, self._done = "", take
        batch = {"job": {**job, "model": self._serving.options}, "items": [entry.input for entry in entries]}
        reply = await page.request(
            {
                "kind": "exec",
                "source": IN_PAGE.read_text(encoding="utf-8") + CALL,
                "filename": "capstan_fleet.py",
                "argv": ["capstan_fleet.py", json.dumps(batch)],
                "models": {"model": self._place},
                "files": {},
            }
        )
        if unfit:
            raise UnfitError(f"{unfit[0]['type']}: {unfit[0]['message']}")
        if not reply["ok"]:
            raise BrowserError(f"the page failed: {reply['error']['type']}: {reply['error']['message']}")
        if reply["result"]["status"]:
            raise BrowserError(
                f"the batch's script ended with status {reply['result']['status']}: {self._lines[-500:]}"
            )

    async def _open(self) -> HeadlessPage:
        """Serve the site and the model, and start a browser. Raises UnfitError."""
        await self.close()
        try:
            mounts, self._place = place_of(self._serving.model)
            server = self._opened.enter_context(running(StaticServer(find_site(self._serving.site), mounts)))
            device = self._serving.options.get("device") or "auto"
            page = HeadlessPage(server.url, self._event, program=find_browser(), device=device, say=log.info)
            self._page = await self._opened.enter_async_context(page)
        except Exception as error:
            raise UnfitError(f"{type(error).__name__}: {error}") from error
        return self._page

    async def close(self) -> None:
        """See Slot."""
        self._page = None
        await self._opened.aclose()

    def _event(self, event: dict[str, Any]) -> None:
        if event["kind"] == "stderr":
            log.info("in the page: %s", event["text"].rstrip())
        if event["kind"] != "stdout":
            return
        *whole, self._lines = (self._lines + event["text"]).split("\n")
        for line in whole:
            if line.startswith(MARK):
                self._done(json.loads(line[len(MARK) :]))
            elif line:
                log.info("in the page: %s", line)


CALL = """
batch = json.loads(sys.argv[1])
await answer(batch["job"], batch["items"], models["model"])
"""


def place_of(model: str | dict[str, Any]) -> tuple[dict[str, Path], str | dict[str, Any]]:
    """The folders to serve and the model's place in the page. Raises UnfitError for a path that does not exist."""
    if isinstance(model, dict) or model.startswith(("http://", "https://")):
        return {}, model
    path = Path(model).resolve()
    if not path.exists():
        raise UnfitError(f"{model} does not exist on this worker: give a place that each worker can read")
    return {path.name: path}, model_path(path.name)
