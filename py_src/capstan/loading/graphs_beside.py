"""Reads the graphs of a model besides its decoder: an encoder of sound, or a vision graph and an embedding graph."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from ..device.model_interface import DeviceModel
from ..device.picture_encoder import open_picture_encoder
from ..device.speech_encoder import open_encoder
from ..graph import parse, serialize
from ..graph.spliced_embedding import spliced_embedding, without_mask
from ..host import Host
from ..model_files.genai_config import DECODER, EMBEDDING, ENCODER, VISION, GenaiConfig

__all__ = ["open_beside", "read_beside"]


async def read_beside(
    host: Host, folder: str, config: GenaiConfig, graphs: Mapping[str, bytes], keep: bool
) -> dict[str, bytes]:
    """Read the graphs of a model that sees pictures. The embedding graph becomes a part of the decoder's graph. Raises
    ModelFileError, UnsupportedModelError.
    """
    about, found = config.vision, dict(graphs)
    assert about is not None
    for name in (DECODER, EMBEDDING):
        if name not in found:
            found[name] = await host.read_graph(folder, config.graph_files[name], keep, lambda *_: None)
    decoder, embedding = (parse(found[name], config.graph_files[name]) for name in (DECODER, EMBEDDING))
    return {**found, DECODER: serialize(spliced_embedding(decoder, embedding, about.embedding))}


async def open_beside(
    host: Host,
    folder: str,
    config: GenaiConfig,
    read_graph: Callable[[str], Awaitable[bytes]],
    decoder: DeviceModel,
    keep: bool,
) -> None:
    """Open the graph that makes features of sounds or pictures for a decoder. If that fails, the decoder is closed."""
    about, device = decoder.memory.description, decoder.memory.interface
    try:
        if config.encoder is not None:
            data = await read_graph(ENCODER)
            decoder.encoder = await open_encoder(host, folder, config, data, device, about, keep)
        if config.vision is not None:
            vision, names = await read_graph(VISION), config.vision
            if names.mask:
                vision = serialize(without_mask(parse(vision, names.filename), names.mask, names.pixels))
            graphs = vision, await read_graph(EMBEDDING)
            decoder.encoder = await open_picture_encoder(host, folder, config, graphs, device, about, keep)
    except BaseException:
        await decoder.close()
        raise
