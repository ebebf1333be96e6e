"""The bench of a real model without a browser: its chats, judging ids by float32, agreement, memory traffic, README."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from benches.runner.main import checked, write
from benches.runner.plan import HARDWARE, plan
from benches.runner.readme import BEGIN, END, with_table
from benches.runner.report import page
from benches.runner.results import disagreements, summarize
from benches.runner.subjects import GGUF, Subject
from benches.runner.text import table
from benches.runner.truth import NEAR_TIE, against_float32
from buildtools.commands.bench import contenders
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
            return {"prompt": "<ask>", "text": "an <answer>", "reply": [1], "capture": "tape", "finish_reason": "eos"}
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


def test_rounds_play_the_chats_in_turn_and_long_prompts_repeat_them(real: Path) -> None:
    outcomes = played(real, ["decode", "lengths"])
    told = [(step, step["args"]) for step in of(outcomes, "real", "decode")]
    asked = {(step["round"], step["chat"], tuple(args.get("prompt") or args["text"])) for step, args in told}
    assert asked == {
        *[(0, 0, (20, 21, 22)), (1, 1, (23, 24)), (2, 0, (20, 21, 22))],
        *[(0, 0, tuple("abc")), (1, 1, tuple("de")), (2, 0, tuple("abc"))],
    }
    assert {step["contender"] for step, args in told if "text" in args} == {"wllama"}
    assert "chat" not in of(outcomes, "nano-llama", "decode")[0]
    found = Subject.of("real", real).long_prompt(10)
    assert found == {"prompt": [20, 21, 22, 30, 31, 23, 24, 32, 20, 21], "text": "abckldemab"}
    long = [step["args"] for step in of(outcomes, "real", "lengths") if step["length"] == 128]
    assert {len(args.get("prompt") or args["text"]) for args in long} == {128}


def test_wllama_plays_where_the_folder_has_a_file_for_it(real: Path) -> None:
    outcomes = played(real, ["start", "decode", "lengths", "counters"])
    plays = {(step["model"], step["section"]) for step in outcomes if step.get("contender") == "wllama"}
    assert plays == {("real", "start"), ("real", "decode"), ("real", "lengths")}
    assert contenders({"nano-llama": LLAMA}) == ["transformers_js"]
    assert contenders({"nano-llama": LLAMA, "real": real}) == ["transformers_js", "wllama"]
    assert contenders({"real": real}, ["wllama"]) == ["transformers_js"]


def test_a_gguf_file_is_played_by_engines_that_read_one_and_its_prompts_are_words(real: Path) -> None:
    steps = plan({"model.gguf": real / GGUF}, ["start", "decode", "lengths", "gpu", "counters"], HARDWARE, [], [])
    assert {step["contender"] for step in steps if "contender" in step} == {"wllama", "capstan"}
    given = [step["args"] for step in steps if "model" in step.get("args", {})]
    assert {args["model"] for args in given} == {"model.gguf/model.gguf"}
    assert not any("prompt" in args for args in given)
    assert {len(args["text"].split()) for args in given if "text" in args} == set(HARDWARE.lengths)
    assert contenders({"model.gguf": real / GGUF}) == ["wllama"]


def test_every_reply_is_forced_on_every_way_of_computing_a_step(real: Path) -> None:
    outcomes = played(real, ["agreement", "transcript"])
    ways = [(step["row"], step["contender"], step["chat"]) for step in of(outcomes, "real", "agreement")]
    assert ways == [
        *[("fused", "capstan", 0), ("fused", "capstan", 1)],
        *[("replayed", "capstan", 0), ("replayed", "capstan", 1)],
        *[("eager", "eager", 0), ("eager", "eager", 1)],
    ]
    assert of(outcomes, "nano-llama", "agreement") == of(outcomes, "nano-llama", "transcript") == []
    found = summarize(outcomes)["real"]["agreement"]
    assert {way: row["top1"] for way, row in found.items()} == {"fused": 1.0, "replayed": 0.5, "eager": 0.0}
    assert (found["eager"]["tokens"], found["eager"]["mean_divergence"]) == (4, 0.25)
    assert found["fused"]["largest_divergence"] == 0.375


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


def report_of(folder: Path, tmp_path: Path) -> dict[str, Any]:
    outcomes = played(folder, ["start", "decode", "agreement", "transcript"])
    report: dict[str, Any] = {
        "date": "2026-01-02T03:04:05+00:00",
        "command": "bench",
        "adapter": {"vendor": "v", "architecture": "a", "description": "", "software": False},
        "gpu": "GPU",
        "browser": "Chromium 1",
        "measured": asdict(HARDWARE),
    }
    subjects = {"nano-llama": Subject.of("nano-llama", LLAMA), "real": Subject.of("real", folder)}
    # The real model is measured last here, and shown first.
    outcomes.sort(key=lambda step: step["model"])
    assert write(tmp_path / "out.json", report, subjects, [], outcomes, [])
    written: dict[str, Any] = json.loads((tmp_path / "out.json").read_text())
    return written


def test_reports_show_agreement_transcripts_and_where_engines_part(real: Path, tmp_path: Path) -> None:
    report = report_of(real, tmp_path)
    assert [chat["text"] for chat in report["transcripts"]["real"]] == ["an <answer>"] * 2
    for made in (page(report), table(report)):
        assert "100.0 %" in made
        assert "9 became 4" in made
    assert "an &lt;answer&gt;" in page(report)


def test_the_readme_shows_the_real_model_first_and_how_near_it_is_to_float32(real: Path, tmp_path: Path) -> None:
    report = report_of(real, tmp_path)
    assert list(report["summary"]) == ["nano-llama", "real"]
    older = {**report, "float32": {}, "summary": {"other": {"decode": {}, "ratios": {}}}}
    (tmp_path / "a.json").write_text(json.dumps(older))
    text = with_table(f"{BEGIN}{END}", {"a.json": tmp_path / "a.json", "b.json": tmp_path / "out.json"})
    assert text.index("[b.json]") < text.index("[a.json]")
    rows = [line.split("|")[1].strip() for line in text.splitlines() if line.startswith("| ")]
    assert rows.index("real") < rows.index("nano-llama") < rows.index("other")
    decode = next(line for line in text.splitlines() if line.startswith("| real"))
    assert [cell.strip() for cell in decode.split("|")[2:-1]] == ["2.00"] * 5 + ["1.0"]
    assert "| real, 4 forced tokens against float32" in text
    assert "| Capstan's kernels" in text
    assert "| wllama" not in text[text.index("[a.json]") :]
