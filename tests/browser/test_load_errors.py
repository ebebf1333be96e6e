"""Errors of `Capstan.load` offline, without WebGPU, for wrong addresses and under strict policies: with remedies."""

from __future__ import annotations

import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, Route

from buildtools.site import assemble
from capstan_host.testing.harness import before_worker
from tests.browser.model_variants import LLAMA
from tests.plain_server import PlainHandler, serving_plainly

LOAD = """async ([method, model, options]) => {
  const { Capstan, CapstanError } = await import("/capstan/capstan.js");
  try {
    (await Capstan[method](model, options)).close();
    return ["loaded", ""];
  } catch (error) {
    return [error instanceof CapstanError ? error.code : "another error", error.message];
  }
}"""
PAGE = b"<!doctype html><title>A page</title>"
STATUS = {"app": 200, "login": 401, "broken": 500}
"""The folders that the server answers for with a page and this status."""
ENOUGH = "default-src 'self'; script-src 'self' 'wasm-unsafe-eval'"
"""The least policy under which a model of the page's own origin loads."""


class Handler(PlainHandler):
    """Serves files, each under a policy, and pages where an app, a login or a broken server would answer."""

    policy = ""

    def end_headers(self) -> None:
        if self.policy:
            self.send_header("Content-Security-Policy", self.policy)
        self.send_header("Cache-Control", "no-store")
        super().end_headers()

    def do_GET(self) -> None:
        status = STATUS.get(self.path.split("/")[1])
        if status is None:
            super().do_GET()
        else:
            self.send_response(status)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(PAGE)))
            self.end_headers()
            self.wfile.write(PAGE)


class Quiet(ThreadingHTTPServer):
    """A page that is closed breaks requests off."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Keep the test's output clean."""


@dataclass
class Places:
    """A server of the package and a model, and the address of one that no page of another origin may read."""

    handler: type[Handler]
    own: str
    other: str
    unused: str
    """An address at which no server answers."""
    folder: Path
    """The folder of `own`."""

    def named(self, text: str) -> str:
        """A text with the addresses in place of the fields' names in capitals."""
        return text.replace("OWN", self.own).replace("OTHER", self.other).replace("UNUSED", self.unused)


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Places]:
    folder: Path = tmp_path_factory.mktemp("load_errors")
    (folder / "capstan").symlink_to(assemble() / "capstan")
    (folder / "model").symlink_to(LLAMA)
    (folder / "page.html").write_bytes(PAGE)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        unused = f"http://127.0.0.1:{free.getsockname()[1]}"
    handler = type("Changed", (Handler,), {})
    with (
        serving_plainly(folder) as other,
        Quiet(("127.0.0.1", 0), partial(handler, directory=str(folder))) as server,
    ):
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield Places(handler, f"http://127.0.0.1:{server.server_address[1]}", other.rstrip("/"), unused, folder)
        server.shutdown()


@pytest.fixture
def context(browser: Browser, places: Places) -> Iterator[BrowserContext]:
    places.handler.policy = ""
    with browser.new_context() as context:
        yield context


def refused(page: Page, model: str, device: str = "wasm", method: str = "load", **options: Any) -> str:
    """The code and the message of a load's error; 'loaded: ' without one."""
    given = {**options, "device": device} if method == "load" else options
    code, message = page.evaluate(LOAD, [method, model, given])
    assert "Traceback" not in message
    assert "\n" not in message
    return f"{code}: {message}"


def opened(context: BrowserContext, places: Places) -> Page:
    page = context.new_page()
    page.goto(f"{places.own}/page.html")
    page.evaluate("async () => void (await import('/capstan/capstan.js'))")
    return page


ADDRESS = "check the model's address: a folder with genai_config.json or config.json, or a GGUF file"


@pytest.mark.one_in(5)
@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("OWN/none/", f"OWN/none/genai_config.json cannot be read (HTTP 404); {ADDRESS}"),
        ("OWN/none.gguf", "OWN/none.gguf: the weights cannot be read (HTTP 404); check the file's address"),
        (
            "OWN/app/model/",
            "OWN/app/model/genai_config.json: the server answers with an HTML page, as for addresses that it does not "
            f"know; {ADDRESS}",
        ),
        (
            "OWN/login/model/",
            "OWN/login/model/genai_config.json cannot be read (HTTP 401); sign in to its server, or have it give the "
            "model's files without a login",
        ),
        (
            "OWN/broken/model/",
            "OWN/broken/model/genai_config.json: the server answered HTTP 500; try again later (tried 3",
        ),
        (
            "UNUSED/model/",
            "UNUSED/model/genai_config.json cannot be fetched (no server answers at UNUSED); check the address and the "
            "network (tried 3 times)",
        ),
        (
            "https://models.invalid/model/",
            "https://models.invalid/model/genai_config.json cannot be fetched (no server answers at "
            "https://models.invalid); check the address and the network (tried 3 times)",
        ),
        (
            "OTHER/model/",
            "OTHER/model/genai_config.json cannot be fetched (its server answers, but does not allow pages of OWN); "
            "have it send Access-Control-Allow-Origin (CORS), or serve the files from OWN (tried 3 times)",
        ),
    ],
)
def test_a_wrong_address_is_named(model: str, message: str, context: BrowserContext, places: Places) -> None:
    found = refused(opened(context, places), places.named(model))
    assert found.startswith(places.named(f"ModelFileError: {message}")), found


@pytest.mark.one_in
@pytest.mark.parametrize(
    ("method", "rest"), [("loadEmbedder", ""), ("loadReranker", ""), ("loadVoice", " and voices/")]
)
def test_other_kinds_of_models_are_named_too(method: str, rest: str, context: BrowserContext, places: Places) -> None:
    assert refused(opened(context, places), f"{places.own}/none/", method=method) == (
        f"ModelFileError: {places.own}/none/config.json is missing; check the model's address, or put the file beside "
        f"tokenizer.json{rest}"
    )


OFFLINE = "(this device is offline); connect it to a network, and load again"


def test_offline_is_called_so(context: BrowserContext, places: Places) -> None:
    page = opened(context, places)
    context.set_offline(True)
    worker = f"{places.own}/capstan/worker.js cannot be loaded {OFFLINE}"
    assert refused(page, f"{places.own}/model/") == f"StartError: the worker failed: {worker}"

    def kept(route: Route) -> None:
        route.fulfill(path=assemble() / route.request.url.removeprefix(f"{places.own}/"))

    context.route(f"{places.own}/capstan/**", kept)
    config = f"{places.own}/model/genai_config.json cannot be fetched {OFFLINE}"
    assert refused(page, f"{places.own}/model/") == f"ModelFileError: {config} (tried 3 times)"
    hub = f"the hub https://huggingface.co cannot be asked for owner/name at main {OFFLINE}"
    assert refused(page, "owner/name") == f"ModelFileError: {hub} (tried 3 times)"


def test_a_page_of_https_says_that_it_cannot_read_http(browser: Browser, places: Places, tmp_path: Path) -> None:
    files = [str(tmp_path / name) for name in ("key.pem", "certificate.pem")]
    made = ["-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost"]
    subprocess.run(["openssl", "req", *made, "-keyout", files[0], "-out", files[1]], check=True, capture_output=True)
    secure = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    secure.load_cert_chain(files[1], files[0])
    handler = partial(places.handler, directory=str(places.folder))
    with (
        Quiet(("127.0.0.1", 0), handler) as server,
        browser.new_context(ignore_https_errors=True) as context,
    ):
        server.socket = secure.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        page = context.new_page()
        page.goto(f"https://localhost:{server.server_address[1]}/page.html")
        config = "http://models.example/model/genai_config.json cannot be fetched"
        why = "(a page of https: cannot read an address of http:); serve the files over https: (tried 3 times)"
        assert refused(page, "http://models.example/model/", "webgpu") == f"ModelFileError: {config} {why}"
        server.shutdown()


NO_WEBGPU = "Object.defineProperty(navigator, 'gpu', { value: undefined, configurable: true });"
INSECURE = "Object.defineProperty(self, 'isSecureContext', { value: false });"
OTHERS = 'use the device "auto" or "wasm", or'


@pytest.mark.one_in
@pytest.mark.parametrize(
    ("script", "message"),
    [
        (NO_WEBGPU, f"this browser has no WebGPU; {OTHERS} a browser with WebGPU"),
        (NO_WEBGPU + INSECURE, f"a page of OWN has no WebGPU; {OTHERS} serve the page over https: or from localhost"),
        (
            "GPU.prototype.requestAdapter = async () => null;",
            f"this browser offers no GPU adapter; {OTHERS} turn on graphics acceleration in the browser's settings",
        ),
    ],
)
def test_without_webgpu_the_reason_is_named(script: str, message: str, context: BrowserContext, places: Places) -> None:
    before_worker(context, script)
    page = opened(context, places)
    wanted = places.named(f'DeviceUnavailableError: the device "webgpu" was requested, but {message}')
    assert refused(page, f"{places.own}/model/", "webgpu") == wanted
    assert refused(page, f"{places.own}/model/", "auto") == "loaded: "


SENT = "the Content-Security-Policy sent with /capstan/worker.js"


@pytest.mark.one_in
@pytest.mark.parametrize(
    ("policy", "model", "message"),
    [
        (
            "script-src 'self'",
            "OWN/model/",
            f"StartError: {SENT} forbids WebAssembly; add 'wasm-unsafe-eval' to its sc",
        ),
        (
            "default-src 'self'",
            "OWN/model/",
            f"StartError: {SENT} forbids WebAssembly; add 'wasm-unsafe-eval' to its sc",
        ),
        (
            "worker-src 'none'",
            "OWN/model/",
            "StartError: the worker failed: OWN/capstan/worker.js cannot be loaded (the page's Content-Security-Policy "
            "forbids it); add 'self' to its worker-src",
        ),
        (
            "connect-src 'none'",
            "OWN/model/",
            f"StartError: OWN/capstan/python.json cannot be fetched ({SENT} forbids it); add 'self' to its connect-src",
        ),
        (
            ENOUGH,
            "https://models.example/model/",
            f"ModelFileError: https://models.example/model/genai_config.json cannot be fetched ({SENT} forbids it); "
            "add https://models.example to its connect-src",
        ),
        (
            ENOUGH,
            "owner/name",
            "ModelFileError: the hub https://huggingface.co cannot be asked for owner/name at main "
            f"({SENT} forbids it); add https://huggingface.co to its connect-src",
        ),
        (ENOUGH, "OWN/model/", "loaded: "),
    ],
)
def test_a_policy_is_named_with_what_it_has_to_allow(
    policy: str, model: str, message: str, context: BrowserContext, places: Places
) -> None:
    places.handler.policy = policy
    found = refused(opened(context, places), places.named(model))
    assert found.startswith(places.named(message)), found
