"""A hub that answers like the Hugging Face hub, and the servers of large files behind its redirects."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

from capstan_host.headless.served_files import byte_range
from capstan_host.headless.static_server import running as running_server

__all__ = ["HubServer", "Replaced", "Repository", "running_hub"]

LARGE = re.compile(r"\.onnx|\.gguf$|^tokenizer\.json$")
"""Names of files that the hub keeps as large ones, and redirects."""


@dataclass
class Repository:
    """One repository. `gated` needs a token whose account was let in, `private` any that may read it."""

    folder: Path
    commit: str = "0123456789abcdef0123456789abcdef01234567"
    gated: bool = False
    private: bool = False


@dataclass
class Replaced:
    """The body that replaces a file: these bytes, so often, in chunks."""

    data: bytes
    times: int = 1
    headers: dict[str, str] = field(default_factory=dict)
    sent: int = 0
    """How many bytes went out."""


@dataclass(frozen=True)
class Request:
    server: str
    method: str
    path: str
    authorization: str | None
    range: str | None


class HubServer(ThreadingHTTPServer):
    """`repositories` by id; `readers` are the tokens that may read all of them, `tokens` those that are valid."""

    daemon_threads = True
    block_on_close = False
    stopped = False

    def __init__(self, repositories: dict[str, Repository], cdn: CdnServer) -> None:
        self.repositories = repositories
        self.readers = {"hub_reader"}
        self.tokens = {"hub_reader", "hub_stranger"}
        self.cdn = cdn
        self.requests: list[Request] = cdn.requests
        self.replaced: dict[str, Replaced] = cdn.replaced
        """By the name of a file."""
        self.reports_sizes = True
        """Whether the list of a repository's files has their sizes."""
        super().__init__(("127.0.0.1", 0), HubHandler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class CdnServer(ThreadingHTTPServer):
    """Serves large files by their digests."""

    daemon_threads = True
    block_on_close = False
    stopped = False

    def __init__(self) -> None:
        self.files: dict[str, Path] = {}
        self.requests: list[Request] = []
        self.replaced: dict[str, Replaced] = {}
        super().__init__(("127.0.0.1", 0), CdnHandler)

    def address(self, file: Path) -> str:
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        self.files[digest] = file
        return f"http://127.0.0.1:{self.server_address[1]}/{digest}?signature=of-this-answer"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    exposed = ""
    name = ""
    server: HubServer | CdnServer

    def parse_request(self) -> bool:
        """Nothing is answered on connections that outlive the server."""
        self.close_connection = True
        return not self.server.stopped and super().parse_request()

    def do_OPTIONS(self) -> None:
        self._note()
        self._send(HTTPStatus.NO_CONTENT, b"", {"Access-Control-Allow-Headers": "authorization, range"})

    def do_GET(self) -> None:
        self._note()
        self.answer()

    def do_HEAD(self) -> None:
        self._note()
        self.answer()

    def answer(self) -> None:
        raise NotImplementedError

    def _note(self) -> None:
        headers = self.headers
        path = urlsplit(self.path).path
        made = Request(self.name, self.command, path, headers.get("Authorization"), headers.get("Range"))
        self.server.requests.append(made)

    def _send(self, status: HTTPStatus, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        self.send_header("Access-Control-Allow-Origin", self.headers.get("Origin") or "*")
        self.send_header("Access-Control-Expose-Headers", self.exposed)
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _send_file(self, file: Path, headers: dict[str, str]) -> None:
        if (replaced := self.server.replaced.get(file.name)) is not None and self.command == "GET":
            self._send_chunks(replaced)
            return
        data = file.read_bytes()
        span = byte_range(self.headers.get("Range"), len(data))
        if span is None:
            self._send(HTTPStatus.OK, data, headers)
            return
        start, length = span
        told = {**headers, "Content-Range": f"bytes {start}-{start + length - 1}/{len(data)}"}
        self._send(HTTPStatus.PARTIAL_CONTENT, data[start : start + length], told)

    def _send_chunks(self, replaced: Replaced) -> None:
        self.send_response(HTTPStatus.OK)
        self.send_header("Access-Control-Allow-Origin", "*")
        for name, value in {"Transfer-Encoding": "chunked", **replaced.headers}.items():
            self.send_header(name, value)
        self.end_headers()
        with contextlib.suppress(OSError):
            for _ in range(replaced.times):
                self.wfile.write(b"%x\r\n%s\r\n" % (len(replaced.data), replaced.data))
                replaced.sent += len(replaced.data)
            self.wfile.write(b"0\r\n\r\n")

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


class HubHandler(Handler):
    exposed = "X-Repo-Commit, X-Error-Code, X-Error-Message, ETag, Accept-Ranges, Content-Range"
    name = "hub"
    server: HubServer

    def answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        asked = re.fullmatch(r"/api/models/(.+)/revision/(.+)", path)
        if asked:
            self._tell(asked[1], asked[2])
            return
        asked = re.fullmatch(r"/(.+)/resolve/([^/]+)/(.+)", path)
        if asked:
            self._resolve(asked[1], asked[2], asked[3])
            return
        self._refuse(HTTPStatus.NOT_FOUND, "")

    def _refuse(self, status: HTTPStatus, code: str) -> None:
        self._send(status, b'{"error":"refused"}', {"X-Error-Code": code} if code else {})

    def _token(self) -> str | None:
        return (self.headers.get("Authorization") or "").removeprefix("Bearer ") or None

    def _find(self, name: str, revision: str) -> Repository | None:
        """The repository, or None after a refusal was sent."""
        found, token = self.server.repositories.get(name), self._token()
        if token is not None and token not in self.server.tokens:
            self._refuse(HTTPStatus.UNAUTHORIZED, "")
        elif found is None or (found.private and token not in self.server.readers):
            status = HTTPStatus.UNAUTHORIZED if token is None else HTTPStatus.NOT_FOUND
            self._refuse(status, "RepoNotFound")
        elif revision not in ("main", found.commit):
            self._refuse(HTTPStatus.NOT_FOUND, "RevisionNotFound")
        else:
            return found
        return None

    def _tell(self, name: str, revision: str) -> None:
        """A gated repository is told to everybody; its files are not."""
        found = self._find(name, revision)
        if found is None:
            return
        files = []
        for file in sorted(path for path in found.folder.rglob("*") if path.is_file()):
            listed: dict[str, object] = {"rfilename": file.relative_to(found.folder).as_posix()}
            if self.server.reports_sizes:
                listed["size"] = file.stat().st_size
                if LARGE.search(file.name):
                    listed["lfs"] = {"sha256": hashlib.sha256(file.read_bytes()).hexdigest()}
            files.append(listed)
        body = json.dumps({"id": name, "sha": found.commit, "siblings": files}).encode()
        self._send(HTTPStatus.OK, body, {"Content-Type": "application/json"})

    def _resolve(self, name: str, revision: str, path: str) -> None:
        found = self._find(name, revision)
        if found is None:
            return
        token = self._token()
        if found.gated and token not in self.server.readers:
            self._refuse(HTTPStatus.UNAUTHORIZED if token is None else HTTPStatus.FORBIDDEN, "GatedRepo")
            return
        file = found.folder / path
        if not file.is_file():
            self._refuse(HTTPStatus.NOT_FOUND, "EntryNotFound")
        elif LARGE.search(file.name):
            linked = {"Location": self.server.cdn.address(file), "X-Repo-Commit": found.commit}
            self._send(HTTPStatus.FOUND, b"", linked)
        else:
            etag = f'"{hashlib.sha1(file.read_bytes()).hexdigest()}"'
            self._send_file(file, {"ETag": etag, "X-Repo-Commit": found.commit})


class CdnHandler(Handler):
    """Answers GET alone, as addresses signed for GET do; what it exposes says nothing of the file."""

    name = "cdn"
    server: CdnServer

    def answer(self) -> None:
        file = self.server.files.get(urlsplit(self.path).path.strip("/"))
        if file is None or self.command == "HEAD":
            self._send(HTTPStatus.FORBIDDEN, b"", {})
        else:
            self._send_file(file, {"ETag": '"not readable by the page"'})


@contextlib.contextmanager
def running_hub(repositories: dict[str, Repository]) -> Iterator[HubServer]:
    """A hub and its server of large files, for as long as the block runs."""
    with running_server(CdnServer()) as cdn, running_server(HubServer(repositories, cdn)) as hub:
        try:
            yield hub
        finally:
            hub.stopped = cdn.stopped = True
