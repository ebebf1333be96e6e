"""A model for LoRA adapters: for each rank that was asked for, sessions and decoders over the same weights."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from ..lora import LoraWeights
from ..rows import RowDecoder
from .loading import Loaded, load_adapted
from .rows import WebGpuRows, require_movable, take_over

if TYPE_CHECKING:
    from .model import WebGpuModel

__all__ = ["LoraVariants"]


class LoraVariants:
    """The models for adapters of one rank each. A sequence has buffers of its own for its adapters, into which those
    are copied on the GPU: whoever changes them records nothing and makes no session."""

    def __init__(self, base: Loaded, make: Callable[[Loaded], WebGpuModel]) -> None:
        self._base = base
        self._make = make
        self._made: dict[int, asyncio.Future[WebGpuModel]] = {}
        """By rank; one that is being made serves all that ask for it."""

    async def of(self, rank: int) -> WebGpuModel:
        """The model for a rank, made at the first request."""
        making = self._made.get(rank)
        if making is None:
            making = self._made[rank] = asyncio.ensure_future(self._of(rank))
        try:
            return await asyncio.shield(making)
        except BaseException:
            if making.done() and (making.cancelled() or making.exception() is not None):
                self._made.pop(rank, None)
            raise

    async def _of(self, rank: int) -> WebGpuModel:
        return self._make(await load_adapted(self._base, rank))

    async def switched(self, rows: WebGpuRows, lora: LoraWeights) -> RowDecoder:
        """See DeviceModel.switched."""
        model = await self.of(lora.rank)
        if model.made(rows):
            rows.set_lora(lora)
            return rows
        require_movable(rows)
        others = await model.row_decoder(rows.rows, rows.capacity, None, lora)
        take_over(cast(WebGpuRows, others), rows)
        await rows.close()
        return others

    def maker(self, rows: WebGpuRows) -> WebGpuModel:
        """The model that made these rows."""
        made = (each.result() for each in self._made.values() if each.done() and not each.cancelled())
        return next(model for model in made if model.made(rows))

    async def trim(self) -> None:
        """Free unused memory of every rank, and close the models of ranks without a sequence."""
        for rank, made in list(self._made.items()):
            if made.done() and not made.cancelled() and made.exception() is None:
                model = made.result()
                await model.trim()
                if model.idle:
                    del self._made[rank]
                    await model.close()

    async def close(self) -> None:
        made, self._made = self._made, {}
        for found in await asyncio.gather(*made.values(), return_exceptions=True):
            if not isinstance(found, BaseException):
                await found.close()
