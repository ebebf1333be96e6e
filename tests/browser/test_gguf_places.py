"""GGUF models that a page names otherwise than by an address: shards, files that were picked, files of a hub."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from capstan.model_files.gguf.header import GgmlType
from capstan_host.site_server import SiteServer
from capstan_host.testing.harness import Harness, generate_request
from tests.browser.hub_server import HubServer, Repository, running_hub
from tests.browser.page_scripts import PageScripts
from tests.gguf_models import Made, make, write, write_shards, write_spread

PROMPT = [5, 60, 17, 80, 33, 2]
COUNT = 4
SHARDS = "Q4_0/a model-00002-of-00003.gguf"

PICKED = """async ([addresses, request]) => {
  const files = [];
  for (const url of addresses) {
    const name = decodeURIComponent(url.split("/").at(-1));
    files.push(new File([await (await fetch(url)).blob()], name, { lastModified: 1 }));
  }
  return await window.capstan.request({ ...request, model: files.length === 1 ? files[0] : files });
}"""


@pytest.fixture(scope="module")
def made() -> Made:
    return make("llama", {"": GgmlType.Q4_0, "token_embd": GgmlType.Q6_K}, {"block_count": 1}, vocabulary=512)


@pytest.fixture(scope="module")
def folder(made: Made, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gguf") / "gguf-places"
    write_shards(made, folder / "Q4_0", "token_embd.weight", "0.attn_q.weight")
    return write(made, folder / "whole.gguf").parent


@pytest.fixture(scope="module")
def hub(folder: Path) -> Iterator[HubServer]:
    with running_hub({"nano/gguf": Repository(folder, private=True)}) as server:
        yield server


def named(hub: HubServer, id: str) -> dict[str, Any]:
    return {"repository": id, "hub": hub.url, "revision": None, "token": "hub_reader"}


def require_near(made: Made, ids: list[int]) -> None:
    """Each id is the best one by the definition, up to near ties."""
    logits = made.defined([*PROMPT, *ids])[len(PROMPT) - 1 : -1]
    apart = logits.max(-1) - logits[np.arange(COUNT), ids]
    assert np.all(apart <= 2e-3 * np.abs(logits).max()), apart


def request(**options: Any) -> dict[str, Any]:
    about = {"prompt_ids": PROMPT, "max_new_tokens": COUNT, "device": "webgpu", "dtype": "fp32"}
    return generate_request({}, **{**about, "search": {"do_sample": False}, **options})


def test_what_was_picked_is_a_model_and_so_are_shards_of_a_hub(
    made: Made, folder: Path, hub: HubServer, harness: Harness, scripts: PageScripts, site: SiteServer
) -> None:
    site.models[folder.name] = folder
    front = f"/models/{folder.name}/"
    shards = [f"{front}Q4_0/{file.name}" for file in sorted((folder / "Q4_0").iterdir())]
    try:
        alone = harness.evaluate(PICKED, [[f"{front}whole.gguf"], request()])
        together = harness.evaluate(PICKED, [shards, request(capture="off")])
        by_address = harness.reply({**request(capture="off"), "model": f"{front}whole.gguf?download=true#x"})
    finally:
        del site.models[folder.name]
    assert alone["ok"], alone
    ids = alone["result"]["token_ids"]
    require_near(made, ids)
    assert (alone["result"]["capture"], alone["result"]["capture_note"]) == ("tape", None)
    for other in (together, by_address):
        assert other["ok"], other
        assert other["result"]["token_ids"] == ids
    assert hub.requests == [], "nothing was asked of a hub"
    first = harness.reply({**request(capture="off"), "model": named(hub, f"nano/gguf:{SHARDS}")})
    assert first["ok"], first
    assert first["result"]["token_ids"] == ids
    for asked in hub.requests:
        if asked.method != "OPTIONS":
            assert asked.authorization == ("Bearer hub_reader" if asked.server == "hub" else None), asked
    read = {hub.cdn.files[asked.path.strip("/")].name for asked in hub.requests if asked.server == "cdn"}
    assert read == {file.name for file in (folder / "Q4_0").iterdir()}
    # Another model in between, so that it is loaded again.
    assert harness.reply({**request(), "model": "/models/nano-llama/", "dtype": None, "device": "wasm"})["ok"]
    hub.requests.clear()
    again = harness.reply({**request(capture="off"), "model": named(hub, f"nano/gguf:{SHARDS}")})
    assert again["result"]["token_ids"] == ids
    assert hub.requests == [], "of stored files at the commit of the last load"


def test_tensors_around_2_and_4_gib_of_a_file_are_found(
    made: Made, folder: Path, harness: Harness, scripts: PageScripts, site: SiteServer, tmp_path: Path
) -> None:
    """In a file for most of which there is a hole, and no store to keep it whole."""
    starts = {"token_embd.weight": 1 << 31, "blk.0.ffn_down.weight": 1 << 32, "blk.0.attn_q.weight": 3 << 30}
    large = write_spread(made, tmp_path / "gguf-spread" / "large.gguf", starts)
    assert large.stat().st_size > 1 << 32
    site.models |= {folder.name: folder, large.parent.name: large.parent}
    asked = {**request(capture="off"), "disable_file_mapped_weights": True}
    try:
        found = [
            harness.reply({**asked, "model": f"/models/{place.name}/{file}"})
            for place, file in ((folder, "whole.gguf"), (large.parent, large.name))
        ]
    finally:
        for place in (folder, large.parent):
            del site.models[place.name]
    small, spread = found
    assert spread["ok"], spread
    assert spread["result"]["token_ids"] == small["result"]["token_ids"]
    require_near(made, spread["result"]["token_ids"])


def test_a_repository_of_gguf_files_lists_them(hub: HubServer, harness: Harness, scripts: PageScripts) -> None:
    def refusal(id: str) -> str:
        error = harness.reply({**request(), "model": named(hub, id)})["error"]
        assert error["type"] == "ModelFileError"
        return str(error["message"])

    files = "its GGUF files are Q4_0/a model-00001-of-00003.gguf (0.5 MB), whole.gguf (0.5 MB)"
    found = refusal("nano/gguf")
    assert " has 2 models; name one as OWNER/NAME:FILE.gguf of a hub, by its address, or pick only its file: " in found
    assert found.endswith(files)
    missing = refusal("nano/gguf:Q8_0.gguf")
    assert missing.startswith(f"nano/gguf:Q8_0.gguf at main of {hub.url}: the repository has no such file; ")
    assert missing.endswith(files)


NOTED = """async () => {
  const root = await navigator.storage.getDirectory();
  const folder = await root.getDirectoryHandle("capstan-file-notes", { create: true });
  let bytes = 0;
  for await (const file of folder.values()) bytes += (await file.getFile()).size;
  return bytes;
}"""


@pytest.mark.extended
def test_eviction_removes_what_was_noted_of_a_file_and_of_shards(
    folder: Path, harness: Harness, scripts: PageScripts, site: SiteServer
) -> None:
    asked = {"kind": "models", "action": "list", "which": None}
    assert harness.reply({**asked, "action": "evict"})["ok"]
    assert harness.evaluate(NOTED) == 0
    site.models[folder.name] = folder
    front = f"/models/{folder.name}/"
    try:
        for file in ("whole.gguf", SHARDS):
            assert harness.reply({**request(), "model": f"{front}{file}"})["ok"]
        noted = harness.evaluate(NOTED)
    finally:
        del site.models[folder.name]
    files = harness.reply(asked)["result"]["files"]
    held = sum(file["stored_bytes"] for file in files if any(front in source for source in file["sources"]))
    assert noted > 10_000
    assert held > 500_000
    assert harness.reply({**asked, "action": "evict", "which": front})["result"]["freed"] == held + noted
    assert harness.evaluate(NOTED) == 0


@pytest.fixture
def bad(folder: Path, made: Made, site: SiteServer, tmp_path: Path) -> Iterator[dict[str, str]]:
    """The addresses of files that are no models, with the error for each."""
    place = tmp_path / "bad-gguf"
    shards = write_shards(made, place / "missing", "token_embd.weight", name="model")
    others = write_shards(made, place / "mixed", "token_embd.weight", name="model")
    second = write_shards(made, tmp_path / "second", "0.attn_q.weight", name="model")[1]
    shards[1].unlink()
    second.replace(others[1])
    whole = (folder / "whole.gguf").read_bytes()
    files = {
        "header.gguf": (whole[: whole.index(b"tokenizer.ggml.merges") + 10], "the file ends at byte"),
        "data.gguf": (whole[:-4096], "but the file has "),
        "html.gguf": (b"<!doctype html><title>Not found</title>", "found HTML"),
        "safetensors.gguf": (b"\x20" + bytes(7) + b'{"a":{"dtype":"F32"}}' + bytes(64), "found safetensors"),
        "onnx.gguf": (b"\x08\x0a\x12\x07capstan" + bytes(64), "found ONNX"),
    }
    for name, (data, _) in files.items():
        (place / name).write_bytes(data)
    site.models[place.name] = place
    told = {name: message for name, (_, message) in files.items()}
    told |= {"missing/model-00001-of-00002.gguf": "it is shard 2 of 2; put all shards into one folder"}
    told |= {"mixed/model-00002-of-00002.gguf": "tensors, expected "}
    yield {f"/models/{place.name}/{name}": message for name, message in told.items()}
    del site.models[place.name]


def test_nothing_is_kept_of_files_that_are_no_models(
    bad: dict[str, str], harness: Harness, scripts: PageScripts, page_errors: list[str]
) -> None:
    asked = {"kind": "models", "action": "list", "which": None}
    before = harness.reply(asked)["result"]["files"], harness.evaluate(NOTED)
    for address, message in bad.items():
        error = harness.reply({**request(), "model": address})["error"]
        assert error["type"] == "ModelFileError", error
        assert message in error["message"], address
    assert (harness.reply(asked)["result"]["files"], harness.evaluate(NOTED)) == before
    good = {**request(), "model": "/models/nano-llama/", "dtype": None, "device": "wasm"}
    assert harness.reply(good)["ok"]
    page_errors.clear()  # of the shard that is missing
