"""Implements capstan.device.device_host.DeviceHost for a page: it fetches files, opens the WebGPU and CPU engines, and
waits by JavaScript Promise Integration.

A model folder is a URL of the page's origin that ends in a slash, or a path in Python's file system.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from base64 import b64decode, b64encode
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

from ..device.device_host import Opening, Planned, fit_beside
from ..device.device_interface import DeviceInterface
from ..device.model_interface import DeviceModel
from ..device.model_memory import ModelMemory
from ..device.model_origin import ModelOrigin
from ..device.noted_graphs import OpenWeights
from ..device.table_reader import open_tables
from ..device.wasm.cpu_graph import ALL_WIDE, WasmGraph, prepare, wasm_graph
from ..device.wasm.cpu_program import CpuProgram, program_memory
from ..device.wasm.program_planner import program_of
from ..device.wasm.wasm_device import WasmDevice
from ..device.wasm.wasm_model import WasmModel, wasm_memory
from ..device.webgpu.loaded_model import load, webgpu_memory
from ..device.webgpu.lora_model import LoraModel
from ..device.webgpu.webgpu_device import WebGpuDevice
from ..device.webgpu.webgpu_graphs import Graphs, model_graphs, rewrite
from ..errors import OptionError, UncomputedError
from ..fallback import fall_back
from ..graph import parse, without_weights
from ..host.load_times import phase
from ..host.notes import Notes, build, notes_of_files
from ..host.retrying import pause, retried
from ..host.storage_interface import MOST_GRAPH_BYTES, BrokenDownloadError, ExternalData, Progress
from ..loading.repository import ON_CPU, ON_F16, ON_F32
from ..memory import Fit
from ..model_files.bounded_json import MOST_BYTES
from ..model_files.file_names import address_of, folder_address, split_name
from ..model_files.file_names import gguf_address as gguf_place
from ..model_files.genai_config import DECODER
from ..model_files.hub import HubRepository
from ..tape import WorkgroupLimits
from ..weights.manifest import MANIFEST_SUFFIX
from ..weights.store import WeightStore
from ..weights.weight_file import WeightFile
from . import host_calls, page_storage
from .files import adopt_files, model_folder
from .host_calls import (
    begin_trace,
    can_wait,
    configure,
    end_trace,
    narrow_rows,
    now,
    phonemize,
    ready_made,
    token_walks,
    tokenizer_backend,
    unpack_rows,
    wait,
    widen_rows,
)
from .onnx_sessions import in_memory, wasm_opener
from .page_storage import backing, forget, listing, stall_after
from .wasm_session import JsWasmSession

__all__ = [
    "adopt",
    "adopt_files",
    "backing",
    "begin",
    "begin_trace",
    "can_wait",
    "configure",
    "dtypes",
    "end_trace",
    "exists",
    "fit",
    "forget",
    "gguf_place",
    "has_webgpu",
    "listing",
    "narrow_rows",
    "now",
    "open_device",
    "open_model",
    "open_weights",
    "phonemize",
    "read",
    "read_graph",
    "read_optional",
    "read_weights",
    "ready_made",
    "stall_after",
    "token_walks",
    "tokenizer_backend",
    "wait",
    "unpack_rows",
    "widen_rows",
]
"""The members of DeviceHost."""

T = TypeVar("T")

READ_WHOLE = 1 << 20
"""A repository's graph of at most this number of bytes is read whole."""

ReadOnnx = Callable[[], Awaitable[bytes]]
"""Reads the graph's file."""


async def read(
    folder: str, name: str, most: int = MOST_BYTES, progress: Callable[[int, int], None] | None = None
) -> bytes:
    return await host_calls.fetch_bytes(address_of(folder, name), most, progress)


async def read_optional(folder: str, name: str) -> bytes | None:
    return await host_calls.fetch_optional(address_of(folder, name), MOST_BYTES)


async def read_graph(folder: str, name: str, keep: bool, progress: Progress) -> bytes:
    place, location = split_name(name)
    size = await size_of(address_of(folder, name))
    if size is None or size <= READ_WHOLE:
        data = await read(folder, name, MOST_GRAPH_BYTES if size is None else READ_WHOLE)

        async def part(start: int, length: int) -> bytes:
            return data[start : start + length]

        return await without_weights(part, len(data), folder + name, location)
    store = WeightStore() if keep else None
    file = await weight_file(address_of(folder, place), location, store)
    if keep:
        # It is stored in one pass; the pieces then come from there.
        await file.load(page_storage.memory(0), size, partial(progress, location))
        file = await weight_file(address_of(folder, place), location, store)
    notes = notes_of_files() if keep and file.content is not None else None
    key = json.dumps([build(), file.content])
    noted = await notes.read(file.address, key) if notes else None
    if noted is not None:
        file.close()
        return b64decode(noted)
    try:
        graph = await without_weights(file.read, size, folder + name, location)
    finally:
        file.close()
    if notes:
        await notes.write(file.address, key, b64encode(graph).decode())
    return graph


async def read_weights(folder: str, name: str, offset: int, length: int) -> bytes:
    place, location = split_name(name)
    file = await weight_file(address_of(folder, place), location, WeightStore())
    try:
        return await file.read(offset, length)
    finally:
        file.close()


async def open_weights(folder: str, location: str, keep: bool) -> WeightFile:
    return await weight_file(folder, location, WeightStore() if keep else None)


async def exists(folder: str, name: str) -> bool:
    return await host_calls.file_exists(address_of(folder, name))


async def dtypes(device: str) -> tuple[str, ...]:
    chosen, _ = await choose_device(device)
    if chosen == "wasm":
        return ON_CPU
    adapter = await host_calls.adapter()
    return ON_F16 if adapter is not None and "shader-f16" in adapter["features"] else ON_F32


async def adopt(path: Any, keep: bool) -> str:
    if isinstance(path, HubRepository):
        return await page_storage.open_repository(path, keep)
    if not isinstance(path, str):
        return await page_storage.adopt(path)
    stored = await model_folder(path)
    if stored is not None:
        return stored
    folder = folder_address(path)
    if keep:
        page_storage.keep_folder(folder)
    return folder


async def open_model(opening: Opening, device: str) -> DeviceModel:
    folder, filename = opening.folder, opening.config.decoder.filename

    origin = ModelOrigin()

    async def open_weights(location: str) -> WeightFile:
        store = WeightStore() if opening.keep_weights else None
        file = origin.files[location] = await weight_file(url_of(opening), location, store)
        return file

    async def read_onnx() -> bytes:
        with phase("model.onnx"):
            data = opening.graphs.get(DECODER) or await read(folder, filename, MOST_GRAPH_BYTES)
        origin.graph = hashlib.sha256(data).hexdigest()
        return data

    async def open_on(chosen: str, reason: str | None) -> DeviceModel:
        if chosen == "wasm":
            return await open_on_cpu(opening, read_onnx, open_weights, reason)
        return await open_on_gpu(opening, read_onnx, open_weights)

    with phase("adapter"):
        chosen, reason = await choose_device(device)
    opened = await on_device(device, chosen, reason, open_on)
    opened.origin = origin
    if opening.keep_weights:
        try:
            await page_storage.keep_repository(folder)
        except BaseException:
            await opened.close()
            raise
        page_storage.warn_damaged()
    return opened


def url_of(opening: Opening) -> str:
    """The address of the folder with the decoder's graph."""
    return address_of(opening.folder, opening.config.decoder.folder)


def noted_as(opening: Opening) -> str:
    """The name in notes: the folder's address, and with a multi-token-prediction head, which is beside its model, the
    name of its graph.
    """
    decoder = opening.config.decoder
    return url_of(opening) + (decoder.filename if decoder.inputs.hidden_states else "")


async def open_on_gpu(opening: Opening, read_onnx: ReadOnnx, open_weights: OpenWeights) -> DeviceModel:
    notes = Notes() if opening.keep_weights else None
    url, config, options = noted_as(opening), opening.config, opening.options
    exported = b""

    async def graphs(rank: int | None = None) -> Graphs:
        nonlocal exported
        model = exported or await read_onnx()
        with phase("graph"):
            buffers, largest = await binding_limits()
            found = await model_graphs(model, config, open_weights, url, notes, buffers, rank, largest, opening.ready)
        # Graphs for adapters are made when the first adapter of a rank is chosen.
        exported = model if found.lora else b""
        return found

    reading = begin(graphs())
    try:
        with phase("device"):
            engine = await host_calls.open_gpu()
        try:
            interface, shared = WebGpuDevice(engine), engine.shared_weights()
            loaded = await load(
                interface, shared, url, reading, config, options, open_weights, opening.progress, notes, graphs
            )
            return LoraModel(loaded, options)
        except BaseException:
            engine.close()
            raise
    finally:
        reading.cancel()


async def open_on_cpu(
    opening: Opening, read_onnx: ReadOnnx, open_weights: OpenWeights, reason: str | None
) -> WasmModel:
    notes = Notes() if opening.keep_weights else None
    config, progress, exported = opening.config, opening.progress, await read_onnx()
    threads = host_calls.cpu()["threads"]

    async def graph(wide: int) -> WasmGraph:
        return await wasm_graph(exported, config, wide, open_weights, noted_as(opening), notes, opening.ready)

    with phase("graph"):
        found = await graph(ALL_WIDE)
        program = program_of(found, config, threads, opening.options.capture, count=True)
        if isinstance(program, str) and found.wide_bytes > host_calls.wide_bytes():
            found = await graph(host_calls.wide_bytes())
    memory = wasm_memory(wasm_device(), found, config)
    if isinstance(program, CpuProgram):
        memory = program_memory(memory, program)
    memory.before_load(progress)
    external = ExternalData("", dict(found.data), open_weights)
    if isinstance(program, CpuProgram):
        session = await with_weights(program, threads, external, progress)
        about = program.about(session.threads)
    else:
        with phase("weights"):
            files = await in_memory(external, progress)
        with phase("session"):
            session = JsWasmSession(await host_calls.open_wasm(found.model, files, found.made))
        about = f"onnxruntime-web runs each step, since there is no program for the CPU: {program}"
    try:
        disk, _ = await open_tables(found.about.tables, open_weights, progress)
    except BaseException:
        await session.close()
        raise
    return WasmModel(session, memory, host_calls.now, about, reason, found.lora, found.tables, disk)


async def with_weights(program: CpuProgram, threads: int, external: ExternalData, progress: Progress) -> JsWasmSession:
    """Load the weights of a program, and return its session. The program packs the weights as they arrive."""
    with phase("session"):
        session = JsWasmSession(await host_calls.open_program(program, threads))
    if session.threads < threads:
        fall_back("threads on the CPU", session.alone, "one thread computes")
    try:
        with phase("weights"):
            for location, end in external.ends.items():
                file = await external.open(location)
                await file.load(page_storage.JsSink(session.target(location)), end, partial(progress, location))
    except BaseException:
        await session.close()
        raise
    return session


async def has_webgpu() -> bool:
    return await host_calls.adapter() is not None


async def open_device(device: str) -> DeviceInterface:
    chosen, _ = await choose_device(device)
    return wasm_device() if chosen == "wasm" else WebGpuDevice(await host_calls.open_gpu())


async def fit(
    model: Planned,
    draft: Planned | None,
    device: str,
    batch_size: int,
    max_length: int | None,
    budget: int | None,
) -> Fit:
    async def fit_on(chosen: str, reason: str | None) -> Fit:
        if chosen == "wasm":
            return await fit_beside(cpu_memory, model, draft, batch_size, max_length, budget)
        engine = await host_calls.open_gpu()
        try:
            memory_of = partial(gpu_memory, WebGpuDevice(engine))
            return await fit_beside(memory_of, model, draft, batch_size, max_length, budget)
        finally:
            engine.close()

    return await on_device(device, *await choose_device(device), fit_on)


async def cpu_memory(planned: Planned) -> ModelMemory:
    """The memory of a model on the page's CPU."""
    config = planned.config
    parsed = parse(await graph_of(planned), config.decoder.filename)
    found = prepare(parsed, config, ALL_WIDE)
    program = program_of(found, config, host_calls.cpu()["threads"])
    if isinstance(program, CpuProgram):
        return program_memory(wasm_memory(wasm_device(), found, config), program)
    return wasm_memory(wasm_device(), prepare(parsed, config, host_calls.wide_bytes()), config)


async def gpu_memory(device: WebGpuDevice, planned: Planned) -> ModelMemory:
    """The memory of a model on the page's GPU."""
    config = planned.config
    data = address_of(planned.folder, config.decoder.folder)
    buffers, largest = await binding_limits()
    graph = await graph_of(planned)
    made = await rewrite(graph, config, lambda location: weight_file(data, location, None), buffers, None, largest)
    return webgpu_memory(device, made, config)


async def graph_of(planned: Planned) -> bytes:
    """The contents of the decoder's graph file."""
    found = planned.graphs.get(DECODER)
    return found or await read(planned.folder, planned.config.decoder.filename, MOST_GRAPH_BYTES)


async def size_of(url: str) -> int | None:
    """The size of a file; None if unknown."""
    try:
        source = await page_storage.open_source(page_storage.absolute(url), keep=False)
    except BrokenDownloadError:
        return None  # the read raises the reason
    source.close()
    return source.identity.size


async def weight_file(folder: str, location: str, store: WeightStore | None) -> WeightFile:
    name = page_storage.absolute(address_of(folder, location))
    keep = store is not None
    try:
        source = await page_storage.open_source(name, keep)
    except BrokenDownloadError as error:
        known = await store.last_known(name) if store else None
        if known is not None:
            fall_back("the weights' server", str(error), "the stored weights are assumed to be current")
            source = page_storage.assumed_source(known, keep)
        else:
            await pause(1, error)
            source = await retried(partial(page_storage.open_source, name, keep))
    manifest = location + MANIFEST_SUFFIX
    return await WeightFile.open(source, store, lambda: read_optional(folder, manifest))


def wasm_device() -> WasmDevice:
    """Open the page's CPU device."""
    return WasmDevice(wasm_opener, **host_calls.cpu())


def begin(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Start a task. If nothing awaits the task any more, its error is not reported."""
    task = asyncio.ensure_future(work)
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    return task


async def binding_limits() -> tuple[int, int]:
    """The number of storage buffers that a kernel may bind on the page's adapter, and the bytes of the largest
    binding.
    """
    found = await host_calls.adapter()
    if found is None:
        return WorkgroupLimits.buffers, 0
    return found["max_storage_buffers"], min(found["max_buffer_size"], found["max_storage_buffer_binding_size"])


async def choose_device(device: str) -> tuple[str, str | None]:
    """Choose 'webgpu' or 'wasm' for the requested device. If 'wasm' was chosen without a request for it, the reason is
    also returned.

    'auto' takes WebGPU if there is a hardware adapter. Raises OptionError, DeviceUnavailableError, DeviceLostError.
    """
    if device not in ("auto", "webgpu", "wasm", "cpu"):
        raise OptionError(f"device is {device!r}; in a page it must be 'auto', 'webgpu' or 'wasm'")
    if device in ("wasm", "cpu"):
        return "wasm", None
    adapter = await host_calls.adapter(required=device == "webgpu")
    if device == "auto" and adapter is None:
        return "wasm", "this browser offers no WebGPU adapter"
    if device == "auto" and adapter is not None and adapter["software"]:
        return "wasm", "the only WebGPU adapter is software, which is used only if device is 'webgpu'"
    return "webgpu", None


async def on_device(asked: str, chosen: str, reason: str | None, work: Callable[[str, str | None], Awaitable[T]]) -> T:
    """Run `work(device, reason)` on the chosen device, and return its result. If 'auto' was requested and
    onnxruntime-web cannot compute a node of the graph on that device, the work runs on the page's other device, if it
    has one. A warning reports this fallback.
    """
    try:
        return await work(chosen, reason)
    except UncomputedError as error:
        other = "webgpu" if chosen == "wasm" else "wasm"
        if asked != "auto" or (other == "webgpu" and await host_calls.adapter() is None):
            raise
        fall_back(f"device {chosen!r}", str(error), f"device {other!r} is used")
        return await work(other, str(error))
