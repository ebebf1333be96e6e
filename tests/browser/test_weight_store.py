"""The weight store in a page: what goes over the network, what is kept, and what breaks on the way."""

from __future__ import annotations

import base64
import hashlib
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from playwright.sync_api import Browser, BrowserContext

from buildtools.browser import find_browser
from buildtools.site import assemble
from capstan import graph
from capstan.device.reference import unpacked as definition
from capstan.model_files.gguf.header import GgmlType
from capstan.weights.manifest import MANIFEST_SUFFIX, Manifest
from capstan_host.digests import Digests
from capstan_host.headless.chromium import flags
from capstan_host.headless.static_server import running
from capstan_host.testing.harness import Harness, exec_request
from tests import oracle
from tests.browser.model_variants import LLAMA
from tests.browser.page_scripts import PageScripts
from tests.browser.weight_server import Faults, WeightServer
from tests.gguf_tensors import random_tensor, ways
from tests.weight_bytes import beside_one_another, part_bytes

BOOT_MS = 120_000
LOAD = """
import sys
from capstan import Model
from capstan.weights import manifest
manifest.SHARD_BYTES = int(sys.argv[2])
try:
    async with await Model.load(sys.argv[1], device="webgpu"):
        print("loaded")
except Exception as error:
    print(type(error).__name__ + ": " + str(error))
"""
TRACED = """
import sys
import capstan
from capstan.weights import manifest
from pyodide.code import run_js
from pyodide.ffi import create_proxy
# An empty message tells that the worker which hashes has started.
run_js('''(started) => {
  const { prototype } = MessagePort;
  const { set } = Object.getOwnPropertyDescriptor(prototype, "onmessage");
  const listen = (port, listener) => (event) => {
    if (event.data === null) started();
    listener.call(port, event);
  };
  Object.defineProperty(prototype, "onmessage", { set(listener) { set.call(this, listen(this, listener)); } });
}''')(create_proxy(lambda: print("started", file=sys.stderr, flush=True)))
manifest.SHARD_BYTES = int(sys.argv[2])
async with capstan.trace("trace.json") as trace:
    async with await capstan.Model.load(sys.argv[1], device="webgpu"):
        pass
print(*(span["args"]["hashed_beside"] for span in trace.content["traceEvents"] if span["name"] == "a file of weights"))
"""
PICKED = """async url => {
  const names = ["genai_config.json", "model.onnx", "model.onnx.data", "tokenizer.json", "tokenizer_config.json"];
  const files = [];
  for (const name of names) files.push(new File([await (await fetch(url + name)).blob()], name, { lastModified: 5 }));
  const request = {
    kind: "generate", dtype: null, device: "wasm", capture: "tape", run_ahead: null, prompt: null,
    prompt_ids: [5, 6, 7], max_new_tokens: 4, search: { do_sample: false },
  };
  const folder = await (await navigator.storage.getDirectory()).getDirectoryHandle("chosen", { create: true });
  for (const file of files) {
    const writable = await (await folder.getFileHandle(file.name, { create: true })).createWritable();
    await writable.write(file);
    await writable.close();
  }
  const ids = [];
  for (const model of [url, files, folder, folder]) {
    ids.push((await window.capstan.request({ ...request, model })).result.token_ids);
  }
  return ids;
}"""
DATA = "model.onnx.data"
SHARD = 16384
SIZE = (LLAMA / DATA).stat().st_size
SHARDS = -(-SIZE // SHARD)
WHOLE = [SIZE, SIZE, True, []]
BEHIND = SIZE - 6 * SHARD
"""Bytes that are asked for again behind a spoilt shard 5: the one after it came while it was checked."""
WAIT_S = 120
"""For what takes a second or two on an idle machine."""


@dataclass
class Origin:
    """A server with one model, whose store is empty, and tabs of one browser profile."""

    server: WeightServer
    context: BrowserContext
    tabs: list[PageScripts]
    model: str = ""

    def tab(self, number: int = 0) -> PageScripts:
        """A tab with Python booted; they stay open from test to test."""
        while len(self.tabs) <= number:
            page = self.context.new_page()
            page.set_default_navigation_timeout(BOOT_MS)
            self.tabs.append(PageScripts.install(Harness(page, self.server.url)))
        return self.tabs[number]

    @property
    def path(self) -> str:
        return f"/models/{self.model}/{DATA}"

    @property
    def folder(self) -> Path:
        return self.server.models[self.model]

    @property
    def faults(self) -> Faults:
        return self.server.faults.setdefault(self.path, Faults())

    def run(self, name: str, tab: int = 0, **arguments: Any) -> Any:
        return self.tab(tab).run("weights", name, self.model, **arguments)

    def load(self, tab: int = 0, **options: Any) -> dict[str, Any]:
        """Load the model; the weights on the GPU are those of the file, if it loads."""
        self.server.forget()
        found: dict[str, Any] = self.run("load", tab, model=self.model, **options)
        if found["error"] is None and options.get("device") != "wasm":
            assert found["weights"] == self.weights()
        return found

    def interrupt(self, at: int) -> dict[str, Any]:
        """Load over connections that break at byte `at`, the first one after every whole shard before it is stored.
        All of those shards must be kept; the faults are removed afterwards."""
        faults = self.faults
        faults.cut_at = faults.hold_at = at
        self.server.forget()
        self.tab().begin("weights", "load", self.model, model=self.model)
        self.wait_until_stored(at // SHARD * SHARD, tab=1)
        faults.released.set()
        found: dict[str, Any] = self.tab().end()
        faults.cut_at = faults.hold_at = None
        assert found["stored"] == [[SIZE, at // SHARD * SHARD, False, []]]
        return found

    def wait_until_stored(self, count: int, tab: int) -> None:
        """Until so many bytes of a download are in the store, as `tab` sees it."""
        self.wait(lambda: count in [there for _, there, _, _ in self.run("stored", tab)], f"{count} bytes are stored")

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < deadline, f"not within {WAIT_S} s: {what}; stored is {self.run('stored')}"
            time.sleep(0.1)

    def begin(self, tab: PageScripts) -> None:
        """Let a tab load the model, without waiting for it; it prints how that ends."""
        tab.harness.begin(exec_request(LOAD, (), [f"/models/{self.model}/", str(SHARD)], "load.py"))

    @property
    def sent(self) -> int:
        """Bytes of the data file that went over the network in the last load."""
        return self.server.sent[self.path]

    @property
    def ranges(self) -> list[str | None]:
        return [request.range for request in self.server.asked(self.path)]

    def weights(self) -> str:
        """SHA-256 over the weights as they are in the file now."""
        entries = graph.weights_to_inputs(graph.parse((self.folder / "model.onnx").read_bytes()))[1]
        digest = hashlib.sha256()
        with (self.folder / DATA).open("rb") as data:
            for entry in entries:
                data.seek(entry.offset)
                digest.update(data.read(entry.length))
        return digest.hexdigest()

    def write_manifest(self, shard: int = SHARD) -> None:
        data = (self.folder / DATA).read_bytes()
        manifest = Manifest.of([data[i : i + shard] for i in range(0, len(data), shard)], shard)
        (self.folder / (DATA + MANIFEST_SUFFIX)).write_text(manifest.serialize())

    def change(self) -> None:
        """Other weights in the same file."""
        path = self.folder / DATA
        data = bytearray(path.read_bytes())
        for place in range(100, SIZE, 4096):
            data[place] ^= 1
        path.write_bytes(data)

    def shift(self) -> None:
        """The same weights with every offset but a multiple of 4, as no exporter writes them."""
        model = graph.parse((self.folder / "model.onnx").read_bytes())
        old, new = (self.folder / DATA).read_bytes(), bytearray()
        for i, tensor in enumerate(model.graph.initializer):
            fields = {item.key: item for item in tensor.external_data}
            if fields:
                start, length = int(fields["offset"].value), int(fields["length"].value)
                new += bytes((i % 3 + 1 - len(new)) % 4)
                fields["offset"].value = str(len(new))
                new += old[start : start + length]
        (self.folder / DATA).write_bytes(new)
        (self.folder / "model.onnx").write_bytes(graph.serialize(model))

    def spread(self) -> None:
        """The same weights in a sparse file of more than 4 GiB. One lies across 2 GiB and one across 4 GiB; at 3 GiB
        one ends and one begins; the rest is behind 4 GiB."""
        model = graph.parse((self.folder / "model.onnx").read_bytes())
        old = (self.folder / DATA).read_bytes()
        places = [{item.key: item for item in tensor.external_data} for tensor in model.graph.initializer]
        places = sorted(filter(None, places), key=lambda place: -int(place["length"].value))
        lengths = [int(place["length"].value) for place in places]
        gib, at = 1 << 30, (4 << 30) + (64 << 20)
        starts = [2 * gib - lengths[0] // 2, 4 * gib - lengths[1] // 2, 3 * gib - lengths[2], 3 * gib]
        with (self.folder / DATA).open("wb") as data:
            for number, (place, length) in enumerate(zip(places, lengths, strict=True)):
                start, at = (starts[number], at) if number < len(starts) else (at, at + length)
                data.seek(start)
                data.write(old[int(place["offset"].value) :][:length])
                place["offset"].value = str(start)
        (self.folder / "model.onnx").write_bytes(graph.serialize(model))


@pytest.fixture(scope="module")
def opened(browser: Browser) -> Iterator[Origin]:
    assert browser.is_connected(), "the browser crashed in an earlier test"
    with running(WeightServer(assemble(), {})) as server:
        context = browser.new_context()
        yield Origin(server, context, [])
        context.close()


@pytest.fixture
def origin(opened: Origin, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Origin]:
    """With a model of its own and nothing stored; a fault in a tab that nobody expects fails the test."""
    # Only letters and digits: behind a slash two tests would have one name, and the faults of the first.
    opened.model = opened.server.mount(LLAMA, tmp_path / re.sub(r"\W+", "-", request.node.name).rstrip("-"))
    opened.run("evict")
    yield opened
    for fault in opened.server.faults.values():
        fault.released.set()
    found = [fault for tab in opened.tabs for fault in tab.faults()]
    assert not found, f"went wrong in the page: {found}"


def test_the_first_load_stores_the_weights_and_later_ones_fetch_none(origin: Origin) -> None:
    first = origin.load()
    assert (first["error"], first["warnings"], first["stored"]) == (None, [], [WHOLE])
    assert (origin.sent, origin.ranges) == (SIZE, [None])
    assert origin.load()["stored"] == [WHOLE]
    assert (origin.sent, origin.ranges) == (0, [])
    assert origin.load(device="wasm")["error"] is None
    assert (origin.sent, origin.ranges) == (0, [])
    other = origin.load(tab=1)
    assert (other["warnings"], other["stored"], origin.sent) == ([], [WHOLE], 0)


@pytest.mark.extended
def test_a_load_crosses_to_javascript_as_often_whatever_its_shards_are(origin: Origin) -> None:
    # The first load notes all facts about the device and the graph.
    origin.load()
    origin.run("evict")
    small = origin.run("crossings", model=origin.model, shard_bytes=SHARD)
    origin.run("evict")
    large = origin.run("crossings", model=origin.model, shard_bytes=8 * SHARD)
    assert small == large


def test_a_file_that_was_cancelled_while_it_opened_does_not_stay_open(origin: Origin) -> None:
    """As a request does that stops the page's verification of stored weights."""
    origin.load()
    assert origin.run("cancelled", times=8) > 4
    assert origin.run("locked") == 0


def test_a_file_that_another_tab_reads_is_removed_once_it_is_free(origin: Origin) -> None:
    origin.load()
    assert origin.run("lock", tab=1) == 1
    with pytest.raises(AssertionError, match=r"StorageError: .*another tab has it open"):
        origin.run("evict")
    origin.tab().begin("weights", "evict", origin.model)
    time.sleep(0.3)
    origin.run("unlock", tab=1)
    assert origin.tab().end() == SIZE
    assert origin.run("stored") == []


def test_weights_at_any_offset_arrive_whole(origin: Origin) -> None:
    origin.shift()
    assert origin.load()["error"] is None
    assert origin.sent == (origin.folder / DATA).stat().st_size
    assert origin.load()["error"] is None
    assert origin.sent == 0


def test_weights_around_2_and_4_gib_are_asked_for_by_their_ranges(origin: Origin) -> None:
    """No store, which would keep the whole file, for most of which there is a hole here."""
    origin.spread()
    origin.server.forget()
    found = origin.run("load", model=origin.model, disable_file_mapped_weights=True, shard_bytes=1 << 20)
    assert (found["error"], found["weights"], found["stored"]) == (None, origin.weights(), [])
    mib, gib = 1 << 20, 1 << 30
    around = [f"bytes={start}-" for start in (2 * gib - mib, 3 * gib - mib, 4 * gib - mib, 4 * gib + 64 * mib)]
    assert [told and told.partition("-")[0] + "-" for told in origin.ranges] == around


def test_a_file_may_begin_with_what_is_not_wanted(origin: Origin) -> None:
    offset, size = (9 << 20) + 5, 12 << 20
    found = origin.run("uploaded", model=origin.model, offset=offset, size=size)
    assert found == {"wanted": 1, "weight": [(offset + i) % 256 for i in range(32)]}


def fields(parts: list[graph.Part]) -> list[Any]:
    return [(part.offset, part.length, graph.fields_of(part.change)) for part in parts]


def test_parts_of_a_file_are_put_together_and_turned_on_the_gpu(origin: Origin) -> None:
    """Every width, signed and unsigned; rows that end within bytes and words; parts that begin anywhere in the file."""
    turns = [(64, 40, 4, True), (6, 12, 4, False), (5, 16, 4, True), (48, 20, 8, True), (6, 10, 16, False)]
    turns += [(7, 9, 32, False), (512, 1, 4, True), (3, 17, 8, False)]
    parts, at = [graph.Part(3, 8)], 21
    for turn in turns:
        length = (turn[0] * turn[1] * turn[2] + 7) // 8
        parts.append(graph.Part(at, length, graph.Turn(*turn)))
        at += length + 5
    size, made = at + 100, sum(part.made for part in parts)
    assert all(part.made % 4 == 0 for part in parts[:-1])
    padded = -(-made // 16) * 16
    told: dict[str, Any] = {"parts": fields(parts), "shard": 700, "size": size, "made": padded}
    found = origin.run("turned", model=origin.model, **told)
    data = bytes(i * 151 >> 3 & 255 for i in range(size))
    wanted = b"".join(part_bytes(part, data) for part in parts)
    assert bytes(found["bytes"]) == wanted + bytes(padded - made)
    assert not found["left"], "buffers for turning are left"


def test_matrices_of_a_file_are_put_beside_one_another_on_the_gpu(origin: Origin) -> None:
    rows, widths, parts, at = 37, (4, 132, 64), [], 21
    for row in widths:
        parts.append(graph.Part(at, rows * row, graph.Beside(row, sum(widths))))
        at += rows * row + 5
    made = rows * sum(widths)
    told: dict[str, Any] = {"shard": 700, "size": at, "made": made}
    found = origin.run("turned", model=origin.model, parts=fields(parts), **told)
    data = bytes(i * 151 >> 3 & 255 for i in range(at))
    assert bytes(found["bytes"]) == beside_one_another(parts, data)
    assert not found["left"]


def test_float32_of_a_file_becomes_float16_on_the_gpu(origin: Origin) -> None:
    """Behind bytes that stay as they are, from anywhere in the file; float16 does not hold some of the numbers."""
    parts = [graph.Part(5, 8), graph.Part(21, 4000, graph.Narrow()), graph.Part(4103, 8, graph.Narrow())]
    made = sum(part.made for part in parts)
    told: dict[str, Any] = {"shard": 700, "size": 4200, "made": -(-made // 16) * 16}
    found = origin.run("turned", model=origin.model, parts=fields(parts), **told)
    data = bytes(i * 151 >> 3 & 255 for i in range(4200))
    wanted = b"".join(part_bytes(part, data) for part in parts)
    assert np.array_equal(
        np.frombuffer(bytes(found["bytes"])[: len(wanted)], np.float16),
        np.frombuffer(wanted, np.float16),
        equal_nan=True,
    )
    assert not found["left"]


@pytest.mark.parametrize("bits", [16, 32])
def test_a_rotary_table_is_computed_behind_bytes_of_the_file(origin: Origin, bits: int) -> None:
    """Cosines and sines of thousands of positions; the double-precision sine and cosine of either side may round
    otherwise."""
    frequencies = base64.b64encode(np.array([1.0, 0.1, 0.5e-3, 2e-5], np.float32).tobytes()).decode()
    tables = [graph.Angles("cos", 3000, frequencies, 1.0, bits), graph.Angles("sin", 3000, frequencies, 0.75, bits)]
    parts = [graph.Part(8, 4, tables[0]), graph.Part(12, 8), graph.Part(8, 4, tables[1])]
    made = sum(part.made for part in parts)
    data = bytes(range(32))
    told: dict[str, Any] = {"data": base64.b64encode(data).decode(), "parts": fields(parts), "made": made}
    found = base64.b64decode(origin.run("unpacked", model=origin.model, **told))
    at = 0
    for part in parts:
        wanted, kind = part_bytes(part, data), np.dtype(f"f{bits // 8}") if part.change else np.dtype("u1")
        held = np.frombuffer(found[at : at + part.made], kind).astype(np.float64)
        assert np.abs(held - np.frombuffer(wanted, kind)).max() <= (1e-3 if bits == 16 else 6.1e-8)
        at += part.made


def test_tensors_of_a_gguf_file_are_unpacked_on_the_gpu(origin: Origin) -> None:
    """Every type and everything that a buffer may have of it, byte for byte; the last two are beside one another."""
    rows, columns = 8, 512
    data, parts, wanted = bytearray(), list[graph.Part](), list[bytes]()
    for kind in GgmlType:
        tensor = random_tensor(kind, rows, columns, seed=kind)
        for how in (*ways(kind, rows, columns), *ways(kind, rows, columns, halves=4)):
            parts.append(graph.Part(len(data), len(tensor), how))
            wanted.append(definition.unpacked(how, tensor).tobytes())
        data += tensor
    beside = graph.Unpack(GgmlType.F16, "values", rows, columns, 16, stride=2 * rows)
    place = next(part.offset for part in parts if isinstance(part.change, graph.Unpack) and part.change.type == 1)
    tensor = bytes(data[place : place + 2 * rows * columns])
    parts += [graph.Part(place, len(tensor), beside)] * 2
    wanted.append(np.tile(definition.unpacked(beside, tensor), (1, 2)).tobytes())
    whole = b"".join(wanted)
    told: dict[str, Any] = {
        "data": base64.b64encode(data).decode(),
        "parts": fields(parts),
        "made": -(-len(whole) // 16) * 16,
    }
    found = base64.b64decode(origin.run("unpacked", model=origin.model, **told))
    at = 0
    for part, bytes_ in zip(parts, wanted, strict=False):
        assert found[at : at + len(bytes_)] == bytes_, part
        at += len(bytes_)


ALTERNATING: dict[str, tuple[Literal["quants", "scales"], int, int]] = {
    "quants in 4 bits": ("quants", 4, 1),
    "in 8": ("quants", 8, 1),
    "scales": ("scales", 16, 16),
}


@pytest.mark.parametrize("what", list(ALTERNATING))
def test_rows_of_tensors_alternate_on_the_gpu(origin: Origin, what: str) -> None:
    """Experts have more bits, and scales for fewer elements, than the file."""
    rows, columns = 8, 512
    kinds = [GgmlType.Q4_0, GgmlType.Q3_K if "4" in what else GgmlType.Q6_K]
    tensors = [random_tensor(kind, rows, columns, seed=kind) for kind in kinds]
    part, bits, block = ALTERNATING[what]
    between = columns // block * bits // 8
    changes = [graph.Unpack(kind, part, rows, columns, bits, block, between=between) for kind in kinds]
    parts = [graph.Part(0, len(tensors[0]), changes[0]), graph.Part(len(tensors[0]), len(tensors[1]), changes[1])]
    wanted = np.concatenate([definition.unpacked(*each) for each in zip(changes, tensors, strict=True)], axis=1)
    data = base64.b64encode(b"".join(tensors)).decode()
    found = origin.run("unpacked", model=origin.model, data=data, parts=fields(parts), made=wanted.nbytes)
    assert base64.b64decode(found) == wanted.tobytes()


def test_a_small_file_that_breaks_off_is_an_error_that_names_it(origin: Origin) -> None:
    path = f"/models/{origin.model}/tokenizer.json"
    origin.server.faults[path] = Faults(cut_at=1000)
    found = origin.load()
    assert found["error"].startswith(f"ModelFileError: {path} broke off while it was read: "), found["error"]
    assert found["error"].endswith("(tried 3 times)")
    del origin.server.faults[path]
    assert origin.load()["error"] is None


@pytest.mark.extended
def test_the_wasm_device_stores_and_verifies_too(origin: Origin) -> None:
    origin.write_manifest()
    origin.faults.spoilt[5 * SHARD + 7] = 1
    assert origin.load(device="wasm")["stored"] == [WHOLE]
    assert origin.sent == SIZE + SHARD + BEHIND
    assert origin.load()["error"] is None
    assert origin.sent == 0


def test_an_interrupted_download_goes_on_where_it_stopped(origin: Origin) -> None:
    kept = 6 * SHARD
    broken = origin.interrupt(kept + 5000)
    assert broken["error"].startswith(f"ModelFileError: {origin.server.url[:-1]}{origin.path}: the download stopped at")
    assert f"byte {kept} of {SIZE}, 3 times" in broken["error"]
    assert f"{kept} bytes are kept; load the model again to continue" in broken["error"]
    assert origin.load()["stored"] == [WHOLE]
    assert (origin.sent, origin.ranges) == (SIZE - kept, [f"bytes={kept}-"])


def test_shards_may_end_anywhere_in_a_weight(origin: Origin) -> None:
    for _ in range(2):
        assert origin.load(shard_bytes=5003)["stored"] == [WHOLE]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("ranges", [True, False])
def test_a_large_file_is_asked_for_in_parts(ranges: bool, origin: Origin) -> None:
    origin.faults.no_ranges = not ranges
    assert origin.load(request_bytes=4 * SHARD)["stored"] == [WHOLE]
    parts = [f"bytes={at}-{at + 4 * SHARD - 1}" for at in range(0, SIZE - 4 * SHARD, 4 * SHARD)]
    last = f"bytes={len(parts) * 4 * SHARD}-"
    assert (origin.sent, origin.ranges) == (SIZE, [*parts, last] if ranges else parts[:1])


def test_the_next_part_is_asked_for_before_the_one_before_ends(origin: Origin) -> None:
    origin.faults.hold_at = 4 * SHARD - 1
    origin.server.forget()
    origin.tab().begin("weights", "load", origin.model, model=origin.model, request_bytes=4 * SHARD)
    parts = [f"bytes={at}-{at + 4 * SHARD - 1}" for at in (0, 4 * SHARD)]
    # The last piece of the first part is held back by the server.
    origin.wait(lambda: len(origin.ranges) > 1, "the second part is asked for")
    assert origin.ranges == parts
    assert origin.faults.held.is_set()
    origin.faults.hold_at = None
    origin.faults.released.set()
    assert origin.tab().end()["stored"] == [WHOLE]
    assert origin.sent == SIZE


@pytest.mark.extended
def test_a_server_without_ranges_is_read_in_one_stream_and_resumed(origin: Origin) -> None:
    origin.faults.no_ranges = True
    origin.interrupt(6 * SHARD)
    assert origin.load()["stored"] == [WHOLE]
    assert origin.sent == SIZE


@pytest.mark.one_in(6)
@pytest.mark.parametrize(
    "told",
    [
        f"bytes 0-{SIZE - 6 * SHARD - 1}/{SIZE}",
        f"bytes {6 * SHARD}-{SIZE}/{SIZE + 1}",
        f"bytes {6 * SHARD}-{SIZE - 2}/{SIZE}",
        f"bytes {6 * SHARD}-{SIZE - 1}/{SIZE - 7}",
        "",
    ],
)
def test_another_range_than_was_asked_for_is_an_error_and_nothing_of_it_is_stored(told: str, origin: Origin) -> None:
    """Another start, end, length or size, or none told: the body is of the range asked for all the same."""
    origin.interrupt(6 * SHARD)
    origin.faults.reported_range = told
    found = origin.load()
    assert found["error"].startswith(("ModelFileError: ", "WeightsChangedError: ")), found["error"]
    assert f"asked for bytes {6 * SHARD}- and answered with {told or 'a part of the file'}" in found["error"]
    assert [complete for *_, complete, _ in found["stored"]] == [False]
    origin.faults.reported_range = None
    assert origin.load()["stored"] == [WHOLE]


@pytest.mark.extended
@pytest.mark.parametrize("silent", [True, False])
def test_a_server_that_stalls_is_given_up_and_asked_again(silent: bool, origin: Origin) -> None:
    """Before its headers, or in the body."""
    origin.faults.silent = silent
    origin.faults.hold_at = None if silent else 6 * SHARD
    tab = origin.tab()
    origin.server.forget()
    tab.begin("weights", "load", origin.model, model=origin.model, stall_timeout=1.0)
    assert origin.faults.held.wait(WAIT_S)
    released = origin.faults.released
    # Requests from now on are answered; earlier ones stay without an answer.
    origin.server.faults.clear()
    found = tab.end()
    released.set()
    assert (found["error"], found["stored"]) == (None, [WHOLE])


@pytest.mark.extended
def test_a_server_that_never_answers_is_an_error_that_names_the_timeout(origin: Origin) -> None:
    origin.faults.silent = True
    found = origin.load(stall_timeout=0.2)
    assert found["error"].startswith("ModelFileError: ")
    assert "the server has not answered for 0.2 s)" in found["error"]
    assert "(tried 3 times)" in found["error"]
    assert "?" not in found["error"]
    assert origin.load(stall_timeout=True)["error"].startswith("ArgumentTypeError: Model.load: stall_timeout is True")
    origin.faults.released.set()
    assert origin.load(stall_timeout=30)["error"] is None


def test_a_server_that_is_busy_is_asked_again_when_it_says(origin: Origin) -> None:
    config = origin.server.faults.setdefault(f"/models/{origin.model}/genai_config.json", Faults())
    origin.faults.refusals = [{"Retry-After": "0"}, {}]
    config.refusals = [{}]
    found = origin.load()
    assert (found["error"], found["stored"], origin.ranges) == (None, [WHOLE], [None] * 3)
    config.refusals = [{"Retry-After": "3600"}]
    error = origin.load()["error"]
    assert "the server answered HTTP 503; try again later (tried 1 time; the server requests a wait of 3600 s)" in error


@pytest.mark.extended
def test_a_page_in_place_of_the_weights_is_told(origin: Origin) -> None:
    origin.faults.page = True
    assert f"{origin.path}: the server answers with an HTML page" in origin.load()["error"]
    origin.faults.page = False
    for name in ("model.onnx.data.shards.json", "chat_template.jinja"):
        origin.server.faults[f"/models/{origin.model}/{name}"] = Faults(page=True)
    assert origin.load()["error"] is None


@pytest.mark.extended
def test_digests_are_checked_where_the_browser_has_no_sha_256(origin: Origin) -> None:
    """As in pages from insecure origins."""
    origin.run("insecure")
    try:
        origin.write_manifest()
        origin.faults.spoilt[5 * SHARD + 7] = 1
        assert origin.load()["stored"] == [WHOLE]
        # The stream ends at the spoilt shard; its server may have sent all of it by then.
        assert SIZE + SHARD <= origin.sent <= SIZE + SHARD + BEHIND
    finally:
        origin.run("secure")
    assert origin.run("verify") == [[]]


def test_a_large_file_is_hashed_in_a_worker_of_its_own(origin: Origin) -> None:
    size, shard, spoilt = 72 << 20, 1 << 20, 60
    with (origin.folder / DATA).open("ab") as data:
        data.write(np.random.default_rng(0).bytes(size - SIZE))
    origin.faults.spoilt[spoilt * shard + 7] = 1
    origin.write_manifest(shard)
    # The download pauses until the worker has started.
    origin.faults.hold_at = 2 * shard
    harness = origin.tab().harness
    harness.begin(exec_request(TRACED, (), [f"/models/{origin.model}/", str(shard)], "traced.py"))
    origin.wait(origin.faults.held.is_set, "the download pauses")
    deadline = time.monotonic() + WAIT_S
    while "started" not in harness.text("stderr"):
        assert time.monotonic() < deadline
        harness.page.wait_for_timeout(50)
    origin.faults.hold_at = None
    origin.faults.released.set()
    told = harness.end_exec()
    assert told.status == 0, told.stderr
    assert 0 < sum(map(int, told.stdout.split())) < size // shard
    assert origin.run("stored") == [[size, size, True, []]]
    assert origin.run("verify") == [[]]
    assert origin.sent > size


def test_a_shard_that_is_spoilt_on_the_way_is_fetched_again_alone(origin: Origin) -> None:
    origin.write_manifest()
    origin.faults.spoilt[5 * SHARD + 7] = 2
    found = origin.load()
    assert (found["error"], found["stored"]) == (None, [WHOLE])
    again = f"bytes={5 * SHARD}-{6 * SHARD - 1}"
    behind = f"bytes={6 * SHARD}-"
    assert SIZE + 2 * SHARD <= origin.sent <= SIZE + 2 * SHARD + BEHIND
    assert origin.ranges == [None, again, again, behind]


def test_a_folder_without_digests_is_served_with_them_and_verified(origin: Origin, tmp_path: Path) -> None:
    """As `build.py run`, `serve` and `exec` serve it."""
    names = sorted(path.name for path in origin.folder.iterdir())
    origin.server.digests = Digests(tmp_path / "digests")
    origin.faults.spoilt[5 * SHARD + 7] = 1
    try:
        found = origin.load()
    finally:
        origin.server.digests = None
    assert (found["error"], found["warnings"], found["stored"]) == (None, [], [WHOLE])
    assert origin.ranges == [None, f"bytes=0-{SIZE - 1}"]
    assert sorted(path.name for path in origin.folder.iterdir()) == names


def test_a_shard_that_stays_wrong_is_an_error_and_nothing_is_stored(origin: Origin) -> None:
    origin.write_manifest()
    origin.faults.spoilt[5 * SHARD + 7] = 99
    found = origin.load()
    assert found["error"].startswith("ModelFileError: ")
    assert f"shard 5 (bytes {5 * SHARD} to {6 * SHARD}) has SHA-256" in found["error"]
    assert found["stored"] == []
    origin.faults.spoilt.clear()
    assert origin.load()["stored"] == [WHOLE]


def test_damage_on_disk_is_found_by_verify_and_repaired_alone(origin: Origin) -> None:
    origin.load()
    assert origin.run("verify") == [[]]
    origin.run("spoil", position=9 * SHARD + 1)
    assert origin.run("verify") == [[9]]
    assert origin.run("stored") == [[SIZE, SIZE, True, [9]]]
    assert origin.load()["stored"] == [WHOLE]
    assert origin.ranges == [f"bytes={9 * SHARD}-{10 * SHARD - 1}"]
    assert origin.run("verify") == [[]]


@pytest.mark.extended
def test_damage_on_disk_is_found_between_requests_and_the_next_one_loads_anew(origin: Origin) -> None:
    # A content of its own: other tabs look after what they loaded.
    origin.change()
    origin.load()
    origin.run("spoil", position=9 * SHARD + 1)
    page = origin.context.new_page()
    page.set_default_navigation_timeout(BOOT_MS)
    harness = Harness(page, origin.server.url, "?verify=200")
    asked: dict[str, Any] = {"prompt_ids": [5, 6, 7], "max_new_tokens": 4, "device": "wasm"}
    origin.server.forget()
    harness.generate(origin.model, **asked)
    assert origin.ranges == []
    deadline = time.monotonic() + WAIT_S
    while not (told := [event for event in harness.events if event["kind"] == "damaged"]):
        assert time.monotonic() < deadline
        page.wait_for_timeout(50)
    address = f"{origin.server.url[:-1]}{origin.path}"
    assert told == [{"kind": "damaged", "sources": [address], "shards": SHARDS, "damaged": [9]}]
    assert f"{address}: 1 of {SHARDS} shards (9) changed on disk since they were stored" in harness.text("stderr")
    assert harness.generate(origin.model, **asked)["token_ids"] == oracle.greedy(origin.folder, [5, 6, 7], 4)
    assert origin.ranges == [f"bytes={9 * SHARD}-{10 * SHARD - 1}"]
    assert harness.errors == []
    page.close()
    assert origin.run("verify") == [[]]


@pytest.mark.extended
def test_what_was_evicted_or_cut_short_is_loaded_anew(origin: Origin) -> None:
    origin.load()
    origin.run("shorten", size=0)
    found = origin.load()
    assert (found["error"], found["warnings"], found["stored"], origin.sent) == (None, [], [WHOLE], SIZE)
    origin.run("shorten", size=SIZE - 1)
    found = origin.load()
    assert (found["error"], found["stored"], origin.sent) == (None, [WHOLE], SIZE)
    [warning] = found["warnings"]
    assert f"{SIZE - 1} bytes are left of {SIZE}; the weights come from their source" in warning


def test_a_changed_file_is_loaded_anew(origin: Origin) -> None:
    origin.load()
    origin.change()
    found = origin.load()
    assert (found["error"], found["stored"], origin.sent) == (None, [WHOLE], SIZE)
    [warning] = found["warnings"]
    assert f"{origin.path} changed since it was stored: it was etag " in warning


def test_a_file_that_changes_during_the_download_is_an_error_and_what_was_stored_stays(origin: Origin) -> None:
    origin.load()
    before = (origin.folder / DATA).read_bytes()
    stamp = (origin.folder / DATA).stat()
    origin.change()
    origin.faults.cut_at = origin.faults.hold_at = 6 * SHARD
    tab = origin.tab()
    origin.begin(tab)
    assert origin.faults.held.wait(WAIT_S)
    origin.change()
    os.utime(origin.folder / DATA, ns=(stamp.st_atime_ns, stamp.st_mtime_ns + 10**9))
    origin.faults.released.set()
    tab.harness.end()
    assert "WeightsChangedError: " in tab.harness.text("stdout"), tab.harness.text("stderr")
    assert "changed since the load began" in tab.harness.text("stdout")
    origin.server.faults.clear()
    (origin.folder / DATA).write_bytes(before)
    os.utime(origin.folder / DATA, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    assert origin.load()["stored"] == [WHOLE]
    assert origin.sent == 0


def test_a_changed_file_that_has_broken_off_already_is_one_error(origin: Origin) -> None:
    origin.run("broken", etag='"another"')
    found = origin.load()
    origin.run("not_broken")
    assert found["error"].startswith("WeightsChangedError: "), found["error"]


def test_too_small_a_quota_is_a_warning(origin: Origin) -> None:
    session = origin.context.new_cdp_session(origin.tab().harness.page)
    session.send("Storage.overrideQuotaForOrigin", {"origin": origin.server.url[:-1], "quotaSize": 1})
    found = origin.load()
    session.send("Storage.overrideQuotaForOrigin", {"origin": origin.server.url[:-1]})
    assert (found["error"], found["stored"], origin.sent) == (None, [], SIZE)
    # Notes of the model's graphs, and of the device's capabilities unless the tab knows them already; and their
    # folder, unless it is there.
    *notes, store = sorted(found["warnings"])
    assert notes
    kinds = ("notes for the next page load: ", "the browser's private file system: ")
    assert all(warning.startswith(kinds) for warning in notes), found["warnings"]
    assert store.startswith("the weight store: ")
    assert all("the browser's storage for this origin is full" in warning for warning in found["warnings"])


def test_a_disk_that_fills_up_is_a_warning_and_the_load_goes_on(origin: Origin) -> None:
    origin.run("full", after=4)
    found = origin.load()
    origin.run("not_full")
    assert (found["error"], found["stored"], origin.sent) == (None, [], SIZE)
    [warning] = found["warnings"]
    assert "the browser's storage for this origin is full; the weights come from their source" in warning


@pytest.mark.extended
def test_a_file_that_another_tab_writes_is_a_warning_and_the_load_goes_on(origin: Origin) -> None:
    kept = 6 * SHARD
    origin.interrupt(kept)
    assert origin.run("lock", tab=1) == 1
    found = origin.load()
    assert (found["error"], origin.sent) == (None, SIZE)
    [warning] = found["warnings"]
    assert "another tab has it open; the weights come from their source" in warning
    origin.run("unlock", tab=1)
    assert origin.load()["stored"] == [WHOLE]
    assert origin.sent == SIZE - kept


@pytest.mark.extended
def test_a_whole_file_that_another_tab_has_locked_is_read_all_the_same(origin: Origin) -> None:
    origin.load()
    origin.run("lock", tab=1)
    found = origin.load()
    origin.run("unlock", tab=1)
    assert (found["error"], found["warnings"], origin.sent) == (None, [], 0)


@pytest.mark.extended
def test_a_record_that_another_tab_appends_to_is_read_again(origin: Origin) -> None:
    origin.load()
    try:
        origin.run("appended", times=5)
        assert origin.run("stored") == [WHOLE]
        origin.run("appended", times=10**6)
        with pytest.raises(AssertionError, match=r"StorageError: .*the file has changed"):
            origin.run("stored")
    finally:
        origin.run("not_appended")


@pytest.mark.extended
def test_a_page_that_dies_during_a_download_leaves_nothing_that_looks_whole(origin: Origin) -> None:
    kept = origin.faults.hold_at = 6 * SHARD
    released = origin.faults.released
    tab = origin.tabs.pop()
    assert tab is not origin.tab(0)
    origin.begin(tab)
    origin.wait_until_stored(kept, tab=0)
    tab.harness.page.close()
    # A browser ends the worker of a page that is gone when it gets to it.
    origin.wait(lambda: origin.run("locked") == 0, "the page that is gone lets go of the data file")
    [[size, there, complete, _]] = origin.run("stored")
    assert (size, there, complete) == (SIZE, kept, False)
    origin.server.faults.clear()
    assert origin.load()["stored"] == [WHOLE]
    assert origin.sent == SIZE - kept
    released.set()


def test_the_store_can_be_turned_off(origin: Origin) -> None:
    for _ in range(2):
        found = origin.load(disable_file_mapped_weights=True)
        assert (found["error"], found["warnings"], found["stored"]) == (None, [], [])
        assert len(origin.ranges) == 1


@pytest.mark.extended
@pytest.mark.parametrize("disabled", [False, True])
def test_models_of_the_same_files_share_one_set_of_buffers(disabled: bool, origin: Origin) -> None:
    first = origin.load(keep=True, disable_file_mapped_weights=disabled)
    second = origin.load(keep=True, disable_file_mapped_weights=disabled)
    assert origin.ranges == []
    assert second["handles"] == first["handles"]
    left = origin.run("close_kept")
    assert len(left) == len(first["handles"])
    assert origin.run("close_kept") == []


def test_what_is_picked_is_stored_too(origin: Origin) -> None:
    names = [path.name for path in origin.folder.iterdir()]
    for how in ("files", "folder"):
        first = origin.run("pick", model=origin.model, names=names, how=how)
        assert (first["error"], first["warnings"], first["weights"]) == (None, [], origin.weights())
        assert first["fits"]
    assert first["stored"] == [WHOLE]
    missing = origin.run("pick", model=origin.model, names=["genai_config.json", "tokenizer.json"], how="files")
    assert missing["error"].startswith("ModelFileError: picked:2-files-")
    assert "model.onnx is not in the picked folder" in missing["error"]


@pytest.mark.extended
def test_what_the_page_picked_reaches_the_worker(origin: Origin) -> None:
    origin.tab(1)
    ids = origin.tab().harness.evaluate(PICKED, f"/models/{origin.model}/")
    assert ids[0]
    assert ids == [ids[0]] * 4


@pytest.mark.extended
def test_tabs_read_the_same_files_at_the_same_time(origin: Origin) -> None:
    origin.load()
    tabs = [origin.tab(0), origin.tab(1)]
    origin.server.forget()
    for tab in tabs:
        origin.begin(tab)
    for tab in tabs:
        tab.harness.end()
        assert (tab.harness.text("stdout"), tab.harness.text("stderr")) == ("loaded\n", "")
    assert origin.sent == 0


@contextmanager
def visit(browser: Browser, origin: Origin, profile: Path) -> Iterator[Harness]:
    """A page in a browser of its own, whose storage is on the disk."""
    arguments = ["--headless=new", *flags(os.environ.get("CAPSTAN_ADAPTER", "software"))]
    context = browser.browser_type.launch_persistent_context(profile, executable_path=find_browser(), args=arguments)
    try:
        page = context.new_page()
        page.set_default_navigation_timeout(BOOT_MS)
        yield Harness(page, origin.server.url)
    finally:
        context.close()


@pytest.mark.extended
def test_what_is_stored_outlives_the_browser(browser: Browser, origin: Origin, tmp_path: Path) -> None:
    sent = []
    for _ in range(2):
        origin.server.forget()
        with visit(browser, origin, tmp_path / "profile") as harness:
            source = f"from capstan import Model\nawait Model.load('/models/{origin.model}/', device='wasm')"
            assert harness.exec(source).status == 0
        sent.append(origin.sent)
    assert sent == [SIZE, 0]


@pytest.mark.extended
def test_a_file_of_more_than_4_gib_is_stored_and_read_again(browser: Browser, origin: Origin, tmp_path: Path) -> None:
    origin.spread()
    size = (origin.folder / DATA).stat().st_size
    assert size > 1 << 32
    options = {"model": origin.model, "shard_bytes": 4 << 20, "request_bytes": 48 << 20}
    try:
        for sent in (size, 0):
            origin.server.forget()
            with visit(browser, origin, tmp_path / "profile") as harness:
                found = PageScripts.install(harness).run("weights", "load", origin.model, **options)
            assert (found["error"], found["warnings"], found["weights"]) == (None, [], origin.weights())
            assert (found["stored"], origin.sent) == ([[size, size, True, []]], sent)
    finally:
        shutil.rmtree(tmp_path / "profile")


def test_without_a_private_file_system_the_cache_keeps_the_weights(origin: Origin) -> None:
    for tab in range(2):
        origin.run("without", tab, names=["opfs"])
    try:
        assert origin.run("kind") == "cache"
        kept = 6 * SHARD
        origin.interrupt(kept)
        found = origin.load()
        assert (found["warnings"], found["stored"], origin.sent) == ([], [WHOLE], SIZE - kept)
        assert origin.load()["stored"] == [WHOLE]
        assert origin.sent == 0
        assert origin.run("verify") == [[]]
        assert origin.run("evict") == SIZE
        assert origin.run("stored") == []
    finally:
        for tab in range(2):
            origin.run("with_again", tab)


@pytest.mark.extended
def test_without_any_storage_the_weights_are_fetched_each_time(origin: Origin) -> None:
    origin.run("without", names=["opfs", "caches"])
    try:
        assert origin.run("kind") == "memory"
        for _ in range(2):
            found = origin.load()
            assert (found["error"], found["stored"]) == (None, [])
    finally:
        origin.run("with_again")


def test_without_etag_and_date_nothing_is_kept(origin: Origin) -> None:
    origin.faults.no_validators = True
    found = origin.load()
    assert (found["error"], found["stored"], origin.sent) == (None, [], SIZE)
    assert "comes without ETag and Last-Modified" in found["warnings"][0]
