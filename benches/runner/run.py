"""Plays a plan in headless Chromium, step by step; a step that takes too long costs itself only."""

from __future__ import annotations

import json
import queue
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from capstan_host.command_errors import CommandError

from .plan import Step
from .server import BenchServer

__all__ = ["HEADLESS", "Launch", "play", "probe_adapter"]

HEADLESS = (
    "--headless=new",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--enable-webgpu-developer-features",
    "--enable-logging=stderr",
)
"""Developer features: time stamps that are not rounded to 0.1 ms."""
BOOT_SECONDS = 60.0
RETRIES = 1


class Launch:
    """One browser with the bench page open, in a profile of its own."""

    def __init__(self, browser: Path, flags: Sequence[str], url: str, profile: Path) -> None:
        self.log = profile / "browser.log"
        profile.mkdir(parents=True, exist_ok=True)
        command = [str(browser), *HEADLESS, *flags, f"--user-data-dir={profile}", url]
        with self.log.open("w") as stderr:
            self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=stderr)

    def close(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def play(
    server: BenchServer,
    browser: Path,
    flags: Sequence[str],
    steps: Sequence[Step],
    keep: Callable[[Step, dict[str, Any]], None],
    budget: float | None = None,
) -> list[str]:
    """Play the steps; `keep` gets each with its outcome as it ends. Returns the requests to other hosts.

    After a step over its limit, or a browser that died, a new browser goes on with the next step. `budget` is for all,
    in seconds: what would begin later is left out.
    """
    foreign: list[str] = []
    left = list(steps)
    end = time.monotonic() + budget if budget is not None else None
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
    thread.start()
    profile = Path(tempfile.mkdtemp(prefix="capstan-bench-"))
    silent = 0
    try:
        while left and silent <= RETRIES:
            server.steps = left
            while not server.posted.empty():
                server.posted.get()
            launch = Launch(browser, flags, f"{server.url}bench/index.html", profile)
            before = len(left)
            try:
                left = play_in(server, left, keep, foreign, end, launch)
            finally:
                launch.close()
            silent = silent + 1 if len(left) == before else 0
        for step in left:
            keep(step, {"ok": False, "error": f"the browser did not start the page: {tail(launch.log)}"})
    finally:
        shutil.rmtree(profile, ignore_errors=True)
        server.shutdown()
        server.server_close()
    return foreign


def play_in(
    server: BenchServer,
    steps: list[Step],
    keep: Callable[[Step, dict[str, Any]], None],
    foreign: list[str],
    end: float | None,
    launch: Launch,
) -> list[Step]:
    """Play in one browser until it is done or stuck; the steps that are left."""
    left = list(steps)
    limit = BOOT_SECONDS
    deadline = time.monotonic() + limit
    begun = False
    while True:
        if end is not None and time.monotonic() > end:
            for step in left:
                keep(step, {"ok": False, "error": "left out: the time for the whole bench was over"})
            return []
        try:
            kind, body = server.posted.get(timeout=0.5)
        except queue.Empty:
            died = launch.process.poll() is not None
            if not server.posted.empty() or (not died and time.monotonic() < deadline):
                continue
            if begun:
                reason = "the browser died" if died else f"it took more than {limit:g} s"
                keep(left.pop(0), {"ok": False, "error": f"{reason}; {tail(launch.log)}"})
            return left
        if kind == "foreign":
            foreign.append(json.dumps(body))
        elif kind == "end":
            return []
        elif kind == "begin":
            assert body["id"] == left[0]["id"], (body, left[0])
            begun = True
            limit = left[0]["limit"]
            deadline = time.monotonic() + limit
        elif kind == "result":
            keep(left.pop(0), body)
            begun = False
            limit = BOOT_SECONDS
            deadline = time.monotonic() + limit


def tail(log: Path) -> str:
    """The browser's last words."""
    return " | ".join(log.read_text(errors="replace").strip().splitlines()[-4:])[-800:] or "it said nothing"


def probe_adapter(make_server: Callable[[], BenchServer], browser: Path, flags: Sequence[str]) -> dict[str, Any]:
    """The browser's name of its adapter; CommandError if the page does not come up or has no adapter."""
    found: list[dict[str, Any]] = []
    step = {"id": 0, "model": "", "section": "adapter", "action": "adapter", "limit": BOOT_SECONDS}
    play(make_server(), browser, flags, [step], lambda _, outcome: found.append(outcome))
    if not found[0]["ok"]:
        reason = found[0]["error"].strip().splitlines()[0]
        raise CommandError(f"{browser} gives no WebGPU adapter here ({reason}): name another browser or flags", 1)
    adapter: dict[str, Any] = found[0]["data"]
    return adapter
