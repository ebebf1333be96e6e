"""Each part of a tokenizer.json, with each of its behaviours, in the page: the judge is Rust's tokenizers."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
import tokenizers

from capstan.errors import UnsupportedModelError
from capstan.local.rust_tokenizer import no_panic
from capstan.tokenizer import Tokenizer
from tests.looped import looped
from tests.page_tokenizer import Make, page_tokenizers
from tests.tokenizer_parts import (
    ADDED,
    DECODERS,
    MODELS,
    NORMALIZERS,
    POST,
    PRE_TOKENIZERS,
    TEXTS,
    TOKENS,
    UNKNOWN,
    Part,
    content,
    metaspace,
    replace,
    rows,
    with_added,
)


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Make]:
    with page_tokenizers(tmp_path_factory.mktemp("node")) as made:
        yield made


def differences(described: Part, make: Make, special: bool = False) -> list[tuple[str, list[int], list[int]]]:
    """The texts that the page encodes otherwise than Rust, with both lists of ids."""
    written = json.dumps(described)
    judge, page = tokenizers.Tokenizer.from_str(written), make(written, "{}")
    found = ((text, page.encode(text, special), judge.encode(text, add_special_tokens=special).ids) for text in TEXTS)
    return [each for each in found if each[1] != each[2]]


@looped("name", PRE_TOKENIZERS)
def test_a_pre_tokenizer_cuts_as_rusts(name: str, make: Make) -> None:
    assert differences(content(pre_tokenizer=PRE_TOKENIZERS[name]), make) == [], name


@looped("name", NORMALIZERS)
def test_a_normalizer_writes_as_rusts(name: str, make: Make) -> None:
    for pre_tokenizer in (None, metaspace("first")):
        assert differences(content(normalizer=NORMALIZERS[name], pre_tokenizer=pre_tokenizer), make) == [], name


@looped("name", MODELS)
def test_a_model_finds_the_ids_of_rusts(name: str, make: Make) -> None:
    for pre_tokenizer in (None, metaspace("always"), {"type": "Whitespace"}):
        assert differences(content(model=MODELS[name], pre_tokenizer=pre_tokenizer), make) == [], (name, pre_tokenizer)


@looped("name", ADDED)
def test_added_tokens_are_found_as_by_rust(name: str, make: Make) -> None:
    for parts in ({}, {"normalizer": NORMALIZERS["Lowercase"]}, {"normalizer": NORMALIZERS["Strip True False"]}):
        described = with_added(ADDED[name], pre_tokenizer=metaspace("first"), **parts)
        assert differences(described, make) == [], (name, parts)


@looped("name", POST)
def test_a_post_processor_puts_the_ids_of_rusts(name: str, make: Make) -> None:
    for special in (True, False):
        assert differences(content(post_processor=POST[name]), make, special) == [], (name, special)


@looped("name", DECODERS)
def test_a_decoder_writes_as_rusts(name: str, make: Make) -> None:
    model = {"type": "WordLevel", "unk_token": "do", "vocab": {token: id_ for id_, token in enumerate(TOKENS)}}
    added = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    tokens = [{**added, "content": "é", "special": False}, {**added, "content": "|", "special": True}]
    written = json.dumps(with_added(tokens, model=model, decoder=DECODERS[name]))
    judge, page = tokenizers.Tokenizer.from_str(written), make(written, "{}")
    asked = [(ids, skip) for ids in rows(len(TOKENS) + 2) for skip in (True, False)]
    for ids, skip in asked:
        try:
            with no_panic():
                wanted = judge.decode(ids, skip_special_tokens=skip)
        except ValueError:  # Its Strip fails for tokens shorter than what it may strip.
            assert name.startswith("Strip"), (name, ids)
            continue
        assert page.decode(ids, skip) == wanted, (name, ids)


@looped("name", UNKNOWN)
def test_a_part_that_the_page_lacks_is_refused_by_name(name: str, make: Make) -> None:
    parts, message = UNKNOWN[name]
    with pytest.raises(UnsupportedModelError, match=rf"^tokenizer\.json: .*{message}.*; take a model with another tok"):
        Tokenizer.from_files(make, json.dumps(content(**parts)))


@looped("pattern", [{"String": ""}, {"Regex": "a*"}, {"Regex": "(?=b)"}])
def test_a_normalizer_that_puts_text_between_characters_is_refused_where_it_does(pattern: Part, make: Make) -> None:
    """Rust's tokenizers loses its place there: `-` in front of `x` is twice in what it makes of bytes."""
    tokenizer = Tokenizer.from_files(make, json.dumps(content(normalizer=replace(pattern, "-"))))
    with pytest.raises(UnsupportedModelError, match=r"normalizer\.pattern: it also matches nothing; take a model"):
        tokenizer.encode("abc")
