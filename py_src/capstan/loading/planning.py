"""Devices and plans without a model: open a device, check whether a model would fit it."""

from __future__ import annotations

from typing import Any, Unpack

from ..device.device_host import current_device_host
from ..device.device_interface import DeviceInterface
from ..device.model_memory import require_lengths
from ..memory import Fit
from ..model_files.genai_config import ENCODER, VISION, with_room
from .folder import find_model, no_progress, place_of, with_caches
from .load_options import FitOptions, require_options

__all__ = ["open_device", "plan"]


async def open_device(device: str = "auto") -> DeviceInterface:
    """A device of this page, to allocate and copy on: 'webgpu', 'wasm', 'auto', or 'reference' on CPython. Close it.

    The page has one GPU device: models, sessions and buffers of the page share it. Raises OptionError,
    DeviceUnavailableError.
    """
    return await current_device_host().open_device(device)


async def plan(
    path: Any,
    *,
    batch_size: int = 1,
    max_length: int | None = None,
    budget: int | None = None,
    **options: Unpack[FitOptions],
) -> Fit:
    """Whether the model folder `path`, as Model.load takes it with these options and `max_length`, and `batch_size`
    sequences of that length (its context length unless given) would fit the device, computed from the graph before
    anything is allocated.

    A false Fit names the limit, the tensor that exceeds it, and the largest max_length that fits, with the present type
    of caches and with each type that allows a larger one. `fit.requirements` has the bytes of each pool,
    `fit.require()` raises OutOfMemoryError. `budget` is the most bytes in all; WebGPU does not report the size of the
    memory.
    """
    require_options(FitOptions, options)
    host = current_device_host()
    place = await place_of(host, path, keep=True)
    device = options.get("device", "auto")
    found = await find_model(host, place, device, options.get("dtype"))
    config = with_caches(found.config, options)
    require_lengths(batch_size, 1 if max_length is None else max_length, config.context_length)
    config = with_room(config, max_length)
    about, graphs = config.encoder or config.vision, dict(found.graphs)
    if about is not None:
        from ..device.speech_encoder import with_weights  # noqa: PLC0415  (for models that hear only)

        name = VISION if config.encoder is None else ENCODER
        data = graphs.get(name) or await host.read_graph(place.folder, about.filename, True, no_progress)
        config = with_weights(config, data)
    if config.vision is not None:
        from .graphs_beside import read_beside  # noqa: PLC0415  (for models that see only)

        graphs = await read_beside(host, place.folder, config, graphs, True)
    return await host.fit(place.folder, config, device, batch_size, max_length, budget, graphs)
