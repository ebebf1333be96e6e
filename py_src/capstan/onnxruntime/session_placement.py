"""Reads a model and makes its session on the best of the requested devices."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from .. import graph
from ..device.device_interface import DeviceInterface, DeviceSession
from ..device.element_types import ELEMENT_TYPES
from ..errors import DeviceUnavailableError, ModelFileError, OutOfMemoryError, UncomputedError, UnsupportedModelError
from ..fallback import fall_back
from ..graph.description import needs_f16
from ..graph.onnx_pb2 import ModelProto
from ..host import Host
from ..host.disk_file import read_file
from ..host.storage_interface import MOST_GRAPH_BYTES, ExternalData
from ..memory import PoolItem, weight_items
from .providers import CPU, DEVICE_TYPES, WEBGPU, open_device, provider_of

__all__ = ["GraphFile", "Placed", "place_session"]


@dataclass(frozen=True)
class GraphFile:
    """The file of a graph in a folder that the host has adopted."""

    folder: str
    """Ending in a slash; its data files are there, too."""
    name: str
    rewrite: Callable[[ModelProto], ModelProto]
    """Changes the graph before its session is made; its errors are raised."""


@dataclass(frozen=True)
class Placed:
    """A session and its device."""

    device: DeviceInterface
    session: DeviceSession
    attention_window: int
    """Positions that attention looks back; 0 for all."""
    in_place: frozenset[tuple[str, str]]
    """Inputs and outputs that attention keeps in one buffer, if they are bound to one."""
    weights: tuple[PoolItem, ...] = ()
    """The model's external data."""
    activations: graph.Activations | None = None


@dataclass(frozen=True)
class ModelFiles:
    """A serialized model, its data files if it has any, and what it requires of a device."""

    model: bytes
    external: ExternalData | None
    half: bool
    """Whether it computes in float16."""
    attention_window: int
    in_place: frozenset[tuple[str, str]]
    uncomputed: dict[str, str]
    """By device type, the operator that onnxruntime-web does not compute there."""
    weights: tuple[PoolItem, ...]
    activations: graph.Activations


async def place_session(
    host: Host,
    path_or_bytes: str | bytes | os.PathLike[str] | GraphFile,
    providers: Sequence[str],
    owner: str,
    keep: bool,
) -> Placed:
    """Open a session on the first provider that can run the model. Each fallback to a later provider is counted, with
    a warning. With `keep` the browser's storage may keep the data files.

    The default of `providers` is WebGPU on a hardware adapter, else the CPU. Raises the error of the last provider.
    """
    files = await read_model(host, path_or_bytes, keep)
    if providers:
        return await best_of(files, providers, owner)
    best = await open_device("auto")
    try:
        return await best_of(files, [WEBGPU, CPU] if provider_of(best) == WEBGPU else [CPU], owner)
    finally:
        best.close()


async def best_of(files: ModelFiles, providers: Sequence[str], owner: str) -> Placed:
    for provider, following in zip(providers, [*providers[1:], None], strict=True):
        try:
            return await make_session(files, provider, owner)
        except (DeviceUnavailableError, UnsupportedModelError, OutOfMemoryError) as error:
            if following is None:
                raise
            fall_back(provider, str(error), f"{following} is used instead")
    raise AssertionError("there is always a provider")


async def make_session(files: ModelFiles, provider: str, owner: str) -> Placed:
    device = await open_device(DEVICE_TYPES[provider])
    with ExitStack() as undo:
        undo.callback(device.close)
        session = await session_on(device, files, provider, owner)
        undo.pop_all()
    shared = session.shared_weights()
    # The others are initializers, which onnxruntime copies.
    weights = [item for item in files.weights if shared is None or item.name in shared]
    return Placed(device, session, files.attention_window, files.in_place, tuple(weights), files.activations)


async def session_on(device: DeviceInterface, files: ModelFiles, provider: str, owner: str) -> DeviceSession:
    if files.half and provider == WEBGPU and not (await device.capabilities()).f16:
        raise DeviceUnavailableError(
            f"the model computes in float16, but this adapter has no shader-f16; add {CPU!r} to providers, or convert "
            "the model to float32"
        )
    if device.type in files.uncomputed:
        raise UncomputedError(files.uncomputed[device.type])
    session = await device.create_session(files.model, external=files.external, owner=owner)
    for spec in (*session.inputs, *session.outputs):
        if spec.dtype not in ELEMENT_TYPES:
            await session.close()
            raise UnsupportedModelError(
                f"{spec.name!r} is of type {spec.dtype}; it must be one of {', '.join(ELEMENT_TYPES)}"
            )
    return session


async def read_model(host: Host, path_or_bytes: str | bytes | os.PathLike[str] | GraphFile, keep: bool) -> ModelFiles:
    """Read the bytes of a model, and find the places of its data files. Raises ModelFileError.

    A path is in this interpreter's file system, or else is read by the host: in a page, from the page's origin.
    """
    path, folder = "", ""
    on_disk: bytes | None = None
    if isinstance(path_or_bytes, GraphFile):
        path, folder = path_or_bytes.folder + path_or_bytes.name, path_or_bytes.folder
        model = await host.read_graph(folder, path_or_bytes.name, keep, lambda *_: None)
    elif isinstance(path_or_bytes, str | os.PathLike):
        path = os.fspath(path_or_bytes)
        place, slash, name = path.rpartition("/")
        folder, on_disk = place + slash or "./", file_bytes(path)
        if on_disk is None:
            folder = await host.adopt(folder, keep)
        model = await host.read(folder, unquote(name), MOST_GRAPH_BYTES) if on_disk is None else on_disk
    else:
        model = bytes(path_or_bytes)
    parsed = graph.parse(model, path or "the model")
    if isinstance(path_or_bytes, GraphFile):
        with graph.changing(parsed):
            parsed = path_or_bytes.rewrite(parsed)
        model = graph.serialize(parsed)
    ends = graph.data_ends(parsed)
    if ends and not path:
        raise ModelFileError(
            f"the model's weights are in the file {next(iter(ends))!r}, which bytes cannot name; give the model's path"
        )
    if ends and on_disk is not None:
        folder = await host.adopt_files(folder, list(ends))
    external = ExternalData(folder, ends, lambda location: host.open_weights(folder, location, keep))
    return ModelFiles(
        model,
        external if ends else None,
        needs_f16(parsed.graph),
        graph.attention_window(parsed),
        graph.caches_in_place(parsed),
        dict(refused_devices(parsed)),
        weight_items(graph.known_external_entries(parsed)),
        graph.activations(parsed),
    )


def file_bytes(path: str) -> bytes | None:
    """A file of this interpreter's file system; None if there is none."""
    return read_file(Path(path), MOST_GRAPH_BYTES) if Path(path).is_file() else None


def refused_devices(parsed: ModelProto) -> Iterator[tuple[str, str]]:
    for device in ("webgpu", "wasm"):
        try:
            graph.require_computed(parsed, device, position_ids="")
            reason = graph.one_row_only(parsed) if device == "webgpu" else ""
            if reason:
                raise UncomputedError(f"{reason}; use device='wasm' for it")
        except UncomputedError as error:
            yield device, str(error)
