"""The example app's tests pass, and find a slow kernel in its Capstan and a wrong weight in what the app serves."""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from buildtools import ROOT
from buildtools.site import assemble
from capstan_host.model_arguments import BUNDLED
from tests.conftest import TIERING, UNCHECKED

LLAMA = ROOT / "tests/fixtures/nano-llama"
WEIGHT_AT = 2_097_152 + 4 * 100
"""An element of the first layer's norm in the bundled model's float32 weights: 0.27."""
THROWS = """
def test_thrown(llm):
    llm.page.page.evaluate("() => { setTimeout(() => { throw new Error('out of the page'); }); }")
    llm.page.page.wait_for_timeout(100)
"""
KEPT = ("trace.zip", "screenshot.png", "requests.json", "errors.json")
PICK = "let largest = atomicLoad(&top);"
"""A line of the sampler's last kernel, which each of its threads runs once for each token."""
TURNS = 400_000 if os.environ.get("CAPSTAN_ADAPTER") == "hardware" else 40_000
SLOW = PICK + rf"\n  for (var turn = 0u; turn < {TURNS}u; turn++) {{ atomicMax(&top, turn & 1u); }}"


def made(folder: Path, model: Path = BUNDLED) -> Path:
    """A copy of the example with the package and a model."""
    app = Path(shutil.copytree(ROOT / "examples/testing", folder / "app"))
    package = app / "node_modules/capstan-webgpu"
    shutil.copytree(assemble() / "capstan", package / "capstan", copy_function=os.link)
    (package / "index.js").write_text('export * from "./capstan/capstan.js";\n')
    shutil.copytree(model, app / "models/bundled")
    return app


def kept_of(app: Path, test: str) -> set[str]:
    """The files that are kept of a failed test."""
    (folder,) = app.glob(f"test-results/*{test}")
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def run_tests(app: Path, *arguments: str, baseline: Path | None = None) -> subprocess.CompletedProcess[str]:
    plugins = ["-p", "capstan_host.testing.plugin", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *plugins, *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "py_src"), "CAPSTAN_BASELINE": str(baseline or assemble())}
    environment |= {"CAPSTAN_BROWSER_ARGS": f"{TIERING} {UNCHECKED}"}
    environment |= {"CAPSTAN_ADAPTER": os.environ.get("CAPSTAN_ADAPTER", "software")}
    return subprocess.run(command, cwd=app, env=environment, capture_output=True, text=True, timeout=400)


@pytest.mark.extended
def test_the_example_passes_without_a_baseline(tmp_path: Path) -> None:
    app = made(tmp_path)
    done = run_tests(app, baseline=app / "none")
    assert "3 passed, 1 skipped" in done.stdout, done.stdout + done.stderr
    assert not (app / "test-results").exists()


@pytest.mark.extended
def test_the_example_passes_beside_the_same_build(tmp_path: Path) -> None:
    done = run_tests(made(tmp_path))
    assert "4 passed" in done.stdout, done.stdout + done.stderr


@pytest.mark.extended
def test_a_wrong_weight_is_found(tmp_path: Path) -> None:
    app = made(tmp_path)
    weights = app / "models/bundled/model.onnx.data"
    data = bytearray(weights.read_bytes())
    struct.pack_into("<f", data, WEIGHT_AT, 30.0)
    weights.write_bytes(data)
    # Else the load finds the damage.
    (app / "models/bundled/model.onnx.data.shards.json").unlink()
    done = run_tests(app, "-k", "ids")
    assert "1 failed, 3 deselected" in done.stdout, done.stdout + done.stderr
    assert "token 0 after the prompt of 8 differs from the golden golden.json (by onnxruntime-genai" in done.stdout
    assert "a weight, a configuration or a kernel of both is at fault" in done.stdout
    assert kept_of(app, "test_ids") >= {f"app-0/{file}" for file in (*KEPT, "capstan-trace.json")}


@pytest.mark.extended
def test_a_slow_kernel_and_an_exception_are_found_their_failures_kept_and_the_rest_passes(tmp_path: Path) -> None:
    app = made(tmp_path, LLAMA)
    worker = app / "node_modules/capstan-webgpu/capstan/worker.js"
    text = worker.read_text(encoding="utf-8")
    assert text.count(PICK) == 1
    worker.unlink()
    worker.write_text(text.replace(PICK, SLOW), encoding="utf-8")
    (app / "tests/test_thrown.py").write_text(THROWS)
    done = run_tests(app, "-k", "speed or thrown or cost")
    assert "2 failed, 1 passed, 2 deselected" in done.stdout, done.stdout + done.stderr
    assert "of a step's GPU time, 'sampler greedy" in done.stdout
    assert "the pages reported ['app-0: exception: out of the page" in done.stdout
    assert len([*(app / "test-results").iterdir()]) == 2
    for test in ("test_speed", "test_thrown"):
        assert kept_of(app, test) >= {f"{page}/{file}" for page in ("app-0", "page-1") for file in KEPT}
    (thrown,) = app.glob("test-results/*test_thrown/app-0/errors.json")
    assert json.loads(thrown.read_text())["lacking"] == ["capstan-trace.json: the test asked this page for no answer"]
    (speed,) = app.glob("test-results/*test_speed")
    for page in ("app-0", "page-1"):
        spans = json.loads((speed / page / "capstan-trace.json").read_text())["traceEvents"]
        assert any(span["name"].startswith("answer: generate") for span in spans)
