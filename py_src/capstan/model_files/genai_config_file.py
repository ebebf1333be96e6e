"""Reads genai_config.json, the file that onnxruntime-genai's model builder writes next to model.onnx.

Every error names the file and the JSON path of the field:

    genai_config.json: model.decoder.num_hidden_layers: expected a positive integer, got "two"; ...
"""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

from ..errors import UnsupportedModelError
from .config_section import Section, file_name, parse_object
from .genai_config import (
    DecoderConfig,
    EmbeddingNames,
    EncoderConfig,
    GenaiConfig,
    InputNames,
    OutputNames,
    VisionConfig,
)
from .model_types import HEARD_TYPES, QWEN_TYPES, SEEN_TYPES, SUPPORTED_TYPES, UNSEEN, require_type
from .session_settings import (
    disables_store,
    graph_capture,
    kv_cache_bits,
    listed_providers,
    qdq_accuracy,
    rope_joined_at,
    unused_options,
)

__all__ = ["parse_genai_config"]

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
            inputs=input_names(inputs, vision.embedding.input_ids if vision else ""),
            outputs=output_names(outputs),
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


def input_names(inputs: Section, ids: str = "") -> InputNames:
    """The names of a decoder's inputs; the one of the tokens is `ids` if another graph reads them."""
    return InputNames(
        input_ids=ids or inputs.text("input_ids", InputNames.input_ids),
        attention_mask=inputs.text("attention_mask", InputNames.attention_mask),
        position_ids=inputs.text("position_ids", InputNames.position_ids),
        past_key_names=inputs.pattern("past_key_names", InputNames.past_key_names),
        past_value_names=inputs.pattern("past_value_names", InputNames.past_value_names),
        past_conv_names=inputs.pattern("past_conv_names", InputNames.past_conv_names),
        past_recurrent_names=inputs.pattern("past_recurrent_names", InputNames.past_recurrent_names),
    )


def output_names(outputs: Section) -> OutputNames:
    """The names of a decoder's outputs."""
    return OutputNames(
        logits=outputs.text("logits", OutputNames.logits),
        present_key_names=outputs.pattern("present_key_names", OutputNames.present_key_names),
        present_value_names=outputs.pattern("present_value_names", OutputNames.present_value_names),
        present_conv_names=outputs.pattern("present_conv_names", OutputNames.present_conv_names),
        present_recurrent_names=outputs.pattern("present_recurrent_names", OutputNames.present_recurrent_names),
    )


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
        inputs=replace(input_names(inputs), hidden_states=inputs.text("hidden_states", "hidden_states")),
        outputs=replace(output_names(outputs), hidden_states=outputs.text("hidden_states", "hidden_states_out")),
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
