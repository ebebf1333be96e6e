"""Attacks on page loads: at a random request the server is slow, cuts, or answers with something else, the load is
given up, or the tab is frozen or discarded. A visit ends in the right ids or a CapstanError, and the next in the right
ids."""

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

from capstan_host.headless.static_server import StaticHandler, running
from capstan_host.site_server import SiteServer
from capstan_host.terminal import say
from tests import oracle

from .deadline import PAGE_SECONDS, kept_until_end
from .report import Outcome, fault_of
from .share import Share

__all__ = ["FaultyServer", "attack_visits"]

MODEL = Path(__file__).parents[1] / "fixtures" / "nano-llama"
PROMPT, TOKENS = [5, 6, 7, 8, 9], 6
SERVERS = ("slow", "cut", "reset", "missing", "busy", "page", "empty", "short")
"""The faults of a server; "short" is half a file that the server calls whole."""
PAGES = ("abort", "cancel", "freeze", "discard")
"""The acts of a page: its signal ends the load, its run is aborted, or its tab is frozen or goes."""
HARMLESS = ("none", "slow", "freeze")
"""After these a visit ends in the right ids."""
WORKER = "/capstan/worker.js"
LIMIT_SECONDS = 60.0
"""After which a visit counts as hanging."""
SLOW_SECONDS = 1.5
FROZEN_SECONDS = 1.0


class FaultyServer(SiteServer):
    """Has one fault, at the request of that number from `begin` on, or at the first request for a path."""

    def __init__(self, root: Path) -> None:
        self._lock = threading.Lock()
        self.begin("", "")
        super().__init__(root, {MODEL.name: MODEL})

    @property
    def handler(self) -> type[StaticHandler]:
        return FaultyHandler

    def begin(self, fault: str, at: int | str) -> None:
        with self._lock:
            self.fault, self.at, self.asked = fault, at, 0
            self.met = threading.Event()
            self.path = ""

    def next_fault(self, path: str) -> str:
        with self._lock:
            number, self.asked = self.asked, self.asked + 1
            if self.at not in (number, path) or self.met.is_set():
                return ""
            self.path = path
            self.met.set()
            return self.fault


class FaultyHandler(StaticHandler):
    server: FaultyServer
    _fault = ""

    def _answer(self, with_body: bool) -> None:
        fault = self._fault = self.server.next_fault(self.path)
        if fault in ("slow", "freeze"):
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
  document.addEventListener("freeze", () => (window.frozen = true));
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


def attack_visits(browser: Browser, root: Path, share: Share) -> Outcome:
    """Page loads in a row, each disturbed once, in a browser of tests/plain_browser.py; `root` has the site's files."""
    outcome = Outcome("visits")
    with running(FaultyServer(root)) as server:
        requests = {}
        for stored in (False, True):
            with opened(browser, server, stored) as page:
                server.begin("", "")
                judge(outcome, {"fault": "none"}, visit(page, server, ""))
                requests[stored] = server.asked
                freezes = freeze(page)
        for case in share.cases(outcome.kind, made):
            fault, stored = case["fault"], case["stored"]
            if fault == "freeze" and not freezes:
                say("visits: this browser freezes no page; a case is left out")
                continue
            at = WORKER if case["worker"] else int(case["at"] * requests[stored])
            with kept_until_end(json.dumps(case).encode(), PAGE_SECONDS), opened(browser, server, stored) as page:
                server.begin(fault, at)
                found = visit(page, server, fault)
                case["path"] = server.path
                if fault == "discard":
                    page.close()
                    page = ready(page.context, server)
                else:
                    judge(outcome, case, found)
                server.begin("", "")
                after = visit(page, server, "", again=found is not None and "ids" in found)
                if after is None or after.get("ids") != wanted():
                    outcome.fail(json.dumps(case).encode(), f"{case}: and then {after}")
                elif fault == "discard":
                    outcome.taken += 1
    return outcome


def made(random: Random) -> dict[str, Any]:
    """A visit's fault, the place of the request as a share of all, whether that is the worker's script, and whether the
    page finds what the visit before has left."""
    fault = random.choice((*SERVERS, *PAGES))
    return {"fault": fault, "at": random.random(), "worker": random.random() < 0.1, "stored": random.random() < 0.5}


@contextmanager
def opened(browser: Browser, server: FaultyServer, stored: bool = False) -> Iterator[Page]:
    """A page of the site with the script loaded; nothing is stored unless `stored`."""
    # In its first context alone a browser has tabs, of which all but one can be frozen.
    context = browser.contexts[0]
    page = context.new_page()
    try:
        if not stored:
            session = context.new_cdp_session(page)
            session.send("Storage.clearDataForOrigin", {"origin": server.url.rstrip("/"), "storageTypes": "all"})
            session.send("Network.clearBrowserCache")
            session.detach()
        page.close()
        page = ready(context, server)
        yield page
    finally:
        for left in context.pages:
            if left.url.startswith(server.url):
                left.close()


def ready(context: BrowserContext, server: FaultyServer) -> Page:
    page = context.new_page()
    page.goto(f"{server.url}blank.html")
    page.evaluate(OPEN)
    return page


def freeze(page: Page) -> bool:
    """Freeze a page for a while, behind another tab; whether the browser did so."""
    other, session = page.context.new_page(), page.context.new_cdp_session(page)
    session.send("Page.setWebLifecycleState", {"state": "frozen"})
    time.sleep(FROZEN_SECONDS)
    session.send("Page.setWebLifecycleState", {"state": "active"})
    other.close()
    # Behind another tab on a busy machine a page may still be frozen, and detaching would wait for it for ever.
    page.bring_to_front()
    frozen: bool = page.evaluate("() => window.frozen === true")
    return frozen


def visit(page: Page, server: FaultyServer, fault: str, again: bool = False) -> dict[str, Any] | None:
    """The outcome of a load and a run, or with `again` of another run of the model that is loaded; None without one."""
    page.evaluate(BEGIN, again)
    deadline, acted = time.monotonic() + LIMIT_SECONDS, False
    while time.monotonic() < deadline:
        page.wait_for_timeout(20)
        if server.met.is_set() and not acted and fault in PAGES:
            acted = True
            if fault == "discard":
                return None
            if fault == "freeze":
                freeze(page)
            else:
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
    elif case["fault"] in HARMLESS:
        outcome.fail(told, f"{case}: {found}")
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
