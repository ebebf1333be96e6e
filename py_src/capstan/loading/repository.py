"""Reads repositories in the layout of Transformers.js, and makes the genai_config.json that describes one of their
models.

    config.json, generation_config.json, tokenizer.json, tokenizer_config.json, chat_template.jinja
    onnx/model.onnx, onnx/model_q4f16.onnx, onnx/model_q4f16.onnx_data, onnx/model_q4f16.onnx_data_1, ...

One graph for each dtype; its data files lie next to it. The graph has its inputs and outputs; config.json has the rest:
the context length, special tokens, and the sizes of free dimensions.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

from ..errors import ConfigError, ModelFileError, OptionError, UnsupportedModelError
from ..model_files.config_section import LARGEST, MOST, Section, parse_object
from ..model_files.genai_config import DecoderConfig, GenaiConfig, InputNames, OutputNames, Stated
from ..stages.search import STATED

if TYPE_CHECKING:
    from ..graph.onnx_pb2 import ModelProto, NodeProto, ValueInfoProto

__all__ = [
    "DTYPES",
    "LAYERS",
    "ON_CPU",
    "ON_F16",
    "ON_F32",
    "derived_config",
    "no_graph",
    "onnx_file",
    "require_dtype",
    "require_one_decoder",
    "shortened",
    "text_part",
]

DTYPES = {
    "fp32": "",
    "fp16": "_fp16",
    "q4": "_q4",
    "q4f16": "_q4f16",
    "q8": "_quantized",
    "int8": "_int8",
    "uint8": "_uint8",
    "bnb4": "_bnb4",
}
"""Transformers.js' names of dtypes, and the endings of the graphs' file names."""

ON_F16 = ("q4f16", "q4", "fp16", "fp32", "bnb4", "q8", "int8", "uint8")
ON_F32 = ("q4", "fp32", "bnb4", "q8", "int8", "uint8", "q4f16", "fp16")
ON_CPU = ("q4", "q8", "int8", "uint8", "fp32", "bnb4", "q4f16", "fp16")
"""The order of preference among several dtypes: on GPUs with float16, without it, and on the CPU."""

REMEDY = "correct the file, or use another revision of the repository"

# Sections of config.json that belong to models with more than one decoder.
OTHER_PARTS = {
    "vision_config": "a vision model",
    "audio_config": "an audio model",
    "speech_config": "a speech model",
    "encoder": "an encoder",
    "text_config": "a text model beside others",
}

NOT_IMPLEMENTED = {"num_beams": 1}
"""Options of generation_config.json that Capstan lacks, with the value at which they have no effect."""

OF_THE_MODEL = ("_name_or_path", "bos_token_id", "eos_token_id", "model_type", "pad_token_id")
"""Fields of config.json that apply if its text_config does not have them."""

# Fields of config.json, with their names in different architectures.
LAYERS = ("num_hidden_layers", "n_layer", "num_layers")
HEADS = ("num_attention_heads", "n_head")
WIDTH = ("hidden_size", "n_embd")
CONTEXT = ("max_position_embeddings", "n_positions", "max_sequence_length", "seq_length")


def require_dtype(dtype: str | None) -> str | None:
    """The canonical name of a dtype. Raises OptionError, which lists the valid names."""
    if dtype == "quantized":
        return "q8"
    if dtype is not None and dtype not in DTYPES:
        raise OptionError(f"dtype is {dtype!r}; it must be one of {', '.join(DTYPES)}, or None")
    return dtype


def onnx_file(dtype: str, graph: str = "model") -> str:
    """The path of a graph's file below the repository."""
    return f"onnx/{graph}{DTYPES[dtype]}.onnx"


def no_graph(
    folder: str, dtype: str | None, there: Collection[str], names: Iterable[str] | None, wanted: Sequence[str]
) -> ModelFileError:
    """The error for a repository without the requested graphs. `there` are its dtypes, `names` all its files, None if
    they cannot be listed.
    """
    if dtype is not None and there:
        files = ", ".join(onnx_file(dtype, graph) for graph in wanted)
        return ModelFileError(
            f"{folder}{files} does not exist; dtype={dtype!r} was requested; the dtypes are {', '.join(there)}"
        )
    found = None if names is None else sorted(names)
    graphs = [name for name in found or () if name.endswith(".onnx")]
    if graphs:
        what = f"its ONNX files are {shortened(graphs)}"
    elif found is None:
        what = f"none of {', '.join(map(onnx_file, DTYPES))} exists"
    else:
        what = f"it has no ONNX file, but {shortened(found) or 'no files'}"
    if len(wanted) > 1:
        needed = f"it needs {', '.join(onnx_file('fp32', graph) for graph in wanted)}, in one dtype"
        return ModelFileError(f"{folder} lacks a graph of its model: {what}; {needed}")
    return ModelFileError(
        f"{folder} has no graph of one decoder: {what}; use a repository with onnx/model.onnx or one of its dtypes"
    )


def shortened(names: list[str], most: int = 12) -> str:
    """A list for messages, which shows at most `most` entries."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def text_part(config: bytes, folder: str) -> tuple[Section, Section, dict[str, Any]]:
    """A config.json, its text_config, and the fields of the language model: those of text_config, and of the whole
    model where text_config lacks them. Raises ConfigError.
    """
    root = Section(folder + "config.json", "", parse_object(config, folder + "config.json"))
    text = root.section("text_config")
    whole = {key: root.value[key] for key in OF_THE_MODEL if root.value.get(key) is not None}
    return root, text, {**whole, **text.value}


def derived_config(
    config: bytes, generation: bytes | None, model: ModelProto, filename: str, folder: str = ""
) -> tuple[GenaiConfig, tuple[str, ...]]:
    """The genai_config.json that describes this graph, and the options of generation_config.json that have no effect.

    Raises ConfigError if a field is missing, wrong, or contradicts the graph (with both values); UnsupportedModelError
    for positions of several axes, and a graph without caches.
    """
    name = folder + "config.json"
    root = Section(name, "", parse_object(config, name))
    sampling = Section(folder + "generation_config.json", "", {})
    if generation is not None:
        sampling = Section(sampling.file, "", parse_object(generation, sampling.file))
    require_plain_positions(model)
    inputs, outputs = caches(model.graph.input), caches(model.graph.output)
    decoder = decoder_of(root, model, filename, inputs, outputs)
    vocab_size = agreed(
        root, ("vocab_size",), last_size(model, decoder.outputs.logits), f"output {decoder.outputs.logits}"
    )
    ids = {key: sampling if sampling.value.get(key) is not None else root for key in ("eos_token_id", "pad_token_id")}
    eos = ids["eos_token_id"].tokens("eos_token_id", vocab_size)
    pad = special(ids["pad_token_id"], "pad_token_id", vocab_size)
    options = {key: sampling.value[key] for key in STATED if sampling.value.get(key) is not None}
    in_vain = tuple(
        f"{key}={sampling.value[key]}"
        for key, neutral in NOT_IMPLEMENTED.items()
        if sampling.value.get(key) not in (None, neutral)
    )
    derived = GenaiConfig(
        model_type=root.text("model_type"),
        vocab_size=vocab_size,
        context_length=field(root, CONTEXT),
        bos_token_id=special(root, "bos_token_id", vocab_size),
        eos_token_ids=eos,
        pad_token_id=pad if pad is not None else eos[0] if eos else 0,
        decoder=decoder,
        search=MappingProxyType(options),
        name=name,
        stated=Stated(name=stated_name(root.value)),
    )
    return derived, in_vain


def stated_name(config: Mapping[str, Any]) -> str | None:
    """The name of the model in config.json: the last part of the id under which it was saved. None if config.json has
    no such id.
    """
    source = config.get("_name_or_path")
    match = re.fullmatch(r"\w[\w.-]*/(?P<name>[\w.-]+)", source) if isinstance(source, str) else None
    return match["name"] if match else None


def require_one_decoder(root: Section) -> None:
    """Raise UnsupportedModelError for the config.json of a model that has more than one decoder."""
    kind = root.value.get("model_type", "unknown")
    works = (
        "Capstan runs one decoder of text with a key/value cache, Whisper and Moonshine for speech, and for pictures "
        "idefics3 and smolvlm"
    )
    for key, what in OTHER_PARTS.items():
        if root.value.get(key):
            raise UnsupportedModelError(f"{root.where(key)}: the model, of type {kind}, has {what}; {works}")
    if root.value.get("is_encoder_decoder"):
        raise UnsupportedModelError(
            f"{root.where('is_encoder_decoder')}: the model, of type {kind}, has an encoder; {works}"
        )


Caches: TypeAlias = "dict[str, dict[int, ValueInfoProto]]"
"""Tensors by their name with %d in place of the layer, then by layer."""

LAYERED = re.compile(r"^(?P<front>(?:past|present)\D*)(?P<layer>\d+)(?P<back>\D*)$")


def caches(values: Iterable[ValueInfoProto]) -> Caches:
    """The graph's inputs, or its outputs, that exist once for each layer."""
    found: Caches = {}
    for value in values:
        match = LAYERED.match(value.name)
        if match:
            found.setdefault(f"{match['front']}%d{match['back']}", {})[int(match["layer"])] = value
    return found


def pattern(found: Caches, kind: str, default: str) -> str:
    """The name of the "key" or "value" caches, with `%d` for the layer; `default` if there are none."""
    return next((name for name in found if kind in name.rpartition("%d")[2]), default)


def decoder_of(root: Section, model: ModelProto, filename: str, inputs: Caches, outputs: Caches) -> DecoderConfig:
    names, made = InputNames(), OutputNames()
    past_keys = pattern(inputs, "key", names.past_key_names)
    layers = inputs.get(past_keys, {})
    if not layers:
        shown = ", ".join(value.name for value in list(model.graph.input)[:6]) or "none"
        raise UnsupportedModelError(
            f"{filename}: no inputs like {names.past_key_names} (inputs: {shown}); use an export with a key/value "
            "cache (task text-generation-with-past)"
        )
    first = layers[min(layers)]
    attention = next((node for node in model.graph.node if node.op_type == "GroupQueryAttention"), None)
    heads = agreed(root, HEADS, given(attention, "num_heads"), "num_heads of GroupQueryAttention")
    kv_heads = cache_size(root, ("num_key_value_heads",), first, 1, given(attention, "kv_num_heads") or heads)
    if heads % kv_heads:
        raise root.error("num_key_value_heads", f"a divisor of num_attention_heads ({heads})", REMEDY)
    width = field(root, WIDTH) if any(root.value.get(key) is not None for key in WIDTH) else None
    usual = width // heads if width is not None and width % heads == 0 else None
    return DecoderConfig(
        filename=filename,
        head_size=cache_size(root, ("head_dim",), first, 3, usual),
        hidden_size=width,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        num_hidden_layers=agreed(root, LAYERS, len(layers), f"one {past_keys} for each layer in {filename}"),
        inputs=InputNames(past_key_names=past_keys, past_value_names=pattern(inputs, "value", names.past_value_names)),
        outputs=OutputNames(
            present_key_names=pattern(outputs, "key", made.present_key_names),
            present_value_names=pattern(outputs, "value", made.present_value_names),
        ),
        long_rope_from=original_length(root),
    )


def given(node: NodeProto | None, name: str) -> int | None:
    """The value of an attribute; None if the node does not have it."""
    return next((int(item.i) for item in node.attribute if item.name == name), None) if node is not None else None


def cache_size(root: Section, keys: tuple[str, ...], cache: ValueInfoProto, place: int, usual: int | None) -> int:
    """A dimension of the caches: the graph's value, else config.json's value, else the usual value."""
    dims = cache.type.tensor_type.shape.dim
    size = dims[place].dim_value if len(dims) == 4 and dims[place].dim_value > 0 else None
    if size is None and all(root.value.get(key) is None for key in keys) and usual is not None:
        return usual
    return agreed(root, keys, size, f"input {cache.name} at dimension {place}")


def agreed(root: Section, keys: tuple[str, ...], found: int | None, where: str) -> int:
    """A number that config.json and the graph both contain. Raises ConfigError if the two differ."""
    key = next((key for key in keys if root.value.get(key) is not None), None)
    if key is None and found is not None:
        return found
    declared = field(root, keys)
    if found is not None and declared != found:
        raise ConfigError(f"{root.where(str(key))} is {declared}, but the graph has {found} ({where}); {REMEDY}")
    return declared


def field(root: Section, keys: tuple[str, ...]) -> int:
    """The value of the first of these fields that exists. The limit of the first field applies to all."""
    key = next((key for key in keys if root.value.get(key) is not None), keys[0])
    value, most = root.value.get(key), LARGEST.get(keys[0], MOST)
    if type(value) is not int or not 1 <= value <= most:
        raise root.error(
            key, "a positive integer" if type(value) is not int or value < 1 else f"at most {most}", REMEDY
        )
    return value


def special(section: Section, key: str, vocab_size: int) -> int | None:
    """A special token's id. If config.json lists several ids, the first one is taken."""
    found = section.tokens(key, vocab_size)
    return found[0] if found else None


def last_size(model: ModelProto, output: str) -> int | None:
    """The size of the last dimension of an output; None if it is free."""
    for value in model.graph.output:
        dims = value.type.tensor_type.shape.dim
        if value.name == output and dims and dims[-1].dim_value > 0:
            return int(dims[-1].dim_value)
    return None


def original_length(root: Section) -> int:
    """The number of positions up to which the short factors of a long rope apply; 0 without a long rope."""
    for key in ("rope_scaling", "rope_parameters"):
        scaling: Any = root.value.get(key)
        if isinstance(scaling, Mapping) and scaling.get("rope_type", scaling.get("type")) in ("longrope", "su"):
            found = scaling.get("original_max_position_embeddings") or root.value.get(
                "original_max_position_embeddings"
            )
            described = Section(root.file, key, {"original_max_position_embeddings": found})
            return field(described, ("original_max_position_embeddings",))
    return 0


def require_plain_positions(model: ModelProto) -> None:
    """Raise UnsupportedModelError for position ids with several numbers for a token, as in vision models."""
    for value in model.graph.input:
        dims = value.type.tensor_type.shape.dim
        if value.name == InputNames.position_ids and len(dims) != 2:
            raise UnsupportedModelError(
                f"input {value.name} has {len(dims)} dimensions, expected 2: batch and positions; use a text model"
            )
