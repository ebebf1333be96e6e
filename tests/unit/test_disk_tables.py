"""Tables that only lookups of tokens read stay on disk: runs compute the same, and read only rows of their tokens."""

from __future__ import annotations

import json
import shutil
import subprocess
from base64 import b64decode, b64encode
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from capstan import (
    FallbackWarning,
    Model,
    ModelFileError,
    OptionError,
    OutOfMemoryError,
    plan,
)
from capstan.device import probe
from capstan.device.device_host import Opening, current_device_host
from capstan.device.model_interface import TapeOptions
from capstan.device.table_reader import open_tables
from capstan.device.wasm.cpu_graph import prepare
from capstan.device.webgpu.webgpu_graphs import Graphs, rewrite
from capstan.device.webgpu.webgpu_model import WebGpuModel
from capstan.graph import GraphDescription, Unpack, external_entries, parse
from capstan.graph.gguf.gguf_types import PACKED
from capstan.loading import opening
from capstan.loading.folder import find_model, place_of, with_tables
from capstan.loading.found_model import FoundModel
from capstan.loading.load_options import FitOptions
from capstan.local.data_file import DiskParts
from capstan.local.local_host import LocalHost
from capstan.model_files.genai_config import DECODER, DISK_ROWS
from capstan.model_files.gguf.header import GgmlType
from capstan.stages.search import SearchOptions
from tests.gguf_models import FURTHER, MIXED, make, write
from tests.gguf_tensors import random_tensor
from tests.node import started
from tests.unit.graph_runs import NUMPY, session_of, weights_of
from tests.unit.paper_engine import PaperEngine
from tests.unit.paper_load import ABLE, PROBED, PaperFile, load_on_paper, unread

FIXTURES = Path(__file__).parents[1] / "fixtures"
FOLDER = FIXTURES / "repositories/nano-gemma4"
CASES = json.loads((FOLDER / "expected.json").read_text())["cases"]
OTHERS = (272, 273)
PROMPT = [(37 * i + 11) % 509 for i in range(30)]
DATA = FOLDER / "onnx"
ON_DISK: FitOptions = {"embedding_tables": "disk"}


class DiskFile(PaperFile):
    """A data file that can be read."""

    async def opened(self, end: int, progress: object) -> DiskParts:
        return DiskParts(DATA / self.content)


async def opened(location: str) -> Any:
    return DiskFile(location)


async def picked(model: Model, prompt: Sequence[int], count: int) -> tuple[list[int], dict[str, int]]:
    """Greedy ids, and what was counted."""
    decoder = await model.decoder(len(prompt) + count)
    decoder.set_search(SearchOptions())
    await decoder.row(0).prefill(prompt, 0)
    ids = [(await decoder.submit(1, step == 0)).ids[-1] for step in range(count)]
    return ids, dict(decoder.counters())


@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
async def test_ids_are_those_of_transformers_and_only_rows_of_tokens_are_read(case: dict[str, Any]) -> None:
    prompt, wanted = case["prompt"], case["ids"]
    async with await Model.load(str(FOLDER), embedding_tables="disk") as model:
        ids, counts = await picked(model, prompt, len(wanted))
        row = sum(table.row_bytes for table in model.graph.tables)
    assert ids == wanted
    runs = [[*set(prompt)], *([each] for each in wanted[:-1])]
    # The row of a token that follows itself is still there.
    changed = [runs[0], *(run for before, run in pairwise(runs) if run != before)]
    assert (counts["table_reads"], counts["table_bytes"]) == (len(changed), row * sum(map(len, changed)))


async def test_the_memory_is_smaller_by_the_tables() -> None:
    sizes = {}
    for place in ("memory", "disk"):
        planned = (await plan(str(FOLDER), embedding_tables=place)).requirements
        async with await Model.load(str(FOLDER), embedding_tables=place) as model:
            found = model.query_memory_requirements()
        assert (found.weights, found.looked_up) == (planned.weights, planned.looked_up)
        sizes[place] = found.weights.bytes, found.looked_up
    assert sizes["memory"][0] - sizes["disk"][0] == sizes["memory"][1]
    data = parse((FOLDER / "onnx/embed_tokens_q4.onnx").read_bytes(), "")
    assert sizes["memory"][1] == sum(entry.length for entry in external_entries(data))
    assert sizes["disk"][1] == 0


async def test_tokens_without_rows_of_their_own_have_the_same_logits() -> None:
    """The ids of pictures and sounds take row 0 of the layers' table, but not of the other one."""
    logits = []
    for place in ("memory", "disk"):
        async with await Model.load(str(FOLDER), embedding_tables=place) as model:
            others = {token: row for table in model.graph.tables for token, row in table.moved}
            decoder = await model.decoder(64)
            decoder.set_search(SearchOptions())
            await decoder.row(0).prefill([5, *OTHERS, 0, OTHERS[0], 6], 0)
            logits.append(bytes(await decoder.row(0).logits()))
    assert others == dict.fromkeys(OTHERS, 0)
    assert logits[0] == logits[1]


@pytest.mark.one_in(4)
@pytest.mark.parametrize("kind", [None, *GgmlType], ids=lambda kind: kind.name if kind else "mixed")
async def test_rows_of_a_gguf_file_are_unpacked_as_its_table_is(kind: GgmlType | None, tmp_path: Path) -> None:
    types = MIXED if kind is None else {"": GgmlType.Q4_0, "per_layer_token_embd": kind}
    made = make("gemma4", types, FURTHER["gemma4"], vocabulary=512)
    file = write(made, tmp_path / "a model.gguf")
    found = []
    for place in ("memory", "disk"):
        async with await Model.load(str(file), embedding_tables=place) as model:
            found.append((await picked(model, PROMPT, 8))[0])
            tables, weights = model.graph.tables, model.query_memory_requirements().weights.bytes
            assert (place == "disk") == bool(tables)
    assert found[0] == found[1]
    wanted = made.defined([*PROMPT, *found[1]])[len(PROMPT) - 1 :]
    assert np.all(wanted[:8].max(-1) - wanted[np.arange(8), found[1]] <= 2e-3 * np.abs(wanted).max())
    # The table of the output is also that of the embeddings, and stays.
    assert {table.entry.name.rpartition(".")[0] for table in tables} == {"model.embed_tokens_per_layer"}
    assert weights > 0


@pytest.fixture(scope="module")
def node() -> subprocess.Popen[str]:
    return started(Path(__file__).with_name("disk_tables_server.mjs"))


def asked(node: subprocess.Popen[str], **what: Any) -> Any:
    assert node.stdin
    assert node.stdout
    node.stdin.write(json.dumps(what) + "\n")
    node.stdin.flush()
    return json.loads(node.stdout.readline())


@pytest.mark.parametrize("kind", list(GgmlType), ids=lambda kind: kind.name)
def test_the_page_unpacks_rows_as_defined(kind: GgmlType, node: subprocess.Popen[str]) -> None:
    rows, columns = 3, 512
    data, packing = random_tensor(kind, rows, columns, seed=kind), PACKED.get(kind)
    ways = [Unpack(kind, "values", rows, columns, bits) for bits in (16, 32)]
    if packing is not None:
        shift, block = packing.shift or 0, packing.block
        ways += [Unpack(kind, "quants", rows, columns, packing.bits, shift=shift)]
        ways += [Unpack(kind, "scales", rows, columns, bits, block, shift=shift) for bits in (16, 32)]
    if packing is not None and packing.shift is not None:
        ways += [Unpack(kind, "minima", rows, columns, bits, block, shift=shift) for bits in (16, 32)]
    for how in ways:
        told = {"rows": b64encode(data).decode(), "change": [how.kind, *vars(how).values()]}
        assert b64decode(asked(node, **told)["bytes"]) == current_device_host().unpack_rows(data, how), how


@pytest.mark.parametrize("kind", ["locked", "shared", "picked"])
def test_the_page_reads_parts_of_a_file_and_says_when_it_ends(kind: str, node: subprocess.Popen[str]) -> None:
    data = bytes(range(200))
    told = {"file": kind, "data": b64encode(data).decode()}
    found = asked(node, **told, places=[[3, 5], [190, 10], [0, 0], [4, 2]])
    assert b64decode(found["bytes"]) == data[3:8] + data[190:] + data[4:6]
    assert asked(node, **told, places=[[3, 5], [190, 11]]) == {
        "code": "StorageError",
        "message": f"the {kind} file: 10 of the 11 bytes from byte 190 on can be read; load the model again",
    }


async def test_a_file_that_is_cut_off_is_an_error(tmp_path: Path) -> None:
    folder = shutil.copytree(FOLDER, tmp_path / "gemma4")
    file = folder / "onnx/embed_tokens_q4.onnx_data"
    size = file.stat().st_size
    async with await Model.load(str(folder), embedding_tables="disk") as model:
        with file.open("r+b") as opened:
            opened.truncate(size - 4000)
        with pytest.raises(ModelFileError, match=r"onnx_data: \d+ bytes, but the model reads up to byte \d+; copy the"):
            await picked(model, [271], 1)
    with pytest.raises(ModelFileError, match=r"onnx_data: \d+ bytes, but model.onnx names weights up to byte \d+"):
        await Model.load(str(folder), embedding_tables="disk")


async def test_a_table_that_a_product_reads_too_stays(tmp_path: Path) -> None:
    file = write(make("llama", {"": GgmlType.Q4_0}, vocabulary=512), tmp_path / "a model.gguf")
    with pytest.raises(OptionError, match="embedding_tables is 'disk', but .* has no table that only lookups"):
        await Model.load(str(file), embedding_tables="disk")


async def found_model() -> FoundModel:
    host = current_device_host()
    return await find_model(host, await place_of(host, str(FOLDER), True), "cpu", None)


async def rewritten(found: FoundModel, place: str) -> Graphs:
    config = with_tables(found.config, {"embedding_tables": place})
    return await rewrite(found.graphs[DECODER], config, unread, 10, largest=1 << 30)


async def rows_of(about: GraphDescription, tokens: Sequence[int]) -> list[bytes]:
    reader, _ = await open_tables(about.tables, opened, lambda *_: None)
    if reader is None:
        return []
    rows, _ = await reader.rows(tokens)
    reader.close()
    return rows


async def fed(about: GraphDescription, ids: Sequence[int], room: int) -> dict[str, Any]:
    """The inputs of a run besides weights, with room for more rows than those of the ids."""
    tokens = list(dict.fromkeys(ids))
    made: dict[str, Any] = {DISK_ROWS: np.array([[tokens.index(token) for token in ids]])}
    for table, data in zip(about.tables, await rows_of(about, tokens), strict=True):
        kept = np.frombuffer(data, NUMPY[table.entry.dtype]).reshape(len(tokens), *table.row)
        made[table.entry.name] = np.concatenate([kept, np.full((room - len(tokens), *table.row), 9, kept.dtype)])
    made |= {pair.past: np.zeros(pair.dims(1, 16), np.float32) for pair in about.cache}
    count = len(ids)
    return made | {about.input_ids: np.array([ids]), about.mask: np.array([[1] * count + [0] * (16 - count)])}


@pytest.mark.parametrize(("name", "ids", "room"), [("captured prefill", [5, OTHERS[0], 5, 9], 5), ("decoder", [9], 1)])
async def test_the_graphs_on_webgpu_compute_the_same(name: str, ids: list[int], room: int) -> None:
    logits = []
    for place in ("memory", "disk"):
        graphs = await rewritten(await found_model(), place)
        given = await fed(graphs.description, ids, room)
        for entry in graphs.weights:
            given |= weights_of([entry], (DATA / entry.location).read_bytes())
        session = session_of(parse(graphs.sessions[name].model))
        names = {value.name for value in session.get_inputs()}
        assert names - {entry.name for entry in graphs.weights} == set(graphs.sessions[name].inputs)
        logits += session.run([graphs.description.logits], {each: given[each] for each in names})
    assert np.array_equal(*logits)


async def test_the_graph_on_the_cpu_computes_the_same_without_the_file_of_the_tables() -> None:
    logits, ends = [], []
    for place in ("memory", "disk"):
        found = await found_model()
        made = prepare(parse(found.graphs[DECODER]), with_tables(found.config, {"embedding_tables": place}), 0)
        options = onnxruntime.SessionOptions()
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(DATA))
        session = onnxruntime.InferenceSession(made.model, options, providers=["CPUExecutionProvider"])
        given = {**await fed(made.about, [5, OTHERS[0], 5, 9], 5), "capstan_first_logits": np.array([-1])}
        names = [value.name for value in session.get_inputs()]
        logits += session.run([made.about.logits], {each: given[each] for each in names})
        ends.append(dict(made.data))
    assert np.array_equal(*logits)
    size = (DATA / "embed_tokens_q4.onnx_data").stat().st_size
    assert {*ends[0].items()} - {*ends[1].items()} == {("embed_tokens_q4.onnx_data", size)}


async def test_a_step_on_webgpu_begins_once_the_rows_of_its_token_are_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(probe.remembered, PROBED, ABLE)
    found, engine = await found_model(), PaperEngine()
    graphs = await rewritten(found, "disk")
    config, options = with_tables(found.config, ON_DISK), TapeOptions(capture="off")
    with pytest.warns(FallbackWarning, match=r"steps ahead of the reader: each reads 246 bytes of rows for its"):
        loaded = await load_on_paper(engine, graphs, config, options, opened)
    assert "embed_tokens_q4.onnx_data" not in {entry.location for entry in graphs.weights}
    model = WebGpuModel(loaded, options)
    decoder = await model.decoder(64)
    decoder.set_search(SearchOptions())
    assert (decoder.max_burst, decoder.max_in_flight, decoder.after_first) == (1, 1, 0)
    assert await model.draft_tape(decoder, 2, None) == "each token waits for its rows of tables on disk"
    picks, seen, tables = iter([7, OTHERS[0], 7, 11]), list[list[bytes]](), graphs.description.tables

    def written() -> list[bytes]:
        spans = [(decoder.buffers.spans[f"input rows of {each.entry.name}"], each.row_bytes) for each in tables]
        return [bytes(engine._bytes(span.buffer.handle, 0, size)) for span, size in spans]

    async def eager_burst(*given: Any) -> list[float]:
        seen.append(written())
        return [0, 0, 0, 0, 0, next(picks)]

    monkeypatch.setattr(engine, "eager_burst", eager_burst, raising=False)
    await decoder.prefill([5, 9, 5], 0)
    for step in range(3):
        await decoder.submit(1, step == 0)
    await decoder.run_picked()
    assert [*seen[1:], written()] == [await rows_of(graphs.description, [token]) for token in (7, OTHERS[0], 7)]
    assert {key: count for key, count in decoder.counters().items() if "table" in key} == {
        "table_reads": 4,
        "table_bytes": 246 * 5,
    }
    await decoder.close()
    await model.close()
    assert not engine.wrong


@pytest.mark.parametrize("place", [None, "memory"])
async def test_tables_that_do_not_fit_stay_on_disk_unless_asked_for_in_memory(
    place: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    opens, places = LocalHost.open_model, list[bool]()

    async def open_model(host: LocalHost, asked: Opening, device: str) -> Any:
        places.append(asked.config.decoder.tables_on_disk)
        if not places[-1]:
            raise OutOfMemoryError("the weights are too large")
        return await opens(host, asked, device)

    async def has_webgpu(host: LocalHost) -> bool:
        return True

    monkeypatch.setattr(LocalHost, "open_model", open_model)
    monkeypatch.setattr(LocalHost, "has_webgpu", has_webgpu)
    if place == "memory":
        with pytest.raises(OutOfMemoryError, match="the weights are too large"):
            await Model.load(str(FOLDER), embedding_tables=place)
        monkeypatch.setattr(opening, "LARGE", 1)
        with pytest.raises(OutOfMemoryError, match="the weights are too large"):
            await Model.load(str(FOLDER))
        assert places == [False, False]
        return
    with pytest.warns(
        FallbackWarning, match="tables of embeddings in memory: the weights are too large; each run reads"
    ):
        model = await Model.load(str(FOLDER))
    async with model:
        assert (await picked(model, CASES[0]["prompt"], 8))[0] == CASES[0]["ids"][:8]


async def test_a_plan_names_the_disk_as_the_remedy() -> None:
    need = (await plan(str(FOLDER))).requirements
    fit = await plan(str(FOLDER), budget=need.weights.bytes, max_length=1)
    remedy = f"its embedding tables of {need.looked_up} bytes on disk, or use a smaller model"
    assert fit.reason.endswith(f"; load the model with embedding_tables='disk', which leaves {remedy}")
    on_cpu = replace(fit, requirements=replace(need, device="wasm"), shortest=None)
    assert "disk" not in on_cpu.reason
    assert (
        f"than half of it: load the model with embedding_tables='disk', which leaves {remedy}"
        in replace(fit, machine=1 << 10).tight
    )
