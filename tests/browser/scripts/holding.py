"""Requests that do not get past some place until they are cancelled; runs in the page."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any, cast

from capstan._js.page_gpu_engine import JsGpuEngine
from capstan._js.wasm_session import JsWasmSequence
from capstan.page.request_handler import handler

PLACES: dict[str, tuple[Any, str]] = {
    "load": (handler.session, "load"),
    "record": (JsGpuEngine, "record"),
    "webgpu": (JsGpuEngine, "burst"),
    "wasm": (JsWasmSequence, "step"),
}
"""The places that wait, by name: the owner of the function, and the function's name."""
held: dict[str, Any] = {}
"""The functions themselves of the places that hold."""


async def hold(models: Mapping[str, str], *, at: str, number: int) -> None:
    """Have the `number`-th wait at that place last until its request is cancelled."""
    owner, name = PLACES[at]
    original = held[at] = getattr(owner, name)
    left = number

    def called(*given: Any) -> Coroutine[Any, Any, Any]:
        nonlocal left
        left -= 1
        begun: Coroutine[Any, Any, Any] = original(*given)
        return begun if left else when_cancelled(cast("asyncio.Task[Any]", handler.running), begun)

    setattr(owner, name, called)


async def when_cancelled(request: asyncio.Task[Any], begun: Coroutine[Any, Any, Any]) -> Any:
    try:
        # Its end is no sign: what was begun may have to end first.
        while not request.cancelling():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    except asyncio.CancelledError:
        begun.close()
        raise
    return await begun


async def let_go(models: Mapping[str, str]) -> None:
    """Have no place hold any more."""
    for at, original in held.items():
        owner, name = PLACES[at]
        setattr(owner, name, original)
    held.clear()
