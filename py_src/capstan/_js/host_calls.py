"""The page's host object (web/src/worker/host.ts): files, tokenizers, engines, events, waiting."""

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

from ..device.wasm.cpu_program import CpuProgram
from ..fallback import fall_back
from ..graph import UnpackedWeight, WideWeight
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
]

T = TypeVar("T")

MOST_REPORTED = 8.0
"""GiB; the largest value of navigator.deviceMemory (W3C, Device Memory)."""


def emit(event: dict[str, Any]) -> None:
    """Send an event to the page (web/src/wire/protocol.ts, CapstanEvent)."""
    capstan_host.emit(json.dumps(event))


def now() -> float:
    """performance.now() of the worker, in milliseconds: the clock of all time stamps."""
    return float(capstan_host.now())


def begin_trace() -> None:
    """Have the worker record spans for a trace."""
    capstan_host.beginTrace()


async def end_trace() -> HostSpans:
    """The worker's spans (web/src/worker/trace.ts)."""
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
    """Have the page's next signal raise KeyboardInterrupt, and later ones do nothing: the page repeats the signal until
    the request has ended, and a late one would end the answer.
    """

    def interrupt(number: int, frame: FrameType | None) -> None:
        be_interrupted_no_more()
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, interrupt)


def be_interrupted_no_more() -> None:
    """Have the page's signals do nothing until the next request: a late signal would end the answer."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def mount_file(folder: str, name: str, url: str) -> None:
    """Put a file of the server into Python's file system; its bytes are read when it is opened."""
    capstan_host.mountFile(folder, name, url)


async def adopt_files(names: Sequence[str], contents: Sequence[bytes]) -> str:
    """A name, as a URL that ends in a slash, for files by their paths in a folder."""
    with typed_errors():
        return str(await capstan_host.adoptFiles(json.dumps(list(names)), *contents))


async def read_line() -> str:
    """The next line of the script's input, with its line break; empty at the end."""
    line = await capstan_host.readLine()
    return line if isinstance(line, str) else ""


def read_now(url: str) -> bytes:
    """A whole file of the page's origin; the worker is blocked meanwhile. Raises ModelFileError if it cannot be
    read.
    """
    with typed_errors():
        return bytes(capstan_host.readNow(url).to_bytes())


def unreached(reason: str) -> None:
    """Count a step down: a model's server cannot be reached, and its last answer is used."""
    fall_back("the model's server", reason, "the files of its folder are assumed to be those of the last load")


async def fetch_bytes(url: str, most: int, progress: Callable[[int, int], None] | None = None) -> bytes:
    """A whole file of at most that number of bytes. Raises ModelFileError if it cannot be read."""

    async def fetched() -> bytes:
        with storage_errors():
            return bytes((await capstan_host.fetchBytes(url, most, progress, unreached)).to_bytes())

    return await retried(fetched)


async def fetch_optional(url: str, most: int) -> bytes | None:
    """A whole file of at most that number of bytes; None if the server has none."""

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
    """The WebGPU adapter's description. Without an adapter: None, or the error of web/src/wire/adapter.ts if one is
    required.
    """
    with typed_errors():
        text = await capstan_host.adapter(required)
    found: dict[str, Any] | None = json.loads(text) if text else None
    return found


def cpu() -> dict[str, Any]:
    """The CPU execution provider's number of `threads` (1 without `shared` memory), whether there is `shared` memory,
    and the options of its sessions.
    """
    found: dict[str, Any] = json.loads(capstan_host.cpu())
    return found


def wide_bytes() -> int:
    """Bytes of float32 weights that are made on the CPU in place of packed ones: an eighth of the memory that the
    browser reports, which is at most 8 GiB; without a report, an eighth of 8 GiB.
    """
    reported = getattr(js.navigator, "deviceMemory", None)
    return int(min(float(reported or MOST_REPORTED), MOST_REPORTED) * (1 << 30) / 8)


_gpu: asyncio.Future[JsGpuEngine] | None = None
"""The page's GPU engine, open or being opened."""


async def open_gpu() -> JsGpuEngine:
    """The page's WebGPU device, with onnxruntime-web loaded; its caller must `close` it.

    All models and buffers are on this one, so that they can share weights. A device that failed or was released is
    replaced by a new one.
    """
    global _gpu
    if _gpu is None or (_gpu.done() and (_gpu.cancelled() or _gpu.exception() or not _gpu.result().healthy())):
        _gpu = asyncio.ensure_future(_open_gpu())
    return (await asyncio.shield(_gpu)).retain()


async def _open_gpu() -> JsGpuEngine:
    with typed_errors():
        return JsGpuEngine(await capstan_host.openGpu())


def gpu() -> JsGpuEngine | None:
    """The page's GPU engine if one is open."""
    if _gpu is None or not _gpu.done() or _gpu.cancelled() or _gpu.exception():
        return None
    return _gpu.result()


async def open_wasm(model: bytes, external: Mapping[str, Any], wide: Sequence[WideWeight | UnpackedWeight]) -> Any:
    """onnxruntime-web's CPU execution provider with one session (web/src/worker/wasm.ts); `external` are JavaScript
    Memories (web/src/worker/storage/memory.ts) by the names of their files, `wide` the weights to make from these.
    """

    with typed_errors():
        paths, made = json.dumps(list(external)), json.dumps([each.as_json() for each in wide])
        return await capstan_host.openWasm(model, paths, made, *external.values())


async def open_program(program: CpuProgram, threads: int) -> Any:
    """A program for the CPU (web/src/worker/cpu/cpu_engine.ts); its weights are loaded later."""
    with typed_errors():
        return await capstan_host.openProgram(json.dumps(program.as_json()), threads)


def token_walks(tokens: TokenBytes) -> PageTokenWalks:
    """See capstan.host.Host."""
    return PageTokenWalks(capstan_host.tokenWalks(tokens.ends, tokens.data))


def tokenizer_backend(tokenizer_json: str, tokenizer_config_json: str) -> PageBackend:
    """See capstan.host.Host."""
    with typed_errors():
        return PageBackend(capstan_host.makeTokenizer(tokenizer_json))


async def ready_made(name: str, size: int, dtype: str) -> ReadyMade | None:
    """The site's ready-made results for a GGUF file (web/src/worker/ready_made.ts)."""
    found = await capstan_host.readyMade(name, size, dtype)
    if not hasattr(found, "sha256"):
        return None
    return ReadyMade(int(found.header), str(found.sha256), found.text if isinstance(found.text, str) else None)


async def phonemize(text: str, language: str) -> str:
    """See capstan.host.Host (web/src/worker/phonemes.ts)."""
    with typed_errors():
        return str(await capstan_host.phonemize(text, language))
