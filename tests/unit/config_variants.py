"""Variants of a genai_config.json: `VARIANTS[name](text)` changes the text of nano-llama's file."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

__all__ = ["FILES", "VARIANTS"]

GONE = object()
"""The value of a field that is taken out."""


def changed(text: str, **fields: Any) -> str:
    """The file with other values; `model__decoder__head_size` is `model.decoder.head_size`."""
    config = json.loads(text)
    for path, value in fields.items():
        *sections, name = path.split("__")
        section = config
        for each in sections:
            section = section[each]
        if value is GONE:
            del section[name]
        else:
            section[name] = value
    return json.dumps(config)


def search(name: str, value: Any, **others: Any) -> Callable[[str], str]:
    return partial(changed, **{f"search__{name}": value}, **{f"search__{key}": item for key, item in others.items()})


def model(name: str, value: Any, **others: Any) -> Callable[[str], str]:
    return partial(changed, **{f"model__{name}": value}, **{f"model__{key}": item for key, item in others.items()})


def top(name: str, value: Any) -> Callable[[str], str]:
    fields: dict[str, Any] = {name: value}
    return partial(changed, **fields)


def decoder(name: str, value: Any) -> Callable[[str], str]:
    return model(f"decoder__{name}", value)


def speculative(name: str, value: Any) -> Callable[[str], str]:
    return top("speculative", {name: value})


def draft(filename: str, text: str, **fields: Any) -> str:
    """The file with a draft model on the CPU, whose section is the decoder's with other values."""
    cpu: dict[str, Any] = {"provider_options": []}
    section = {**json.loads(text)["model"]["decoder"], "filename": filename, "session_options": cpu, **fields}
    return changed(text, model__draft=section, model__decoder__session_options=cpu)


def searched(text: str) -> str:
    """The file with a draft model and a search of the sequence."""
    return changed(draft("copy.onnx", text), speculative={"ngram_size": 3})


def written(*values: Any) -> list[tuple[str, Any]]:
    """Values with the text that a variant's name shows of them."""
    return [("missing" if value is GONE else json.dumps(value), value) for value in values]


def variants(make: Callable[[str, Any], Callable[[str], str]], section: str, name: str, *values: Any) -> Any:
    return {f"{section}.{name} {shown}": make(name.replace(".", "__"), value) for shown, value in written(*values)}


STILL = {"window_size": 8, "slide_key_value_cache": False}
LONG = "x" * 5000

VARIANTS: dict[str, Callable[[str], str]] = {
    "as it is": str,
    # The search section.
    **{f"search {shown}": partial(changed, search=value) for shown, value in written(GONE, {}, None, [], "x")},
    **variants(search, "search", "max_length", GONE, 10, 10.0, 10.5, 0, -1, 513, 100000, "10", None, True),
    **variants(search, "search", "top_k", GONE, 5.0, 5.5, 0, -1, "5", None, True),
    **variants(search, "search", "top_p", 0.0, 1, 1.5, -0.1),
    **variants(search, "search", "temperature", 0, 0.7, -1),
    **{
        f"search.do_sample and {name} {value}": search("do_sample", True, **{name: value})
        for name, value in [("top_k", 1), ("temperature", 0), ("top_p", 1.5), ("top_k", -1), ("temperature", -1)]
    },
    **variants(search, "search", "do_sample", 1, GONE),
    **variants(search, "search", "repetition_penalty", 1.1, 1.5, 0, -1),
    **variants(search, "search", "past_present_share_buffer", False, 1, GONE),
    **variants(search, "search", "chunk_size", 0, 2, 2.5, -1),
    **variants(search, "search", "num_beams", 2, 0, 2.0, GONE),
    **variants(search, "search", "num_return_sequences", 2, 0),
    **variants(search, "search", "batch_size", 2, 0),
    **variants(search, "search", "min_length", 9, 9.0, -1, 10000),
    **variants(search, "search", "no_repeat_ngram_size", 2, -1),
    **variants(search, "search", "diversity_penalty", 0.5, -1),
    **variants(search, "search", "length_penalty", 2.0),
    **variants(search, "search", "early_stopping", False, 1),
    **variants(search, "search", "random_seed", 7, -1, 1.5),
    **variants(search, "search", "foo", 1),
    **variants(search, "search", "min_p", 0.1),
    # The model's own fields.
    **variants(model, "model", "type", GONE, "decoder", "gpt2", "phi3", "Llama", "zzz", "whisper", "", 5),
    **variants(model, "model", "vocab_size", GONE, 500, 600, 512.0, 0, -1, "512"),
    **variants(model, "model", "context_length", GONE, 0, 8, 10, -1, 512.0, 1 << 30, "512"),
    **variants(model, "model", "bos_token_id", GONE, None, -1, 600, "0", [0], 1.5),
    **variants(model, "model", "eos_token_id", GONE, None, [1], [1, 472], [], 472, -1, 600, "1", 1.0, 1.5),
    **variants(model, "model", "pad_token_id", GONE, None, -1, 600, "2", 2.0),
    **variants(model, "model", "foo", 1, {}),
    **{f"model.{name} {{}}": model(name, {}) for name in ("encoder", "vision", "speech", "embedding")},
    # The decoder.
    **variants(model, "model", "decoder", GONE, {}, None, []),
    **variants(decoder, "model.decoder", "filename", GONE, "", "nothing.onnx", "copy.onnx", "../x.onnx", 5),
    **variants(decoder, "model.decoder", "head_size", GONE, 8, 0, 16.0, "16"),
    **variants(decoder, "model.decoder", "hidden_size", GONE, 32, 0),
    **variants(decoder, "model.decoder", "num_attention_heads", GONE, 8, 3, 0),
    **variants(decoder, "model.decoder", "num_key_value_heads", GONE, 4, 3, 0),
    **variants(decoder, "model.decoder", "num_hidden_layers", GONE, 1, 3, 0),
    **variants(decoder, "model.decoder", "foo", 1),
    **variants(decoder, "model.decoder", "sliding_window", {"window_size": 8}, {**STILL, "layers": [0]}, {}),
    **variants(decoder, "model.decoder", "pipeline", []),
    **variants(decoder, "model.decoder", "run_options", {}),
    **variants(decoder, "model.decoder", "inputs", GONE, {}, None),
    **variants(decoder, "model.decoder", "inputs.input_ids", GONE, "tokens", 5),
    **variants(decoder, "model.decoder", "inputs.attention_mask", GONE, "mask"),
    **variants(decoder, "model.decoder", "inputs.position_ids", "position_ids", "positions"),
    **variants(decoder, "model.decoder", "inputs.past_key_names", GONE, "past.%d.k", "past_key_values.0.key", "%d%d"),
    **variants(decoder, "model.decoder", "inputs.foo", "bar"),
    **variants(decoder, "model.decoder", "outputs", GONE, {}),
    **variants(decoder, "model.decoder", "outputs.logits", GONE, "scores"),
    **variants(decoder, "model.decoder", "outputs.present_key_names", GONE, "present.%d.k"),
    **variants(decoder, "model.decoder", "outputs.hidden_states", "hidden_states"),
    **variants(decoder, "model.decoder", "session_options", GONE, {}, None, []),
    **variants(decoder, "model.decoder", "session_options.foo", "1", 1),
    **variants(decoder, "model.decoder", "session_options.intra_op_num_threads", 1, "1"),
    **variants(decoder, "model.decoder", "session_options.log_severity_level", 3),
    **variants(decoder, "model.decoder", "session_options.graph_optimization_level", "ORT_DISABLE_ALL", "x"),
    **variants(
        decoder, "model.decoder", "session_options.provider_options", [], {}, [{"xyz": {}}], [{"cuda": {}}], [5]
    ),
    # Speculation.
    **variants(speculative, "speculative", "ngram_size", 3, 3.0, 3.5, 0, 1, 2, 16, 17, -1, "3", None, True),
    **variants(speculative, "speculative", "max_draft_tokens", 5, 16, 17, 0, True),
    **variants(speculative, "speculative", "ngram_chained_lookup", False, True, 1),
    **variants(speculative, "speculative", "min_adaptive_k", 2, 0, 17),
    **variants(speculative, "speculative", "cooldown", True, 1),
    **variants(speculative, "speculative", "foo", 1),
    **{f"speculative {shown}": top("speculative", value) for shown, value in written(None, [], 3)},
    "speculative of all": top("speculative", {"ngram_size": 2, "max_draft_tokens": 6, "ngram_chained_lookup": True}),
    "speculative.ngram_size 3 and num_beams 2": lambda text: changed(
        text, speculative={"ngram_size": 3}, search__num_beams=2
    ),
    "model.draft another file": partial(draft, "copy.onnx"),
    "model.draft the same file": partial(draft, "model.onnx"),
    "model.draft a missing file": partial(draft, "nothing.onnx"),
    "model.draft with other sizes": partial(draft, "copy.onnx", head_size=8),
    "model.draft on WebGPU": partial(draft, "copy.onnx", session_options={"provider_options": [{"webgpu": {}}]}),
    "model.draft and speculative.ngram_size 3": searched,
    **variants(model, "model", "draft", {}, None, [], {"filename": "copy.onnx"}),
    **variants(model, "model", "dflash2", {"filename": "nothing.onnx"}),
    **variants(model, "model", "dspark", {"filename": "nothing.onnx"}),
    # The file.
    **{f"{name} {{}}": top(name, {}) for name in ("engine", "other", "speculative")},
    **{f"model {shown}": partial(changed, model=value) for shown, value in written(GONE, None, {})},
    "a comma too many": lambda text: text[: text.rindex("}")] + ",}",
    "a comment": lambda text: "// as it is\n" + text,
    "a byte order mark": lambda text: "\ufeff" + text,
    "nothing": lambda text: "",
    "an array": lambda text: f"[{text}]",
    "half of it": lambda text: text[: len(text) // 2],
    "something behind it": lambda text: text + "x",
    "a field twice": lambda text: text.replace('"top_k": 50', '"top_k": 50, "top_k": 5'),
    "NaN": lambda text: text.replace('"top_p": 1.0', '"top_p": NaN'),
    "a large number": lambda text: text.replace('"top_k": 50', '"top_k": 1e400'),
    "a number with a thousand digits": lambda text: text.replace('"top_k": 50', '"top_k": ' + "9" * 1000),
    "a long text": lambda text: text.replace('"type": "llama"', f'"type": "{LONG}"'),
}
"""Changes to a file's text, by name."""

FILES = ("model.onnx", "model.onnx.data", "tokenizer.json", "tokenizer_config.json")
"""The other files of the folder; copy.onnx is the graph once more."""
