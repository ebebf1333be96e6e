"""WebKitGTK's MiniBrowser, driven over WebDriver on a display of its own."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
from http.client import HTTPException
from pathlib import Path
from typing import Any

from playwright.sync_api import Error

__all__ = ["WebKit"]

START_SECONDS = 20
WAIT_SECONDS = 120
"""For the answer to one command."""


class WebKit:
    """A `Driver` (remote_page.py). No script can run before a document's own, and nothing of a page is reported."""

    def __init__(self, executable: Path) -> None:
        self.display = subprocess.Popen(
            ["Xvfb", "-displayfd", "1", "-screen", "0", "1280x900x24"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert self.display.stdout is not None
        number = self.display.stdout.readline().decode().strip()
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self.address = f"http://127.0.0.1:{port}"
        self.driver = subprocess.Popen(
            ["WebKitWebDriver", f"--port={port}"], env={**os.environ, "DISPLAY": f":{number}"}
        )
        browser = {"binary": str(executable), "args": ["--automation"]}
        try:
            session = self._ask("/session", {"capabilities": {"alwaysMatch": {"webkitgtk:browserOptions": browser}}})
        except Error:
            self.close()
            raise
        self.version: str = session["capabilities"]["browserVersion"]
        self.session = f"/session/{session['sessionId']}"
        self._ask(f"{self.session}/timeouts", {"script": WAIT_SECONDS * 1000, "pageLoad": WAIT_SECONDS * 1000})

    def init(self, script: str) -> None:
        """Nothing: see the class."""

    def goto(self, url: str) -> None:
        self._ask(f"{self.session}/url", {"url": url})

    def run(self, expression: str) -> str:
        return str(self._ask(f"{self.session}/execute/sync", {"script": f"return {expression};", "args": []}))

    def seen(self) -> list[tuple[str, str]]:
        return []

    def close(self) -> None:
        for process in (self.driver, self.display):
            process.terminate()
            process.wait(20)

    def _ask(self, path: str, body: dict[str, Any]) -> Any:
        request = urllib.request.Request(
            self.address + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        begun = time.monotonic()
        while True:
            try:
                with urllib.request.urlopen(request, timeout=WAIT_SECONDS) as response:
                    return json.load(response)["value"]
            except urllib.error.HTTPError as error:
                raise Error(f"WebKit's driver: {error.code} {error.read().decode(errors='replace')}") from error
            except (OSError, HTTPException) as error:
                # The driver is not up yet.
                if path != "/session" or self.driver.poll() is not None or time.monotonic() - begun > START_SECONDS:
                    raise Error(f"WebKit's driver (status {self.driver.poll()}): {error!r}") from error
                time.sleep(0.1)
