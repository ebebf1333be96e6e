"""The pages of `build.py dist` work on any web server: in a sub-folder, without the isolation headers."""

from __future__ import annotations

import json
import shutil
import subprocess
import tarfile
from argparse import ArgumentTypeError
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from buildtools import ROOT, SITE, compressed
from buildtools.commands import dist
from buildtools.environment import run_tool
from buildtools.site import ORT_FILES, PYODIDE_FILES, assemble
from capstan_host.model_arguments import BUNDLED
from capstan_host.site_server import serving
from tests.plain_server import serving_plainly

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


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A web server's root with a static folder in it, some/folder/."""
    root = tmp_path_factory.mktemp("www")
    assemble()
    dist.static_folder(root / "some/folder")
    return root


@pytest.fixture(scope="module")
def published(root: Path) -> Iterator[str]:
    """The address of the static folder on a plain web server."""
    with serving_plainly(root) as url:
        yield f"{url}some/folder/"


@pytest.mark.extended
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
        on_cpu["adapter"] == "cpu (wasm, 1 thread: no memory is shared, because the page is not cross-origin isolated)"
    )
    assert errors == []


def test_a_site_whose_address_is_known_has_a_preview_by_whole_addresses(tmp_path: Path) -> None:
    page = Path(shutil.copy(ROOT / "web/demo/index.html", tmp_path))
    url = dist.site_url("https://models.example/capstan")
    dist.write_address(page, url)
    text = page.read_text()
    assert '<meta property="og:url" content="https://models.example/capstan/" />' in text
    assert '<meta property="og:image" content="https://models.example/capstan/icons/preview.png" />' in text
    with pytest.raises(ArgumentTypeError, match="'models.example' is no address"):
        dist.site_url("models.example")


@pytest.mark.extended
def test_a_server_with_brotli_sends_the_snapshot_so(browser: Browser, root: Path) -> None:
    base = root / "some/folder/capstan"
    for file in (base / "python.json", *base.glob("*.raw")):
        run_tool(["node", compressed.SCRIPT, json.dumps([[str(file), str(file)]]), "1"], "install Node")
    page = browser.new_page()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url.rpartition(".")[2]))
    with serving(root, {}) as server:
        page.goto(f"{server.url}some/folder/licence.txt")
        script = """async (base) => {
          const { Client } = await import(base + "capstan/capstan.js");
          const client = await Client.start();
          client.close();
          return client.readiness.python;
        }"""
        assert page.evaluate(script, f"{server.url}some/folder/") == "snapshot"
    page.close()
    for form in (*base.glob("*.br"), *base.glob("*.gz")):
        form.unlink()
    assert ("raw" in asked, "snapshot" in asked) == (True, False)


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked tarball."""
    folder = tmp_path_factory.mktemp("npm")
    assemble()
    with tarfile.open(dist.npm_package(folder)) as archive:
        archive.extractall(folder, filter="data")
    return folder / "package"


COMPLETE = """async (module) => {
  const { Capstan } = await import(module);
  const llm = await Capstan.load("model/", { device: "wasm" });
  const { text, tokenIds } = await llm.complete("def f(", { maxTokens: 3, temperature: 0 }).result;
  const { python } = llm.stats();
  const missing = await Capstan.load("model/", { assetsUrl: "nowhere/" }).catch((error) => [error.code, error.message]);
  llm.close();
  return { text, count: tokenIds.length, python, missing };
}"""


@pytest.mark.extended
def test_the_package_works_from_another_origin_and_tells_where_it_is_not(
    browser: Browser, package: Path, tmp_path: Path
) -> None:
    (tmp_path / "index.html").write_text("<!doctype html><title>page</title>")
    (tmp_path / "model").symlink_to(BUNDLED)
    page = browser.new_page()
    with serving_plainly(package, any_origin=True) as cdn, serving_plainly(tmp_path) as url:
        page.goto(url)
        found = page.evaluate(COMPLETE, f"{cdn}index.js")
        page.close()
    assert (found["count"], found["python"]) == (3, "snapshot")
    assert found["text"]
    code, message = found["missing"]
    assert code == "StartError"
    assert message.startswith(f"the worker failed: {url}nowhere/worker.js cannot be loaded (HTTP 404); ")
    assert message.endswith("(npx capstan-webgpu copy DIRECTORY) and give its address as assetsUrl")


TYPED = """import { Capstan, CapstanError, type LoadProgress, type RunResult } from "capstan-webgpu";
import { capstanModel } from "capstan-webgpu/ai";
import { Agent } from "capstan-webgpu/agent";
import "capstan-webgpu/chat";
import { install, LanguageModel } from "capstan-webgpu/prompt-api";
const onProgress = ({ status, total }: LoadProgress) => console.log(status.length, total + 1);
const llm: Capstan = await Capstan.load("model/", { onProgress });
const run = llm.chat([{ role: "user", content: "hello" }], { temperature: 0.7, stop: [";"] });
for await (const part of run) console.log(part.length);
const result: RunResult = await run.result;
console.log(result.tokenIds.length, llm.stats().runs, new CapstanError({ type: "a", message: "b" }).code);
console.log(capstanModel(llm).modelId.length, document.querySelector("capstan-chat")!.messages.length);
const talk: LanguageModel = await LanguageModel.create({ initialPrompts: [{ role: "system", content: "be" }] });
console.log(install({ model: "model/", force: true }), (await talk.prompt("hello")).length);
for await (const { calls } of new Agent(llm, { page: undefined, mcp: ["mcp/"] }).run("hi")) console.log(calls.length);
// @ts-expect-error the version of the AI SDK's specification
capstanModel(llm).specificationVersion satisfies "v3";
// @ts-expect-error an option that there is not
llm.chat([], { max_tokens: 1 });
"""


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("module", "resolution"), [("esnext", "bundler"), ("node16", "node16"), ("nodenext", "nodenext")]
)
def test_the_packages_types_are_whole(module: str, resolution: str, package: Path, tmp_path: Path) -> None:
    (tmp_path / "node_modules").mkdir()
    (tmp_path / "node_modules/capstan-webgpu").symlink_to(package)
    (tmp_path / "node_modules/@ai-sdk").symlink_to(ROOT / "node_modules/@ai-sdk")
    # The AI SDK's types take these from a package whose own types it does not bring.
    schema = "export type JSONSchema7 = object; export type JSONSchema7Definition = object | boolean;"
    (tmp_path / "schema.d.ts").write_text(f'declare module "json-schema" {{ {schema} }}')
    (tmp_path / "page.ts").write_text(TYPED)
    (tmp_path / "package.json").write_text('{"type": "module"}')
    tsc = [str(ROOT / "node_modules/.bin/tsc"), "--noEmit", "--strict", "--exactOptionalPropertyTypes"]
    flags = ["--preserveSymlinks", "--target", "es2022", "--module", module, "--moduleResolution", resolution]
    flags += ["--types", ""]
    lib = ["--lib", "ES2024,DOM,DOM.Iterable,DOM.AsyncIterable"]
    done = subprocess.run([*tsc, *flags, *lib, "schema.d.ts", "page.ts"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_the_copy_command_brings_every_file(package: Path, tmp_path: Path) -> None:
    def copy(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = ["node", str(package / "bin/capstan-webgpu.mjs"), *arguments]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)

    done = copy("copy", "public/")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"copied to {Path('public/capstan')}\n", "")

    def names(folder: Path) -> set[str]:
        return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}

    assert names(tmp_path / "public/capstan") == names(package / "capstan")
    for wrong in ([], ["copy"], ["move", "public/"], ["copy", "a", "b"]):
        done = copy(*wrong)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith("usage: capstan-webgpu copy DIRECTORY")
    (tmp_path / "file").write_text("")
    done = copy("copy", "file")
    assert done.returncode == 1
    assert "cannot be written" in done.stderr


def test_the_npm_package_holds_the_library_its_types_and_every_licence(package: Path) -> None:
    names = {path.relative_to(package).as_posix() for path in package.rglob("*") if path.is_file()}
    manifest = json.loads((package / "package.json").read_text())
    pyodide = package / "capstan/pyodide/pyodide.asm.wasm"
    assert pyodide.read_bytes() == (ROOT / "node_modules/pyodide/pyodide.asm.wasm").read_bytes()
    python = json.loads((SITE / "capstan/python.json").read_text())
    assert python["vendored"].keys() == {"numpy", "PIL", "silero_vad"}
    files = {
        "index.js",
        "ai.js",
        "agent.js",
        "mcp.js",
        "types/agent.d.ts",
        "chat.js",
        "prompt-api.js",
        "types/ai.d.ts",
        "types/prompt_api.d.ts",
        "types/chat.d.ts",
        "bin/capstan-webgpu.mjs",
        "capstan/capstan.js",
        "capstan/worker.js",
        "capstan/python.json",
        "types/capstan.d.ts",
        "LICENSE",
    }
    files |= {"THIRD_PARTY_NOTICES.md", "onnxruntime-ThirdPartyNotices.txt"}
    files |= {f"capstan/ort/{name}" for name in ORT_FILES} | {f"capstan/pyodide/{name}" for name in PYODIDE_FILES}
    files |= {
        f"capstan/{name}" for name in [*python["wheels"], *python["vendored"].values(), python["snapshot"]["file"]]
    }
    assert files <= names
    assert (manifest["name"], manifest["license"]) == ("capstan-webgpu", "MIT")
    assert manifest["exports"]["."]["default"].removeprefix("./") in names
    assert "private" not in manifest


CONTROLLED = """() => navigator.serviceWorker.ready.then(
  ({ active }) => active.state === "activated" || new Promise((go) => active.addEventListener("statechange", go)))"""
SPEAK = """async () => {
  const { Capstan } = await import("./capstan/capstan.js");
  const llm = await Capstan.load("models/bundled/", { device: "wasm" });
  const { tokenIds } = await llm.complete("def f(", { maxTokens: 3, temperature: 0 }).result;
  llm.close();
  return tokenIds;
}"""


@pytest.mark.extended
def test_a_second_visit_needs_no_network(browser: Browser, root: Path) -> None:
    context = browser.new_context()
    with serving_plainly(root) as server:
        url = f"{server}some/folder/"
        first = context.new_page()
        first.goto(url)
        told = first.evaluate(SPEAK)
        first.evaluate(CONTROLLED)
        first.close()
    second = context.new_page()
    second.goto(f"{url}?later")
    assert second.evaluate(SPEAK) == told
    context.close()
