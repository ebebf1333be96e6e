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
FUSED = "became 12, 1 of them as recorded"


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


@pytest.mark.one_in(2)
@pytest.mark.parametrize("dtype", BITS)
@pytest.mark.parametrize("model", ["nano-llama", pytest.param("nano-qwen3", marks=pytest.mark.extended)])
def test_quantized_caches_run_in_every_way(model: str, dtype: str, scripts: PageScripts) -> None:
    """nano-qwen3's keys are normalised and rotated before another kernel quantizes them. The levels of 4 bits are made
    for heads of 128 elements: these of 16 are far from floats."""
    found = in_all_ways(scripts, model, dtype)
    of_one_kind(found)
    assert 0 <= found["bytes"] - found["told"] < 256, "padding between the spans of a buffer"
    if dtype == "int8":
        exact = oracle.logits(FIXTURES / model, PROMPT)
        assert math.dist(found["logits"], exact) < 0.05 * math.hypot(*exact)
    assert FUSED in found["passes"]["fused"]
    assert "rows" in found["rows"]
    assert "4 positions" in found["drafts"]
    assert not found["stepped down"]


@pytest.mark.extended
@pytest.mark.parametrize("dtype", ["int4", "int8"])
def test_beams_read_quantized_caches_by_a_table(dtype: str, scripts: PageScripts) -> None:
    """The GPU chooses what the host does, which copies the caches of beams."""
    given: dict[str, Any] = {"model": "nano-llama", "prompts": [PROMPT[:40]], "kv_cache_dtype": dtype}
    cases = [{"num_beams": 4, "max_length": 64, "run_ahead": 5, "num_return_sequences": 4}]
    [host] = scripts.run("beams", "searched", "nano-llama", **given, cases=cases, by_host=True)
    [gpu] = scripts.run("beams", "searched", "nano-llama", **given, cases=cases)
    assert (gpu["choices"], gpu["sequences"]) == (host["choices"], host["sequences"])
    assert (gpu["stepped down"], "beams" in gpu["said"]) == ([], True)
    assert sum([parent for parent, _ in choice] != [0, 1, 2, 3] for choice in gpu["choices"]) > 5


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
        ("nano-gemma3", {"kv_cache_dtype": "int8"}),
    ]
    models = ("nano-llama", "nano-gemma2", "nano-gemma3")
    dtype, bits, caps, window = scripts.run("quantized_caches", "refusals", *models, asked=asked)
    assert dtype == "OptionError: kv_cache_dtype is 'q8'; it must be one of 'float', 'int8', 'int4', or None"
    assert bits.startswith("ConfigError")
    assert 'expected "0", "4" or "8", got "5"' in bits
    assert caps.startswith(
        "UnsupportedModelError: a key/value cache in int8 cannot be used with soft caps of attention"
    )
    assert window == (
        "UnsupportedModelError: a key/value cache in int8 cannot be used with attention that looks back 24 positions "
        "and a context_length of 512 (set it to 24 in genai_config.json); load the model without kv_cache_dtype and "
        "kvCacheQuantizationBits"
    )


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
