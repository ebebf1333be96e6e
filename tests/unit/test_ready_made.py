"""The results that a site has for a GGUF file equal those that a page computes, and are taken for that file alone."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from buildtools.ready_made import DTYPES, Header, kept_headers, make_ready
from capstan.device.wasm import cpu_graph
from capstan.device.wasm.cpu_graph import WasmGraph, prepare
from capstan.device.webgpu import webgpu_graphs
from capstan.device.webgpu.webgpu_graphs import LEAST_LARGEST, PACKED_ATTENTION, Graphs, rewrite
from capstan.host import Host, current_host
from capstan.host.notes import Notes
from capstan.host.ready_results import ReadyGraphs, ReadyMade
from capstan.loading import gguf_folder
from capstan.loading.folder import Place, find_model
from capstan.loading.found_model import FoundModel
from capstan.model_files.gguf.header import GgmlType
from tests.gguf_models import Made, make, write
from tests.unit.shelf import Shelf

TYPES = {"": GgmlType.Q4_1, "token_embd": GgmlType.Q8_0}


@pytest.fixture(scope="module")
def made() -> Made:
    return make("llama", TYPES, {"block_count": 2}, vocabulary=512)


@pytest.fixture(scope="module")
def file(made: Made, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(made, tmp_path_factory.mktemp("gguf") / "model.gguf")


@pytest.fixture(scope="module")
def site(file: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, ReadyMade]:
    """The site's results for the file, by dtype."""
    target = tmp_path_factory.mktemp("site")
    [known], written = make_ready([Header.of(file, target)], target)
    assert sorted(target / name for name in known["results"].values()) == sorted(written)
    assert (known["name"], known["size"]) == (file.name, file.stat().st_size)
    return {
        dtype: ReadyMade(known["header"], known["sha256"], gzip.decompress((target / name).read_bytes()).decode())
        for dtype, name in known["results"].items()
    }


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of files whose graphs were written."""
    written: list[str] = []
    write_model = gguf_folder.written

    def counted(file: object, name: str, *rest: object) -> FoundModel:
        written.append(name)
        return write_model(file, name, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(gguf_folder, "written", counted)
    return written


@pytest.fixture
def shelf(monkeypatch: pytest.MonkeyPatch) -> Shelf:
    """The notes of this host."""
    shelf = Shelf()

    async def backing(host: Host, folder: str) -> Shelf:
        return shelf

    monkeypatch.setattr(type(current_host()), "backing", backing)
    return shelf


Offer = Callable[[ReadyMade | None], None]


@pytest.fixture
def offer(monkeypatch: pytest.MonkeyPatch, file: Path) -> Offer:
    """Have the site offer something for the file."""
    about = (file.name, file.stat().st_size)

    def offer(ready: ReadyMade | None) -> None:
        async def ready_made(host: Host, name: str, size: int, dtype: str) -> ReadyMade | None:
            return ready if (name, size) == about else None

        monkeypatch.setattr(type(current_host()), "ready_made", ready_made)

    return offer


def found(file: Path, dtype: str, keep: bool = False) -> FoundModel:
    return asyncio.run(find_model(current_host(), Place(f"{file.parent}/", file.name), "cpu", dtype, keep=keep))


async def no_weights(location: str) -> object:
    raise AssertionError(location)


def graphs_of(
    found: FoundModel, ready: ReadyGraphs | None, buffers: int = PACKED_ATTENTION, largest: int = LEAST_LARGEST
) -> Graphs:
    given = (found.graphs["decoder"], found.config, no_weights, "folder/", None, buffers, None, largest, ready)
    return asyncio.run(webgpu_graphs.model_graphs(*given))  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", DTYPES)
def test_it_is_what_the_page_computes(
    dtype: str, file: Path, site: dict[str, ReadyMade], offer: Offer, written: list[str]
) -> None:
    offer(None)
    computed = found(file, dtype)
    offer(site[dtype])
    ready = found(file, dtype)
    assert written == [file.name]
    assert replace(ready, ready=None) == computed
    assert graphs_of(ready, ready.ready) == graphs_of(computed, None)


def test_graphs_are_not_rewritten_where_they_are_right(
    file: Path, site: dict[str, ReadyMade], offer: Offer, monkeypatch: pytest.MonkeyPatch
) -> None:
    rewrites: list[tuple[int, int]] = []

    async def counted(data: bytes, config: object, weights: object, buffers: int, *rest: int) -> Graphs:
        rewrites.append((buffers, rest[-1]))
        return await rewrite(data, config, weights, buffers, *rest)  # type: ignore[arg-type]

    offer(site["fp16"])
    ready = found(file, "fp16")
    monkeypatch.setattr(webgpu_graphs, "rewrite", counted)
    for limits in ((PACKED_ATTENTION, LEAST_LARGEST), (16, 4 * LEAST_LARGEST), (16, 0)):
        graphs_of(ready, ready.ready, *limits)
    assert rewrites == []
    others = [(PACKED_ATTENTION - 1, LEAST_LARGEST), (16, LEAST_LARGEST - 1)]
    for limits in others:
        graphs_of(ready, ready.ready, *limits)
    # So are those of another configuration.
    decoder = replace(ready.config.decoder, kv_cache_bits=8)
    graphs_of(replace(ready, config=replace(ready.config, decoder=decoder)), ready.ready)
    assert rewrites == [*others, (PACKED_ATTENTION, LEAST_LARGEST)]


def test_the_graph_for_the_cpu_is_what_the_page_computes(
    file: Path, site: dict[str, ReadyMade], offer: Offer, monkeypatch: pytest.MonkeyPatch
) -> None:
    rewrites: list[object] = []

    def counted(*given: Any) -> WasmGraph:
        rewrites.append(given)
        return prepare(*given)

    def of(model: FoundModel, ready: ReadyGraphs | None) -> WasmGraph:
        given: Any = (model.graphs["decoder"], model.config, 1 << 30, no_weights, "folder/", None, ready)
        return asyncio.run(cpu_graph.wasm_graph(*given))

    offer(site["fp32"])
    ready = found(file, "fp32")
    monkeypatch.setattr(cpu_graph, "prepare", counted)
    taken = of(ready, ready.ready)
    assert not rewrites
    assert taken == of(ready, None)
    shorter = replace(ready, config=replace(ready.config, context_length=32))
    assert of(shorter, ready.ready) == of(shorter, None)
    assert len(rewrites) == 3
    offer(site["fp16"])
    half = found(file, "fp16")
    of(half, half.ready)
    assert len(rewrites) == 4


def test_a_file_with_another_header_is_computed(
    file: Path, site: dict[str, ReadyMade], offer: Offer, written: list[str]
) -> None:
    offer(replace(site["fp16"], sha256=hashlib.sha256(b"another").hexdigest()))
    assert found(file, "fp16").ready is None
    assert written == [file.name]


def test_a_result_that_did_not_come_whole_is_told_and_computed(
    file: Path, site: dict[str, ReadyMade], offer: Offer, written: list[str]
) -> None:
    offer(replace(site["fp16"], text=None))
    with pytest.warns(UserWarning, match=r"the site's ready-made graph of model\.gguf: .* is incomplete"):
        assert found(file, "fp16").ready is None
    assert written == [file.name]


def test_its_header_is_read_at_the_first_visit_alone(
    file: Path,
    site: dict[str, ReadyMade],
    offer: Offer,
    written: list[str],
    shelf: Shelf,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    offer(site["fp16"])
    first = found(file, "fp16", keep=True)
    opened = type(current_host()).open_weights

    async def unread(host: Host, *given: object) -> object:
        data = await opened(host, *given)  # type: ignore[arg-type]
        monkeypatch.setattr(data, "read", None)
        return data

    with monkeypatch.context() as patch:
        patch.setattr(type(current_host()), "open_weights", unread)
        # The results are noted: the site may lose them.
        offer(None)
        assert found(file, "fp16", keep=True) == replace(first, ready=None)
    assert written == []


def test_headers_are_kept_when_the_model_is_gone(file: Path, tmp_path: Path) -> None:
    class Model:
        bytes = file.stat().st_size
        there = True

        def __init__(self) -> None:
            self.file = file

        def is_there(self) -> bool:
            return self.there

    model = Model()
    [kept] = kept_headers([model], tmp_path)  # type: ignore[list-item]
    assert (kept.name, kept.size) == (file.name, model.bytes)
    model.there = False
    assert kept_headers([model], tmp_path) == [kept]  # type: ignore[list-item]
    assert kept_headers([model], tmp_path / "other") == []  # type: ignore[list-item]


def test_notes_are_sealed_with_their_content(shelf: Shelf) -> None:
    asyncio.run(Notes(cast(Any, shelf)).write("name", "key", json.dumps({"a": 1})))
    [(name, text)] = shelf.texts.items()
    shelf.texts[name] = text.replace("1", "2")
    with pytest.warns(UserWarning, match="is damaged"):
        assert asyncio.run(Notes(cast(Any, shelf)).read("name", "key")) is None
