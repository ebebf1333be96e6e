"""The bench's counted part on the software adapter; and that it fails when a token costs one thing more."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from benches.runner.plan import SOFTWARE, plan
from benches.runner.results import over_budget, summarize
from benches.runner.run import play
from benches.runner.server import BenchServer
from buildtools.browser import find_browser
from buildtools.commands.bench import PAGE
from buildtools.contenders import install
from buildtools.site import assemble
from capstan_host.headless.chromium import flags
from capstan_host.testing.harness import exec_request
from tests import oracle

LLAMA = Path(__file__).parents[1] / "fixtures" / "nano-llama"
MODELS = {LLAMA.name: LLAMA}
TAPES = ("tape_1", "tape_8", "tape_sampled")
ROWS = ("transformers_js", "eager", *TAPES)

INJECTIONS = """
// Makes every submit of the worker's devices cost one thing more, which globalThis.slowdown names.
{
  let device;
  let spare;
  const request = GPUAdapter.prototype.requestDevice;
  GPUAdapter.prototype.requestDevice = async function (...args) {
    device = await request.apply(this, args);
    const usage = GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST;
    spare = device.createBuffer({ size: 16, usage });
    return device;
  };
  const at = (object, name, ...args) => Object.getPrototypeOf(object)[name].apply(object, args);
  const more = {
    create_buffer: () => at(device, "createBuffer", { size: 16, usage: GPUBufferUsage.STORAGE }).destroy(),
    create_bind_group: () => {
      const layout = device.createBindGroupLayout({ entries: [] });
      at(device, "createBindGroup", { layout, entries: [] });
    },
    write_buffer: () => at(device.queue, "writeBuffer", spare, 0, new Uint8Array(16)),
    submits: () => at(device.queue, "submit", []),
    readbacks: () => spare.mapState === "unmapped" && spare.mapAsync(GPUMapMode.READ).then(() => spare.unmap()),
  };
  let busy = false;
  const submit = GPUQueue.prototype.submit;
  GPUQueue.prototype.submit = function (...args) {
    submit.apply(this, args);
    if (busy || !globalThis.slowdown) return;
    busy = true;
    more[globalThis.slowdown]();
    busy = false;
  };
}
"""
"""In front of worker.js, so that what the bench counts with wraps it."""
THINGS = ("create_buffer", "create_bind_group", "write_buffer", "submits", "readbacks")


def slower_site(folder: Path) -> Path:
    """The site with a worker whose tokens can be made to cost more."""
    site = shutil.copytree(assemble(), folder / "site")
    worker = site / "capstan/worker.js"
    worker.write_text(INJECTIONS + worker.read_text())
    return site


def played(server: BenchServer, steps: Sequence[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[str]]:
    """The steps with their outcomes, of which none may fail, and the requests to other hosts."""
    outcomes: list[dict[str, Any]] = []
    foreign = play(
        server, find_browser(), flags("software"), steps, lambda step, outcome: outcomes.append({**step, **outcome})
    )
    failed = {outcome["id"]: outcome["error"] for outcome in outcomes if not outcome["ok"]}
    assert not failed
    assert len(outcomes) == len(steps)
    return outcomes, foreign


def counted(rows: Sequence[str]) -> list[dict[str, Any]]:
    """The steps of the counters section for these rows: each contender's load, its memory, the rows' two runs."""
    steps = plan(MODELS, ["counters"], SOFTWARE, [], [])
    wanted = [step for step in steps if step.get("row") in rows]
    contenders = {step["contender"] for step in wanted}
    return [step for step in steps if step in wanted or step.get("row") in contenders]


@pytest.fixture(scope="module")
def all_run() -> tuple[list[dict[str, Any]], list[str]]:
    """The counted runs, all contenders in one page."""
    return played(BenchServer(assemble(), PAGE, install(["transformers_js"]), MODELS), counted(ROWS))


@pytest.fixture(scope="module")
def run(all_run: tuple[list[dict[str, Any]], list[str]]) -> list[dict[str, Any]]:
    return all_run[0]


@pytest.mark.extended
def test_no_contender_asks_another_host(all_run: tuple[list[dict[str, Any]], list[str]]) -> None:
    assert all_run[1] == []


@pytest.mark.extended
def test_every_contender_picks_the_oracles_greedy_ids(run: list[dict[str, Any]]) -> None:
    greedy = [step for step in run if step["function"] == "generate" and not step["row"].endswith("_sampled")]
    assert {step["contender"] for step in greedy} == {"transformers_js", "eager", "capstan"}
    for step in greedy:
        ids = step["data"]["ids"]
        assert ids == oracle.greedy(LLAMA, step["args"]["prompt"], len(ids)), step["row"]


@pytest.mark.extended
def test_a_tapes_token_stays_within_its_budget_and_the_others_are_counted_too(run: list[dict[str, Any]]) -> None:
    assert over_budget(run) == []
    rows = summarize(run)[LLAMA.name]["counters"]
    tapes = [step for step in run if step["row"] in TAPES]
    assert {step["data"]["capture"] for step in tapes} == {"tape"}
    assert (rows["tape_1"]["submits"], rows["tape_1"]["readbacks"], rows["tape_1"]["bytes_down"]) == (1, 1, 4)
    assert rows["tape_8"]["submits"] == rows["tape_8"]["readbacks"] == 3 / 12, "12 tokens: 1, 8 and 3"
    memory = summarize(run)[LLAMA.name]["memory"]
    assert set(memory) == {"transformers_js", "eager", "capstan"}
    weights = (LLAMA / "model.onnx.data").stat().st_size
    assert all(found["peak_bytes"] >= found["live_bytes"] >= weights for found in memory.values()), memory
    for name in ("transformers_js", "eager"):
        assert rows[name]["bytes_down"] >= 4 * 512, "the logits of a vocabulary of 512"
        assert rows[name]["create_bind_group"] > 1


def script(source: str) -> dict[str, Any]:
    """A step that runs a script in Capstan's worker."""
    request = exec_request(source, (), (), "step.py")
    return {"action": "request", "request": request, "section": "script", "model": "", "limit": SOFTWARE.limit}


ELSEWHERE = """
from pyodide.http import pyfetch

try:
    await pyfetch("https://elsewhere.invalid/")
except OSError:
    pass
"""


@pytest.mark.extended
def test_a_slower_token_and_a_request_to_another_host_are_found(tmp_path: Path) -> None:
    """Each thing that may not come with a token is made to come with each submit: the budget then fails by its name."""
    load, _, run, _ = counted(["tape_8"])
    steps = [script(ELSEWHERE), load]
    for thing in (None, *THINGS):
        steps.append(script(f"import js; js.slowdown = {thing!r}"))
        steps.append({**run, "slowed": thing})
    server = BenchServer(slower_site(tmp_path), PAGE, {}, MODELS)
    outcomes, foreign = played(server, [{**step, "id": number} for number, step in enumerate(steps)])
    assert len(foreign) == 1
    assert "elsewhere.invalid" in foreign[0]
    for thing in (None, *THINGS):
        found = over_budget([outcome for outcome in outcomes if outcome.get("slowed", "") == thing])
        if thing is None:
            assert found == [], "without a slowdown nothing is found"
        else:
            assert any(f" {thing}, at most" in line for line in found), (thing, found)


@pytest.mark.extended
def test_a_contender_that_does_not_start_fails_its_own_steps_only() -> None:
    """Its worker's script is not served here; the others' workers are ended all the same, and new ones start."""

    def step(contender: str) -> dict[str, Any]:
        return {"action": "call", "contender": contender, "function": "memory", "args": {}, "limit": SOFTWARE.limit}

    end = {"action": "end", "limit": SOFTWARE.limit}
    steps = [step("eager"), step("transformers_js"), step("transformers_js"), end, step("eager"), end]
    found: list[bool] = []
    server = BenchServer(assemble(), PAGE, {}, {})
    numbered = [{**step, "id": number} for number, step in enumerate(steps)]
    play(server, find_browser(), flags("software"), numbered, lambda _, outcome: found.append(outcome["ok"]))
    assert found == [True, False, False, True, True, True]
