"""Makes and runs sessions of any ONNX model (web/src/worker/onnx_sessions.ts) for capstan.device.ort_session."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any

from ..device.ort_session import RunReply
from ..device.webgpu.gpu_engine import BoundTensor
from ..host.storage_interface import ExternalData, Progress
from .coding import to_json
from .js_errors import typed_errors
from .own_host import capstan_host
from .page_storage import memory

__all__ = ["JsModelSession", "in_memory", "open_gpu_session", "wasm_opener"]


class JsModelSession:
    """Implements capstan.device.ort_session.ModelSession by calls to JavaScript."""

    def __init__(self, session: Any) -> None:
        self.js = session

    def specs(self) -> tuple[list[Any], list[Any]]:
        inputs, outputs = json.loads(self.js.specs())
        return inputs, outputs

    async def run(
        self, feeds: Sequence[Mapping[str, Any]], fetches: Sequence[Mapping[str, Any]], views: Sequence[memoryview]
    ) -> RunReply:
        arrays: list[bytearray] = []

        def allocate(sizes: str) -> list[bytearray]:
            arrays.extend(map(bytearray, json.loads(sizes)))
            return arrays

        with typed_errors():
            described, maps = json.loads(await self.js.run(json.dumps(feeds), json.dumps(fetches), allocate, *views))
        return RunReply(described, arrays, maps)

    async def release(self) -> None:
        with typed_errors():
            await self.js.release()


async def open_gpu_session(
    engine: Any, model: bytes, weights: Sequence[BoundTensor], capture: bool, owner: str
) -> JsModelSession:
    """Open a session on the device of a JavaScript engine. `weights` are bound to inputs that callers do not see."""
    with typed_errors():
        return JsModelSession(await engine.openSession(model, capture, owner, to_json(weights)))


async def wasm_opener(
    model: bytes, external: ExternalData | None, owner: str
) -> Callable[[], Awaitable[JsModelSession]]:
    """Read the data files now, and return a function that makes sessions on the CPU."""
    files = await in_memory(external, lambda *_: None) if external else {}

    async def made() -> JsModelSession:
        with typed_errors():
            return JsModelSession(
                await capstan_host.openSession(model, owner, json.dumps(list(files)), *files.values())
            )

    return made


async def in_memory(external: ExternalData, progress: Progress) -> dict[str, Any]:
    """Load the data files into JavaScript Memories (web/src/worker/storage/memory.ts), by location."""
    found: dict[str, Any] = {}
    for location, end in external.ends.items():
        data = memory(end)
        file = await external.open(location)
        await file.load(data, end, partial(progress, location))
        found[location] = data.js
    return found
