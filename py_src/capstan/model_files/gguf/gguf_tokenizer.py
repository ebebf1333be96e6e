"""Writes Hugging Face's tokenizer files from the metadata of a GGUF file.

The tokenizer that a file describes is llama.cpp's: `gpt2` is byte-level BPE with a list of merges and a named
pre-tokenizer, `llama` is SentencePiece's BPE, which merges by the scores of the results and falls back to bytes, and
`gemma4` is the same with a list of merges, within lines. All become a tokenizer.json of type BPE, which the page and
CPython read in the same way.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from operator import add
from typing import Any

from ...errors import UnsupportedModelError
from .header import GgufFile
from .pre_tokenizers import IGNORES_MERGES, PRE_TOKENIZERS

__all__ = ["tokenizer_files"]

UNKNOWN, CONTROL, USER_DEFINED, BYTE = 2, 3, 4, 6
"""Types of tokens; 1 is a normal token, 5 an unused one."""


def tokenizer_files(file: GgufFile) -> dict[str, str]:
    """The text of tokenizer.json and tokenizer_config.json.

    Raises ConfigError for missing or contradicting metadata; UnsupportedModelError, with the supported kinds, for
    another kind of tokenizer or pre-tokenizer.
    """
    kind = file.text("tokenizer.ggml.model")
    known = {"gpt2": byte_level, "llama": sentence_piece, "gemma4": within_lines}
    if kind not in known:
        raise UnsupportedModelError(
            f"{file.name}: metadata tokenizer.ggml.model is {kind!r}; Capstan reads {', '.join(known)}"
        )
    tokens = file.strings("tokenizer.ggml.tokens")
    if not tokens:
        raise file.error("tokenizer.ggml.tokens", "at least one token")
    types = of_each(file, "tokenizer.ggml.token_type", tokens, int) or (1,) * len(tokens)
    vocabulary = dict(zip(tokens, range(len(tokens)), strict=True))
    special = special_tokens(file, tokens)
    parts = known[kind](file, tokens, types, vocabulary)
    begins = file.flag("tokenizer.ggml.add_bos_token", kind == "llama" or pre_tokenizer(file) in IGNORES_MERGES)
    begins = begins or kind == "gemma4"  # regardless of the file, as in llama.cpp
    ends = file.flag("tokenizer.ggml.add_eos_token", False)
    content = {
        "version": "1.0",
        "added_tokens": added_tokens(file, tokens, types, vocabulary),
        **parts,
        "post_processor": surrounded(
            special.get("bos") if begins else None, special.get("eos") if ends else None, vocabulary
        ),
    }
    config: dict[str, Any] = {f"{name}_token": text for name, text in special.items()}
    config.update(add_bos_token=begins, add_eos_token=ends, clean_up_tokenization_spaces=False)
    template = chat_template(file)
    if template is not None:
        config["chat_template"] = template
    return {
        "tokenizer.json": json.dumps(content, ensure_ascii=False, separators=(",", ":")),
        "tokenizer_config.json": json.dumps(config, ensure_ascii=False),
    }


def of_each(file: GgufFile, key: str, tokens: Sequence[str], kind: type[int] | type[float]) -> tuple[Any, ...]:
    """An array with a number for each token; empty if there is none."""
    if key not in file.metadata:
        return ()
    found = file.numbers(key, kind)
    if len(found) != len(tokens):
        raise file.error(key, f"{len(tokens)} numbers, one for each token (it has {len(found)})")
    return found


def special_tokens(file: GgufFile, tokens: Sequence[str]) -> dict[str, str]:
    """The text of each token that the file names: bos, eos, pad and unk."""
    found = {}
    for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        full = f"tokenizer.ggml.{key}_token_id"
        if full in file.metadata:
            found[name] = tokens[file.integer(full, least=0, most=len(tokens) - 1)]
    return found


def added_tokens(
    file: GgufFile, tokens: Sequence[str], types: Sequence[int], vocabulary: Mapping[str, int]
) -> list[dict[str, Any]]:
    """The tokens that are found in a text before any other step."""
    # llama.cpp lets special tokens of Phi-3 take the white space after them, and recognises Phi-3 by its name.
    strips = re.search("phi-?3", str(file.metadata.get("general.name", "")), re.IGNORECASE) is not None
    kept = ("<unk>", "<s>", "<|endoftext|>")
    return [
        {
            "id": place,
            "content": text,
            "single_word": False,
            "lstrip": False,
            "rstrip": strips and text not in kept,
            "normalized": False,
            "special": kind != USER_DEFINED,
        }
        for place, (text, kind) in enumerate(zip(tokens, types, strict=True))
        if kind in (UNKNOWN, CONTROL, USER_DEFINED) and text and vocabulary[text] == place
    ]


def surrounded(first: str | None, last: str | None, vocabulary: Mapping[str, int]) -> dict[str, Any] | None:
    """The post-processor that puts these tokens around a text."""
    around = [text for text in (first, last) if text is not None]
    if not around:
        return None

    def template(kinds: Sequence[int]) -> list[dict[str, Any]]:
        before = [{"SpecialToken": {"id": first, "type_id": 0}}] if first is not None else []
        after = [{"SpecialToken": {"id": last, "type_id": 0}}] if last is not None else []
        return [*before, *({"Sequence": {"id": "AB"[kind], "type_id": kind}} for kind in kinds), *after]

    tokens = {text: {"id": text, "ids": [vocabulary[text]], "tokens": [text]} for text in around}
    return {"type": "TemplateProcessing", "single": template([0]), "pair": template([0, 1]), "special_tokens": tokens}


def pre_tokenizer(file: GgufFile) -> str:
    """The name of the pre-tokenizer."""
    return file.text("tokenizer.ggml.pre", "default")


def byte_level(
    file: GgufFile, tokens: Sequence[str], types: Sequence[int], vocabulary: Mapping[str, int]
) -> dict[str, Any]:
    """BPE over bytes that are written as printable characters."""
    name = pre_tokenizer(file)
    if name not in PRE_TOKENIZERS:
        raise UnsupportedModelError(
            f"{file.name}: metadata tokenizer.ggml.pre is {name!r}; pre-tokenizers known by name are "
            f"{', '.join(sorted(PRE_TOKENIZERS))}"
        )
    splits = [
        {"type": "Split", "pattern": {"Regex": expression}, "behavior": "Isolated", "invert": False}
        for expression in PRE_TOKENIZERS[name]
    ]
    bytes_ = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*splits, bytes_]},
        "decoder": bytes_,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": name in IGNORES_MERGES,
            "vocab": vocabulary,
            "merges": listed_merges(file, vocabulary),
        },
    }


def listed_merges(file: GgufFile, vocabulary: Mapping[str, int]) -> list[list[str]]:
    """The pairs of tokens in a file's list of merges."""
    key = "tokenizer.ggml.merges"
    merges = file.strings(key)
    pairs = [merge.split(" ", 1) for merge in merges]
    # Sets are used because a loop over a hundred thousand pairs takes most of a second in a page.
    if set(map(len, pairs)) <= {2}:
        lefts, rights = ([pair[side] for pair in pairs] for side in (0, 1))
        if vocabulary.keys() >= {*lefts, *rights, *map(add, lefts, rights)}:
            return pairs
    wrong = next(
        place for place, pair in enumerate(pairs) if len(pair) < 2 or not vocabulary.keys() >= {*pair, "".join(pair)}
    )
    raise file.error(key, f"two tokens that make a third one at {wrong}, and not {merges[wrong]!r}")


def sentence_piece(
    file: GgufFile, tokens: Sequence[str], types: Sequence[int], vocabulary: Mapping[str, int]
) -> dict[str, Any]:
    """BPE over characters that merges by scores, after a space in front."""
    scores = of_each(file, "tokenizer.ggml.scores", tokens, float)
    if not scores:
        raise file.error("tokenizer.ggml.scores", "a score for each token")
    prefix = file.flag("tokenizer.ggml.add_space_prefix", True)
    return by_character(file, tokens, types, vocabulary, merges_by_score(tokens, types, scores, vocabulary), prefix)


def within_lines(
    file: GgufFile, tokens: Sequence[str], types: Sequence[int], vocabulary: Mapping[str, int]
) -> dict[str, Any]:
    """BPE over characters with a list of merges, separately for line breaks and for the text between them."""
    merges = listed_merges(file, vocabulary)
    ranks = {(left, right): rank for rank, (left, right) in enumerate(merges) if not (left + right).strip("\n")}
    # llama.cpp takes line breaks as a whole if they are a token.
    for token in (token for token in tokens if token and not token.strip("\n")):
        if merged(token, ranks) != [token]:
            raise UnsupportedModelError(
                f"{file.name}: metadata tokenizer.ggml.merges do not make token {vocabulary[token]} of {len(token)} "
                "line breaks; convert the model again"
            )
    found = by_character(file, tokens, types, vocabulary, merges, prefix=False)
    lines = {"type": "Split", "pattern": {"Regex": r"[^\n]+|\n+"}, "behavior": "Isolated", "invert": False}
    return {**found, "pre_tokenizer": lines}


def merged(text: str, ranks: Mapping[tuple[str, str], int]) -> list[str]:
    """The tokens into which BPE splits a text."""
    parts = list(text)
    while True:
        pairs = [(ranks[pair], at) for at, pair in enumerate(pairwise(parts)) if pair in ranks]
        if not pairs:
            return parts
        _, at = min(pairs)
        parts[at : at + 2] = ["".join(parts[at : at + 2])]


def by_character(
    file: GgufFile,
    tokens: Sequence[str],
    types: Sequence[int],
    vocabulary: Mapping[str, int],
    merges: Sequence[Sequence[str]],
    prefix: bool,
) -> dict[str, Any]:
    """BPE over characters with \u2581 for a space; characters without a token become bytes."""
    missing = next((byte for byte in range(256) if f"<0x{byte:02X}>" not in vocabulary), None)
    if missing is not None:
        raise file.error("tokenizer.ggml.tokens", f"a token for each byte, but there is none for <0x{missing:02X}>")
    escape = {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}
    unescape = {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}
    begin = [{"type": "Prepend", "prepend": "\u2581"}] if prefix else []
    strip = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if prefix else []
    return {
        "normalizer": {"type": "Sequence", "normalizers": [*begin, escape]},
        "pre_tokenizer": None,
        "decoder": {
            "type": "Sequence",
            "decoders": [unescape, {"type": "ByteFallback"}, {"type": "Fuse"}, *strip],
        },
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": next((text for text, kind in zip(tokens, types, strict=True) if kind == UNKNOWN), None),
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": True,
            "byte_fallback": True,
            "ignore_merges": False,
            "vocab": vocabulary,
            "merges": merges,
        },
    }


def merges_by_score(
    tokens: Sequence[str], types: Sequence[int], scores: Sequence[float], vocabulary: Mapping[str, int]
) -> list[tuple[str, str]]:
    """Every pair of tokens that makes a third one, the best result first; a control token is not a result."""
    no_result = (UNKNOWN, CONTROL, BYTE)
    ranked = sorted(
        (place for place, text in enumerate(tokens) if types[place] not in no_result and vocabulary[text] == place),
        key=lambda place: -scores[place],
    )
    found: list[tuple[str, str]] = []
    sizes = sorted({len(text) for text in vocabulary})
    for place in ranked:
        text = tokens[place]
        # Only lengths of tokens are tried: a token of 50,000 characters has that many places to split, each with two
        # long texts.
        lengths = sizes if len(sizes) < len(text) else range(1, len(text))
        cuts = [cut for cut in lengths if 0 < cut < len(text) and text[:cut] in vocabulary and text[cut:] in vocabulary]
        if len(cuts) > 1:
            cuts.sort(key=lambda cut: (vocabulary[text[:cut]], vocabulary[text[cut:]]))
        found += [(text[:cut], text[cut:]) for cut in cuts]
    return found


def chat_template(file: GgufFile) -> str | list[dict[str, str]] | None:
    """The chat template, or several with their names; None if there is none."""
    key = "tokenizer.chat_template"
    main = file.text(key) if file.metadata.get(key, "") != "" else None
    listed = file.strings("tokenizer.chat_templates") if "tokenizer.chat_templates" in file.metadata else ()
    there = (name.removeprefix(f"{key}.") for name in file.metadata if name.startswith(f"{key}."))
    named = [{"name": name, "template": file.text(f"{key}.{name}")} for name in dict.fromkeys([*listed, *there])]
    return [{"name": "default", "template": main}, *named] if named and main is not None else named or main
