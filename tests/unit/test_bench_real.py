"""The bench of a real model without a browser: its chats, judging ids by float32, agreement, memory traffic, README."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benches.runner.main import checked
from benches.runner.plan import HARDWARE, plan
from benches.runner.results import disagreements, summarize
from benches.runner.subjects import Subject
from benches.runner.truth import NEAR_TIE, against_float32
from capstan.device.webgpu.rehearsal import traffic

LLAMA = Path(__file__).parents[1] / "fixtures/nano-llama"
GREEDY = [7, 8, 9, 10]
CLEAR, TIE = 5.0, 0.1
"""Float32's margins of the picks above: its third pick is nearly a tie."""


@pytest.fixture
def real(tmp_path: Path) -> Path:
    """A model folder with two chats and a GGUF file."""
    folder = tmp_path / "real"
    shutil.copytree(LLAMA, folder)
    margins = [CLEAR, CLEAR, TIE, CLEAR]
    chats = [
        {"prompt": [20, 21, 22], "reply": [30, 31], "prompt_text": list("abc"), "reply_text": list("kl")},
        {"prompt": [23, 24], "reply": [32], "prompt_text": list("de"), "reply_text": ["m"]},
    ]
    chats = [{**chat, "greedy": GREEDY, "margins": margins} for chat in chats]
    (folder / "chats.json").write_text(json.dumps({"chats": chats}))
    (folder / "model.gguf").touch()
    return folder


def played(folder: Path, sections: list[str]) -> list[dict[str, Any]]:
    """The steps with outcomes in which every row picks the ids of float32."""
    steps = plan({"real": folder, "nano-llama": LLAMA}, sections, replace(HARDWARE, rounds=2), [], [])
    return [{**step, "ok": True, "data": data_of(step)} for step in steps]


def data_of(step: dict[str, Any]) -> dict[str, Any]:
    match step.get("function"):
        case "agreement":
            same = {"fused": 2, "replayed": 1, "eager": 0}[step["row"]]
            told = {"tape_passes": {"fused": "9 became 4"}} if step["contender"] == "capstan" else {}
            return {"tokens": 2, "same": same, "divergence": 0.5, "largest": 0.375, **told}
        case "transcript":
            return {"prompt": "<ask>", "text": "an <answer>", "reply": [1], "capture": "tape", "finish_reason": "stop"}
        case "generate":
            ids = [None] * 4 if step["contender"] == "wllama" else GREEDY
            return {"ids": ids, "first_ms": 9.0, "rest_ms": 6.0, "capture": "tape"}
        case "replay":
            return {"ms_per_token": 2.0}
    if step["action"] == "start":
        return {"ready_ms": 1.0, "loaded_ms": 2.0, "first_token_ms": 3.0, "ids": GREEDY[:1]}
    return {}


def of(outcomes: list[dict[str, Any]], model: str, section: str) -> list[dict[str, Any]]:
    return [step for step in outcomes if (step["model"], step["section"]) == (model, section)]


def parted(outcomes: list[dict[str, Any]], row: str, place: int) -> list[dict[str, Any]]:
    """The row's ids of chat 1 are other ones from a place on."""
    for step in of(outcomes, "real", "decode"):
        if (step.get("row"), step["chat"]) == (row, 1) and "ids" in step["data"]:
            step["data"]["ids"] = [*GREEDY[:place], *[99] * (len(GREEDY) - place)]
    return outcomes


def test_engines_may_part_from_float32_where_it_is_unsure_and_that_is_told(real: Path) -> None:
    subjects = {"real": Subject.of("real", real)}
    outcomes = parted(played(real, ["decode"]), "eager", 2)
    found = against_float32(outcomes, subjects)["real"]
    assert found["wrong"] == []
    assert found["rows"]["eager"] == {
        "chats": 2,
        "tokens": 8,
        "agree": 6,
        "partings": [{"chat": 1, "at": 2, "margin": TIE}],
    }
    assert found["rows"]["tape"]["agree"] == 8
    assert disagreements(outcomes, {"real"}) == []


def test_an_engine_that_parts_where_float32_is_sure_is_wrong(real: Path) -> None:
    assert TIE < NEAR_TIE < CLEAR
    outcomes = parted(played(real, ["decode"]), "eager", 1)
    [wrong] = against_float32(outcomes, {"real": Subject.of("real", real)})["real"]["wrong"]
    assert (wrong["row"], wrong["against"], wrong["at"], wrong["margin"]) == ("eager", "float32", 1, CLEAR)


def test_an_engine_with_weights_of_its_own_is_held_to_its_count_of_tokens_alone(real: Path) -> None:
    outcomes = played(real, ["decode"])
    found = against_float32(outcomes, {"real": Subject.of("real", real)})["real"]
    assert "wllama" not in found["rows"]
    assert disagreements(outcomes) == disagreements(outcomes, {"real"}) == []
    [step, *_] = [step for step in outcomes if step.get("row") == "wllama"]
    data = {"ids": [None] * HARDWARE.tokens, "prompt_tokens": step["length"]}
    assert checked({"ok": True, "data": data}, step)["ok"]
    longer = {**data, "prompt_tokens": step["length"] + 1}
    assert checked({"ok": True, "data": longer}, step)["error"] == "its prompt has 4 tokens, others' has 3"
    # A tokenizer may join some of a long prompt's ids.
    for seen, good in ((396, True), (395, False), (404, True), (405, False)):
        found = checked({"ok": True, "data": {**data, "prompt_tokens": seen}}, {**step, "length": 400})
        assert found["ok"] is good, seen


def test_capstans_rows_of_one_capture_are_held_to_each_other_on_a_real_model(real: Path) -> None:
    found = disagreements(parted(played(real, ["decode"]), "tape", 2), {"real"})
    assert {(entry["row"], entry["against"]) for entry in found} == {("tape", "capstan_off")}


def test_the_share_of_the_adapters_copies_is_told_for_each_kind_of_operation() -> None:
    def operation(label: str, microseconds: float, size: int) -> dict[str, Any]:
        return {"index": 0, "label": label, "microseconds": microseconds, "bytes": size}

    step = {"model": "m", "section": "gpu", "ok": True, "length": 16, "row": "tape"}
    times = [operation("product", 3.0, 2_000_000), operation("product", 5.0, 2_000_000), operation("product", 2.0, 8)]
    times += [operation("sampler", 4.0, 0), operation("tiny", 0.5, 64)]
    limits = {"copy_bytes_per_s": 4e12, "empty_us": 1.0, "bytes": 1}
    outcomes = [
        {**step, "function": "limits", "data": limits},
        {**step, "function": "operations", "data": {"operations": times}},
    ]
    rows = summarize(outcomes)["m"]["gpu"]["bandwidth"]["16"]
    assert [(row["label"], row["dispatches"], row["microseconds"]) for row in rows] == [
        ("product", 2, 6.0),
        ("sampler", 1, 3.0),
        ("product", 1, 1.0),
        ("tiny", 1, 0.0),
    ]
    # 4 MB in the 6 µs that are left without two empty dispatches: 0.67 TB/s of the 4 that copies move.
    assert rows[0]["bytes_per_s"] == pytest.approx(4e6 / 6e-6)
    assert rows[0]["share_of_copy"] == pytest.approx(1 / 6)
    assert (rows[1]["bytes_per_s"], rows[3]["bytes_per_s"]) == (None, None)


def test_of_what_is_bound_whole_the_part_that_is_used_is_counted() -> None:
    cache = ("kv past_key_values.0.key", "persistent", 1000)
    weight = ("weight down_proj", "weights", 500)
    activation = ("tape scratch", "kernels", 40)
    table = ("weight cos_cache", "weights", 9999)
    assert traffic("matvec_q4", [weight, activation], 0.1) == 540
    assert traffic("attention", [activation, cache, table], 0.1) == 104
    assert traffic("attention_join", [activation, ("logits", "io", 7)], 0.5) == 27
    assert traffic("a -> b", [("input ids", "io", 8), weight, ("b", "scratch", 16)], 0.1) == 24
    assert traffic("mask -> sum", [("mask", "io", 400), ("sum", "scratch", 4)], 0.25) == 104
