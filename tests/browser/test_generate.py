"""Greedy ids from the page are those of onnxruntime-genai on CPython: every fixture, every way to run a step."""

from __future__ import annotations

from pathlib import Path

import pytest

from capstan_host.testing.harness import Harness
from tests import oracle
from tests.browser.page_scripts import PageScripts

FIXTURES = Path(__file__).parents[1] / "fixtures"
NAMES = sorted(path.parent.name for path in FIXTURES.glob("*/genai_config.json"))
PROMPT = [5, 6, 7, 8, 9]
NOT_CAPTURED_BY_ORT = {
    ("nano-copies", "ort"): "onnxruntime-web's capture loses",
    ("nano-gemma2", "ort"): "looks back 24 positions and has a soft cap of 2, which onnxruntime-web ignores in a",
    ("nano-gemma3", "ort"): "looks back 24 positions, which onnxruntime-web ignores in a captured run",
}

WAYS = {
    "tape": {"device": "webgpu", "capture": "tape"},
    "ort": {"device": "webgpu", "capture": "ort"},
    "off": {"device": "webgpu", "capture": "off"},
    "wasm": {"device": "wasm", "capture": "tape"},
}


PAIRS = [
    (name, "tape ort" if (name, "ort") in NOT_CAPTURED_BY_ORT or i % 2 else "tape off")
    for i, name in enumerate(NAMES[::2])
]
"""Every other fixture by tape and in one of the other two ways; all three ways of each fixture are extended."""


def prompt_of(length: int) -> list[int]:
    return [(31 * i + 7) % 509 for i in range(length)]


@pytest.mark.one_in(8)
@pytest.mark.parametrize(
    ("name", "captures"),
    [*PAIRS, *(pytest.param(name, "tape ort off", marks=pytest.mark.extended) for name in NAMES)],
)
def test_greedy_ids_are_the_oracles_by_tape_by_orts_capture_and_eagerly(
    name: str, captures: str, scripts: PageScripts
) -> None:
    ways = captures.split()
    found = scripts.run("sequences", "ways", name, model=name, captures=ways, prompt=PROMPT, count=24)
    wanted = oracle.greedy(FIXTURES / name, PROMPT, 24)
    for capture in ways:
        assert found[capture]["ids"] == wanted, capture
        if (name, capture) in NOT_CAPTURED_BY_ORT:
            assert found[capture]["capture"] == "off"
            assert NOT_CAPTURED_BY_ORT[name, capture] in found[capture]["note"]
        else:
            assert (found[capture]["capture"], found[capture]["note"]) == (capture, None)


@pytest.mark.extended
@pytest.mark.parametrize("name", ["nano-ernie", "nano-phi4"])
def test_a_hundred_ids_of_other_rotary_forms_are_the_oracles(name: str, scripts: PageScripts) -> None:
    prompt = prompt_of(70)
    actions = [("append", prompt), ("generate", 100)]
    found = scripts.run("sequences", "drive", name, model=name, actions=actions)
    assert found["picked"] == oracle.greedy(FIXTURES / name, prompt, 100)
    assert (found["capture"], found["note"]) == ("tape", None)
    assert found["passes"]["fused"].endswith("1 of them as recorded")


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", NAMES)
def test_greedy_ids_on_wasm_are_the_oracles(name: str, harness: Harness, scripts: PageScripts) -> None:
    found = harness.generate(name, prompt_ids=PROMPT, max_new_tokens=24, device="wasm")
    assert found["token_ids"] == oracle.greedy(FIXTURES / name, PROMPT, 24)
    assert found["device"] == "wasm"
    assert found["capture"] == "off"
    assert found["capture_note"].startswith("onnxruntime-web runs each step, since there is no program for the CPU: ")


@pytest.mark.one_in(2)
@pytest.mark.parametrize("way", WAYS)
def test_a_request_is_answered_in_the_way_it_asks_for(way: str, harness: Harness, scripts: PageScripts) -> None:
    found = harness.generate("nano-qwen2", prompt_ids=PROMPT, max_new_tokens=10, **WAYS[way])
    assert found["token_ids"] == oracle.greedy(FIXTURES / "nano-qwen2", PROMPT, 10)
    assert (found["prompt_ids"], found["finish_reason"]) == (PROMPT, "length")
    assert found["device"] == WAYS[way]["device"]
    assert found["capture"] == ("off" if way == "wasm" else way)
    assert (found["capture_note"] is None) == (way != "wasm")
    assert found["time_to_first_token_ms"] > 0
    assert found["tokens_per_second"] > 0
    assert found["waiting_ms"] > 0 <= found["copying_ms"]
    assert found["counters"]["steps"] == 9


@pytest.mark.one_in(4)
@pytest.mark.parametrize("length", [1, 63, 64, 65, 127, 129, 150])
@pytest.mark.parametrize("way", ["tape", "wasm"])
def test_prompts_around_the_edges_of_a_prefill_chunk_are_the_oracles(
    way: str, length: int, harness: Harness, scripts: PageScripts
) -> None:
    prompt = prompt_of(length)
    found = harness.generate("nano-llama", prompt_ids=prompt, max_new_tokens=4, **WAYS[way])
    assert found["token_ids"] == oracle.greedy(FIXTURES / "nano-llama", prompt, 4)
    assert way == "wasm" or (found["capture"], found["capture_note"]) == ("tape", None)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("passes", [None, ("clears",), ("clears", "direct")], ids=["fused", "recorded", "direct"])
@pytest.mark.parametrize("start", [55, 120])
def test_a_run_across_the_lengths_where_kernels_change_is_the_oracles(
    start: int, passes: tuple[str, ...] | None, scripts: PageScripts
) -> None:
    prompt = prompt_of(start)
    actions = [("append", prompt), ("generate", 16)]
    found = scripts.run(
        "sequences", "drive", "nano-llama", model="nano-llama", actions=actions, passes=passes, run_ahead=3
    )
    assert found["picked"] == oracle.greedy(FIXTURES / "nano-llama", prompt, 16)
    assert (found["capture"], found["note"]) == ("tape", None)


def test_a_run_up_to_the_context_length_is_the_oracles(scripts: PageScripts) -> None:
    prompt = prompt_of(500)
    found = scripts.run(
        "sequences", "drive", "nano-llama", model="nano-llama", actions=[("append", prompt), ("generate", 100)]
    )
    assert len(found["picked"]) == 12
    assert found["picked"] == oracle.greedy(FIXTURES / "nano-llama", prompt, 100)
    assert (found["capture"], found["note"], found["finish_reason"]) == ("tape", None, "length")


def test_text_arrives_token_by_token_and_adds_up_to_the_result(harness: Harness, scripts: PageScripts) -> None:
    found = harness.generate("nano-llama", prompt="def fibonacci(n):", max_new_tokens=12)
    events = [event for event in harness.events if event["kind"] == "text"]
    assert "".join(event["text"] for event in events) == found["text"]
    assert [event["token_id"] for event in events if event["token_id"] >= 0] == found["token_ids"]
    assert found["prompt_ids"] == oracle.prompt(FIXTURES / "nano-llama", "def fibonacci(n):")
    assert found["token_ids"] == oracle.greedy(FIXTURES / "nano-llama", found["prompt_ids"], 12)


def test_nothing_is_shown_from_a_stop_string_on(harness: Harness) -> None:
    whole = harness.generate("nano-llama", prompt="def fibonacci(n):", max_new_tokens=12)
    pieces = [event["text"] for event in harness.events if event["kind"] == "text" and event["text"]]
    stop = pieces[5][-1:] + pieces[6] + pieces[7][:1]
    search = {"do_sample": False, "stop_strings": ["never, never", stop]}
    found = harness.generate("nano-llama", prompt="def fibonacci(n):", max_new_tokens=12, search=search)
    events = [event for event in harness.events if event["kind"] == "text"]
    assert found["finish_reason"] == "stop"
    assert found["text"] == "".join(event["text"] for event in events) == whole["text"][: whole["text"].index(stop)]
    count = len(found["token_ids"])
    assert found["token_ids"] == whole["token_ids"][:count]
    assert count < 12
