"""A page runs a model a layer at a time on each device, to find NaN and to show hidden states."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pytest

from capstan import genai
from capstan_host.testing.harness import Harness
from tests.browser.model_variants import Variants, telling_hidden_states
from tests.unit.test_not_finite import NAN, PROMPT, spoil

FIND = f"""
import dataclasses, json
import capstan

for device in ("webgpu", "wasm"):
    async with await capstan.Model.load(models["nano-nan"], device=device, capture="off") as model:
        found = await model.find_not_finite({PROMPT})
        sessions = [entry for entry in capstan.memory.ledger().entries if entry.owner.startswith("InferenceSession")]
        # What onnxruntime-web keeps of its own for the next session, on the device, is scratch.
        left = [entry.owner for entry in sessions if entry.category != "scratch"]
        print(json.dumps([dataclasses.asdict(found), left]))
async with await capstan.Model.load(models["nano-llama"], device="wasm") as model:
    assert await model.find_not_finite({PROMPT}) is None
"""
WEIGHT = "model.layers.1.mlp.up_proj.MatMul.weight_scales"


def test_a_page_finds_the_node_on_each_device(harness: Harness, variants: Variants) -> None:
    spoil(variants.folder("nano-nan"), WEIGHT, NAN)
    done = harness.exec(FIND, ["nano-nan", "nano-llama"])
    assert done.status == 0, done.stderr
    name = "/model/layers.1/mlp/up_proj/MatMul"
    wanted = {"node": f"{name}_Q4", "op_type": "MatMulNBits", "layer": 1, "output": f"{name}/output_0"}
    wanted |= {"shape": [1, len(PROMPT), 128], "nan": len(PROMPT), "above": 0, "below": 0, "inputs": {WEIGHT: 1}}
    assert [json.loads(line) for line in done.stdout.splitlines()] == [[wanted, []]] * 2


SHOW = """
import json
import onnxruntime_genai as og

for provider in ("webgpu", "cpu"):
    config = og.Config(models["nano-hidden"])
    config.clear_providers()
    config.append_provider(provider)
    if provider == "webgpu":
        config.set_provider_option(provider, "enableGraphCapture", "0")
    print(json.dumps(shown(og, og.Model(config))))
"""
SHOWN = f"""
def shown(og, model):
    lines = []
    kinds = ("append_next_tokens", "model_input_values", "model_output_shapes", "model_logits")
    og.set_log_options(enabled=True, ansi_tags=False, value_stats=False, **dict.fromkeys(kinds, True))
    og.set_log_callback(lines.append)
    try:
        params = og.GeneratorParams(model)
        params.set_search_options(max_length=12)
        one = og.Generator(model, params)
        one.append_tokens({PROMPT})
        one.generate_next_token()
        one.get_logits()
    finally:
        og.set_log_callback(None)
        og.set_log_options(enabled=False, ansi_tags=True, value_stats=True, **dict.fromkeys(kinds, False))
    hidden = one.get_output("hidden_states")
    return [list(hidden.shape), hidden.ravel().tolist(), "".join(lines)]
"""


@pytest.mark.extended
def test_a_page_shows_hidden_states_and_logs_tensors_on_each_device(harness: Harness, variants: Variants) -> None:
    variants.graph("nano-hidden", telling_hidden_states)
    config = genai.Config(str(variants.place / "nano-hidden"))
    config.clear_providers()
    scope: dict[str, Any] = {}
    exec(SHOWN, scope)
    shape, values, text = scope["shown"](genai, genai.Model(config))
    done = harness.exec(SHOWN + SHOW, ["nano-hidden"])
    assert done.status == 0, done.stderr
    number = r"-?\d+\.\d+(?:e-\d+)?"
    for found in map(json.loads, done.stdout.splitlines()):
        assert found[0] == shape
        np.testing.assert_allclose(found[1], values, atol=2e-3)
        assert re.sub(number, "#", found[2]) == re.sub(number, "#", text)
        numbers = [np.array(re.findall(number, each), float) for each in (found[2], text)]
        np.testing.assert_allclose(numbers[0], numbers[1], atol=2e-3)
