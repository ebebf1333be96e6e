"""Cross-Origin Storage: what one site downloaded from a hub, another site takes from there. The API is a shim in the
pages, in the form of the explainer's cross-origin-storage.d.ts; this process keeps its files for both sites."""

from __future__ import annotations

import hashlib
from base64 import b64decode, b64encode
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext

from buildtools.site import assemble
from capstan_host.headless.static_server import running
from capstan_host.site_server import SiteServer
from tests import oracle
from tests.browser.hub_server import HubServer, Repository, running_hub
from tests.browser.model_variants import LLAMA
from tests.repository_layout import lay_out

SHIM = """(method) => {
  const bytes = (text) => Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  const text = async (blob) => {
    let all = "";
    for (const byte of new Uint8Array(await blob.arrayBuffer())) all += String.fromCharCode(byte);
    return btoa(all);
  };
  const crossOriginStorage = {
    async [method]({ algorithm, value }, { create = false, origins = null } = {}) {
      if (algorithm !== "SHA-256" || !/^[0-9a-f]{64}$/.test(value)) throw new TypeError("no hash");
      const { file, failure } = await crossOriginFile(value, create);
      if (failure) throw new DOMException("it was refused", failure);
      return {
        getFile: async () => new File([bytes(file)], "file"),
        createWritable: async () => {
          const parts = [];
          return {
            write: async (part) => void parts.push(part),
            close: async () => {
              if (!(await keepCrossOriginFile(value, await text(new Blob(parts)), origins)))
                throw new DOMException("the bytes have another hash", "DataError");
            },
          };
        },
      };
    },
  };
  Object.defineProperty(navigator, "crossOriginStorage", { value: crossOriginStorage, configurable: true });
}"""


@dataclass
class CrossOriginFiles:
    """The browser's files for all sites, by SHA-256, and who may read them."""

    files: dict[str, bytes] = field(default_factory=dict)
    origins: dict[str, Any] = field(default_factory=dict)
    failure: str | None = None
    """The name of the DOMException of each call."""

    def find(self, value: str, create: bool) -> dict[str, str | None]:
        failure = self.failure or (None if create or value in self.files else "NotFoundError")
        return {"file": b64encode(self.files.get(value, b"")).decode(), "failure": failure}

    def keep(self, value: str, text: str, origins: Any) -> bool:
        data = b64decode(text)
        if hashlib.sha256(data).hexdigest() != value:
            return False
        self.files[value], self.origins[value] = data, origins
        return True


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubServer]:
    folder = lay_out(LLAMA, tmp_path_factory.mktemp("hub") / "nano")
    with running_hub({"nano/llama": Repository(folder), "nano/private": Repository(folder, private=True)}) as server:
        yield server


@pytest.fixture(scope="module")
def sites() -> Iterator[list[str]]:
    """Two sites with Capstan."""
    with running(SiteServer(assemble(), {})) as one, running(SiteServer(assemble(), {})) as other:
        yield [one.url, other.url]


@pytest.fixture
def storage() -> CrossOriginFiles:
    return CrossOriginFiles()


@pytest.fixture
def visitor(browser: Browser, hub: HubServer, storage: CrossOriginFiles) -> Iterator[BrowserContext]:
    hub.requests.clear()
    context = browser.new_context()
    context.expose_function("crossOriginFile", storage.find)
    context.expose_function("keepCrossOriginFile", storage.keep)
    yield context
    context.close()


LOAD = """async ([model, options]) => {
  const { Capstan } = await import("/capstan/capstan.js");
  const told = [];
  const onEvent = ({ kind, text }) => kind === "stderr" && told.push(text);
  const llm = await Capstan.load(model, { device: "wasm", onEvent, ...options });
  const { tokenIds } = await llm.complete([5, 6, 7, 8, 9], { maxTokens: 12, temperature: 0 }).result;
  const { stdout } = await llm.python("from capstan.fallback import fallbacks\\nprint(list(fallbacks()))");
  window.llm = llm;
  return [tokenIds, llm.stats().crossOriginBytes, stdout + told.join("")];
}"""


def visit(visitor: BrowserContext, site: str, hub: HubServer, *, method: str | None, **options: Any) -> Any:
    """Load the model in a new page of the site; bytes that Cross-Origin Storage had, and what was reported."""
    page = visitor.new_page()
    if method:
        page.add_init_script(f"({SHIM})({method!r})")
    page.goto(site + "blank.html")
    given = {"hub": hub.url, "crossOriginStorage": True, **options}
    ids, taken, told = page.evaluate(LOAD, [given.pop("model", "nano/llama"), given])
    assert ids == oracle.greedy(LLAMA, [5, 6, 7, 8, 9], 12)
    return page, taken, told


def weights_sent(hub: HubServer) -> int:
    """How many requests for data files were answered."""
    parts = {digest for digest, file in hub.cdn.files.items() if ".onnx_data" in file.name}
    return sum(request.path.strip("/") in parts for request in hub.requests if request.server == "cdn")


def parts_of(hub: HubServer) -> dict[str, bytes]:
    paths: list[Path] = sorted(hub.repositories["nano/llama"].folder.glob("onnx/*.onnx_data*"))
    return {hashlib.sha256(data).hexdigest(): data for data in (path.read_bytes() for path in paths)}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("method", ["getFileHandle", "requestFileHandle"])
def test_what_one_site_downloaded_another_takes_without_a_byte_of_the_hub(
    method: str, visitor: BrowserContext, sites: list[str], hub: HubServer, storage: CrossOriginFiles
) -> None:
    page, taken, told = visit(visitor, sites[0], hub, method=method)
    assert (taken, told.strip()) == (0, "[]")
    assert weights_sent(hub) > 0
    parts = parts_of(hub)
    page.wait_for_function("() => true")
    for _ in range(100):
        if storage.files == parts:
            break
        page.wait_for_timeout(50)
    assert storage.files == parts
    assert set(storage.origins.values()) == {"*"}
    hub.requests.clear()
    _, taken, told = visit(visitor, sites[1], hub, method=method)
    assert weights_sent(hub) == 0
    assert (taken, told.strip()) == (sum(map(len, parts.values())), "[]")
    _, taken, _ = visit(visitor, sites[1], hub, method=method)
    assert taken == 0, "the site keeps them itself"


FAILURES = {
    "refused": ("getFileHandle", "NotAllowedError", "Cross-Origin Storage: NotAllowedError: it was refused"),
    "missing": (None, None, "Cross-Origin Storage: this browser has no navigator.crossOriginStorage"),
    "other bytes": ("getFileHandle", None, "its file has SHA-256"),
    "other sizes": ("getFileHandle", None, "and the hub lists"),
}


@pytest.mark.parametrize("what", FAILURES)
def test_a_storage_that_fails_is_told_and_the_hub_gives_the_weights(
    what: str, visitor: BrowserContext, sites: list[str], hub: HubServer, storage: CrossOriginFiles
) -> None:
    method, storage.failure, said = FAILURES[what]
    for digest, data in parts_of(hub).items():
        storage.files[digest] = bytes(len(data) - (what == "other sizes")) if what.startswith("other") else data
    _, taken, told = visit(visitor, sites[0], hub, method=method)
    assert taken == 0
    assert said in told
    assert weights_sent(hub) > 0


def test_without_the_option_nothing_is_looked_up_or_kept(
    visitor: BrowserContext, sites: list[str], hub: HubServer, storage: CrossOriginFiles
) -> None:
    storage.files = parts_of(hub)
    kept = dict(storage.files)
    storage.failure = "NotAllowedError"
    _, taken, told = visit(visitor, sites[0], hub, method="getFileHandle", crossOriginStorage=False)
    assert (taken, told.strip()) == (0, "[]")
    assert storage.files == kept


def test_a_file_that_needed_a_token_is_kept_for_its_site_alone(
    visitor: BrowserContext, sites: list[str], hub: HubServer, storage: CrossOriginFiles
) -> None:
    given = {"model": "nano/private", "token": "hub_reader"}
    page, _, _ = visit(visitor, sites[0], hub, method="getFileHandle", **given)
    for _ in range(100):
        if len(storage.origins) == len(parts_of(hub)):
            break
        page.wait_for_timeout(50)
    assert set(storage.origins.values()) == {None}
