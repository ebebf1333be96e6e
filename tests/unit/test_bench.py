"""The bench without a browser: plans, what is made of results, Transformers.js's layout, reports, stuck browsers."""

from __future__ import annotations

import json
import queue
import re
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from dataclasses import asdict
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import onnx
import pytest

from benches.runner import run as bench_run
from benches.runner import server as bench_server
from benches.runner.plan import HARDWARE, SECTIONS, SOFTWARE, plan
from benches.runner.readme import BEGIN, END, newest_results, with_table
from benches.runner.report import page
from benches.runner.results import disagreements, failures, over_budget, summarize
from benches.runner.server import BenchServer
from benches.runner.text import table
from buildtools.commands.bench import PAGE, README, SPEED, tables_in_step
from capstan_host.headless.static_server import running

ROOT = Path(__file__).parents[2]
LLAMA = ROOT / "tests/fixtures/nano-llama"
BUNDLED = ROOT / "models/bundled"
GREEDY = [5, 6, 7, 8]
SAMPLED = [9, 9, 9, 9]
MS = {"transformers_js": 10.0, "transformers_js_sampled": 16.0, "tape": 1.0, "tape_sampled": 2.0}
"""Milliseconds a token of the rows of `outcomes`; all others take 4."""


def data_of(step: dict[str, Any]) -> dict[str, Any]:
    """The data of a measured step, made from the milliseconds in MS."""
    row = step.get("row", "")
    ms = MS.get(row, 4.0)
    if step["action"] == "start":
        return {"ready_ms": 10 * ms, "loaded_ms": 20 * ms, "first_token_ms": 30 * ms, "ids": GREEDY[:1]}
    if step["action"] == "frames":
        drawn = {"frames": [1000.0, 1016.0, 1033.0, 1083.0], "long_tasks": []}
        played = {"ids": GREEDY, "began": 1001.0, "first_ms": 31.0, "rest_ms": 6.0, "run_tokens": 2048}
        return drawn | (played if "function" in step else {})
    match step.get("function"):
        case "load":
            return {"load_ms": 100 * ms}
        case "limits":
            return {"copy_bytes_per_s": 4e12, "empty_us": 1.5, "bytes": 1 << 29}
        case "memory":
            return {"live_bytes": 1000, "peak_bytes": 2000, "ledger": {"weights": 900}}
        case "replay":
            return {"ms_per_token": 0.98 * MS["tape"], "picks": 8}
        case "gpu_time":
            return {"gpu_ms": 0.97}
        case "operations":
            return {"operations": [{"index": 0, "label": "MatMul", "microseconds": 3.5, "bytes": 4_000_000}]}
        case "answer":
            slow = 3 if row == "after a rest" else 1
            return {"arrivals_ms": [slow * (10.0 + number) for number in range(100)]}
        case "uses" if step["section"] == "rows":
            return {
                "paces": {"1 row": {"sequences": 1, "step_ms": [2.0]}, "8 rows": {"sequences": 8, "step_ms": [4.0]}}
            }
        case "uses":
            times = [{"first_ms": 100.0 / (number + 1), "whole_ms": 200.0, "made_ms": {}} for number in range(10)]
            return {"uses": {"drafts": times}}
        case "generate":
            ids = SAMPLED if row.endswith("sampled") else GREEDY
            found = {"ids": ids, "first_ms": 5 * ms, "rest_ms": 3 * ms, "capture": "tape"}
            counts = dict.fromkeys(("create_buffer", "create_bind_group", "write_buffer", "bytes_up"), 0)
            counts |= {"submits": 1, "readbacks": 1, "bytes_down": 4 * len(ids)}
            return {**found, "counts": counts, "host": {"loop": 0.4, "javascript": 0.1}, "crossings": 1}
    return {}


@pytest.fixture
def outcomes() -> list[dict[str, Any]]:
    """Every section of one model, played by nobody."""
    steps = plan({"nano-llama": LLAMA}, list(SECTIONS), HARDWARE, ["one", "two"], [])
    return [{**step, "ok": True, "data": data_of(step)} for step in steps]


@pytest.fixture
def report(outcomes: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "date": "2026-01-02T03:04:05+00:00",
        "command": "bench <x>",
        "adapter": {"vendor": "v", "architecture": "a", "description": "", "software": False},
        "gpu": "GPU & co",
        "browser": "Chromium 1 built on x",
        "versions": {"capstan": "0"},
        "measured": asdict(HARDWARE),
        "summary": summarize(outcomes),
        "disagreements": disagreements(outcomes),
        "failures": [],
        "over budget": [],
        "requests to other hosts": [],
    }


def test_each_round_has_every_row_once_and_the_order_rotates() -> None:
    steps = plan({"nano-llama": LLAMA}, ["decode"], HARDWARE, [], [])
    rounds = [[s["row"] for s in steps if s.get("round") == turn] for turn in range(HARDWARE.rounds + 1)]
    assert all(sorted(rows) == sorted(rounds[0]) for rows in rounds)
    assert len({rows[0] for rows in rounds[1:]}) == HARDWARE.rounds
    assert [step["id"] for step in steps] == list(range(len(steps)))


def test_on_a_software_adapter_a_larger_model_is_only_counted() -> None:
    steps = plan({"nano-llama": LLAMA, "bundled": BUNDLED}, ["decode", "counters"], SOFTWARE, [], [])
    assert {step["section"] for step in steps if step["model"] == "bundled"} == {"counters", "end"}
    rows = {step["row"] for step in steps if step["model"] == "bundled" and step.get("function") == "generate"}
    assert rows == {"transformers_js", "eager", "tape_8", "tape_1_sampled", "tape_sampled"}
    assert {step["section"] for step in steps if step["model"] == "nano-llama"} == {"decode", "counters", "end"}


def test_medians_and_ratios_come_from_the_rounds_after_the_first(outcomes: list[dict[str, Any]]) -> None:
    for outcome in outcomes:
        if outcome["section"] == "decode" and not outcome["warm"] and "rest_ms" in outcome["data"]:
            outcome["data"]["rest_ms"] = 1e9
    found = summarize(outcomes)["nano-llama"]
    assert found["decode"]["tape"] == {"median": 1, "p95": 1, "all": [1.0] * 5, "capture": "tape"}
    ratios = found["ratios"]
    assert ratios["decode greedy: Transformers.js / Capstan"] == 10
    assert ratios["decode sampled: Transformers.js / Capstan"] == 8
    assert ratios["decode greedy: Capstan / the tape from JavaScript"] == pytest.approx(1 / 0.98)
    assert ratios["decode greedy: Capstan / GPU time of the step"] == pytest.approx(1 / 0.97)
    assert ratios["first token, 128-token prompt: Transformers.js / Capstan"] == 10
    assert ratios["page load to first token, warm: Transformers.js / Capstan"] == 2.5
    assert found["lengths"]["tape"]["128"]["prefill_tokens_per_s"] == 1000 * 128 / 5
    assert ratios["Capstan: ms a token at length 128 / at 16"] == 1
    assert found["rest"]["after a rest"]["ms_per_token"] == {"2 to 16": 3, "17 to 40": 3, "41 to 100": 3}
    assert found["rest"]["right after it"]["tokens_per_s"] == pytest.approx(100_000 / 109)
    assert found["rows"]["8 rows"] == {"step_ms": 4, "tokens_per_s": 2000, "times": 4}
    assert found["uses"]["warm page"]["drafts"]["first_ms"] == [100, 50, 12.5]
    assert set(found["ablation"]) == {"all", "none", "all but one", "all but two"}
    assert found["counters"]["tape_1"]["host_python_ms"] == pytest.approx(0.3 / 4)


@pytest.mark.parametrize(
    ("section", "row", "against"),
    [
        ("start", "capstan", "capstan"),
        ("lengths", "transformers_js", "eager"),
        ("ablation", "all but one", "all"),
        ("counters", "tape_8", "eager"),
        ("counters", "tape_sampled", "tape_1_sampled"),
    ],
)
def test_ids_are_compared_wherever_something_is_measured(
    section: str, row: str, against: str, outcomes: list[dict[str, Any]], report: dict[str, Any]
) -> None:
    of_row = [step for step in outcomes if (step["section"], step.get("row")) == (section, row)]
    wrong = next(step for step in reversed(of_row) if "ids" in step["data"])
    wrong["data"]["ids"] = [*wrong["data"]["ids"][:-1], 0]
    found = disagreements(outcomes)
    assert (section, row, against) in {(entry["section"], entry["row"], entry["against"]) for entry in found}
    assert {entry["section"] for entry in found} == {section}
    assert f"{section}: ids differ from " in page({**report, "disagreements": found})


@pytest.mark.parametrize("name", ["create_buffer", "create_bind_group", "write_buffer", "submits", "readbacks"])
def test_one_thing_more_than_the_budget_is_told(name: str, outcomes: list[dict[str, Any]]) -> None:
    assert over_budget(outcomes) == []
    slower = next(step for step in outcomes if step["section"] == "counters" and step.get("row") == "tape_sampled")
    slower["data"]["counts"][name] += 1
    (line,) = over_budget(outcomes)
    assert f" {name}, at most" in line


def test_a_step_down_to_another_capture_is_told(outcomes: list[dict[str, Any]]) -> None:
    tape = next(outcome for outcome in outcomes if outcome.get("row") == "tape" and outcome["section"] == "decode")
    tape["asked"] = {"capture": "tape"}
    assert failures([], outcomes) == []
    tape["data"] |= {"capture": "ort", "capture_note": "a copy"}
    assert failures([], outcomes) == ["nano-llama decode tape: ran as 'ort', not 'tape': a copy"]


def test_failed_and_missing_steps_are_told(outcomes: list[dict[str, Any]]) -> None:
    steps = [dict(outcome) for outcome in outcomes]
    broken = [*outcomes[:3], {**outcomes[3], "ok": False, "error": "Error: why\n  at x"}, *outcomes[5:]]
    assert [line.rsplit(": ", 1)[1] for line in failures(steps, broken)] == ["why", "missing"]


class Balance(HTMLParser):
    """Fails if an element is not closed; collects the references of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.outside: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.outside += [f"{tag} {name}" for name, value in attrs if name in ("src", "href")]
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_reports_name_the_conditions_and_need_no_other_file(report: dict[str, Any]) -> None:
    html, text = page(report), table(report)
    parser = Balance()
    parser.feed(html)
    assert (parser.open, parser.outside) == ([], [])
    assert "url(" not in html
    assert "GPU &amp; co" in html
    assert "bench &lt;x&gt;" in html
    assert "prefers-color-scheme" in html
    for words in ("2026-01-02", "Chromium 1", "capstan 0", "all but one"):
        assert words in html
        assert words in text
    numbers = re.findall(r' (?:width|x|y|cx|cy)="([^"]+)"', html)
    assert numbers
    assert all(float(number) >= 0 for number in numbers)


def test_the_readme_table_replaces_what_is_between_the_markers(report: dict[str, Any], tmp_path: Path) -> None:
    assert newest_results(tmp_path) == []
    for name in ("2026-01-02-h200-speed-more", "2026-01-02-h200-speed", "2026-01-01-h200-speed"):
        (tmp_path / f"{name}.json").write_text(json.dumps({**report, "date": name[:10]}))
    newest = newest_results(tmp_path)
    assert [path.name for path in newest] == ["2026-01-02-h200-speed.json", "2026-01-02-h200-speed-more.json"]
    shown = {"results.json": newest[0], "more.json": newest[1]}
    made = with_table(f"before\n{BEGIN}\nold\n{END}\nafter\n", shown)
    assert made.startswith(f"before\n{BEGIN}\n\n2026-01-02, GPU & co, Chromium 1")
    assert made.endswith(f"|\n\n{END}\nafter\n")
    assert "| 10.00 " in made
    assert "Results: [results](results.json), [more](more.json)." in made
    assert made.count("GPU & co") == 1
    assert "old" not in made
    assert with_table(made, shown) == made
    brief = with_table(f"{BEGIN}{END}", shown, brief=True)
    assert brief.count("GPU & co") == 1
    assert brief.count("| nano-llama ") == 2
    assert "| 100 " in brief, "tokens a second"
    with pytest.raises(ValueError, match="lacks"):
        with_table("no markers", shown)


def test_the_tables_are_in_step_with_the_committed_results() -> None:
    assert tables_in_step() == {path: path.read_text() for path in (README, SPEED)}, "python3 build.py bench --readme"


def served(server: BenchServer, path: str) -> bytes:
    with urllib.request.urlopen(server.url + path) as reply:
        content: bytes = reply.read()
        return content


def test_models_are_served_in_the_layout_of_transformers_js(tmp_path: Path) -> None:
    with running(BenchServer(tmp_path, PAGE, {}, {"nano-llama": LLAMA})) as server:
        folder = "transformers_js_models/nano-llama/"
        config = json.loads(served(server, folder + "config.json"))
        assert (config["model_type"], config["num_key_value_heads"], config["head_dim"]) == ("llama", 2, 16)
        assert "eos_token_id" not in config
        assert served(server, folder + "generation_config.json") == b"{}"
        graph = served(server, folder + "onnx/model.onnx")
        assert graph.replace(b"model.onnx_data", b"model.onnx.data") == (LLAMA / "model.onnx").read_bytes()
        assert b"model.onnx.data" not in graph
        assert served(server, folder + "onnx/model.onnx_data") == (LLAMA / "model.onnx.data").read_bytes()
        with urllib.request.urlopen(server.url + "bench/index.html") as reply:
            assert "default-src 'self'" in reply.headers["Content-Security-Policy"]


def test_a_large_data_file_is_served_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_server, "LARGEST_DATA", 100_000)
    with running(BenchServer(tmp_path, PAGE, {}, {"nano-llama": LLAMA})) as server:
        folder = "transformers_js_models/nano-llama/"
        parts = json.loads(served(server, folder + "config.json"))["transformers.js_config"]["use_external_data_format"]
        (tmp_path / "parts").mkdir()
        names = [f"model.onnx_data{f'_{number}' if number else ''}" for number in range(parts)]
        for name in ("model.onnx", *names):
            (tmp_path / "parts" / name).write_bytes(served(server, folder + "onnx/" + name))
        with pytest.raises(urllib.error.HTTPError):
            served(server, f"{folder}onnx/model.onnx_data_{parts}")
    sizes = [(tmp_path / "parts" / name).stat().st_size for name in names]
    # The first weight alone has 131072 bytes.
    assert sizes == [131072, 96512, 4096]
    whole, apart = onnx.load(LLAMA / "model.onnx"), onnx.load(tmp_path / "parts/model.onnx")
    assert whole == apart


def test_what_is_packed_runs_with_the_standard_library_alone(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "benches/runner", tmp_path / "benches/runner")
    for name in ("capstan", "capstan_host"):
        shutil.copytree(ROOT / "py_src" / name, tmp_path / "py_src" / name)
    command = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import benches.runner.main"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", command], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


class Scripted:
    """Stands for a browser: plays the plan as a page would, from a script of outcomes."""

    outcomes: queue.Queue[str]

    def __init__(self, server: BenchServer) -> None:
        self.server = server
        self.process = self
        self.log = Path("/dev/null")
        self.dead = False

    def poll(self) -> int | None:
        """Act: each word of the script is the next thing that the page posts, or its death."""
        while not self.dead:
            word = self.outcomes.get()
            step = self.server.steps[0] if self.server.steps else {"id": -1}
            self.dead = word in ("die", "hang")
            if word == "die":
                break
            if word == "end":
                self.server.posted.put(("end", {}))
                return None
            self.server.posted.put(("begin", {"id": step["id"]}))
            if word == "hang":
                break
            self.server.posted.put(("result", {"id": step["id"], "ok": True, "data": {}}))
            self.server.steps = self.server.steps[1:]
        return 1

    def close(self) -> None:
        pass


def test_a_step_that_kills_the_browser_costs_itself_only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    server = BenchServer(tmp_path, PAGE, {}, {})
    Scripted.outcomes = queue.Queue()
    for word in ("ok", "hang", "ok", "end"):
        Scripted.outcomes.put(word)
    monkeypatch.setattr(bench_run, "Launch", lambda *_: Scripted(server))
    steps = [{"id": number, "limit": 60.0} for number in range(3)]
    kept: list[tuple[int, bool]] = []
    foreign = bench_run.play(
        server, Path("x"), [], steps, lambda step, outcome: kept.append((step["id"], outcome["ok"]))
    )
    assert (kept, foreign) == ([(0, True), (1, False), (2, True)], [])
