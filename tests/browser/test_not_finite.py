"""A page finds the first node with NaN on each device."""

from __future__ import annotations

import json

from tests.browser.model_variants import Variants
from tests.harness import Harness
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
