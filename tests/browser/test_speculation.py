"""Speculation on WebGPU: drafts found on the device and verified in one taped step give the tokens of steps of one."""

from __future__ import annotations

from typing import Any

import pytest

from capstan import Model, Speculation
from capstan_host.site_server import SiteServer
from tests import oracle
from tests.browser.page_scripts import PageScripts
from tests.heads import HEADS
from tests.unit.test_speculation import FEW, FIXTURES, PROMPT, generated, made

CASES: dict[str, dict[str, Any]] = {
    "greedy": {},
    "drawn": {"do_sample": True, "temperature": 0.05, "top_k": 4, "top_p": 0.9, "random_seed": 5},
    "penalties": {"frequency_penalty": 0.01, "repetition_penalty": 1.0001, "no_repeat_ngram_size": 7},
}
DRAFTING = {"ngram_size": 2, "max_draft_tokens": 4, "always": True}
LENGTH = 60
HEADED = "qwen3_5_mtp"
STATEFUL = ("lfm2", "qwen3_5_text")
"""Models with the states of convolutions, and of linear attention, too."""
LONG = [(31 * i + 7) % 253 for i in range(60)]
"""A prompt of one run on software adapters."""


@pytest.fixture(scope="module")
def mounted(site: SiteServer) -> None:
    site.models[HEADED] = HEADS / HEADED
    site.models.update({name: FIXTURES / "families" / name for name in STATEFUL})


@pytest.mark.one_in
@pytest.mark.parametrize(
    ("model", "cases"),
    [("nano-llama", 2), ("nano-llama", 3), ("nano-qwen3", 1), ("nano-gemma2", 1), ("nano-qwen2", 1)],
)
def test_drafts_verified_on_the_gpu_change_no_token(model: str, cases: int, scripts: PageScripts) -> None:
    """To max_length, and to an end of sequence where drafts were accepted; after a rewind, too."""
    searches = [{"max_length": LENGTH, "logit_bias": FEW, **case} for case in CASES.values()]
    arguments: dict[str, Any] = {"model": model, "prompt": PROMPT, "drafting": DRAFTING}
    results = run(scripts, cases=searches[:cases], **arguments)
    for result in results:
        stats = result["drafted"]["stats"]
        assert result["drafted"]["reasons"] == ["length", "length"]
        assert stats["rounds"] > stats["none"], "where nothing is accepted this shows little"
        assert stats["rounds"] > stats["full"], "where nothing is refused this shows little"
        assert result["drafted"]["steps"] < result["plain"]["steps"]
    greedy = results[0]["plain"]["sequences"][0]
    ending = {**searches[0], "eos": [greedy[-4]]}
    [ended] = run(scripts, cases=[ending], **{**arguments, "prompt": greedy[:-12]})
    assert ended["drafted"]["reasons"][0] == "stop"


@pytest.mark.usefixtures("mounted")
@pytest.mark.parametrize("model", STATEFUL)
def test_states_follow_the_accepted_drafts(model: str, scripts: PageScripts) -> None:
    """To max_length, after a rewind, and to an end of sequence, for a model with states."""
    search = {"max_length": LENGTH, "logit_bias": FEW}
    arguments: dict[str, Any] = {"model": model, "prompt": PROMPT, "drafting": DRAFTING}
    [result] = run(scripts, cases=[search], **arguments)
    stats = result["drafted"]["stats"]
    assert stats["rounds"] > stats["none"], "where nothing is accepted this shows little"
    assert stats["rounds"] > stats["full"], "where nothing is refused this shows little"
    greedy = result["plain"]["sequences"][0]
    ending = {**search, "eos": [greedy[-4]]}
    [ended] = run(scripts, cases=[ending], **{**arguments, "prompt": greedy[:-12]})
    assert ended["drafted"]["reasons"][0] == "stop"


def run(scripts: PageScripts, model: str, **arguments: Any) -> list[dict[str, Any]]:
    """Results of cases, which are those without speculation."""
    names = [model, *filter(None, [arguments.get("draft_model")])]
    found: list[dict[str, Any]] = scripts.run("speculating", "generated", *names, model=model, **arguments)
    for result in found:
        plain, drafted, stats = result["plain"], result["drafted"], result["drafted"]["stats"]
        assert drafted["sequences"] == plain["sequences"]
        assert drafted["reasons"] == plain["reasons"]
        assert not drafted["stepped down"]
        assert "5 positions" in drafted["said"]
        assert stats["emitted"] == stats["accepted"] + stats["rounds"]
    return found


@pytest.mark.parametrize(
    ("model", "draft", "cases"), [("nano-llama", "nano-shape", 1), ("nano-float", "nano-llama", 3)]
)
def test_drafts_of_a_model_are_verified_in_the_same_submit(
    model: str, draft: str, cases: int, scripts: PageScripts
) -> None:
    """A draft model of equal weights, whose greedy drafts are all accepted, and one of rounded weights."""
    searches = [{"max_length": LENGTH, **case} for case in CASES.values()]
    if cases > 1:
        searches = [{"logit_bias": FEW, **search} for search in searches]
    drafting = {"max_draft_tokens": 4, "always": True}
    arguments: dict[str, Any] = {"model": model, "draft_model": draft, "prompt": PROMPT, "drafting": drafting}
    opened = Model(str(FIXTURES / model), draft_model=str(FIXTURES / draft))
    for search, result in zip(searches, run(scripts, cases=searches[:cases], **arguments), strict=False):
        plain, drafted, stats = result["plain"], result["drafted"], result["drafted"]["stats"]
        assert stats["accepted_by_step"] == on_the_reference_device(opened, search)
        assert (stats["full"] == stats["rounds"]) == (cases == 1), "drafts are refused only by the second pair"
        assert drafted["steps"] == plain["steps"] - stats["accepted"]
        assert plain["submits"] == plain["readbacks"]
        assert drafted["submits"] <= drafted["readbacks"] + 6, "only the draft model's two prompts are submits apart"


def on_the_reference_device(
    opened: Model, search: dict[str, Any], prompt: list[int] = PROMPT, drafts: int = 4, rewinds: bool = True
) -> list[int]:
    """The number of steps by their accepted drafts, for the sequences of scripts/speculating.py."""
    speculation = Speculation(max_draft_tokens=drafts, always=True)
    with made(opened, speculation, **{"do_sample": False, **search}) as generator:
        generator.append_tokens(prompt)
        generated(generator)
        if rewinds:
            generator.rewind_to(search["max_length"] // 2)
            generator.append_tokens([41, 44])
            generated(generator)
        assert generator.speculation is not None
        return generator.speculation.accepted_by_step


@pytest.mark.usefixtures("mounted")
@pytest.mark.parametrize("device", ["wasm", "webgpu"])
def test_a_head_drafts(device: str, scripts: PageScripts) -> None:
    """The states after refused drafts are taken back; a rewind and appended tokens change nothing. On WebGPU a rewind
    empties the head's caches; without one its drafts are those of the CPU.
    """
    cases = [{"max_length": 140, **case} for case in (CASES["greedy"], {**CASES["drawn"], "temperature": 0.9})]
    arguments: dict[str, Any] = {"device": device, "drafting": {"max_draft_tokens": 3, "always": True}}
    opened = Model(str(HEADS / HEADED))
    for rewinds in (True, False)[: 1 + (device == "webgpu")]:
        arguments |= {"cases": cases, "rewinds": rewinds}
        found = scripts.run("speculating", "generated", HEADED, model=HEADED, prompt=LONG, **arguments)
        for search, result in zip(cases, found, strict=True):
            assert result["drafted"]["sequences"] == result["plain"]["sequences"]
            assert not result["drafted"]["stepped down"]
            stats = result["drafted"]["stats"]
            if device == "wasm" or not rewinds:
                assert stats["accepted_by_step"] == on_the_reference_device(opened, search, LONG, 3, rewinds)
            assert stats["accepted"], "where nothing is accepted this shows little"
            assert stats["full"] < stats["rounds"], "where nothing is refused this shows little"


@pytest.mark.usefixtures("mounted")
@pytest.mark.parametrize("device", ["wasm", "webgpu"])
def test_a_head_is_used_by_default_or_told(device: str, scripts: PageScripts) -> None:
    found = scripts.run("speculating", "headed", HEADED, model=HEADED, device=device, prompt=LONG, count=60)
    assert found["picked"] == oracle.greedy(HEADS / HEADED, LONG, 60)
    if device == "wasm":
        assert found["stats"]["accepted"]
        assert found["draft bytes"] > 50_000
        assert not any("head" in each for each in found["told"])
    else:
        assert found["capture"] == "tape"
        assert not found["stats"]["accepted"], "a software adapter has no steps over several positions by default"
        [told] = [each for each in found["told"] if "speculation" in each]
        assert "the pass 'rows'" in told
