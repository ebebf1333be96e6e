"""Reads genai_config.json, the file that onnxruntime-genai's model builder writes next to model.onnx, into frozen
dataclasses.

Every error names the file and the JSON path of the field:

    genai_config.json: model.decoder.num_hidden_layers: expected a positive integer, got "two"; ...
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from ..errors import OptionError, UnsupportedModelError
from .config_section import Section, file_name, parse_object
from .model_types import HEARD_TYPES, QWEN_TYPES, SEEN_TYPES, SUPPORTED_TYPES, UNSEEN, require_type
from .session_settings import (
    GraphCapture,
    disables_store,
    graph_capture,
    kv_cache_bits,
    listed_providers,
    qdq_accuracy,
    rope_joined_at,
    unused_options,
)

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
    "parse_genai_config",
    "with_room",
    "with_session_options",
]

# Sections of `model` or `model.decoder` of models that have more than one decoder.
OTHER_PARTS = {
    "encoder": "an encoder",
    "vision": "a vision model",
    "speech": "a speech model",
    "embedding": "a separate embedding model",
    "encoder_decoder_init": "an encoder",
    "joiner": "a transducer",
}
OWN_PARTS = {**dict.fromkeys(HEARD_TYPES, ("encoder", "speech")), **dict.fromkeys(SEEN_TYPES, ("vision", "embedding"))}
"""Such sections of a model that hears or sees, by its type."""

BLOCK_DRAFTERS = ("dflash2", "dspark")
"""Sections of `model` that onnxruntime-genai reads for its Engine only."""

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


def parse_genai_config(data: str | bytes, name: str = "genai_config.json") -> GenaiConfig:
    """Read the file's content; error messages call it `name`.

    Raises ConfigError if it is not JSON (line and column) or a field is missing or wrong (its path);
    UnsupportedModelError, with a list of supported models, if it describes anything but one decoder with key/value
    caches.
    """
    root = Section(name, "", parse_object(data, name))
    found = config_of(root, "decoder")
    drafting = root.section("speculative").value if root.value.get("speculative") is not None else None
    draft = config_of(root, "draft") if root.section("model").value.get("draft") is not None else None
    if draft is not None and found.processor is not None:
        raise UnsupportedModelError(
            f"{name}: model.draft: the model, of type {found.model_type}, hears or sees, and drafts follow from text "
            "only; take the section out"
        )
    blocks = [f"model.{key} (drafts of whole blocks)" for key in BLOCK_DRAFTERS if root.section("model").value.get(key)]
    decoder = replace(found.decoder, unused_options=(*found.decoder.unused_options, *blocks))
    return replace(found, decoder=decoder, speculative=drafting, draft=draft)


def config_of(root: Section, part: str) -> GenaiConfig:
    """The model whose decoder is the section `part` of `model`."""
    name, model = root.file, root.section("model")
    model_type = model.text("type")
    decoder = supported_decoder(model, model_type, part)
    hears = model_type in HEARD_TYPES
    vocab_size = model.positive("vocab_size")
    vision = vision_config(model, decoder, vocab_size) if model_type in SEEN_TYPES else None
    pad = model.token("pad_token_id", vocab_size)
    eos = model.tokens("eos_token_id", vocab_size)
    no_tokens = [
        f"{key} {model.value[key]}"
        for key in ("bos_token_id", "pad_token_id")
        if model.value.get(key) is not None and model.token(key, vocab_size) is None
    ]
    if not eos and pad is None and model.value.get("pad_token_id") is not None:
        raise model.error("eos_token_id", f"a token id from 0 to {vocab_size - 1}, or an array of them")
    inputs, outputs = decoder.section("inputs", optional=True), decoder.section("outputs", optional=True)
    session_options = decoder.section("session_options", optional=True)
    heads, kv_heads = decoder.positive("num_attention_heads"), decoder.positive("num_key_value_heads")
    if heads % kv_heads:
        raise decoder.error("num_key_value_heads", f"a divisor of num_attention_heads ({heads})")
    config = GenaiConfig(
        model_type=model_type,
        vocab_size=vocab_size,
        context_length=model.positive("context_length"),
        bos_token_id=model.token("bos_token_id", vocab_size),
        eos_token_ids=eos or (pad or 0,),
        pad_token_id=pad or 0,
        decoder=DecoderConfig(
            filename=file_name(decoder, "filename"),
            head_size=decoder.positive("head_size"),
            hidden_size=decoder.positive("hidden_size") if "hidden_size" in decoder.value else None,
            num_attention_heads=heads,
            num_key_value_heads=kv_heads,
            num_hidden_layers=decoder.positive("num_hidden_layers"),
            inputs=InputNames(
                input_ids=vision.embedding.input_ids if vision else inputs.text("input_ids", InputNames.input_ids),
                attention_mask=inputs.text("attention_mask", InputNames.attention_mask),
                position_ids=inputs.text("position_ids", InputNames.position_ids),
                past_key_names=inputs.pattern("past_key_names", InputNames.past_key_names),
                past_value_names=inputs.pattern("past_value_names", InputNames.past_value_names),
                past_conv_names=inputs.pattern("past_conv_names", InputNames.past_conv_names),
                past_recurrent_names=inputs.pattern("past_recurrent_names", InputNames.past_recurrent_names),
            ),
            outputs=OutputNames(
                logits=outputs.text("logits", OutputNames.logits),
                present_key_names=outputs.pattern("present_key_names", OutputNames.present_key_names),
                present_value_names=outputs.pattern("present_value_names", OutputNames.present_value_names),
                present_conv_names=outputs.pattern("present_conv_names", OutputNames.present_conv_names),
                present_recurrent_names=outputs.pattern("present_recurrent_names", OutputNames.present_recurrent_names),
            ),
            long_rope_from=rope_joined_at(decoder),
            rope_joined_at=rope_joined_at(decoder),
            qdq_accuracy=qdq_accuracy(session_options),
            disable_file_mapped_weights=disables_store(session_options),
            capture=graph_capture(session_options),
            kv_cache_bits=kv_cache_bits(session_options),
            providers=tuple(name for item in listed_providers(session_options) for name in item.value),
            unused_options=unused_options(session_options),
            cross=cross_names(inputs, "cross_past_%s_names", "past_%s_cross_%%d") if hears else (),
        ),
        encoder=encoder_config(model) if hears else None,
        vision=vision,
        search=MappingProxyType(dict(root.section("search", optional=True).value)),
        name=name,
        no_tokens=tuple(no_tokens),
    )
    return with_head(config, model)


def with_head(config: GenaiConfig, model: Section) -> GenaiConfig:
    """The configuration with the multi-token-prediction head of `model.mtp`, if the file has one and does not disable
    it. Raises ConfigError.
    """
    head = model.section("mtp", optional=True)
    if head.value.get("enabled", bool(head.value)) is False:
        return config
    if head.value.get("enabled", True) is not True:
        raise head.error("enabled", "true or false")
    layers, shared = head.positive("num_hidden_layers"), head.value.get("shared_kv_layers")
    if layers != 1 or shared:
        why = f"{layers} layers" if layers != 1 else "caches of the model"
        unused = f"{head.path}: Capstan drafts with heads of one layer and its own caches, and this one has {why}"
        decoder = replace(config.decoder, unused_options=(*config.decoder.unused_options, unused))
        return replace(config, decoder=decoder)
    inputs, outputs = head.section("inputs", optional=True), head.section("outputs", optional=True)
    made = replace(
        config.decoder,
        filename=file_name(head, "filename"),
        head_size=head.positive("head_size"),
        num_key_value_heads=head.positive("num_key_value_heads"),
        num_hidden_layers=layers,
        inputs=InputNames(
            input_ids=inputs.text("input_ids", InputNames.input_ids),
            attention_mask=inputs.text("attention_mask", InputNames.attention_mask),
            position_ids=inputs.text("position_ids", InputNames.position_ids),
            past_key_names=inputs.pattern("past_key_names", InputNames.past_key_names),
            past_value_names=inputs.pattern("past_value_names", InputNames.past_value_names),
            hidden_states=inputs.text("hidden_states", "hidden_states"),
        ),
        outputs=OutputNames(
            logits=outputs.text("logits", OutputNames.logits),
            present_key_names=outputs.pattern("present_key_names", OutputNames.present_key_names),
            present_value_names=outputs.pattern("present_value_names", OutputNames.present_value_names),
            hidden_states=outputs.text("hidden_states", "hidden_states_out"),
        ),
    )
    read = replace(config.decoder.outputs, hidden_states=head.text("main_hidden_states", "hidden_states"))
    return replace(config, head=made, decoder=replace(config.decoder, outputs=read))


def supported_decoder(model: Section, model_type: str, part: str) -> Section:
    """The section `part` of `model`, if the file describes a model that Capstan runs."""
    works = f"Capstan runs decoders with a key/value cache: {', '.join(SUPPORTED_TYPES)}"
    own = OWN_PARTS.get(model_type, ())
    if model_type in UNSEEN:
        require_type(model.where("type"), model_type)
    for key, what in OTHER_PARTS.items():
        if model.value.get(key) and key not in own:
            raise UnsupportedModelError(f"{model.where(key)}: the model, of type {model_type}, has {what}; {works}")
    require_type(model.where("type"), model_type)
    decoder = model.section(part)
    if decoder.value.get("pipeline"):
        raise UnsupportedModelError(f"{decoder.where('pipeline')}: the decoder is in several files, not one; {works}")
    window = decoder.section("sliding_window", optional=True)
    if window.value.get("slide_key_value_cache") is True:
        raise UnsupportedModelError(
            f"{window.where('slide_key_value_cache')}: the cache slides, which is not supported; {works}"
        )
    inputs = decoder.section("inputs", optional=True)
    for key in ("past_key_scale_names", "block_table", "inputs_embeds"):
        if key in inputs.value and not (key == "inputs_embeds" and model_type in SEEN_TYPES):
            raise UnsupportedModelError(f"{inputs.where(key)}: Capstan does not feed this input; {works}")
    return decoder


def encoder_config(model: Section) -> EncoderConfig:
    """`model.encoder`, and the name of the sound processor's file."""
    encoder = model.section("encoder")
    inputs, outputs = encoder.section("inputs", optional=True), encoder.section("outputs", optional=True)
    speech = model.section("speech", optional=True)
    return EncoderConfig(
        filename=file_name(encoder, "filename"),
        features=inputs.text("audio_features", "audio_features"),
        cross=cross_names(outputs, "cross_present_%s_names", "present_%s_cross_%%d"),
        processor=file_name(speech, "config_filename", "audio_processor_config.json"),
    )


def vision_config(model: Section, decoder: Section, vocab_size: int) -> VisionConfig:
    """`model.vision` and `model.embedding`."""
    vision, embedding = model.section("vision"), model.section("embedding")
    inputs, outputs = vision.section("inputs", optional=True), vision.section("outputs", optional=True)
    fed, made = embedding.section("inputs", optional=True), embedding.section("outputs", optional=True)
    return VisionConfig(
        filename=file_name(vision, "filename"),
        pixels=inputs.text("pixel_values", "pixel_values"),
        features=outputs.text("image_features", "image_features"),
        processor=file_name(vision, "config_filename", "processor_config.json"),
        embedding=EmbeddingNames(
            filename=file_name(embedding, "filename"),
            input_ids=fed.text("input_ids", InputNames.input_ids),
            features=fed.text("image_features", "image_features"),
            embeddings=made.text("inputs_embeds", "inputs_embeds"),
            target=decoder.section("inputs", optional=True).text("inputs_embeds", "inputs_embeds"),
        ),
        placeholder=model.token("image_token_id", vocab_size),
        grid=inputs.text("image_grid_thw", "image_grid_thw") if model.value.get("type") in QWEN_TYPES else "",
        merge=vision.positive("spatial_merge_size") if "spatial_merge_size" in vision.value else 2,
    )


def cross_names(section: Section, field: str, default: str) -> tuple[str, ...]:
    """The names of an encoder's keys and values."""
    return tuple(section.pattern(field % kind, default % kind) for kind in ("key", "value"))


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
