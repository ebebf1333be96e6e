"""Reads repositories of speech models in the layout of Transformers.js, and makes the genai_config.json that describes
such a model.

    config.json, generation_config.json, preprocessor_config.json, tokenizer.json
    onnx/encoder_model.onnx, onnx/decoder_model_merged.onnx, onnx/encoder_model_q4.onnx, ...

When they are read, Whisper's graphs become those of onnxruntime-genai's builder (graph/merged_decoder.py), and
Moonshine's become a similar pair (graph/moonshine_decoder.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import ModelFileError
from ..graph.merged_decoder import SpeechSizes, speech_graphs
from ..graph.model_file import contradictions, parse, serialize
from ..graph.moonshine_decoder import moonshine_graphs
from ..host import Host
from ..host.storage_interface import Progress
from ..model_files.config_section import Section, parse_object
from ..model_files.genai_config import (
    DECODER,
    ENCODER,
    GENERATION_CONFIG,
    DecoderConfig,
    EncoderConfig,
    GenaiConfig,
    InputNames,
    OutputNames,
    Stated,
)
from ..model_files.model_types import MOONSHINE
from .repository import DTYPES, REMEDY, field, special, stated_name

if TYPE_CHECKING:
    from ..graph.onnx_pb2 import ModelProto

__all__ = ["SPEECH_FILES", "find_speech", "speech_file"]

ENCODER_FILE, DECODER_FILE = "encoder_model", "decoder_model_merged"
SPEECH_FILES = (ENCODER_FILE, DECODER_FILE)
PREPROCESSOR = "preprocessor_config.json"
SHRINKS = ((127, 64), (7, 3), (3, 2))
"""The sizes and steps of Moonshine's convolutions over samples."""


@dataclass(frozen=True)
class Kind:
    """The names of a model's sizes in config.json, and the function that reads its graphs."""

    graphs: Callable[[ModelProto, ModelProto, SpeechSizes], tuple[ModelProto, ModelProto]]
    width: str
    layers: str
    heads: str
    encoder_heads: str
    context: str
    features: str
    samples: int = 0
    """The most samples of a sound, if these are the encoder's input."""


KINDS = {
    "whisper": Kind(
        speech_graphs,
        "d_model",
        "decoder_layers",
        "decoder_attention_heads",
        "encoder_attention_heads",
        "max_target_positions",
        "input_features",
    ),
    MOONSHINE: Kind(
        moonshine_graphs,
        "hidden_size",
        "decoder_num_hidden_layers",
        "decoder_num_attention_heads",
        "encoder_num_attention_heads",
        "max_position_embeddings",
        "input_values",
        30 * 16_000,
    ),
}


def speech_file(name: str, dtype: str) -> str:
    """The path of a graph's file below the repository."""
    return f"onnx/{name}{DTYPES[dtype]}.onnx"


async def find_speech(
    host: Host, folder: str, config: bytes, device: str, dtype: str | None, keep: bool, progress: Progress
) -> tuple[GenaiConfig, Mapping[str, bytes]]:
    """Find the configuration of a speech model, and its graphs by name. `dtype` applies to both graphs; None takes for
    each graph the dtype that suits the device. Raises ConfigError, ModelFileError, UnsupportedModelError.
    """
    root = Section(folder + "config.json", "", parse_object(config, folder + "config.json"))
    files = [await choose_file(host, folder, name, device, dtype) for name in SPEECH_FILES]
    declared = await host.read_optional(folder, GENERATION_CONFIG)
    found = derived_speech(root, declared, folder, *files)
    read = await asyncio.gather(*(host.read_graph(folder, name, keep, progress) for name in files))
    encoder, decoder = (parse(data, folder + name) for data, name in zip(read, files, strict=True))
    with contradictions(folder + files[1]):
        graphs = kind_of(root).graphs(encoder, decoder, sizes_of(root, *files))
    return found, dict(zip((ENCODER, DECODER), map(serialize, graphs), strict=True))


async def choose_file(host: Host, folder: str, name: str, device: str, dtype: str | None) -> str:
    """The file of a graph in the requested dtype, or else in the best dtype for the device. Raises ModelFileError."""
    names = await host.listing(folder)

    async def is_there(each: str) -> bool:
        file = speech_file(name, each)
        return file in names if names is not None else await host.exists(folder, file)

    for each in [dtype] if dtype is not None else await host.dtypes(device):
        if await is_there(each):
            return speech_file(name, each)
    there = [each for each, found in zip(DTYPES, await asyncio.gather(*map(is_there, DTYPES)), strict=True) if found]
    wanted = speech_file(name, dtype or "fp32")
    if there:
        raise ModelFileError(
            f"{folder}{wanted} does not exist; dtype={dtype!r} was requested; the dtypes of {name} are "
            f"{', '.join(there)}"
        )
    raise ModelFileError(
        f"{folder}{wanted} and its other dtypes do not exist; a speech model has two graphs, "
        f"{' and '.join(SPEECH_FILES)}: use a repository with both"
    )


def kind_of(root: Section) -> Kind:
    return KINDS[root.text("model_type")]


def sizes_of(root: Section, encoder: str, decoder: str) -> SpeechSizes:
    """The sizes in config.json. Raises ConfigError."""
    kind = kind_of(root)
    features: tuple[int | str, ...] = ("num_samples",)
    if kind.samples:
        frames = kind.samples
        for size, step in SHRINKS:
            frames = (frames - size) // step + 1
    else:
        frames = field(root, ("max_source_positions",))
        features = (field(root, ("num_mel_bins",)), 2 * frames)
    return SpeechSizes(
        encoder=encoder,
        decoder=decoder,
        features=features,
        frames=frames,
        layers=field(root, (kind.layers,)),
        heads=field(root, (kind.heads,)),
        encoder_heads=field(root, (kind.encoder_heads,)),
    )


def derived_speech(root: Section, generation: bytes | None, folder: str, encoder: str, decoder: str) -> GenaiConfig:
    """Make the genai_config.json for the encoder and the decoder. Raises ConfigError."""
    declared = Section(folder + GENERATION_CONFIG, "", parse_object(generation or b"{}", folder + GENERATION_CONFIG))
    kind = kind_of(root)
    vocab_size, width = field(root, ("vocab_size",)), field(root, (kind.width,))
    heads = field(root, (kind.heads,))
    if width % heads:
        raise root.error(kind.heads, f"a divisor of {kind.width} ({width})", REMEDY)
    eos, pad = (
        (declared if declared.value.get(key) is not None else root).tokens(key, vocab_size)
        for key in ("eos_token_id", "pad_token_id")
    )
    if not eos:
        raise root.error("eos_token_id", f"a token id from 0 to {vocab_size - 1}", REMEDY)
    return GenaiConfig(
        model_type=root.text("model_type"),
        vocab_size=vocab_size,
        context_length=field(root, (kind.context,)),
        bos_token_id=special(root, "bos_token_id", vocab_size),
        eos_token_ids=eos,
        pad_token_id=pad[0] if pad else eos[0],
        decoder=DecoderConfig(
            filename=decoder,
            head_size=width // heads,
            hidden_size=width,
            num_attention_heads=heads,
            num_key_value_heads=heads,
            num_hidden_layers=field(root, (kind.layers,)),
            inputs=InputNames(
                past_key_names="past_key_values.%d.decoder.key", past_value_names="past_key_values.%d.decoder.value"
            ),
            outputs=OutputNames(
                present_key_names="present.%d.decoder.key", present_value_names="present.%d.decoder.value"
            ),
            cross=("past_key_values.%d.encoder.key", "past_key_values.%d.encoder.value"),
        ),
        encoder=EncoderConfig(
            filename=encoder,
            features=kind.features,
            cross=("present.%d.encoder.key", "present.%d.encoder.value"),
            processor=PREPROCESSOR,
        ),
        search={},
        name=root.file,
        stated=Stated(name=stated_name(root.value)),
    )
