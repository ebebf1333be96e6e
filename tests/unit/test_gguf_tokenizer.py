"""Tokenizers out of GGUF files, against llama.cpp's ids."""

from __future__ import annotations

import json
from typing import Any

import pytest

from capstan.errors import CapstanError, ConfigError, UnsupportedModelError
from capstan.local.rust_tokenizer import LocalBackend
from capstan.model_files.gguf.gguf_config import gguf_config
from capstan.model_files.gguf.gguf_tokenizer import tokenizer_files
from capstan.model_files.gguf.header import GgufFile
from capstan.model_files.gguf.pre_tokenizers import PRE_TOKENIZERS
from capstan.tokenizer import Tokenizer
from tests.gguf_ends import CASES, tokens_of
from tests.gguf_ends import answers as answers_of_ends
from tests.gguf_ends import metadata as metadata_of_ends
from tests.gguf_files import gguf_file, header_of
from tests.gguf_tokenizers import ALIKE, KINDS, PRE, SHAPE, answers, digest, metadata, texts
from tests.looped import looped

TEMPLATE = "{{ bos_token }}{% for message in messages %}{{ message.content }}{{ eos_token }}{% endfor %}"


def header(pairs: dict[str, Any]) -> GgufFile:
    return header_of(gguf_file(pairs))


def tokenizer(pairs: dict[str, Any]) -> Tokenizer:
    files = tokenizer_files(header(pairs))
    return Tokenizer.from_files(LocalBackend, files["tokenizer.json"], files["tokenizer_config.json"])


@pytest.mark.one_in(5)
@pytest.mark.parametrize("kind", KINDS)
def test_ids_are_those_of_llama_cpp(kind: str) -> None:
    made, asked, expected = tokenizer(metadata(kind)), texts(kind), answers(kind)
    assert len(asked) == len(expected) >= 2000
    ids = [made.encode(text) for text in asked]
    wrong = [text for text, found, answer in zip(asked, ids, expected, strict=True) if digest(found) != answer]
    # One has a symbol of Unicode 16, and this one tells symbols.
    assert [text for text in wrong if kind != "deepseek-v3" or "\U0001f8b5" not in text] == []
    if kind != "llama":
        made.update_options(skip_special_tokens=False)
        back = [(made.decode(found), text) for text, found in zip(asked, ids, strict=True)]
        space = "\u2581" if kind in PRE else " "
        assert [pair for pair in back if pair[0] != pair[1].replace("\u2581", space)] == []


def test_pre_tokenizers_of_other_names_are_the_ones_that_llama_cpp_takes() -> None:
    for name, kind in ALIKE.items():
        made, wanted = (tokenizer_files(header(metadata(kind) | {"tokenizer.ggml.pre": each})) for each in (name, kind))
        assert made == wanted, name
    assert {*ALIKE, *(kind.removesuffix(" of pairs") for kind in PRE)} == {*PRE_TOKENIZERS}


def test_llama_3_looks_words_up_whole_before_it_merges() -> None:
    for kind, whole in (("llama-bpe", True), ("qwen2", False)):
        made = tokenizer(metadata(kind) | {"tokenizer.ggml.merges": ["t h"]})
        assert (made.encode(" return") == [made.to_token_id("\u0120return")]) is whole


def test_bos_and_eos_surround_a_text_as_the_file_says() -> None:
    pairs = metadata("llama")
    for flags, begins, ends in (({}, 1, 0), ({"bos": False}, 0, 0), ({"bos": True, "eos": True}, 1, 1)):
        made = tokenizer(pairs | {f"tokenizer.ggml.add_{name}_token": value for name, value in flags.items()})
        plain = made.encode("the")
        assert made.encode_prompt("the") == [1] * begins + plain, "an end would end the text that is continued"
        assert made.encode_prompt("<s>the") == made.encode("<s>the")
        made.update_options(add_special_tokens=True)
        assert made.encode("the") == [1] * begins + plain + [2] * ends
    made = tokenizer(metadata("smollm"))
    made.update_options(add_special_tokens=True)
    assert made.encode("") == []


def test_gemma_4_begins_texts_with_bos_and_makes_runs_of_line_breaks_by_merges() -> None:
    pairs = metadata("gemma4")
    made = tokenizer(pairs | {"tokenizer.ggml.add_bos_token": False})
    assert made.encode_prompt("the") == [1, *made.encode("the")]
    tokens = pairs["tokenizer.ggml.tokens"]
    assert [made.encode("\n" * count) for count in (3, 5)] == [[tokens.index("\n" * 3)], [tokens.index("\n" * 5)]]
    merges = [merge for merge in pairs["tokenizer.ggml.merges"] if not merge.startswith("\n\n")]
    with pytest.raises(UnsupportedModelError, match=r"merges do not make token \d+ of [345] line breaks; convert"):
        tokenizer(pairs | {"tokenizer.ggml.merges": merges})


def test_tokens_that_are_never_to_be_picked() -> None:
    embedding = (2048, 8), 0, bytes(2048 * 32)
    pairs = {**SHAPE, **metadata("qwen2"), "tokenizer.ggml.suppress_tokens": [3, 5, 5000]}
    file = header_of(gguf_file(pairs, {"token_embd.weight": embedding}))
    assert gguf_config(file, "a.gguf").search == {"bad_words_ids": [[3], [5]]}


def test_chat_template_with_its_special_tokens() -> None:
    made = tokenizer(metadata("llama") | {"tokenizer.chat_template": TEMPLATE})
    assert made.apply_chat_template([{"role": "user", "content": "hello"}]) == "<s>hello</s>"
    for listed in ({}, {"tokenizer.chat_templates": ["tool_use"]}):
        named = {"tokenizer.chat_template.tool_use": "tools", **listed}
        made = tokenizer(metadata("llama") | {"tokenizer.chat_template": TEMPLATE} | named)
        assert made.chat_template == TEMPLATE
        assert made.apply_chat_template([], [{}]) == "tools"
        assert tokenizer(metadata("llama") | named).apply_chat_template([], [{}]) == "tools"
    assert tokenizer(metadata("llama")).chat_template is None


def test_special_tokens_of_phi_3_take_white_space_behind_them() -> None:
    pairs = metadata("llama without a space in front")
    plain, phi = tokenizer(pairs), tokenizer(pairs | {"general.name": "Phi-3 Mini"})
    assert phi.encode("</s> \n a") == plain.encode("</s>a") != plain.encode("</s> \n a")
    assert phi.encode("<s> a") == plain.encode("<s> a")


def without(name: str) -> dict[str, Any]:
    return {key: value for key, value in metadata("llama").items() if key != f"tokenizer.ggml.{name}"}


@pytest.mark.parametrize(
    ("pairs", "error", "message"),
    [
        (without("model"), ConfigError, "metadata tokenizer.ggml.model is missing, expected a non-empty string"),
        (without("tokens"), ConfigError, "tokenizer.ggml.tokens: expected an array of strings|tokens is missing"),
        (without("scores"), ConfigError, "tokenizer.ggml.scores is missing, expected a score for each token"),
        (
            {**metadata("llama"), "tokenizer.ggml.model": "t5"},
            UnsupportedModelError,
            "'t5'; Capstan reads gpt2, llama, gemma4",
        ),
        ({**metadata("qwen2"), "tokenizer.ggml.pre": "odd"}, UnsupportedModelError, "'odd'; pre-tokenizers .* smollm"),
        ({**metadata("qwen2"), "tokenizer.ggml.merges": ["a"]}, ConfigError, "two tokens that make a third one at 0"),
        (
            {**metadata("qwen2"), "tokenizer.ggml.token_type": [1]},
            ConfigError,
            "2048 numbers, one for each token .it has 1",
        ),
        ({**metadata("llama"), "tokenizer.ggml.bos_token_id": 70000}, ConfigError, "an integer from 0 to"),
        (
            {**metadata("llama"), "tokenizer.chat_template": 3},
            ConfigError,
            "chat_template: expected a non-empty string",
        ),
        ({**metadata("llama"), "tokenizer.ggml.add_bos_token": 1}, ConfigError, "expected true or false, got 1"),
    ],
)
def test_metadata_that_are_wrong(pairs: dict[str, Any], error: type[CapstanError], message: str) -> None:
    with pytest.raises(error, match=message):
        tokenizer_files(header(pairs))


def test_a_byte_without_a_token_is_named() -> None:
    pairs = metadata("llama")
    tokens = list(pairs["tokenizer.ggml.tokens"])
    tokens[4 + 0x20] = "other"
    with pytest.raises(ConfigError, match="none for <0x20>"):
        tokenizer_files(header(pairs | {"tokenizer.ggml.tokens": tokens}))
    assert json.loads(tokenizer_files(header(metadata("llama")))["tokenizer.json"])["model"]["byte_fallback"] is True


@looped("place", range(len(CASES)))
def test_outputs_end_at_the_tokens_of_llama_cpp(place: int) -> None:
    tokens = tokens_of(place)
    embedding = (len(tokens), 8), 0, bytes(len(tokens) * 32)
    file = header_of(gguf_file({**SHAPE, **metadata_of_ends(place)}, {"token_embd.weight": embedding}))
    found = gguf_config(file, "a.gguf")
    assert sorted(found.eos_token_ids) == answers_of_ends()[place], tokens
