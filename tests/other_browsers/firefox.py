"""Firefox, driven over WebDriver BiDi by puppeteer-core."""

from __future__ import annotations

import json
import selectors
import subprocess
from pathlib import Path
from typing import Any

from playwright.sync_api import Error

from buildtools import ROOT

__all__ = ["Firefox"]

PROGRAM = Path(__file__).with_name("firefox.mjs")
WAIT_SECONDS = 120
"""For the answer to one request; the first starts the browser."""


class Firefox:
    """A `Driver` (remote_page.py); see firefox.mjs."""

    def __init__(self, executable: Path) -> None:
        self.process = subprocess.Popen(
            ["node", PROGRAM, executable], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.reports: list[tuple[str, str]] = []
        self.version: str = self._ask({"do": "version"})

    def init(self, script: str) -> None:
        self._ask({"do": "init", "script": script})

    def goto(self, url: str) -> None:
        self._ask({"do": "goto", "url": url})

    def run(self, expression: str) -> str:
        return str(self._ask({"do": "evaluate", "script": expression}))

    def seen(self) -> list[tuple[str, str]]:
        reports, self.reports = self.reports, []
        return reports

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()

    def _ask(self, request: dict[str, str]) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
            with selectors.DefaultSelector() as answers:
                answers.register(self.process.stdout, selectors.EVENT_READ)
                if not answers.select(WAIT_SECONDS):
                    self.process.kill()
                    raise Error(f"Firefox's driver did not answer within {WAIT_SECONDS} s to {request}")
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise Error(f"Firefox's driver ended (status {self.process.poll()})")
        answer = json.loads(line)
        self.reports += [(report["kind"], report["text"]) for report in answer["seen"]]
        if "error" in answer:
            raise Error(answer["error"])
        return answer["value"]
