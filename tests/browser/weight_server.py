"""A model server that counts its bytes and fails in the ways of servers and networks."""

from __future__ import annotations

import shutil
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import BinaryIO

from capstan_host.headless.static_server import StaticHandler
from capstan_host.site_server import SiteServer

__all__ = ["Faults", "WeightServer"]

PIECE = 4096
"""Bytes sent at a time."""


@dataclass
class Faults:
    """The faults of one file. Positions are bytes of the file."""

    cut_at: int | None = None
    """No response gets past this byte: the connection is closed there, and a browser may drop what came just before."""
    hold_at: int | None = None
    """Nothing past this byte is sent until `released`."""
    released: threading.Event = field(default_factory=threading.Event)
    held: threading.Event = field(default_factory=threading.Event)
    """Set once a response has reached `hold_at`."""
    spoilt: Counter[int] = field(default_factory=Counter)
    """How many responses still have a wrong byte at a position."""
    no_ranges: bool = False
    other_range: str | None = None
    """The range that is sent instead of the requested one."""
    reported_range: str | None = None
    """The Content-Range that is sent, whatever the body's range; "" for none."""
    no_validators: bool = False
    refusals: list[dict[str, str]] = field(default_factory=list)
    """The next requests for the body are answered with 503 and these headers."""
    silent: bool = False
    """No answer comes until `released`."""
    page: bool = False
    """An HTML page is sent in place of the file, as by hosts of single-page applications."""


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    range: str | None


class WeightServer(SiteServer):
    """`requests` holds all that was asked since `forget`, `sent` counts the body bytes of each path in answer to it.

    An answer that was begun earlier counts in what was forgotten, however long it goes on: a browser
    may take a while to close the connections of a page that is gone. Bytes are counted before they go
    out, so that their receiver finds them counted.
    """

    def __init__(self, root: Path, models: Mapping[str, Path]) -> None:
        self.faults: dict[str, Faults] = {}
        self.sent: Counter[str] = Counter()
        self.requests: list[Request] = []
        super().__init__(root, models)

    @property
    def handler(self) -> type[StaticHandler]:
        return WeightHandler

    def mount(self, source: Path, place: Path) -> str:
        """Serve a copy of a model folder; its name under /models/."""
        shutil.copytree(source, place)
        self.models[place.name] = place
        return place.name

    def forget(self) -> None:
        self.sent = Counter()
        self.requests = []

    def asked(self, path: str) -> list[Request]:
        """The requests for bodies of a path."""
        return [request for request in self.requests if request.path == path and request.method == "GET"]


class WeightHandler(StaticHandler):
    server: WeightServer
    _faults = Faults()
    """The faults of the requested file at the time of the request."""

    def _answer(self, with_body: bool) -> None:
        self._faults = self.server.faults.get(self.path) or Faults()
        self._sent = self.server.sent
        self.server.requests.append(Request(self.command, self.path, self.headers.get("Range")))
        if self._faults.no_ranges:
            del self.headers["Range"]
        if self._faults.silent:
            self._faults.held.set()
            self._faults.released.wait()
        if self._faults.refusals and self.command == "GET":
            self._send_bytes(HTTPStatus.SERVICE_UNAVAILABLE, b"later", "text/plain", with_body)
            return
        if self._faults.page:
            self._send_bytes(HTTPStatus.OK, b"<!DOCTYPE html><title>App</title>", "text/html", with_body)
            return
        if self._faults.other_range and "Range" in self.headers:
            self.headers.replace_header("Range", self._faults.other_range)
        super()._answer(with_body)

    def end_headers(self) -> None:
        if self._faults.refusals and self.command == "GET":
            for name, value in self._faults.refusals.pop(0).items():
                super().send_header(name, value)
        super().end_headers()

    def send_header(self, keyword: str, value: str) -> None:
        if keyword == "Content-Range" and self._faults.reported_range is not None:
            value = self._faults.reported_range
            if not value:
                return
        if not (self._faults.no_validators and keyword in ("ETag", "Last-Modified")):
            super().send_header(keyword, value)

    def _send_body(self, file: BinaryIO, start: int, length: int) -> None:
        faults = self._faults
        file.seek(start)
        for at in range(start, start + length, PIECE):
            piece = bytearray(file.read(min(PIECE, start + length - at)))
            for place in [place for place, left in faults.spoilt.items() if at <= place < at + len(piece) and left > 0]:
                faults.spoilt[place] -= 1
                piece[place - at] ^= 1
            if faults.hold_at is not None and at + len(piece) > faults.hold_at:
                faults.held.set()
                faults.released.wait()
            if faults.cut_at is not None and at + len(piece) > faults.cut_at:
                self.close_connection = True
                return
            self._sent[self.path] += len(piece)
            self.wfile.write(piece)
