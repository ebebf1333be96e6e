"""Finds a model: a folder in onnxruntime-genai's layout, a repository in that of Transformers.js, or a GGUF file."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..errors import ConfigError, ModelFileError, OptionError, UnsupportedModelError
from ..fallback import fall_back
from ..host import Host
from ..host.storage_interface import Progress
from ..model_files.bounded_json import clipped
from ..model_files.config_section import Section, parse_object
from ..model_files.genai_config import DECODER, KV_CACHE_BITS, GenaiConfig, with_session_options
from ..model_files.genai_config_file import parse_genai_config
from ..model_files.hub import HubRepository
from ..model_files.model_types import HEARD_REPOSITORIES
from .embedded_repository import EMBEDDED, EMBEDDED_TYPES, embedded_model
from .found_model import FoundModel
from .gguf_folder import find_gguf, gguf_of, listed
from .load_options import CacheOptions, FitOptions
from .picture_repository import SEEING, TILED_TYPES, seeing_config
from .repository import DTYPES, derived_config, no_graph, onnx_file, require_dtype, require_one_decoder

__all__ = ["Place", "find_model", "graph_of", "laid_over", "no_progress", "place_of", "with_caches", "with_tables"]

GENAI_CONFIG = "genai_config.json"
GRAPH = "model.onnx"
"""The graph of a folder without dtypes."""


def no_progress(what: str, done: int, total: int) -> None:
    """A progress callback that does nothing."""


@dataclass(frozen=True)
class Place:
    """The place of a model: a file, or a folder."""

    folder: str
    """The address of its folder, ending in a slash."""
    gguf: str | None = None
    """The name of the model's GGUF file in the folder; None for a folder of several files."""

    @property
    def path(self) -> str:
        """The address of the file or folder."""
        return self.folder + (self.gguf or "")


async def place_of(host: Host, path: Any, keep: bool) -> Place:
    """The place that a caller named: a file if its path, or the path of its address, ends in .gguf, else a folder.

    Raises OptionError.
    """
    if isinstance(path, HubRepository):
        folder = await host.adopt(path, keep)
        names = await host.listing(folder) or {}
        if path.file is not None and path.file not in names:
            there = listed(names) or "it has no GGUF file"
            raise ModelFileError(f"{path}: the repository has no such file; {there}")
        return Place(folder, path.file)
    text = os.fspath(path) if isinstance(path, os.PathLike) else path
    file = host.gguf_place(text) if isinstance(text, str) else None
    if file is None:
        return Place(await host.adopt(path, keep))
    return Place(await host.adopt(file[0], keep), file[1])


async def find_model(
    host: Host,
    place: Place,
    device: str,
    dtype: str | None,
    keep: bool = False,
    progress: Progress = no_progress,
    overlay: Mapping[str, Any] | None = None,
    hears: bool | None = None,
) -> FoundModel:
    """Find the model at a place. `dtype` names one of several dtypes of a repository, or the activations' type for a
    GGUF file; None takes the dtype that suits the device. With `keep` a file that holds graph and weights is stored, if
    this host stores files. `overlay` changes genai_config.json; see `laid_over`. If `hears` is True a speech model is
    required, if it is False a speech model is refused.

    Raises ConfigError, ModelFileError, OptionError, UnsupportedModelError.
    """
    folder, wanted = place.folder, require_dtype(dtype)
    if place.gguf is not None:
        require_kind(hears, False, place.path, "a GGUF file")
        found = await find_gguf(host, folder, place.gguf, device, wanted, keep)
        return replace(found, config=overlaid(found.config, overlay or {}))
    data = await host.read_optional(folder, GENAI_CONFIG)
    if data is None:
        name = gguf_of(folder, await host.listing(folder) or {})
        if name is not None:
            require_kind(hears, False, folder, "a GGUF file")
            found = await find_gguf(host, folder, name, device, wanted, keep)
            return replace(found, config=overlaid(found.config, overlay or {}))
        config = await host.read_optional(folder, "config.json")
        if config is not None:
            root = Section(folder + "config.json", "", parse_object(config, folder + "config.json"))
            kind = root.value.get("model_type")
            if kind not in (*HEARD_REPOSITORIES, *TILED_TYPES, *EMBEDDED_TYPES):
                require_one_decoder(root)
            require_kind(hears, kind in HEARD_REPOSITORIES, folder, f"a model of type {kind!r}")
            if kind in HEARD_REPOSITORIES:
                from .speech_repository import find_speech  # noqa: PLC0415  (for models that hear only)

                found = FoundModel(*await find_speech(host, folder, config, device, wanted, keep, progress))
            elif kind in TILED_TYPES:
                chosen = await choose_dtype(host, folder, device, wanted, SEEING)
                found = await find_seeing(host, folder, config, chosen, keep, progress)
            elif kind in EMBEDDED_TYPES:
                chosen = await choose_dtype(host, folder, device, wanted, EMBEDDED)
                found = await find_embedded(host, folder, config, chosen, keep, progress)
            else:
                chosen = await choose_dtype(host, folder, device, wanted)
                found = await find_in_repository(host, folder, config, chosen, keep, progress)
            return replace(found, config=overlaid(found.config, overlay or {}))
        data = await host.read(folder, GENAI_CONFIG)  # which raises the reason why it cannot be read
    if wanted is not None:
        raise OptionError(f"dtype is {dtype!r}, but {folder}{GENAI_CONFIG} names the only graph; leave it out")
    text: str | bytes = data
    if overlay:
        try:
            text = json.dumps(laid_over(parse_object(data, folder + GENAI_CONFIG), overlay))
        except (TypeError, ValueError, RecursionError) as error:
            raise ConfigError(f"overlay: {clipped(overlay)} cannot be written as JSON ({error})") from error
    parsed = parse_genai_config(text, folder + GENAI_CONFIG)
    require_kind(hears, parsed.encoder is not None, folder, f"a model of type {parsed.model_type!r}")
    return FoundModel(parsed)


def require_kind(wanted: bool | None, hears: bool, place: str, what: str) -> None:
    """Raise UnsupportedModelError for a text model if a speech model is required, and vice versa."""
    if wanted and not hears:
        raise UnsupportedModelError(
            f"{place} is {what}, which takes only text and hears nothing; load a Whisper folder, or a repository of "
            "Whisper or Moonshine"
        )
    if wanted is False and hears:
        raise UnsupportedModelError(
            f"{place} is {what}, which turns speech into text; load it by Capstan.loadTranscriber, in Python by "
            "capstan.Transcriber(capstan.Model(...))"
        )


def with_tables(config: GenaiConfig, options: FitOptions) -> GenaiConfig:
    """The configuration with the caller's place of tables that only lookups of tokens read."""
    on_disk = options.get("embedding_tables") == "disk"
    return replace(config, decoder=replace(config.decoder, tables_on_disk=True)) if on_disk else config


def with_caches(config: GenaiConfig, options: CacheOptions) -> GenaiConfig:
    """The configuration with the caller's type of key/value caches, if given."""
    kind = options.get("kv_cache_dtype")
    if kind is None:
        return config
    return replace(config, decoder=replace(config.decoder, kv_cache_bits=KV_CACHE_BITS[kind]))


def laid_over(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Lay one JSON value over another: objects are merged field by field, every other value is replaced. Providers'
    options are added to the existing options, as in onnxruntime-genai. If an option occurs twice, the last value
    counts.
    """
    found = dict(base)
    for name, value in changes.items():
        old = found.get(name)
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            found[name] = laid_over(old, value)
        elif name == "provider_options" and isinstance(old, list) and isinstance(value, list):
            found[name] = [*old, *value]
        else:
            found[name] = value
    return found


def overlaid(config: GenaiConfig, overlay: Mapping[str, Any]) -> GenaiConfig:
    """The configuration of a repository or a GGUF file with an overlay, which may change `search` and the decoder's
    session options.
    """
    others = [name for name in overlay if name not in ("search", "model")]
    model = dict(overlay.get("model", {}))
    decoder = dict(model.pop("decoder", {}))
    session_options = decoder.pop("session_options", None)
    if others or model or decoder:
        names = ", ".join([*others, *model, *decoder])
        raise ConfigError(f"overlay has {names}, but there is no genai_config.json: change only the search options")
    if session_options is not None:
        config = with_session_options(config, "overlay", session_options)
    return replace(config, search={**config.search, **overlay.get("search", {})})


async def find_in_repository(
    host: Host, folder: str, config: bytes, dtype: str, keep: bool, progress: Progress
) -> FoundModel:
    from ..graph import parse  # noqa: PLC0415  (protobuf is for repositories only)

    filename = onnx_file(dtype)
    generation, onnx = await asyncio.gather(
        host.read_optional(folder, "generation_config.json"), host.read_graph(folder, filename, keep, progress)
    )
    derived, in_vain = derived_config(config, generation, parse(onnx, folder + filename), filename, folder)
    tell_in_vain(in_vain, folder)
    return FoundModel(derived, {DECODER: onnx})


async def find_embedded(
    host: Host, folder: str, config: bytes, dtype: str, keep: bool, progress: Progress
) -> FoundModel:
    """Find a model of text whose embeddings are a graph of their own."""
    files = [onnx_file(dtype, name) for name in EMBEDDED]
    generation, *graphs = await asyncio.gather(
        host.read_optional(folder, "generation_config.json"),
        host.read_graph(folder, files[0], keep, progress),
        host.read_graph(folder, files[1], keep, no_progress),
    )
    found, in_vain = embedded_model(config, generation, graphs, files, folder)
    tell_in_vain(in_vain, folder)
    return found


def tell_in_vain(options: Sequence[str], folder: str) -> None:
    """Warn of options of generation_config.json that have no effect, if there are any."""
    if options:
        what = ", ".join(options)
        fall_back(f"sampling as {folder}generation_config.json says", f"{what} is not implemented", "it is left out")


async def find_seeing(host: Host, folder: str, config: bytes, dtype: str, keep: bool, progress: Progress) -> FoundModel:
    """Find a model that sees pictures in tiles."""
    from ..graph import parse  # noqa: PLC0415  (protobuf is for repositories only)

    files = [onnx_file(dtype, name) for name in SEEING]
    generation, onnx = await asyncio.gather(
        host.read_optional(folder, "generation_config.json"), host.read_graph(folder, files[0], keep, progress)
    )
    found, in_vain = seeing_config(config, generation, parse(onnx, folder + files[0]), files, folder)
    tell_in_vain(in_vain, folder)
    return FoundModel(found, {DECODER: onnx})


async def choose_dtype(
    host: Host, folder: str, device: str, dtype: str | None, graphs: Sequence[str] = ("model",)
) -> str:
    """The requested dtype, or else the best dtype for the device for which all graphs exist. Raises ModelFileError if
    there is no such dtype.
    """
    names = await host.listing(folder)

    async def is_there(name: str) -> bool:
        files = [onnx_file(name, graph) for graph in graphs]
        return all([file in names if names is not None else await host.exists(folder, file) for file in files])

    for name in [dtype] if dtype is not None else await host.dtypes(device):
        if await is_there(name):
            return name
    there = [name for name, found in zip(DTYPES, await asyncio.gather(*map(is_there, DTYPES)), strict=True) if found]
    raise no_graph(folder, dtype, there, names, graphs)


async def graph_of(host: Host, folder: str, device: str, dtype: str | None) -> tuple[str, str]:
    """The folder and the name of the file of a model with one graph, such as an encoder."""
    wanted = require_dtype(dtype)
    try:
        file = onnx_file(await choose_dtype(host, folder, device, wanted))
    except ModelFileError:
        if wanted is not None or not await host.exists(folder, GRAPH):
            raise
        return folder, GRAPH
    place, _, name = file.rpartition("/")
    return f"{folder}{place}/", name
