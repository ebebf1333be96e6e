"""Sessions of any model (web/src/sessions.ts), as capstan.device.page_session drives them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from .errors import typed_errors
from .own_host import capstan_host

__all__ = ["JsModelSession", "open_gpu_session", "open_wasm_session"]


class JsModelSession:
    """See capstan.device.page_session.ModelSession."""

    def __init__(self, session: Any) -> None:
        self.js = session

    def specs(self) -> tuple[list[Any], list[Any]]:
        inputs, outputs = json.loads(self.js.specs())
        return inputs, outputs

    async def run(
        self, feeds: Sequence[Mapping[str, Any]], fetches: Sequence[Mapping[str, Any]], views: Sequence[memoryview]
    ) -> tuple[list[dict[str, Any]], list[bytearray]]:
        with typed_errors():
            told, *arrays = await self.js.run(json.dumps(feeds), json.dumps(fetches), *views)
        return json.loads(told), [copied(array) for array in arrays]

    async def release(self) -> None:
        with typed_errors():
            await self.js.release()


def copied(array: Any) -> bytearray:
    """A JavaScript array's bytes: one copy, into Python's heap."""
    data = bytearray(array.byteLength)
    if data:
        array.assign_to(data)
    return data


async def open_gpu_session(
    engine: Any, model: bytes, external: Mapping[str, bytes], capture: bool, owner: str
) -> JsModelSession:
    """A session on the device of a JavaScript engine; `external` holds data files by location."""
    with typed_errors():
        return JsModelSession(
            await engine.openSession(model, capture, owner, json.dumps(list(external)), *external.values())
        )


async def open_wasm_session(model: bytes, external: Mapping[str, bytes], owner: str) -> JsModelSession:
    """A session on the CPU."""
    with typed_errors():
        return JsModelSession(
            await capstan_host.openSession(model, owner, json.dumps(list(external)), *external.values())
        )
