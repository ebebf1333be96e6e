"""The parts of a tokenizer.json in a browser, whose versions of Unicode and of regular expressions are its own.

The judge is Rust's tokenizers, as in tests/unit/test_tokenizer_parts.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import tokenizers
from playwright.sync_api import Browser, Page

from tests.browser.bundled_page import bundled
from tests.looped import looped
from tests.tokenizer_parts import (
    ADDED,
    DECODERS,
    MODELS,
    NORMALIZERS,
    POST,
    PRE_TOKENIZERS,
    TEXTS,
    Part,
    content,
    metaspace,
    rows,
    with_added,
)

ROOT = Path(__file__).parents[2]
CASES: dict[str, Part] = {
    **{f"pre_tokenizer {name}": content(pre_tokenizer=part) for name, part in PRE_TOKENIZERS.items()},
    **{f"normalizer {name}": content(normalizer=part) for name, part in NORMALIZERS.items()},
    **{f"model {name}": content(model=part, pre_tokenizer=metaspace("first")) for name, part in MODELS.items()},
    **{f"added tokens {name}": with_added(part, pre_tokenizer=metaspace("first")) for name, part in ADDED.items()},
    **{f"post_processor {name}": content(post_processor=part) for name, part in POST.items()},
    # The judge's Strip fails for tokens shorter than what it may strip.
    **{f"decoder {name}": content(decoder=part) for name, part in DECODERS.items() if not name.startswith("Strip")},
}


@pytest.fixture(scope="module")
def page(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    opened = browser.new_page()
    opened.add_script_tag(path=bundled("tokenizer_page.ts", tmp_path_factory.mktemp("tokenizer")))
    yield opened
    opened.close()


@looped("name", CASES)
def test_the_page_tokenizes_as_rusts(name: str, page: Page) -> None:
    written = json.dumps(CASES[name])
    judge = tokenizers.Tokenizer.from_str(written)
    asked = rows(judge.get_vocab_size()) if name.startswith("decoder") else []
    ids, texts = page.evaluate("given => tokenize(...given)", [written, TEXTS, asked])
    found = zip(TEXTS, ids, strict=True)
    assert [text for text, each in found if each != judge.encode(text).ids] == [], name
    assert texts == [judge.decode(row) for row in asked], name
