"""Caches of attention over a window hold its positions alone: ids and logits are those of whole caches."""

from __future__ import annotations

from typing import Any

import pytest

from capstan.tape import PASSES
from tests import oracle
from tests.browser.model_variants import Variants
from tests.browser.page_scripts import PageScripts
from tests.long_windows import CONTEXT, FIXTURES, PROMPT, WINDOW, longer

TAPE: dict[str, Any] = {"device": "webgpu", "capture": "tape"}
TOGETHER = [name for name in PASSES if name not in ("direct", "prefill")]
WAYS: list[dict[str, Any]] = [TAPE, {"device": "webgpu", "capture": "off"}]
MODELS = ["nano-gemma2", "nano-gemma3"]
ROOM = WINDOW + 512
LONG = ROOM + 64
"""Tokens of a prompt that its caches cannot hold."""
ROW = 2 * 16 * 4
"""Bytes of a position of a cache: heads, elements, float32."""
TOLD = "a sequence that continues after fewer positions than it has: its caches over a window of 24 positions"


@pytest.fixture(scope="module")
def gemma3(variants: Variants) -> str:
    source = FIXTURES / "nano-gemma3"
    return longer(source, variants.folder("nano-gemma3-sliding", source)).name


def driven(scripts: PageScripts, model: str, way: dict[str, Any], *actions: Any, **search: Any) -> dict[str, Any]:
    found: dict[str, Any] = scripts.run("sliding", "driven", model, model=model, actions=actions, load=way, **search)
    return found


def nearly(found: list[float], expected: list[float]) -> bool:
    return max(abs(one - other) for one, other in zip(found, expected, strict=True)) < 1e-3 * max(map(abs, expected))


@pytest.mark.extended
@pytest.mark.parametrize("way", WAYS, ids=["tape", "off"])
@pytest.mark.parametrize("name", MODELS)
def test_a_long_prompt_and_its_picks_are_those_of_whole_caches(
    name: str, way: dict[str, Any], variants: Variants, scripts: PageScripts
) -> None:
    prompt, source = PROMPT[:LONG], FIXTURES / name
    windowed = longer(source, variants.folder(f"{name}-long", source)).name
    actions = [("append", prompt), ("generate", 24), ("logits", None)]
    found = driven(scripts, windowed, way, *actions)
    assert found["ids"] == [oracle.greedy(variants.place / windowed, prompt, 24)]
    whole = driven(scripts, windowed, {"device": "wasm"}, *actions)
    assert nearly(found["logits"][0], whole["logits"][0])
    assert (found["capture"], found["counted"]) == (way["capture"], {}), found["note"]
    assert set(found["caches"].values()) <= {ROOM * ROW, CONTEXT * ROW}
    assert list(found["caches"].values()).count(ROOM * ROW) == 2, "the keys and values of one layer"
    assert set(whole["caches"].values()) == {CONTEXT * ROW}


@pytest.mark.extended
def test_picks_go_on_past_the_room_of_the_caches(gemma3: str, variants: Variants, scripts: PageScripts) -> None:
    """Bursts are under way while the rows move, twice."""
    prompt = PROMPT[: ROOM - 40]
    found = driven(scripts, gemma3, TAPE, ("append", prompt), ("generate", 330), ("logits", None))
    assert found["ids"] == [oracle.greedy(variants.place / gemma3, prompt, 330)]
    behind = [*prompt, *found["ids"][0]]
    whole = driven(scripts, gemma3, {"device": "wasm"}, ("append", behind), ("logits", None))
    assert nearly(found["logits"][0], whole["logits"][0])


@pytest.mark.one_in(2)
@pytest.mark.parametrize("way", WAYS, ids=["tape", "off"])
def test_a_rewind_recomputes_what_is_gone_and_says_so(
    way: dict[str, Any], gemma3: str, variants: Variants, scripts: PageScripts
) -> None:
    folder, prompt = variants.place / gemma3, PROMPT[:LONG]
    found = driven(
        scripts,
        gemma3,
        way,
        ("append", prompt),
        ("generate", 4),
        ("logits", None),
        ("rewind", LONG - 20),
        ("generate", 4),
        ("rewind", 150),
        ("generate", 4),
        ("append", prompt[154:LONG]),
        ("rewind", 0),
        ("append", prompt[:30]),
        ("generate", 4),
    )
    ends = (LONG, LONG - 20, 150, 30)
    assert found["ids"] == [oracle.greedy(folder, prompt[:end], 4) for end in ends]
    assert nearly(found["logits"][0], oracle.logits(folder, [*prompt, *found["ids"][0]]).tolist())
    assert found["recomputed"] in (149, 150), "near and to the begin nothing is gone"
    assert set(found["caches"].values()) <= {ROOM * ROW, CONTEXT * ROW}
    assert ROOM * ROW in found["caches"].values()
    assert [count for told, count in found["counted"].items() if told.startswith(TOLD)] == [1], found["counted"]


@pytest.mark.extended
def test_appended_tokens_are_run_behind_the_base(gemma3: str, variants: Variants, scripts: PageScripts) -> None:
    first, then = PROMPT[: ROOM - 6], PROMPT[700:708]
    found = driven(scripts, gemma3, TAPE, ("append", first), ("generate", 3), ("append", then), ("generate", 8))
    whole = [*first, *found["ids"][0], *then]
    assert found["ids"][1] == oracle.greedy(variants.place / gemma3, whole, 8)
    assert found["recomputed"] == 0


@pytest.mark.extended
def test_drafts_slide(gemma3: str, variants: Variants, scripts: PageScripts) -> None:
    prompt = [467] * (ROOM - 30)
    way = {**TAPE, "passes": TOGETHER}
    found = driven(scripts, gemma3, way, ("append", prompt), ("generate", 60), drafted=True)
    assert found["ids"] == [oracle.greedy(variants.place / gemma3, prompt, 60)]
    assert found["accepted"] > 0
    assert "drafts" in found["passes"], found["counted"]


ROWS: list[Any] = [
    pytest.param({**TAPE, "passes": TOGETHER}, id="joint"),
    pytest.param(TAPE, id="separate"),
]


@pytest.mark.extended
@pytest.mark.parametrize("way", ROWS)
def test_rows_have_bases_of_their_own(
    way: dict[str, Any], gemma3: str, variants: Variants, scripts: PageScripts
) -> None:
    long, short = PROMPT[:620], PROMPT[40:360] + [2] * 300  # padded
    found = scripts.run("sliding", "rows", gemma3, model=gemma3, prompts=[long, short], count=30, load=way)
    wanted = [oracle.greedy(variants.place / gemma3, prompt, 30) for prompt in (long, PROMPT[40:360])]
    assert [sequence[620:] for sequence in found["sequences"]] == wanted
    assert ("rows" in found["passes"]) == ("passes" in way), found["passes"]


@pytest.mark.extended
@pytest.mark.parametrize("way", ROWS)
def test_beams_slide(way: dict[str, Any], gemma3: str, scripts: PageScripts) -> None:
    given = {"model": gemma3, "prompts": [PROMPT[: ROOM - 10]], "count": 24, "num_beams": 3, "batch_size": 1}
    found = scripts.run("sliding", "rows", gemma3, load=way, **given)
    whole = scripts.run("sliding", "rows", gemma3, load={"device": "wasm"}, **given)
    assert found["sequences"] == whole["sequences"]


@pytest.mark.extended
@pytest.mark.parametrize("way", ROWS)
def test_a_sequence_of_a_pool_slides(
    way: dict[str, Any], gemma3: str, variants: Variants, scripts: PageScripts
) -> None:
    """It takes a decoder that was given back with another base."""
    prompt = PROMPT[: ROOM - 10]
    given = {"before": PROMPT[:LONG], "prompt": prompt, "count": 20, "load": way}
    found = scripts.run("long_rope", "pooled", gemma3, model=gemma3, **given)
    assert found == oracle.greedy(variants.place / gemma3, prompt, 20)


@pytest.mark.extended
@pytest.mark.parametrize("close", [False, True], ids=["open", "closed"])
def test_the_prefix_cache_gives_what_the_windows_hold(
    close: bool, gemma3: str, variants: Variants, scripts: PageScripts
) -> None:
    """A prompt that goes on behind the whole other one; one that leaves it before the last window; a short one."""
    first = PROMPT[:700]
    prompts = [first, [*first, *PROMPT[800:840]], [*first[:200], 5, 6, 7], PROMPT[100:400], PROMPT[100:420]]
    found = scripts.run("sliding", "alike", gemma3, model=gemma3, prompts=prompts, count=3, load=TAPE, close=close)
    assert [ids for ids, _ in found] == [oracle.greedy(variants.place / gemma3, prompt, 3) for prompt in prompts]
    assert [reused for _, reused in found] == [0, 700, 0, 0, 300]


@pytest.mark.extended
def test_a_measurement_leaves_the_sequence_as_it_is(gemma3: str, variants: Variants, scripts: PageScripts) -> None:
    """A cache that lost positions cannot be read; steps that are timed have the room that a slide makes."""
    prompt = PROMPT[:LONG]
    found = scripts.run("sliding", "inside", gemma3, model=gemma3, prompt=prompt, load=TAPE)
    assert found["ids"] == oracle.greedy(variants.place / gemma3, prompt, 9)
    [dims] = found["carried"]
    assert (dims[1], dims[3]) == (2, 16)
    assert dims[2] >= LONG + 2
    assert found["refused"].startswith("present.0.key is the cache of a sliding window, which now begins at position ")
    assert found["asked"].endswith("the caches of its windows have no room for more")


@pytest.mark.extended
def test_buffers_of_the_callers_slide(gemma3: str, variants: Variants, scripts: PageScripts) -> None:
    prompt = PROMPT[: ROOM - 6]
    found = scripts.run("sliding", "given", gemma3, model=gemma3, prompt=prompt, load=TAPE)
    assert found["ids"] == oracle.greedy(variants.place / gemma3, prompt, 16)
    assert {"kv past_key_values.0.key", "window base"} <= set(found["names"])
