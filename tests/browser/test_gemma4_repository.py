"""Gemma 4 in Transformers.js' layout: the ids in the page are those of transformers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from capstan_host.site_server import SiteServer
from capstan_host.testing.harness import Harness
from tests.browser.page_scripts import PageScripts
from tests.browser.test_repositories import GONE

FOLDER = Path(__file__).parents[1] / "fixtures/repositories/nano-gemma4"
CASES = json.loads((FOLDER / "expected.json").read_text())["cases"]


@pytest.fixture(scope="module")
def name(site: SiteServer) -> str:
    site.models[FOLDER.name] = FOLDER
    return FOLDER.name


@pytest.mark.parametrize(
    ("device", "capture"), [("webgpu", "tape"), ("webgpu", "off"), ("wasm", "tape"), ("wasm", "off")]
)
def test_ids_are_those_of_transformers(
    name: str, device: str, capture: str, harness: Harness, scripts: PageScripts
) -> None:
    scripts.expect(GONE)
    for case in CASES:
        count = len(case["ids"])
        found = harness.generate(name, prompt_ids=case["prompt"], max_new_tokens=count, device=device, capture=capture)
        assert found["token_ids"] == case["ids"]
