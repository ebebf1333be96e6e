"""How far buffers are apart, as tape checks ask for it; runs in the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import capstan

from .running import gpu


async def compared(models: Mapping[str, str], *, pairs: Sequence[Sequence[str]]) -> list[dict[str, Any]]:
    """The differences of each (a, b, dtype), with contents in hexadecimal."""
    device = await capstan.open_device("webgpu")
    found: list[dict[str, Any]] = []
    try:
        for *contents, dtype in pairs:
            data = [bytes.fromhex(text) for text in contents]
            with device.allocate(len(data[0])) as a, device.allocate(len(data[1])) as b:
                for buffer, each in zip((a, b), data, strict=True):
                    device.copy_cpu_to_device(buffer.span(0, len(each)), each)
                [difference] = await gpu().compare([(a.handle, b.handle, len(data[0]), dtype)])
                found.append(asdict(difference))
    finally:
        device.close()
    return found
