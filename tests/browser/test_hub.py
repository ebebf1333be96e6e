"""Models by their hub ids, from a server that answers like the hub."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from capstan_host.testing.harness import Harness, generate_request
from tests import oracle
from tests.browser.hub_server import HubServer, Replaced, Repository, running_hub
from tests.browser.model_variants import LLAMA
from tests.browser.page_scripts import PageScripts
from tests.browser.test_cli import build_py
from tests.repository_layout import lay_out

PROMPT = [5, 6, 7, 8, 9]
REFUSED = "Failed to load resource"
"""The browser reports refusals by itself."""
PARTS = {"onnx/model_q4.onnx_data", "onnx/model_q4.onnx_data_1"}


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubServer]:
    folder = lay_out(LLAMA, tmp_path_factory.mktemp("hub") / "nano")
    (folder / "README.md").write_text("A model.")
    empty = tmp_path_factory.mktemp("hub") / "empty"
    empty.mkdir()
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        (empty / name).write_bytes((folder / name).read_bytes() if (folder / name).exists() else b"")
    repositories = {
        "nano/llama": Repository(folder),
        "nano/untold": Repository(folder, commit="f" * 40),
        "nano/replaced": Repository(folder, commit="e" * 40),
        "nano/gated": Repository(folder, gated=True),
        "nano/private": Repository(folder, private=True),
        "nano/empty": Repository(empty),
    }
    with running_hub(repositories) as server:
        yield server


@pytest.fixture(autouse=True)
def forget(hub: HubServer) -> None:
    hub.requests.clear()
    hub.reports_sizes = True
    hub.replaced.clear()


def named(server: HubServer, repository: str, **fields: Any) -> dict[str, Any]:
    return {"repository": repository, "hub": server.url, "revision": None, "token": None, **fields}


def generated(harness: Harness, model: Any, **options: Any) -> dict[str, Any]:
    return harness.generate(model, prompt_ids=PROMPT, max_new_tokens=12, **options)


def refusal(harness: Harness, model: Any, **options: Any) -> str:
    error = harness.error(model, prompt_ids=PROMPT, device="wasm", **options)
    assert error.type == "ModelFileError", error
    assert "\n" not in error.message
    return error.message


@pytest.mark.one_in(3)
@pytest.mark.parametrize("page", ["", "tree/main/", "blob/main/model.onnx/"])
def test_the_address_of_a_repositorys_page_is_told_from_a_folder(
    page: str, hub: HubServer, harness: Harness, scripts: PageScripts
) -> None:
    scripts.expect(REFUSED)
    request = generate_request({}, prompt_ids=PROMPT, device="wasm")
    error = harness.reply({**request, "model": f"{hub.url}/nano/llama/{page}"})["error"]
    assert error["type"] == "ModelFileError"
    meant = f'for a repository of a hub give "nano/llama" as the model and "{hub.url}" as the hub'
    assert error["message"].endswith(meant), error["message"]


@pytest.mark.extended
@pytest.mark.parametrize("device", ["webgpu", "wasm"])
def test_ids_are_those_of_the_genai_folder(device: str, hub: HubServer, harness: Harness, scripts: PageScripts) -> None:
    found = generated(harness, named(hub, "nano/llama", revision="main"), device=device)
    assert found["token_ids"] == oracle.greedy(LLAMA, PROMPT, 12)
    assert device == "wasm" or (found["capture"], found["capture_note"]) == ("tape", None)


def test_the_hub_alone_is_asked_and_it_alone_sees_the_token(
    hub: HubServer, harness: Harness, scripts: PageScripts
) -> None:
    model = named(hub, "nano/private", token="hub_reader")
    assert generated(harness, model, device="wasm")["token_ids"] == oracle.greedy(LLAMA, PROMPT, 12)
    for request in hub.requests:
        if request.method != "OPTIONS":
            assert request.authorization == ("Bearer hub_reader" if request.server == "hub" else None), request
    paths = {request.path for request in hub.requests if request.server == "hub"}
    commit = hub.repositories["nano/private"].commit
    files = {"config.json", "tokenizer.json", "tokenizer_config.json", "onnx/model_q4.onnx", *PARTS}
    assert paths == {
        "/api/models/nano/private/revision/main",
        *(f"/nano/private/resolve/{commit}/{name}" for name in files),
    }


def test_without_an_id_no_hub_is_asked(hub: HubServer, harness: Harness, scripts: PageScripts) -> None:
    generated(harness, "nano-llama", device="wasm")
    assert hub.requests == []


def weights_read(hub: HubServer) -> set[str]:
    """The data files whose bytes were sent."""
    read = {request.path.strip("/") for request in hub.requests if request.server == "cdn" and request.method == "GET"}
    return {file.name for digest, file in hub.cdn.files.items() if digest in read and ".onnx_data" in file.name}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("sizes", [True, False])
def test_weights_are_stored_and_read_from_there_the_next_time(
    sizes: bool, hub: HubServer, harness: Harness, scripts: PageScripts
) -> None:
    if not sizes:
        scripts.expect("403")
    hub.reports_sizes = sizes
    model = named(hub, "nano/llama" if sizes else "nano/untold")
    harness.reply({"kind": "models", "action": "evict", "which": None})
    generated(harness, {**model, "revision": "main"}, device="wasm")
    assert weights_read(hub) == {Path(part).name for part in PARTS}
    hub.requests.clear()
    generated(harness, model, device="webgpu")
    assert weights_read(hub) == set() or not sizes
    assert any(request.range for request in hub.requests) or sizes


@pytest.mark.extended
def test_a_second_load_asks_nobody_until_the_weights_are_evicted(
    hub: HubServer, harness: Harness, scripts: PageScripts
) -> None:
    ids = oracle.greedy(LLAMA, PROMPT, 12)
    with running_hub({"nano/llama": hub.repositories["nano/llama"]}) as server:
        model = named(server, "nano/llama", revision="main")
        assert generated(harness, model, device="wasm")["token_ids"] == ids
        server.requests.clear()
        assert generated(harness, model, device="webgpu")["token_ids"] == ids
        assert server.requests == []
        assert harness.evaluate(SPOIL_KEPT, server.url) > 3
        assert generated(harness, model, device="wasm")["token_ids"] == ids, "of a model that is loaded again"
        assert server.requests, "what was kept is not what it was"
        assert harness.exec(NOT_KEPT, [], [server.url]).status == 0
        assert {request.server for request in server.requests} == {"hub", "cdn"}
    commit = {**model, "revision": hub.repositories["nano/llama"].commit}
    assert generated(harness, commit, device="wasm")["token_ids"] == ids
    evicted = harness.reply({"kind": "models", "action": "evict", "which": f"{server.url}/nano/llama"})
    small = ("config.json", "tokenizer.json", "tokenizer_config.json", "onnx/model_q4.onnx")
    folder = hub.repositories["nano/llama"].folder
    assert evicted["result"]["freed"] > sum((folder / name).stat().st_size for name in (*small, *PARTS))
    scripts.expect(REFUSED)
    assert "cannot be asked for nano/llama at main" in refusal(harness, model)


SPOIL_KEPT = """async (hub) => {
  const cache = await caches.open("capstan-repositories");
  const kept = (await cache.keys()).filter(({ url }) => url.startsWith(hub));
  for (const request of kept) {
    const found = await cache.match(request);
    await cache.put(request, new Response((await found.text()).replaceAll("0", "1"), found));
  }
  return kept.length;
}"""
"""Change the bytes of all that is kept of a hub."""
NOT_KEPT = """
import sys, capstan
repository = capstan.HubRepository("nano/llama", sys.argv[1])
model = await capstan.Model.load(repository, device="wasm", disable_file_mapped_weights=True)
await model.aclose()
"""


ZEROS = bytes(1 << 20)
OTHER_BYTES: dict[str, tuple[str, Replaced, str]] = {
    "far too many": ("config.json", Replaced(ZEROS, 1500), r"more than the \d+ bytes came that are listed"),
    "one too few": (
        "tokenizer_config.json",
        Replaced(b"{}"),
        r"2 bytes came, but \d+ are listed; nothing of it is kept",
    ),
    "a large file's": ("tokenizer.json", Replaced(ZEROS, 1500), r"more than the \d+ bytes came that are listed"),
    "other ones": ("tokenizer.json", Replaced(b""), r"\d+ bytes came with SHA-256 \w+, but \w+ is listed"),
    "packed ones": (
        "tokenizer.json",
        Replaced(gzip.compress(ZEROS * 100), headers={"Content-Encoding": "gzip"}),
        "more than 67108864 bytes; at most 67108864 are read of such a file",
    ),
}


@pytest.mark.extended
def test_other_bytes_than_a_hub_lists_are_refused_at_the_first_too_many(
    hub: HubServer, harness: Harness, scripts: PageScripts
) -> None:
    scripts.expect(REFUSED)
    model = named(hub, "nano/replaced")
    tokenizer = (hub.repositories["nano/replaced"].folder / "tokenizer.json").read_bytes()
    OTHER_BYTES["other ones"][1].data = tokenizer.replace(b"0", b"1")
    for what, (name, replaced, said) in OTHER_BYTES.items():
        hub.replaced = hub.cdn.replaced = {name: replaced}
        hub.reports_sizes = what != "packed ones"
        harness.reply({"kind": "models", "action": "evict", "which": f"{hub.url}/nano/replaced"})
        assert re.search(f"/{name}: {said}", refusal(harness, model)), what
        done = harness.exec(REFUSED_LOAD, [], [hub.url])
        assert done.stdout.startswith(f"ModelFileError {hub.url}/nano/replaced/resolve/"), done
        assert replaced.sent < 200 * len(ZEROS), what
    hub.replaced = hub.cdn.replaced = {}
    hub.reports_sizes = True
    assert generated(harness, model, device="wasm")["token_ids"] == oracle.greedy(LLAMA, PROMPT, 12)


REFUSED_LOAD = """
import sys, capstan
try:
    await capstan.Model.load(capstan.HubRepository("nano/replaced", sys.argv[1]), device="wasm")
except capstan.CapstanError as error:
    print(type(error).__name__, error)
"""


@pytest.mark.extended
def test_a_revision_may_be_a_commit(hub: HubServer, harness: Harness, scripts: PageScripts) -> None:
    model = named(hub, "nano/llama", revision=hub.repositories["nano/llama"].commit)
    assert generated(harness, model, device="wasm")["token_ids"] == oracle.greedy(LLAMA, PROMPT, 12)


SCRIPT = """
import json, sys, capstan
repository = capstan.HubRepository("nano/llama", sys.argv[1])
fit = await capstan.plan(repository, device="wasm", dtype="q4", max_length=64)
model = await capstan.Model.load(repository, device="wasm", dtype="q4")
async with capstan.Generator(model) as generator:
    generator.append_tokens([5, 6, 7, 8, 9])
    ids = [await generator.generate_next_token_async() for _ in range(12)]
print(json.dumps([bool(fit), fit.requirements.weights.bytes, list(generator.get_sequence())[5:]]))
await model.aclose()
"""


@pytest.mark.extended
def test_scripts_plan_and_load_by_id(hub: HubServer, harness: Harness, scripts: PageScripts) -> None:
    done = harness.exec(SCRIPT, [], [hub.url])
    assert (done.status, done.stderr) == (0, "")
    fits, weights, ids = json.loads(done.stdout)
    assert fits
    assert weights > 200_000
    assert ids == oracle.greedy(LLAMA, PROMPT, 12)


@pytest.mark.extended
def test_run_takes_an_id(hub: HubServer) -> None:
    prompt = ("--prompt-ids", "5,6,7,8,9", "--max-new-tokens", "12", "--json")
    done = build_py("run", *prompt, "--model", "nano/llama", "--hub", hub.url, CAPSTAN_HUB_TOKEN="hub_reader")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["token_ids"] == oracle.greedy(LLAMA, PROMPT, 12)
    assert {request.authorization for request in hub.requests if request.server == "cdn"} == {None}


REFUSALS: dict[str, tuple[dict[str, Any], str]] = {
    "missing": (
        {"repository": "nano/none"},
        "there is no nano/none at main, or it is private (HTTP 401, RepoNotFound)",
    ),
    "private": ({"repository": "nano/private"}, "there is no nano/private at main, or it is private (HTTP 401,"),
    "missing with a token": (
        {"repository": "nano/none", "token": "hub_reader"},
        "there is no nano/none at main (HTTP 404, RepoNotFound); check the id and the revision",
    ),
    "gated": (
        {"repository": "nano/gated"},
        "nano/gated at main is gated (HTTP 401, GatedRepo); accept its terms at the hub and give a token",
    ),
    "gated for this token": (
        {"repository": "nano/gated", "token": "hub_stranger"},
        "the token's account has no access to nano/gated at main (HTTP 403, GatedRepo); ask for access",
    ),
    "token": (
        {"repository": "nano/empty", "token": "hub_forged"},
        "the token is not valid for nano/empty at main (HTTP 401); give another one",
    ),
    "revision": (
        {"repository": "nano/llama", "revision": "v2"},
        "nano/llama at v2 does not exist, the repository does (HTTP 404, RevisionNotFound); check the revision",
    ),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("what", REFUSALS)
def test_refusals_are_told_apart(what: str, hub: HubServer, harness: Harness, scripts: PageScripts) -> None:
    scripts.expect(REFUSED)
    fields, said = REFUSALS[what]
    message = refusal(harness, named(hub, **fields))
    assert said in message
    assert "hub_" not in message


def test_a_repository_without_onnx_files_says_what_it_has(
    hub: HubServer, harness: Harness, scripts: PageScripts
) -> None:
    message = refusal(harness, named(hub, "nano/empty"))
    assert "it has no ONNX file, but config.json, model.safetensors, tokenizer.json; use a repository" in message


def test_a_dtype_that_is_not_there_is_refused_with_those_that_are(
    hub: HubServer, harness: Harness, scripts: PageScripts
) -> None:
    message = refusal(harness, named(hub, "nano/llama"), dtype="fp16")
    assert message.endswith("/onnx/model_fp16.onnx does not exist; dtype='fp16' was requested; the dtypes are q4")


def test_a_server_that_is_no_hub_is_refused(hub: HubServer, harness: Harness, scripts: PageScripts) -> None:
    scripts.expect(REFUSED)
    scripts.expect("CORS")
    nowhere = refusal(harness, named(hub, "nano/llama", hub="http://127.0.0.1:1"))
    assert "the hub http://127.0.0.1:1 cannot be asked for nano/llama at main (" in nowhere
    page = refusal(harness, named(hub, "nano/llama", hub=harness.page.url.partition("/capstan/")[0]))
    assert "there is no nano/llama at main (HTTP 404); check the id and the revision" in page
