"""Digests that the local server has for weights whose folder has none, and those that `dist` writes."""

from __future__ import annotations

import http.client
import json
import os
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from capstan.weights.manifest import Manifest, parse_manifest
from capstan_host import digests
from capstan_host.digests import Digests, complete_digests, data_files
from capstan_host.model_arguments import BUNDLED
from capstan_host.site_server import SiteServer, serving

LLAMA = Path(__file__).parent.parent / "fixtures/nano-llama"
DATA = random.Random(3).randbytes(1000)
NAME = "model.onnx.data"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "m"
    place.mkdir()
    (place / NAME).write_bytes(DATA)
    (tmp_path / "secret.bin").write_bytes(DATA)
    (place / "link.bin").symlink_to(tmp_path / "secret.bin")
    return place


@pytest.fixture
def kept(tmp_path: Path) -> Digests:
    return Digests(tmp_path / "kept")


@pytest.fixture
def server(folder: Path, kept: Digests) -> Iterator[SiteServer]:
    (folder.parent / "site").mkdir()
    (folder.parent / f"site/{NAME}").write_bytes(DATA)
    with serving(folder.parent / "site", {"m": folder}, digests=kept) as server:
        yield server


def get(server: SiteServer, path: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=60)
    connection.request("GET", path)
    response = connection.getresponse()
    body = response.read()
    connection.close()
    return response.status, body


def manifest_of(data: bytes, shard_size: int = 4 << 20) -> Manifest:
    return Manifest.of([data[i : i + shard_size] for i in range(0, len(data), shard_size)], shard_size)


def own(folder: Path, data: bytes, seconds_later: int, shard_size: int = 300) -> Path:
    """A shards file of the folder's own, written so much later than its data."""
    path = folder / f"{NAME}.shards.json"
    path.write_text(manifest_of(data, shard_size).serialize())
    stamp = (folder / NAME).stat().st_mtime_ns + seconds_later * 10**9
    os.utime(path, ns=(stamp, stamp))
    return path


def test_a_model_without_digests_is_served_with_them_and_its_folder_is_left_alone(
    folder: Path, server: SiteServer, kept: Digests
) -> None:
    before = sorted(folder.iterdir())
    status, body = get(server, f"/models/m/{NAME}.shards.json")
    assert (status, parse_manifest(body, "served")) == (200, manifest_of(DATA))
    assert sorted(folder.iterdir()) == before
    assert get(server, f"/models/m/{NAME}.shards.json")[1] == body
    assert kept.hashed == [folder / NAME]


@pytest.mark.parametrize(
    "path", ["/models/m/none.bin.shards.json", "/models/m/link.bin.shards.json", f"/{NAME}.shards.json"]
)
def test_what_is_no_file_of_a_model_has_no_digests(path: str, server: SiteServer, kept: Digests) -> None:
    assert get(server, path)[0] == 404
    assert kept.hashed == []


def test_they_are_kept_until_the_file_changes(folder: Path, tmp_path: Path) -> None:
    Digests(tmp_path / "kept").text(folder / NAME)
    again = Digests(tmp_path / "kept")
    text = again.text(folder / NAME)
    assert again.hashed == []
    (folder / NAME).write_bytes(DATA[::-1])
    os.utime(folder / NAME, ns=(5, 5))
    changed = again.text(folder / NAME)
    assert again.hashed == [folder / NAME]
    assert changed != text
    assert parse_manifest(changed or b"", "changed") == manifest_of(DATA[::-1])
    [record] = (tmp_path / "kept").iterdir()
    for broken in (record.read_text()[:-9], record.read_text().replace('"size": 1000', '"size": -1')):
        record.write_text(broken)
        assert Digests(tmp_path / "kept").text(folder / NAME) == changed, "a torn or forged record is none"


def test_a_folders_own_digests_are_served_as_they_are(folder: Path, kept: Digests, capsys: Any) -> None:
    path = own(folder, DATA, seconds_later=-9)
    assert kept.text(folder / NAME) == path.read_bytes()
    assert capsys.readouterr().err == ""


def test_digests_that_are_older_than_their_data_are_told_and_made_anew(
    folder: Path, kept: Digests, capsys: Any
) -> None:
    path = own(folder, DATA[::-1], seconds_later=-9)
    before = path.read_bytes()
    for _ in range(2):
        assert parse_manifest(kept.text(folder / NAME) or b"", "served") == manifest_of(DATA, 300)
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert f"{path} is older than {NAME}, which has changed: digests that were made again are served" in said
    assert path.read_bytes() == before


def test_data_that_were_damaged_after_their_digests_were_written_are_not_made_right(
    folder: Path, kept: Digests, capsys: Any
) -> None:
    path = own(folder, DATA[::-1], seconds_later=9)
    assert kept.text(folder / NAME) == path.read_bytes()
    assert (
        f"{folder / NAME} is not what {path.name} says, which is newer: the page will refuse it"
        in capsys.readouterr().err
    )


def test_digests_that_cannot_be_read_are_told_and_made_anew(folder: Path, kept: Digests, capsys: Any) -> None:
    (folder / f"{NAME}.shards.json").write_text("{")
    assert parse_manifest(kept.text(folder / NAME) or b"", "served") == manifest_of(DATA)
    assert f"{NAME}.shards.json: " in capsys.readouterr().err


def test_a_page_does_not_wait_for_ever(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    held = threading.Event()
    computed = digests.digests_of

    def slow(data: Path, shard_size: int) -> Manifest:
        held.wait(60)
        return computed(data, shard_size)

    monkeypatch.setattr(digests, "digests_of", slow)
    kept = Digests(tmp_path / "kept", wait=0.05)
    assert [kept.text(folder / NAME) for _ in range(2)] == [None, None]
    assert f"{NAME}: its digests were not computed within 0.05 s; it is sent without" in capsys.readouterr().err
    held.set()
    text = Digests(tmp_path / "kept").text(folder / NAME) or kept.text(folder / NAME)
    assert text is not None
    assert parse_manifest(text, "served") == manifest_of(DATA)
    assert kept.hashed == [folder / NAME], "it is computed once for all who ask"


def test_a_copy_gets_the_digests_that_it_lacks(tmp_path: Path) -> None:
    place = tmp_path / "copy"
    place.mkdir()
    for path in LLAMA.iterdir():
        (place / path.name).write_bytes(path.read_bytes())
    shards = place / f"{NAME}.shards.json"
    shards.unlink(missing_ok=True)
    assert complete_digests(place) == [shards]
    data = (place / NAME).read_bytes()
    assert parse_manifest(shards.read_bytes(), "written") == manifest_of(data)
    assert complete_digests(place) == []
    (place / NAME).write_bytes(data[:-1] + b"!")
    assert complete_digests(place) == [shards]


def test_the_bundled_model_has_the_digests_of_its_weights() -> None:
    [data] = data_files(BUNDLED)
    found = json.loads(data.with_name(f"{data.name}.shards.json").read_text())
    assert found == manifest_of(data.read_bytes(), found["shard_size"]).as_json()
