"""A page of a browser that Playwright does not drive, with as much of its Page as capstan_host.testing needs."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Protocol

from playwright.sync_api import Error

__all__ = ["PATIENCE", "Driver", "RemotePage"]

DEFINE = "(name => { window[name] = value => (window.capstanCalls ??= []).push([name, value]); })"
LOADED = """() => document.readyState === "complete" || new Promise((resolve) => {
  addEventListener("load", () => resolve(true), { once: true });
})"""
BEGIN = """(() => {
  window.capstanAnswer = "";
  (async () => {
    const answer = {};
    try {
      const given = FUNCTION;
      answer.value = await (typeof given === "function" ? given(ARGUMENT) : given);
    } catch (error) {
      answer.error = String(error?.message ?? error);
    }
    answer.calls = (window.capstanCalls ?? []).splice(0);
    window.capstanAnswer = JSON.stringify(answer);
  })();
  return window.capstanAnswer;
})()"""
ANSWER = "window.capstanAnswer"
PATIENCE = 300
"""Seconds for one evaluation."""
OPENING_PATIENCE = 60
"""Seconds for the first ones, until the page is open."""
FIRST_PAUSE, LONGEST_PAUSE = 0.005, 0.1
"""Seconds between two questions for an answer: they double from the first to the longest."""


class Driver(Protocol):
    """One page of a browser."""

    def init(self, script: str) -> None:
        """Run `script` in each document before its own scripts, if the browser supports it."""

    def goto(self, url: str) -> None:
        """Open `url`. A driver may come back before the scripts of the document have run."""

    def run(self, expression: str) -> str:
        """The value of a JavaScript expression, as text."""

    def seen(self) -> list[tuple[str, str]]:
        """Kinds (pageerror, error, warn, log) and texts of what the page reported since the last call."""

    def close(self) -> None:
        """End the browser."""


class RemotePage:
    """Playwright's Page over a `Driver`. Calls of exposed functions arrive with the driver's next answer."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.exposed: dict[str, Callable[[Any], Any]] = {}
        self.listeners: dict[str, list[Callable[[Any], None]]] = {}
        self.patience = OPENING_PATIENCE

    def add_init_script(self, script: str) -> None:
        self.driver.init(script)

    def on(self, event: str, listener: Callable[[Any], None]) -> None:
        self.listeners.setdefault(event, []).append(listener)

    def expose_function(self, name: str, function: Callable[[Any], Any]) -> None:
        self.exposed[name] = function
        self.driver.init(f"{DEFINE}({json.dumps(name)})")

    def set_default_navigation_timeout(self, ms: float) -> None:
        """Drivers have limits of their own."""

    def goto(self, url: str) -> None:
        self.driver.goto(url)
        self.evaluate(LOADED)
        for name in self.exposed:
            self.evaluate(f"{DEFINE}({json.dumps(name)})")

    def evaluate(self, script: str, argument: Any = None) -> Any:
        """The value of a JavaScript expression, or of a function of `argument`; playwright's Error if it throws."""
        # No driver waits for a promise: Firefox's did not always tell that one had ended.
        text = self.driver.run(BEGIN.replace("FUNCTION", script).replace("ARGUMENT", json.dumps(argument)))
        end, pause = time.monotonic() + self.patience, FIRST_PAUSE
        while not text:
            if time.monotonic() > end:
                raise Error(f"no answer within {self.patience} s to {script[:200]}; seen: {self.driver.seen()}")
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
            text = self.driver.run(ANSWER)
        for kind, message in self.driver.seen():
            self._tell(kind, message)
        answer = json.loads(text)
        for name, value in answer["calls"]:
            self.exposed[name](value)
        if "error" in answer:
            raise Error(answer["error"])
        return answer.get("value")

    def close(self) -> None:
        self.driver.close()

    def _tell(self, kind: str, text: str) -> None:
        event, told = ("pageerror", text) if kind == "pageerror" else ("console", SimpleNamespace(type=kind, text=text))
        for listener in self.listeners.get(event, ()):
            listener(told)
