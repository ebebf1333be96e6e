"""Scripts for onnxruntime-genai print in the page what they print with it on CPython."""

from __future__ import annotations

import json

import pytest

from capstan_host.site_server import SiteServer
from capstan_host.testing.harness import Harness
from tests.genai_scripts import EXPECTED, FOLDER, LINES, MODELS, SCRIPTS

CASES = [
    (name, provider)
    for provider in ("webgpu", "cpu")
    for name in SCRIPTS
    if (name, provider) != ("speculation", "webgpu")
]
"""The software adapter makes no steps over several positions, so that there are no drafts on it."""


@pytest.mark.one_in(12)
@pytest.mark.parametrize(("name", "provider"), CASES)
def test_a_script_runs_unchanged(name: str, provider: str, harness: Harness, site: SiteServer) -> None:
    site.models["genai_scripts"] = FOLDER
    harness.evaluate("lines => { window.capstanInput = async () => lines.shift() ?? null; }", list(LINES))
    done = harness.exec(
        (FOLDER / f"{name}.py").read_text(),
        argv=["-m", f"/models/{MODELS[name]}/", "-e", provider],
        filename=f"/scripts/{name}.py",
        files={"/scripts/common.py": "/models/genai_scripts/common.py"},
    )
    assert done.status == 0, done.stderr
    assert done.stdout == (EXPECTED / f"{name}.txt").read_text(encoding="utf-8"), json.dumps(done.stderr)
