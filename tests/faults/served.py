"""Attacks on the local server with whole requests: paths, ranges, encodings, links, hosts and slow clients.

The judge is a table of what each address may give, and the parts of RFC 9110 about ranges and codings. A client that
sends or reads slowly loses its connection; the next request is answered all the same.
"""

from __future__ import annotations

import contextlib
import http.client
import io
import json
import re
import socket
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from unittest import mock

from capstan_host.headless import static_server as local_server
from capstan_host.site_server import SiteServer, serving

from .deadline import deadline
from .report import Outcome
from .share import Share

__all__ = ["attack_served"]

SECRET = b"nobody may read this" * 50
BODY = bytes(range(256)) * 4
LARGE = 64 << 20
"""Bytes of a file that the sockets do not hold."""
SECONDS = 0.3
"""The server's deadlines here."""
PATIENCE = 20.0

SERVED = {
    "/index.html": BODY,
    "/a.mjs": BODY[:500],
    "/packed.json": BODY,
    "/models/m/model.onnx": BODY,
    "/models/m/tokenizer.json": BODY,
    "/models/q-00001-of-00002.gguf": b"GGUF" + BODY,
    "/transformers.js/a.js": BODY,
}
"""The files by their addresses. Another address gives one of these bodies, or nothing."""
FORMS = {"/packed.json": {"br": b"packed by br", "gzip": b"packed by gzip"}}
OTHERS = (
    *("/", "/models/m/", "/models/index.json", "/large.bin", "/secret", "/.hidden", "/link", "/linked/secret"),
    *("/models/q-00002-of-00002.gguf", "/models/m/link", "/models/m/.hidden", "/models/secret.gguf", "/a.mjs.br"),
    *("/models/m/tokenizer.json.gz", "/models/m/tokenizer.json.br", "/transformers.js/a.js.gz", "/index.html.gz"),
)
CODINGS = (
    "gzip",
    "br",
    "gzip, br",
    "br;q=0, gzip",
    "GZIP;q=0.5",
    "identity",
    "*",
    "gzip;q=0.000,br;q=0",
    "\x00",
    "br" * 99,
)
RANGES = (
    "0-",
    "-1",
    "-",
    "5-2",
    "0-0",
    "1-3",
    "1000-",
    "9" * 18 + "-",
    "9" * 5000 + "-",
    "0-1,3-4",
    "-0",
    "2-",
    "a-b",
    "+1-2",
)
HOSTS = ("localhost", "127.0.0.1:1", "[::1]", "attacker.example", "", "localhost:1:2", "localhost, attacker.example")
ORIGINS = ("http://localhost", "null", "http://attacker.example", "http://[")
PACES = ("whole",) * 30 + ("dribbled", "unread", "half")


@dataclass(frozen=True)
class Answer:
    """A whole response."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes


def attack_served(share: Share, corpus: list[bytes]) -> Outcome:
    """So many requests, and those of the corpus; each as JSON."""
    outcome = Outcome("server")
    with (
        mock.patch.object(local_server, "REQUEST_SECONDS", SECONDS),
        mock.patch.object(local_server, "STALL_SECONDS", SECONDS),
        served() as server,
    ):
        for case in [*corpus, *share.cases(outcome.kind, made)]:
            with deadline(outcome, case, 3 * PATIENCE):
                attack_with(server, outcome, case)
    return outcome


def attack_with(server: SiteServer, outcome: Outcome, case: bytes) -> None:
    """Send a request, and then a good one."""
    errors = io.StringIO()
    with contextlib.redirect_stderr(errors):
        status, why = tried(server, json.loads(case))
        after, why_after = tried(server, {"path": "/a.mjs", "headers": {"Host": "localhost"}})
    why = why or why_after or (after != 200 and f"the next request was answered by {after}") or errors.getvalue()
    if why:
        outcome.fail(case, why[-300:])
    elif status in (200, 206, 304):
        outcome.taken += 1
    else:
        outcome.refused += 1


def made(random: Random) -> bytes:
    """A request as JSON: `path`, `headers`, and how its client sends and reads, `pace`."""
    path = random.choice([*SERVED, *SERVED, *OTHERS])
    for _ in range(random.choice((0, 0, 0, 1, 2))):
        at = random.randrange(len(path))
        path = random.choice(
            (
                path[:at] + f"%{ord(path[at]):02x}" + path[at + 1 :],
                path[:at] + random.choice(("/", "/./", "/../", "//", "%2e%2e/", "%00", "\\", "..%5c", "%")) + path[at:],
                path + random.choice(("/", "?x", "#x", ".gz", ".br", ".shards.json", "%20", "/index.html")),
            )
        )
    given = {
        "Host": (1, ("localhost",)) if random.random() < 0.9 else (1, HOSTS),
        "Range": (0.6, ("lines=1-2", *(f"bytes={each}" for each in RANGES))),
        "Accept-Encoding": (0.5, CODINGS),
        "If-Range": (0.3, ('"x"', "ETAG", "yesterday")),
        "If-None-Match": (0.1, ('"x"', "ETAG", "*")),
        "Origin": (0.1, ORIGINS),
    }
    headers = {name: random.choice(values) for name, (chance, values) in given.items() if random.random() < chance}
    return json.dumps({"path": path, "headers": headers, "pace": random.choice(PACES)}).encode()


@contextlib.contextmanager
def served() -> Iterator[SiteServer]:
    """A site and models with files of their own, and with links and compressed forms that lead to a secret."""
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        site, model, files, other = (root / name for name in ("site", "m", "files", "other"))
        for folder in (site, model, files, other):
            folder.mkdir()
        for file in (root / "secret", site / ".hidden", model / ".hidden", files / "secret.gguf"):
            file.write_bytes(SECRET)
        for name in ("index.html", "a.mjs", "packed.json"):
            (site / name).write_bytes(SERVED[f"/{name}"])
        for ending, form in zip((".br", ".gz"), FORMS["/packed.json"].values(), strict=True):
            (site / f"packed.json{ending}").write_bytes(form)
        with (site / "large.bin").open("wb") as large:
            large.truncate(LARGE)
        for name in ("model.onnx", "tokenizer.json"):
            (model / name).write_bytes(BODY)
        gguf = files / "q-00001-of-00002.gguf"
        gguf.write_bytes(b"GGUF" + BODY)
        (other / "a.js").write_bytes(BODY)
        leading_out = [
            *(site / "link", site / "a.mjs.br", site / "index.html.gz", model / "link", model / "tokenizer.json.gz"),
            *(model / "tokenizer.json.br", files / "q-00002-of-00002.gguf", other / "a.js.gz"),
        ]
        for link in leading_out:
            link.symlink_to(root / "secret")
        (site / "linked").symlink_to(root)
        named = {"/transformers.js/a.js": other / "a.js"}
        with serving(site, {"m": model, gguf.name: gguf}, files=named) as server:
            yield server


def tried(server: SiteServer, case: dict[str, object]) -> tuple[int, str]:
    """The status of the answer to a request, 0 for none, and its fault, empty for a right answer."""
    headers = dict(case["headers"])  # type: ignore[call-overload]
    path, pace = str(case["path"]), case.get("pace", "whole")
    if "ETAG" in headers.values():
        etag = asked(server, path, {"Host": "localhost"}, "whole")
        told = etag.headers["ETag"] if etag else None
        headers = {name: (told or "x") if value == "ETAG" else value for name, value in headers.items()}
    begun = time.monotonic()
    try:
        answer = asked(server, path, headers, str(pace))
    except AssertionError as error:
        return 0, str(error)
    if time.monotonic() - begun > PATIENCE:
        return 0, f"it took {time.monotonic() - begun:.0f} s"
    if pace != "whole":
        return 0, "" if answer is None else "it was kept waiting, and yet answered"
    if answer is None:
        return 0, "no answer"
    return answer.status, fault(path, headers, answer)


def asked(server: SiteServer, path: str, headers: dict[str, str], pace: str) -> Answer | None:
    """The answer to a request; None if the server closed the connection without a whole one."""
    lines = [
        f"GET {path} HTTP/1.1",
        *(f"{name}: {value}" for name, value in headers.items()),
        "Connection: close",
        "",
        "",
    ]
    data = "\r\n".join(lines).encode("latin-1")
    with socket.create_connection(("127.0.0.1", server.server_address[1]), timeout=PATIENCE) as client:
        try:
            if pace == "dribbled":
                sent_slowly(client, data)
            elif pace == "half":
                client.sendall(data[: len(data) // 2])
            elif pace == "unread":
                unread(client)
            else:
                client.sendall(data)
            response = http.client.HTTPResponse(client)
            response.begin()
            return Answer(response.status, response.headers, response.read())
        except (http.client.HTTPException, OSError):
            return None


def sent_slowly(client: socket.socket, data: bytes) -> None:
    """Send a byte now and then; the request is never whole. ConnectionError once the server has closed."""
    client.settimeout(SECONDS / 10)
    for _ in range(round(10 * PATIENCE / SECONDS)):
        client.sendall(data[:1] or b"x")
        data = data[1:-5]
        with contextlib.suppress(TimeoutError):
            if client.recv(1) == b"":
                raise ConnectionError
    client.settimeout(PATIENCE)


def unread(client: socket.socket) -> None:
    """Ask for more than the sockets hold, and read none of it until the server has given up."""
    client.sendall(b"GET /large.bin HTTP/1.1\r\nHost: localhost\r\n\r\n")
    time.sleep(3 * SECONDS)
    left = LARGE
    while left > 0 and (piece := client.recv(1 << 20)):
        left -= len(piece)
    if left > 0:
        raise ConnectionError
    raise AssertionError("all of it was sent to a client that did not read")


def fault(path: str, headers: dict[str, str], answer: Answer) -> str:
    """The fault of a whole answer, empty for a right one."""
    body, told = answer.body, answer.headers
    if SECRET[:20] in body:
        return "it sent what is outside of its folders"
    host = headers.get("Host", "")
    ours = re.fullmatch(r"localhost|127\.0\.0\.1:1|\[::1\]", host) is not None
    if answer.status not in (200, 206, 304, 416):
        plain = path in SERVED and ours and "Origin" not in headers
        return f"{answer.status} for a file that is there" if plain else ""
    if not ours or headers.get("Origin") not in (None, f"http://{host}"):
        return f"{answer.status} for host {host!r} and origin {headers.get('Origin')!r}"
    if told["Content-Length"] not in (None, str(len(body))):
        return f"Content-Length {told['Content-Length']} for {len(body)} bytes"
    if answer.status in (304, 416) or path not in SERVED:
        return ""
    coding = told["Content-Encoding"]
    if coding:
        taken = [each.partition(";") for each in headers.get("Accept-Encoding", "").lower().split(",")]
        weights = {name.strip(): weight.strip() for name, _, weight in taken}
        if coding not in weights or re.fullmatch(r"q=0(\.0*)?", weights[coding]):
            return f"{coding} for Accept-Encoding {headers.get('Accept-Encoding')!r}"
    whole = FORMS.get(path, {}).get(coding) if coding else SERVED[path]
    if whole is None:
        return f"a form by {coding}, which there is not"
    if answer.status == 200:
        return "" if body == whole else f"other bytes: {body[:60]!r}"
    if headers.get("If-Range", told["ETag"]) != told["ETag"]:
        return "a part of another file than If-Range names"
    match = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+)", told["Content-Range"] or "")
    if match is None or int(match[3]) != len(whole):
        return f"Content-Range {told['Content-Range']!r} of {len(whole)} bytes"
    return "" if body and body == whole[int(match[1]) : int(match[2]) + 1] else f"another part: {body[:60]!r}"
