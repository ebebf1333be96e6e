"""Films a page: its screenshots, one behind the other, as an animated PNG that any browser plays."""

from __future__ import annotations

import re
import struct
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

from playwright.sync_api import Locator, Page

__all__ = ["Film"]

SIGNATURE = b"\x89PNG\r\n\x1a\n"
PACE = 1.0
"""Seconds between two pictures, which a software adapter has to draw, too."""
LAST_SECONDS = 3.0
"""The last picture stays so long."""


class Film:
    """The pictures of a page that differ from the one before, with the seconds for which each was there."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self._pictures: list[tuple[bytes, float]] = []

    def until(self, place: Locator, text: str, seconds: float) -> str:
        """Film until the text of an element matches; return it. Raises AssertionError after so many seconds."""
        end, found = time.monotonic() + seconds, ""
        while time.monotonic() < end:
            self.take()
            found = place.inner_text() if place.count() else ""
            if re.search(text, found):
                return found
            self._page.wait_for_timeout(1000 * PACE)
        raise AssertionError(f"after {seconds} s the page shows {found!r}, and no {text!r}")

    def take(self) -> None:
        picture = self._page.screenshot()
        if not self._pictures or self._pictures[-1][0] != picture:
            self._pictures.append((picture, time.monotonic()))

    def save(self, path: Path) -> None:
        """Write the film: by the third edition of the PNG specification, acTL, and an fcTL before each picture."""
        path.parent.mkdir(parents=True, exist_ok=True)
        begun = [when for _, when in self._pictures]
        ends = [*begun[1:], begun[-1] + LAST_SECONDS]
        header = next(data for kind, data in chunks(self._pictures[0][0]) if kind == b"IHDR")
        file = SIGNATURE + chunk(b"IHDR", header) + chunk(b"acTL", struct.pack(">II", len(begun), 1))
        count = 0
        for place, ((picture, when), end) in enumerate(zip(self._pictures, ends, strict=True)):
            hundredths = min(65535, max(1, round(100 * (end - when))))
            control = struct.pack(">I8sIIHHBB", count, header[:8], 0, 0, hundredths, 100, 0, 0)
            file += chunk(b"fcTL", control)
            count += 1
            data = b"".join(data for kind, data in chunks(picture) if kind == b"IDAT")
            file += chunk(b"fdAT", struct.pack(">I", count) + data) if place else chunk(b"IDAT", data)
            count += place > 0
        path.write_bytes(file + chunk(b"IEND", b""))


def chunks(picture: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The chunks of a PNG file, by kind and contents."""
    at = len(SIGNATURE)
    while at < len(picture):
        size, kind = struct.unpack_from(">I4s", picture, at)
        yield kind, picture[at + 8 : at + 8 + size]
        at += 12 + size


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
