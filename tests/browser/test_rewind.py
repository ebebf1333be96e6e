"""Rewinding, appending and replacing logits give the results of a fresh run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests import oracle
from tests.browser.page_scripts import PageScripts

LLAMA = Path(__file__).parents[1] / "fixtures" / "nano-llama"
PROMPT = [5, 6, 7, 8, 9]
SAMPLED = {"do_sample": True, "temperature": 0.9, "top_k": 60, "random_seed": 11}
DEVICES = ["webgpu", "wasm"]


def drive(scripts: PageScripts, actions: list[Any], **options: Any) -> dict[str, Any]:
    found: dict[str, Any] = scripts.run(
        "sequences", "drive", "nano-llama", model="nano-llama", actions=actions, **options
    )
    assert options.get("device") == "wasm" or (found["capture"], found["note"]) == ("tape", None)
    return found


@pytest.mark.one_in(6)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("search", [{}, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("kept", [12, 5, 1], ids=["mid_run", "at_the_prompts_end", "in_the_prompt"])
def test_rewinding_and_going_on_is_a_fresh_run(
    kept: int, search: dict[str, Any], device: str, scripts: PageScripts
) -> None:
    again = drive(
        scripts, [("append", PROMPT), ("generate", 14), ("rewind", kept), ("generate", 12)], device=device, **search
    )
    fresh = drive(scripts, [("append", again["sequence"][:kept]), ("generate", 12)], device=device, **search)
    assert again["sequence"] == fresh["sequence"]
    assert again["picked"][14:] == fresh["picked"]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("device", DEVICES)
def test_rewinding_appending_and_generating_is_the_oracles(device: str, scripts: PageScripts) -> None:
    actions: list[Any] = [
        ("append", PROMPT),
        ("generate", 9),
        ("append", [11, 12, 13]),
        ("generate", 5),
        ("rewind", 7),
        ("append", [300]),
        ("generate", 6),
        ("rewind", 6),
        ("generate", 4),
    ]
    found = drive(scripts, actions, device=device)
    trace = oracle.drive(LLAMA, actions)
    assert found["picked"] == trace.picked
    assert found["sequence"] == trace.sequence


@pytest.mark.parametrize("run_ahead", [1, 8])
def test_rewinding_back_across_64_is_the_oracles(run_ahead: int, scripts: PageScripts) -> None:
    prompt = list(range(40, 100))
    actions: list[Any] = [("append", prompt), ("generate", 10), ("rewind", 62), ("append", [3]), ("generate", 6)]
    found = drive(scripts, actions, run_ahead=run_ahead)
    trace = oracle.drive(LLAMA, actions)
    assert found["picked"] == trace.picked
    assert found["sequence"] == trace.sequence


@pytest.mark.one_in(2)
@pytest.mark.parametrize("device", DEVICES)
def test_logits_can_be_read_and_replaced(device: str, scripts: PageScripts) -> None:
    token = 77
    found = scripts.run(
        "logits", "replaced", "nano-llama", model="nano-llama", prompt=PROMPT, device=device, token=token
    )
    wanted = oracle.greedy(LLAMA, PROMPT, 8)
    assert found["first"] == wanted[:6]
    assert found["best"] == wanted[6], "the logits that get_logits shows are those of the next pick"
    assert found["untouched"] == wanted[6:8], "reading logits changes nothing"
    assert found["same"] < 1e-4, "the logits are there again after a rewind"
    assert found["rest"][0] == token
    assert found["rest"][1:] == oracle.greedy(LLAMA, [*PROMPT, *wanted[:6], token], 4)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("device", DEVICES)
def test_logits_without_a_number_raise_and_the_generator_goes_on(device: str, scripts: PageScripts) -> None:
    found = scripts.run("logits", "barren", "nano-llama", model="nano-llama", prompt=PROMPT, device=device)
    assert len(found["errors"]) == 2
    assert all("are all NaN or -inf" in error for error in found["errors"])
    assert (found["again False"], found["again True"]) == (True, True)


def test_logits_of_the_wrong_size_or_type_are_refused(scripts: PageScripts) -> None:
    found = scripts.run("logits", "refused", "nano-llama", model="nano-llama")
    assert found == [
        "OptionError: the logits have format 'f' and 2044 bytes; give 512 float32 numbers",
        "OptionError: the logits have format 'd' and 2048 bytes; give 512 float32 numbers",
        "OptionError: the logits have format 'B' and 2048 bytes; give 512 float32 numbers",
    ]
