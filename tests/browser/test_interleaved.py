"""Several generators of one model: side by side, one after the other, closed twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests import oracle
from tests.browser.page_scripts import PageScripts

LLAMA = Path(__file__).parents[1] / "fixtures" / "nano-llama"
PROMPTS = [[5, 6, 7, 8, 9], [100, 200, 300]]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("device", ["webgpu", "wasm"])
@pytest.mark.parametrize("lengths", [(None, None), (64, 300)], ids=["same_max_length", "other_max_length"])
def test_generators_side_by_side_pick_what_each_picks_alone(
    lengths: tuple[int | None, int | None], device: str, scripts: PageScripts
) -> None:
    found = scripts.run(
        "sequences",
        "interleaved",
        "nano-llama",
        model="nano-llama",
        prompts=PROMPTS,
        lengths=lengths,
        count=14,
        device=device,
    )
    assert found == [oracle.greedy(LLAMA, prompt, 14) for prompt in PROMPTS]


@pytest.mark.extended
def test_sampling_generators_side_by_side_pick_what_each_picks_alone(scripts: PageScripts) -> None:
    search: dict[str, Any] = {"do_sample": True, "temperature": 0.9, "random_seed": 3, "run_ahead": 3}
    call = {"model": "nano-llama", "prompts": PROMPTS, "count": 14, **search}
    alone = scripts.run("sequences", "each", "nano-llama", **call)
    beside = scripts.run("sequences", "interleaved", "nano-llama", lengths=[None, None], **call)
    assert beside == alone
    assert alone[0] != alone[1]


@pytest.mark.extended
def test_what_another_sequence_uploads_while_a_step_is_recorded_is_no_part_of_it(scripts: PageScripts) -> None:
    call = {"model": "nano-llama", "prompt": PROMPTS[0], "count": 8}
    found = scripts.run("sequences", "beside_a_recording", "nano-llama", **call)
    assert (found["capture"], found["times"]) == ("tape", 1)
    assert found["ids"] == oracle.greedy(LLAMA, PROMPTS[0], 8)


def test_a_closed_generators_decoder_serves_the_next_one(scripts: PageScripts) -> None:
    prompt = PROMPTS[0]
    found = scripts.run("sequences", "reused", "nano-llama", model="nano-llama", prompt=prompt, count=8)
    assert found["ids"] == [oracle.greedy(LLAMA, prompt, 8)] * 3
    assert found["same"], "the second generator did not get the first one's decoder"
    assert found["created"] == {"create_buffer": 0, "submits": 0, "create_bind_group": 0}, "a tape was recorded again"
    assert found["apart"], "two open generators share a decoder"
    assert found["refused"] == "ClosedError"
