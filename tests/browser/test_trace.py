"""Traces of a page: what is in them, that they nest, and that they leave the rest alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser

from capstan_host.site_server import SiteServer
from capstan_host.testing.harness import Harness
from tests import oracle
from tests.browser.page_scripts import PageScripts
from tests.trace_format import Slices, slices_by_track

FIXTURES = Path(__file__).parents[1] / "fixtures"
PROMPT = [5, 6, 7, 8, 9]
COUNT = 24
ROUNDED = 200
"""Microseconds by which a browser may round the two ends of the GPU's times."""


def of(slices: Slices, track: str, name: str = "") -> list[dict[str, Any]]:
    """The slices of all lanes of a track, in order; those of one name."""
    lanes = (found for lane, found in slices.items() if lane.rstrip(" 0123456789") == track)
    found = [each for lane in lanes for each in lane if name in ("", each["name"])]
    return sorted(found, key=lambda each: each["ts"])


def end(each: dict[str, Any]) -> int:
    found: int = each["ts"] + each["dur"]
    return found


@pytest.fixture(scope="module")
def page(browser: Browser, site: SiteServer) -> Iterator[Harness]:
    """A page whose worker is traced from its start."""
    context = browser.new_context()
    try:
        yield Harness(context.new_page(), site.url, "?trace")
    finally:
        context.close()


def stop(page: Harness) -> dict[str, Any]:
    reply = page.reply({"kind": "trace", "action": "stop"})
    assert reply["ok"], reply
    found: dict[str, Any] = reply["result"]
    return found


@pytest.fixture(scope="module")
def whole(page: Harness) -> dict[str, Any]:
    """The trace of a start, a load and a run."""
    assert page.generate("nano-llama", prompt_ids=PROMPT, max_new_tokens=COUNT, run_ahead=4)["capture"] == "tape"
    return stop(page)


def test_a_trace_has_the_start_the_load_and_the_recording(whole: dict[str, Any]) -> None:
    slices = slices_by_track(whole)
    assert {each["name"] for each in of(slices, "load")} >= {
        "start the worker",
        "start Python",
        "import capstan",
        "open onnxruntime-web and the GPU",
        "load the model",
        "files",
        "weights",
    }
    [worker], [python] = of(slices, "load", "start the worker"), of(slices, "load", "start Python")
    [load] = of(slices, "load", "load the model")
    [answer] = of(slices, "Python", "answer: generate")
    [recording] = of(slices, "Python", "record and check the decode step")
    assert end(worker) <= end(python) <= answer["ts"] <= load["ts"] < end(load) <= recording["ts"]
    [weights], [file] = of(slices, "load", "weights"), of(slices, "load", "a file of weights")
    assert weights["ts"] <= file["ts"] < end(file) <= end(weights)
    waited = {name: ms for name, ms in file["args"].items() if name.endswith("_ms")}
    assert file["args"]["bytes"] == (FIXTURES / "nano-llama/model.onnx.data").stat().st_size
    assert set(waited) == {"source_ms", "digest_ms", "store_ms", "target_ms"}
    # One shard is finished while the next one comes.
    assert max(waited.values()) <= file["dur"] / 1000 + 1
    assert end(recording) <= end(answer)
    about = whole["otherData"]
    assert "swiftshader" in about["adapter"]
    assert about["runtime"].startswith("onnxruntime-web ")
    assert (about["no_gpu_times"], about["unusable_gpu_times"], about["dropped_spans"]) == (None, 0, 0)


def test_each_burst_is_submitted_then_computed_then_copied(whole: dict[str, Any]) -> None:
    slices = slices_by_track(whole)
    tracks = {track: of(slices, track, "burst") for track in ("submit", "wait", "copy", "GPU")}
    picks = {track: [each["args"]["picks"] for each in found] for track, found in tracks.items()}
    assert len(picks["submit"]) >= COUNT // 4
    assert picks["submit"] == picks["wait"] == picks["copy"] == picks["GPU"]
    # The first pick comes before the step is recorded, from a run of onnxruntime-web.
    assert sum(picks["submit"]) >= COUNT - 1
    assert "GPU 2" not in slices, "the GPU computes one submit after the other"
    submits, waits, copies, computed = tracks.values()
    late = []
    for submit, wait, copy, gpu in zip(submits, waits, copies, computed, strict=True):
        assert submit["ts"] <= wait["ts"] <= end(submit)
        assert end(wait) == copy["ts"]
        assert wait["ts"] - ROUNDED <= gpu["ts"]
        assert end(gpu) <= end(wait)
        late.append(end(wait) - end(gpu))
    # All are placed together, by the one that was told soonest.
    for name in {each["name"] for each in slices["GPU"]} - {"burst"}:
        others = zip(of(slices, "GPU", name), of(slices, "wait", name), strict=True)
        late += [end(wait) - end(gpu) for gpu, wait in others]
    assert min(late) <= 1, "the GPU's clock is as late as it may be"


@pytest.mark.extended
def test_a_trace_ends_once_and_another_one_begins_without_the_load(whole: dict[str, Any], page: Harness) -> None:
    for action, why in (
        ("stop", "no trace is under way: begin one with"),
        ("pause", "action is 'pause'; it must be 'start' or 'stop'"),
    ):
        error = page.reply({"kind": "trace", "action": action})["error"]
        assert error["type"] == "OptionError"
        assert error["message"].startswith(why), error
    assert page.reply({"kind": "trace", "action": "start"})["ok"]
    error = page.reply({"kind": "trace", "action": "start"})["error"]
    assert error["message"].startswith("a trace is already under way")
    page.generate("nano-llama", prompt_ids=PROMPT, max_new_tokens=COUNT)
    slices = slices_by_track(stop(page))
    assert of(slices, "load") == []
    assert of(slices, "Python", "record and check the decode step") == []
    assert of(slices, "GPU", "burst")
    assert page.errors == []


@pytest.mark.extended
def test_a_run_is_the_same_with_a_trace_and_after_it(scripts: PageScripts) -> None:
    options = {
        "model": "nano-llama",
        "prompt": PROMPT,
        "count": COUNT,
        "run_ahead": 4,
        "max_length": len(PROMPT) + COUNT,
    }
    found = scripts.run("tracing", "traced", "nano-llama", **options)
    ids = oracle.greedy(FIXTURES / "nano-llama", PROMPT, COUNT)
    assert found["alone"]["ids"] == found["traced"]["ids"] == found["after"]["ids"] == ids
    assert found["after"]["counters"] == found["alone"]["counters"]
    assert found["traced"]["counters"]["submits"] == found["alone"]["counters"]["submits"]
    assert found["left"] == [], "memory of the trace"
    assert of(slices_by_track(found["trace"]), "GPU", "burst")


@pytest.mark.extended
def test_an_adapter_without_timestamps_is_told(scripts: PageScripts) -> None:
    found = scripts.run("tracing", "untimed", "nano-llama", model="nano-llama", prompt=PROMPT, count=8)
    assert found["ids"] == oracle.greedy(FIXTURES / "nano-llama", PROMPT, 8)
    slices = slices_by_track(found["trace"])
    assert "GPU" not in slices
    assert of(slices, "wait", "burst")
    assert of(slices, "load", "load the model")
    assert found["trace"]["otherData"]["no_gpu_times"] == "the adapter has no timestamp-query"
