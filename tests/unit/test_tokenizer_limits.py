"""Bounds of time and memory of a tokenizer.json, whose library nothing interrupts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from capstan.errors import ConfigError, OptionError
from capstan.local.rust_tokenizer import LocalBackend
from capstan.model_files.gguf.gguf_tokenizer import merges_by_score
from capstan.model_files.gguf.pre_tokenizers import PRE_TOKENIZERS
from capstan.text.searches import LONGEST_RUN, longest_run, searched_again
from capstan.tokenizer import Tokenizer
from tests.looped import looped
from tests.tokenizer_parts import content, regex, replace, split

LLAMA = Path(__file__).parents[1] / "fixtures/nano-llama"

AT_ONCE = [
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    *(each for expressions in PRE_TOKENIZERS.values() for each in expressions if not each.endswith(r"\z")),
    "a+b|a+",
    "'[a-z]+x",
    " {2,}",
    r"(?:\s+|\w)+",
]
AGAIN = [
    "a+b",
    r"\s+$|a+b",
    "a+b|a|a+",
    "a+b|a|c+",
    "a*b+c",
    "(ab)+c",
    r"\w+@\w+",
    "x[a-z]*y",
    r"(?=(\d{3})+(?!\d))",
    ".*x",
]


@looped("expression", AT_ONCE)
def test_an_expression_that_reads_a_text_once_has_no_limit(expression: str) -> None:
    assert searched_again(expression) == (), expression


@looped("expression", AGAIN)
def test_an_expression_that_reads_a_run_again_from_each_of_its_characters_is_found(expression: str) -> None:
    assert searched_again(expression) != (), expression


def made(**parts: Any) -> Tokenizer:
    return Tokenizer.from_files(LocalBackend, json.dumps(content(**parts)))


def test_a_text_with_a_long_run_that_is_read_again_is_refused_and_others_are_not() -> None:
    tokenizer = made(pre_tokenizer=split(regex(r"\s+$|a+b"), "Isolated"))
    long = 5 * LONGEST_RUN
    with pytest.raises(OptionError, match=rf"it has a run of {long} characters, .*pattern.Regex .*a\+b.*at most 20000"):
        tokenizer.encode("a" * long)
    with pytest.raises(OptionError, match="a run of"):
        tokenizer.encode(" " * long + "x")
    assert len(tokenizer.encode("a" * LONGEST_RUN + "c")) == LONGEST_RUN + 1
    assert len(tokenizer.encode("cd" * long)) == 2 * long
    assert len(tokenizer.encode("aaab " * LONGEST_RUN)) == 5 * LONGEST_RUN


def test_many_runs_count_as_one_that_takes_as_long() -> None:
    assert longest_run("aaaabaaa", "a".__eq__) == 5
    assert longest_run("bbb", "a".__eq__) == 0


def test_what_a_normalizer_may_write_counts_as_one_run() -> None:
    tokenizer = made(pre_tokenizer=split(regex("▁+b"), "Isolated"), normalizer=replace({"String": "c"}, "▁"))
    with pytest.raises(OptionError, match="a run of"):
        tokenizer.encode("c" * LONGEST_RUN + "cd")
    assert tokenizer.encode("cd" * LONGEST_RUN)
    of_digits = split(regex(r"\d{1,3}(?=(?:\d{3})*\b)"), "Isolated")
    for normalizer in ("NFC", "Lowercase"):
        cohere = made(pre_tokenizer=of_digits, normalizer={"type": normalizer})
        assert cohere.encode("A day has 86400 s. " * 2_000)
    unknown = made(pre_tokenizer=of_digits, normalizer={"type": "StripAccents"})
    with pytest.raises(OptionError, match="a run of"):
        unknown.encode("A day has 86400 s. " * 2_000)


DOUBLED = [replace({"String": "a"}, "aa")] * 40


@pytest.mark.parametrize(
    "parts",
    [
        {"normalizer": {"type": "Sequence", "normalizers": DOUBLED}},
        {"normalizer": {"type": "Sequence", "normalizers": [replace(regex("[a-c]"), "bc")] * 40}},
        {
            "normalizer": {
                "type": "Sequence",
                "normalizers": [replace({"String": "a"}, "bb"), replace({"String": "b"}, "aa")] * 20,
            }
        },
        {"decoder": {"type": "Sequence", "decoders": [{"type": "Sequence", "decoders": DOUBLED[:20]}] * 2}},
        {"normalizer": {"type": "Sequence", "normalizers": [{"type": "ByteLevel"}] * 40}},
        {"normalizer": replace({"String": "a"}, "b" * 1001)},
        {
            "normalizer": {
                "type": "Sequence",
                "normalizers": [replace({"String": "a"}, "b" * 40), replace(regex("b"), "c" * 40)],
            }
        },
    ],
)
def test_replacements_that_make_too_much_of_a_character_are_refused(parts: Mapping[str, Any]) -> None:
    part = next(iter(parts))
    with pytest.raises(ConfigError, match=rf"tokenizer\.json: {part}: .*more than 1000 characters of one; copy"):
        made(**parts)


def test_replacements_that_do_not_feed_each_other_are_taken() -> None:
    names = ("half", "quarter", "three quarters", "third")
    steps = [replace({"String": sign}, f" {name}") for sign, name in zip("½¼¾⅓", names, strict=True)]
    steps += [replace(regex(r"\s+"), " ")] * 40
    described = content(normalizer={"type": "Sequence", "normalizers": steps})
    judge = tokenizers.Tokenizer.from_str(json.dumps(described))
    assert made(**described).encode("a½¼¾⅓ b") == judge.encode("a½¼¾⅓ b").ids


def test_tokens_that_are_looked_for_everywhere_have_a_length() -> None:
    unigram = {"type": "Unigram", "unk_id": 0, "vocab": [["a", -1.0], ["a" * 1001, -2.0]]}
    with pytest.raises(ConfigError, match=r"model\.vocab: a token has 1001 characters; at most 1000 are allowed"):
        made(model=unigram)
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False}
    with pytest.raises(ConfigError, match=r"added_tokens: a token has 50000 characters"):
        made(added_tokens=[{**plain, "id": 1, "content": "a" * 50000}])
    words = {"type": "WordPiece", "unk_token": "a", "continuing_subword_prefix": "", "vocab": {"a": 0}}
    with pytest.raises(
        ConfigError, match=r"max_input_chars_per_word is 100000; it may be at most 500, since .*: set it"
    ):
        made(model={**words, "max_input_chars_per_word": 100_000})


def test_a_long_token_of_a_gguf_file_is_cut_at_lengths_that_tokens_have() -> None:
    looked: list[str] = []

    class Vocabulary(dict[str, int]):
        def __contains__(self, token: object) -> bool:
            looked.append(str(token))
            return super().__contains__(token)

    tokens = ["a", "b", "ab", "aab", "a" * 3000 + "b", "a" * 3000]
    ids = Vocabulary(zip(tokens, range(len(tokens)), strict=True))
    merges = merges_by_score(tokens, [1] * len(tokens), [float(-place) for place in range(len(tokens))], ids)
    assert sorted(merges) == [("a", "ab"), ("a", "b"), ("a" * 3000, "b")]
    assert len(looked) < 40


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ([("a", 1)], "'a' has the id 1, but its place gives 0, the id in Rust"),
        ([("<x>", 7)], "'<x>' has the id 7, but its place gives 2,"),
        ([("<x>", 2), ("<y>", 4)], "'<y>' has the id 4, but its place gives 3,"),
        ([("<x>", 2), ("<x>", 3)], "'<x>' has the id 3, but its place gives 2,"),
    ],
)
def test_an_added_token_has_the_id_that_its_place_gives(tokens: list[tuple[str, int]], message: str) -> None:
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False}
    added = [{**plain, "id": id_, "content": text} for text, id_ in tokens]
    described = content(model={"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []}, added_tokens=added)
    with pytest.raises(ConfigError, match=f"added_tokens: {message}"):
        Tokenizer.from_files(LocalBackend, json.dumps(described))
    judge = tokenizers.Tokenizer.from_str(json.dumps(described))
    assert [judge.token_to_id(text) for text, _ in tokens] != [id_ for _, id_ in tokens]


# Rust's tokenizers panics with such a merge, or ends the process.
@pytest.mark.parametrize("merge", [["a", "é"], "a é", ["a", ""]])
def test_a_merge_that_a_prefix_cuts_inside_a_character_is_refused(merge: Any) -> None:
    ids = {token: place for place, token in enumerate(["a", "#b", "ab", "é", ""])}
    model = {"type": "BPE", "vocab": ids, "continuing_subword_prefix": "#", "merges": [["a", "#b"]]}
    assert made(model=model).encode("ab") == [2]
    with pytest.raises(ConfigError, match=r"model\.merges\[1\]: '.?' does not begin with '#'"):
        made(model={**model, "merges": [["a", "#b"], merge]})


def test_a_file_that_asks_for_truncation_and_padding_encodes_whole_texts() -> None:
    """As with transformers: files of encoders ask for both."""
    described = json.loads((LLAMA / "tokenizer.json").read_text())
    plain = Tokenizer.from_files(LocalBackend, json.dumps(described)).encode("def fibonacci(n):")
    described["truncation"] = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    pad = {"direction": "Right", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0, "pad_token": "x"}
    described["padding"] = {"strategy": {"Fixed": 40}, **pad}
    assert len(tokenizers.Tokenizer.from_str(json.dumps(described)).encode("def fibonacci(n):").ids) == 40
    assert Tokenizer.from_files(LocalBackend, json.dumps(described)).encode("def fibonacci(n):") == plain
