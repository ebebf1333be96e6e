"""Submits that are held back, and many parts read by one map, at the watched device itself."""

from __future__ import annotations

import base64
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from capstan_host.site_server import SiteServer
from tests.browser.bundled_page import page_with

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def page(browser: Browser, site: SiteServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with page_with("readback_page.ts", browser, site.url, tmp_path_factory.mktemp("readback")) as opened:
        yield opened


@pytest.mark.parametrize(
    "comes",
    [
        *("our write", "our poison", "their write", "our submit", "the end of a buffer", "the end of the run"),
        *("a wait for the queue", "a map", "an encoder", "an error scope"),
    ],
)
def test_what_is_held_back_is_submitted_before_what_follows_it(comes: str, page: Page) -> None:
    # One submit in all: ours takes along what is held back.
    assert page.evaluate("next => holdBack(next)", comes) == {"held": 0, "after": 1, "copied": 1}


def test_the_latest_submit_alone_is_held_back(page: Page) -> None:
    # The first one went out when the second came, which waits in its place.
    assert page.evaluate("next => holdBack(next)", "their submit") == {"held": 0, "after": 1, "copied": 1}


def read(page: Page, contents: list[bytes], staging: list[int], parts: list[Any], **options: Any) -> list[Any]:
    """Read the parts twice, and compare their bytes; what each time cost."""
    buffers = [base64.b64encode(data).decode() for data in contents]
    found = page.evaluate(
        "request => readParts(request)", {"buffers": buffers, "staging": staging, "parts": parts, **options}
    )
    for time, asked in zip(found, [*options.get("before", ()), parts, parts], strict=True):
        got = [base64.b64decode(text) for text in time.pop("read")]
        assert got == [contents[i][offset : offset + size] for i, offset, size in asked]
    return list(found)


def some_parts(draw: random.Random, contents: list[bytes]) -> list[Any]:
    parts = []
    for _ in range(draw.randint(1, 12)):
        i = draw.randrange(len(contents))
        offset = draw.randint(0, len(contents[i]))
        parts.append([i, offset, draw.choice([0, draw.randint(0, len(contents[i]) - offset)])])
    return parts


@pytest.mark.parametrize("seed", range(8))
def test_parts_of_any_alignment_come_by_one_submit_and_one_map(seed: int, page: Page) -> None:
    draw = random.Random(seed)
    contents = [draw.randbytes(4 * draw.randint(1, 300)) for _ in range(4)]
    # The last buffer is staging memory itself: it is mapped in place.
    for _ in range(6):
        parts = some_parts(draw, contents)
        copied = any(i != 3 and size for i, _, size in parts)
        mapped = any(i == 3 and size for i, _, size in parts)
        cost = {"maps": copied + mapped, "submits": int(copied), "readbacks": copied + mapped}
        first, second = read(page, contents, [3], parts)
        assert first == {**cost, "create_buffer": int(copied)}, parts
        assert second == {**cost, "create_buffer": 0}, parts


def test_what_no_buffer_can_hold_comes_through_several_in_one_submit(page: Page) -> None:
    contents = [bytes(range(64)), bytes(range(100, 164)), bytes(range(32))]
    parts = [[0, 0, 64], [1, 3, 30], [2, 0, 28], [1, 0, 64]]
    for time in read(page, contents, [], parts, limit=64):
        # 64; 32 and 28 bytes; 64.
        assert (time["maps"], time["submits"]) == (3, 1)


def test_the_larger_buffer_is_kept_for_the_next_reads(page: Page) -> None:
    contents = [bytes(range(256)) * 16]
    found = read(page, contents, [], [[0, 8, 16]], before=[[[0, 0, 64]], [[0, 0, 4000]]])
    assert [time["create_buffer"] for time in found] == [1, 1, 0, 0]
