"""Actions in the middle of an engine call, and a GPU without memory; runs in the page."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from capstan._js.page_gpu_engine import JsGpuEngine
from capstan.device.webgpu.tapes.stored_tapes import StoredTapes

__all__ = ["NO_ROOM", "ROOM", "on_call", "recorded_again"]

NO_ROOM = """device => {
  const pop = Object.getPrototypeOf(device).popErrorScope;
  let first = true;
  device.popErrorScope = async () => {
    const lacks = first;
    first = false;
    const found = await pop.call(device);
    return lacks ? new GPUOutOfMemoryError("no room") : found;
  };
}"""
ROOM = "device => { delete device.popErrorScope; }"


@contextmanager
def on_call(name: str, action: Callable[[], object], number: int = 1) -> Iterator[None]:
    """Call `action` right before a call of the engine's method of that name, and see that it comes to that."""
    method = getattr(JsGpuEngine, name)
    left = number

    def called(self: JsGpuEngine, *given: Any, **named: Any) -> Any:
        nonlocal left
        left -= 1
        if left == 0:
            setattr(JsGpuEngine, name, method)
            action()
        return method(self, *given, **named)

    setattr(JsGpuEngine, name, called)
    try:
        yield
        assert getattr(JsGpuEngine, name) is method, f"{name} was not called so often"
    finally:
        setattr(JsGpuEngine, name, method)


@contextmanager
def recorded_again() -> Iterator[None]:
    """No tape is made from what was stored: every new sequence is recorded."""
    restore = StoredTapes.restore

    async def nothing(self: StoredTapes, *given: object) -> None:
        return None

    patched: Any = StoredTapes
    patched.restore = nothing
    try:
        yield
    finally:
        patched.restore = restore
