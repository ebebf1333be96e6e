"""Key/value caches of 8 and 4 bits on WebGPU: every way to run gives the ids of onnxruntime-web's own kernels."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from tests import oracle
from tests.browser.page_scripts import PageScripts

FIXTURES = Path(__file__).parents[1] / "fixtures"
PROMPT = [(31 * i + 7) % 509 for i in range(90)]
COUNT = 20
BITS = {"int8": 8, "int4": 4}
FUSED = {"int8": "became 12, 1 of them as recorded", "int4": "became 30, 19 of them as recorded"}


def in_all_ways(scripts: PageScripts, model: str, dtype: str) -> dict[str, Any]:
    arguments: dict[str, Any] = {"model": model, "dtype": dtype, "prompt": PROMPT, "count": COUNT}
    found: dict[str, Any] = scripts.run("quantized_caches", "all_ways", model, **arguments)
    return found


def of_one_kind(found: dict[str, Any]) -> None:
    """Every way to run gives the ids of eager runs."""
    assert len(found["eager"]) == COUNT
    for way in ("tape", "rewound", "row", "drafted"):
        assert found[way] == found["eager"], way
    ids, reused = found["shared"]
    assert ids == found["eager"]
    assert reused >= len(PROMPT) - 1


@pytest.mark.parametrize("model", ["nano-llama", pytest.param("nano-qwen3", marks=pytest.mark.extended)])
def test_caches_of_8_bits_run_in_every_way(model: str, scripts: PageScripts) -> None:
    """nano-qwen3's keys are normalised and rotated before another kernel quantizes them."""
    found = in_all_ways(scripts, model, "int8")
    of_one_kind(found)
    assert 0 <= found["bytes"] - found["told"] < 256, "padding between the spans of a buffer"
    exact = oracle.logits(FIXTURES / model, PROMPT)
    assert math.dist(found["logits"], exact) < 0.05 * math.hypot(*exact)
    assert FUSED["int8"] in found["passes"]["fused"]
    assert "rows" in found["rows"]
    assert "4 positions" in found["drafts"]
    assert not found["stepped down"]


def test_caches_of_4_bits_keep_their_recorded_kernels(scripts: PageScripts) -> None:
    found = in_all_ways(scripts, "nano-qwen3", "int4")
    of_one_kind(found)
    assert FUSED["int4"] in found["passes"]["fused"]
    assert [each.split(":")[0] for each in found["stepped down"]] == ["several rows in one step", "speculation"]


def test_a_cache_takes_a_scale_and_its_bits(scripts: PageScripts) -> None:
    """The bytes are told before the load."""
    planned = scripts.run("quantized_caches", "planned", "nano-llama", model="nano-llama")
    head = json.loads((FIXTURES / "nano-llama" / "genai_config.json").read_text())["model"]["decoder"]["head_size"]
    for dtype, bits in BITS.items():
        assert planned[dtype] * 32 * head == planned["float"] * (32 + head * bits)


def test_other_types_and_models_are_refused(scripts: PageScripts) -> None:
    five = {"provider_options": [{"webgpu": {"kvCacheQuantizationBits": "5"}}]}
    asked = [
        ("nano-llama", {"kv_cache_dtype": "q8"}),
        ("nano-llama", {"overlay": {"model": {"decoder": {"session_options": five}}}}),
        ("nano-gemma2", {"kv_cache_dtype": "int8"}),
    ]
    dtype, bits, caps = scripts.run("quantized_caches", "refusals", "nano-llama", "nano-gemma2", asked=asked)
    assert dtype == "OptionError: kv_cache_dtype is 'q8'; it must be one of 'float', 'int8', 'int4', or None"
    assert bits.startswith("ConfigError")
    assert 'expected "0", "4" or "8", got "5"' in bits
    assert caps.startswith("UnsupportedModelError: a key/value cache in int8 cannot be with soft caps of attention")


def test_the_cpu_keeps_floats_and_says_so(scripts: PageScripts) -> None:
    """The option that onnxruntime-genai reads in genai_config.json is heard; on the CPU it is a step down."""
    eight = {"provider_options": [{"webgpu": {"kvCacheQuantizationBits": "8"}}]}
    overlay = {"model": {"decoder": {"session_options": eight}}}
    arguments: dict[str, Any] = {"model": "nano-llama", "overlay": overlay, "prompt": PROMPT, "count": COUNT}
    found = scripts.run("quantized_caches", "on_both", "nano-llama", **arguments)
    assert found["wasm"]["ids"] == oracle.greedy(FIXTURES / "nano-llama", PROMPT, COUNT)
    [told] = found["wasm"]["stepped down"]
    assert told == "a key/value cache in int8: only WebGPU computes attention over it"
    assert found["webgpu"]["stepped down"] == []
    assert found["webgpu"]["bytes"] * 2 < found["wasm"]["bytes"]
