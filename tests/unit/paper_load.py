"""A load of a model on WebGPU over the paper engine, its data files made of paper."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from capstan.device.model_interface import TapeOptions
from capstan.device.webgpu.loaded_model import Loaded, load
from capstan.device.webgpu.webgpu_device import WebGpuDevice
from capstan.device.webgpu.webgpu_graphs import Graphs, OpenWeights
from capstan.memory import Capabilities
from capstan.model_files.genai_config import GenaiConfig
from capstan.weights.shared import SharedWeights
from tests.unit.paper_engine import PaperEngine

__all__ = ["ABLE", "PROBED", "PaperFile", "load_on_paper", "opened", "unread"]

ABLE = Capabilities(
    "paper",
    software=False,
    staging=True,
    mappable_storage=False,
    f16=True,
    subgroups=True,
    timestamps=True,
    int64=True,
    in_place_cache=True,
    max_buffer_size=1 << 30,
    max_binding_size=1 << 30,
    offset_alignment=256,
)
PROBED = "webgpu paper paper paper"
"""The name under which the paper engine's capabilities are remembered."""


class PaperFile:
    """A data file that is there; `loaded` has those that were brought to the GPU."""

    def __init__(self, location: str, loaded: list[str] | None = None) -> None:
        self.content = location
        self.loaded = [] if loaded is None else loaded

    def require(self, end: int) -> None: ...

    async def load(self, sink: object, end: int, progress: object) -> None:
        await asyncio.sleep(0)
        self.loaded.append(self.content)

    async def note_upload(self, owner: str, requests: object, pieces: object) -> None: ...

    def close(self) -> None: ...


async def opened(location: str) -> Any:
    return PaperFile(location)


async def unread(location: str) -> Any:
    raise AssertionError(f"{location} is read")


async def load_on_paper(
    engine: PaperEngine,
    graphs: Graphs,
    config: GenaiConfig,
    options: TapeOptions,
    open_weights: OpenWeights = opened,
    weights: SharedWeights | None = None,
) -> Loaded:
    async def reading() -> Graphs:
        return graphs

    device, weights = WebGpuDevice(cast(Any, engine)), weights or SharedWeights(cast(Any, engine), 1 << 30)
    return await load(device, weights, "/m/", reading(), config, options, open_weights, lambda *_: None)
