"""genai_config.json, the file that onnxruntime-genai's model builder writes next to model.onnx, as frozen dataclasses.

Every error names the file and the JSON path of the field:

    genai_config.json: model.decoder.num_hidden_layers: expected a positive integer, got "two"; ...
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from ..errors import ConfigError, OptionError, UnsupportedModelError
from .bounded_json import NotJsonError, read_json
from .file_names import why_not_below
from .model_types import SUPPORTED_TYPES, require_type

__all__ = [
    "DECODER",
    "KV_CACHE_BITS",
    "DecoderConfig",
    "GenaiConfig",
    "GraphCapture",
    "InputNames",
    "OutputNames",
    "Stated",
    "parse_genai_config",
    "with_room",
    "with_session_options",
]

# Options of the decoder's sessions that are known: of logging, threads, memory arenas and the CPU's fallback, which
# change no result; Capstan decides by itself whether to validate.
SESSION_OPTIONS = set(
    "log_id log_severity_level log_verbosity_level enable_profiling intra_op_num_threads inter_op_num_threads "  # noqa: SIM905
    "enable_cpu_mem_arena enable_mem_pattern disable_cpu_ep_fallback use_env_allocators graph_optimization_level "
    "provider_options session.qdq_matmulnbits_accuracy_level session.disable_file_mapped_weights".split()
)
QDQ_ACCURACY = "session.qdq_matmulnbits_accuracy_level"
LONG_ROPE = "multiRotaryCacheConcatOffset"
DISABLE_STORE = "disable_file_mapped_weights"
CAPTURE = "enableGraphCapture"
CACHE_BITS = "kvCacheQuantizationBits"
WEBGPU = ("webgpu", "webgpuexecutionprovider")
PROVIDERS = (*WEBGPU, "cpu", "cpuexecutionprovider")
WEBGPU_OPTIONS = {DISABLE_STORE, CAPTURE, "validationMode", LONG_ROPE, CACHE_BITS}

# Sections of `model` or `model.decoder` that say the model is more than one decoder.
OTHER_PARTS = {
    "encoder": "an encoder",
    "vision": "a vision model",
    "speech": "a speech model",
    "embedding": "a separate embedding model",
    "encoder_decoder_init": "an encoder",
    "joiner": "a transducer",
}

REMEDY = "correct the file, or export the model again with onnxruntime-genai's model builder"
JSON_NAMES = {list: "an array", str: "a string", int: "a number", float: "a number", bool: "true or false"}

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


@dataclass(frozen=True)
class OutputNames:
    """Names of the graph's outputs; `%d` stands for the layer."""

    logits: str = "logits"
    present_key_names: str = "present.%d.key"
    present_value_names: str = "present.%d.value"
    present_conv_names: str = "present.%d.conv"
    present_recurrent_names: str = "present.%d.recurrent"


@dataclass(frozen=True)
class GraphCapture:
    """Whether a configuration asks for graph capture."""

    on: bool
    where: str
    """The option's JSON path, with the file."""


@dataclass(frozen=True)
class DecoderConfig:
    """`model.decoder`: the graph's file, its sizes and its tensor names."""

    filename: str
    head_size: int
    num_attention_heads: int
    num_key_value_heads: int
    num_hidden_layers: int
    hidden_size: int | None = None
    inputs: InputNames = InputNames()
    outputs: OutputNames = OutputNames()
    long_rope_from: int = 0
    """Positions up to which the rotary factors are the short ones, if the configuration says so; 0 if not."""
    rope_joined_at: int = 0
    """The row of the rotary tables at which the long ones begin (multiRotaryCacheConcatOffset); 0 if there are none."""
    qdq_accuracy: int = 0
    """The accuracy_level of products by weights with DequantizeLinear: 4 allows activations in int8. The native
    onnxruntime takes 4 where nothing is said, Capstan what the graph says: floats."""
    disable_file_mapped_weights: bool = False
    """Whether the browser's storage is left out: from a provider's option of that name, or the session option with
    `session.` before it."""
    capture: GraphCapture | None = None
    """From enableGraphCapture; None if the file does not say."""
    kv_cache_bits: int = 0
    """Bits of an element of the key/value caches on WebGPU, from kvCacheQuantizationBits: 4, 8, or 0 for those of the
    graph."""
    providers: tuple[str, ...] | None = None
    """The names of execution providers, in order; None for a repository, which names none."""
    unknown_options: tuple[str, ...] = ()
    """JSON paths below `model.decoder` of session options that mean nothing to Capstan."""

    @property
    def folder(self) -> str:
        """The folder of the graph and its data files, relative to the model's folder: empty, or with a final slash."""
        return self.filename[: self.filename.rfind("/") + 1]


@dataclass(frozen=True)
class Stated:
    """The name of a model, its size and its licence, as its files state them."""

    name: str | None = None
    parameters: int | None = None
    bytes: int | None = None
    licence: str | None = None


DECODER = "decoder"
"""The name of the graph that makes tokens."""


@dataclass(frozen=True)
class GenaiConfig:
    """The whole file. `search` is passed on as it was read; sampling checks it."""

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
    """Ids that are given and are none of the vocabulary, as 'pad_token_id -1': the model is run without them."""
    stated: Stated = Stated()
    room: int = 0
    """Tokens of a sequence that caches need room for, as the caller of a load says, 0 if it says nothing: no file has
    it."""

    @property
    def graph_files(self) -> dict[str, str]:
        """The files of the model's graphs in its folder, by the graphs' names."""
        return {DECODER: self.decoder.filename}


MOST = 1 << 24
LARGEST = {"num_hidden_layers": 4096, "num_attention_heads": 65536, "num_key_value_heads": 65536}
"""The largest count of things that are listed one by one; of other sizes MOST."""


class Section:
    """One JSON object and where it is in the file; its readers raise ConfigError with the path."""

    def __init__(self, file: str, path: str, value: Mapping[str, Any]) -> None:
        self.file, self.path, self.value = file, path, value

    def where(self, key: str) -> str:
        return f"{self.file}: {self.path}.{key}" if self.path else f"{self.file}: {key}"

    def error(self, key: str, expected: str, remedy: str = REMEDY) -> ConfigError:
        if key not in self.value:
            return ConfigError(f"{self.where(key)}: missing, expected {expected}; {remedy}")
        shown = json.dumps(self.value[key], ensure_ascii=False)
        shown = shown if len(shown) <= 60 else shown[:57] + "..."
        return ConfigError(f"{self.where(key)}: expected {expected}, got {shown}; {remedy}")

    def section(self, key: str, *, optional: bool = False) -> Section:
        value = self.value.get(key)
        if value is None and optional:
            return Section(self.file, f"{self.path}.{key}".lstrip("."), {})
        if not isinstance(value, dict):
            raise self.error(key, "an object")
        return Section(self.file, f"{self.path}.{key}".lstrip("."), value)

    def positive(self, key: str) -> int:
        value = whole(self.value.get(key))
        if type(value) is not int or not 1 <= value <= (most := LARGEST.get(key, MOST)):
            raise self.error(key, "a positive integer" if type(value) is not int or value < 1 else f"at most {most}")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        value = self.value.get(key, default)
        if not isinstance(value, str) or not value:
            raise self.error(key, "a string that is not empty")
        return value

    def token(self, key: str, vocab_size: int) -> int | None:
        """A token id, or None for an id outside the vocabulary, which onnxruntime-genai allows, too."""
        value = whole(self.value.get(key))
        if value is not None and type(value) is not int:
            raise self.error(key, f"a token id from 0 to {vocab_size - 1}")
        return value if is_token(value, vocab_size) else None

    def tokens(self, key: str, vocab_size: int) -> tuple[int, ...]:
        value = self.value.get(key)
        if value is None:
            return ()
        ids = [whole(item) for item in (value if isinstance(value, list) else [value])]
        if not all(is_token(item, vocab_size) for item in ids):
            raise self.error(key, f"a token id from 0 to {vocab_size - 1}, or an array of them")
        return tuple(dict.fromkeys(ids))

    def pattern(self, key: str, default: str) -> str:
        value = self.text(key, default)
        if value.count("%d") != 1:
            raise self.error(key, 'a name with one "%d" for the layer')
        return value


def whole(value: Any) -> Any:
    """The int that a float like 512.0 equals; any other value unchanged."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def is_token(value: object, vocab_size: int) -> bool:
    return type(value) is int and 0 <= value < vocab_size


def parse_genai_config(data: str | bytes, name: str = "genai_config.json") -> GenaiConfig:
    """Read the file's content; `name` is what error messages call it.

    Raises ConfigError if it is not JSON (line and column) or a field is missing or wrong (its path);
    UnsupportedModelError, listing what works, if it describes something else than one decoder with key/value caches.
    """
    root = Section(name, "", parse_object(data, name))
    model = root.section("model")
    model_type = model.text("type")
    decoder = supported_decoder(model, model_type)
    vocab_size = model.positive("vocab_size")
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
    return GenaiConfig(
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
                input_ids=inputs.text("input_ids", InputNames.input_ids),
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
            unknown_options=unknown_options(session_options),
        ),
        search=MappingProxyType(dict(root.section("search", optional=True).value)),
        name=name,
        no_tokens=tuple(no_tokens),
    )


def parse_object(data: str | bytes, name: str) -> dict[str, Any]:
    """A file's JSON object; ConfigError with line and column if it is not one."""
    try:
        value = read_json(data)
    except NotJsonError as error:
        raise ConfigError(f"{name}: {error}; {REMEDY}") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{name}: expected an object, got {JSON_NAMES.get(type(value), 'null')}; {REMEDY}")
    return value


def supported_decoder(model: Section, model_type: str) -> Section:
    """`model.decoder`, if the file describes a model that Capstan runs."""
    works = f"Capstan runs decoders with a key/value cache: {', '.join(SUPPORTED_TYPES)}"
    for key, what in OTHER_PARTS.items():
        if model.value.get(key):
            raise UnsupportedModelError(f"{model.where(key)}: a model of type {model_type} with {what}; {works}")
    require_type(model.where("type"), model_type)
    decoder = model.section("decoder")
    if decoder.value.get("pipeline"):
        raise UnsupportedModelError(f"{decoder.where('pipeline')}: a decoder in several files; {works}, in one file")
    window = decoder.section("sliding_window", optional=True)
    if window.value.get("slide_key_value_cache") is True:
        raise UnsupportedModelError(
            f"{window.where('slide_key_value_cache')}: a cache that slides; {works} that does not"
        )
    inputs = decoder.section("inputs", optional=True)
    for key in ("past_key_scale_names", "block_table", "inputs_embeds"):
        if key in inputs.value:
            raise UnsupportedModelError(f"{inputs.where(key)}: an input that Capstan does not feed; {works}")
    return decoder


def webgpu_options(session_options: Section) -> list[Section]:
    """The sections of `provider_options` for WebGPU; those for other providers are for other runtimes."""
    return provider_options(session_options, WEBGPU)


def provider_options(session_options: Section, providers: Collection[str]) -> list[Section]:
    """The sections of `provider_options` for some providers."""
    listed = listed_providers(session_options)
    return [item.section(name) for item in listed for name in item.value if name.lower() in providers]


def listed_providers(session_options: Section) -> list[Section]:
    """The elements of `provider_options`, each with providers by name."""
    value = session_options.value.get("provider_options", [])
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise session_options.error("provider_options", "an array of objects")
    path = f"{session_options.path}.provider_options"
    return [Section(session_options.file, f"{path}[{i}]", item) for i, item in enumerate(value)]


def unknown_options(session_options: Section) -> tuple[str, ...]:
    """The paths of session options, and of WebGPU's options, that are not among those known."""
    sections = [(session_options, SESSION_OPTIONS)]
    sections += [(options, WEBGPU_OPTIONS) for options in webgpu_options(session_options)]
    return tuple(f"{section.path}.{name}" for section, known in sections for name in section.value if name not in known)


def disables_store(session_options: Section) -> bool:
    """Whether the session's options, or those of a provider that a page has, leave the browser's storage out."""
    given = False
    for options in provider_options(session_options, PROVIDERS):
        given = switched(options, DISABLE_STORE, given)
    return given or switched(session_options, f"session.{DISABLE_STORE}", False)


def graph_capture(session_options: Section) -> GraphCapture | None:
    """Reads enableGraphCapture from WebGPU's options; the last one given counts. Raises ConfigError."""
    found = None
    for options in webgpu_options(session_options):
        if CAPTURE in options.value:
            found = GraphCapture(switched(options, CAPTURE, False), options.where(CAPTURE))
    return found


def kv_cache_bits(session_options: Section) -> int:
    """Reads kvCacheQuantizationBits from WebGPU's options; the last one given counts. Raises ConfigError."""
    found = 0
    for options in webgpu_options(session_options):
        value = options.value.get(CACHE_BITS, str(found))
        if value not in ("0", "4", "8"):
            raise options.error(CACHE_BITS, '"0", "4" or "8"', "set it to one of these, or leave it out")
        found = int(value)
    return found


def switched(section: Section, name: str, default: bool) -> bool:
    """An option that is "0" or "1". Raises ConfigError for others."""
    value = section.value.get(name, "1" if default else "0")
    if value not in ("0", "1") or not isinstance(value, str):
        raise section.error(name, '"0" or "1"', "set it to one of these, or leave it out")
    return value == "1"


def with_session_options(config: GenaiConfig, name: str, session_options: Any) -> GenaiConfig:
    """The configuration of a model without genai_config.json, with session options laid over it, as far as they say
    something of such a model. `name` is what messages call them. Raises ConfigError."""
    section = Section(name, "model.decoder", {"session_options": session_options}).section("session_options")
    decoder = replace(
        config.decoder,
        capture=graph_capture(section),
        kv_cache_bits=kv_cache_bits(section),
        disable_file_mapped_weights=disables_store(section),
        unknown_options=unknown_options(section),
    )
    return replace(config, decoder=decoder)


def with_room(config: GenaiConfig, max_length: int | None) -> GenaiConfig:
    """The configuration for sequences of that length, the context's if that is less; None leaves it unchanged. Raises
    OptionError."""
    if max_length is None:
        return config
    if isinstance(max_length, bool) or not isinstance(max_length, int) or max_length < 1:
        raise OptionError(f"max_length is {max_length!r}; it must be a number of tokens from 1 on, or None")
    return replace(config, room=min(max_length, config.context_length))


def qdq_accuracy(session_options: Section) -> int:
    value = session_options.value.get(QDQ_ACCURACY, "0")
    if str(value) not in ("0", "1", "2", "3", "4"):
        raise session_options.error(QDQ_ACCURACY, "a level from 0 to 4")
    return int(value)


def rope_joined_at(decoder: Section) -> int:
    """The length from which on a model's rotary factors are the long ones, 0 if it has one kind."""
    found = 0
    for options in webgpu_options(decoder.section("session_options", optional=True)):
        value = options.value.get(LONG_ROPE, str(found))
        if not str(value).isdecimal():
            raise options.error(LONG_ROPE, "a number of positions")
        found = int(value)
    return found


def file_name(section: Section, key: str) -> str:
    value = section.text(key)
    why = why_not_below(value)
    if why is not None:
        raise section.error(key, f"a file below the model's folder ({why})")
    return value
