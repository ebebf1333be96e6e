"""Finds a model: a folder in onnxruntime-genai's layout, a repository in that of Transformers.js, or a GGUF file."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..errors import ConfigError, ModelFileError, OptionError, UnsupportedModelError
from ..fallback import fall_back
from ..host import Host
from ..host.notes import build, notes_of_files
from ..host.ready_results import ReadyGraphs
from ..host.storage_interface import Progress, WeightData
from ..model_files.bounded_json import clipped
from ..model_files.config_section import Section, parse_object
from ..model_files.file_names import is_gguf
from ..model_files.genai_config import DECODER, KV_CACHE_BITS, GenaiConfig, parse_genai_config, with_session_options
from ..model_files.gguf.gguf_config import config_from_json, config_to_json, gguf_config
from ..model_files.gguf.gguf_tokenizer import tokenizer_files
from ..model_files.gguf.header import GgufFile, read_header
from ..model_files.gguf.shards import first_shard, joined, require_shard, shard_names
from ..model_files.hub import HubRepository
from ..model_files.model_types import HEARD_TYPES
from .load_options import CacheOptions
from .picture_repository import SEEING, TILED_TYPES, seeing_config
from .repository import DTYPES, derived_config, no_graph, onnx_file, require_dtype, require_one_decoder, shortened

__all__ = ["FoundModel", "Place", "find_model", "laid_over", "no_progress", "place_of", "with_caches", "written"]

GENAI_CONFIG = "genai_config.json"
ELEMENTS = {"fp16": "float16", "fp32": "float32"}
"""The element types of activations over the weights of a GGUF file, by the names of dtypes."""


def no_progress(what: str, done: int, total: int) -> None:
    """Progress without a listener."""


@dataclass(frozen=True)
class FoundModel:
    """A model: what it is, and those of its graphs that had to be read to know it."""

    config: GenaiConfig
    graphs: Mapping[str, bytes] = field(default_factory=dict)
    """By name, as in `config.graph_files`."""
    tokenizer: Mapping[str, str] | None = None
    """The tokenizer's files, where they are not files of the folder."""
    ready: ReadyGraphs | None = None
    """Each device's graphs, where the site has them ready-made."""


@dataclass(frozen=True)
class Place:
    """The place of a model."""

    folder: str
    """The address of its folder, ending in a slash."""
    gguf: str | None = None
    """The name of the model's GGUF file in the folder; None for a folder of several files."""

    @property
    def path(self) -> str:
        """The address of the file or folder."""
        return self.folder + (self.gguf or "")


async def place_of(host: Host, path: Any, keep: bool) -> Place:
    """The place that a caller named: a path that ends in .gguf is a file's, and an address whose path does; others are
    folders'.

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
    """The model at a place. `dtype` names one of several that a repository has, or the activations' type over a GGUF
    file; None takes what suits the device. With `keep` a file that holds graph and weights is stored, if this host
    stores files. `overlay` is laid over genai_config.json; see `laid_over`. `hears` asks for a model of speech, or
    for none.

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
            if kind not in (*HEARD_TYPES, *TILED_TYPES):
                require_one_decoder(root)
            require_kind(hears, kind in HEARD_TYPES, folder, f"a model of type {kind!r}")
            if kind in HEARD_TYPES:
                from .speech_repository import find_speech

                found = FoundModel(*await find_speech(host, folder, config, device, wanted, keep, progress))
            elif kind in TILED_TYPES:
                chosen = await choose_dtype(host, folder, device, wanted, SEEING)
                found = await find_seeing(host, folder, config, chosen, keep, progress)
            else:
                chosen = await choose_dtype(host, folder, device, wanted)
                found = await find_in_repository(host, folder, config, chosen, keep, progress)
            return replace(found, config=overlaid(found.config, overlay or {}))
        data = await host.read(folder, GENAI_CONFIG)  # which says why it cannot be read
    if wanted is not None:
        raise OptionError(f"dtype is {dtype!r}, but {folder}{GENAI_CONFIG} names the one graph there is; leave it out")
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
    """Raise UnsupportedModelError for a model of text where one of speech is wanted, and the other way round."""
    if wanted and not hears:
        raise UnsupportedModelError(
            f"{place} is {what}, which takes text only and hears nothing; load a Whisper folder or repository"
        )
    if wanted is False and hears:
        raise UnsupportedModelError(
            f"{place} is {what}, which turns speech into text; load it by Capstan.loadTranscriber, in Python by "
            "capstan.Transcriber(capstan.Model(...))"
        )


def with_caches(config: GenaiConfig, options: CacheOptions) -> GenaiConfig:
    """The configuration with key/value caches of the type that a caller says, its own unless that is given."""
    kind = options.get("kv_cache_dtype")
    if kind is None:
        return config
    return replace(config, decoder=replace(config.decoder, kv_cache_bits=KV_CACHE_BITS[kind]))


def laid_over(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Objects are joined field by field, every other value is replaced; but providers' options are added to those that
    are there, as in onnxruntime-genai, and of an option that is there twice the last one counts."""
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
    """The configuration of a repository or a GGUF file, of which `search` and the decoder's session options can be
    changed."""
    others = [name for name in overlay if name not in ("search", "model")]
    model = dict(overlay.get("model", {}))
    decoder = dict(model.pop("decoder", {}))
    session_options = decoder.pop("session_options", None)
    if others or model or decoder:
        names = ", ".join([*others, *model, *decoder])
        raise ConfigError(f"overlay: {names}: there is no genai_config.json; only the search can be changed")
    if session_options is not None:
        config = with_session_options(config, "overlay", session_options)
    return replace(config, search={**config.search, **overlay.get("search", {})})


def gguf_of(folder: str, sizes: Mapping[str, int | None]) -> str | None:
    """The name of the model's GGUF file among a folder's files, by their names; None if there is none, or a graph.
    Raises ModelFileError for several models."""
    models = gguf_models(sizes)
    if not models or any(name.endswith(".onnx") for name in sizes):
        return None
    if len(models) > 1:
        raise ModelFileError(
            f"{folder} has {len(models)} models; name one, as OWNER/NAME:FILE.gguf of a hub, by its address, or pick "
            f"it alone: {listed(sizes)}"
        )
    return next(iter(models))


def gguf_models(sizes: Mapping[str, int | None]) -> dict[str, int | None]:
    """The sizes of the models among a folder's files, by their first file, None where one is not known."""
    models: dict[str, int | None] = {}
    for name, size in sorted(sizes.items()):
        if is_gguf(name):
            first = shard_names(name)[0]
            before = models.get(first, 0)
            models[first] = None if size is None or before is None else before + size
    return models


def listed(sizes: Mapping[str, int | None]) -> str:
    """The GGUF models among a folder's files, with their sizes, for messages."""
    models = [name if size is None else f"{name} ({size / 1e6:.1f} MB)" for name, size in gguf_models(sizes).items()]
    return f"its GGUF files are {shortened(models, 40)}" if models else ""


async def find_gguf(host: Host, folder: str, name: str, device: str, dtype: str | None, keep: bool) -> FoundModel:
    """The model that a GGUF file is, or that it is a shard of: its graph is written here, and names parts of the files
    as weights. It is noted for later pages: a vocabulary takes one about a second. The site may have it ready-made."""
    if dtype is None:
        dtype = "fp16" if (await host.dtypes(device))[0].endswith("f16") else "fp32"
    if dtype not in ELEMENTS:
        raise OptionError(f"dtype is {dtype!r}, but over the weights of {name} there are {' and '.join(ELEMENTS)}")
    names = shard_names(name)
    files = {name: await open_shard(host, folder, name, names, keep)}
    try:
        notes, about = notes_of_files() if keep else None, first_shard(files[name].address)
        # The other shards are asked for before a header is read only where they were there at an earlier load.
        if notes is not None and await notes.has(about):
            await open_others(host, folder, names, files, keep)
            key = key_of(files, dtype)
            noted = await notes.read(about, key) if key is not None else None
            if noted is not None:
                return named(from_note(noted), folder + names[0])
        ready = await ready_made(host, folder, names, files[name], dtype)
        found, text = ready or await derived_with_note(host, folder, name, names, files, dtype, keep)
        key = key_of(files, dtype)
        if notes is not None and key is not None:
            await notes.write(about, key, text)
        return named(found, folder + names[0])
    finally:
        for data in files.values():
            data.close()


async def ready_made(
    host: Host, folder: str, names: Sequence[str], data: WeightData, dtype: str
) -> tuple[FoundModel, str] | None:
    """The model as the site has it ready-made, with the text of its note; None for a file that the site does not
    know."""
    known = await host.ready_made(names[0], data.size, dtype) if data.size is not None and len(names) == 1 else None
    if known is None:
        return None
    if hashlib.sha256(await data.read(0, known.header)).hexdigest() != known.sha256:
        return None
    if known.text is None:
        what = f"the graph of {names[0]} that the site has ready-made"
        fall_back(what, "its file did not come whole", "the graph is written here, which takes longer")
        return None
    model, *graphs = known.text.split("\n")
    return replace(from_note(model), ready=ReadyGraphs(*graphs)), model


def named(found: FoundModel, name: str) -> FoundModel:
    """The model with this name in messages; the note of a model that was ready-made has the site's."""
    return replace(found, config=replace(found.config, name=name))


def key_of(files: Mapping[str, WeightData], dtype: str) -> str | None:
    """The key of the note of a model in these files; None if one of them may change unseen."""
    keys = [files[name].key for name in sorted(files)]
    return None if None in keys else json.dumps([build(), keys, dtype])


def as_note(found: FoundModel) -> str:
    """The text of a GGUF file's model."""
    graphs = {name: b64encode(data).decode() for name, data in found.graphs.items()}
    return json.dumps({"config": config_to_json(found.config), "graphs": graphs, "tokenizer": found.tokenizer})


def from_note(text: str) -> FoundModel:
    """The model that `as_note` wrote."""
    noted = json.loads(text)
    graphs = {name: b64decode(text) for name, text in noted["graphs"].items()}
    return FoundModel(config_from_json(noted["config"]), graphs, noted["tokenizer"])


async def derived_with_note(
    host: Host, folder: str, name: str, names: Sequence[str], files: dict[str, WeightData], dtype: str, keep: bool
) -> tuple[FoundModel, str]:
    found = await derived(host, folder, name, names, files, dtype, keep)
    return found, as_note(found)


async def derived(
    host: Host, folder: str, name: str, names: Sequence[str], files: dict[str, WeightData], dtype: str, keep: bool
) -> FoundModel:
    """The model of the files with these names, of which the one named `name` is open; the others are then, too."""
    # The others are asked for once the named one has said that there are so many.
    headers = {name: await read_shard(files[name], folder, name, names)}
    await open_others(host, folder, names, files, keep)
    others = [each for each in names if each != name]
    read = await asyncio.gather(*(read_shard(files[other], folder, other, names) for other in others))
    headers |= zip(others, read, strict=True)
    small = {name: data for header in headers.values() for name, data in header.small.items()}
    return written(joined([headers[each].file for each in names]), names[0], dtype, small)


def written(file: GgufFile, name: str, dtype: str, small: Mapping[str, bytes]) -> FoundModel:
    """The model of a header; `name` is that of its first file, `small` the bytes of tensors that a graph has as
    constants."""
    from ..graph.gguf.builder import write_graph

    config = gguf_config(file, name)
    graph = write_graph(file, config.decoder, ELEMENTS[dtype], small)
    return FoundModel(config, {DECODER: graph.SerializeToString(deterministic=True)}, tokenizer_files(file))


@dataclass(frozen=True)
class Header:
    """The header of one file of a model."""

    file: GgufFile
    small: Mapping[str, bytes]
    """The bytes of the tensors that a graph has as constants."""


async def open_shard(host: Host, folder: str, name: str, names: Sequence[str], keep: bool) -> WeightData:
    """One of the files of a model."""
    try:
        return await host.open_weights(folder, name, keep)
    except ModelFileError as error:
        if len(names) == 1:
            raise
        which = f"it is shard {names.index(name) + 1} of {len(names)}, and all of them must be in one folder"
        raise ModelFileError(f"{error}; {which}") from error


async def open_others(host: Host, folder: str, names: Sequence[str], files: dict[str, WeightData], keep: bool) -> None:
    """Open those files of a model that are not open yet."""

    async def opened(name: str) -> None:
        files[name] = await open_shard(host, folder, name, names, keep)

    await asyncio.gather(*(opened(name) for name in names if name not in files))


async def read_shard(data: WeightData, folder: str, name: str, names: Sequence[str]) -> Header:
    """The header of one of the files of a model."""
    from ..graph.gguf.rotary import MOST_BYTES, SMALL_TENSORS

    if data.size is None:
        raise ModelFileError(f"{folder}{name}: the server does not tell its size; serve it with a Content-Length")
    file = await read_header(data.read, data.size, folder + name)
    require_shard(file, names.index(name), len(names))
    small = [file.tensors[name] for name in SMALL_TENSORS if name in file.tensors]
    # The graph refuses a larger one.
    small = [tensor for tensor in small if tensor.length <= MOST_BYTES]
    return Header(file, {tensor.name: await data.read(tensor.offset, tensor.length) for tensor in small})


async def find_in_repository(
    host: Host, folder: str, config: bytes, dtype: str, keep: bool, progress: Progress
) -> FoundModel:
    from ..graph import parse

    filename = onnx_file(dtype)
    generation, onnx = await asyncio.gather(
        host.read_optional(folder, "generation_config.json"), host.read_graph(folder, filename, keep, progress)
    )
    derived, in_vain = derived_config(config, generation, parse(onnx, folder + filename), filename, folder)
    if in_vain:
        what = ", ".join(in_vain)
        fall_back(f"sampling as {folder}generation_config.json says", f"{what} is not implemented", "it is left out")
    return FoundModel(derived, {DECODER: onnx})


async def find_seeing(host: Host, folder: str, config: bytes, dtype: str, keep: bool, progress: Progress) -> FoundModel:
    """A model that sees pictures in tiles."""
    from ..graph import parse

    files = [onnx_file(dtype, name) for name in SEEING]
    generation, onnx = await asyncio.gather(
        host.read_optional(folder, "generation_config.json"), host.read_graph(folder, files[0], keep, progress)
    )
    return FoundModel(seeing_config(config, generation, parse(onnx, folder + files[0]), files, folder), {DECODER: onnx})


async def choose_dtype(
    host: Host, folder: str, device: str, dtype: str | None, graphs: Sequence[str] = ("model",)
) -> str:
    """The requested dtype, or the first that suits the device, of which all graphs are there. Raises ModelFileError if
    it is not there."""
    names = await host.listing(folder)

    async def is_there(name: str) -> bool:
        files = [onnx_file(name, graph) for graph in graphs]
        return all([file in names if names is not None else await host.exists(folder, file) for file in files])

    for name in [dtype] if dtype is not None else await host.dtypes(device):
        if await is_there(name):
            return name
    there = [name for name, found in zip(DTYPES, await asyncio.gather(*map(is_there, DTYPES)), strict=True) if found]
    raise no_graph(folder, dtype, there, names, graphs)
