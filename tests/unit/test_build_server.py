"""The local server: what a page and a careless or hostile client get from it."""

from __future__ import annotations

import contextlib
import http.client
import json
import ntpath
import socket
import struct
import threading
import time
from collections.abc import Iterator, Mapping
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import quote

import pytest

from buildtools import ROOT
from capstan_host.command_errors import CommandError
from capstan_host.digests import Digests
from capstan_host.headless.served_files import byte_range
from capstan_host.headless.static_server import LARGE_BYTES, MOST_CONNECTIONS
from capstan_host.site_server import SiteServer, serving
from tests.gguf_files import gguf_file

BODY = bytes(range(100))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    site = tmp_path / "site"
    (site / "sub").mkdir(parents=True)
    (site / "index.html").write_text("<p>hello</p>")
    (site / "sub/index.html").write_text("<p>sub</p>")
    for name in ("a.mjs", "b.wasm", "c.json", "d.whl", "data.bin"):
        (site / name).write_bytes(BODY)
    (tmp_path / "secret.txt").write_text("secret")
    (tmp_path / "nano one").mkdir()
    (tmp_path / "nano one/model.onnx").write_bytes(BODY)
    (site / "link.txt").symlink_to(tmp_path / "secret.txt")
    (site / "linked").symlink_to(tmp_path)
    (tmp_path / "nano one/link.txt").symlink_to(tmp_path / "secret.txt")
    (site / ".hidden").write_text("secret")
    (site / "sub/.git").mkdir()
    (site / "sub/.git/secret").write_text("secret")
    return site


@pytest.fixture
def server(folder: Path) -> Iterator[SiteServer]:
    with serving(folder, {"nano one": folder.parent / "nano one"}) as server:
        yield server


def get(
    server: SiteServer, path: str, headers: Mapping[str, str] | None = None, method: str = "GET"
) -> tuple[http.client.HTTPResponse, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=60)
    connection.request(method, path, headers=dict(headers or {}))
    response = connection.getresponse()
    body = response.read()
    connection.close()
    return response, body


def test_pages_are_cross_origin_isolated_and_never_cached_unasked(server: SiteServer) -> None:
    response, body = get(server, "/")
    assert (response.status, body) == (200, b"<p>hello</p>")
    assert response.headers["Cross-Origin-Opener-Policy"] == "same-origin"
    assert response.headers["Cross-Origin-Embedder-Policy"] == "require-corp"
    assert response.headers["Cache-Control"] == "no-cache"


@pytest.mark.parametrize(
    ("accepted", "headers", "body", "encoding"),
    [
        ("gzip, deflate, br", {}, b"br", "br"),
        ("gzip;q=1.0, br;q=0", {}, b"gz", "gzip"),
        ("BR ; q=0.5", {}, b"br", "br"),
        ("identity, br;q=0.0", {}, BODY, None),
        ("br", {"Range": "bytes=2-5"}, BODY[2:6], None),
    ],
)
def test_compressed_forms_are_served_to_who_takes_them(
    accepted: str, headers: dict[str, str], body: bytes, encoding: str | None, folder: Path, server: SiteServer
) -> None:
    (folder / "b.wasm.br").write_bytes(b"br")
    (folder / "b.wasm.gz").write_bytes(b"gz")
    response, found = get(server, "/b.wasm", {"Accept-Encoding": accepted, **headers})
    assert (found, response.headers["Content-Encoding"]) == (body, encoding)
    assert (response.headers["Content-Type"], response.headers["Vary"]) == ("application/wasm", "Accept-Encoding")
    alone, found = get(server, "/a.mjs", {"Accept-Encoding": accepted})
    assert (found, alone.headers["Content-Encoding"], alone.headers["Vary"]) == (BODY, None, None)
    assert response.headers["ETag"] != alone.headers["ETag"]


@pytest.mark.parametrize("place", ["site", "nano one"])
@pytest.mark.parametrize("ending", [".br", ".gz"])
def test_a_compressed_form_that_leads_out_of_the_folder_is_none(
    place: str, ending: str, folder: Path, server: SiteServer
) -> None:
    (folder.parent / place / "t.json").write_bytes(BODY)
    (folder.parent / place / f"t.json{ending}").symlink_to(folder.parent / "secret.txt")
    url = "/t.json" if place == "site" else "/models/nano%20one/t.json"
    response, found = get(server, url, {"Accept-Encoding": "br, gzip"})
    assert (found, response.headers["Content-Encoding"], response.headers["Vary"]) == (BODY, None, None)
    assert get(server, url + ending)[0].status == 404


@pytest.mark.parametrize(("size", "control"), [(LARGE_BYTES - 1, "no-cache"), (LARGE_BYTES, "no-store")])
def test_large_weights_are_left_to_the_weight_store(folder: Path, server: SiteServer, size: int, control: str) -> None:
    for place in (folder.parent / "nano one", folder):
        with (place / "model.onnx.data").open("wb") as file:
            file.truncate(size)
    found = [get(server, url, method="HEAD")[0] for url in ("/models/nano%20one/model.onnx.data", "/model.onnx.data")]
    assert [response.headers["Cache-Control"] for response in found] == [control, "no-cache"]


@pytest.mark.parametrize(
    ("name", "mime"),
    [
        ("a.mjs", "text/javascript; charset=utf-8"),
        ("b.wasm", "application/wasm"),
        ("c.json", "application/json"),
        ("d.whl", "application/zip"),
        ("data.bin", "application/octet-stream"),
        ("", "text/html; charset=utf-8"),
    ],
)
def test_files_have_the_type_that_browsers_insist_on(server: SiteServer, name: str, mime: str) -> None:
    assert get(server, "/" + name)[0].headers["Content-Type"] == mime


@pytest.mark.parametrize(
    ("header", "start", "end"),
    [
        ("bytes=0-0", 0, 1),
        ("bytes=10-19", 10, 20),
        ("bytes=90-", 90, 100),
        ("bytes=-5", 95, 100),
        ("bytes=99-500", 99, 100),
    ],
)
def test_a_range_is_answered_with_that_part(server: SiteServer, header: str, start: int, end: int) -> None:
    response, body = get(server, "/data.bin", {"Range": header})
    assert response.status == 206
    assert body == BODY[start:end]
    assert response.headers["Content-Range"] == f"bytes {start}-{end - 1}/100"


def test_a_range_past_the_end_is_refused_and_one_that_is_no_range_is_ignored(server: SiteServer) -> None:
    response, body = get(server, "/data.bin", {"Range": "bytes=100-"})
    assert (response.status, body) == (416, b"")
    assert response.headers["Content-Range"] == "bytes */100"
    for header in ("bytes=5-2", "bytes=-", "lines=1-2", "bytes=0-1,5-6"):
        response, body = get(server, "/data.bin", {"Range": header})
        assert (response.status, body) == (200, BODY), header


def test_byte_range_of_an_empty_file() -> None:
    assert byte_range("bytes=0-", 0) == (0, 0)
    assert byte_range(None, 0) is None


def test_an_unchanged_file_is_not_sent_again_and_a_stale_range_is_sent_whole(server: SiteServer) -> None:
    etag = get(server, "/data.bin")[0].headers["ETag"]
    response, body = get(server, "/data.bin", {"If-None-Match": etag})
    assert (response.status, body) == (304, b"")
    (server.root / "data.bin").write_bytes(BODY + b"x")
    assert get(server, "/data.bin", {"If-None-Match": etag})[0].status == 200
    assert get(server, "/data.bin", {"Range": "bytes=0-1", "If-Range": etag})[0].status == 200


def test_head_tells_the_length_without_the_body(server: SiteServer) -> None:
    with socket.create_connection(("127.0.0.1", server.server_address[1]), timeout=60) as connection:
        connection.sendall(b"HEAD /data.bin HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        answer = b"".join(iter(lambda: connection.recv(4096), b""))
    head, body = answer.split(b"\r\n\r\n", 1)
    assert head.startswith(b"HTTP/1.1 200 ")
    assert b"\r\nContent-Length: 100\r\n" in head + b"\r\n"
    assert body == b""


@pytest.mark.parametrize(
    "path",
    [
        "/../secret.txt",
        "/%2e%2e/secret.txt",
        "/sub/../../secret.txt",
        "/models/nano%20one/../secret.txt",
        "/models/nano%20one/%2e%2e/secret.txt",
        "/..%5csecret.txt",
        "//../secret.txt",
        "/index.html%00",
        "/link.txt",
        "/linked/secret.txt",
        "/models/nano%20one/link.txt",
        "/.hidden",
        "/sub/.git/secret",
        "/C:/secret.txt",
        "/c:secret.txt",
        "/" + "x" * 300,
        "/%ed%a0%80",
    ],
)
def test_nothing_outside_the_served_folders_is_reachable(server: SiteServer, path: str) -> None:
    response, body = get(server, path)
    assert response.status == 404
    assert b"secret" not in body


ELSEWHERE = ["C:", "c:x", "C:\\x", "\\\\host\\share", "..\\x", "x\\..\\..\\y", ".. ", ". .", "..."]
"""Names that Windows takes for another place than one below; elsewhere they are names like others."""


@pytest.mark.parametrize("name", ELSEWHERE)
def test_what_windows_reads_as_another_place_is_no_name(name: str, folder: Path, server: SiteServer) -> None:
    joined = ntpath.normpath(ntpath.join("D:\\site", name, "secret.txt"))
    assert not joined.startswith("D:\\site\\") or not name.strip(". "), "it is below on Windows, too"
    for place in (folder, folder.parent / "nano one"):
        (place / name).mkdir()
        (place / name / "secret.txt").write_text("secret")
    for base in ("/", "/models/nano%20one/"):
        for quoted in (quote(name, ""), quote(name, "\\:").replace("\\", "%5c")):
            response, body = get(server, f"{base}{quoted}/secret.txt")
            assert (response.status, body) == (404, b"not found\n"), quoted


@pytest.mark.parametrize("path", ["//host/share/secret.txt", "/%2f%2fhost/share/secret.txt", "//../secret.txt"])
def test_two_slashes_are_no_host(path: str, folder: Path, server: SiteServer) -> None:
    """Behind a host there would be these."""
    (folder / "share").mkdir()
    for place in (folder / "share", folder, folder.parent):
        (place / "secret.txt").write_text("secret")
    assert get(server, path)[0].status == 404


@pytest.mark.parametrize("name", ["llama:1b", "a.b", "x. y", "con", "-"])
def test_names_that_are_below_on_every_system_are_served(name: str, folder: Path, server: SiteServer) -> None:
    (folder / name).write_bytes(BODY)
    assert get(server, quote(f"/{name}"))[1] == BODY


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8000", 200),
        ("localhost", 200),
        ("LOCALHOST:80", 200),
        ("[::1]:8000", 200),
        ("192.168.1.5", 200),
        ("attacker.example", 421),
        ("127.0.0.1.attacker.example:8000", 421),
        ("localhost@attacker.example", 421),
        ("localhost:8000:9000", 421),
        ("", 421),
        ("[::1", 421),
    ],
)
def test_only_who_addresses_this_machine_is_answered(host: str, status: int, server: SiteServer) -> None:
    """A name of somebody else's that points here makes their page one of the same origin."""
    response, body = get(server, "/data.bin", {"Host": host})
    assert response.status == status
    assert (body == BODY) == (status == 200)


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://localhost:8000", 200),
        ("http://attacker.example", 403),
        ("http://localhost:9000", 403),
        ("null", 403),
        ("http://[", 400),
        ("https://localhost:8000", 403),
    ],
)
def test_pages_of_another_origin_are_not_answered(origin: str, status: int, server: SiteServer) -> None:
    response, body = get(server, "/data.bin", {"Host": "localhost:8000", "Origin": origin})
    assert response.status == status
    assert (body == BODY) == (status == 200)


def test_an_address_that_is_none_is_refused_without_a_traceback(
    server: SiteServer, capfd: pytest.CaptureFixture[str]
) -> None:
    with socket.create_connection(("127.0.0.1", server.server_address[1]), timeout=60) as connection:
        connection.sendall(b"GET http://[::1 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        answer = b"".join(iter(lambda: connection.recv(4096), b""))
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert capfd.readouterr().err == ""


def test_connections_beyond_a_number_are_refused(server: SiteServer) -> None:
    address = ("127.0.0.1", server.server_address[1])
    idle = [socket.create_connection(address, timeout=60) for _ in range(MOST_CONNECTIONS)]
    with socket.create_connection(address, timeout=60) as late:
        assert b" 503 " in late.recv(100)
    for connection in idle:
        connection.close()
    deadline = time.monotonic() + 60
    while get(server, "/data.bin")[0].status != 200:
        assert time.monotonic() < deadline, "connections that were closed still count"


def test_a_connection_that_asks_for_nothing_is_closed(server: SiteServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("capstan_host.headless.static_server.IDLE_SECONDS", 0.1)
    with socket.create_connection(("127.0.0.1", server.server_address[1]), timeout=60) as idle:
        assert idle.recv(1) == b""


def test_a_request_that_comes_in_byte_by_byte_is_given_up(server: SiteServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each byte is there in time, the whole is not."""
    monkeypatch.setattr("capstan_host.headless.static_server.REQUEST_SECONDS", 0.5, raising=False)
    with socket.create_connection(("127.0.0.1", server.server_address[1]), timeout=60) as slow:
        slow.sendall(b"GET /data.bin HTTP/1.1\r\nHost: localhost\r\nX-Long: ")
        slow.settimeout(0.05)
        deadline = time.monotonic() + 20
        with contextlib.suppress(ConnectionError):  # It may be closed between two bytes.
            while not is_closed(slow):
                assert time.monotonic() < deadline, "the connection is kept"
                slow.send(b"x")


def is_closed(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except TimeoutError:
        return False


@pytest.mark.parametrize("bytes_a_turn", [0, 1000])
def test_clients_that_do_not_take_their_replies_keep_nobody_out(
    bytes_a_turn: int, folder: Path, server: SiteServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They hold every place, and read nothing or a little now and then."""
    monkeypatch.setattr("capstan_host.headless.static_server.STALL_SECONDS", 0.5, raising=False)
    with (folder / "large.bin").open("wb") as file:
        file.truncate(256 << 20)  # More than the sockets hold.
    address = ("127.0.0.1", server.server_address[1])
    with contextlib.ExitStack() as stack:
        lazy = [stack.enter_context(socket.create_connection(address, timeout=60)) for _ in range(MOST_CONNECTIONS)]
        for each in lazy:
            each.sendall(b"GET /large.bin HTTP/1.1\r\nHost: localhost\r\n\r\n")
        deadline = time.monotonic() + 30
        while get(server, "/data.bin")[0].status != 200:
            assert time.monotonic() < deadline, "their places are not given back"
            for each in lazy:
                each.recv(bytes_a_turn)
            time.sleep(0.05)


def test_what_a_models_folder_holds_is_no_page_of_this_origin(folder: Path, server: SiteServer) -> None:
    (folder.parent / "nano one/readme.html").write_text("<script>fetch('/')</script>")
    for path in (
        "/models/nano%20one/readme.html",
        "//models/nano%20one/readme.html",
        "/%6dodels/nano%20one/readme.html",
    ):
        response, _ = get(server, path)
        assert response.status == 200
        assert response.headers.get_all("Content-Security-Policy") == ["sandbox; default-src 'none'"]


def test_without_a_host_or_with_two_nothing_is_answered(server: SiteServer) -> None:
    for hosts in (b"", b"Host: localhost\r\nHost: localhost\r\n"):
        with socket.create_connection(("127.0.0.1", server.server_address[1]), timeout=60) as connection:
            connection.sendall(b"GET /data.bin HTTP/1.1\r\n" + hosts + b"Connection: close\r\n\r\n")
            answer = b"".join(iter(lambda: connection.recv(4096), b""))
        assert answer.startswith(b"HTTP/1.1 421 ")


def test_links_within_the_folder_are_followed(folder: Path, server: SiteServer) -> None:
    (folder / "again.bin").symlink_to(folder / "data.bin")
    assert get(server, "/again.bin")[1] == BODY


def test_long_addresses_and_ranges_are_refused_without_a_traceback(
    server: SiteServer, capfd: pytest.CaptureFixture[str]
) -> None:
    assert get(server, "/" + "x" * 5000)[0].status == 414
    for digits in ("9" * 5000, "9" * 19, "\u0663"):
        response, body = get(server, "/data.bin", {"Range": f"bytes={digits}-".encode().decode("latin-1")})
        assert (response.status, body) == (200, BODY)
    assert get(server, "/data.bin", {"Range": f"bytes={'9' * 18}-"})[0].status == 416
    assert capfd.readouterr().err == ""


def test_pages_are_shown_in_no_frame_and_files_are_what_their_type_says(server: SiteServer) -> None:
    page, script = get(server, "/")[0], get(server, "/a.mjs")[0]
    assert page.headers["Content-Security-Policy"] == "frame-ancestors 'none'"
    assert "Content-Security-Policy" not in script.headers
    assert page.headers["X-Content-Type-Options"] == script.headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize("page", ["web/demo/index.html", "web/harness/harness.html"])
def test_pages_have_a_policy_and_nothing_inline(page: str) -> None:
    found = Tags()
    found.feed((ROOT / page).read_text())
    [policy] = found.policies
    assert f"Content-Security-Policy: {policy}" in " ".join((ROOT / "SECURITY.md").read_text().split())
    assert policy.startswith("default-src 'self'; ")
    assert "unsafe" not in policy
    assert found.inline == []


class Tags(HTMLParser):
    """The content security policies of a page, and what they do not allow: handlers, styles and scripts inside."""

    def __init__(self) -> None:
        super().__init__()
        self.policies: list[str] = []
        self.inline: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if given.get("http-equiv") == "Content-Security-Policy":
            self.policies.append(given["content"] or "")
        self.inline += [f"{tag} {name}" for name in given if name.startswith("on") or name == "style"]
        if tag == "style" or (tag == "script" and "src" not in given):
            self.inline.append(tag)


def test_folders_are_not_listed(server: SiteServer) -> None:
    assert get(server, "/sub/")[1] == b"<p>sub</p>"
    assert get(server, "/sub")[0].status == 404
    assert get(server, "/models/nano%20one/")[0].status == 404


def test_models_are_mounted_and_listed(server: SiteServer) -> None:
    assert get(server, "/models/nano%20one/model.onnx")[1] == BODY
    [model] = json.loads(get(server, "/models/index.json")[1])
    assert model == {"name": "nano one", "url": "/models/nano%20one/", "bytes": None, "chat": False, "facts": None}
    assert get(server, "/models/other/model.onnx")[0].status == 404


def test_a_gguf_file_is_mounted_and_listed_and_nothing_beside_it_is_served(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "files/a model.gguf"
    file.parent.mkdir()
    data = gguf_file({"general.architecture": "llama", "tokenizer.chat_template": "{{ messages }}"})
    file.write_bytes(data)
    (file.parent / "secret.gguf").write_bytes(data)
    url = "/models/a%20model.gguf"
    with serving(folder, {file.name: file}, digests=Digests(tmp_path / "kept")) as server:
        assert get(server, url)[1] == data
        response, body = get(server, url, {"Range": "bytes=4-7"})
        assert (response.status, body) == (206, data[4:8])
        assert response.headers["Content-Security-Policy"] == "sandbox; default-src 'none'"
        [model] = json.loads(get(server, "/models/index.json")[1])
        assert model == {"name": "a model", "url": url, "bytes": len(data), "chat": True, "facts": None}
        assert json.loads(get(server, f"{url}.shards.json")[1])["size"] == len(data)
        for path in (f"{url}/", f"{url}/secret.gguf", "/models/secret.gguf", "/models/secret.gguf.shards.json"):
            assert get(server, path)[0].status == 404


def test_the_shards_of_a_gguf_file_are_served_with_it(folder: Path, tmp_path: Path) -> None:
    """Whichever was named; other files beside it are not, and the first one has the chat template."""
    first = gguf_file({"general.architecture": "llama", "tokenizer.chat_template": "{{ messages }}"})
    data = [first, gguf_file({}), gguf_file({"general.alignment": 64})]
    names = [f"model-0000{number}-of-00003.gguf" for number in (1, 2, 3)]
    for name, content in zip(names, data, strict=True):
        (tmp_path / name).write_bytes(content)
    for other in ("other-00001-of-00003.gguf", "model-00001-of-00002.gguf", "model-of-00003.gguf"):
        (tmp_path / other).write_bytes(first)
    named = tmp_path / names[1]
    with serving(folder, {named.name: named}) as server:
        for name, content in zip(names, data, strict=True):
            assert get(server, f"/models/{name}")[1] == content
        for other in ("other-00001-of-00003.gguf", "model-00001-of-00002.gguf", "model-of-00003.gguf"):
            assert get(server, f"/models/{other}")[0].status == 404
        [model] = json.loads(get(server, "/models/index.json")[1])
        assert (model["bytes"], model["chat"]) == (sum(map(len, data)), True)


def test_a_shard_that_leads_out_of_the_folder_is_none(folder: Path, tmp_path: Path) -> None:
    """The named file may be a link, which its user knows."""
    (tmp_path / "files").mkdir()
    (tmp_path / "elsewhere.gguf").write_bytes(b"GGUF")
    named, other = (tmp_path / f"files/q-0000{number}-of-00002.gguf" for number in (1, 2))
    named.symlink_to(tmp_path / "elsewhere.gguf")
    other.symlink_to(tmp_path / "secret.txt")
    with serving(folder, {named.name: named}, digests=Digests(tmp_path / "kept")) as server:
        assert get(server, f"/models/{named.name}")[1] == b"GGUF"
        for path in (f"/models/{other.name}", f"/models/{other.name}.shards.json"):
            assert get(server, path)[0].status == 404


def test_a_file_that_may_not_be_read_is_none(folder: Path, server: SiteServer, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "loop.bin").symlink_to(folder / "loop.bin")
    assert get(server, "/loop.bin")[0].status == 404
    monkeypatch.setattr(Path, "open", refused_open)
    assert get(server, "/data.bin")[0].status == 404


def refused_open(*_: object) -> None:
    raise PermissionError(13, "Permission denied")


def test_other_methods_are_refused(server: SiteServer) -> None:
    assert get(server, "/data.bin", method="POST")[0].status == 501


@pytest.mark.parametrize("path", ["/sub/", "/large.bin"])
def test_a_client_that_is_gone_is_no_error(
    path: str, folder: Path, server: SiteServer, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "large.bin").write_bytes(bytes(8 << 20))  # More than the sockets hold: it goes away during the answer.
    before = set(threading.enumerate())
    with socket.create_connection(("127.0.0.1", server.server_address[1]), timeout=60) as client:
        client.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        assert client.recv(1) == b"H"
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # Closing resets.
    deadline = time.monotonic() + 60
    while not set(threading.enumerate()) <= before:
        assert time.monotonic() < deadline, "the connection's thread did not end"
        time.sleep(0.01)
    assert capsys.readouterr().err == ""


def test_a_taken_port_names_the_option(server: SiteServer, folder: Path) -> None:
    port = server.server_address[1]
    with pytest.raises(CommandError, match=rf"port {port} on 127.0.0.1 is taken: .*--port"):
        SiteServer(folder, {}, port=port)
