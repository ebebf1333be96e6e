"""What `build.py dist` writes works on any web server: in a sub-folder, without the isolation headers."""

from __future__ import annotations

import json
import tarfile
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from buildtools import ROOT, SITE
from buildtools.commands import dist
from buildtools.site import ORT_FILES, PYODIDE_FILES, assemble

GENERATE = """async (base) => {
  const { Client } = await import(base + 'capstan/capstan.js');
  const capstan = await Client.start();
  const request = { kind: 'generate', model: base + 'models/bundled/', dtype: null, device: 'webgpu', capture: 'tape',
    run_ahead: null, prompt: 'def f(', prompt_ids: null, max_new_tokens: 3, search: { do_sample: false } };
  const reply = await capstan.request(request);
  const onCpu = await capstan.request({ ...request, device: 'wasm' });
  capstan.close();
  return { isolated: crossOriginIsolated, reply, onCpu };
}"""


class PlainHandler(SimpleHTTPRequestHandler):
    """Python's own file server: no isolation headers, no byte ranges."""

    def log_message(self, format: str, *args: object) -> None:
        """Keep the test's output clean."""


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a static folder inside a plain web server's root."""
    root = tmp_path_factory.mktemp("www")
    assemble()
    dist.static_folder(root / "some/folder")
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(PlainHandler, directory=str(root))) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/some/folder/"
        server.shutdown()


def test_the_static_folder_generates_without_isolation(browser: Browser, published: str) -> None:
    page = browser.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(published)
    answer = page.evaluate(GENERATE, published)
    page.close()
    assert answer["isolated"] is False
    assert answer["reply"]["ok"], answer["reply"]
    result = answer["reply"]["result"]
    assert (len(result["token_ids"]), result["capture"], result["capture_note"]) == (3, "tape", None)
    assert answer["onCpu"]["ok"], answer["onCpu"]
    on_cpu = answer["onCpu"]["result"]
    assert on_cpu["token_ids"] == result["token_ids"]
    assert (
        on_cpu["adapter"] == "cpu (wasm, 1 thread: no memory is shared, as in pages that are not cross-origin isolated)"
    )
    assert errors == []


def test_the_npm_package_holds_the_library_its_types_and_every_licence(tmp_path: Path) -> None:
    assemble()
    with tarfile.open(dist.npm_package(tmp_path)) as archive:
        names = {name.removeprefix("package/") for name in archive.getnames()}
        manifest = json.load(archive.extractfile("package/package.json") or pytest.fail("no package.json"))
        pyodide = archive.extractfile("package/capstan/pyodide/pyodide.asm.wasm")
        assert pyodide is not None
        assert pyodide.read() == (ROOT / "node_modules/pyodide/pyodide.asm.wasm").read_bytes()
    python = json.loads((SITE / "capstan/python.json").read_text())
    assert python["vendored"].keys() == {"numpy"}
    files = {"capstan/capstan.js", "capstan/worker.js", "capstan/python.json", "types/capstan.d.ts", "LICENSE"}
    files |= {"THIRD_PARTY_NOTICES.md", "onnxruntime-ThirdPartyNotices.txt"}
    files |= {f"capstan/ort/{name}" for name in ORT_FILES} | {f"capstan/pyodide/{name}" for name in PYODIDE_FILES}
    files |= {
        f"capstan/{name}" for name in [*python["wheels"], *python["vendored"].values(), python["snapshot"]["file"]]
    }
    assert files <= names
    assert (manifest["name"], manifest["license"]) == ("capstan-webgpu", "MIT")
    assert manifest["exports"]["."]["default"].removeprefix("./") in names
    assert "private" not in manifest
