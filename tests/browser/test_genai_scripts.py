"""Scripts for onnxruntime-genai print in the page what they print with it on CPython."""

from __future__ import annotations

import json

import pytest

from buildtools.server import SiteServer
from tests.genai_scripts import EXPECTED, FOLDER, LINES, MODELS, SCRIPTS
from tests.harness import Harness

ON_GPU = ("batch", "continuous_chat", "logits_processing", "model_generate", "rewinding")
"""Those that run on WebGPU, where a model takes some seconds to prepare; the others do nothing there that these do not,
and run on the page's CPU."""


@pytest.mark.one_in(6)
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_runs_unchanged(name: str, harness: Harness, site: SiteServer) -> None:
    site.models["genai_scripts"] = FOLDER
    harness.evaluate("lines => { window.capstanInput = async () => lines.shift() ?? null; }", list(LINES))
    provider = "webgpu" if name in ON_GPU else "cpu"
    done = harness.exec(
        (FOLDER / f"{name}.py").read_text(),
        argv=["-m", f"/models/{MODELS[name]}/", "-e", provider],
        filename=f"/scripts/{name}.py",
        files={"/scripts/common.py": "/models/genai_scripts/common.py"},
    )
    assert done.status == 0, done.stderr
    assert done.stdout == (EXPECTED / f"{name}.txt").read_text(encoding="utf-8"), json.dumps(done.stderr)
