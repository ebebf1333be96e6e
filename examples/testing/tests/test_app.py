"""The app answers as the native package does, a token costs what it did, and none takes longer than in the baseline."""

import os
import re
from pathlib import Path

import pytest

from capstan_host.testing import NativeGenai

APP = Path(__file__).parents[1]
BASELINE = Path(os.environ.get("CAPSTAN_BASELINE", APP / "node_modules/capstan-baseline"))
PROMPT = "def fibonacci(n):"


def test_ids(llm, capstan_golden):
    # `pytest --capstan-update-goldens` asks onnxruntime-genai for them; without it nobody needs that package.
    golden = capstan_golden("tests/golden.json", source=NativeGenai(APP / "models/bundled"))
    llm.assert_ids(PROMPT, oracle=golden, tokens=16)


def test_cost(llm):
    counters = llm.counters(PROMPT, 16)
    assert counters.buffers == 0
    assert counters.bytes_per_token == 4
    assert counters.submits <= 16


@pytest.mark.skipif(not BASELINE.is_dir(), reason="npm install capstan-baseline@npm:capstan-webgpu@VERSION")
def test_speed(llm, capstan_model):
    baseline = capstan_model(APP / "models/bundled", site=BASELINE)
    llm.assert_not_slower(baseline, PROMPT, tokens=6, tolerance=0.5)


def test_button(llm):
    page = llm.page.page
    page.get_by_role("button", name="Complete").click()
    page.get_by_role("status").filter(has_text=re.compile(r"^32 tokens")).wait_for()
