"""Families of decoders: ids on webgpu and wasm are onnxruntime-genai's. `benches/families.py` runs them all."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from benches.families import PAGE
from capstan.model_files.model_types import REFUSED_TYPES
from capstan_host.site_server import SiteServer
from tests import oracle
from tests.browser.model_variants import Variants
from tests.browser.page_scripts import PageScripts
from tests.families import COUNT, DEVICES, FAMILIES, PROMPTS, measured

SAMPLE = ("phi", "nemotron", "hunyuandensev1", "lfm2", "qwen3_5_text")
"""Those whose operations no other fixture has; few, for the time that each takes on two cores."""
OTHERS = [family.name for family in FAMILIES if family.folder.parent.name == "families" and family.name not in SAMPLE]
"""Those of which some tokens must do; what is beside tests/fixtures/families is in tests/browser/test_generate.py."""
NOT_CAPTURED = "lfm2_moe"
"""onnxruntime-web puts nodes of its router on the CPU, and an error on the console where it is asked to capture it."""
EXPERTS = FAMILIES[-1].folder
STATEFUL = ("lfm2", "qwen3_5_text")
"""Those with states that each run overwrites."""


@pytest.fixture(scope="module")
def mounted(site: SiteServer) -> None:
    site.models.update({family.name: family.folder for family in FAMILIES})


@pytest.mark.one_in
@pytest.mark.usefixtures("mounted")
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", SAMPLE)
def test_greedy_ids_are_the_oracles(name: str, device: str, scripts: PageScripts) -> None:
    family = next(family for family in FAMILIES if family.name == name)
    found = measured(family, device, partial(scripts.run, "sequences", "drive", name))
    assert found.equal == COUNT * len(PROMPTS)
    assert found.capture == ("tape" if device == "webgpu" else "off")


@pytest.mark.one_in
@pytest.mark.usefixtures("mounted")
@pytest.mark.parametrize(("name", "device"), [(name, device) for device in ("wasm", "webgpu") for name in OTHERS])
def test_the_first_ids_are_the_oracles(name: str, device: str, scripts: PageScripts) -> None:
    actions = [("append", PROMPTS[0]), ("generate", 16)]
    asked = {"capture": "off"} if name == NOT_CAPTURED and device == "webgpu" else {}
    found = scripts.run("sequences", "drive", name, model=name, actions=actions, device=device, **asked)
    assert found["capture"] == ("off" if asked or device == "wasm" else "tape")
    family = next(family for family in FAMILIES if family.name == name)
    assert found["picked"] == oracle.greedy(family.folder, PROMPTS[0], 16)


@pytest.mark.extended
@pytest.mark.usefixtures("mounted")
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", STATEFUL)
def test_states_are_rewound_to_where_the_sequence_goes_on(name: str, device: str, scripts: PageScripts) -> None:
    folder = next(family for family in FAMILIES if family.name == name).folder
    rounds: list[tuple[int, list[int], int]]
    rounds = [(0, PROMPTS[1], 40), (110, [11, 12], 12), (100, [], 10), (30, [3], 4), (2, [8], 4)]
    actions: list[tuple[str, Any]] = []
    for kept, appended, count in rounds:
        actions += [("rewind", kept), *([("append", appended)] if appended else []), ("generate", count)]
    run_ahead = {"run_ahead": 8} if device == "webgpu" else {}
    found = scripts.run("sequences", "drive", name, model=name, actions=actions, device=device, **run_ahead)
    sequence: list[int] = []
    for kept, appended, count in rounds:
        sequence = [*sequence[:kept], *appended]
        # onnxruntime-genai 0.18 rewinds no such model: a new generator runs what was kept.
        sequence += oracle.greedy(folder, sequence, count)
    assert found["sequence"] == sequence


@pytest.mark.one_in(2)
@pytest.mark.usefixtures("mounted")
@pytest.mark.parametrize("name", STATEFUL)
def test_the_next_sequence_begins_with_empty_states(name: str, scripts: PageScripts) -> None:
    folder = next(family for family in FAMILIES if family.name == name).folder
    prompts = [PROMPTS[0], PROMPTS[1], PROMPTS[0]]
    found = scripts.run("sequences", "each", name, model=name, prompts=prompts, count=12)
    assert found == [oracle.greedy(folder, prompt, 12) for prompt in prompts]


def plain_attention(model: Any) -> None:
    """Remove window and sinks, for which a tape has no kernels."""
    for node in model.graph.node:
        if node.op_type == "GroupQueryAttention":
            del node.input[11:]
            for attribute in node.attribute:
                if attribute.name == "local_window_size":
                    attribute.i = -1


@pytest.mark.extended
def test_experts_are_replayed_and_their_prompts_run_token_by_token(variants: Variants, scripts: PageScripts) -> None:
    name = variants.graph("plain-experts", plain_attention, EXPERTS)
    prompt = [(31 * i + 7) % 253 for i in range(24)]
    found = scripts.run("passes", "picked_with", name, model=name, choices=[None], prompt=prompt, count=24)
    [tape] = found["tapes"]
    assert tape["ids"] == oracle.greedy(variants.place / name, prompt, 24)
    [(told, _)] = [item for item in found["fallbacks"].items() if "several tokens" in item[0]]
    assert told == (
        "prompts in runs of several tokens: node /model/layers.0/moe/QMoE (QMoE): "
        "onnxruntime-web loses rows of runs of several tokens"
    )


def test_every_type_is_in_the_table_of_the_docs() -> None:
    page = PAGE.read_text()
    for family in FAMILIES:
        assert f"| {family.types} " in page, f"run benches/families.py: {family.types}"
    for name in REFUSED_TYPES:
        assert name in page, f"run benches/families.py: {name}"
    types = {json.loads((family.folder / "genai_config.json").read_text())["model"]["type"] for family in FAMILIES}
    assert types <= {word.strip("(),") for family in FAMILIES for word in family.types.split()}


def test_fixtures_of_families_are_small() -> None:
    for family in FAMILIES:
        assert sum(path.stat().st_size for path in Path(family.folder).iterdir()) < 400_000
