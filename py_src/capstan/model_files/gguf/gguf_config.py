"""Makes the configuration of a GGUF file from its metadata, in place of a genai_config.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from itertools import chain
from math import prod
from types import MappingProxyType
from typing import Any

from ...errors import UnsupportedModelError
from ...stages.search import DRAWING
from ..config_section import LARGEST
from ..genai_config import DecoderConfig, GenaiConfig, Stated
from .families import family_of
from .header import GgufFile
from .layers import layer_sizes

__all__ = ["config_from_json", "config_to_json", "gguf_config", "gguf_decoder"]

ENDS = (
    *("<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>", "<end_of_turn>"),
    *("<|endoftext|>", "</s>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<|end_of_text|>", "<eos>", "[e~["),
    *("<end_of_utterance>", "<turn|>", "<|tool_response>", "<\uff5cend\u2581of\u2581sentence\uff5c>"),
)
"""Tokens that end an output by their text, as in llama.cpp: converters name only one of them in the metadata."""
FILL_IN_ENDS = {
    "fim_pad": ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
    "fim_rep": ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    "fim_sep": ("<|file_sep|>",),
}
"""Tokens of code models that end an output: one of each kind, which the metadata may name."""
NO_ENDS = (
    ({"<|return|>", "<|call|>"}, "<|end|>"),
    ({"<|calls|>", "<|flush|>"}, "<|end|>"),
    ({"<|call|>", "<|flush|>"}, "<|end|>"),
    ({"<|return|>", "<|calls|>"}, "<|end|>"),
    ({"<|tool_response>"}, "</s>"),
)
"""A token that does not end an output of a model with the earlier tokens, even if the metadata list it: it ends a part
of an output.
"""

SUPPRESSED = "tokenizer.ggml.suppress_tokens"
SAMPLING = {name.replace("temperature", "temp"): name for name in DRAWING}
"""Search options by their names below `general.sampling.`."""


def gguf_config(file: GgufFile, filename: str) -> GenaiConfig:
    """The configuration of the file, whose name in its folder is `filename`.

    Raises ConfigError for a key that is missing or wrong; UnsupportedModelError for a file that is only a part of a
    model, and, with the supported families, for another family.
    """
    family = family_of(file)
    vocab_size = rows_of_embedding(file)
    eos = ends(file, vocab_size)
    return GenaiConfig(
        model_type=family.type,
        vocab_size=vocab_size,
        context_length=file.integer(file.key("context_length")),
        bos_token_id=token(file, "bos", vocab_size),
        eos_token_ids=eos,
        pad_token_id=next((found for found in (token(file, "padding", vocab_size), *eos) if found is not None), 0),
        decoder=gguf_decoder(file, filename),
        search=MappingProxyType(search(file, vocab_size)),
        name=file.name,
        stated=stated(file),
    )


def stated(file: GgufFile) -> Stated:
    """The model's name, size and licence; metadata of a wrong type count as missing."""
    texts = {key: file.metadata.get(f"general.{key}") for key in ("name", "basename", "size_label", "license")}
    name, base, label, licence = (value if isinstance(value, str) else "" for value in texts.values())
    return Stated(
        name=name or "-".join(filter(None, (base, label))) or None,
        parameters=sum(prod(tensor.dims) for tensor in file.tensors.values()),
        bytes=file.data + sum(tensor.length for tensor in file.tensors.values()),
        licence=licence or None,
    )


def config_to_json(config: GenaiConfig) -> dict[str, Any]:
    """A configuration that `gguf_config` made, as JSON that `config_from_json` reads."""
    unset = asdict(DecoderConfig("", 0, 0, 0, 0))
    decoder = {name: value for name, value in asdict(config.decoder).items() if value != unset[name]}
    found = {field.name: getattr(config, field.name) for field in fields(GenaiConfig)}
    return {**found, "decoder": decoder, "search": dict(config.search), "stated": asdict(config.stated)}


def config_from_json(noted: Mapping[str, Any]) -> GenaiConfig:
    """The configuration that `config_to_json` wrote."""
    changed = {
        "decoder": DecoderConfig(**noted["decoder"]),
        "search": MappingProxyType(noted["search"]),
        "stated": Stated(**noted["stated"]),
        **{name: tuple(noted[name]) for name in ("eos_token_ids", "no_tokens")},
    }
    return GenaiConfig(**{**noted, **changed})


def gguf_decoder(file: GgufFile, filename: str) -> DecoderConfig:
    """The sizes of the file's decoder. Raises ConfigError for a key that is missing or wrong."""
    layers = file.integer(file.key("block_count"), most=LARGEST["num_hidden_layers"])
    predicted = 0
    if family_of(file).states == "delta nets":
        predicted = file.integer(file.key("nextn_predict_layers"), 0, least=0, most=layers - 1)
    heads = file.of_layers(file.key("attention.head_count"), layers, most=LARGEST["num_attention_heads"])
    width = file.integer(file.key("embedding_length"))
    file.integer(file.key("embedding_length_out"), width, least=width, most=width)
    sizes = layer_sizes(file, heads, width, layers - predicted)
    first = next(each for each in sizes if each.kv_heads)
    return DecoderConfig(
        filename=filename,
        head_size=first.head,
        hidden_size=width,
        num_attention_heads=heads,
        num_key_value_heads=first.kv_heads,
        num_hidden_layers=layers - predicted,
        num_shared_layers=sum(each.source != layer for layer, each in enumerate(sizes)),
    )


def rows_of_embedding(file: GgufFile) -> int:
    """The model's number of tokens. Raises ConfigError if the tokenizer has more."""
    tokens = len(file.strings("tokenizer.ggml.tokens"))
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise UnsupportedModelError(f"{file.name} has no tensor token_embd.weight; use a file with a whole model")
    rows = embedding.dims[0]
    if tokens > rows:
        raise file.error("tokenizer.ggml.tokens", f"at most {rows} tokens, the rows of token_embd.weight, not {tokens}")
    return rows


def token(file: GgufFile, name: str, vocab_size: int) -> int | None:
    """A special token's id; None if the file has none."""
    key = f"tokenizer.ggml.{name}_token_id"
    return file.integer(key, least=0, most=vocab_size - 1) if key in file.metadata else None


def ends(file: GgufFile, vocab_size: int) -> tuple[int, ...]:
    """The ids that end an output: those of the metadata, and those of known texts."""
    named = [token(file, name, vocab_size) for name in ("eos", "eot", "eom", *FILL_IN_ENDS)]
    tokens = file.strings("tokenizer.ggml.tokens")
    open_kinds = [names for names, given in zip(FILL_IN_ENDS.values(), named[3:], strict=True) if given is None]
    known = {text: tokens.index(text) for text in {*ENDS, *chain(*open_kinds)}.intersection(tokens)}
    firsts = [next((known[name] for name in names if name in known), None) for names in open_kinds]
    texts = sorted(known[text] for text in known if text in ENDS)
    found = dict.fromkeys(each for each in [*named, *texts, *firsts] if each is not None)
    for with_these, text in NO_ENDS:
        if with_these <= known.keys() and text in known:
            found.pop(known[text], None)
    return tuple(found)


def search(file: GgufFile, vocab_size: int) -> dict[str, Any]:
    """The search options that the file recommends. Except for tokens that must never be picked, they apply only to
    sampling; without a temperature the model is greedy.
    """
    found: dict[str, Any] = {
        name: file.metadata[f"general.sampling.{key}"]
        for key, name in SAMPLING.items()
        if f"general.sampling.{key}" in file.metadata
    }
    if found.get("temperature") == 0:
        del found["temperature"]
    if SUPPRESSED in file.metadata:
        found["bad_words_ids"] = [[each] for each in file.numbers(SUPPRESSED, int) if 0 <= each < vocab_size]
    return {"do_sample": True, **found} if "temperature" in found else found
