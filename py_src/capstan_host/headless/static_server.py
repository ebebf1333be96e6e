"""A local web server: static files with the cross-origin isolation headers, byte ranges and model folders."""

from __future__ import annotations

import contextlib
import ipaddress
import mimetypes
import os
import re
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from email.utils import formatdate
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BufferedReader, RawIOBase
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, TypeVar
from urllib.parse import unquote, urlsplit

from capstan.model_files.file_names import is_gguf
from capstan.model_files.gguf.shards import shard_names

from .served_files import FilePart, accepted, byte_range, is_refused, open_below

__all__ = [
    "ENCODINGS",
    "LARGE_BYTES",
    "StaticHandler",
    "StaticServer",
    "running",
]

Server = TypeVar("Server", bound=ThreadingHTTPServer)

CHUNK = 256 << 10
"""Bytes of a reply that its client has to take within STALL_SECONDS."""
LARGE_BYTES = 16 << 20
"""Model files of this size are served as `no-store`: Capstan stores weights itself, and without it Chromium takes up to
50 MB of such a response into the page's memory when it comes in faster than it is read."""
MIME = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".mjs": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
    ".wasm": "application/wasm",
    ".whl": "application/zip",
}
ENCODINGS = {"br": ".br", "gzip": ".gz"}
"""The endings of a file's compressed forms, by their names in Accept-Encoding, the best one first."""
MOST_PATH = 4096
"""The most characters of a request's path; a longer one is answered with 414."""
LOCAL_NAMES = ("localhost", "localhost.localdomain")
FRAMES = "frame-ancestors 'none'"
"""The part of the pages' content security policy that a page cannot have in itself."""
SANDBOX = "sandbox; default-src 'none'"
"""The policy for files of a model's folder: a page among them has no origin, runs no script and loads nothing."""
IDLE_SECONDS = 30.0
"""A connection whose next request does not begin in that time is closed."""
REQUEST_SECONDS = 30.0
"""The time from a request's first byte to its last; a connection that needs longer is closed."""
STALL_SECONDS = 60.0
"""A connection that takes longer for a CHUNK of its reply is closed."""
MOST_CONNECTIONS = 128
"""The most connections at a time, each with a separate thread; further ones are answered with 503."""
BUSY = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nRetry-After: 1\r\nConnection: close\r\n\r\n"
ISOLATION = {
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Embedder-Policy": "require-corp",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class StaticServer(ThreadingHTTPServer):
    """Serves `root`, each folder of `models` as /models/NAME/ and each GGUF file as /models/NAME, and `files` by path.

    It answers only requests that address it by an IP address, localhost or this machine's name, and no page of another
    origin: otherwise a page under a name that a foreign DNS server points here could read the served files. Raises
    OSError for an address or a port that is in use.
    """

    daemon_threads = True
    block_on_close = False
    request_queue_size = MOST_CONNECTIONS

    @property
    def handler(self) -> type[StaticHandler]:
        """The class that answers requests."""
        return StaticHandler

    def __init__(
        self,
        root: Path,
        models: Mapping[str, Path],
        host: str = "127.0.0.1",
        port: int = 0,
        files: Mapping[str, Path] | None = None,
    ) -> None:
        self.root = root
        self.models = dict(models)
        self.files = dict(files or {})
        self._places = threading.BoundedSemaphore(MOST_CONNECTIONS)
        own = socket.gethostname()
        self.names = {name.lower() for name in (*LOCAL_NAMES, own, f"{own}.local", host)}
        super().__init__((host, port), self.handler)

    @property
    def url(self) -> str:
        """The address to open; 127.0.0.1 is a secure context, which WebGPU needs."""
        host, port = self.server_address[:2]
        return f"http://{'127.0.0.1' if host == '0.0.0.0' else str(host)}:{port}/"

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer a connection in a thread, or with 503 if there are too many connections."""
        if self._places.acquire(blocking=False):
            try:
                super().process_request(request, client_address)
            except RuntimeError:
                self._places.release()  # The system has no thread for it.
                raise
            return
        with contextlib.suppress(OSError):
            request.sendall(BUSY)
        self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer the requests of a connection until it is closed."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def is_ours(self, authority: str) -> bool:
        """Whether a Host header, or an Origin's host, is one by which this server may be addressed."""
        match = re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+)\]|([^\[\]:@/]+))(?::\d{1,5})?", authority)
        if match is None:
            return False
        if match[2] and match[2].lower().rstrip(".") in self.names:
            return True
        try:
            ipaddress.ip_address(match[1] or match[2])
        except ValueError:
            return False
        return True

    def is_of_a_model(self, path: str) -> bool:
        """Whether a URL path leads into a model's folder."""
        return [part for part in path.split("/") if part][:1] == ["models"]

    def find(self, path: str) -> BufferedReader | bytes | FilePart | None:
        """The target of a URL path: an open file or a part of one, or bytes made here. None if there is no such file,
        for a hidden file, and for a link that leads out of the served folder.
        """
        parts = [part for part in path.split("/") if part]
        if not path.startswith("/") or path.endswith("/") or any(is_refused(part) for part in parts):
            return None
        if path in self.files:
            return open_below(self.files[path])
        if len(parts) == 2 and parts[0] == "models" and (file := self.open_gguf(parts[1])):
            return file
        base = self.root
        if len(parts) > 2 and parts[0] == "models" and parts[1] in self.models:
            base, parts = self.models[parts[1]], parts[2:]
        if any(part.startswith(".") for part in parts):
            return None
        return open_below(base, parts)

    def open_gguf(self, name: str) -> BufferedReader | None:
        """The GGUF file of that name: a model's, or another shard of one."""
        if not is_gguf(name):
            return None
        if name in self.models:
            return open_below(self.models[name])
        folders = [file.parent for file in self.models.values() if file.is_file() and name in shard_names(file.name)]
        return next((file for folder in folders if (file := open_below(folder, [name]))), None)


class RequestReader(RawIOBase):
    """Reads a connection until the time `until`; after that it raises TimeoutError, even if bytes still arrive."""

    until = 0.0

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left = self.until - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._connection.settimeout(left)
        return self._connection.recv_into(buffer)


class StaticHandler(BaseHTTPRequestHandler):
    """Answers GET and HEAD."""

    protocol_version = "HTTP/1.1"
    page_policy = FRAMES
    server: StaticServer

    def setup(self) -> None:
        """Read requests with a RequestReader, which has a deadline."""
        super().setup()
        self.rfile.close()
        self._reader = RequestReader(self.connection)
        self._requests = BufferedReader(self._reader)
        self.rfile = self._requests

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def handle_one_request(self) -> None:
        """Answer the next request of the connection, if its client is still there and sends a whole one in time."""
        try:
            self._reader.until = time.monotonic() + IDLE_SECONDS
            self._requests.peek(1)
            self._reader.until = time.monotonic() + REQUEST_SECONDS
            super().handle_one_request()
        except (ConnectionError, TimeoutError):
            self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing: the terminal belongs to the model's text."""

    def refusal(self) -> tuple[HTTPStatus, bytes] | None:
        """The status and the text that refuse this request, whatever its path; None if it is not refused."""
        if len(self.path) > MOST_PATH:
            return HTTPStatus.REQUEST_URI_TOO_LONG, b"the address is too long\n"
        hosts = self.headers.get_all("Host") or []
        if len(hosts) != 1 or not self.server.is_ours(hosts[0].strip()):
            return HTTPStatus.MISDIRECTED_REQUEST, b"use this server's own address\n"
        origin = self.headers.get("Origin")
        if origin is not None and urlsplit(origin)[:2] != ("http", hosts[0].strip().lower()):
            return HTTPStatus.FORBIDDEN, b"pages of another origin are not answered\n"
        return None

    def _answer(self, with_body: bool) -> None:
        if self.headers.get("Content-Length", "0") != "0" or "Transfer-Encoding" in self.headers:
            self.close_connection = True  # The body that follows is not read.
        self.connection.settimeout(STALL_SECONDS)  # Each write has so long, in whatever pieces it goes out.
        path = ""
        try:
            refused = self.refusal()
            path = unquote(urlsplit(self.path).path)
        except ValueError:
            refused = HTTPStatus.BAD_REQUEST, b"not a request\n"
        if refused is not None:
            self._send_bytes(*refused, "text/plain; charset=utf-8", with_body)
            return
        if path.endswith("/"):
            path += "index.html"
        found = self.server.find(path)
        if found is None:
            self._send_bytes(HTTPStatus.NOT_FOUND, b"not found\n", "text/plain; charset=utf-8", with_body)
        elif isinstance(found, bytes):
            self._send_bytes(HTTPStatus.OK, found, MIME[".json"], with_body)
        elif isinstance(found, FilePart):
            self._send_part(found, with_body)
        else:
            with found:
                self._send_file(found, path, with_body)

    def _send_bytes(self, status: HTTPStatus, body: bytes, mime: str, with_body: bool) -> None:
        self._start(status, mime, len(body), {})
        if with_body:
            self.wfile.write(body)

    def _send_part(self, part: FilePart, with_body: bool) -> None:
        with part.file as file:
            self._start(HTTPStatus.OK, "application/octet-stream", part.length, {})
            if with_body:
                self._send_body(file, part.start, part.length)

    def _send_file(self, plain: BufferedReader, path: str, with_body: bool) -> None:
        """Send a file, or a compressed form of it that the client accepts (build.py dist writes these forms). A range
        is a part of the file itself.
        """
        mime = MIME.get(PurePosixPath(path).suffix) or mimetypes.guess_type(path)[0] or "application/octet-stream"
        with contextlib.ExitStack() as stack:
            forms = {name: self.server.find(path + ending) for name, ending in ENCODINGS.items()}
            there = {
                name: stack.enter_context(form) for name, form in forms.items() if isinstance(form, BufferedReader)
            }
            taken = accepted(self.headers.get("Accept-Encoding", "")) if "Range" not in self.headers else set()
            encoding = next((name for name in there if name in taken), "")
            extra = {"Vary": "Accept-Encoding"} if there else {}
            extra |= {"Content-Encoding": encoding} if encoding else {}
            self._send_form(there.get(encoding, plain), path, mime, extra, with_body)

    def _send_form(self, file: BufferedReader, path: str, mime: str, extra: Mapping[str, str], with_body: bool) -> None:
        stat = os.fstat(file.fileno())
        etag = f'"{stat.st_mtime_ns:x}-{stat.st_size:x}"'
        about = {"ETag": etag, "Last-Modified": formatdate(stat.st_mtime, usegmt=True), "Accept-Ranges": "bytes"}
        about |= extra
        if self.server.is_of_a_model(path):
            about["Content-Security-Policy"] = SANDBOX
            if stat.st_size >= LARGE_BYTES:
                about["Cache-Control"] = "no-store"
        if self.headers.get("If-None-Match") == etag:
            self._start(HTTPStatus.NOT_MODIFIED, mime, None, about)
            return
        wanted = self.headers.get("Range") if self.headers.get("If-Range", etag) == etag else None
        span = byte_range(wanted, stat.st_size)
        if span == (0, 0):
            about["Content-Range"] = f"bytes */{stat.st_size}"
            self._start(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, mime, 0, about)
            return
        start, length = span or (0, stat.st_size)
        if span:
            about["Content-Range"] = f"bytes {start}-{start + length - 1}/{stat.st_size}"
        self._start(HTTPStatus.PARTIAL_CONTENT if span else HTTPStatus.OK, mime, length, about)
        if with_body:
            self._send_body(file, start, length)

    def _send_body(self, file: BinaryIO, start: int, length: int) -> None:
        file.seek(start)
        while length > 0:
            chunk = file.read(min(CHUNK, length))
            if not chunk:
                self.close_connection = True
                return
            self.wfile.write(chunk)
            length -= len(chunk)

    def _start(self, status: HTTPStatus, mime: str, length: int | None, extra: Mapping[str, str]) -> None:
        self.send_response(status)
        self.send_header("Content-Type", mime)
        if length is not None:
            self.send_header("Content-Length", str(length))
        policy = {}
        if self.page_policy and mime.startswith("text/html"):
            policy = {"Content-Security-Policy": self.page_policy}
        about = {**ISOLATION, "Cache-Control": "no-cache", "X-Content-Type-Options": "nosniff", **policy, **extra}
        for name, value in about.items():
            self.send_header(name, value)
        self.end_headers()


@contextlib.contextmanager
def running(server: Server) -> Iterator[Server]:
    """Serve in a thread of this process for as long as the block runs."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
