"""A model opened on another device, after its own was lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from ..device.model_interface import DeviceModel
from ..errors import DeviceLostError, DeviceUnavailableError

__all__ = ["PAUSES", "opened_again"]

PAUSES = (0.0, 0.25, 0.5)
"""Seconds before each try: the new device may be lost, too. The page waits until there is a GPU adapter again
(web/src/wire/adapter.ts)."""


async def opened_again(open_model: Callable[[], Awaitable[DeviceModel]], lost: Exception) -> DeviceModel:
    """Calls `open_model` again until there is a device. Raises DeviceLostError if there is none, and any other error of
    `open_model`.
    """
    last: Exception = lost
    for pause in PAUSES:
        await asyncio.sleep(pause)
        try:
            return await open_model()
        except (DeviceLostError, DeviceUnavailableError) as error:
            last = error
    raise DeviceLostError(
        f"{lost}; no other device was to be had ({last}): reload the page, or start the browser again; device='wasm' "
        "needs no GPU"
    ) from last
