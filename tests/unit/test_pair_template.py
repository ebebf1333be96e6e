"""Pairs of texts are joined and cut as by Rust's tokenizers."""

from __future__ import annotations

import json
from typing import Any

import pytest
import tokenizers

from capstan.errors import ConfigError, UnsupportedModelError
from capstan.text.pair_template import PairTemplate, longest_first
from tests.looped import looped

VOCABULARY = {**{str(number): number for number in range(40)}, "<s>": 40, "</s>": 41, "x": 42}
BY_BYTES = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
ENDS = {"sep": ["</s>", 41], "cls": ["<s>", 40]}


def template(*pair: tuple[str, int], **special: list[int]) -> dict[str, Any]:
    """A template of pairs; the names A and B are the texts."""
    pieces = [{"Sequence" if name in "AB" else "SpecialToken": {"id": name, "type_id": kind}} for name, kind in pair]
    tokens = {name: {"id": name, "ids": ids, "tokens": ["x"] * len(ids)} for name, ids in special.items()}
    single = [{"Sequence": {"id": "A", "type_id": 0}}]
    return {"type": "TemplateProcessing", "single": single, "pair": pieces, "special_tokens": tokens}


BERT = template(("c", 0), ("A", 0), ("s", 0), ("B", 1), ("s", 1), c=[40], s=[41])
PROCESSORS: dict[str, dict[str, Any]] = {
    "BERT": BERT,
    "XLM-RoBERTa": template(("c", 0), ("A", 0), ("s", 0), ("s", 0), ("B", 0), ("s", 0), c=[40], s=[41]),
    "several ids": template(("A", 2), ("two", 1), ("B", 0), two=[42, 41]),
    "BertProcessing": {"type": "BertProcessing", **ENDS},
    "RobertaProcessing": {"type": "RobertaProcessing", **ENDS, "trim_offsets": True, "add_prefix_space": False},
    "Sequence": {"type": "Sequence", "processors": [BY_BYTES, BERT]},
}
LENGTHS = [(0, 0), (0, 9), (1, 1), (3, 4), (4, 3), (5, 5), (6, 5), (5, 6), (2, 30), (30, 2), (8, 30), (30, 8), (30, 30)]


@looped("name", PROCESSORS)
def test_a_pair_is_that_of_rusts(name: str) -> None:
    model = {"type": "WordLevel", "vocab": VOCABULARY, "unk_token": "x"}
    content = {"version": "1.0", "added_tokens": [], "pre_tokenizer": {"type": "WhitespaceSplit"}, "model": model}
    judge = tokenizers.Tokenizer.from_str(json.dumps({**content, "post_processor": PROCESSORS[name]}))
    made = PairTemplate.of(PROCESSORS[name])
    assert made.added == judge.num_special_tokens_to_add(True)
    for first, second in LENGTHS:
        for most in (8, 11, 14, 15, 16, 100):
            judge.enable_truncation(most, strategy="longest_first")
            query, document = (" ".join(map(str, range(length))) for length in (first, second))
            encoded = judge.encode(query, document)
            kept = longest_first(first, second, most - made.added)
            found = made.join(*(list(range(length)) for length in kept))
            assert found == (encoded.ids, encoded.type_ids), (first, second, most)


@pytest.mark.parametrize(
    ("processor", "error", "message"),
    [
        (None, UnsupportedModelError, r"its post_processor \(None\) has no template that separates the two texts"),
        (BY_BYTES, UnsupportedModelError, r"its post_processor \(ByteLevel\) has no template .* use a cross-encoder"),
        (template(("A", 0), ("B", 1)), UnsupportedModelError, "has no template that separates"),
        (template(("B", 0), ("s", 0), ("A", 0), s=[1]), UnsupportedModelError, "has no template that separates"),
        (template(("A", 0), ("s", 0), s=[1]), UnsupportedModelError, "has no template that separates"),
        (template(("A", 0), ("s", 0), ("B", 0)), ConfigError, "post_processor: KeyError.* copy the file again"),
        ({"type": "Other", **ENDS}, ConfigError, "unknown type 'Other'"),
        ({"type": "BertProcessing", "sep": 5, "cls": 5}, ConfigError, "post_processor: TypeError"),
    ],
)
def test_a_file_without_a_template_of_pairs_is_refused(processor: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        PairTemplate.of(processor)
