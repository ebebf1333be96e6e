"""A first visit over a slow link: how long it takes to load a model, and how long the link is idle meanwhile.

usage: python3 benches/link.py FOLDER [--mbit N] [--device webgpu|wasm]

FOLDER is a model. A page of a new browser profile loads it from a server that sends N million bits a second, 100 unless
given, to all requests together; the software adapter stands in for a GPU. Printed are the seconds from the navigation
until the model is loaded, the bytes sent, and the times at which the link had nothing to send. Run it on a machine that
does nothing else.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

from playwright.sync_api import BrowserContext, sync_playwright  # noqa: E402  # on the path just above

from buildtools.browser import find_browser  # noqa: E402
from buildtools.site import assemble  # noqa: E402
from capstan_host.headless.chromium import flags  # noqa: E402
from capstan_host.headless.static_server import StaticHandler, running  # noqa: E402
from capstan_host.site_server import SiteServer  # noqa: E402

__all__ = ["SlowLink", "Visit", "first_visit"]

PIECE = 16 << 10
"""Bytes sent at a time."""
GAP = 0.03
"""Seconds without anything to send that count as idle."""
LIMIT_MS = 600_000
LOAD = """async ([url, device]) => {
  const { Capstan } = await import("/capstan/capstan.js");
  const llm = await Capstan.load(url, { device });
  llm.close();
}"""


@dataclass
class SlowLink:
    """Sends bytes of whatever response at one pace."""

    bytes_a_second: float
    sent: int = 0
    gaps: list[tuple[float, float]] = field(default_factory=list)
    """From when to when there was nothing to send, on the monotonic clock, after the first byte."""
    free: float = 0.0
    """When the last byte is out."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, count: int) -> None:
        """Wait until so many bytes have gone out."""
        with self._lock:
            now = time.monotonic()
            if now - self.free > GAP:
                if self.sent:
                    self.gaps.append((self.free, now))
                self.free = now
            self.free += count / self.bytes_a_second
            self.sent += count
            until = self.free
        time.sleep(max(0.0, until - time.monotonic()))


class SlowHandler(StaticHandler):
    server: SlowServer

    def _send_body(self, file: BinaryIO, start: int, length: int) -> None:
        file.seek(start)
        while length > 0:
            piece = file.read(min(PIECE, length))
            self.server.link.take(len(piece))
            self.wfile.write(piece)
            length -= len(piece)


class SlowServer(SiteServer):
    def __init__(self, root: Path, models: Mapping[str, Path], link: SlowLink) -> None:
        self.link = link
        super().__init__(root, models)

    @property
    def handler(self) -> type[StaticHandler]:
        return SlowHandler


@dataclass(frozen=True)
class Visit:
    seconds: float
    """From the navigation until the model is loaded."""
    sent: int
    """Bytes over the link."""
    gaps: tuple[tuple[float, float], ...]
    """From when to when the link was idle, in seconds after the navigation."""
    last: float
    """When the last byte was sent."""

    @property
    def idle(self) -> float:
        return sum(end - start for start, end in self.gaps)


def first_visit(browser: BrowserContext, folder: Path, mbit: float, device: str) -> Visit:
    """Load a model in a page of a profile in which nothing is stored."""
    link = SlowLink(mbit * 1e6 / 8)
    with running(SlowServer(assemble(), {folder.name: folder}, link)) as server:
        page = browser.new_page()
        page.set_default_timeout(LIMIT_MS)
        begun = time.monotonic()
        page.goto(server.url + "blank.html")
        page.evaluate(LOAD, [f"/models/{folder.name}/", device])
        seconds = time.monotonic() - begun
        page.close()
    gaps = tuple((start - begun, end - begun) for start, end in link.gaps)
    return Visit(seconds, link.sent, gaps, link.free - begun)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--mbit", type=float, default=100)
    parser.add_argument("--device", default="webgpu", choices=["webgpu", "wasm"])
    given = parser.parse_args()
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as profile:
        # A private window keeps no file of this size in its cache: onnxruntime-web's would come twice.
        browser = playwright.chromium.launch_persistent_context(
            profile, executable_path=find_browser(), args=flags("software")
        )
        visit = first_visit(browser, given.folder.resolve(), given.mbit, given.device)
        browser.close()
    print(f"loaded after {visit.seconds:.2f} s; {visit.sent / 1e6:.1f} MB, the last of them after {visit.last:.2f} s")
    print(f"the link was idle for {visit.idle:.2f} s:", *(f"{a:.2f}-{b:.2f}" for a, b in visit.gaps))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
