"""Calls the page's host object (web/src/worker/host.ts) for files, tokenizers, engines, events and waiting."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import FrameType
from typing import Any, TypeVar

import js
import pyodide
from pyodide.ffi import can_run_sync as _can_run_sync
from pyodide.ffi import run_sync as _run_sync

from ..device.narrow_rows import WIDE
from ..device.wasm.cpu_program import CpuProgram
from ..fallback import fall_back
from ..graph import Unpack, UnpackedWeight, WideWeight, fields_of
from ..guidance import TokenBytes
from ..host.ready_results import ReadyMade
from ..host.retrying import retried
from ..host.spans import HostSpans, Span
from .js_errors import storage_errors, typed_errors
from .own_host import capstan_host
from .page_gpu_engine import JsGpuEngine
from .page_tokens import PageBackend, PageTokenWalks

__all__ = [
    "adapter",
    "adopt_files",
    "be_interrupted_no_more",
    "be_interrupted_once",
    "begin_trace",
    "can_wait",
    "configure",
    "cpu",
    "emit",
    "end_trace",
    "fetch_bytes",
    "fetch_optional",
    "file_exists",
    "gpu",
    "mount_file",
    "narrow_rows",
    "now",
    "open_gpu",
    "open_program",
    "open_wasm",
    "phonemize",
    "read_line",
    "read_now",
    "ready_made",
    "token_walks",
    "tokenizer_backend",
    "wait",
    "wide_bytes",
    "unpack_rows",
    "widen_rows",
]

T = TypeVar("T")

MOST_REPORTED = 8.0
"""GiB; the largest value of navigator.deviceMemory (W3C, Device Memory)."""


def emit(event: dict[str, Any]) -> None:
    """Send an event to the page (web/src/wire/protocol.ts, CapstanEvent)."""
    capstan_host.emit(json.dumps(event))


def now() -> float:
    """The worker's performance.now() in milliseconds. All time stamps use this clock."""
    return float(capstan_host.now())


def begin_trace() -> None:
    """Let the worker record spans for a trace."""
    capstan_host.beginTrace()


async def end_trace() -> HostSpans:
    """End the recording, and return the worker's spans (web/src/worker/trace.ts)."""
    found: dict[str, Any] = json.loads(await capstan_host.endTrace())
    about: dict[str, Any] = {"pyodide": pyodide.__version__}
    engine = gpu()
    if engine is not None:
        adapter = engine.adapter()
        names = ("vendor", "architecture", "description")
        about |= {"adapter": " ".join(filter(None, (adapter[name] for name in names))), "runtime": adapter["runtime"]}
    return HostSpans(**found | {"spans": [Span(*each) for each in found["spans"]]}, about=about)


def can_wait() -> bool:
    """Whether `wait` works at this call: JavaScript Promise Integration exists and Python was entered through it."""
    return bool(_can_run_sync())


def wait(awaitable: Awaitable[T]) -> T:
    """Block this Python stack, not the worker, until the awaitable is done."""
    result: T = _run_sync(awaitable)
    return result


def configure(ort_url: str | None) -> None:
    """See capstan.configure."""
    with typed_errors():
        capstan_host.configure(ort_url)


def be_interrupted_once() -> None:
    """Let the page's next signal raise KeyboardInterrupt, and ignore later signals. The page repeats the signal until
    the request has ended, and a late signal would end the answer.
    """

    def interrupt(number: int, frame: FrameType | None) -> None:
        be_interrupted_no_more()
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, interrupt)


def be_interrupted_no_more() -> None:
    """Ignore the page's signals until the next request: a late signal would end the answer."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def mount_file(folder: str, name: str, url: str) -> None:
    """Put a file of the server into Python's file system; its bytes are read when it is opened."""
    capstan_host.mountFile(folder, name, url)


async def adopt_files(names: Sequence[str], contents: Sequence[bytes]) -> str:
    """Register files, by their paths in a folder. Returns the folder's name, as a URL that ends in a slash."""
    with typed_errors():
        return str(await capstan_host.adoptFiles(json.dumps(list(names)), *contents))


async def read_line() -> str:
    """Read the next line of the script's input, with its line break. The result is empty at the end."""
    line = await capstan_host.readLine()
    return line if isinstance(line, str) else ""


def read_now(url: str) -> bytes:
    """Read a whole file of the page's origin, and block the worker meanwhile. Raises ModelFileError if it cannot be
    read.
    """
    with typed_errors():
        return bytes(capstan_host.readNow(url).to_bytes())


def unreached(reason: str) -> None:
    """Count a fallback: a model's server cannot be reached, and its last answer is used."""
    fall_back("the model's server", reason, "the files of its folder are assumed to be those of the last load")


async def fetch_bytes(
    url: str, most: int, progress: Callable[[int, int], None] | None = None, remedy: str | None = None
) -> bytes:
    """Fetch a whole file of at most `most` bytes. Raises ModelFileError if it cannot be read; `remedy` is what its
    message then asks for, by default a whole model folder.
    """

    async def fetched() -> bytes:
        with storage_errors():
            return bytes((await capstan_host.fetchBytes(url, most, progress, unreached, remedy)).to_bytes())

    return await retried(fetched)


async def fetch_optional(url: str, most: int) -> bytes | None:
    """Fetch a whole file of at most `most` bytes. Returns None if the server has no such file."""

    async def fetched() -> bytes | None:
        with storage_errors():
            found = await capstan_host.fetchOptional(url, most, unreached)
            return bytes(found.to_bytes()) if hasattr(found, "to_bytes") else None

    return await retried(fetched)


async def file_exists(url: str) -> bool:
    """Whether a file exists at a URL or at a name in a picked folder."""

    async def exists() -> bool:
        with storage_errors():
            return bool(await capstan_host.fileExists(url, unreached))

    return await retried(exists)


async def adapter(*, required: bool = False) -> dict[str, Any] | None:
    """The description of the WebGPU adapter. Without an adapter it returns None, or raises the error of
    web/src/wire/adapter.ts if `required`.
    """
    with typed_errors():
        text = await capstan_host.adapter(required)
    found: dict[str, Any] | None = json.loads(text) if text else None
    return found


def cpu() -> dict[str, Any]:
    """The facts about the CPU execution provider: its number of `threads` (1 without `shared` memory), whether there is
    `shared` memory, and the options of its sessions.
    """
    found: dict[str, Any] = json.loads(capstan_host.cpu())
    return found


def wide_bytes() -> int:
    """The most bytes of float32 weights that Capstan makes on the CPU in place of packed weights. It is an eighth of
    the memory that the browser reports (at most 8 GiB), or an eighth of 8 GiB without a report.
    """
    reported = getattr(js.navigator, "deviceMemory", None)
    return int(min(float(reported or MOST_REPORTED), MOST_REPORTED) * (1 << 30) / 8)


_gpu: asyncio.Future[JsGpuEngine] | None = None
"""The page's GPU engine, open or being opened."""


async def open_gpu() -> JsGpuEngine:
    """Open the page's WebGPU device, with onnxruntime-web loaded; the caller must `close` it.

    All models and buffers use this device, so they can share weights. A device that failed or was released is replaced
    by a new device.
    """
    global _gpu
    if _gpu is None or (_gpu.done() and (_gpu.cancelled() or _gpu.exception() or not _gpu.result().healthy())):
        _gpu = asyncio.ensure_future(_open_gpu())
    return (await asyncio.shield(_gpu)).retain()


async def _open_gpu() -> JsGpuEngine:
    with typed_errors():
        return JsGpuEngine(await capstan_host.openGpu())


def gpu() -> JsGpuEngine | None:
    """The page's GPU engine; None if no engine is open."""
    if _gpu is None or not _gpu.done() or _gpu.cancelled() or _gpu.exception():
        return None
    return _gpu.result()


async def open_wasm(model: bytes, external: Mapping[str, Any], wide: Sequence[WideWeight | UnpackedWeight]) -> Any:
    """Open onnxruntime-web's CPU execution provider with one session (web/src/worker/wasm.ts). `external` maps the
    names of data files to JavaScript Memories (web/src/worker/storage/memory.ts); `wide` lists the weights to make from
    these files.
    """

    with typed_errors():
        paths, made = json.dumps(list(external)), json.dumps([each.as_json() for each in wide])
        return await capstan_host.openWasm(model, paths, made, *external.values())


async def open_program(program: CpuProgram, threads: int) -> Any:
    """Open a program for the CPU (web/src/worker/cpu/cpu_engine.ts). Its weights are loaded later."""
    with typed_errors():
        return await capstan_host.openProgram(json.dumps(program.as_json()), threads)


def token_walks(tokens: TokenBytes) -> PageTokenWalks:
    """See capstan.host.Host."""
    return PageTokenWalks(capstan_host.tokenWalks(tokens.ends, tokens.data))


def tokenizer_backend(tokenizer_json: str, tokenizer_config_json: str) -> PageBackend:
    """See capstan.host.Host."""
    with typed_errors():
        return PageBackend(capstan_host.makeTokenizer(tokenizer_json.encode()))


async def ready_made(name: str, size: int, dtype: str) -> ReadyMade | None:
    """The site's ready-made results for a GGUF file (web/src/worker/ready_made.ts)."""
    found = await capstan_host.readyMade(name, size, dtype)
    if not hasattr(found, "sha256"):
        return None
    return ReadyMade(int(found.header), str(found.sha256), found.text if isinstance(found.text, str) else None)


def narrow_rows(rows: bytes | bytearray | memoryview, dtype: str, bits: int) -> bytes:
    """See capstan.host.Host (web/src/worker/narrow_rows.ts)."""
    return bytes(capstan_host.narrowRows(rows, WIDE[dtype], bits).to_bytes())


def unpack_rows(rows: bytes, how: Unpack) -> bytes:
    """See capstan.host.Host (web/src/worker/unpacked_rows.ts)."""
    return bytes(capstan_host.unpackRows(rows, json.dumps(fields_of(how))).to_bytes())


def widen_rows(rows: bytes | bytearray | memoryview, dtype: str, bits: int) -> bytes:
    """See capstan.host.Host (web/src/worker/narrow_rows.ts)."""
    return bytes(capstan_host.widenRows(rows, WIDE[dtype], bits).to_bytes())


async def phonemize(text: str, language: str) -> str:
    """See capstan.host.Host (web/src/worker/phonemes.ts)."""
    with typed_errors():
        return str(await capstan_host.phonemize(text, language))
