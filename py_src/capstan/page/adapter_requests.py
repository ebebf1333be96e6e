"""Keeps the LoRA adapters that requests name, for the loaded model."""

from __future__ import annotations

from .._js import host_calls
from ..adapters import Adapters
from ..device.lora_file import MAX_BYTES
from ..generation.generator import Generator
from ..model import Model
from .requests import ModelRequest

__all__ = ["adapt", "forget_adapters"]

kept: Adapters | None = None
"""By the addresses of their files."""


async def adapt(model: Model, generator: Generator, request: ModelRequest) -> None:
    """Have a new generator run with the request's adapter, if it has one. Raises the errors of Adapters.load."""
    global kept
    url = request.get("adapter")
    if url is None:
        return
    if kept is None or kept.model is not model:
        forget_adapters()
        kept = Adapters(model)
    if url not in kept.names:
        data = await host_calls.fetch_bytes(url, MAX_BYTES, remedy="check the adapter's address")
        await kept.load_async(data, url)
    generator.set_active_adapter(kept, url)


def forget_adapters() -> None:
    """Free the adapters that are kept, once their generators are closed."""
    global kept
    kept = None
