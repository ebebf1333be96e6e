"""Makes the sessions and decoders of a model for LoRA adapters. Each requested rank has its own sessions, and all share
the weights.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import cast

from ...memory import DeviceBuffer, DeviceSpan, Pools
from ..lora_weights import LoraWeights
from ..model_interface import TapeOptions
from ..row_interface import RowDecoder
from .loaded_model import Loaded, load_adapted
from .rows import WebGpuRows, require_movable, take_over
from .webgpu_model import WebGpuModel

__all__ = ["LoraModel"]


class LoraModel(WebGpuModel):
    """The model without an adapter, and one model for each rank of adapters. A sequence has its own buffers for its
    adapters, which are copied there on the GPU, so that a change of adapters needs no recording and no session.
    """

    def __init__(self, loaded: Loaded, options: TapeOptions) -> None:
        super().__init__(loaded, options)
        self._base = loaded
        self._options = options
        self._variants: dict[int, asyncio.Future[WebGpuModel]] = {}
        """By rank; callers of the same rank wait for the same model."""

    async def row_decoder(
        self,
        rows: int,
        capacity: int,
        pools: Pools | None = None,
        lora: LoraWeights | None = None,
        unrecorded: bool = False,
    ) -> RowDecoder:
        self._require_open()
        if lora is None:
            return await super().row_decoder(rows, capacity, pools, unrecorded=unrecorded)
        adapted = await self._of(lora.rank)
        self._require_open()
        return await adapted.row_decoder(rows, capacity, pools, lora)

    async def replace_scratch(
        self, decoder: RowDecoder, scratch: Mapping[str, DeviceBuffer | DeviceSpan] | None
    ) -> None:
        self._require_open()
        rows = cast(WebGpuRows, decoder)
        if self.made(rows):
            await super().replace_scratch(rows, scratch)
        else:
            await self._maker(rows).replace_scratch(rows, scratch)

    async def switched(self, decoder: RowDecoder, lora: LoraWeights) -> RowDecoder:
        self._require_open()
        rows = cast(WebGpuRows, decoder)
        model = await self._of(lora.rank)
        if model.made(rows):
            return await model.switched(rows, lora)
        require_movable(rows)
        others = await model.row_decoder(rows.rows, rows.capacity, None, lora)
        take_over(cast(WebGpuRows, others), rows)
        await rows.close()
        return others

    async def settled(self) -> None:
        for found in await asyncio.gather(*self._variants.values(), return_exceptions=True):
            if not isinstance(found, BaseException):
                await found.settled()
        await super().settled()

    async def trim(self) -> None:
        """Free unused memory of every rank, and close the models of ranks without a sequence."""
        for rank, made in list(self._variants.items()):
            if made.done() and not made.cancelled() and made.exception() is None:
                model = made.result()
                await model.trim()
                if model.idle:
                    del self._variants[rank]
                    await model.close()
        await super().trim()

    async def close(self) -> None:
        self._closed = True
        made, self._variants = self._variants, {}
        for found in await asyncio.gather(*made.values(), return_exceptions=True):
            if not isinstance(found, BaseException):
                await found.close()
        await super().close()

    async def _of(self, rank: int) -> WebGpuModel:
        """The model for a rank, made at the first request."""
        making = self._variants.get(rank)
        if making is None:
            making = self._variants[rank] = asyncio.ensure_future(self._make(rank))
        try:
            return await asyncio.shield(making)
        finally:
            if making.done() and (making.cancelled() or making.exception() is not None):
                self._variants.pop(rank, None)

    async def _make(self, rank: int) -> WebGpuModel:
        return WebGpuModel(await load_adapted(self._base, rank), self._options)

    def _maker(self, rows: WebGpuRows) -> WebGpuModel:
        """The model that made these rows."""
        made = (each.result() for each in self._variants.values() if each.done() and not each.cancelled())
        return next(model for model in made if model.made(rows))
