"""Opens devices and plans loads without a model: it checks whether a model would fit a device."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Unpack

from ..device.device_host import DeviceHost, Planned, current_device_host
from ..device.device_interface import DeviceInterface
from ..device.model_memory import require_lengths
from ..memory import Fit
from ..model_files.genai_config import DECODER, ENCODER, VISION, GenaiConfig, with_room
from .draft_model import draft_source, require_draft_model
from .folder import Place, find_model, no_progress, place_of, with_caches, with_tables
from .found_model import FoundModel
from .load_options import FitOptions, LoadOptions, require_options, taken
from .opening import Source, read_tokenizer, source_of, with_tokenizer

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
    draft_model: Any = None,
    **options: Unpack[FitOptions],
) -> Fit:
    """Compute whether a model and its sequences would fit a device, from the graph and before anything is allocated.
    `path`, `draft_model` and the options are those of Model.load. There are `batch_size` sequences of `max_length`
    tokens; without `max_length` the model's context length is used.

    A false Fit names the limit, the tensor that exceeds it, and the largest max_length that fits, with the present type
    of caches and with each type that allows a larger one. `fit.requirements` has the bytes of each pool, and in `draft`
    those of the draft model; `fit.require()` raises OutOfMemoryError. `budget` is the most bytes in all; WebGPU does
    not report the size of the memory.
    """
    require_options(FitOptions, options)
    host = current_device_host()
    given = taken(LoadOptions, options)
    large, device = await candidate(host, source_of(path, given)), given["device"]
    require_lengths(batch_size, 1 if max_length is None else max_length, large.config.context_length)
    model = await planned(host, large, with_room(large.config, max_length))
    draft = None
    if draft_model is not None or large.config.draft is not None:
        source = draft_source(path, {**given, "draft_model": draft_model}, device)
        draft = await drafting(host, large, await candidate(host, source))
    return await host.fit(model, draft, device, batch_size, max_length, budget)


@dataclass(frozen=True)
class Candidate:
    """A model that was found and is not loaded."""

    place: Place
    found: FoundModel
    config: GenaiConfig
    """With the caller's type of caches."""


async def candidate(host: DeviceHost, source: Source) -> Candidate:
    """Find a model. Raises the errors of `find_model`."""
    place, options = await place_of(host, source.path, keep=True), source.options
    found = await find_model(host, place, options["device"], options["dtype"], hears=options["hears"])
    if source.of_draft and found.config.draft is not None:
        found = replace(found, config=found.config.draft)
    return Candidate(place, found, with_tables(with_caches(found.config, options), options))


async def planned(host: DeviceHost, model: Candidate, config: GenaiConfig) -> Planned:
    """The graphs of a model that are needed to compute its memory."""
    folder, about, graphs = model.place.folder, config.encoder or config.vision, dict(model.found.graphs)
    if about is not None:
        from ..device.speech_encoder import with_weights  # noqa: PLC0415  (for models that hear only)

        name = VISION if config.encoder is None else ENCODER
        data = graphs.get(name) or await host.read_graph(folder, about.filename, True, no_progress)
        config = with_weights(config, data)
    if config.vision is not None:
        from .graphs_beside import read_beside  # noqa: PLC0415  (for models that see only)

        graphs = await read_beside(host, folder, config, graphs, True)
    return Planned(folder, config, graphs)


@dataclass(frozen=True)
class Compared:
    """The part of a candidate that `require_draft_model` compares."""

    folder: str
    config: GenaiConfig
    tokenizer_files: dict[str, str]


async def compared(host: DeviceHost, model: Candidate) -> Compared:
    """A candidate with its tokenizer's files."""
    folder, files = model.place.folder, model.found.tokenizer
    if files is None:
        files = with_tokenizer(folder, await read_tokenizer(host, model.place))
    return Compared(folder, model.config, dict(files))


async def drafting(host: DeviceHost, model: Candidate, draft: Candidate) -> Planned:
    """The draft model. Raises OptionError if it cannot draft tokens for the model."""
    from ..graph import parse  # noqa: PLC0415  (protobuf is for draft models only)
    from ..graph.carried import state_tensors  # noqa: PLC0415

    folder, decoder = draft.place.folder, draft.config.decoder
    graph = draft.found.graphs.get(DECODER) or await host.read_graph(folder, decoder.filename, True, no_progress)
    states = state_tensors(decoder, parse(graph, folder + decoder.filename).graph)
    require_draft_model(await compared(host, model), await compared(host, draft), states)
    return Planned(folder, draft.config, {**draft.found.graphs, DECODER: graph})
