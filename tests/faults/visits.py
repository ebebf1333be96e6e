"""Attacks on page loads: at a random request the server is slow, cuts, or answers with something else, the load is
given up, or the tab is discarded. A visit ends in the right ids or a CapstanError, and the next in the right ids."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from random import Random
from typing import Any, BinaryIO

from playwright.sync_api import Browser, BrowserContext, Page

from buildtools.server import SiteHandler, SiteServer, running
from tests import oracle

from .report import Outcome, fault_of

__all__ = ["FaultyServer", "attack_visits"]

MODEL = Path(__file__).parents[1] / "fixtures" / "nano-llama"
PROMPT, TOKENS = [5, 6, 7, 8, 9], 6
SERVERS = ("slow", "cut", "reset", "missing", "busy", "page", "empty", "short")
"""The faults of a server; "short" is half a file that the server calls whole."""
PAGES = ("abort", "cancel", "discard")
"""The acts of a page: its signal ends the load, its run is aborted, or its tab goes."""
LIMIT_SECONDS = 60.0
"""After which a visit counts as hanging."""
SLOW_SECONDS = 1.5


class FaultyServer(SiteServer):
    """Has one fault, at the request of that number from `begin` on."""

    def __init__(self, root: Path) -> None:
        self._lock = threading.Lock()
        self.begin("", -1)
        super().__init__(root, {MODEL.name: MODEL})

    @property
    def handler(self) -> type[SiteHandler]:
        return FaultyHandler

    def begin(self, fault: str, at: int) -> None:
        with self._lock:
            self.fault, self.left, self.asked = fault, at, 0
            self.met = threading.Event()
            self.path = ""

    def next_fault(self, path: str) -> str:
        with self._lock:
            self.asked += 1
            self.left -= 1
            if self.left != -1:
                return ""
            self.path = path
            self.met.set()
            return self.fault


class FaultyHandler(SiteHandler):
    server: FaultyServer
    _fault = ""

    def _answer(self, with_body: bool) -> None:
        fault = self._fault = self.server.next_fault(self.path)
        if fault == "slow":
            time.sleep(SLOW_SECONDS)
        if fault == "reset":
            self.close_connection = True
        elif fault == "missing":
            self._send_bytes(HTTPStatus.NOT_FOUND, b"not found\n", "text/plain", with_body)
        elif fault == "busy":
            self._send_bytes(HTTPStatus.SERVICE_UNAVAILABLE, b"later\n", "text/plain", with_body)
        elif fault == "page":
            self._send_bytes(HTTPStatus.OK, b"<!doctype html><title>App</title>", "text/html", with_body)
        elif fault == "empty":
            self._send_bytes(HTTPStatus.OK, b"", "application/octet-stream", with_body)
        else:
            super()._answer(with_body)

    def _start(self, status: HTTPStatus, mime: str, length: int | None, extra: Any) -> None:
        if length and self._fault == "short":
            # A browser would keep what the server calls whole.
            length, extra = length // 2, {**extra, "Cache-Control": "no-store"}
        super()._start(status, mime, length, extra)

    def _send_body(self, file: BinaryIO, start: int, length: int) -> None:
        if self._fault in ("cut", "short"):
            length //= 2
        super()._send_body(file, start, length)
        if self._fault == "cut":
            self.close_connection = True


OPEN = """async () => {
  const { Capstan } = await import("/capstan/capstan.js");
  window.visit = async (llm) => {
    window.stop = new AbortController();
    window.run = null;
    try {
      window.llm = llm ?? (await Capstan.load("/models/nano-llama/", { device: "wasm", signal: window.stop.signal }));
      window.run = window.llm.complete(PROMPT, { maxTokens: TOKENS, temperature: 0 });
      const { tokenIds, finishReason } = await window.run.result;
      return { ids: tokenIds, reason: finishReason };
    } catch (error) {
      window.llm = llm ?? null;
      return { name: error.name, code: error.code ?? null, message: error.message };
    }
  };
}""".replace("PROMPT", json.dumps(PROMPT)).replace("TOKENS", str(TOKENS))
"""An import that fails is the page's own error."""
BEGIN = """(again) => {
  window.found = null;
  window.visit(again ? window.llm : null).then((found) => (window.found = found));
}"""
ACTS = {"abort": "() => window.stop.abort()", "cancel": "() => (window.run ?? window.stop).abort()"}


def attack_visits(browser: Browser, root: Path, count: int, seed: int) -> Outcome:
    """So many pages, each with nothing stored, in `browser`; a site's files are in `root`."""
    outcome, random = Outcome("visits"), Random(f"visits {seed}")
    with running(FaultyServer(root)) as server:
        with opened(browser, server) as page:
            server.begin("", -1)
            first = visit(page, server, "", again=False)
            requests = server.asked
        judge(outcome, {"fault": "none"}, first)
        for _ in range(count):
            fault, at = random.choice((*SERVERS, *PAGES)), random.randrange(requests)
            case = {"fault": fault, "at": at}
            with opened(browser, server) as page:
                server.begin(fault, at)
                found = visit(page, server, fault, again=False)
                case["path"] = server.path
                if fault == "discard":
                    page.close()
                    page = ready(page.context)
                else:
                    judge(outcome, case, found)
                server.begin("", -1)
                after = visit(page, server, "", again=found is not None and "ids" in found)
                if after is None or after.get("ids") != wanted():
                    outcome.fail(json.dumps(case).encode(), f"{case}: and then {after}")
                elif fault == "discard":
                    outcome.taken += 1
    return outcome


@contextmanager
def opened(browser: Browser, server: FaultyServer) -> Iterator[Page]:
    """A page of the site in a context of its own, with the script loaded."""
    context = browser.new_context(base_url=server.url)
    try:
        yield ready(context)
    finally:
        context.close()


def ready(context: BrowserContext) -> Page:
    page = context.new_page()
    page.goto("blank.html")
    page.evaluate(OPEN)
    return page


def visit(page: Page, server: FaultyServer, fault: str, again: bool) -> dict[str, Any] | None:
    """The outcome of a load and a run, or with `again` of another run of the model that is loaded; None without one."""
    page.evaluate(BEGIN, again)
    deadline, acted = time.monotonic() + LIMIT_SECONDS, False
    while time.monotonic() < deadline:
        page.wait_for_timeout(20)
        if server.met.is_set() and not acted and fault in PAGES:
            acted = True
            if fault == "discard":
                return None
            page.evaluate(ACTS[fault])
        found: dict[str, Any] | None = page.evaluate("() => window.found")
        if found is not None:
            return found
    return None


def judge(outcome: Outcome, case: dict[str, Any], found: dict[str, Any] | None) -> None:
    """Count a visit: the right ids, as many as came before an abort, or an error of ours."""
    told = json.dumps(case).encode()
    if found is None:
        outcome.fail(told, f"{case}: no answer within {LIMIT_SECONDS} s")
    elif "ids" in found:
        right = wanted()
        if found["ids"] == (right[: len(found["ids"])] if found["reason"] == "abort" else right):
            outcome.taken += 1
        else:
            outcome.fail(told, f"{case}: wrong ids {found}")
    elif found["name"] == "AbortError" and case["fault"] in ACTS:
        outcome.refused += 1
    else:
        why = fault_of(found["message"]) if found["name"] == "CapstanError" else f"{found['name']}: {found['message']}"
        if why is None:
            outcome.refused += 1
        else:
            outcome.fail(told, f"{case}: {why[:300]}")


def wanted() -> list[int]:
    ids: list[int] = oracle.greedy(MODEL, PROMPT, TOKENS)
    return ids
