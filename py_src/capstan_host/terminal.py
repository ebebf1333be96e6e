"""Progress on stderr: one rewritten line on a terminal, plain lines elsewhere; stdout stays for results."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import AsyncIterator
from io import TextIOWrapper
from typing import Any

__all__ = ["Event", "Output", "Progress", "say", "speak_utf8"]

Event = dict[str, Any]
"""See CapstanEvent in web/src/wire/protocol.ts."""

REDRAW_SECONDS = 0.1
PLAIN_STEP = 0.25
TICK_SECONDS = 1.0
QUIET_TICKS = 3
"""A step of fewer ticks is not shown."""
PLAIN_TICKS = 30
"""Without a terminal, a long step prints a line each time that this number of ticks has passed."""


def speak_utf8(always: bool = os.name == "nt") -> None:
    """Pipes and files take and give UTF-8 on Windows, too, where Python's are of a code page without most letters."""
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        if always and isinstance(stream, TextIOWrapper):
            stream.reconfigure(encoding="utf-8")


def say(text: str) -> None:
    """Write one line to stderr at once."""
    print(text, file=sys.stderr, flush=True)


class Progress:
    """Shows the progress of a task. On a terminal the line is rewritten; elsewhere each quarter is a line."""

    def __init__(self) -> None:
        self._rewrites = sys.stderr.isatty()
        self._shown = ""
        self._drawn_at = 0.0
        self._quarters: dict[str, int] = {}

    def update(self, what: str, done: int, total: int) -> None:
        """Show that `done` of `total` bytes of `what` have arrived."""
        self._part(what, done, total, f"{what}: {done / 1e6:.1f} of {total / 1e6:.1f} MB")

    def count(self, what: str, done: int, total: int, rest: str = "") -> None:
        """Show that `done` of `total` of `what` are done; `rest` follows on the line."""
        self._part(what, done, total, f"{what}: {done} of {total}{rest}")

    def _part(self, what: str, done: int, total: int, text: str) -> None:
        share = done / total if total > 0 else 1.0
        if self._rewrites:
            now = time.monotonic()
            if done >= total or now - self._drawn_at >= REDRAW_SECONDS:
                self._drawn_at = now
                self._draw(text)
            return
        quarter = int(share / PLAIN_STEP)
        if quarter > self._quarters.get(what, 0):
            self._quarters[what] = quarter
            say(text)

    def waiting(self, what: str, ticks: int) -> None:
        """Show that `what` has been under way for this number of ticks."""
        text = f"{what}: {ticks * TICK_SECONDS:.0f} s so far"
        if self._rewrites:
            self._draw(text)
        elif ticks % PLAIN_TICKS == 0:
            say(text)

    def line(self, text: str) -> None:
        """Write a line that stays."""
        self.clear()
        say(text)

    def clear(self) -> None:
        """Remove the rewritten line."""
        if self._shown:
            self._draw("")

    def _draw(self, text: str) -> None:
        sys.stderr.write("\r" + text.ljust(len(self._shown)) + ("" if text else "\r"))
        sys.stderr.flush()
        self._shown = text


class Output:
    """Writes the page's events: the model's text to stdout as it comes, all else to stderr."""

    def __init__(self) -> None:
        self._progress = Progress()
        self._line_is_open = False
        self._step = ""
        """The step that is under way, as the page called it; empty while text comes."""
        self._ticks = 0

    @contextlib.asynccontextmanager
    async def ticking(self, step: str = "") -> AsyncIterator[None]:
        """Show the duration of a silent step, `step` at first, while the block runs."""
        self._begin(step)
        clock = asyncio.ensure_future(self._tick())
        try:
            yield
        finally:
            clock.cancel()
            self._begin("")

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            self._ticks += 1
            if self._step and self._ticks >= QUIET_TICKS:
                self._progress.waiting(self._step, self._ticks)

    def _begin(self, step: str) -> None:
        self._step, self._ticks = step, 0

    def show(self, event: Event) -> None:
        """Write one event."""
        match event["kind"]:
            case "text":
                self._begin("")
                self._progress.clear()
                sys.stdout.write(event["text"])
                sys.stdout.flush()
                self._line_is_open = not event["text"].endswith("\n") if event["text"] else self._line_is_open
            case "progress":
                self._begin(self._step)
                self._progress.update(event["what"], event["done"], event["total"])
            case "status" if self._line_is_open:
                # An answer pauses for it; its line stays whole.
                pass
            case "status" | "stdout" | "stderr":
                self.end_line()
                say(event["text"].rstrip("\n"))
                if event["kind"] == "status":
                    self._begin(event["text"])

    def end_line(self) -> None:
        """Remove the progress line, and end an unfinished line of text."""
        self._progress.clear()
        if self._line_is_open:
            print(flush=True)
            self._line_is_open = False
