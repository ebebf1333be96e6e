"""Models whose rotary factors change past an original length: caches are computed again, with the native ids."""

from __future__ import annotations

from typing import Any

import pytest

from capstan.tape import PASSES
from tests import oracle
from tests.browser.model_variants import Variants
from tests.browser.page_scripts import PageScripts
from tests.long_ropes import LONG_ROPE, ORIGINAL, halved, joined

NEAR = [(29 * i + 3) % 509 for i in range(ORIGINAL - 4)]
"""A prompt that is outgrown within few tokens."""
LONG = [(37 * i + 11) % 509 for i in range(ORIGINAL + 6)]
WAYS: list[dict[str, Any]] = [
    {"device": "webgpu", "capture": "tape"},
    {"device": "webgpu", "capture": "ort"},
    {"device": "webgpu", "capture": "off"},
    {"device": "wasm"},
]
NAMES = [f"{way['device']}-{way.get('capture', '')}" for way in WAYS]
SELDOM = [
    pytest.param(way, marks=[pytest.mark.extended] if way.get("capture") in ("ort", "off") else []) for way in WAYS
]
"""Prompts of the ways between are extended: the first test has them, too."""


@pytest.fixture(scope="module")
def long_rope(variants: Variants) -> str:
    return variants.folder("nano-phi3-long", LONG_ROPE).name


def driven(scripts: PageScripts, model: str, way: dict[str, Any], *actions: Any, **search: Any) -> dict[str, Any]:
    found: dict[str, Any] = scripts.run("long_rope", "driven", model, model=model, actions=actions, load=way, **search)
    return found


@pytest.fixture(scope="module")
def behind(variants: Variants) -> str:
    """With the long rows behind the short ones."""
    return joined(variants.folder("nano-phi3-joined", LONG_ROPE)).name


@pytest.mark.parametrize("way", WAYS, ids=NAMES)
def test_a_sequence_that_outgrows_the_original_length_is_computed_anew_once(
    way: dict[str, Any], long_rope: str, scripts: PageScripts
) -> None:
    found = driven(scripts, long_rope, way, ("append", NEAR), ("generate", 24))
    assert found["ids"] == [oracle.again(LONG_ROPE, NEAR, 24)]
    assert found["ids"] != [oracle.greedy(LONG_ROPE, NEAR, 24)], "the keys of before would do, too"
    assert (found["context"], found["rope_changes"]) == (512, 1)
    assert found["capture"] == (way.get("capture") or "off"), found["note"]
    assert found["counted"] == {}
    if found["capture"] == "tape":
        assert "1 of them as recorded" in found["passes"]["fused"], "attention is not ours"


@pytest.mark.parametrize("way", SELDOM, ids=NAMES)
def test_prompts_rewinds_and_appended_tokens_have_the_factors_for_their_length(
    way: dict[str, Any], long_rope: str, scripts: PageScripts
) -> None:
    actions: list[Any] = [("append", LONG), ("generate", 6), ("rewind", ORIGINAL - 2), ("generate", 8)]
    longer = driven(scripts, long_rope, way, *actions)
    assert longer["ids"] == [oracle.again(LONG_ROPE, LONG, 6), oracle.again(LONG_ROPE, LONG[: ORIGINAL - 2], 8)]
    assert longer["rope_changes"] == 2, "to the short factors, and to the long ones again"
    found = driven(scripts, long_rope, way, ("append", LONG[:40]), ("generate", 3), ("append", LONG), ("generate", 6))
    whole = [*LONG[:40], *found["ids"][0], *LONG]
    assert found["ids"] == [oracle.again(LONG_ROPE, LONG[:40], 3), oracle.again(LONG_ROPE, whole, 6)]
    assert found["rope_changes"] == 1


@pytest.mark.parametrize("way", [WAYS[0], WAYS[3]], ids=["webgpu", "wasm"])
def test_long_rows_behind_short_ones_give_the_same(way: dict[str, Any], behind: str, scripts: PageScripts) -> None:
    """The first step that is recorded is one with the long factors."""
    actions: list[Any] = [("append", LONG), ("generate", 5), ("rewind", ORIGINAL - 2), ("generate", 6)]
    found = driven(scripts, behind, way, *actions)
    assert found["ids"] == [oracle.again(LONG_ROPE, LONG, 5), oracle.again(LONG_ROPE, LONG[: ORIGINAL - 2], 6)]
    assert (found["context"], found["rope_changes"], found["counted"]) == (512, 2, {})


@pytest.mark.one_in(2)
@pytest.mark.parametrize("way", [WAYS[0], WAYS[3]], ids=["webgpu", "wasm"])
def test_short_and_long_sequences_share_no_rows(way: dict[str, Any], long_rope: str, scripts: PageScripts) -> None:
    prompts = [LONG[:50], LONG, LONG[:60], [*LONG, 5, 6]]
    found = scripts.run("long_rope", "alike", long_rope, model=long_rope, prompts=prompts, count=2, load=way)
    wanted = [oracle.again(LONG_ROPE, prompt, 2) for prompt in prompts]
    assert found == [[ids, reused] for ids, reused in zip(wanted, (0, 0, 50, 70), strict=True)]


TOGETHER = [name for name in PASSES if name not in ("direct", "prefill")]


def test_tables_in_float16_are_fed_as_such(variants: Variants, scripts: PageScripts) -> None:
    folder = halved(variants.folder("nano-phi3-half", LONG_ROPE))
    found = driven(scripts, folder.name, WAYS[3], ("append", NEAR), ("generate", 8))
    assert (found["ids"], found["rope_changes"]) == ([oracle.again(folder, NEAR, 8)], 1)


ROWS: list[Any] = [
    pytest.param({"device": "webgpu", "capture": "tape", "passes": TOGETHER}, id="joint"),
    pytest.param({"device": "wasm"}, id="wasm"),
]


@pytest.mark.parametrize("way", ROWS)
def test_rows_are_computed_anew_together(way: dict[str, Any], long_rope: str, scripts: PageScripts) -> None:
    prompts = [NEAR, LONG[: len(NEAR)]]
    found = scripts.run("long_rope", "rows", long_rope, model=long_rope, prompts=prompts, count=12, load=way)
    assert found["sequences"] == [[*prompt, *oracle.again(LONG_ROPE, prompt, 12)] for prompt in prompts]
    assert found["rope_changes"] == 1
    assert way["device"] == "wasm" or "rows" in found["passes"], found["passes"]


def test_rows_that_were_given_back_begin_with_the_short_factors(long_rope: str, scripts: PageScripts) -> None:
    """In the decoder of the test before, if that ran in this page."""
    way = ROWS[0].values[0]
    for prompt in (LONG, NEAR[:20]):
        prompts = [prompt, prompt[::-1]]
        found = scripts.run("long_rope", "rows", long_rope, model=long_rope, prompts=prompts, count=3, load=way)
        assert found["sequences"] == [[*each, *oracle.again(LONG_ROPE, each, 3)] for each in prompts]


@pytest.mark.parametrize("way", [WAYS[0], WAYS[3]], ids=["webgpu", "wasm"])
def test_drafts_do_not_reach_past_the_original_length(
    way: dict[str, Any], long_rope: str, scripts: PageScripts
) -> None:
    prompt = [166] * (ORIGINAL - 6)
    found = driven(scripts, long_rope, way, ("append", prompt), ("generate", 16), drafted=True)
    assert found["ids"] == [oracle.again(LONG_ROPE, prompt, 16)]
    assert found["rope_changes"] == 1


@pytest.mark.one_in(2)
@pytest.mark.parametrize("way", [WAYS[0], WAYS[3]], ids=["webgpu", "wasm"])
def test_a_grammar_goes_on(way: dict[str, Any], long_rope: str, scripts: PageScripts) -> None:
    found = driven(scripts, long_rope, way, ("append", NEAR), ("generate", 10), grammar=r"(.|\n)*")
    assert (found["ids"], found["rope_changes"]) == ([oracle.again(LONG_ROPE, NEAR, 10)], 1)


@pytest.mark.parametrize("way", [WAYS[0], ROWS[0].values[0]], ids=["plain", "joint"])
def test_a_pool_takes_a_decoder_with_the_short_factors(
    way: dict[str, Any], long_rope: str, scripts: PageScripts
) -> None:
    given = {"before": LONG, "prompt": NEAR[:20], "count": 4, "load": way}
    found = scripts.run("long_rope", "pooled", long_rope, model=long_rope, **given)
    assert found == oracle.again(LONG_ROPE, NEAR[:20], 4)


@pytest.mark.extended
def test_prompts_from_tapes_have_the_factors_for_their_length(long_rope: str, scripts: PageScripts) -> None:
    way = {**WAYS[0], "passes": list(PASSES)}
    for _ in range(2):
        # Tapes of prompts are made at the second one.
        actions: list[Any] = [("append", LONG), ("generate", 4), ("rewind", ORIGINAL - 2), ("generate", 6)]
        found = driven(scripts, long_rope, way, *actions)
        assert found["ids"] == [oracle.again(LONG_ROPE, LONG, 4), oracle.again(LONG_ROPE, LONG[: ORIGINAL - 2], 6)]
    assert "64 positions: " in found["passes"]["prefill"], found["passes"]
