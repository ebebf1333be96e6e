"""Waits for work on the GPU, which cannot be cancelled."""

from __future__ import annotations

import asyncio
from typing import TypeVar

__all__ = ["to_its_end"]

T = TypeVar("T")


async def to_its_end(work: asyncio.Future[T]) -> T:
    """The result of some work. A cancelled wait continues until the work has ended, because the work uses buffers that
    the next caller gets."""
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        await asyncio.wait([work])
        raise
