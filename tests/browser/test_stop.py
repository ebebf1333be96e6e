"""An end of sequence in the middle of a burst, and stopping with bursts under way."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from capstan_host.testing.harness import Harness, generate_request
from tests import oracle
from tests.browser.page_scripts import PageScripts

FIXTURES = Path(__file__).parents[1] / "fixtures"
LLAMA = FIXTURES / "nano-llama"
APPENDED = [17, 18, 19]


def eos_overlay(place: Path, eos: int) -> Path:
    """A copy of the fixture, for the oracle, with another end-of-sequence id."""
    folder = place / "nano-llama"
    shutil.copytree(LLAMA, folder)
    config = json.loads((folder / "genai_config.json").read_text())
    config["model"]["eos_token_id"] = eos
    (folder / "genai_config.json").write_text(json.dumps(config))
    return folder


def first_seen(ids: list[int], earliest: int) -> int:
    """An index at which an id comes up for the first time, `earliest` or later."""
    return next(i for i in range(earliest, len(ids)) if ids[i] not in ids[:i])


@pytest.mark.one_in(6)
@pytest.mark.parametrize("start", [5, 58], ids=["short", "across_64_and_65"])
@pytest.mark.parametrize(
    ("passes", "run_ahead"),
    [(None, 1), (None, 3), (None, None), (None, 8), (("clears", "direct"), 8), (("clears",), 8)],
    ids=["K1", "K3", "adaptive", "K8", "direct-K8", "recorded-K8"],
)
def test_an_end_in_the_middle_of_a_burst_then_more_tokens_is_the_oracles(
    start: int, run_ahead: int | None, passes: tuple[str, ...] | None, tmp_path: Path, scripts: PageScripts
) -> None:
    prompt = [(31 * i + 7) % 509 for i in range(start)]
    free = oracle.greedy(LLAMA, prompt, 24)
    # The picks of the second burst of 8 are 9 to 16; none of these is its last.
    place = first_seen(free, 5)
    assert place in (5, 6, 7), "the end must fall into the first burst of eight, not on its edge"
    eos = free[place]
    actions: list[Any] = [("append", prompt), ("generate", 30), ("append", APPENDED), ("generate", 6)]
    trace = oracle.drive(eos_overlay(tmp_path, eos), actions)
    assert trace.picked[: place + 1] == free[: place + 1]
    options: dict[str, Any] = {"model": "nano-llama", "eos": [eos], "run_ahead": run_ahead, "passes": passes}
    ended = scripts.run("sequences", "drive", "nano-llama", actions=actions[:2], **options)
    assert (ended["capture"], ended["note"]) == ("tape", None)
    assert ended["picked"] == free[: place + 1]
    assert ended["sequence"] == [*prompt, *free[:place]], "the end itself is no part of the sequence"
    assert (ended["done"], ended["finish_reason"]) == (True, "stop")
    longer = scripts.run("sequences", "drive", "nano-llama", actions=actions, **options)
    assert longer["picked"] == trace.picked
    assert longer["sequence"] == trace.sequence


@pytest.mark.one_in(2)
@pytest.mark.parametrize("device", ["webgpu", "wasm"])
def test_rewinding_an_ended_sequence_generates_again(device: str, scripts: PageScripts) -> None:
    prompt = [5, 6, 7, 8, 9]
    free = oracle.greedy(LLAMA, prompt, 24)
    place = first_seen(free, 5)
    actions: list[Any] = [("append", prompt), ("generate", 30), ("rewind", len(prompt) + 2), ("generate", 30)]
    found = scripts.run(
        "sequences", "drive", "nano-llama", model="nano-llama", actions=actions, device=device, eos=[free[place]]
    )
    assert found["picked"] == free[: place + 1] + free[2 : place + 1]
    assert found["sequence"] == [*prompt, *free[:place]]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("run_ahead", [1, 8])
def test_a_generator_closed_with_bursts_under_way_leaves_its_decoder_usable(
    run_ahead: int, scripts: PageScripts
) -> None:
    prompt = [5, 6, 7, 8, 9]
    found = scripts.run(
        "sequences", "stopped_ahead", "nano-llama", model="nano-llama", prompt=prompt, run_ahead=run_ahead
    )
    assert found["flights"] >= 1
    assert found["ids"] == oracle.greedy(LLAMA, prompt, 12)


def cancelled(request: dict[str, Any], kind: str, text: str, at: str, number: int, scripts: PageScripts) -> Any:
    """The reply to a request that is cancelled when it has told of something; it gets no further than the `number`-th
    wait at a place of the script until then."""
    harness = scripts.harness

    def has_told() -> bool:
        return any(event["kind"] == kind and text in event["text"] for event in harness.events)

    scripts.run("holding", "hold", at=at, number=number)
    try:
        harness.begin(request)
        deadline = time.monotonic() + 120
        while not has_told() and time.monotonic() < deadline:
            harness.page.wait_for_timeout(20)
        in_time = has_told()
        harness.evaluate("() => window.capstan.request({ kind: 'cancel' })")
        reply = harness.end()
        told = harness.text()
    finally:
        scripts.run("holding", "let_go")
    assert in_time, f"nothing was told of {kind} {text!r}"
    assert not reply["ok"], "the request was not cancelled"
    assert (reply["error"]["type"], reply["error"]["message"]) == ("KeyboardInterrupt", "stopped by the user")
    return told


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("device", "number"), [("webgpu", 20), ("wasm", 200)])
def test_a_cancelled_request_ends_as_by_ctrl_c_and_the_next_one_works(
    device: str, number: int, harness: Harness, scripts: PageScripts
) -> None:
    prompt = [5, 6, 7, 8, 9]
    request = generate_request("nano-llama", prompt_ids=prompt, max_new_tokens=500, device=device)
    cancelled(request, "text", "", device, number, scripts)
    again = harness.generate("nano-llama", prompt_ids=prompt, max_new_tokens=8, device=device)
    assert again["token_ids"] == oracle.greedy(LLAMA, prompt, 8)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("stage", "at"), [("finding", "load"), ("preparing", "record")])
def test_a_request_that_is_cancelled_before_its_first_token_leaves_a_model_that_works(
    stage: str, at: str, harness: Harness, scripts: PageScripts
) -> None:
    prompt = [5, 6, 7, 8, 9]
    # Another capture than the other tests', so that the model is loaded and its step recorded here.
    wanted = {"capture": "tape" if stage == "finding" else "ort", "prompt_ids": prompt}
    request = generate_request("nano-float", max_new_tokens=60, **wanted)
    assert cancelled(request, "status", stage, at, 1, scripts) == ""
    again = harness.generate("nano-float", max_new_tokens=8, **wanted)
    assert again["token_ids"] == oracle.greedy(FIXTURES / "nano-float", prompt, 8)
