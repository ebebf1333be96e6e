"""The configuration of a model, as frozen dataclasses: what its genai_config.json says, or what stands for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..errors import OptionError
from .config_section import Section
from .session_settings import GraphCapture, disables_store, graph_capture, kv_cache_bits, unused_options

__all__ = [
    "DECODER",
    "DISK_ROWS",
    "EMBEDDING",
    "ENCODER",
    "FEATURES",
    "GENERATION_CONFIG",
    "KV_CACHE_BITS",
    "PLACES",
    "VISION",
    "DecoderConfig",
    "EmbeddingNames",
    "EncoderConfig",
    "GenaiConfig",
    "GraphCapture",
    "InputNames",
    "OutputNames",
    "Stated",
    "VisionConfig",
    "with_room",
    "with_session_options",
]

KV_CACHE_BITS = {"float": 0, "int8": 8, "int4": 4}
"""Bits of an element of the key/value caches by the name of its type; 0 for caches of the graph's type."""


@dataclass(frozen=True)
class InputNames:
    """Names of the graph's inputs; `%d` stands for the layer."""

    input_ids: str = "input_ids"
    attention_mask: str = "attention_mask"
    position_ids: str = "position_ids"
    past_key_names: str = "past_key_values.%d.key"
    past_value_names: str = "past_key_values.%d.value"
    past_conv_names: str = "past.%d.conv"
    past_recurrent_names: str = "past.%d.recurrent"
    hidden_states: str = ""
    """The input of a multi-token-prediction head for the hidden states of its model; empty for a model."""


@dataclass(frozen=True)
class OutputNames:
    """Names of the graph's outputs; `%d` stands for the layer."""

    logits: str = "logits"
    present_key_names: str = "present.%d.key"
    present_value_names: str = "present.%d.value"
    present_conv_names: str = "present.%d.conv"
    present_recurrent_names: str = "present.%d.recurrent"
    hidden_states: str = ""
    """The output that a multi-token-prediction head reads; empty for a model without a head."""


@dataclass(frozen=True)
class DecoderConfig:
    """`model.decoder`: the graph's file, its sizes and its tensor names."""

    filename: str
    head_size: int
    num_attention_heads: int
    num_key_value_heads: int
    num_hidden_layers: int
    hidden_size: int | None = None
    num_shared_layers: int = 0
    """The number of last layers that have no caches and read those of other layers."""
    inputs: InputNames = InputNames()
    outputs: OutputNames = OutputNames()
    long_rope_from: int = 0
    """The number of positions for which the short rotary factors hold, from the configuration; 0 without one."""
    rope_joined_at: int = 0
    """The first long row of the rotary tables (multiRotaryCacheConcatOffset); 0 without long rows."""
    qdq_accuracy: int = 0
    """The accuracy_level of products by weights with DequantizeLinear: 4 allows activations in int8. By default the
    native onnxruntime takes 4, Capstan the graph's floats.
    """
    disable_file_mapped_weights: bool = False
    """Whether the browser's storage is not used: from a provider's option of that name, or the session option with the
    prefix `session.`.
    """
    capture: GraphCapture | None = None
    """From enableGraphCapture; None if the file does not have it."""
    kv_cache_bits: int = 0
    """Bits of an element of the key/value caches on WebGPU, from kvCacheQuantizationBits: 4, 8, or 0 for those of the
    graph."""
    tables_on_disk: bool = False
    """Whether tables that only lookups of tokens read stay on disk, as the caller of the load chose."""
    providers: tuple[str, ...] | None = None
    """The names of execution providers, in order; None for a repository, which has none."""
    unused_options: tuple[str, ...] = ()
    """The options without an effect, each with its JSON path and the reason."""
    cross: tuple[str, ...] = ()
    """Names of the inputs for an encoder's outputs, `%d` for the layer, in the order of EncoderConfig.cross."""

    @property
    def folder(self) -> str:
        """The folder of the graph and its data files, relative to the model's folder: empty, or with a final slash."""
        return self.filename[: self.filename.rfind("/") + 1]


@dataclass(frozen=True)
class EncoderConfig:
    """`model.encoder`: the graph that runs once for a sound, and its tensor names."""

    filename: str
    features: str
    """The input."""
    cross: tuple[str, ...]
    """The outputs that the decoder reads in each step, `%d` for the layer."""
    processor: str
    """The file with the steps from a sound to the input."""
    weights: tuple[tuple[str, int], ...] = ()
    """Names and bytes of its tensors in data files, after its graph was read."""


@dataclass(frozen=True)
class EmbeddingNames:
    """The file of an embedding graph, its tensors, and the decoder's input for its output."""

    filename: str
    input_ids: str
    features: str
    """Empty for a graph that only makes the embeddings of ids."""
    embeddings: str
    target: str


@dataclass(frozen=True)
class VisionConfig:
    """`model.vision` and `model.embedding`: the graph that runs once for a picture, the graph that makes a decoder's
    embeddings, and their tensor names.
    """

    filename: str
    pixels: str
    """The input of the vision graph."""
    features: str
    """Its output."""
    processor: str
    """The file with the steps from a picture to the input."""
    embedding: EmbeddingNames
    grid: str = ""
    """The input for a picture's frames, rows and columns of patches, of Qwen2.5-VL; empty for pictures of one size."""
    merge: int = 2
    """Rows and columns of patches that become one row of features."""
    mask: str = ""
    """The input for the mask of pixels, in a repository; empty without one."""
    placeholder: int | None = None
    """The id of a placeholder; None if only the embedding graph has it."""
    places: int = 0
    """Placeholders of a tile of a picture; 0 for a model without tiles."""
    weights: tuple[tuple[str, int], ...] = ()
    """Names and bytes of its tensors in data files, after its graph was read."""


@dataclass(frozen=True)
class Stated:
    """The name of a model, its size and its licence, as its files state them."""

    name: str | None = None
    parameters: int | None = None
    bytes: int | None = None
    licence: str | None = None


DECODER = "decoder"
"""The name of the graph that makes tokens."""
GENERATION_CONFIG = "generation_config.json"
"""The file with the suppressed tokens of a speech model; folders of the builder have none."""
ENCODER = "encoder"
"""The name of the graph that runs once for a sound."""
VISION, EMBEDDING = "vision", "embedding"
"""The names of the graph that runs once for a picture, and of the graph that makes embeddings of ids."""
FEATURES, PLACES = "capstan.features", "capstan.places"
"""Inputs of a decoder after an embedding graph: features of pictures [rows, hidden], and for each position the row
that is placed there, or -1."""
DISK_ROWS = "capstan.disk_rows"
"""The input of a graph with tables on disk: for each position the place of its row among the rows of the run."""


@dataclass(frozen=True)
class GenaiConfig:
    """The whole file. `search` is passed on unchanged; sampling checks it."""

    model_type: str
    vocab_size: int
    context_length: int
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    pad_token_id: int
    decoder: DecoderConfig
    search: Mapping[str, Any]
    name: str = "genai_config.json"
    no_tokens: tuple[str, ...] = ()
    """Given ids outside of the vocabulary, such as 'pad_token_id -1'; the model runs without them."""
    encoder: EncoderConfig | None = None
    vision: VisionConfig | None = None
    head: DecoderConfig | None = None
    """`model.mtp`: the multi-token-prediction head, which drafts tokens from the decoder's hidden states."""
    stated: Stated = Stated()
    room: int = 0
    """The number of tokens for which caches need room, from the caller of a load (no file has it); 0 if not given."""
    speculative: Mapping[str, Any] | None = None
    """The file's options of speculation, passed on unchanged; None without the section."""
    draft: GenaiConfig | None = None
    """The model of `model.draft`, another graph of the folder that drafts tokens; None without the section."""

    @property
    def graph_files(self) -> dict[str, str]:
        """The files of the model's graphs in its folder, by the graphs' names."""
        files = {DECODER: self.decoder.filename}
        if self.encoder is not None:
            files[ENCODER] = self.encoder.filename
        if self.vision is not None:
            files |= {VISION: self.vision.filename, EMBEDDING: self.vision.embedding.filename}
        return files

    @property
    def of_head(self) -> GenaiConfig:
        """The configuration of the multi-token-prediction head as a model."""
        assert self.head is not None, "a model without a head has no such configuration"
        return replace(self, decoder=self.head, head=None)

    @property
    def processor(self) -> str | None:
        """The file with the steps from a sound or a picture to an input; None for a text model."""
        about = self.encoder or self.vision
        return None if about is None else about.processor

    @property
    def weights_beside(self) -> tuple[tuple[str, int], ...]:
        """Names and bytes of the tensors of the graph that reads sounds or pictures, after it was read."""
        about = self.encoder or self.vision
        return () if about is None else about.weights


def with_session_options(config: GenaiConfig, name: str, session_options: Any) -> GenaiConfig:
    """The configuration of a model without genai_config.json, with the session options that apply to such a model laid
    over it. Messages call them `name`. Raises ConfigError.
    """
    section = Section(name, "model.decoder", {"session_options": session_options}).section("session_options")
    decoder = replace(
        config.decoder,
        capture=graph_capture(section),
        kv_cache_bits=kv_cache_bits(section),
        disable_file_mapped_weights=disables_store(section),
        unused_options=unused_options(section),
    )
    return replace(config, decoder=decoder)


def with_room(config: GenaiConfig, max_length: int | None) -> GenaiConfig:
    """The configuration for sequences of `max_length` tokens, at most the context length; None leaves it unchanged.
    Raises OptionError.
    """
    if max_length is None:
        return config
    if isinstance(max_length, bool) or not isinstance(max_length, int) or max_length < 1:
        raise OptionError(f"max_length is {max_length!r}; it must be a number of tokens of at least 1, or None")
    return replace(config, room=min(max_length, config.context_length))
