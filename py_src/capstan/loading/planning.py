"""Opens devices and plans loads without a model: it checks whether a model would fit a device."""

from __future__ import annotations

from typing import Any, Unpack

from ..device.device_host import current_device_host
from ..device.device_interface import DeviceInterface
from ..device.model_memory import require_lengths
from ..memory import Fit
from ..model_files.genai_config import ENCODER, VISION, with_room
from .folder import find_model, no_progress, place_of, with_caches, with_tables
from .load_options import FitOptions, require_options

__all__ = ["open_device", "plan"]


async def open_device(device: str = "auto") -> DeviceInterface:
    """Open a device of this page, to allocate memory and copy on it: 'webgpu', 'wasm', 'auto', or 'reference' on
    CPython. The caller must close it.

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
    """Compute whether a model and its sequences would fit a device, from the graph and before anything is allocated.
    `path` and the options are those of Model.load. There are `batch_size` sequences of `max_length` tokens; without
    `max_length` the model's context length is used.

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
    config = with_tables(with_caches(found.config, options), options)
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
