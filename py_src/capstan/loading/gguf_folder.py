"""Finds the model in GGUF files. The model's graph is written from the headers of the files."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ..errors import ModelFileError, OptionError
from ..fallback import fall_back
from ..host import Host
from ..host.notes import notes_of_files
from ..host.ready_results import ReadyGraphs
from ..host.storage_interface import WeightData
from ..model_files.file_names import is_gguf
from ..model_files.genai_config import DECODER
from ..model_files.gguf.gguf_config import gguf_config
from ..model_files.gguf.gguf_tokenizer import tokenizer_files
from ..model_files.gguf.header import GgufFile, read_header
from ..model_files.gguf.shards import first_shard, joined, require_shard, shard_names
from .found_model import FoundModel, as_note, from_note, key_of, named
from .repository import shortened

__all__ = ["derived", "find_gguf", "gguf_of", "listed", "written"]

ELEMENTS = {"fp16": "float16", "fp32": "float32"}
"""The element types of activations over the weights of a GGUF file, by the names of dtypes."""


def gguf_of(folder: str, sizes: Mapping[str, int | None]) -> str | None:
    """The name of the model's GGUF file among a folder's files. The result is None if there is no GGUF file, or if the
    folder has a graph. Raises ModelFileError for several models.
    """
    models = gguf_models(sizes)
    if not models or any(name.endswith(".onnx") for name in sizes):
        return None
    if len(models) > 1:
        raise ModelFileError(
            f"{folder} has {len(models)} models; name one as OWNER/NAME:FILE.gguf of a hub, by its address, or pick "
            f"only its file: {listed(sizes)}"
        )
    return next(iter(models))


def gguf_models(sizes: Mapping[str, int | None]) -> dict[str, int | None]:
    """The sizes of the GGUF models among a folder's files, by the first file of each model; an unknown size is None."""
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
    """Find the model of a GGUF file or of its shards. Its graph is written here; the weights of the graph are parts of
    the files. A note keeps the model for later pages, since reading a vocabulary takes about a second. The site may
    have the model ready-made.
    """
    if dtype is None:
        dtype = "fp16" if (await host.dtypes(device))[0].endswith("f16") else "fp32"
    if dtype not in ELEMENTS:
        raise OptionError(f"dtype is {dtype!r}; with the weights of {name} it must be one of {' and '.join(ELEMENTS)}")
    names = shard_names(name)
    files = {name: await open_shard(host, folder, name, names, keep)}
    try:
        notes, about = notes_of_files() if keep else None, first_shard(files[name].address)
        # The other shards are requested before a header is read only if an earlier load found them.
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
    """The site's ready-made model, with the text of its note; None for a file that the site does not know."""
    known = await host.ready_made(names[0], data.size, dtype) if data.size is not None and len(names) == 1 else None
    if known is None:
        return None
    if hashlib.sha256(await data.read(0, known.header)).hexdigest() != known.sha256:
        return None
    if known.text is None:
        what = f"the site's ready-made graph of {names[0]}"
        fall_back(what, "its file is incomplete", "the graph is written here, which takes longer")
        return None
    model, *graphs = known.text.split("\n")
    return replace(from_note(model), ready=ReadyGraphs(*graphs)), model


async def derived_with_note(
    host: Host, folder: str, name: str, names: Sequence[str], files: dict[str, WeightData], dtype: str, keep: bool
) -> tuple[FoundModel, str]:
    found = await derived(host, folder, name, names, files, dtype, keep)
    return found, as_note(found)


async def derived(
    host: Host, folder: str, name: str, names: Sequence[str], files: dict[str, WeightData], dtype: str, keep: bool
) -> FoundModel:
    """Make the model of the files with these names. The file `name` is already open; the others are opened here."""
    # The other shards are requested after the named one has given their number.
    headers = {name: await read_shard(files[name], folder, name, names)}
    await open_others(host, folder, names, files, keep)
    others = [each for each in names if each != name]
    read = await asyncio.gather(*(read_shard(files[other], folder, other, names) for other in others))
    headers |= zip(others, read, strict=True)
    small = {name: data for header in headers.values() for name, data in header.small.items()}
    return written(joined([headers[each].file for each in names]), names[0], dtype, small)


def written(file: GgufFile, name: str, dtype: str, small: Mapping[str, bytes]) -> FoundModel:
    """Make the model that a header describes. `name` is the name of the model's first file; `small` has the bytes of
    tensors that are constants of the graph.
    """
    from ..graph.gguf.builder import write_graph  # noqa: PLC0415  (protobuf is for GGUF files only)

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
    """Open one of the files of a model."""
    try:
        return await host.open_weights(folder, name, keep)
    except ModelFileError as error:
        if len(names) == 1:
            raise
        which = f"it is shard {names.index(name) + 1} of {len(names)}; put all shards into one folder"
        raise ModelFileError(f"{error}; {which}") from error


async def open_others(host: Host, folder: str, names: Sequence[str], files: dict[str, WeightData], keep: bool) -> None:
    """Open those files of a model that are not open yet."""

    async def opened(name: str) -> None:
        files[name] = await open_shard(host, folder, name, names, keep)

    await asyncio.gather(*(opened(name) for name in names if name not in files))


async def read_shard(data: WeightData, folder: str, name: str, names: Sequence[str]) -> Header:
    """Read the header of one of the files of a model."""
    from ..graph.gguf.rotary import MOST_BYTES, SMALL_TENSORS  # noqa: PLC0415  (protobuf is for GGUF files only)

    if data.size is None:
        raise ModelFileError(f"{folder}{name}: the server does not give its size; serve it with a Content-Length")
    file = await read_header(data.read, data.size, folder + name)
    require_shard(file, names.index(name), len(names))
    small = [file.tensors[name] for name in SMALL_TENSORS if name in file.tensors]
    # The graph refuses a larger one.
    small = [tensor for tensor in small if tensor.length <= MOST_BYTES]
    return Header(file, {tensor.name: await data.read(tensor.offset, tensor.length) for tensor in small})
