"""Which regular expressions of a tokenizer.json may take exponential time: those of known models do not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from capstan.errors import ConfigError
from capstan.local.rust_tokenizer import LocalBackend
from capstan.text.expressions import danger
from capstan.tokenizer import Tokenizer
from tests.looped import looped

LLAMA = Path(__file__).parents[1] / "fixtures/nano-llama"
# ruff: noqa: E501
QUICK = [
    r"(a+)+",
    r"(?:\w+\s?)+",
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"\p{N}{1,3}",
    "[一-龥\u3040-ゟ゠-ヿ]+",
    "[!\\\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
    r"\d{1,3}(?=(?:\d{3})*\b)",
    r"[\r\n]",
    r"\s?\p{L}+",
    r"\s?\p{P}+",
    "[0-9][0-9][0-9]",
    r"(?=(\d{3})+(?!\d))",
    " {2,}",
    "▁",
    r"\s*[\p{Lu}]?[\p{Ll}]+",
    r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?\p{L}+",
    r"\s+$",
    r"^\s+",
    r"(?<=\d)(?=(?:\d{3})+$)",
    r"<\|[^|]*\|>",
    r" ?[^(\s|[.,!?…。，、।۔،])]+",
    r"(?:\r?\n)+",
    "([a-z]|[A-Z])+$",
    "[A-Z]*[a-z]+x",
    r"(?<word>\w+)x",
    r"\p{^L}+x|\x{41}|\u{4e00}+",
    r"[^\]|\[]+x",
    "[]a]+x",
    r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "[[:alpha:]]+x",
    "([[:lower:]]|[0-9])+x",
    "([[:digit:]]|[a-z&&[^q]])+$",
    "([a-z&&[^aeiou]]|[aeiou])+$",
    "([^[a-m]]|[a-m])+$",
    r"\R+x|(?:\R|a)+$|\X+x",
    "[:;]+x",
    "[[^a]b]+x|[[a]-]+x",
    r"[\h]+x",
]
"""GPT-2's, Llama 3's, Qwen's, GPT-4o's, DeepSeek's, Bloom's and others, and forms that look like slow ones."""
SLOW = [
    "(a+)+$",
    "(a|a)*b",
    "(a|aa)+$",
    "(a*)*b",
    "(?:a|ab|b)*c",
    r"(\s*\p{L}*)*x",
    r"(\w+\s?)+$",
    "a*a*b",
    r"\s*\s*x",
    "(a?){50}a{50}",
    "(a(|))+b",
    "(?=(a+)+$)a",
    r"([\p{L}]|[a-z])+!",
    "(x+x+)+y",
    "(.*)*x",
    "(a{1,3})+$",
    "a*a*a*a*a*a*b",
    "(?i:(a|A)+)$",
    r"(\p{L}|é)+$",
    "(a|b|ab)*c$",
    "(?i)(a|A)+$",
    "(?i:([a-z]|[A-Z])+)$",
    "([a-c]|[c-d])+$",
    r"(a|\p{Ll})+$",
    "(a|[^b])+$",
    "(?:(?:a+)+)+$",
    r"(\s|\p{Z})+x",
    "((ab)*(ab)*)x",
    "(ab|a|ba)+x",
    r"\1(a)",
    "(",
    "([[:alpha:]]|a)+$",
    "([[:^alpha:]]|1)+$",
    "([a-z&&[^q]]|[x-z])+$",
    "([^[a-m]]|z)+$",
    r"([^\p{Han}]|é)+$",
    r"(\P{Han}|a)+$",
    r"(\p{Latin}|a)+$",
    r"(?i:[a-z&&[^q]]|X)+$",
    r"(\R|\r\n)+x",
    r"\X*\X*x",
    "[a&&]+x",
    "[a" + "[b" * 100 + "]" * 101,
    "a" * 1001,
    "a" * 10_001,
]


@looped("expression", QUICK)
def test_an_expression_that_ends_is_taken(expression: str) -> None:
    assert danger(expression) is None


@looped("expression", SLOW)
def test_an_expression_that_may_take_for_ever_is_found(expression: str) -> None:
    assert danger(expression) is not None


def test_a_tokenizer_with_such_an_expression_is_refused_with_its_place() -> None:
    content = json.loads((LLAMA / "tokenizer.json").read_text())
    split = {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}
    slow = {**content, "pre_tokenizer": {"type": "Sequence", "pretokenizers": [content["pre_tokenizer"], split]}}
    message = (
        r"pre_tokenizer\.pretokenizers\[1\]\.pattern\.Regex: '\(a\+\)\+\$' may take exponential time: a repeated part"
    )
    with pytest.raises(ConfigError, match=message):
        Tokenizer.from_files(LocalBackend, json.dumps(slow))
    assert Tokenizer.from_files(LocalBackend, json.dumps(content)).encode("a" * 40 + "b")
