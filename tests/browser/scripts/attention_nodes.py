"""One-node models run eagerly by onnxruntime-web, past Capstan's own check of what it computes."""

from __future__ import annotations

from array import array
from base64 import b64decode
from contextlib import ExitStack
from typing import Any

import capstan.onnxruntime as ort
from capstan import CapstanError, open_device
from capstan.device.device_interface import BoundSpan, DeviceInterface

__all__ = ["outputs", "placed"]


async def outputs(models: Any, *, nodes: dict[str, list[Any]], device: str) -> dict[str, Any]:
    """The values of the output "output" by node, or the error of the session or its run.

    Each node is [model, {input: [float32 values, shape]}], bytes as base64.
    """
    opened = await open_device(device)
    try:
        return {name: await computed(opened, b64decode(model), feeds) for name, (model, feeds) in nodes.items()}
    finally:
        opened.close()


async def computed(device: DeviceInterface, model: bytes, feeds: dict[str, Any]) -> Any:
    try:
        session = await device.create_session(model, owner="test")
    except CapstanError as error:
        return f"{type(error).__name__}: {error}"
    with ExitStack() as held:
        try:
            given = []
            for name, (values, shape) in feeds.items():
                data = b64decode(values)
                span = held.enter_context(device.allocate(len(data), label="test")).span()
                device.copy_cpu_to_device(span, data)
                given.append(BoundSpan(name, span, "float32", tuple(shape)))
            (result,) = await session.run(given, ["output"])
            count = 4
            for size in result.dims:
                count *= size
            with result.span.buffer:
                return list(array("f", (await device.copy_device_to_cpu(result.span.sub(0, count))).data))
        except CapstanError as error:
            return f"{type(error).__name__}: {error}"
        finally:
            await session.close()


async def placed(models: Any, *, model: str, providers: list[str]) -> str:
    """The provider that capstan.onnxruntime puts a model on, or the error."""
    try:
        session = await ort.InferenceSession.create(b64decode(model), providers=providers)
    except CapstanError as error:
        return f"{type(error).__name__}: {error}"
    found: str = session.get_providers()[0]
    await session.aclose()
    return found
